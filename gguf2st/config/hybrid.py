"""Hybrids of attention and state-space layers, which a GGUF tells apart by arrays with one item per layer."""

from typing import Any

from gguf2st.config.functions import FileScope, function
from gguf2st.errors import MapError


@function("attention.head_count_kv")
def kv_layer_types(scope: FileScope, layers: int, without: str, with_kv: str) -> list[str]:
    """One type per layer: `with_kv` where the layer has key/value heads, `without` where it has none.

    Raises:
        MapError: the file has no such array, or one of another length.
    """
    return [with_kv if n else without for n in kv_counts(scope, layers)]


@function("attention.head_count_kv")
def one_kv_count(scope: FileScope, layers: int) -> int:
    """The number of key/value heads that all attention layers share.

    Raises:
        MapError: no layer has any, or two layers have different numbers: config.json has a place for one.
    """
    counts = {n for n in kv_counts(scope, layers) if n}
    if len(counts) != 1:
        raise MapError(f"attention.head_count_kv has the values {sorted(counts)} besides 0; one was expected")
    return counts.pop()


def kv_counts(scope: FileScope, layers: int) -> list[int]:
    """Key/value heads of each layer. Raises MapError when the file does not say."""
    return layerwise(scope, "attention.head_count_kv", layers)


def layerwise(scope: FileScope, key: str, layers: int) -> list[int]:
    """The first `layers` items of a key with one value per layer; layers that predict further tokens follow.

    Raises:
        MapError: the file has one value for all layers or none, or an array that is too short.
    """
    values = scope.get(key)
    if not isinstance(values, list) or len(values) < layers:
        found = f"{len(values)} values" if isinstance(values, list) else repr(values)
        raise MapError(f"{key} is {found}; one value for each of {layers} layers was expected")
    return values[:layers]


@function("attention.head_count_kv")
def kv_layers(scope: FileScope, layers: int) -> list[int]:
    """The numbers of the layers that have key/value heads."""
    return [i for i, n in enumerate(kv_counts(scope, layers)) if n]


@function("attention.head_count_kv")
def jamba_periods(scope: FileScope, layers: int, experts: int) -> dict[str, int]:
    """Jamba's period and offset of attention layers and of layers with experts.

    Raises:
        MapError: the layers of a kind do not follow each other at one distance.
    """
    attention = [n > 0 for n in kv_counts(scope, layers)]
    sparse = [scope.has(f"blk.{i}.ffn_gate_inp.weight") for i in range(layers)]
    out = _period("attn_layer", attention)
    # One expert is no mixture: the class makes plain blocks of them all, whatever the period.
    return out | (_period("expert_layer", sparse) if experts > 1 else {})


def _period(name: str, chosen: list[bool]) -> dict[str, int]:
    """The shortest period that gives the chosen layers, and its offset: [0, 1, 0, 0, 1] -> 3 and 1."""
    for period in range(1, len(chosen) + 2):
        for offset in range(period):
            if chosen == [i % period == offset for i in range(len(chosen))]:
                return {f"{name}_period": period, f"{name}_offset": offset}
    raise MapError(f"the layers {[i for i, c in enumerate(chosen) if c]} have no {name}_period")


@function("attention.head_count_kv", "feed_forward_length")
def nemotron_h_layers(scope: FileScope, layers: int, wide: str) -> dict[str, Any]:
    """Nemotron-H: what each layer is, `wide` ("mlp" or "moe") being one with a feed-forward length, and that length.

    transformers 4.x and vLLM read the same as a text of one letter per layer.

    Raises:
        MapError: a layer is two things at once, or two layers differ in their length.
    """
    kv, widths = kv_counts(scope, layers), layerwise(scope, "feed_forward_length", layers)
    if both := [i for i in range(layers) if kv[i] and widths[i]]:
        raise MapError(f"layer {both[0]} has both key/value heads and a feed-forward length")
    sizes = {w for w in widths if w}
    if len(sizes) > 1:
        raise MapError(f"feed_forward_length has the values {sorted(sizes)}; config.json has a place for one")
    types = ["full_attention" if k else wide if w else "linear_attention" for k, w in zip(kv, widths, strict=True)]
    letters = {"full_attention": "*", "linear_attention": "M", "mlp": "-", "moe": "E"}
    out: dict[str, Any] = {
        "num_hidden_layers": layers,
        "layers_block_type": types,
        "hybrid_override_pattern": "".join(letters[t] for t in types),
    }
    if sizes:
        out["moe_intermediate_size" if wide == "moe" else "intermediate_size"] = sizes.pop()
    return out


@function("attention.head_count_kv")
def kda_layers(scope: FileScope, layers: int, heads: int, head_dim: int, kernel: int) -> dict[str, Any]:
    """Kimi Linear's linear_attn_config, whose layers are counted from 1; layers without key/value heads are KDA."""
    counts = kv_counts(scope, layers)
    return {
        "full_attn_layers": [i + 1 for i, n in enumerate(counts) if n],
        "kda_layers": [i + 1 for i, n in enumerate(counts) if not n],
        "head_dim": head_dim,
        "num_heads": heads,
        "short_conv_kernel_size": kernel,
    }
