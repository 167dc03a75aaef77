"""Granite: whether the attention rotates at all, and which layers see a window."""

import math
from typing import Any

from gguf2st.config.attention import layer_types, window_of
from gguf2st.config.functions import FileScope, function, given, nonzero
from gguf2st.config.rope import theta_of
from gguf2st.errors import MapError


@function("rope.scaling.finetuned")
def has_rope(scope: FileScope) -> bool:
    """Whether the attention rotates: Granite's files say it under this key, and llama.cpp takes silence for yes."""
    return scope.get("rope.scaling.finetuned") is not False


@function("attention.scale")
def attention_scale(scope: FileScope, head_dim: int) -> float:
    """What scores are multiplied by; where the file has none, or 0, what is usual (granite.cpp and its kin)."""
    return float(nonzero(scope, "attention.scale", 1 / math.sqrt(head_dim)))


@function("attention.sliding_window", "attention.sliding_window_pattern", "attention.rope_pattern", "rope.freq_base")
def granite_swa_attention(scope: FileScope, layers: int) -> dict[str, Any]:
    """Granite with windows: which layers have one, and the rope base of each, 0 for a layer that does not rotate.

    Raises:
        MapError: the file does not say which layers have a window, or whether each layer rotates.
    """
    if scope.get("attention.sliding_window_pattern") is None:
        raise MapError("attention.sliding_window_pattern is missing; llama.cpp does not load such a file either")
    rotates = given(scope, "attention.rope_pattern", [True] * layers)
    if len(rotates) != layers:
        raise MapError(f"attention.rope_pattern has {len(rotates)} items for {layers} layers")
    theta = theta_of(scope, "rope.freq_base")
    return {
        "sliding_window": window_of(scope),
        "layer_types": layer_types(scope, layers, default_pattern=4),
        "layer_rope_theta": [theta if r else 0.0 for r in rotates],
    }
