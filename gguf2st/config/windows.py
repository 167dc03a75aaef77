"""Sliding windows by layer: Gemma 2, Cohere 2 and OLMo 3."""

from typing import Any

from gguf2st.config.attention import layer_types
from gguf2st.config.functions import FileScope, assumed, function
from gguf2st.config.rope import require_whole_heads, scaling_of, theta_of

_KEYS = ("attention.sliding_window", "attention.sliding_window_pattern")


@function(*_KEYS)
def sliding_layers(scope: FileScope, layers: int, pattern: int, window: int) -> dict[str, Any]:
    """The window, and which layers see it.

    Args:
        pattern: every n-th layer sees everything, where the file does not say which.
        window: llama.cpp's where the file does not say.
    """
    found = scope.get("attention.sliding_window")
    if found == 0:
        return {"sliding_window": None, "layer_types": ["full_attention"] * layers}
    if found is None:
        found = assumed(scope, window, "sliding_window", "llama.cpp takes it where the file does not say")
    return {"sliding_window": found, "layer_types": layer_types(scope, layers, default_pattern=pattern)}


@function("rope.", *_KEYS)
def olmo3_attention(scope: FileScope, layers: int, head_dim: int) -> dict[str, Any]:
    """OLMo 3: three layers with a window, then a full one; rope scaling on full layers only."""
    theta = theta_of(scope, "rope.freq_base")
    local = theta if scope.get("rope.freq_base_swa") is None else theta_of(scope, "rope.freq_base_swa")
    require_whole_heads(scope, head_dim)
    scaling = scaling_of(scope)
    parameters = {
        "full_attention": {"rope_type": "default", "rope_theta": theta} | scaling,
        "sliding_attention": {"rope_type": "default", "rope_theta": local},
    }
    out = sliding_layers(scope, layers, 4, 4096) | {"rope_theta": theta, "rope_parameters": parameters}
    return out | ({"rope_scaling": scaling} if scaling else {})
