"""Kimi K3: one class with Kimi Linear, whose configuration says in which ways it is more."""

from typing import Any

from gguf2st.config.functions import FileScope, function, given, nonzero
from gguf2st.config.hybrid import kda_layers
from gguf2st.config.mla import group_counts
from gguf2st.errors import MapError

_ATTENTION = {
    "attention.head_count": "num_attention_heads",
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "attention.value_length_mla": "v_head_dim",
    "rope.dimension_count": "qk_rope_head_dim",
    "attn_res.block_size": "attn_res_block_size",
    "activation.situ_beta": "activation_situ_beta",
    "activation.situ_linear_beta": "activation_situ_linear_beta",
}
_EXPERTS = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_token",
    "expert_shared_count": "num_shared_experts",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_latent_length": "routed_expert_hidden_size",
}


@function(
    *_ATTENTION,
    "attention.head_count_kv",
    "attention.key_length_mla",
    "kda.gate_lower_bound",
    "kda.head_dim",
    "ssm.conv_kernel",
)
def kimi_k3_attention(scope: FileScope, layers: int) -> dict[str, Any]:
    """Attention of both kinds, over tokens and over blocks of layers, and the activation.

    The map takes gates on all attention for granted, and q_lora_rank: a file without their tensors is not complete.

    Raises:
        MapError: a width is missing or not positive, or the lower bound of the forget gate is none that vLLM takes.
    """
    bound = scope.get("kda.gate_lower_bound")
    if bound is not None and not -5 <= bound < 0:
        raise MapError(f"kda.gate_lower_bound is {bound}; a number from -5 to 0 was expected")
    scope.note(
        "this is the text model, without the vision tower that no GGUF has: vLLM serves it as KimiLinearForCausalLM,"
        " transformers 5.24 refuses its hidden_act"
    )
    heads, rotary = scope.get("attention.head_count"), scope.get("rope.dimension_count")
    linear = kda_layers(scope, layers, heads, scope.get("kda.head_dim"), scope.get("ssm.conv_kernel"))
    lower = {} if bound is None else {"gate_lower_bound": bound}
    return {
        **_positive(scope, _ATTENTION),
        "num_key_value_heads": heads,
        "qk_nope_head_dim": scope.get("attention.key_length_mla") - rotary,
        "mla_use_nope": True,
        "mla_use_output_gate": True,
        "linear_attn_config": linear | {"use_full_rank_gate": True} | lower,
    }


@function(
    *_EXPERTS,
    "expert_gating_func",
    "expert_group_count",
    "expert_group_used_count",
    "expert_weights_norm",
    "expert_weights_scale",
    "leading_dense_block_count",
)
def kimi_k3_experts(scope: FileScope) -> dict[str, Any]:
    """Routed experts in a space of their own, chosen by sigmoids with a bias.

    Raises:
        MapError: a width is missing or not positive, more are used than there are, or they are chosen otherwise.
    """
    if scope.get("expert_gating_func") != 2:
        raise MapError(f"expert_gating_func is {scope.get('expert_gating_func')}, not 2, sigmoid")
    found = _positive(scope, _EXPERTS)
    if found["num_experts_per_token"] > found["num_experts"]:
        raise MapError(f"{found['num_experts_per_token']} of {found['num_experts']} experts are used")
    return {
        **found,
        "latent_moe_use_norm": True,
        "moe_layer_freq": 1,
        "moe_renormalize": scope.get("expert_weights_norm") is True,
        "moe_router_activation_func": "sigmoid",
        "topk_method": "noaux_tc",
        "use_grouped_topk": True,
        **kimi_groups(scope),
        "routed_scaling_factor": nonzero(scope, "expert_weights_scale", 1.0),
        "first_k_dense_replace": given(scope, "leading_dense_block_count", 0),
    }


@function("expert_group_count", "expert_group_used_count")
def kimi_groups(scope: FileScope) -> dict[str, int]:
    """`group_counts` in the words of Kimi's classes."""
    groups, used = group_counts(scope)
    return {"num_expert_group": groups, "topk_group": used}


def _positive(scope: FileScope, names: dict[str, str]) -> dict[str, Any]:
    """config.json's key -> value of each metadata key. Raises MapError for one that is missing or not positive."""
    values = {key: scope.get(key) for key in names}
    if wrong := [f"{key} = {value}" for key, value in values.items() if not value or value < 0]:
        raise MapError(f"{', '.join(wrong)}; a positive number was expected")
    return {names[key]: value for key, value in values.items()}
