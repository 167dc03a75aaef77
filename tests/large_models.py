"""Models of any size whose weights are all zero, in files that take no room: a header, and a hole behind it."""

import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.make_gguf import gpt2_tokenizer


def sparse_model(
    path: Path,
    *,
    arch: str = "llama",
    qtype: str = "Q8_0",
    layers: int,
    hidden: int = 32,
    heads: int = 1,
    kv_heads: int = 1,
    ffn: int = 32,
    experts: int = 0,
) -> Path:
    """Write a llama, or with `experts` a qwen3moe whose experts have a width of `ffn`; every matrix is of one type."""
    tokens, vocab = gpt2_tokenizer(None, "smollm" if arch == "llama" else "qwen2")
    head_dim = hidden // heads
    writer: Any = gguf.GGUFWriter(path, arch)
    numbers = {
        "block_count": layers,
        "context_length": 256,
        "embedding_length": hidden,
        "feed_forward_length": ffn,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
    }
    if experts:
        numbers |= {"expert_count": experts, "expert_used_count": 8, "expert_feed_forward_length": ffn}
    else:
        numbers |= {"rope.dimension_count": head_dim, "vocab_size": vocab}
    for key, number in numbers.items():
        writer.add_uint32(f"{arch}.{key}", number)
    writer.add_float32(f"{arch}.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_float32(f"{arch}.rope.freq_base", 1e6)
    for key, value in tokens.items():
        if isinstance(value, np.ndarray | list):
            writer.add_array(key, list(value) if isinstance(value, list) else value.tolist())
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, value)
    n_q, n_kv = heads * head_dim, kv_heads * head_dim
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (hidden,),
        "ffn_norm": (hidden,),
        "attn_q": (n_q, hidden),
        "attn_k": (n_kv, hidden),
        "attn_v": (n_kv, hidden),
        "attn_output": (hidden, n_q),
    }
    if experts:
        layer |= {"attn_q_norm": (head_dim,), "attn_k_norm": (head_dim,), "ffn_gate_inp": (experts, hidden)}
        layer |= {f"ffn_{x}_exps": (experts, ffn, hidden) for x in ("gate", "up")}
        layer["ffn_down_exps"] = (experts, hidden, ffn)
    else:
        layer |= {"ffn_gate": (ffn, hidden), "ffn_up": (ffn, hidden), "ffn_down": (hidden, ffn)}
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (vocab, hidden), "output_norm": (hidden,)}
    shapes |= {f"blk.{i}.{name}": shape for i in range(layers) for name, shape in layer.items()}
    nbytes = 0
    for name, shape in shapes.items():
        kind = gguf.GGMLQuantizationType["F32" if len(shape) == 1 or "gate_inp" in name else qtype]
        block, block_nbytes = gguf.GGML_QUANT_SIZES[kind]
        size = int(np.prod(shape)) // block * block_nbytes
        writer.add_tensor_info(f"{name}.weight", shape, np.dtype(np.float32), size, raw_dtype=kind)
        nbytes = -(-nbytes // 32) * 32 + size
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with open(path, "ab") as file:
        start = -(-file.tell() // 32) * 32
        os.truncate(path, start + -(-nbytes // 32) * 32)
    return path
