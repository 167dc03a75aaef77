"""What a checkpoint must hold, from gguf-py's reader and dequantization alone: names, transforms and casts by hand."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[np.float32]

TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
GEMMA3_LAYER = LAYER | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
EXPERTS = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}


def hf_tensors(path: Path, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
    """(HF name, tensor of `dtype`) for every tensor of a little-endian GGUF of the first five architectures."""
    reader: Any = gguf.GGUFReader(path)
    arch = reader.fields["general.architecture"].contents()
    heads = {
        "attn_q": reader.fields[f"{arch}.attention.head_count"].contents(),
        "attn_k": reader.fields[f"{arch}.attention.head_count_kv"].contents(),
    }
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        values = np.asarray(values, np.float32).reshape([int(n) for n in reversed(tensor.shape)])
        if tensor.name in TOP:
            if arch == "gemma3" and tensor.name == "output_norm.weight":
                values = values - np.float32(1)
            yield TOP[tensor.name], torch.from_numpy(values).to(dtype)
            continue
        _, layer, middle, kind = tensor.name.split(".")
        prefix = f"model.layers.{layer}"
        if middle in EXPERTS:
            for e, expert in enumerate(values):
                yield f"{prefix}.mlp.experts.{e}.{EXPERTS[middle]}.{kind}", torch.from_numpy(expert).to(dtype)
            continue
        if arch == "llama" and middle in heads:
            values = values[interleaved(len(values), heads[middle])]
        if arch == "gemma3" and middle.endswith("norm"):
            values = values - np.float32(1)
        name = (GEMMA3_LAYER if arch == "gemma3" else LAYER)[middle]
        yield f"{prefix}.{name}.{kind}", torch.from_numpy(values).to(dtype)


def interleaved(n_rows: int, heads: int) -> list[int]:
    """Where llama.cpp put each row of q or k: it keeps the two rows of a rotary pair side by side."""
    width = n_rows // heads
    half = width // 2
    return [head * width + 2 * (j % half) + j // half for head in range(heads) for j in range(width)]
