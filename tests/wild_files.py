"""Headers of published GGUF files, built again from their metadata in tests/wild and from what transformers says.

A file of tests/wild records one published GGUF: its metadata as llama.cpp prints it when it loads the file (key, type,
value; `...` for a text that the log cuts), how many tensors of each type the log counts, the model's published
config.json, and the texts of tokens that the log names.

The tensors come from transformers' class for that config.json on the meta device; their names from gguf-py's name map,
and from RULES where llama.cpp's converter does more than rename. Nothing here comes from the code under test.
"""

import json
import os
import struct
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import torch
import transformers as transformers_module
from transformers.initialization import no_init_weights

transformers: Any = transformers_module  # its classes carry no types

Shapes = dict[str, tuple[int, ...]]
"""Tensor -> shape in torch order."""

FOLDER = Path(__file__).parent / "wild"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))

_SCALARS = {
    "u8": 0,
    "i8": 1,
    "u16": 2,
    "i16": 3,
    "u32": 4,
    "i32": 5,
    "f32": 6,
    "bool": 7,
    "str": 8,
    "u64": 10,
    "i64": 11,
}
_PACK = {"u8": "B", "i8": "b", "u16": "H", "i16": "h", "u32": "I", "i32": "i", "f32": "f", "u64": "Q", "i64": "q"}
_ARRAY = 9


@dataclass(frozen=True)
class Wild:
    """One published file.

    Attributes:
        model: whose checkpoint it was made from.
        file: which of its files, by whom and when.
        metadata: key -> (type, value); the value is None where the log cuts it.
        types: ggml type -> number of tensors, as the log counts; empty where it does not.
        config: the published config.json; None where none was found.
        layout: RULES beyond those of the model's class that the file's age asks for.
        tokens: id -> text.
        version: of the GGUF format.
        differs: key of config.json -> why ours is not the published value.
        said: texts that the plan's notes must contain.
        ends: ids of all tokens that end a text to llama.cpp, as the log lists them.
    """

    model: str
    file: str
    metadata: Mapping[str, tuple[str, Any]]
    types: Mapping[str, int] = field(default_factory=dict)
    config: Mapping[str, Any] | None = None
    layout: tuple[str, ...] = ()
    tokens: Mapping[int, str] = field(default_factory=dict)
    version: int = 3
    differs: Mapping[str, str] = field(default_factory=dict)
    said: tuple[str, ...] = ()
    ends: tuple[int, ...] = ()

    @property
    def arch(self) -> str:
        """general.architecture."""
        return str(self.metadata["general.architecture"][1])


def wild(name: str) -> Wild:
    """What a file of tests/wild says."""
    table = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    return Wild(
        model=table["model"],
        file=table["file"],
        metadata=dict(_line(line) for line in table["metadata"].splitlines() if line),
        types=table.get("types", {}),
        config=json.loads(table["config"]) if "config" in table else None,
        layout=tuple(table.get("layout", ())),
        tokens={int(number): text for number, text in table.get("tokens", {}).items()},
        version=table.get("version", 3),
        differs=table.get("differs", {}),
        said=tuple(table.get("said", ())),
        ends=tuple(table.get("ends", ())),
    )


def _line(line: str) -> tuple[str, tuple[str, Any]]:
    key, kind, *rest = line.split(" ", 2)
    text = rest[0] if rest else "..."
    if text == "...":
        return key, (kind, None)
    return key, (kind, text if kind == "str" else json.loads(text))


def read_as_transformers(config: Mapping[str, Any]) -> Any:
    """The configuration of the language model, as transformers reads it."""
    inner = dict(config.get("text_config", config))
    if inner is not config:
        for key in ("tie_word_embeddings",):  # what a model with several parts says of all of them
            if key in config:
                inner.setdefault(key, config[key])
    for key in ("quantization_config", "auto_map", "torch_dtype", "dtype"):
        inner.pop(key, None)
    return transformers.AutoConfig.for_model(**inner)


def tensors_of(config: Any) -> Shapes:
    """Parameters of transformers' class, by the names of a checkpoint."""
    whole = config.model_type not in TEXT_PARTS
    with torch.device("meta"), no_init_weights():
        model = (transformers.AutoModelForCausalLM if whole else transformers.AutoModel).from_config(config)
    prefix = "model." if config.model_type.endswith("_text") and not whole else ""
    shapes = {f"{prefix}{name}": tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if prefix:  # transformers has this language model as a part of another class only
        shapes["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    if getattr(config, "tie_word_embeddings", False):
        shapes.pop("lm_head.weight", None)
    return shapes


TEXT_PARTS = ("bert", "nomic_bert", "qwen3_vl_moe_text")
"""Models that have no class for text alone with a head."""


def gguf_tensors(source: Wild) -> Shapes:
    """The tensors of the file: transformers' parameters by gguf-py's names, put through the RULES of the layout."""
    assert source.config is not None
    config = read_as_transformers(source.config)
    arch = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}[source.arch]
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    shapes: Shapes = {}
    for name, shape in _as_published(tensors_of(config), config):
        new = names.get_name(name, try_suffixes=(".weight", ".bias", ".scale"))
        assert new is not None, (name, shape)
        shapes[new] = shape[1:] if shape[0] == 1 and len(shape) > 1 else shape  # ggml counts no sizes of 1 at the end
    for rule in (config.model_type, *source.layout):
        shapes = RULES.get(rule, _nothing)(shapes, config)
    return shapes


def _as_published(shapes: Shapes, config: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names that gguf-py knows: experts stacked, gate and up apart, and without what no converter keeps."""
    for name, shape in shapes.items():
        name = name.replace("model.language_model.", "model.")
        if name.endswith(("position_ids", "inv_freq")) or "pooler." in name:
            continue
        if config.model_type == "nomic_bert":
            if ".k_proj" in name or ".v_proj" in name:
                continue
            shape = (3 * shape[0], *shape[1:]) if ".q_proj" in name else shape
            for theirs, own in NOMIC.items():
                name = name.replace(theirs, own)
        if config.model_type == "gpt_oss" and (".experts." in name or name.endswith(".sinks")):
            yield from _transposed_experts(name, shape)
        elif name.endswith("experts.gate_up_proj") and config.model_type != "gemma4_text":
            for part in ("gate_proj", "up_proj"):
                yield name.replace("gate_up_proj", f"{part}.weight"), (shape[0], shape[1] // 2, shape[2])
        elif name.endswith((".gate_up_proj", "experts.down_proj", ".layer_scalar")):
            yield f"{name}.weight", shape
        elif name.endswith(".dt_bias"):
            yield name.replace(".dt_bias", ".dt_proj.bias"), shape
        elif name.endswith((".conv1d.weight", ".conv.conv.weight")):
            yield name, (shape[0], shape[-1])
        elif name.endswith("e_score_correction_bias"):
            yield f"{name.removesuffix('_bias')}.bias", shape
        elif name.endswith("router.scale"):
            yield name.replace("router.scale", "router.proj.scale"), shape
        elif name.endswith("router.per_expert_scale"):
            yield name.replace("router.per_expert_scale", "experts.down_proj.scale"), shape
        else:
            yield name, shape


NOMIC = {
    "layers.": "encoder.layers.",
    "self_attn.q_proj": "attn.Wqkv",
    "self_attn.o_proj": "attn.out_proj",
    "post_attention_layernorm": "norm1",
    "post_mlp_layernorm": "norm2",
    "mlp.gate_proj": "mlp.fc12",
    "mlp.up_proj": "mlp.fc11",
    "mlp.down_proj": "mlp.fc2",
    "embeddings.LayerNorm": "emb_ln",
}
"""transformers' names of nomic-bert -> those of the model's own code, whose q, k and v are one tensor."""


def _transposed_experts(name: str, shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """gpt-oss stores its experts the other way round, and their biases beside them."""
    name, kind = (name.removesuffix("_bias"), "bias") if name.endswith("_bias") else (name, "weight")
    parts = ("gate_proj", "up_proj") if name.endswith("gate_up_proj") else (name.rpartition(".")[2],)
    shape = shape if len(shape) < 3 else (shape[0], shape[2], shape[1])
    for part in parts:
        rows = (shape[1] // len(parts), *shape[2:]) if len(shape) > 1 else ()
        yield f"{name.rpartition('.')[0]}.{part}.{kind}", (shape[0], *rows)


def _nothing(shapes: Shapes, config: Any) -> Shapes:
    return shapes


def _per_expert(shapes: Shapes, config: Any) -> Shapes:
    """A tensor for each expert, as before April 2024."""
    out: Shapes = {}
    for name, shape in shapes.items():
        if "_exps." in name:
            out |= {name.replace("_exps.", f".{e}."): shape[1:] for e in range(shape[0])}
        else:
            out[name] = shape
    return out


def _fused(shapes: Shapes, config: Any) -> Shapes:
    """Query, key and value in one tensor."""
    out: Shapes = {}
    for name, (rows, *rest) in shapes.items():
        if ".attn_q." in name:
            out[name.replace("attn_q.", "attn_qkv.")] = (3 * rows, *rest)
        elif ".attn_k." not in name and ".attn_v." not in name:
            out[name] = (rows, *rest)
    return out


def _both_halves(shapes: Shapes, config: Any) -> Shapes:
    """kv_b_proj, and beside it its two halves as matrices: ik_llama.cpp's converter, and early ones of llama.cpp."""
    rank, nope, value = config.kv_lora_rank, config.qk_nope_head_dim, config.v_head_dim
    heads, out = config.num_attention_heads, dict(shapes)
    for name in shapes:
        if name.endswith("attn_kv_b.weight"):
            out[name.replace("kv_b", "k_b")] = (heads * rank, nope)
            out[name.replace("kv_b", "v_b")] = (heads * value, rank)
    return out


def _shared_layers(shapes: Shapes, config: Any) -> Shapes:
    """The keys and values of layers that use another's, which the published checkpoint has and no class reads."""
    first = config.num_hidden_layers - config.num_kv_shared_layers
    for layer in range(first, config.num_hidden_layers):
        like = max(i for i in range(first) if config.layer_types[i] == config.layer_types[layer])
        for part in ("attn_k", "attn_v", "attn_k_norm"):
            shapes[f"blk.{layer}.{part}.weight"] = shapes[f"blk.{like}.{part}.weight"]
    return shapes


def _head_again(shapes: Shapes, config: Any) -> Shapes:
    """A head that is the embedding once more."""
    return {**shapes, "output.weight": shapes["token_embd.weight"]}


def _rope_factors(shapes: Shapes, config: Any) -> Shapes:
    if config.rope_parameters["rope_type"] == "longrope":
        shapes |= {f"rope_factors_{x}.weight": (len(config.rope_parameters[f"{x}_factor"]),) for x in ("long", "short")}
    return shapes


def _rope_freqs(shapes: Shapes, config: Any) -> Shapes:
    if config.rope_parameters["rope_type"] == "llama3":
        shapes["rope_freqs.weight"] = (config.head_dim // 2,)
    return shapes


def _proportional_rope(shapes: Shapes, config: Any) -> Shapes:
    widest = max(shape[0] for name, shape in shapes.items() if name.endswith("attn_q_norm.weight"))
    return {**shapes, "rope_freqs.weight": (widest // 2,)}


def _draft_layer(shapes: Shapes, config: Any) -> Shapes:
    """The layer for multi-token prediction of GLM 4.5 and later, which transformers' class leaves out."""
    layers, hidden = config.num_hidden_layers, config.hidden_size
    last, draft = f"blk.{layers - 1}.", f"blk.{layers}."
    shapes |= {name.replace(last, draft): shape for name, shape in shapes.items() if name.startswith(last)}
    norms = {f"{draft}nextn.{norm}.weight": (hidden,) for norm in ("enorm", "hnorm", "shared_head_norm")}
    return {**shapes, **norms, f"{draft}nextn.eh_proj.weight": (hidden, 2 * hidden)}


RULES: Mapping[str, Callable[[Shapes, Any], Shapes]] = {
    "phi3": _rope_factors,
    "llama": _rope_freqs,
    "gemma4_text": _proportional_rope,
    "per_expert": _per_expert,
    "both_halves": _both_halves,
    "fused": _fused,
    "head_again": _head_again,
    "draft_layer": _draft_layer,
    "shared_layers": _shared_layers,
}
"""Class of the model, or layout -> what the converter of that time did to the tensors."""


def values_of(source: Wild) -> dict[str, list[float]]:
    """What the tensors hold that become configuration, by transformers' own rule."""
    assert source.config is not None
    config = read_as_transformers(source.config)
    rope = getattr(config, "rope_parameters", {})
    if config.model_type == "gemma4_text":
        pairs = source.config.get("text_config", source.config)["global_head_dim"] // 2
        turning = int(pairs * rope["full_attention"]["partial_rotary_factor"])
        return {"rope_freqs.weight": [1.0] * turning + [1e30] * (pairs - turning)}
    if rope.get("rope_type") == "longrope":
        return {f"rope_factors_{x}.weight": list(map(float, rope[f"{x}_factor"])) for x in ("long", "short")}
    if rope.get("rope_type") == "llama3":
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
        plain = 1.0 / rope["rope_theta"] ** (torch.arange(0, config.head_dim, 2).float() / config.head_dim)
        return {"rope_freqs.weight": (plain / scaled).tolist()}
    return {}


def write_header(path: Path, source: Wild, shapes: Shapes, values: Mapping[str, list[float]]) -> Path:
    """Write the file: its header, the few values that become configuration, and a hole."""
    keys = b"".join(_text(key) + _value(source, key, *entry) for key, entry in source.metadata.items())
    rows, data, offset = b"", [], 0
    for name, shape in shapes.items():
        single = len(shape) == 1 or name in values
        rows += _text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        rows += struct.pack("<IQ", 0 if single else 1, offset)
        nbytes = 4 if single else 2
        for size in shape:
            nbytes *= size
        if name in values:
            data.append((offset, struct.pack(f"<{len(values[name])}f", *values[name])))
        offset += -(-nbytes // 32) * 32
    head = b"GGUF" + struct.pack("<IQQ", source.version, len(shapes), len(source.metadata)) + keys + rows
    start = -(-len(head) // 32) * 32
    with open(path, "wb") as file:
        file.write(head)
        for at, content in data:
            file.seek(start + at)
            file.write(content)
    os.truncate(path, start + offset)
    return path


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(source: Wild, key: str, kind: str, value: Any) -> bytes:
    if not kind.startswith("arr["):
        return struct.pack("<I", _SCALARS[kind]) + _scalar(kind, "" if value is None else value)
    item, count = kind.removeprefix("arr[").removesuffix("]").split(",")
    head = struct.pack("<IIQ", _ARRAY, _SCALARS[item], int(count))
    if value is not None:
        assert len(value) == int(count), key
        return head + b"".join(_scalar(item, x) for x in value)
    if key == "tokenizer.ggml.tokens":
        return head + _tokens(int(count), tuple(source.tokens.items()))
    if key == "tokenizer.ggml.token_type":
        types = bytearray(struct.pack("<i", 1) * int(count))
        for number in source.tokens:
            types[4 * number : 4 * number + 4] = struct.pack("<i", 3)
        return head + bytes(types)
    return head + (_text("a b") if item == "str" else bytes(struct.calcsize(_PACK[item]))) * int(count)


def _scalar(kind: str, value: Any) -> bytes:
    if kind == "str":
        return _text(value)
    return struct.pack("<?" if kind == "bool" else f"<{_PACK[kind]}", value)


@cache
def _tokens(count: int, named: tuple[tuple[int, str], ...]) -> bytes:
    texts = [f"t{number:x}" for number in range(count)]
    for number, text in named:
        texts[number] = text
    return b"".join(map(_text, texts))
