"""Muse Glimmer: windows with a rotary embedding, full layers without, and a scale that became a norm."""

from typing import Any

from gguf2st.config.attention import layer_types, window_of
from gguf2st.config.functions import FileScope, function
from gguf2st.config.rope import require_whole_heads, scaling_of, theta_of
from gguf2st.errors import MapError
from gguf2st.header import shortest_float32


@function("rope.", "attention.sliding_window", "attention.sliding_window_pattern")
def muse_attention(scope: FileScope, layers: int, head_dim: int) -> dict[str, Any]:
    """Which layers have a window, and the scale of queries, which is what all of each `attn_q_norm` holds.

    vLLM reads no_rope_layers, transformers layer_rope_theta; full layers have no rotary embedding (muse-glimmer.cpp).

    Raises:
        MapError: norms of queries that are not one number, or of keys that are not 1; rope scaling.
    """
    scales, keys = (norm_values(scope, layers, kind) for kind in ("q", "k"))
    if keys != {1.0}:
        raise MapError("an attn_k_norm tensor is not there, or not 1: the class has no norm with a weight there")
    if len(scales) != 1:
        raise MapError(f"the attn_q_norm tensors hold {len(scales)} different numbers, not one scale")
    require_whole_heads(scope, head_dim)
    if scaling_of(scope):
        raise MapError("rope scaling, which no Muse Glimmer has")
    theta, types = theta_of(scope, "rope.freq_base"), layer_types(scope, layers, default_pattern=4)
    full = [kind == "full_attention" for kind in types]
    return {
        "qk_scale_factor": shortest_float32(scales.pop()),
        "sliding_window": window_of(scope),
        "layer_types": types,
        "no_rope_layers": [0 if x else 1 for x in full],
        "layer_rope_theta": [0 if x else theta for x in full],
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
    }


def norm_values(scope: FileScope, layers: int, kind: str) -> set[float]:
    """All numbers in the norms of queries ("q") or keys ("k"), 0 for a layer without one."""
    names = [f"blk.{i}.attn_{kind}_norm.weight" for i in range(layers)]
    return {x for name in names for x in scope.tensor(name, "became qk_scale_factor") or [0.0]}
