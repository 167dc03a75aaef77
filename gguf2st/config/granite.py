"""Granite: whether the attention rotates at all, and which layers see a window."""

from typing import Any

from gguf2st.config.attention import layer_types
from gguf2st.config.functions import FileScope, function
from gguf2st.config.rope import theta_of
from gguf2st.errors import MapError


@function("rope.scaling.finetuned")
def has_rope(scope: FileScope) -> bool:
    """Whether the attention rotates: Granite's files say it under this key, and llama.cpp takes silence for yes."""
    return scope.get("rope.scaling.finetuned") is not False


@function("attention.sliding_window", "attention.sliding_window_pattern", "attention.rope_pattern", "rope.freq_base")
def granite_swa_attention(scope: FileScope, layers: int) -> dict[str, Any]:
    """Granite with windows: which layers have one, and the rope base of each, 0 for a layer that does not rotate.

    Raises:
        MapError: the file does not say which layers have a window, or whether each layer rotates.
    """
    if scope.get("attention.sliding_window_pattern") is None:
        raise MapError("attention.sliding_window_pattern is missing; llama.cpp does not load such a file either")
    rotates = scope.get("attention.rope_pattern") or [True] * layers
    if len(rotates) != layers:
        raise MapError(f"attention.rope_pattern has {len(rotates)} items for {layers} layers")
    theta = theta_of(scope, "rope.freq_base")
    return {
        "sliding_window": scope.get("attention.sliding_window"),
        "layer_types": layer_types(scope, layers, default_pattern=4),
        "layer_rope_theta": [theta if r else 0.0 for r in rotates],
    }
