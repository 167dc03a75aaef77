"""Kimi K3's text part, under the names it has within the whole but for their `language_model.`.

The file has the products of two weights each, of which a checkpoint gets the norm as ones. The converter therefore
reads norms of powers of two, by which the projections are divided: their product is the projection, to the bit.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tests.oracle.case import Case
from tests.oracle.families.granite_ssm_falcon import log_exp
from tests.oracle.families.hybrid_latent import kda
from tests.oracle.families.remote_code import HEADS, HIDDEN, Shapes, by_hand, ends, experts, gated, linear, norms

LATENT, WIDTH, N_EXPERTS, Q_RANK, RANK, ROTARY, NOPE, VALUE, KDA = 40, 48, 4, 48, 32, 8, 24, 16, 32

KEEPS: Mapping[str, Any] = {
    "*.A_log": lambda x: log_exp(x[:HEADS]),  # published ones are padded
    "*_res_norm.weight": torch.ones_like,
}


def _latent_attention(prefix: str) -> Shapes:
    return {
        **linear(f"{prefix}.q_a_proj", Q_RANK, HIDDEN),
        f"{prefix}.q_a_layernorm.weight": (Q_RANK,),
        **linear(f"{prefix}.q_b_proj", HEADS * (NOPE + ROTARY), Q_RANK),
        **linear(f"{prefix}.kv_a_proj_with_mqa", RANK + ROTARY, HIDDEN),
        f"{prefix}.kv_a_layernorm.weight": (RANK,),
        **linear(f"{prefix}.kv_b_proj", HEADS * (NOPE + VALUE), RANK),
        **linear(f"{prefix}.g_proj", HEADS * VALUE, HIDDEN),
        **linear(f"{prefix}.o_proj", HIDDEN, HEADS * VALUE),
    }


def _linear_attention(prefix: str) -> Shapes:
    low_rank = {f"{prefix}.g_a_proj.weight", f"{prefix}.g_b_proj.weight"}
    shapes = {name: shape for name, shape in kda(prefix, KDA).items() if name not in low_rank}
    return shapes | linear(f"{prefix}.g_proj", HEADS * KDA, HIDDEN) | {f"{prefix}.A_log": (HEADS + 2,)}


def _experts(prefix: str) -> Shapes:
    routed = {
        name: tuple(LATENT if n == HIDDEN else n for n in shape)
        for name, shape in experts(f"{prefix}.experts", N_EXPERTS, ("w1", "w3", "w2"), WIDTH).items()
    }
    return {
        **linear(f"{prefix}.gate", N_EXPERTS, HIDDEN),
        f"{prefix}.gate.e_score_correction_bias": (N_EXPERTS,),
        **linear(f"{prefix}.routed_expert_down_proj", LATENT, HIDDEN),
        f"{prefix}.routed_expert_norm.weight": (LATENT,),
        **linear(f"{prefix}.routed_expert_up_proj", HIDDEN, LATENT),
        **routed,
        **gated(f"{prefix}.shared_experts", 2 * WIDTH),
    }


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same products, of norms that are powers of two."""
    for name in [n for n in tensors if n.endswith("_res_norm.weight")]:
        proj = name.replace("_norm", "_proj")
        norm = torch.exp2(torch.round(tensors[name]))
        tensors |= {name: norm, proj: tensors[proj] / norm}
    return {f"language_model.{name}": tensor for name, tensor in tensors.items()}


def kimi_k3(kinds: str = "KKMKM", dense: int = 1, **options: Any) -> Case:
    """K is a layer with linear attention, M one with latent attention."""
    shapes = ends() | norms("model.output_attn_res_norm") | linear("model.output_attn_res_proj", 1, HIDDEN)
    for i, kind in enumerate(kinds):
        layer = f"model.layers.{i}"
        shapes |= norms(f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm")
        for part in ("self_attention", "mlp"):
            shapes |= norms(f"{layer}.{part}_res_norm") | linear(f"{layer}.{part}_res_proj", 1, HIDDEN)
        shapes |= (_linear_attention if kind == "K" else _latent_attention)(f"{layer}.self_attn")
        shapes |= gated(f"{layer}.mlp") if i < dense else _experts(f"{layer}.block_sparse_moe")
    given = {
        "num_hidden_layers": len(kinds),
        "num_key_value_heads": HEADS,
        "hidden_act": "situ",
        "activation_situ_beta": 4.0,
        "activation_situ_linear_beta": 25.0,
        "attn_res_block_size": 2,
        "q_lora_rank": Q_RANK,
        "kv_lora_rank": RANK,
        "qk_nope_head_dim": NOPE,
        "qk_rope_head_dim": ROTARY,
        "v_head_dim": VALUE,
        "mla_use_nope": True,
        "mla_use_output_gate": True,
        "linear_attn_config": {
            "full_attn_layers": [i for i, kind in enumerate(kinds, 1) if kind == "M"],
            "kda_layers": [i for i, kind in enumerate(kinds, 1) if kind == "K"],
            "head_dim": KDA,
            "num_heads": HEADS,
            "short_conv_kernel_size": 4,
            "use_full_rank_gate": True,
            "gate_lower_bound": -5.0,
        },
        "num_experts": N_EXPERTS,
        "num_experts_per_token": 2,
        "num_shared_experts": 2,
        "moe_intermediate_size": WIDTH,
        "routed_expert_hidden_size": LATENT,
        "latent_moe_use_norm": True,
        "moe_renormalize": True,
        "moe_router_activation_func": "sigmoid",
        "moe_layer_freq": 1,
        "first_k_dense_replace": dense,
        "num_expert_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "use_grouped_topk": True,
        "routed_scaling_factor": 1.0,
        **options,
    }
    case = by_hand("KimiLinearForCausalLM", "kimi_linear", shapes, **given)
    whole = {**case.options, "architectures": ["KimiK3ForConditionalGeneration"], "rope_theta": 10000.0}
    return replace(case, hparams=whole, keeps=KEEPS, spelled=_apart)


CASES: dict[str, Case] = {
    "kimi-k3": kimi_k3(),
    "kimi-k3_scaled": kimi_k3("MKKM", 2, routed_scaling_factor=2.5, moe_renormalize=False, rms_norm_eps=1e-6),
    "kimi-k3_fused_qkv": replace(kimi_k3("KMKM"), flags=("gpt2_vocab", "fuse_qkv")),
}
