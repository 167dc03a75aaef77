"""Gemma 3n and 4: what differs from layer to layer."""

import math
from typing import Any

from gguf2st.config.attention import layer_types, window_of
from gguf2st.config.functions import FileScope, function, given
from gguf2st.config.rope import by_kind, require_whole_heads, scaling_of, theta_of
from gguf2st.errors import MapError

_WINDOWS = ("attention.sliding_window", "attention.sliding_window_pattern")


@function("feed_forward_length")
def ffn_of(scope: FileScope, layer: int) -> int:
    """Width of the feed-forward block of a layer, which the file gives once or per layer."""
    return _of(scope, "feed_forward_length", layer)


@function("attention.head_count_kv")
def kv_heads_of(scope: FileScope, layer: int) -> int:
    """Key/value heads of a layer, which the file gives once or per layer."""
    return _of(scope, "attention.head_count_kv", layer)


def _of(scope: FileScope, key: str, layer: int) -> int:
    value = scope.get(key)
    if isinstance(value, list) and layer < len(value):
        return int(value[layer])
    if isinstance(value, int):
        return value
    raise MapError(f"{key} is {value!r}: it says nothing of layer {layer}")


@function("activation_sparsity_scale", "feed_forward_length", "rope.", *_WINDOWS)
def gemma3n_layers(scope: FileScope, layers: int, head_dim: int) -> dict[str, Any]:
    """Gemma 3n: four sliding-window layers with their own rope base, then a full one; widths and sparsity by layer.

    activation_sparsity_scale holds how many deviations above the mean a gate must be; config.json has the share of a
    normal distribution below that: 1.6448 -> 0.95. llama.cpp does not read it; it has the published values built in.
    """
    require_whole_heads(scope, head_dim)
    theta, local = theta_of(scope, "rope.freq_base"), theta_of(scope, "rope.freq_base_swa")
    scales = scope.get("activation_sparsity_scale")
    if not isinstance(scales, list) or len(scales) != layers or not all(isinstance(x, float) for x in scales):
        raise MapError(f"activation_sparsity_scale is {scales!r}; one number for each of {layers} layers was expected")
    return {
        "intermediate_size": [ffn_of(scope, i) for i in range(layers)],
        "activation_sparsity_pattern": [round((1 + math.erf(x / math.sqrt(2))) / 2, 6) for x in scales],
        "sliding_window": window_of(scope),
        "layer_types": layer_types(scope, layers, default_pattern=5),
        "rope_theta": theta,
        "rope_local_base_freq": local,
        "rope_parameters": by_kind(theta, local, scaling_of(scope)),
    }


@function()
def gemma4_k_eq_v(scope: FileScope, pattern: list[int]) -> bool:
    """Whether full layers take their keys for values too: the first of them has no projection of its own then."""
    full = [i for i, sliding in enumerate(pattern) if not sliding]
    return bool(full) and not scope.has(f"blk.{full[0]}.attn_v.weight")


@function("attention.head_count_kv", "attention.key_length", "attention.key_length_swa", "rope.", *_WINDOWS)
def gemma4_layers(scope: FileScope, layers: int, k_eq_v: bool) -> dict[str, Any]:
    """Gemma 4: full layers have heads of their own width, and rotate a share of them in place ("proportional").

    llama.cpp knows no such rotary embedding: `rope_freqs` divides the frequencies of the other dimensions by 1e30.
    """
    window, head_dim = window_of(scope), scope.get("attention.key_length_swa")
    global_head_dim = scope.get("attention.key_length")
    types = layer_types(scope, layers, default_pattern=6)
    for key, width in (("rope.dimension_count", global_head_dim), ("rope.dimension_count_swa", head_dim)):
        if (dims := given(scope, key, width)) != width:
            raise MapError(f"{key} is {dims}, but a head has {width} dimensions")
    theta, local = theta_of(scope, "rope.freq_base"), theta_of(scope, "rope.freq_base_swa")
    if scaling_of(scope):
        raise MapError("rope scaling, which no Gemma 4 has")
    full: dict[str, Any] = {
        "rope_type": "proportional",
        "rope_theta": theta,
        "partial_rotary_factor": _rotating_share(scope, global_head_dim),
    }
    kv_heads = {kind: {kv_heads_of(scope, i) for i, t in enumerate(types) if t == kind} for kind in set(types)}
    if any(len(counts) != 1 for counts in kv_heads.values()):
        raise MapError(f"attention.head_count_kv differs between layers of one kind: {kv_heads}")
    (n_full,), (n_sliding,) = kv_heads["full_attention"], kv_heads.get("sliding_attention", kv_heads["full_attention"])
    return {
        "sliding_window": window,
        "layer_types": types,
        "head_dim": head_dim,
        "global_head_dim": global_head_dim,
        "num_key_value_heads": n_sliding,
        "num_global_key_value_heads": n_full if k_eq_v else None,
        "rope_parameters": {
            "full_attention": full,
            "sliding_attention": {"rope_type": "default", "rope_theta": local},
        },
    }


def _rotating_share(scope: FileScope, head_dim: int) -> float:
    divisors = scope.tensor("rope_freqs.weight", "became rope parameters of type proportional")
    if divisors is None or len(divisors) != head_dim // 2:
        raise MapError(f"rope_freqs.weight is missing, or has not {head_dim // 2} values")
    n = sum(d == 1.0 for d in divisors)
    if divisors[:n] != [1.0] * n or any(d < 1e29 for d in divisors[n:]):
        raise MapError("rope_freqs.weight is not some ones and then 1e30: it does not say which dimensions rotate")
    return n / len(divisors)
