"""DeepSeek V4: layers that compress what is far away, hyper-connections, and routing by token in the first layers."""

from typing import Any

from gguf2st.config.functions import FileScope, function, given
from gguf2st.config.latent import ungrouped_experts
from gguf2st.config.layer_rules import one_swiglu_limit
from gguf2st.config.rope import scaling_of, theta_of
from gguf2st.errors import MapError

SQRT_SOFTPLUS = 4
"""llama.cpp's number for it (LLAMA_EXPERT_GATING_FUNC_TYPE_SQRT_SOFTPLUS)."""
RATIOS = (0, 4, 128)
"""How many tokens one entry stands for where a layer compresses nothing, by CSA and by HCA: transformers' configuration
class knows no others."""


@function(
    "rope.",
    "attention.compress_ratios",
    "attention.compress_rope_freq_base",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.output_group_count",
    "attention.output_lora_rank",
    "attention.value_length",
    "expert_count",
    "expert_feed_forward_length",
    "expert_gating_func",
    "expert_shared_count",
    "expert_used_count",
    "expert_weights_norm",
    "expert_weights_scale",
    "hash_layer_count",
    "hyper_connection.",
    "swiglu_clamp_exp",
    "swiglu_clamp_shexp",
)
def deepseek4_layers(scope: FileScope, layers: int) -> dict[str, Any]:
    """What each layer compresses, and its rotary embeddings, in the words of the published configuration.

    Only layers that compress have the scaling; vLLM and transformers know that. Cosine and sine keep their size
    (llama.cpp's dsv4_rope_attn_factor), as both have it without an attention factor in the configuration.

    Raises:
        MapError: other ratios than the classes have, limits that differ from layer to layer, other scaling than yarn,
            keys that are not the values too, or another routing than by sqrtsoftplus.
    """
    width = scope.get("attention.key_length")
    if scope.get("attention.value_length") not in (None, width) or scope.get("attention.head_count_kv") != 1:
        raise MapError("there is not one key of each token that is its value too")
    if scope.get("expert_gating_func") != SQRT_SOFTPLUS:
        raise MapError(f"expert_gating_func is not {SQRT_SOFTPLUS}, sqrtsoftplus")
    ratios = given(scope, "attention.compress_ratios", [])[:layers]
    if len(ratios) != layers or not set(ratios) <= set(RATIOS):
        raise MapError(f"attention.compress_ratios is {ratios}; 0, 4 or 128 for each of {layers} layers was expected")
    scaling = scaling_of(scope)
    if scaling and scaling["rope_type"] != "yarn":
        raise MapError(f"rope scaling is {scaling['rope_type']!r}; DeepSeek V4 has yarn or none")
    out = {
        "num_key_value_heads": 1,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        **ungrouped_experts(scope),
        "compress_ratios": ratios,
        "compress_rope_theta": theta_of(scope, "attention.compress_rope_freq_base"),
        "rope_theta": theta_of(scope, "rope.freq_base"),
        "qk_rope_head_dim": scope.get("rope.dimension_count"),
        "num_hash_layers": given(scope, "hash_layer_count", 0),
        "o_groups": scope.get("attention.output_group_count"),
        "o_lora_rank": scope.get("attention.output_lora_rank"),
        "hc_mult": scope.get("hyper_connection.count"),
        "hc_eps": scope.get("hyper_connection.epsilon"),
        "hc_sinkhorn_iters": scope.get("hyper_connection.sinkhorn_iterations"),
        "swiglu_limit": one_swiglu_limit(scope),
    }
    return out | ({"rope_scaling": scaling} if scaling else {})
