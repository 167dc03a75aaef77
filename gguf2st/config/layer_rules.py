"""What differs from layer to layer by rule: windows, rotary embedding or none, dense or sparse, linear attention."""

from typing import Any

from gguf2st.config.attention import layer_types
from gguf2st.config.functions import FileScope, function, given, nonzero
from gguf2st.errors import MapError


def one_swiglu_limit(scope: FileScope) -> float:
    """What SwiGLU is clamped to in all layers, in those of experts and of shared ones alike; 0 for no limit.

    Raises:
        MapError: limits that differ, which the class of the model has no words for.
    """
    limits = {*given(scope, "swiglu_clamp_exp", [0.0]), *given(scope, "swiglu_clamp_shexp", [0.0])}
    if len(limits) > 1:
        raise MapError(f"swiglu_clamp_exp and swiglu_clamp_shexp have different limits: {sorted(limits)}")
    return float(limits.pop())


@function()
def rope_layers(scope: FileScope, layers: int, interval: int) -> list[int]:
    """1 for each layer with a rotary embedding, 0 for every `interval`-th: rope_layers(5, 4) -> [1, 1, 1, 0, 1]."""
    return [int((i + 1) % interval != 0) for i in range(layers)]


@function()
def dense_then_sparse(scope: FileScope, layers: int, dense: int) -> list[str]:
    """The kind of each feed-forward block where the first `dense` layers have no experts."""
    return ["dense"] * min(dense, layers) + ["sparse"] * max(layers - dense, 0)


@function("attention.sliding_window", "attention.sliding_window_pattern")
def exaone4_attention(scope: FileScope, layers: int) -> dict[str, Any]:
    """EXAONE 4: three sliding-window layers, then a full one, where there is a window; else all layers are full.

    Files from before the pattern was stored have only a window; llama.cpp takes every fourth layer as full then.
    """
    window = nonzero(scope, "attention.sliding_window")
    types = layer_types(scope, layers, default_pattern=4) if window else ["full_attention"] * layers
    pattern = types.index("full_attention") + 1 if window and "full_attention" in types else 0
    return {"sliding_window": window, "sliding_window_pattern": pattern, "layer_types": types}


@function("attention.recurrent_layers", "full_attention_interval")
def linear_or_full(scope: FileScope, layers: int) -> list[str]:
    """The kind of attention in each layer of Qwen 3 Next and 3.5: as the file lists it, else every fourth is full.

    Layers for multi-token prediction, which follow the others in the file's list, are not counted.

    Raises:
        MapError: a list of another length than the model has layers.
    """
    interval = given(scope, "full_attention_interval", 4)
    listed = scope.get("attention.recurrent_layers")
    if listed is None:
        linear = [(i + 1) % interval != 0 for i in range(layers)]
    elif len(listed) < layers or any(listed[layers:]):
        raise MapError(f"attention.recurrent_layers has {len(listed)} items that do not fit {layers} layers")
    else:
        linear = listed[:layers]
    return ["linear_attention" if x else "full_attention" for x in linear]


@function("feed_forward_length")
def dense_width(scope: FileScope) -> dict[str, Any]:
    """Width of dense feed-forward blocks; nothing where the file, whose layers all have experts, gives none."""
    width = scope.get("feed_forward_length")
    return {} if width is None else {"intermediate_size": width}


@function()
def in_all_layers_or_none(scope: FileScope, tensor: str, layers: int) -> bool:
    """Whether `blk.N.<tensor>` is there for all layers or for none."""
    return len({scope.has(f"blk.{i}.{tensor}") for i in range(layers)}) == 1


@function()
def every_nth(scope: FileScope, layers: int, step: int) -> list[int]:
    """The last layer of each `step`: every_nth(5, 2) -> [1, 3]."""
    return list(range(step - 1, layers, step)) if step > 0 else []
