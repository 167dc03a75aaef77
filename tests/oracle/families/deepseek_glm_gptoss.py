"""DeepSeek, GLM, gpt-oss, MiniMax, dots, ERNIE, Hunyuan, Bailing and AFMoE."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tests.oracle import mtp
from tests.oracle.case import BASE, TIED, Case, with_bf16, yarn

MLA: Mapping[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 24,
}
"""Key, value and rotary widths that all differ, so that no two can be exchanged."""
NO_Q_LORA: Mapping[str, Any] = {"q_lora_rank": None, "num_hidden_layers": 27}
"""llama.cpp knows models without a query latent by their number of layers."""
EXPERTS: Mapping[str, Any] = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}
GROUPS: Mapping[str, Any] = {"n_routed_experts": 8, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3}
ALL_ONE: Mapping[str, Any] = {"mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32.0, "beta_slow": 1.0}
MSCALE: Mapping[str, Any] = {"mscale": 0.707, "mscale_all_dim": 0.707, "beta_fast": 32.0, "beta_slow": 1.0}
V2: Mapping[str, Any] = {
    **MLA,
    **EXPERTS,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "greedy",
    "scoring_func": "softmax",
    "moe_layer_freq": 1,
}
V3: Mapping[str, Any] = {
    **MLA,
    **EXPERTS,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "moe_layer_freq": 1,
    "num_nextn_predict_layers": 0,
    "routed_scaling_factor": 2.827,
}
PREDICTS: Mapping[str, Any] = {"num_nextn_predict_layers": 1}
GLM4MOE: Mapping[str, Any] = {
    **EXPERTS,
    "head_dim": 32,
    "num_nextn_predict_layers": 0,
    "n_group": 1,
    "topk_group": 1,
    "num_hidden_layers": 3,
}
EOS_USER: Mapping[str, Any] = {"eos_token_id": [1, 4]}
"""What the converters of glm4 and chatglm make of GLM's special tokens."""
NOT_SOLAR = ("num_nextn_predict_layers",)
SOLAR: Mapping[str, Any] = {"partial_rotary_factor": 1.0, "first_k_dense_replace": 0, "use_qk_norm": False}
FORGOTTEN = "conversion/chatglm.py reads only the ChatGLM classes' name of it"
GLM: Mapping[str, Any] = {"head_dim": 16, "eos_token_id": [1, 4], "rms_norm_eps": 1e-5, "max_position_embeddings": 64}
GELU_TABLE = 5e-3
"""llama.cpp computes some activations by way of a float16 table."""
GPT_OSS: Mapping[str, Any] = {
    "head_dim": 32,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 64,
    "experts_per_token": 2,
}


MINIMAX: Mapping[str, Any] = {
    "head_dim": 32,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "intermediate_size": 96,
    "rotary_dim": 16,
    "scoring_func": "sigmoid",
    "use_routing_bias": True,
    "use_qk_norm": True,
}
DOTS1: Mapping[str, Any] = {
    **EXPERTS,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "n_group": 1,
    "topk_group": 1,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "moe_layer_freq": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "sliding_window": None,
    "max_window_layers": 62,
}
ERNIE_MOE: Mapping[str, Any] = {
    "moe_num_experts": 4,
    "moe_k": 2,
    "moe_num_shared_experts": 2,
    "moe_intermediate_size": 32,
    "moe_layer_start_index": 1,
    "num_hidden_layers": 3,
}
"""llama.cpp takes the shared experts to be as wide as intermediate_size // num_key_value_heads."""
HUNYUAN: Mapping[str, Any] = {"head_dim": 32, "use_qk_norm": True, "eod_token_id": 1}
EOD = {"eod_token_id": (3, "transformers' default; the file's end of text is eos_token_id, and no layer uses it")}
ALPHA: Mapping[str, Any] = {
    "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 1000.0, "factor": 1.0},
    "max_position_embeddings": 32768,
}
STRETCHED = {"max_position_embeddings": (262144, "the converter writes this for every model with an alpha")}
HUNYUAN_MOE: Mapping[str, Any] = {
    "head_dim": 32,
    "use_qk_norm": True,
    "use_mixed_mlp_moe": True,
    "eod_token_id": 1,
    "num_experts": 4,
    "moe_topk": [2, 2],
    "moe_intermediate_size": [128, 128],
    "num_shared_expert": [1, 1],
}
AFMOE: Mapping[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_shared_experts": 2,
    "moe_intermediate_size": 48,
    "num_dense_layers": 2,
    "head_dim": 32,
    "sliding_window": 64,
    "num_hidden_layers": 5,
    "mup_enabled": True,
    "route_norm": True,
    "route_scale": 2.826,
    "score_func": "sigmoid",
    "n_group": 1,
    "topk_group": 1,
}
LATENT_EPSILON = 1e-6
"""What transformers uses for the norms of the latents whatever rms_norm_eps says, while llama.cpp uses rms_norm_eps."""
DSA: Mapping[str, Any] = {
    **V3,
    "index_topk": 64,
    "index_head_dim": 64,
    "index_n_heads": 3,
    "num_hidden_layers": 3,
    "rms_norm_eps": LATENT_EPSILON,
}


def glm(**options: Any) -> Case:
    return Case("GlmConfig", {**GLM, **options}, tokenizer="glm", tolerance=GELU_TABLE)


HAND_MADE: Mapping[str, Any] = {
    **BASE,
    "moe_intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "head_dim": 16,
}


def experts_by_hand(layer: str, routed: int, shared: int) -> dict[str, tuple[int, ...]]:
    """Feed-forward tensors of a sparse layer of `HAND_MADE` size."""
    out: dict[str, tuple[int, ...]] = {f"{layer}.gate.weight": (routed, 64)}
    for block, width in [*((f"experts.{e}", 48) for e in range(routed)), ("shared_experts", 48 * shared)]:
        out |= {f"{layer}.{block}.{part}_proj.weight": (width, 64) for part in ("gate", "up")}
        out[f"{layer}.{block}.down_proj.weight"] = (64, width)
    return out


def by_hand(
    attention: Mapping[str, tuple[int, ...]], embedding: str, routing: Mapping[str, tuple[int, ...]], dense: int = 1
) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a checkpoint with `dense` dense layers, then sparse ones of four experts and two shared."""
    out: dict[str, tuple[int, ...]] = {f"model.{embedding}.weight": (512, 64), "model.norm.weight": (64,)}
    out["lm_head.weight"] = (512, 64)
    for i in range(3):
        layer = f"model.layers.{i}"
        out |= {f"{layer}.{name}.weight": (64,) for name in ("input_layernorm", "post_attention_layernorm")}
        out |= {f"{layer}.{name}": shape for name, shape in attention.items()}
        if i >= dense:
            out |= experts_by_hand(f"{layer}.mlp", 4, 2) | {
                f"{layer}.mlp.{name}": dims for name, dims in routing.items()
            }
        else:
            out |= {f"{layer}.mlp.{part}_proj.weight": (128, 64) for part in ("gate", "up")}
            out[f"{layer}.mlp.down_proj.weight"] = (64, 128)
    return out


def normalised(head: Tensor) -> Tensor:
    """What norm_head makes of lm_head.weight when a model is loaded."""
    columns: Tensor = head / (torch.norm(head, p=2, dim=0, keepdim=True) + 1e-7)
    return columns


DEEPSEEK_V1 = Case(
    "",
    {
        **HAND_MADE,
        "architectures": ["DeepseekForCausalLM"],
        "model_type": "deepseek",
        "n_routed_experts": 4,
        "n_shared_experts": 2,
        "norm_topk_prob": False,
        "scoring_func": "softmax",
        "moe_layer_freq": 1,
        "attention_bias": False,
    },
    weights=by_hand(
        {
            "self_attn.q_proj.weight": (64, 64),
            "self_attn.k_proj.weight": (32, 64),
            "self_attn.v_proj.weight": (32, 64),
            "self_attn.o_proj.weight": (64, 64),
        },
        "embed_tokens",
        {},
    ),
    tolerance=None,
    unrunnable="its class is remote code, so that there are no logits to compare with",
)
BAILING: Mapping[str, Any] = {
    **HAND_MADE,
    "num_experts": 4,
    "num_shared_experts": 2,
    "norm_topk_prob": True,
    "use_bias": False,
    "use_qkv_bias": False,
}
BAILING_ATTENTION = {"attention.query_key_value.weight": (128, 64), "attention.dense.weight": (64, 64)}
BAILING_V1 = replace(
    DEEPSEEK_V1,
    options={
        **BAILING,
        "architectures": ["BailingMoeForCausalLM"],
        "model_type": "bailing_moe",
        "norm_head": False,
        "first_k_dense_replace": 0,
    },
    weights=by_hand(BAILING_ATTENTION, "word_embeddings", {}, dense=0),
)
BAILING_V2 = replace(
    DEEPSEEK_V1,
    options={
        **BAILING,
        "architectures": ["BailingMoeV2ForCausalLM"],
        "model_type": "bailing_moe_v2",
        "partial_rotary_factor": 0.5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        "n_group": 2,
        "topk_group": 1,
        "score_function": "sigmoid",
        "routed_scaling_factor": 2.5,
        "moe_shared_expert_intermediate_size": 48,
        "moe_router_enable_expert_bias": True,
        "use_qk_norm": True,
        "use_rmsnorm": True,
        "router_dtype": "fp32",
        "num_nextn_predict_layers": 0,
    },
    weights=by_hand(
        {
            **BAILING_ATTENTION,
            "attention.query_layernorm.weight": (16,),
            "attention.key_layernorm.weight": (16,),
        },
        "word_embeddings",
        {"gate.expert_bias": (4,)},
    ),
)


_PLAIN: dict[str, Case] = {
    "deepseek_v2": Case("DeepseekV2Config", {**V2, "num_hidden_layers": 3, "routed_scaling_factor": 16.0}),
    "deepseek_v2_lite": Case("DeepseekV2Config", {**V2, **NO_Q_LORA, **yarn(40.0, 64, 10000.0, **MSCALE)}),
    "deepseek_v2_groups": Case(
        "DeepseekV2Config",
        {**V2, **GROUPS, "topk_method": "group_limited_greedy"},
        tolerance=None,
        unrunnable="llama.cpp ranks groups by their two best experts, as DeepSeek V3 does; V2 by their best",
    ),
    "deepseek_v3": Case("DeepseekV3Config", V3),
    "deepseek_v3_groups": Case("DeepseekV3Config", {**V3, **GROUPS, "num_hidden_layers": 3}),
    "deepseek_v3_yarn": Case("DeepseekV3Config", {**V3, **yarn(40.0, 32, **ALL_ONE)}),
    "deepseek_v3_no_q_lora": Case("DeepseekV3Config", {**V3, **NO_Q_LORA, "first_k_dense_replace": 2}),
    "deepseek_v3_unnormalised": Case("DeepseekV3Config", {**V3, "norm_topk_prob": False}),
    "kimi_k2": Case("DeepseekV3Config", {**V3, **yarn(32.0, 32, 50000.0, **ALL_ONE), "n_shared_experts": 1}),
    "youtu": Case(
        "YoutuConfig",
        {**MLA, **TIED},
        tolerance=None,
        unrunnable="transformers sets the padding token's row of the embedding, and so of the tied head, to zero",
    ),
    # llama.cpp and our map know the class by the size of its vocabulary
    "glm4_moe_lite": Case(
        "Glm4MoeLiteConfig",
        {
            **V3,
            "vocab_size": 154880,
            "hidden_size": 32,
            "moe_intermediate_size": 16,
            "num_hidden_layers": 3,
            "rms_norm_eps": LATENT_EPSILON,
        },
        tokenizer="glm",
    ),
    "youtu_untied": Case("YoutuConfig", {**MLA, "num_hidden_layers": 3}),
    "glm4": Case("Glm4Config", {"head_dim": 32, **EOS_USER}, tokenizer="glm"),
    "glm4_no_bias": Case(
        "Glm4Config",
        {"head_dim": 16, "attention_bias": False, "num_hidden_layers": 3, **TIED, **EOS_USER},
        tokenizer="glm",
    ),
    "glm4_fused_qkv": Case("Glm4Config", {"head_dim": 32, **EOS_USER}, tokenizer="glm", flags=("fuse_qkv",)),
    "glm4_yarn": Case(
        "Glm4Config",
        {"head_dim": 32, **EOS_USER, **yarn(4.0, 32, 10000.0, partial_rotary_factor=0.5)},
        tokenizer="glm",
    ),
    "glm": glm(),
    "glm_tied": glm(num_hidden_layers=3, num_key_value_heads=1, attention_bias=False, **TIED),
    "chatglm_fused_qkv": replace(glm(), flags=("fuse_qkv",)),
    "glm_forgotten": replace(glm(max_position_embeddings=128), differs={"max_position_embeddings": (64, FORGOTTEN)}),
    "glm4moe": Case("Glm4MoeConfig", {**GLM4MOE, "attention_bias": True, "use_qk_norm": True}, tokenizer="glm"),
    "glm4moe_air": Case(
        "Glm4MoeConfig", {**GLM4MOE, "attention_bias": True, "first_k_dense_replace": 2}, tokenizer="glm"
    ),
    "glm4moe_mtp": Case(
        "Glm4MoeConfig",
        {**GLM4MOE, **GROUPS, "routed_scaling_factor": 2.5},
        tokenizer="glm",
        hparams=PREDICTS,
        spelled=mtp.appended,
    ),
    "solar_open": Case(
        "SolarOpenConfig",
        {**{k: v for k, v in GLM4MOE.items() if k not in NOT_SOLAR}, **SOLAR, "eos_token_id": 1},
        tokenizer="glm",
    ),
    "gpt_oss": Case("GptOssConfig", GPT_OSS, tolerance=GELU_TABLE),
    "gpt_oss_default_rope": Case(
        "GptOssConfig",
        {**GPT_OSS, "num_hidden_layers": 3, "rope_parameters": {"rope_type": "default", "rope_theta": 150000.0}},
    ),
    "gpt_oss_fused_qkv": Case("GptOssConfig", GPT_OSS, flags=("fuse_qkv",), tolerance=GELU_TABLE),
    "minimax_m2": Case("MiniMaxM2Config", MINIMAX),
    "minimax_m2_fused_qkv": Case(
        "MiniMaxM2Config", {**MINIMAX, "num_hidden_layers": 3, "num_key_value_heads": 1}, flags=("fuse_qkv",)
    ),
    "dots1": Case("Dots1Config", DOTS1),
    "dots1_dense_first": Case(
        "Dots1Config", {**DOTS1, "num_hidden_layers": 3, "first_k_dense_replace": 2, "norm_topk_prob": False}
    ),
    "dots1_grouped": Case(
        "Dots1Config",
        {**DOTS1, "num_key_value_heads": 2},
        tolerance=None,
        unrunnable="llama.cpp wants as many key heads as query heads, as the published model has",
    ),
    "ernie4_5": Case("Ernie4_5Config", {"head_dim": 32}, tokenizer="spm"),
    "ernie4_5_tied": Case("Ernie4_5Config", {"head_dim": 16, "num_hidden_layers": 3, **TIED}, tokenizer="spm"),
    "ernie4_5_fused_qkv": Case("Ernie4_5Config", {"head_dim": 32}, tokenizer="spm", flags=("fuse_qkv",)),
    "ernie4_5_moe": Case("Ernie4_5_MoeConfig", ERNIE_MOE, tokenizer="spm"),
    "ernie4_5_moe_every_other": Case(
        "Ernie4_5_MoeConfig",
        {**ERNIE_MOE, **TIED, "moe_layer_interval": 2, "num_hidden_layers": 5, "moe_layer_start_index": 2},
        tokenizer="spm",
        tolerance=None,
        unrunnable="llama.cpp loads experts for every layer after the first ones, whatever the interval",
    ),
    "hunyuan_dense": Case("HunYuanDenseV1Config", HUNYUAN, differs=EOD),
    "hunyuan_dense_tied": Case("HunYuanDenseV1Config", {**HUNYUAN, **TIED, "num_hidden_layers": 3}, differs=EOD),
    "hunyuan_dense_bias": Case(
        "HunYuanDenseV1Config",
        {**HUNYUAN, "attention_bias": True},
        differs=EOD,
        tolerance=None,
        unrunnable="llama.cpp has no bias at the output of this architecture's attention",
    ),
    "hunyuan_dense_alpha": Case("HunYuanDenseV1Config", {**HUNYUAN, **ALPHA}, differs={**EOD, **STRETCHED}),
    "hunyuan_moe": Case("HunYuanMoEV1Config", HUNYUAN_MOE, flags=("gpt2_vocab",), differs=EOD),
    "hunyuan_moe_alpha": Case(
        "HunYuanMoEV1Config",
        {
            **HUNYUAN_MOE,
            **TIED,
            **ALPHA,
            "hidden_size": 256,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 128,
        },
        flags=("gpt2_vocab",),
        differs={**EOD, **STRETCHED},
    ),
    "afmoe": Case("AfmoeConfig", AFMOE),
    "afmoe_3_layers": Case("AfmoeConfig", {**AFMOE, "num_hidden_layers": 3, "num_dense_layers": 1, "head_dim": 16}),
    "deepseek_v32": Case("DeepseekV32Config", DSA, flags=("gpt2_vocab",)),
    "deepseek_v32_yarn": Case(
        "DeepseekV32Config", {**DSA, **GROUPS, **yarn(40.0, 32, **ALL_ONE)}, flags=("gpt2_vocab",)
    ),
    "glm_dsa": Case("GlmMoeDsaConfig", DSA, tokenizer="glm"),
    "glm_dsa_shared": Case("GlmMoeDsaConfig", {**DSA, "indexer_types": ["full", "full", "shared"]}, tokenizer="glm"),
    "deepseek_v1": DEEPSEEK_V1,
    "bailing_moe": BAILING_V1,
    "bailing_moe_norm_head": replace(
        BAILING_V1,
        options={**BAILING_V1.options, "norm_head": True},
        keeps={"lm_head.weight": normalised},
        differs={"norm_head": (False, "the converter has normalised the head already")},
    ),
    "bailing_moe_v2": BAILING_V2,
}
# What published checkpoints have beside transformers' tensors, and llama.cpp's converter puts into the file
_PLAIN |= {
    f"{name}_mtp": replace(_PLAIN[name], hparams={**_PLAIN[name].hparams, **PREDICTS}, spelled=mtp.appended)
    for name in ("glm4_moe_lite", "deepseek_v32", "glm_dsa", "bailing_moe_v2")
}
# llama.cpp's switch for one attn_qkv, of these in turn
_PLAIN |= {
    f"{name}_fused_qkv": replace(_PLAIN[name], flags=("fuse_qkv",))
    for name in ("glm4moe", "dots1", "ernie4_5_moe", "afmoe", "deepseek_v1", "bailing_moe")
}
CASES = with_bf16(
    _PLAIN,
    "deepseek_v2",
    "deepseek_v3",
    "youtu",
    "glm4",
    "glm",
    "glm4moe",
    "solar_open",
    "gpt_oss",
    "minimax_m2",
    "dots1",
    "ernie4_5",
    "ernie4_5_moe",
    "hunyuan_dense",
    "hunyuan_moe",
    "afmoe",
    "deepseek_v32",
    "glm_dsa",
    "deepseek_v1",
    "bailing_moe",
    "bailing_moe_v2",
)
