"""Granite, Falcon, and the state-space and hybrid models: Mamba, Jamba, Nemotron, LFM2, Kimi Linear.

A_log comes back through log(-(-exp(x))), which may differ from x in its last bits; those cases say so. A bfloat16 x
comes back whole unless it is so close to 0 that exp(x) has no room for all of its bits.
Falcon H1 with multipliers other than 1, and layouts that no converter switch writes, are in
tests/test_variants_granite_ssm_falcon.py.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from tests.oracle import mtp
from tests.oracle.case import BIASES, MOE, TIED, Case, rope, with_bf16, yarn


def plus_one(weight: Tensor) -> Tensor:
    """Norms are stored as w + 1, so that w loses its low bits."""
    return (weight + 1) - 1


def log_exp(a_log: Tensor) -> Tensor:
    """The converter stores -exp(A_log); its logarithm, rounded once, is the best that a reader can do."""
    return a_log.exp().double().log().float()


A_LOG = {"*.A_log": log_exp}
NORM_1P = {"*norm.weight": plus_one}

SCALES: Mapping[str, Any] = {
    "embedding_multiplier": 12.0,
    "attention_multiplier": 0.0625,
    "residual_multiplier": 0.22,
    "logits_scaling": 8.0,
}
"""Granite's four multipliers, with figures of published models."""
GRANITE_MOE: Mapping[str, Any] = {
    **SCALES,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "intermediate_size": 96,
    "shared_intermediate_size": 80,
}
GRANITE_DENSE: Mapping[str, Any] = {
    **SCALES,
    "num_local_experts": 0,
    "num_experts_per_tok": 0,
    "shared_intermediate_size": 128,
}
MAMBA_LAYERS: Mapping[str, Any] = {
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_expand": 2,
}
HYBRID: Mapping[str, Any] = {
    **MAMBA_LAYERS,
    "num_hidden_layers": 5,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention", "full_attention"],
}
HYBRID_NAMES = {"layer_types": ["mamba", "mamba", "attention", "mamba", "attention"]}
"""What the published checkpoints call these layers."""
ROTATING: Mapping[str, Any] = {
    **MAMBA_LAYERS,
    "layer_types": ["full_attention"] * 2,
    "position_embedding_type": "rope",
}
ROTATING_NAMES = {"layer_types": ["attention"] * 2}
NO_POSITIONS = {"max_position_embeddings": (2**20, "the converter writes 2^20 for a model without positions")}
NOPE = {**NO_POSITIONS, "position_embedding_type": ("nope", "what None means")}

FALCON: Mapping[str, Any] = {
    "num_key_value_heads": None,
    "intermediate_size": None,
    "max_position_embeddings": 2048,
    "num_kv_heads": 2,
    "new_decoder_architecture": True,
}
FALCON_2: Mapping[str, Any] = {
    **FALCON,
    "num_ln_in_parallel_attn": 1,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500042.0},
}
FALCON_H1: Mapping[str, Any] = {
    "head_dim": 32,
    "mamba_d_ssm": 96,
    "mamba_n_heads": 3,
    "mamba_d_head": 32,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "mamba_norm_before_gate": False,
}
NO_ATTENTION: Mapping[str, Any] = {"num_attention_heads": None, "num_key_value_heads": None, "num_hidden_layers": 3}
NOWHERE = {"max_position_embeddings": (None, "a state-space model has no positions")}
MAMBA: Mapping[str, Any] = {**NO_ATTENTION, "state_size": 16, "time_step_rank": 6, **TIED}
MAMBA_2: Mapping[str, Any] = {**NO_ATTENTION, "state_size": 16, "num_heads": 4, "head_dim": 32, "n_groups": 2}
JAMBA: Mapping[str, Any] = {
    "num_hidden_layers": 5,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "attn_layer_period": 3,
    "attn_layer_offset": 1,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "mamba_d_state": 16,
    "mamba_dt_rank": 6,
}
NEMOTRON_LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0, "partial_rotary_factor": 0.5}
NEMOTRON_H: Mapping[str, Any] = {
    "mamba_num_heads": 4,
    "mamba_head_dim": 32,
    "ssm_state_size": 16,
    "n_groups": 2,
    "head_dim": 32,
    "num_hidden_layers": 5,
    "layers_block_type": ["linear_attention", "full_attention", "linear_attention", "mlp", "mlp"],
}
NEMOTRON_H_MOE: Mapping[str, Any] = {
    **NEMOTRON_H,
    "layers_block_type": ["linear_attention", "full_attention", "linear_attention", "moe", "moe"],
    "intermediate_size": 21504,  # the default: no layer has it
    "n_routed_experts": 4,
    "moe_intermediate_size": 96,
    "moe_shared_expert_intermediate_size": 80,
}
NEMOTRON_H_NAMES: Mapping[str, Any] = {
    "hybrid_override_pattern": "M*M--",
    "num_hidden_layers": 5,
    **dict.fromkeys(("layers_block_type", "num_experts_per_tok", "n_routed_experts", "n_group", "topk_group")),
}
"""The published dense checkpoints have the pattern, and no word of experts."""
CONV: Mapping[str, Any] = {
    "num_hidden_layers": 5,
    "layer_types": ["conv", "conv", "full_attention", "conv", "full_attention"],
}
ADJUSTED = {
    "intermediate_size": (96, "two thirds of 128, made a multiple of 32"),
    "block_auto_adjust_ff_dim": (False, "the width in the file is the adjusted one"),
    "block_multiple_of": (256, "not in the file, and of no effect without adjustment"),
}
FOR_VLLM = dict.fromkeys(("block_dim", "conv_dim"), (64, "vLLM's class reads it, and published files have it"))
KIMI: Mapping[str, Any] = {
    "num_hidden_layers": 5,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 96,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 24,
    "num_experts_per_tok": 2,
    "num_local_experts": 4,
    "rms_norm_eps": 1e-6,  # llama.cpp normalises q and k with this epsilon, transformers with 1e-6 always
    "linear_attn_config": {
        "full_attn_layers": [3, 5],
        "kda_layers": [1, 2, 4],
        "head_dim": 16,
        "num_heads": 4,
        "short_conv_kernel_size": 4,
    },
    "first_k_dense_replace": 0,  # transformers 5.24 saves dense layers under a name that no published checkpoint has
    "moe_router_activation_func": "sigmoid",
    "mla_use_nope": True,
}


def hybrid(config: str, options: Mapping[str, Any], **more: Any) -> Case:
    """A model with Mamba layers, whose A_log loses its last bits."""
    return Case(config, options, keeps=A_LOG, **more)


_PLAIN: dict[str, Case] = {
    "granite": Case("GraniteConfig", SCALES),
    "granite_tied": Case("GraniteConfig", {**SCALES, **TIED, "num_hidden_layers": 3}),
    "granite_bias": Case("GraniteConfig", {**SCALES, **BIASES}),
    "granite_yarn": Case("GraniteConfig", {**SCALES, **yarn(4.0, 32, 10000.0)}),
    "granite_linear": Case("GraniteConfig", {**SCALES, **rope("linear", 4.0)}),
    "granite_fused_qkv": Case("GraniteConfig", {**SCALES, **BIASES}, flags=("fuse_qkv",)),
    "granite_4_dense": Case("GraniteMoeHybridConfig", {**ROTATING, **GRANITE_DENSE, **TIED}, hparams=ROTATING_NAMES),
    "granitemoe": Case("GraniteMoeConfig", {**GRANITE_MOE, "shared_intermediate_size": None}),
    "granitemoe_fused": Case(
        "GraniteMoeConfig",
        {**GRANITE_MOE, "shared_intermediate_size": None, "attention_bias": True, "num_hidden_layers": 3},
        flags=("fuse_qkv",),
    ),
    "granitemoe_shared": Case("GraniteMoeSharedConfig", {**GRANITE_MOE, **TIED}),
    "granitemoe_4": Case("GraniteMoeHybridConfig", {**ROTATING, **GRANITE_MOE}, hparams=ROTATING_NAMES),
    "granitehybrid": hybrid("GraniteMoeHybridConfig", {**HYBRID, **GRANITE_MOE}, hparams=HYBRID_NAMES, differs=NOPE),
    "granitehybrid_dense": hybrid(
        "GraniteMoeHybridConfig",
        {**HYBRID, **GRANITE_DENSE, **TIED, "mamba_n_groups": 1},
        hparams=HYBRID_NAMES,
        differs=NOPE,
    ),
    "granitehybrid_fused": hybrid(
        "GraniteMoeHybridConfig",
        {**HYBRID, **GRANITE_MOE, "num_key_value_heads": 1},
        hparams=HYBRID_NAMES,
        differs=NOPE,
        flags=("fuse_qkv",),
    ),
    "bamba": hybrid(
        "BambaConfig",
        {**MAMBA_LAYERS, "num_hidden_layers": 5, "attn_layer_indices": [2, 4], "attn_rotary_emb": 8},
        tolerance=None,
        unrunnable="llama.cpp rotates pairs of the halves of a whole head, Bamba pairs of its rotating half",
    ),
    "granite_swa": Case("GraniteSWAConfig", {**SCALES, "num_hidden_layers": 5, **TIED}),
    "granite_swa_nope": Case(
        "GraniteSWAConfig",
        {
            **SCALES,
            **BIASES,
            "num_hidden_layers": 5,
            "sliding_window": 16,
            "layer_rope_theta": [0.0, 1e4, 1e4, 1e4, 0.0],
        },
        hparams={"no_rope_layers": [0, 1, 1, 1, 0]},  # what the converter looks for
    ),
    "granitemoe_swa": Case("GraniteMoeSWAConfig", {**GRANITE_MOE, "num_hidden_layers": 5}),
    "granitemoe_swa_unshared": Case("GraniteMoeSWAConfig", {**GRANITE_MOE, "shared_intermediate_size": 0}),
    # GELU, which llama.cpp looks up in a float16 table
    "falcon_7b": Case(
        "FalconConfig",
        {**FALCON, "num_kv_heads": None, "new_decoder_architecture": False, **TIED},
        hparams={"num_kv_heads": None},  # transformers writes the number of heads, the published checkpoint nothing
        tolerance=1e-2,
    ),
    "falcon_40b": Case("FalconConfig", FALCON, tolerance=1e-2),
    "falcon_40b_heads_6_3": Case(
        "FalconConfig", {**FALCON, "hidden_size": 96, "num_attention_heads": 6, "num_kv_heads": 3}, tolerance=1e-2
    ),
    "falcon_11b": Case(
        "FalconConfig",
        FALCON_2,
        tolerance=None,
        unrunnable="llama.cpp rotates with base 10000: its converter leaves out rope_theta",
    ),
    "falcon_h1": hybrid("FalconH1Config", {**FALCON_H1, **TIED}),
    "falcon_h1_norm": hybrid("FalconH1Config", {**FALCON_H1, "mamba_rms_norm": True, "num_hidden_layers": 3}),
    "falcon_h1_fused_qkv": hybrid("FalconH1Config", {**FALCON_H1, "mamba_n_groups": 3}, flags=("fuse_qkv",)),
    "mamba": hybrid("MambaConfig", MAMBA, differs=NOWHERE),
    "mamba_untied": hybrid("MambaConfig", {**MAMBA, "tie_word_embeddings": False, "state_size": 8}, differs=NOWHERE),
    # llama.cpp normalises dt, B and C with the epsilon of the layers, ten times larger
    "falcon_mamba": hybrid("FalconMambaConfig", MAMBA, differs=NOWHERE, tolerance=1e-2),
    "mamba2": hybrid("Mamba2Config", MAMBA_2, differs=NOWHERE),
    "mamba2_tied": hybrid("Mamba2Config", {**MAMBA_2, **TIED, "n_groups": 1}, differs=NOWHERE),
    "jamba": hybrid("JambaConfig", JAMBA, tokenizer="spm"),
    "jamba_dense": hybrid("JambaConfig", {**JAMBA, "num_experts": 1, "num_experts_per_tok": 1}, tokenizer="spm"),
    "nemotron": Case("NemotronConfig", tokenizer="spm", keeps=NORM_1P),
    "nemotron_bias": Case(
        "NemotronConfig", {**BIASES, "rope_parameters": NEMOTRON_LINEAR}, tokenizer="spm", keeps=NORM_1P
    ),
    "nemotron_fused_qkv": Case("NemotronConfig", BIASES, tokenizer="spm", keeps=NORM_1P, flags=("fuse_qkv",)),
    # transformers lets no time step be less than time_step_min; llama.cpp has no such limit
    "nemotron_h": hybrid("NemotronHConfig", NEMOTRON_H, hparams=NEMOTRON_H_NAMES, differs=NO_POSITIONS, tolerance=2e-3),
    "nemotron_h_fused_qkv": hybrid(
        "NemotronHConfig",
        {**NEMOTRON_H, "num_key_value_heads": 4},
        hparams=NEMOTRON_H_NAMES,
        differs=NO_POSITIONS,
        flags=("fuse_qkv",),
        tolerance=2e-3,
    ),
    "nemotron_h_moe": hybrid("NemotronHConfig", NEMOTRON_H_MOE, differs=NO_POSITIONS, tolerance=2e-3),
    "nemotron_h_moe_mtp": hybrid(
        "NemotronHConfig",
        NEMOTRON_H_MOE,
        hparams={"num_nextn_predict_layers": 1},
        spelled=mtp.nemotron,
        differs=NO_POSITIONS,
        tolerance=2e-3,
    ),
    "nemotron_h_latent": hybrid(
        "NemotronHConfig",
        {**NEMOTRON_H_MOE, "moe_latent_size": 32, "routed_scaling_factor": 2.5},
        differs=NO_POSITIONS,
        tolerance=2e-3,
    ),
    "lfm2": Case("Lfm2Config", {**CONV, "block_auto_adjust_ff_dim": False, **TIED}, differs=FOR_VLLM),
    "lfm2_adjusted": Case("Lfm2Config", {**CONV, "block_multiple_of": 32}, differs=ADJUSTED | FOR_VLLM),
    "lfm2_fused_qkv": Case(
        "Lfm2Config", {**CONV, "block_auto_adjust_ff_dim": False}, differs=FOR_VLLM, flags=("fuse_qkv",)
    ),
    "lfm2moe": Case("Lfm2MoeConfig", {**CONV, **MOE, **TIED}),
    "lfm2moe_fused": Case("Lfm2MoeConfig", {**CONV, **MOE, **TIED, "num_dense_layers": 1}, flags=("fuse_qkv",)),
    "kimi_linear": hybrid(
        "KimiLinearConfig", KIMI, hparams={"num_key_value_heads": 4, "head_dim": 16, "rope_theta": 10000.0}
    ),  # the last two stand in the published file, and mean nothing
}
CASES = with_bf16(
    _PLAIN,
    "granite",
    "granitemoe_shared",
    "granitehybrid",
    "granitemoe_swa",
    "falcon_40b",
    "falcon_h1",
    "mamba",
    "mamba2",
    "nemotron",
    "nemotron_h_moe",
    "lfm2moe",
)
