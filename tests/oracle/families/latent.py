"""Mistral 4 and other models whose keys and values share a latent, beside the DeepSeek and GLM families."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from tests.oracle.case import BASE, TIED, Case, respelled, with_bf16, yarn

MISTRAL4: Mapping[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 24,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "n_shared_experts": 2,
    "first_k_dense_replace": 0,
}


def mistral4(**options: Any) -> Case:
    """The text part of the published checkpoint, which the converter knows by the class of the whole."""
    given = {**MISTRAL4, **options}
    rotary = given["qk_rope_head_dim"]
    more = {"llama_4_scaling_beta": 0.1, "partial_rotary_factor": rotary / (rotary + given["qk_nope_head_dim"])}
    return Case(
        "Mistral4Config",
        given | yarn(4.0, 64, 10000.0, beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0, **more),
        hparams={"architectures": ["Mistral3ForConditionalGeneration"]},
        auto="AutoModelForImageTextToText",
    )


DOTS3: Mapping[str, Any] = {
    "hidden_size": 5120,
    "intermediate_size": 32,
    "num_key_value_heads": 4,
    "num_hidden_layers": 3,
    "head_dim": 48,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 24,
    "swa_num_attention_heads": 2,
    "swa_num_key_value_heads": 2,
    "swa_q_lora_rank": 24,
    "swa_kv_lora_rank": 40,
    "swa_head_dim": 40,
    "swa_qk_nope_head_dim": 24,
    "swa_qk_rope_head_dim": 16,
    "swa_v_head_dim": 32,
    "rope_theta": 1e6,
    "swa_rope_theta": 5e4,
    "sliding_window_size": 64,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_shared_experts": 1,
    "moe_shared_expert_intermediate_size": 16,
    "routed_scaling_factor": 2.5,
    "index_topk": 64,
    "index_head_dim": 64,
    "index_n_heads": 2,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
}
"""As wide as the published model: transformers makes up image and audio parts, and insists that they fit."""


DOTS3_PUBLISHED: Mapping[str, Any] = {
    "apply_mla_qkv_lora_rescale": True,
    "attention_bias": False,
    "attention_gate_type": "headwise",
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "moe_layer_freq": 1,
    "n_group": 1,
    "norm_topk_prob": True,
    "num_nextn_predict_layers": 0,
    "rms_norm_eps": 1e-5,
    "scoring_func": "sigmoid",
    "swa_attention_gate_type": "headwise",
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "use_dsa": True,
}


def dots3(**options: Any) -> Case:
    """In the words of the published configuration, of which transformers makes its own."""
    given = {**DOTS3, **options}
    wide, local = DOTS3["hidden_size"], given["swa_kv_lora_rank"]
    published = {**given, "architectures": ["Dots3NoteForCausalLM"], "model_type": "dots3_note", **DOTS3_PUBLISHED}
    return Case(
        "Dots3NoteTextConfig",
        given,
        published={**BASE, **published},
        hparams={**published, "rope_parameters": None, "text_config": None},
        flags=("gpt2_vocab",),
        keeps={
            "*.q_a_layernorm.weight": rescaled(wide / given["q_lora_rank"]),
            "*.1.*.kv_a_layernorm.weight": rescaled(wide / local),
            "*.kv_a_layernorm.weight": rescaled(wide / given["kv_lora_rank"]),
        },
        tolerance=5e-3,
    )


def rescaled(square: float) -> Callable[[Tensor], Tensor]:
    """What is left of a norm that was multiplied by the root and divided by it again."""
    return lambda weight: (weight * math.sqrt(square)) * math.sqrt(1 / square)


HY_V4: Mapping[str, Any] = {
    "num_hidden_layers": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 24,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "n_shared_experts": 2,
    "index_topk": 64,
    "index_head_dim": 64,
    "index_n_heads": 2,
    "indexer_types": ["full", "full", "shared", "full"],
    "num_nextn_predict_layers": 0,
}


def of_hy_v4(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The published names, which transformers reads; those that it writes it does not."""
    parts = {f".hc_pre.hc_{x}_layer.hc_": f".hc_{x}_layer.hc_pre.hc_" for x in ("attn", "mlp")}
    parts |= {f".{x}.linear_gate": f".{x}.gate_proj" for x in ("mlp", "shared_experts")}
    return respelled(tensors, {**parts, ".hc_pre.hc_head.": ".hc_head."})


def hy_v4(**options: Any) -> Case:
    return Case(
        "HYV4Config",
        {**HY_V4, **options},
        remade=of_hy_v4,
        tolerance=None,
        unrunnable="of the same checkpoint llama.cpp and vLLM rotate neighbouring pairs, transformers 5.24 two halves",
    )


_PLAIN: dict[str, Case] = {
    "mistral4": mistral4(),
    "mistral4_dense_first": mistral4(num_hidden_layers=3, first_k_dense_replace=1),
    "mistral4_groups": mistral4(
        n_routed_experts=8, n_group=4, topk_group=2, num_experts_per_tok=3, routed_scaling_factor=2.5, **TIED
    ),
    "mistral4_not_normed": mistral4(norm_topk_prob=False, num_attention_heads=2, num_key_value_heads=2),
    "dots3note": dots3(),
    "hy_v4": hy_v4(),
    "hy_v4_3_of_8": hy_v4(
        n_routed_experts=8,
        num_experts_per_tok=3,
        mlp_layer_types=["dense", "dense", "sparse", "sparse"],
        swiglu_limit=0.5,
        norm_topk_prob=False,
        hc_mult=3,
        hc_magnitude=1.5,
    ),
}
CASES = with_bf16(_PLAIN, "mistral4", "dots3note", "hy_v4")
