"""What vLLM will make of a checkpoint, from its configuration alone: class, memory, parallel sizes, pitfalls.

The table of classes was read from one vLLM version (`scripts/read_vllm_registry.py`); others may serve more or fewer.
"""

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gguf2st.serving.hardware import kernels_of, runs_on, why_no_cpu

if TYPE_CHECKING:
    from gguf2st.header import Header
    from gguf2st.plan import Entry, Plan

TABLE = "vllm_0_32.json"
CLASSIFIER = "ForSequenceClassification"
"""How the names of classes end that classify or rank."""
_GENERATOR = "ForCausalLM"
TENSOR_PARALLEL_SIZES = (1, 2, 4, 8)

RAW_GGUF = (
    "vllm serve MODEL.gguf fails: 'not a valid JSON file'. vLLM 0.24 and later read no GGUF by themselves",
    "a folder that holds only the .gguf fails too: 'Invalid repository ID or local directory specified'",
    "the model is the first argument, without --model; anything else ends in 'unrecognized arguments' or "
    "'required: model_tag'",
    "the plugin vllm-gguf-plugin needs a GPU and a config.json, and un-permutes nothing, which Llama models need",
)
"""What goes wrong when the .gguf itself is given to vLLM."""


@dataclass(frozen=True)
class ServingPreflight:
    """What vLLM will do.

    Attributes:
        vllm: the version that the table was read from.
        hf_class: the model's class.
        served: "native", "transformers backend" or "not served".
        served_text: the same in a sentence.
        dtype, format_text: format of the weights, and what has kernels for it.
        weights_nbytes: of all weights together.
        context_length: tokens of one request that the cache is counted for.
        kv_nbytes: KV cache of one request of that length, 16 bits a value; None where the configuration does not tell.
        kv_text: how it is made up.
        tensor_parallel: size -> why it does not work, "" where it does.
        pitfalls: of giving vLLM the .gguf itself.
        repackings: what `convert --repack` offers instead.
    """

    vllm: str
    hf_class: str
    served: str
    served_text: str
    dtype: str
    format_text: str
    weights_nbytes: int
    context_length: int
    kv_nbytes: int | None
    kv_text: str
    tensor_parallel: Mapping[int, str]
    pitfalls: tuple[str, ...]
    repackings: tuple["Repacking", ...] = ()


@dataclass(frozen=True)
class Repacking:
    """What `convert --repack` would make of a source.

    Attributes:
        mode: exact, near or int4; modes that give the same as the one before are left out.
        dtype: of what is not packed.
        weights_nbytes: of all tensors of the checkpoint.
        formats: packed format -> bytes of the weights in it.
        kernels: packed format -> what has kernels for it.
        notes: sizes of tensor parallelism that would cut groups.
    """

    mode: str
    dtype: str
    weights_nbytes: int
    formats: Mapping[str, int]
    kernels: Mapping[str, str]
    notes: tuple[str, ...]


def preflight_source(
    src: "str | Path | Header", *, context_length: int | None = None, arch_map: Path | None = None
) -> ServingPreflight:
    """Say what vLLM will do with a GGUF once it is converted, to bfloat16 or repacked.

    Arguments as for `preflight` and `make_plan`.

    Raises:
        Gguf2stError: it cannot be planned; `gguf2st check` says why.
    """
    from gguf2st import api
    from gguf2st.header import Header
    from gguf2st.plan import build
    from gguf2st.plan.choice import choose

    header = src if isinstance(src, Header) else api.open_gguf(src)
    built = build.build(header, arch_map=arch_map)
    plan = choose(built)
    found = preflight(plan.config, dtype=plan.dtype, weights_nbytes=_nbytes(plan), context_length=context_length)
    return dataclasses.replace(found, repackings=repackings(built))


def repackings(built: "Plan") -> tuple[Repacking, ...]:
    """What each mode of `convert --repack` makes of a plan of step 1, where it packs anything."""
    from gguf2st.plan import DENSE, parallel
    from gguf2st.plan.choice import choose
    from gguf2st.schemes import MODES

    found: list[Repacking] = []
    for mode in MODES:
        plan = choose(built, None, mode)
        formats: Counter[str] = Counter()
        experts: set[str] = set()
        for entry in plan.entries:
            if entry.scheme != DENSE:
                formats[entry.scheme] += _entry_nbytes(entry)
                experts |= {entry.scheme} if ".experts." in entry.name else set()
        if formats and (not found or formats != found[-1].formats):
            no_cpu = _why_no_cpu(plan.config)
            kernels = {name: kernels_of(name, experts=name in experts, no_cpu=no_cpu) for name in formats}
            notes = tuple(note for note in parallel.notes(plan) if note.startswith("not "))
            found.append(Repacking(mode, plan.dtype, _nbytes(plan), dict(formats), kernels, notes))
    return tuple(found)


def _why_no_cpu(config: Mapping[str, Any]) -> str:
    return why_no_cpu(_hf_class(config), config.get("text_config") or config)


def _hf_class(config: Mapping[str, Any]) -> str:
    return str((config.get("architectures") or ["?"])[0])


def _nbytes(plan: "Plan") -> int:
    return sum(map(_entry_nbytes, plan.entries))


def _entry_nbytes(entry: "Entry") -> int:
    from gguf2st.plan import DTYPE_NBYTES

    return sum(math.prod(shape) * DTYPE_NBYTES[dtype] for _, dtype, shape in entry.tensors())


def preflight(
    config: Mapping[str, Any], *, dtype: str, weights_nbytes: int, context_length: int | None = None
) -> ServingPreflight:
    """Say what vLLM will do with a checkpoint of this configuration.

    Args:
        config: config.json.
        dtype: of the weights.
        weights_nbytes: of all tensors of the checkpoint.
        context_length: for the KV cache; the model's own by default.
    """
    table = read_table()
    hf_class = _hf_class(config)
    served, served_text = who_serves(hf_class)
    if served != "not served" and (unread := who_reads(str(config.get("model_type")))):
        served_text += f"; {unread}"
    text = config.get("text_config") or config
    stated = text.get("model_max_length") or text.get("max_position_embeddings")  # as vLLM prefers them
    length = context_length or int(stated or 4096)
    kv_nbytes, kv_text = kv_cache(text, length)
    return ServingPreflight(
        vllm=table["vllm"],
        hf_class=hf_class,
        served=served,
        served_text=served_text,
        dtype=dtype,
        format_text="on nothing, as it has no class" if served == "not served" else runs_on(dtype, _why_no_cpu(config)),
        weights_nbytes=weights_nbytes,
        context_length=length,
        kv_nbytes=kv_nbytes,
        kv_text=kv_text,
        tensor_parallel={n: why_not_parallel(text, n) for n in TENSOR_PARALLEL_SIZES},
        pitfalls=RAW_GGUF,
    )


@cache
def read_table() -> Mapping[str, Any]:
    """The packaged table of classes: see `scripts/read_vllm_registry.py`."""
    table: Mapping[str, Any] = json.loads(files("gguf2st.serving").joinpath(TABLE).read_text(encoding="utf-8"))
    return table


def who_serves(hf_class: str) -> tuple[str, str]:
    """("native" | "transformers backend" | "not served", a sentence)."""
    table = read_table()
    vllm = f"vLLM {table['vllm']}"
    if hf_class in table["native"]:
        return "native", f"{vllm} has its own class for {hf_class}"
    if hf_class.endswith(CLASSIFIER) and (base := hf_class.removesuffix(CLASSIFIER) + _GENERATOR) in table["native"]:
        return "native", f"{vllm} makes it of its own class for {base}"  # models/adapters.py, as_seq_cls_model
    if hf_class in table["transformers_backend"]:
        return "transformers backend", f"{vllm} serves {hf_class} through transformers' implementation"
    if hf_class in table["transformers_backend_unlisted"]:
        return (
            "transformers backend",
            f"{vllm} has no class for {hf_class}, but transformers {table['transformers']} has one of the kind that it "
            "serves as it is; slower than a class of its own",
        )
    if last := table["dropped"].get(hf_class):
        return "not served", f"vLLM served {hf_class} until {last}, and does no longer"
    return "not served", f"{vllm} has no class for {hf_class}; a later version may"


def who_reads(model_type: str) -> str:
    """Why vLLM cannot read a config.json of this type by itself, and the way out; empty when it can."""
    table = read_table()
    if model_type in table["model_types"]:
        return ""
    return (
        f"its transformers ({table['transformers']}) has no configuration of type {model_type}: give vllm serve the "
        "original's, --hf-config-path ORG/MODEL --trust-remote-code, which runs code of that repository"
    )


def kv_cache(config: Mapping[str, Any], length: int) -> tuple[int | None, str]:
    """Bytes of the KV cache of one request of `length` tokens, and how they are made up.

    A full-attention layer keeps 2 * kv_heads * head_dim values a token, a sliding one the same for its window only, and
    a latent-attention (MLA) layer kv_lora_rank + qk_rope_head_dim values a token. States of linear-attention and Mamba
    layers do not grow with the length and are not counted.
    """
    layers = config.get("num_hidden_layers")
    heads = config.get("num_attention_heads")
    if not isinstance(layers, int) or not isinstance(heads, int):
        return None, "the configuration does not tell"
    if rank := config.get("kv_lora_rank"):
        values = int(rank) + int(config.get("qk_rope_head_dim") or 0)
        linear = _linear_layers(config)
        per_token = f"{layers - linear} latent-attention layers x {values} values"
        per_token += f", {linear} without a cache that grows" if linear else ""
        return (layers - linear) * values * 2 * length, per_token
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or int(config["hidden_size"]) // heads
    if not isinstance(kv_heads, int) or not isinstance(head_dim, int):
        return None, "the heads differ from layer to layer"
    kinds = _layer_kinds(config, layers)
    window = int(config.get("sliding_window") or length)
    full, sliding = kinds.count("full"), kinds.count("sliding")
    rest = layers - full - sliding
    tokens = full * length + sliding * min(window, length)
    parts = [f"{full} full layers"] * bool(full) + [f"{sliding} with a window of {window}"] * bool(sliding)
    parts += [f"{rest} without a cache that grows"] * bool(rest)
    nbytes = tokens * 2 * kv_heads * head_dim * 2
    return nbytes, f"{', '.join(parts)}; {kv_heads} KV heads of {head_dim}, 16 bits a value"


def _linear_layers(config: Mapping[str, Any]) -> int:
    """How many layers have linear attention, where the others have latent attention."""
    numbered, kinds = config.get("linear_attn_config"), config.get("layer_types")
    if isinstance(numbered, dict) and isinstance(numbered.get("kda_layers"), list):
        return len(numbered["kda_layers"])
    return kinds.count("linear_attention") if isinstance(kinds, list) else 0


def _layer_kinds(config: Mapping[str, Any], layers: int) -> list[str]:
    """ "full", "sliding" or "none" for each layer."""
    kinds = config.get("layer_types")
    if not isinstance(kinds, list):
        always = config.get("sliding_window") and config.get("use_sliding_window", True)
        return ["sliding" if always else "full"] * layers
    known = {"full_attention": "full", "attention": "full", "sliding_attention": "sliding", "chunked_attention": "full"}
    return [known.get(str(kind), "none") for kind in kinds[:layers]]


def why_not_parallel(config: Mapping[str, Any], size: int) -> str:
    """Why the model cannot be split over `size` GPUs (--tensor-parallel-size), or "" when it can.

    vLLM splits attention heads evenly, splits KV heads evenly or copies each to as many GPUs, and splits the widths of
    the feed-forward layers evenly; it pads the vocabulary.
    """
    heads = config.get("num_attention_heads")
    if isinstance(heads, int) and heads % size:
        return f"{heads} attention heads do not divide by {size}"
    kv_heads = config.get("num_key_value_heads")
    if isinstance(kv_heads, int) and not config.get("kv_lora_rank") and kv_heads % size and size % kv_heads:
        return f"{kv_heads} KV heads can neither be divided by {size} nor copied to {size} evenly"
    for key in ("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size"):
        width = config.get(key)
        if isinstance(width, int) and width % size:
            return f"{key} {width} does not divide by {size}"
    return ""
