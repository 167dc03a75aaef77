"""Sliding windows: by layer in Gemma 2, Cohere 2 and OLMo 3; and of Phi 3 and Mistral, where a file may not tell."""

from typing import Any

from gguf2st.config.attention import layer_types, window_of
from gguf2st.config.functions import FileScope, assumed, function
from gguf2st.config.rope import by_kind, require_whole_heads, scaling_of, theta_of

_KEYS = ("attention.sliding_window", "attention.sliding_window_pattern")


@function(*_KEYS)
def sliding_layers(
    scope: FileScope, layers: int, pattern: int, window: int, dense_first: bool = False
) -> dict[str, Any]:
    """The window, and which layers see it.

    Args:
        pattern: every n-th layer sees everything, where the file does not say which.
        dense_first: it is the first of n, not the last.
        window: llama.cpp's where the file does not say.
    """
    if scope.get("attention.sliding_window") is None:
        found = assumed(scope, window, "sliding_window", "llama.cpp takes it where the file does not say")
    else:
        found = window_of(scope)
    return {"sliding_window": found, "layer_types": layer_types(scope, layers, pattern, dense_first)}


@function("rope.", *_KEYS)
def olmo3_attention(scope: FileScope, layers: int, head_dim: int) -> dict[str, Any]:
    """OLMo 3: three layers with a window, then a full one; rope scaling on full layers only."""
    theta = theta_of(scope, "rope.freq_base")
    local = theta if scope.get("rope.freq_base_swa") is None else theta_of(scope, "rope.freq_base_swa")
    require_whole_heads(scope, head_dim)
    scaling = scaling_of(scope)
    out = sliding_layers(scope, layers, 4, 4096)
    out |= {"rope_theta": theta, "rope_parameters": by_kind(theta, local, scaling)}
    return out | ({"rope_scaling": scaling} if scaling else {})


@function("attention.sliding_window")
def phi3_window(scope: FileScope, context_length: int) -> int | None:
    """Phi 3's window; 0 in the file is none. A file from before the key has what llama.cpp took then for the published
    models: 2047 tokens for those of 4096, and all of the longer ones."""
    window = scope.get("attention.sliding_window")
    if window is None:
        published = 2047 if context_length == 4096 else None
        window = assumed(scope, published, "sliding_window", "the file does not say; it is the published models'")
    return window or None


MISTRAL = {
    "block_count": 32,
    "embedding_length": 4096,
    "feed_forward_length": 14336,
    "attention.head_count": 32,
    "attention.head_count_kv": 8,
    "context_length": 32768,
}
"""Shape of mistralai/Mistral-7B-v0.1, with a vocabulary of 32000 and some, and a rope base of 10000 (config.json)."""


@function(*MISTRAL, "rope.freq_base")
def mistral_window(scope: FileScope, vocab: int) -> dict[str, Any]:
    """No key: a line in the report, for a file of the shape of Mistral 7B v0.1, that its window is in no GGUF."""
    base = scope.get("rope.freq_base")
    if all(scope.get(key) == n for key, n in MISTRAL.items()) and vocab < 32768 and base in (None, 10000.0):
        scope.note(
            "sliding_window = None: a file of this shape may be Mistral 7B v0.1, whose window of 4096 tokens no GGUF"
            " tells; llama.cpp attends to the whole context too"
        )
    return {}
