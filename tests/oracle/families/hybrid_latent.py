"""Ling 3 and GLM 5.3 Flash, which mix linear and latent attention."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from tests.oracle import mtp
from tests.oracle.case import Case, with_bf16
from tests.oracle.families.granite_ssm_falcon import A_LOG
from tests.oracle.families.remote_code import HEADS, HIDDEN, Shapes, by_hand, ends, experts, gated, linear, norms

LING3: Mapping[str, Any] = {
    "num_hidden_layers": 6,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "layer_group_size": 3,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 24,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "moe_intermediate_size": 48,
    "moe_shared_expert_intermediate_size": 48,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 0,
    "norm_topk_prob": True,
    "rms_norm_eps": 1e-6,
    "routed_scaling_factor": 2.5,
    "short_conv_kernel_size": 4,
    "kda_safe_gate": True,
    "kda_lower_bound": -5.0,
    "score_function": "sigmoid",
    "no_kda_lora": True,
    "gated_attention_proj_granularity_type": "head_wise",
    "use_bias": False,
}


def ling3(**options: Any) -> Case:
    given = {**LING3, **options}
    return Case(
        "BailingHybridConfig",
        given,
        hparams={**given, "architectures": ["BailingMoeV3ForCausalLM"]},
        differs={"architectures": (["BailingMoeV3ForCausalLM"], "the published name, which vLLM knows")},
        keeps=A_LOG,
        remade=ling3_outputs,
        tolerance=1e-4,
    )


def ling3_outputs(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Linear attention has its output under a name of its own, as llama.cpp and vLLM know; transformers reads both."""
    linear = {name.removesuffix("q_conv1d.weight") for name in tensors if name.endswith(".q_conv1d.weight")}
    names = {name: f"{name[: -len('dense.weight')]}o_proj.weight" for name in tensors if name.endswith(".dense.weight")}
    return {
        names[name] if name in names and name.removesuffix("dense.weight") in linear else name: tensor
        for name, tensor in tensors.items()
    }


def ling3_appended(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Ling's own name for the norm of the layer that predicts a further token."""
    return {name.replace("shared_head.norm", "final_layernorm"): x for name, x in mtp.appended(tensors).items()}


def glm5_next(kinds: str = "LLLFLLF", own: str = "1111111", dense: int = 1) -> Case:
    """L is a layer with linear attention, F one with latent attention, 1 such a one with an indexer of its own.

    transformers has its text model without the head, vLLM all of it.
    """
    shapes = ends()
    for i, (kind, has_indexer) in enumerate(zip(kinds, own, strict=True)):
        layer = f"model.layers.{i}"
        shapes |= norms(f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm")
        for part in ("attn", "ffn"):
            shapes |= {f"{layer}.hc_{part}_base": (24,), f"{layer}.hc_{part}_scale": (3,)}
            shapes |= {f"{layer}.hc_{part}_fn": (24, 4 * HIDDEN)}
        shapes |= kda(f"{layer}.self_attn", 32) if kind == "L" else glm5_mla(f"{layer}.self_attn", has_indexer == "1")
        if i < dense:
            shapes |= gated(f"{layer}.mlp")
            continue
        shapes |= linear(f"{layer}.mlp.gate", 4, HIDDEN) | {f"{layer}.mlp.gate.e_score_correction_bias": (4,)}
        shapes |= experts(f"{layer}.mlp.experts", 4, ("gate_proj", "up_proj", "down_proj"), 48)
        shapes |= gated(f"{layer}.mlp.shared_experts", 48)
    given = {
        "num_hidden_layers": len(kinds),
        "num_key_value_heads": HEADS,
        "moe_intermediate_size": 48,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": dense,
        "mlp_layer_types": ["dense"] * dense + ["sparse"] * (len(kinds) - dense),
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "n_group": 1,
        "topk_group": 1,
        "kv_lora_rank": 32,
        "q_lora_rank": 48,
        "qk_nope_head_dim": 24,
        "qk_rope_head_dim": 0,
        "v_head_dim": 16,
        "mla_use_nope": True,
        "index_head_dim": 32,
        "index_n_heads": 2,
        "index_topk": 32,
        "index_kpool": 8,
        "index_kpool_always_select_tail": True,
        "indexer_types": ["full" if x == "1" else "shared" for x in own],
        "layer_types": ["linear_attention" if x == "L" else "full_attention" for x in kinds],
        "linear_attn_config": {"head_dim": 32, "num_heads": 4, "short_conv_kernel_size": 4, "gate_lower_bound": -5.0},
        "hidden_act": "silu",
        "swiglu_limit": 10.0,
        "mhc": True,
        "hc_mult": 4,
        "hc_eps": 1e-6,
        "hc_sinkhorn_iters": 20,
    }
    case = by_hand("Glm5NextForCausalLM", "glm5_next_text", shapes, **given)
    published = {**case.options, "architectures": ["Glm5NextForConditionalGeneration"], "rope_theta": 10000.0}
    return replace(case, hparams=published, keeps=A_LOG)


def kda(prefix: str, width: int) -> Shapes:
    inner = HEADS * width
    shapes = {f"{prefix}.A_log": (HEADS,), f"{prefix}.dt_bias": (inner,), f"{prefix}.o_norm.weight": (width,)}
    shapes |= linear(f"{prefix}.b_proj", HEADS, HIDDEN) | linear(f"{prefix}.o_proj", HIDDEN, inner)
    for x in "qkv":
        shapes |= linear(f"{prefix}.{x}_proj", inner, HIDDEN) | {f"{prefix}.{x}_conv1d.weight": (inner, 1, 4)}
    for x in "fg":
        shapes |= linear(f"{prefix}.{x}_a_proj", width, HIDDEN) | linear(f"{prefix}.{x}_b_proj", inner, width)
    return shapes


def glm5_mla(prefix: str, has_indexer: bool) -> Shapes:
    shapes = linear(f"{prefix}.q_a_proj", 48, HIDDEN) | linear(f"{prefix}.q_b_proj", HEADS * 24, 48)
    shapes |= linear(f"{prefix}.kv_a_proj_with_mqa", 32, HIDDEN) | linear(f"{prefix}.kv_b_proj", HEADS * (24 + 16), 32)
    shapes |= linear(f"{prefix}.o_proj", HIDDEN, HEADS * 16)
    shapes |= {f"{prefix}.q_a_layernorm.weight": (48,), f"{prefix}.kv_a_layernorm.weight": (32,)}
    if has_indexer:
        own = f"{prefix}.indexer"
        shapes |= linear(f"{own}.wq_b", 2 * 32, 48) | linear(f"{own}.wk", 32, HIDDEN)
        shapes |= linear(f"{own}.weights_proj", 2, HIDDEN) | {f"{own}.k_norm.{x}": (32,) for x in ("weight", "bias")}
        shapes |= {f"{own}.index_kpool_compress_ape": (8, 32), f"{own}.index_kpool_compress_gate": (32, HIDDEN)}
    return shapes


_PLAIN: dict[str, Case] = {
    "bailingmoe3_mtp": replace(
        ling3(), hparams={**ling3().hparams, "num_nextn_predict_layers": 1}, spelled=ling3_appended
    ),
    "glm5-next": glm5_next(),
    "glm5-next_mtp": replace(
        glm5_next(), hparams={**glm5_next().hparams, "num_nextn_predict_layers": 1}, spelled=mtp.appended
    ),
    "glm5-next_shared": glm5_next("FFLF", "1011", 2),
    "bailingmoe3": ling3(),
    "bailingmoe3_q_lora": ling3(num_hidden_layers=4, layer_group_size=2, q_lora_rank=24, first_k_dense_replace=2),
}
CASES = with_bf16(_PLAIN, "bailingmoe3")
