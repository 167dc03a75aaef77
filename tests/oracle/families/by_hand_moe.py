"""Mixtures of experts whose class is not in transformers: checkpoints made by hand, as in remote_code.py."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.oracle import mtp
from tests.oracle.case import Case, with_bf16
from tests.oracle.families.llama_gemma3_qwen import plus_one
from tests.oracle.families.remote_code import (
    HEADS,
    HIDDEN,
    KV_HEADS,
    LLAMA,
    Shapes,
    by_hand,
    ends,
    experts,
    gated,
    linear,
    norms,
)

N_EXPERTS, WIDTH = 4, 48


def with_heads(layer: str, heads: int, kv_heads: int, head_dim: int, *more: str) -> Shapes:
    """Projections of attention, and norms of one head."""
    shapes = linear(f"{layer}.q_proj", heads * head_dim, HIDDEN) | linear(f"{layer}.o_proj", HIDDEN, heads * head_dim)
    shapes |= {f"{layer}.{name}.weight": (kv_heads * head_dim, HIDDEN) for name in ("k_proj", "v_proj")}
    return shapes | {f"{layer}.{name}.weight": (head_dim,) for name in more}


STEP_KINDS = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]


def step(kinds: list[str], dense: int = 1, **options: Any) -> Case:
    """Full layers rotate half of each head; layers with a window have more heads and a rope base of their own."""
    shapes = ends()
    for i, kind in enumerate(kinds):
        layer = f"model.layers.{i}"
        heads = 6 if kind == "sliding_attention" else 4
        shapes |= with_heads(f"{layer}.self_attn", heads, KV_HEADS, 32, "q_norm", "k_norm")
        shapes |= linear(f"{layer}.self_attn.g_proj", heads, HIDDEN)
        shapes |= norms(f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm")
        if i < dense:
            shapes |= gated(f"{layer}.mlp")
            continue
        shapes |= linear(f"{layer}.moe.gate", N_EXPERTS, HIDDEN) | {f"{layer}.moe.router_bias": (N_EXPERTS,)}
        shapes |= {f"{layer}.moe.{x}_proj.weight": (N_EXPERTS, WIDTH, HIDDEN) for x in ("gate", "up")}
        shapes |= {f"{layer}.moe.down_proj.weight": (N_EXPERTS, HIDDEN, WIDTH)}
        shapes |= gated(f"{layer}.share_expert", 80)
    local = [kind == "sliding_attention" for kind in kinds]
    given = {
        "num_key_value_heads": None,
        "num_attention_groups": KV_HEADS,
        "num_hidden_layers": len(kinds),
        "head_dim": 32,
        "use_moe": True,
        "moe_layers_enum": ",".join(str(i) for i in range(dense, len(kinds))),
        "moe_num_experts": N_EXPERTS,
        "moe_top_k": 2,
        "moe_intermediate_size": WIDTH,
        "moe_every_n_layer": 1,
        "moe_layer_offset": 0,
        "moe_router_activation": "sigmoid",
        "moe_router_scaling_factor": 3.0,
        "share_expert_dim": 80,
        "norm_expert_weight": True,
        "need_fp32_gate": True,
        "use_moe_router_bias": True,
        "use_head_wise_attn_gate": True,
        "use_rope_layers": [],
        "yarn_only_types": ["full_attention"],
        "num_nextn_predict_layers": 0,
        "att_impl_type": "GQA",
        "sliding_window": 64,
        "layer_types": kinds,
        "partial_rotary_factors": [1.0 if x else 0.5 for x in local],
        "rope_theta": [1e4 if x else 5e6 for x in local],
        "attention_other_setting": {
            "attention_type": "sliding_attention",
            "num_attention_heads": 6,
            "num_attention_groups": KV_HEADS,
            "head_dim": 32,
        },
        "swiglu_limits": [0.0] * (len(kinds) - 1) + [7.0],
        "swiglu_limits_shared": [0.0] * (len(kinds) - 1) + [16.0],
    }
    case = by_hand("Step3p5ForCausalLM", "step3p5", shapes, **{**given, **options})
    return replace(as_published(case), keeps={"*norm.weight": plus_one})


def as_published(case: Case) -> Case:
    """The converter finds config.json as it is, and not what transformers makes of it."""
    return replace(case, hparams={"rope_parameters": None, **case.options})


LLAMA3: Mapping[str, Any] = {
    "rope_type": "llama3",
    "factor": 2.0,
    "original_max_position_embeddings": 64,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}


def minimax_01(n_layers: int = 8, **options: Any) -> Case:
    """Every eighth layer has attention, the others lightning attention. The converter looks into the index."""
    shapes, q = ends(), HEADS * 32
    for i in range(n_layers):
        layer = f"model.layers.{i}"
        if (i + 1) % 8:
            shapes |= linear(f"{layer}.self_attn.qkv_proj", 3 * q, HIDDEN) | {f"{layer}.self_attn.norm.weight": (q,)}
            shapes |= linear(f"{layer}.self_attn.output_gate", q, HIDDEN)
            shapes |= linear(f"{layer}.self_attn.out_proj", HIDDEN, q)
        else:
            shapes |= with_heads(f"{layer}.self_attn", HEADS, KV_HEADS, 32)
        shapes |= norms(f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm")
        shapes |= linear(f"{layer}.block_sparse_moe.gate", N_EXPERTS, HIDDEN)
        shapes |= experts(f"{layer}.block_sparse_moe.experts", N_EXPERTS, ("w1", "w3", "w2"), WIDTH)
    kinds = ("full_attention", "linear_attention", "mlp")
    given = {
        "num_hidden_layers": n_layers,
        "intermediate_size": WIDTH,
        "head_dim": 32,
        "rotary_dim": 16,
        "rope_theta": 1e7,
        "attn_type_list": [int((i + 1) % 8 == 0) for i in range(n_layers)],
        "num_local_experts": N_EXPERTS,
        "num_experts_per_tok": 2,
        "postnorm": True,
        "shared_intermediate_size": 0,
        **{f"layernorm_{kind}_alpha": 3.5 for kind in kinds},
        **{f"layernorm_{kind}_beta": 1.0 for kind in kinds},
    }
    case = by_hand("MiniMaxText01ForCausalLM", "minimax_text_01", shapes, **{**given, **options})
    index = {"weight_map": dict.fromkeys(shapes, "model.safetensors")}
    return replace(case, files={"model.safetensors.index.json": index})


def minimax_m3(n_layers: int = 3, dense: int = 1, shared: int = 1, **options: Any) -> Case:
    """The text part, whose class vLLM alone has under its published names; layers with experts have an indexer.

    tests/test_sparse_attention.py compares what transformers' text class and llama.cpp compute.
    """
    shapes = ends()
    for i in range(n_layers):
        layer = f"model.layers.{i}"
        shapes |= with_heads(f"{layer}.self_attn", HEADS, KV_HEADS, 32, "q_norm", "k_norm")
        shapes |= norms(f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm")
        if i < dense:
            shapes |= gated(f"{layer}.mlp")
            continue
        shapes |= linear(f"{layer}.self_attn.index_q_proj", 2 * 16, HIDDEN)
        shapes |= linear(f"{layer}.self_attn.index_k_proj", 16, HIDDEN)
        shapes |= {f"{layer}.self_attn.index_{x}_norm.weight": (16,) for x in "qk"}
        moe = f"{layer}.block_sparse_moe"
        shapes |= linear(f"{moe}.gate", N_EXPERTS, HIDDEN) | {f"{moe}.e_score_correction_bias": (N_EXPERTS,)}
        shapes |= experts(f"{moe}.experts", N_EXPERTS, ("w1", "w3", "w2"), WIDTH)
        shapes |= gated(f"{moe}.shared_experts", WIDTH * shared)
    sparse = [int(i >= dense) for i in range(n_layers)]
    text = {
        **LLAMA,
        "architectures": ["MiniMaxM3SparseForCausalLM"],
        "model_type": "minimax_m3_vl_text",
        "attention_output_gate": False,
        "num_mtp_modules": 0,
        "num_hidden_layers": n_layers,
        "intermediate_size": WIDTH,
        "dense_intermediate_size": 128,
        "shared_intermediate_size": WIDTH,
        "n_shared_experts": shared,
        "num_local_experts": N_EXPERTS,
        "num_experts_per_tok": 2,
        "head_dim": 32,
        "rotary_dim": 16,
        "partial_rotary_factor": 0.5,
        "rope_theta": 5e6,
        "hidden_act": "swigluoai",
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
        "scoring_func": "sigmoid",
        "use_routing_bias": True,
        "use_gemma_norm": True,
        "use_qk_norm": True,
        "qk_norm_type": "per_head",
        "routed_scaling_factor": 2.0,
        "moe_layer_freq": sparse,
        "sparse_attention_config": {
            "use_sparse_attention": True,
            "sparse_num_index_heads": 2,
            "sparse_index_dim": 16,
            "sparse_topk_blocks": 4,
            "sparse_block_size": 8,
            "sparse_local_block": 1,
            "sparse_init_block": 0,
            "sparse_score_type": "max",
            "sparse_disable_index_value": sparse,
            "sparse_attention_freq": sparse,
        },
        **options,
    }
    more = {"text_config": text, "vocab_size": LLAMA["vocab_size"], "tie_word_embeddings": False}
    given = {"architectures": ["MiniMaxM3SparseForCausalLM"], "model_type": "minimax_m3_vl", **more}
    flags = ("gpt2_vocab",)
    unrunnable = "transformers reads these names only as part of the model with its vision tower"
    case = Case("", given, flags=flags, weights=shapes, tolerance=None, unrunnable=unrunnable)
    return replace(case, hparams={"text_config": text}, keeps={"*norm.weight": plus_one})


_PLAIN: dict[str, Case] = {
    "minimax-m3": minimax_m3(),
    "minimax-m3_shared": minimax_m3(4, 2, 2),
    "minimax-01": minimax_01(),
    "step35": step(STEP_KINDS),
    "step35_mtp": replace(
        step(STEP_KINDS), hparams={**step(STEP_KINDS).hparams, "num_nextn_predict_layers": 1}, spelled=mtp.appended
    ),
    "step35_llama3": step(STEP_KINDS[:3], 2, rope_theta=[1e4, 5e4, 5e4], rope_scaling=LLAMA3),
}
CASES = with_bf16(_PLAIN, "minimax-m3", "step35")
