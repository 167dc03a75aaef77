"""Granite, Falcon, and the state-space and hybrid models: Mamba, Jamba, Nemotron, LFM2, Kimi Linear.

A_log comes back through log(-(-exp(x))), which is x within one unit in the last place; those cases say so.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from tests.oracle.case import BIASES, MOE, TIED, Case, rope, with_bf16, yarn

SCALES: Mapping[str, Any] = {
    "embedding_multiplier": 12.0,
    "attention_multiplier": 0.0625,
    "residual_multiplier": 0.22,
    "logits_scaling": 8.0,
}
"""Granite's four multipliers, with figures of published models."""
MOE_4_2: Mapping[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 96}
MAMBA: Mapping[str, Any] = {
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_expand": 2,
    "mamba_chunk_size": 256,
}
LAYERS = ["linear_attention", "linear_attention", "full_attention", "linear_attention", "full_attention"]


def plus_one(weight: Tensor) -> Tensor:
    """Norms are stored as w + 1, so that w loses its low bits."""
    return (weight + 1) - 1


def log_exp(a_log: Tensor) -> Tensor:
    """The converter stores -exp(A_log), whose logarithm may differ from A_log in the last bit."""
    return a_log.exp().double().log().float()

POSITIONS = {"max_position_embeddings": (2**20, "the converter writes 2^20 for a model without positions"), "position_embedding_type": ("nope", "what None means")}
NORM_1P = {"*norm.weight": plus_one}
ADJUSTED = {"intermediate_size": (96, "two thirds of 128, made a multiple of 32"), "block_auto_adjust_ff_dim": (False, "the width in the file is the adjusted one"), "block_multiple_of": (256, "not in the file, and of no effect without adjustment")}
A_LOG = {"*.A_log": log_exp}


FALCON: Mapping[str, Any] = {"num_key_value_heads": None, "intermediate_size": None, "max_position_embeddings": 2048}
H1: Mapping[str, Any] = {"head_dim": 32, "mamba_d_ssm": 96, "mamba_n_heads": 3, "mamba_d_head": 32, "mamba_n_groups": 1, "mamba_d_state": 16, "mamba_norm_before_gate": False}
NO_ATTENTION: Mapping[str, Any] = {"num_attention_heads": None, "num_key_value_heads": None}
NOWHERE = {"max_position_embeddings": (None, "a state-space model has no positions")}
MAMBA1: Mapping[str, Any] = {**NO_ATTENTION, "state_size": 16, "time_step_rank": 6, "num_hidden_layers": 3, "tie_word_embeddings": True}
MAMBA2: Mapping[str, Any] = {**NO_ATTENTION, "state_size": 16, "num_heads": 4, "head_dim": 32, "n_groups": 2, "num_hidden_layers": 3}
JAMBA: Mapping[str, Any] = {"num_hidden_layers": 5, "num_experts": 4, "num_experts_per_tok": 2, "attn_layer_period": 3, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1, "mamba_d_state": 16, "mamba_dt_rank": 6}
NEMOTRON_H: Mapping[str, Any] = {"mamba_num_heads": 4, "mamba_head_dim": 32, "ssm_state_size": 16, "n_groups": 2, "head_dim": 32, "num_hidden_layers": 5}
NEMOTRON_H_MOE: Mapping[str, Any] = {**NEMOTRON_H, "intermediate_size": 21504, "n_routed_experts": 4, "moe_intermediate_size": 96, "moe_shared_expert_intermediate_size": 80}
DENSE_NEMOTRON_H: Mapping[str, Any] = {"hybrid_override_pattern": "M*M--", "layers_block_type": None, "num_hidden_layers": 5, "num_experts_per_tok": None, "n_routed_experts": None, "n_group": None, "topk_group": None}
NO_POSITIONS = {"max_position_embeddings": (2**20, "the converter writes 2^20 for a model without positions")}
CONV = ["conv", "conv", "full_attention", "conv", "full_attention"]
KIMI: Mapping[str, Any] = {"num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 4, "moe_intermediate_size": 96, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 32, "num_experts_per_tok": 2, "num_local_experts": 4, "linear_attn_config": {"full_attn_layers": [3, 5], "kda_layers": [1, 2, 4], "head_dim": 16, "num_heads": 4, "short_conv_kernel_size": 4}, "first_k_dense_replace": 0, "moe_router_activation_func": "sigmoid", "mla_use_nope": True}


_PLAIN: dict[str, Case] = {
    "granite": Case("GraniteConfig", SCALES),
    "granite_tied": Case("GraniteConfig", {**SCALES, **TIED, "num_hidden_layers": 3}),
    "granite_bias": Case("GraniteConfig", {**SCALES, **BIASES}),
    "granite_yarn": Case("GraniteConfig", {**SCALES, **yarn(4.0, 32, 10000.0)}),
    "granite_linear": Case("GraniteConfig", {**SCALES, **rope("linear", 4.0)}),
    "granite_fused_qkv": Case("GraniteConfig", {**SCALES, **BIASES}, flags=("fuse_qkv",)),
    "granitemoe": Case("GraniteMoeConfig", {**SCALES, **MOE_4_2}),
    "granitemoe_shared": Case("GraniteMoeSharedConfig", {**SCALES, **MOE_4_2, "shared_intermediate_size": 80}),
    "granitehybrid": Case("GraniteMoeHybridConfig", {**SCALES, **MOE_4_2, **MAMBA, "num_hidden_layers": 5, "layer_types": LAYERS, "shared_intermediate_size": 80}, hparams={"layer_types": ["mamba","mamba","attention","mamba","attention"]}, keeps=A_LOG, differs=POSITIONS),
    "granitehybrid_rope": Case("GraniteMoeHybridConfig", {**SCALES, **MAMBA, "num_local_experts": 0, "num_experts_per_tok": 0, "layer_types": ["full_attention"]*2, "shared_intermediate_size": 128, "position_embedding_type": "rope"}, hparams={"layer_types": ["attention","attention"]}),
    "granitehybrid_rope_moe": Case("GraniteMoeHybridConfig", {**SCALES, **MAMBA, **MOE_4_2, "layer_types": ["full_attention"]*2, "shared_intermediate_size": 80, "position_embedding_type": "rope"}, hparams={"layer_types": ["attention","attention"]}),
    "bamba": Case("BambaConfig", {**MAMBA, "num_hidden_layers": 5, "attn_layer_indices": [2, 4], "attn_rotary_emb": 8}, keeps=A_LOG, tolerance=None, unrunnable="llama.cpp pairs the halves of a whole head, Bamba those of its rotating half"),
    "granitehybrid_dense": Case("GraniteMoeHybridConfig", {**SCALES, **MAMBA, "mamba_n_groups": 1, "num_local_experts": 0, "num_experts_per_tok": 0, "num_hidden_layers": 5, "layer_types": LAYERS, "shared_intermediate_size": 128, **TIED}, hparams={"layer_types": ["mamba","mamba","attention","mamba","attention"]}, keeps=A_LOG, differs=POSITIONS),
    "granite_swa_nope": Case("GraniteSWAConfig", {**SCALES, **BIASES, "num_hidden_layers": 5, "sliding_window": 16, "layer_types": ["full_attention"]+["sliding_attention"]*3+["full_attention"], "layer_rope_theta": [0.0, 1e4, 1e4, 1e4, 0.0]}, hparams={"no_rope_layers": [0,1,1,1,0]}),
    "granite_swa": Case("GraniteSWAConfig", {**SCALES, "num_hidden_layers": 5}),
    "granitemoe_swa": Case("GraniteMoeSWAConfig", {**SCALES, **MOE_4_2, "num_hidden_layers": 5, "shared_intermediate_size": 80}),
    "falcon_7b": Case("FalconConfig", FALCON, hparams={"num_kv_heads": None}, tolerance=1e-2),
    "falcon_40b": Case("FalconConfig", {**FALCON, "num_kv_heads": 2, "new_decoder_architecture": True}, tolerance=1e-2),
    "falcon_11b": Case("FalconConfig", {**FALCON, "num_kv_heads": 2, "new_decoder_architecture": True, "num_ln_in_parallel_attn": 1, "rope_parameters": {"rope_type": "default", "rope_theta": 500042.0}}, tolerance=None, unrunnable="llama.cpp rotates with base 10000: its converter leaves out rope_theta"),
    "falcon_h1": Case("FalconH1Config", {**H1}, keeps=A_LOG),
    "falcon_h1_norm": Case("FalconH1Config", {**H1, "mamba_rms_norm": True, "num_hidden_layers": 3}, keeps=A_LOG),
    "mamba": Case("MambaConfig", MAMBA1, keeps=A_LOG, differs=NOWHERE),
    "mamba_untied": Case("MambaConfig", {**MAMBA1, "tie_word_embeddings": False, "state_size": 8}, keeps=A_LOG, differs=NOWHERE),
    "falcon_mamba": Case("FalconMambaConfig", MAMBA1, keeps=A_LOG, differs=NOWHERE, tolerance=1e-2),
    "mamba2": Case("Mamba2Config", MAMBA2, keeps=A_LOG, differs=NOWHERE),
    "mamba2_tied": Case("Mamba2Config", {**MAMBA2, "tie_word_embeddings": True, "n_groups": 1}, keeps=A_LOG, differs=NOWHERE),
    "jamba": Case("JambaConfig", JAMBA, tokenizer="spm", keeps=A_LOG),
    "jamba_dense": Case("JambaConfig", {**JAMBA, "num_experts": 1, "num_experts_per_tok": 1, **TIED}, tokenizer="spm", keeps=A_LOG),
    "nemotron": Case("NemotronConfig", {"head_dim": 16}, tokenizer="spm", keeps=NORM_1P),
    "nemotron_bias": Case("NemotronConfig", {**BIASES, "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0, "partial_rotary_factor": 0.5}}, tokenizer="spm", keeps=NORM_1P),
    "nemotron_h": Case("NemotronHConfig", {**NEMOTRON_H, "layers_block_type": ["linear_attention", "full_attention", "linear_attention", "mlp", "mlp"]}, hparams=DENSE_NEMOTRON_H, keeps=A_LOG, differs=NO_POSITIONS, tolerance=1e-4),
    "nemotron_h_moe": Case("NemotronHConfig", {**NEMOTRON_H_MOE, "layers_block_type": ["linear_attention", "full_attention", "linear_attention", "moe", "moe"]}, keeps=A_LOG, differs=NO_POSITIONS, tolerance=1e-4),
    "lfm2": Case("Lfm2Config", {"num_hidden_layers": 5, "layer_types": CONV, "block_auto_adjust_ff_dim": False, **TIED}),
    "lfm2_adjusted": Case("Lfm2Config", {"num_hidden_layers": 5, "layer_types": CONV, "block_multiple_of": 32}, differs=ADJUSTED),
    "lfm2moe": Case("Lfm2MoeConfig", {"num_hidden_layers": 5, "layer_types": CONV, "num_dense_layers": 2, **MOE, **TIED}),
    "kimi_linear": Case("KimiLinearConfig", KIMI, hparams={"num_key_value_heads": 4}, keeps=A_LOG),
}
CASES = _PLAIN
