"""Laguna, Hunyuan 3, MiMo V2 and Sarvam."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from tests.oracle import mtp
from tests.oracle.case import MOE, TIED, Case, with_bf16

PREDICTS: Mapping[str, Any] = {"num_nextn_predict_layers": 1}
LAGUNA: Mapping[str, Any] = {
    **MOE,
    "head_dim": 32,
    "num_hidden_layers": 5,
    "shared_expert_intermediate_size": 80,
    "sliding_window": 64,
    "layer_types": ["full_attention", *["sliding_attention"] * 3, "full_attention"],
    "num_attention_heads_per_layer": [4, 6, 6, 6, 4],
    "moe_routed_scaling_factor": 2.5,
    "gating": True,
}
HY_V3: Mapping[str, Any] = {
    **MOE,
    "head_dim": 32,
    "num_hidden_layers": 3,
    "num_shared_experts": 2,
    "expert_hidden_dim": 96,
    "route_norm": True,
    "qk_norm": True,
    "first_k_dense_replace": 1,
}
"""The last four are vLLM's, and in the published configuration."""
MIMO: Mapping[str, Any] = {
    "head_dim": 32,
    "v_head_dim": 16,
    "num_attention_heads": 8,
    "num_hidden_layers": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "sliding_window_size": 64,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "layernorm_epsilon": 1e-5,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "add_swa_attention_sink_bias": True,
    "add_full_attention_sink_bias": False,
    "rope_theta": 5e6,
    "swa_rope_theta": 1e4,
    "partial_rotary_factor": 0.5,
    "swa_num_attention_heads": 8,
    "swa_num_key_value_heads": 4,
    "swa_head_dim": 32,
    "swa_v_head_dim": 16,
    "hybrid_layer_pattern": [0, 1, 1, 0],
    "moe_layer_freq": [0, 1, 1, 1],
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    },
}
"""In both spellings, as we write it: that of the published configuration, which vLLM reads, and transformers 5's."""
MIMO_WIDE: Mapping[str, Any] = {
    "num_hidden_layers": 3,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "hybrid_layer_pattern": [0, 1, 0],
    "moe_layer_freq": [0, 0, 1],
    "mlp_layer_types": ["dense", "dense", "sparse"],
    "num_key_value_heads": 1,
    "swa_num_key_value_heads": 2,
    "v_head_dim": 32,
    "swa_v_head_dim": 32,
    "n_routed_experts": 6,
    "num_experts_per_tok": 3,
}
MIMO_PUBLISHED: Mapping[str, Any] = {"sliding_window": 64, "rope_parameters": None}

FULL: Mapping[str, Any] = {
    "num_hidden_layers": 3,
    "sliding_window": 0,
    "layer_types": ["full_attention"] * 3,
    "num_attention_heads_per_layer": [4] * 3,
    "num_key_value_heads": 1,
}
TWO_ROPES: Mapping[str, Any] = {
    "full_attention": {
        "rope_type": "yarn",
        "rope_theta": 5e5,
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "partial_rotary_factor": 0.5,
    },
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0},
}


def hy_v3(*kinds: str, **options: Any) -> Case:
    dense = {"num_hidden_layers": len(kinds), "first_k_dense_replace": kinds.count("dense")}
    return Case("HYV3Config", {**HY_V3, **dense, "mlp_layer_types": [*kinds], **options})


def zero_mean(bias: Tensor) -> Tensor:
    return bias - bias.mean()


def sarvam(**options: Any) -> Case:
    """The published names of keys, which transformers reads as others, and those that the published code reads too."""
    given: Mapping[str, Any] = {
        "num_hidden_layers": 3,
        "head_dim": 16,
        "moe_intermediate_size": 64,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 8e6},
        **options,
    }
    read = {
        "score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "moe_shared_expert_intermediate_size": 64,
    }
    more = {**read, "use_bias": False, "use_rmsnorm": True, "embedding_dropout": 0.0, "router_dtype": "fp32"}
    more |= {"architectures": ["SarvamMoEForCausalLM"]}
    own = {"num_experts": 4, "num_shared_experts": given.get("n_shared_experts", 1)}
    return Case(
        "SarvamMoEConfig",
        given,
        hparams={**read, **own, "architectures": ["SarvamMoEForCausalLM"]},
        differs={key: (value, "the published file has it") for key, value in more.items()},
        keeps={"*.expert_bias": zero_mean},
    )


_PLAIN: dict[str, Case] = {
    "sarvam": sarvam(),
    "sarvam_shared": sarvam(
        num_hidden_layers=4, n_shared_experts=2, first_k_dense_replace=2, routed_scaling_factor=1.5
    ),
    "laguna": Case("LagunaConfig", LAGUNA),
    "laguna_per_element": Case("LagunaConfig", {**LAGUNA, "gating": "per-element"}),
    "laguna_full": Case("LagunaConfig", {**LAGUNA, **FULL, "mlp_layer_types": ["dense", "dense", "sparse"]}),
    "laguna_ropes": Case("LagunaConfig", {**LAGUNA, "rope_parameters": TWO_ROPES}),
    "hy_v3": Case("HYV3Config", HY_V3),
    "hy_v3_dense": hy_v3("dense", "dense", "sparse", "sparse", **TIED),
    "hy_v3_no_dense": hy_v3("sparse", "sparse", num_key_value_heads=4),
    "hy_v3_mtp": replace(hy_v3("dense", "sparse"), hparams=PREDICTS, spelled=mtp.appended),
    "mimo2_mtp": Case("MiMoV2FlashConfig", MIMO, hparams=MIMO_PUBLISHED, spelled=mtp.mimo),
    "mimo2_wide": Case("MiMoV2FlashConfig", {**MIMO, **MIMO_WIDE}, flags=("no_mtp",), hparams=MIMO_PUBLISHED),
    "mimo2": Case("MiMoV2FlashConfig", MIMO, flags=("no_mtp",), hparams=MIMO_PUBLISHED),
}
CASES = with_bf16(_PLAIN, "laguna", "hy_v3")
