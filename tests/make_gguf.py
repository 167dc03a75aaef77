"""Write GGUF files for tests with gguf-py and ggml's quantizers: nothing here comes from the code under test.

`write_gguf` writes any metadata and tensors. `tiny_llama`, `tiny_qwen2`, `tiny_qwen3moe`, `tiny_gemma3`
write a small but complete model, tokenizer included, with the keys and tensor names of llama.cpp's converter; they
differ only in their row of ARCHS. llama.cpp loads and runs all of them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import gguf
import libgguf  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Raw = tuple[Array, str, tuple[int, ...]]
"""(blocks as uint8 of any shape, ggml type name, shape in torch order)."""

_VALUES = gguf.GGUFValueType
_BY_PYTHON_TYPE: dict[type, Any] = {
    bool: _VALUES.BOOL,
    int: _VALUES.UINT32,
    float: _VALUES.FLOAT32,
    str: _VALUES.STRING,
}
_BY_DTYPE: dict[str, Any] = {
    "uint8": _VALUES.UINT8,
    "int8": _VALUES.INT8,
    "uint16": _VALUES.UINT16,
    "int16": _VALUES.INT16,
    "uint32": _VALUES.UINT32,
    "int32": _VALUES.INT32,
    "uint64": _VALUES.UINT64,
    "int64": _VALUES.INT64,
    "float32": _VALUES.FLOAT32,
    "float64": _VALUES.FLOAT64,
    "bool": _VALUES.BOOL,
}

_HALVES = {  # where the blocks of a type hold 16-bit numbers, by ggml-common.h; (first byte, byte after the last)
    "Q4_0": [(0, 2)],
    "Q4_1": [(0, 4)],
    "Q8_0": [(0, 2)],
    "Q2_K": [(80, 84)],
    "Q3_K": [(108, 110)],
    "Q4_K": [(0, 4)],
    "Q5_K": [(0, 4)],
    "Q6_K": [(208, 210)],
}


def quantize(values: Array, qtype: str) -> Array:
    """(..., cols) float32 -> (..., bytes per row) uint8, by ggml's own quantizer."""
    values = np.ascontiguousarray(values, np.float32)
    if qtype in ("F32", "F16", "BF16"):
        return np.asarray(gguf.quants.quantize(values, gguf.GGMLQuantizationType[qtype])).view(np.uint8)
    cols = values.shape[-1]
    rows = values.size // cols
    blocks = libgguf.quantize_rows_raw(gguf.GGMLQuantizationType[qtype].value, values.reshape(rows, cols), rows, cols)
    return np.frombuffer(blocks, np.uint8).reshape(*values.shape[:-1], -1)


def write_gguf(
    path: str | Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Array | Raw],
    arch: str = "llama",
    *,
    byteorder: Literal["little", "big"] = "little",
) -> Path:
    """Write a GGUF of version 3.

    Args:
        path: of the new file.
        metadata: after general.architecture. An int is stored as uint32 and a float as float32, as the converter does;
            a numpy scalar or array as its own dtype; a list by its first item (ints as int32). general.alignment is
            obeyed.
        tensors: a numpy array is stored as its dtype (F32, F16, F64, I8, I16, I32, I64), a `Raw` as it is.
        arch: general.architecture.
        byteorder: "big" also swaps the 16-bit numbers inside the blocks of common types.
    """
    big = byteorder == "big"
    writer = gguf.GGUFWriter(path, arch, endianess=gguf.GGUFEndian.BIG if big else gguf.GGUFEndian.LITTLE)
    for key, value in metadata.items():
        if key == "general.alignment":
            writer.add_custom_alignment(value)
        elif isinstance(value, np.ndarray):
            writer.add_key_value(key, value.tolist(), _VALUES.ARRAY, _BY_DTYPE[value.dtype.name])
        elif isinstance(value, np.generic):
            writer.add_key_value(key, value.item(), _BY_DTYPE[value.dtype.name])
        elif isinstance(value, list):
            writer.add_key_value(key, value, _VALUES.ARRAY)
        else:
            writer.add_key_value(key, value, _BY_PYTHON_TYPE[type(value)])
    for name, tensor in tensors.items():
        if isinstance(tensor, tuple):
            blocks, qtype, shape = tensor
            nbytes_per_row = blocks.size // int(np.prod(shape[:-1]))
            data = _swap_blocks(blocks, qtype) if big else blocks
            writer.add_tensor(
                name, data.reshape(*shape[:-1], nbytes_per_row), raw_dtype=gguf.GGMLQuantizationType[qtype]
            )
        else:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Path(path)


def _swap_blocks(blocks: Array, qtype: str) -> Array:
    if qtype in ("F32", "F16", "BF16"):
        return blocks.view(np.uint32 if qtype == "F32" else np.uint16).byteswap().view(np.uint8)
    swapped = blocks.reshape(-1, gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[qtype]][1]).copy()
    for start, end in _HALVES[qtype]:
        swapped[:, start:end] = swapped[:, start:end].copy().view(np.uint16).byteswap().view(np.uint8)
    return swapped


@dataclass(frozen=True)
class Arch:
    """What an architecture adds to the common tensors and keys.

    Attributes:
        norms: per layer, of width `hidden`.
        qk_norm: attn_q_norm and attn_k_norm of width `head_dim`.
        bias: q, k and v have a bias.
        moe: experts instead of one feed-forward.
        head_dim_keys: attention.key_length and value_length are written.
        rope_dim_key: rope.dimension_count is written.
        vocab_size_key: vocab_size is written.
        rope_theta: rope.freq_base.
        tokenizer: keys of the tokenizer, without its vocabulary.
        keys: anything else, without the prefix of the architecture.
    """

    norms: tuple[str, ...] = ("attn_norm", "ffn_norm")
    qk_norm: bool = False
    bias: bool = False
    moe: bool = False
    head_dim_keys: bool = False
    rope_dim_key: bool = False
    vocab_size_key: bool = False
    rope_theta: float = 1e6
    tokenizer: tuple[str, str] = ("gpt2", "qwen2")
    keys: Mapping[str, Any] | None = None


ARCHS = {
    "llama": Arch(rope_dim_key=True, vocab_size_key=True, rope_theta=1e5, tokenizer=("gpt2", "smollm")),
    "qwen2": Arch(bias=True),
    "qwen3": Arch(qk_norm=True, head_dim_keys=True),
    "qwen3moe": Arch(qk_norm=True, head_dim_keys=True, moe=True),
    "gemma3": Arch(
        norms=("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"),
        qk_norm=True,
        head_dim_keys=True,
        tokenizer=("llama", "default"),
        keys={"attention.sliding_window": 8},
    ),
}


def tiny_model(
    path: str | Path,
    arch: str = "llama",
    *,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int | None = None,
    ffn: int = 128,
    experts: int = 4,
    expert_ffn: int = 32,
    experts_used: int = 2,
    vocab: int | None = None,
    qtype: str | Callable[[str], str] = "F32",
    tied: bool = True,
    bias: bool | None = None,
    extra_metadata: Mapping[str, Any] | None = None,
    extra_tensors: Mapping[str, Array | Raw] | None = None,
    drop: Iterable[str] = (),
    seed: int = 0,
    byteorder: Literal["little", "big"] = "little",
) -> Path:
    """Write a small complete model of one of ARCHS.

    Args:
        path: of the new file.
        arch: a key of ARCHS.
        layers, hidden, heads, kv_heads, ffn: as in the model's configuration.
        head_dim: `hidden // heads` when None.
        experts, expert_ffn, experts_used: for architectures with experts.
        vocab: padded to this number with unused tokens, as the converter does; None takes the tokenizer's own size.
        qtype: of every matrix, or a function from the tensor's name to its type. Vectors and routers stay F32, as the
            converter leaves them. K types need `hidden`, `ffn` and `heads * head_dim` to be multiples of 256.
        tied: leaves out output.weight.
        bias: overrides the architecture's own habit.
        extra_metadata: added, or in place of what would be written; a value of None removes the key.
        extra_tensors: likewise.
        drop: names of tensors left out.
        seed: of the weights.
        byteorder: of the file.
    """
    traits = ARCHS[arch]
    tokenizer, n_tokens = TOKENIZERS[traits.tokenizer[0]](vocab, traits.tokenizer[1])
    dim = head_dim or hidden // heads
    sizes = {"hidden": hidden, "ffn": ffn, "q": heads * dim, "kv": kv_heads * dim, "dim": dim, "vocab": n_tokens}
    sizes |= {"experts": experts, "expert_ffn": expert_ffn}
    keys: dict[str, Any] = {
        "block_count": layers,
        "context_length": 256,
        "embedding_length": hidden,
        "feed_forward_length": ffn,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": traits.rope_theta,
        **({"attention.key_length": dim, "attention.value_length": dim} if traits.head_dim_keys else {}),
        **({"rope.dimension_count": dim} if traits.rope_dim_key else {}),
        **({"vocab_size": n_tokens} if traits.vocab_size_key else {}),
        **(traits.keys or {}),
    }
    if traits.moe:
        keys |= {"expert_count": experts, "expert_used_count": experts_used, "expert_feed_forward_length": expert_ffn}
    metadata = {
        "general.type": "model",
        "general.name": f"Tiny {arch}",
        **{f"{arch}.{key}": value for key, value in keys.items()},
        **tokenizer,
        "general.quantization_version": 2,
        "general.file_type": 0,
        **(extra_metadata or {}),
    }
    rng = np.random.default_rng(seed)
    tensors: dict[str, Array | Raw] = {}
    for name, dims in _layout(traits, layers, tied, traits.bias if bias is None else bias).items():
        shape = tuple(sizes[size] for size in dims)
        values = rng.standard_normal(shape, np.float32) * np.float32(0.1)
        if len(shape) == 1 and name.endswith("norm.weight"):
            values += 1
        kind = qtype(name) if callable(qtype) else qtype
        if len(shape) == 1 or "ffn_gate_inp" in name:
            kind = "F32"
        tensors[name] = (quantize(values, kind), kind, shape)
    tensors |= extra_tensors or {}
    for name in drop:
        del tensors[name]
    written = {key: value for key, value in metadata.items() if value is not None}
    return write_gguf(path, written, tensors, arch, byteorder=byteorder)


tiny_llama = partial(tiny_model, arch="llama")
tiny_qwen2 = partial(tiny_model, arch="qwen2")
tiny_qwen3moe = partial(tiny_model, arch="qwen3moe")
tiny_gemma3 = partial(tiny_model, arch="gemma3", head_dim=32, kv_heads=1)


def _layout(traits: Arch, layers: int, tied: bool, bias: bool) -> dict[str, tuple[str, ...]]:
    """Tensor name -> names of its dimensions in torch order."""
    layer: dict[str, tuple[str, ...]] = {f"{norm}.weight": ("hidden",) for norm in traits.norms}
    layer |= {
        "attn_q.weight": ("q", "hidden"),
        "attn_k.weight": ("kv", "hidden"),
        "attn_v.weight": ("kv", "hidden"),
        "attn_output.weight": ("hidden", "q"),
    }
    if traits.qk_norm:
        layer |= {"attn_q_norm.weight": ("dim",), "attn_k_norm.weight": ("dim",)}
    if bias:
        layer |= {"attn_q.bias": ("q",), "attn_k.bias": ("kv",), "attn_v.bias": ("kv",)}
    if traits.moe:
        layer |= {
            "ffn_gate_inp.weight": ("experts", "hidden"),
            "ffn_gate_exps.weight": ("experts", "expert_ffn", "hidden"),
            "ffn_up_exps.weight": ("experts", "expert_ffn", "hidden"),
            "ffn_down_exps.weight": ("experts", "hidden", "expert_ffn"),
        }
    else:
        layer |= {"ffn_gate.weight": ("ffn", "hidden"), "ffn_up.weight": ("ffn", "hidden")}
        layer |= {"ffn_down.weight": ("hidden", "ffn")}
    tensors: dict[str, tuple[str, ...]] = {"token_embd.weight": ("vocab", "hidden")}
    for i in range(layers):
        tensors |= {f"blk.{i}.{name}": dims for name, dims in layer.items()}
    tensors["output_norm.weight"] = ("hidden",)
    if not tied:
        tensors["output.weight"] = ("vocab", "hidden")
    return tensors


WORDS = ("the", "and", "ing", "hello", "world", "capital", "France", "is", "of", "1", "12", "ab", "abc")
"""What the tiny vocabularies can say in few tokens."""

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # gguf.TokenType


def byte_alphabet() -> list[str]:
    """GPT-2's character for each byte: printable Latin-1 stands for itself, the rest for U+0100 onwards."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _merges(space: str) -> list[tuple[str, str]]:
    """Merges that build each of WORDS from its letters, left to right, and then take in a space before it."""
    merges = dict.fromkeys((word[:end], word[end]) for word in WORDS for end in range(1, len(word)))
    return list(merges | dict.fromkeys((space, word) for word in WORDS))


def _padded(tokens: list[str], types: list[int], vocab: int | None) -> None:
    missing = (vocab or len(tokens)) - len(tokens)
    if missing < 0:
        raise ValueError(f"the tiny tokenizer has {len(tokens)} tokens, more than {vocab}")
    tokens += [f"[PAD{n}]" for n in range(len(tokens), len(tokens) + missing)]
    types += [UNUSED] * missing


def gpt2_tokenizer(vocab: int | None = None, pre: str = "smollm") -> tuple[dict[str, Any], int]:
    """Keys of a byte-level BPE tokenizer, and its number of tokens."""
    merges = _merges("Ġ")
    controls = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    pieces = list(dict.fromkeys([*byte_alphabet(), *(left + right for left, right in merges)]))
    tokens = [*controls, *pieces]
    types = [CONTROL] * len(controls) + [NORMAL] * len(pieces)
    _padded(tokens, types, vocab)
    keys = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": np.array(types, np.int32),
        "merges": [f"{left} {right}" for left, right in merges],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "padding_token_id": 2,
        "add_bos_token": False,
        "add_space_prefix": False,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items()}, len(tokens)


def spm_tokenizer(vocab: int | None = None, pre: str = "default") -> tuple[dict[str, Any], int]:
    """Keys of a SentencePiece BPE tokenizer with byte fallback, laid out as gemma's, and its number of tokens."""
    merged = list(dict.fromkeys(left + right for left, right in _merges("▁")))
    letters = ["▁", *(chr(code) for code in range(ord("!"), ord("~") + 1))]
    pieces = [*merged, *letters]
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>", "\n", "\n\n"]
    types = [CONTROL] * 6 + [USER_DEFINED] * 2
    scores = [-1000.0] * len(tokens)
    tokens += [f"<0x{byte:02X}>" for byte in range(256)]
    types += [BYTE] * 256
    scores += [0.0] * 256
    tokens += pieces
    types += [NORMAL] * len(pieces)
    scores += [-float(rank) for rank in range(len(pieces))]
    _padded(tokens, types, vocab)
    scores += [-1000.0] * (len(tokens) - len(scores))
    keys = {
        "model": "llama",
        "pre": pre,
        "tokens": tokens,
        "scores": np.array(scores, np.float32),
        "token_type": np.array(types, np.int32),
        "bos_token_id": 2,
        "eos_token_id": 1,
        "unknown_token_id": 3,
        "padding_token_id": 0,
        "add_bos_token": True,
        "add_eos_token": False,
        "add_space_prefix": False,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items()}, len(tokens)


TOKENIZERS = {"gpt2": gpt2_tokenizer, "llama": spm_tokenizer}
