"""Hunyuan's stretched rope base and lists of one number, and AFMoE's windows."""

from typing import Any

from gguf2st.config.attention import layer_types, window_of
from gguf2st.config.functions import FileScope, function
from gguf2st.config.rope import rope

STRETCHED_CONTEXT = 262144
"""What conversion/hunyuan.py writes as context and as original context when it stretches the rope base."""
HUNYUAN_THETA = 10000.0
"""Rope base of every published Hunyuan with an alpha; the converter asserts it."""


@function("rope.", "context_length")
def hunyuan_rope(scope: FileScope, head_dim: int) -> dict[str, Any]:
    """Rope, with the alpha that the converter folded into the base: theta = 10000 * alpha ** (d / (d - 2)).

    Such a file names an original context although its scaling is none. The base is float32, so that alpha comes back
    with seven digits; published ones are whole numbers.
    """
    out = {"max_position_embeddings": scope.get("context_length")} | rope(scope, head_dim)
    if scope.get("rope.scaling.original_context_length") != STRETCHED_CONTEXT or "rope_scaling" in out:
        return out
    alpha = (out["rope_theta"] / HUNYUAN_THETA) ** ((head_dim - 2) / head_dim)
    if abs(alpha - round(alpha)) > 1e-6 * alpha:
        scope.note(f"the rope base {out['rope_theta']} follows from no whole alpha; it is written as it is")
        return out
    scope.note(
        f"the rope base {out['rope_theta']} was written back as alpha = {round(alpha)} over {HUNYUAN_THETA}; "
        f"max_position_embeddings = {STRETCHED_CONTEXT} is the converter's, the model's own is not in the file"
    )
    scaling = {"rope_type": "dynamic", "alpha": float(round(alpha)), "factor": 1.0}
    parameters = scaling | {"rope_theta": HUNYUAN_THETA}
    return out | {"rope_theta": HUNYUAN_THETA, "rope_parameters": parameters, "rope_scaling": scaling}


@function("expert_used_count", "expert_feed_forward_length", "expert_shared_count")
def hunyuan_experts(scope: FileScope, layers: int) -> dict[str, list[int]]:
    """One number per layer, as Hunyuan A13B has it: its loaders index these by layer."""
    keys = {
        "moe_topk": "expert_used_count",
        "moe_intermediate_size": "expert_feed_forward_length",
        "num_shared_expert": "expert_shared_count",
    }
    return {ours: [scope.get(key)] * layers for ours, key in keys.items()}


@function("attention.sliding_window", "attention.sliding_window_pattern")
def afmoe_attention(scope: FileScope, layers: int) -> dict[str, Any]:
    """Three layers with a window and rotary embedding, then one with neither."""
    return {
        "sliding_window": window_of(scope),
        "layer_types": layer_types(scope, layers, default_pattern=4),
        "global_attn_every_n_layers": 4,
    }
