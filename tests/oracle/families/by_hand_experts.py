"""Models with experts in all layers whose class is not in transformers: checkpoints by hand, as in remote_code.py."""

from dataclasses import replace
from typing import Any

from tests.oracle.case import Case, with_bf16
from tests.oracle.families.by_hand_moe import N_EXPERTS, WIDTH, as_published, with_heads
from tests.oracle.families.remote_code import (
    HEADS,
    HIDDEN,
    KV_HEADS,
    Shapes,
    by_hand,
    ends,
    experts,
    gated,
    linear,
    norms,
)

QWEN_NAMES = ("gate_proj", "up_proj", "down_proj")


def sparse(
    n_layers: int,
    mlp: str = "mlp",
    router: str = "gate",
    names: tuple[str, str, str] = QWEN_NAMES,
    *,
    heads: int = HEADS,
    kv_heads: int = KV_HEADS,
    head_dim: int = 32,
    normed: bool = True,
    tied: bool = False,
) -> Shapes:
    """Attention as in Qwen 3, and experts as in Qwen 3 with other names for the parts."""
    shapes = ends(tied)
    for i in range(n_layers):
        layer = f"model.layers.{i}"
        heads_norms = ("q_norm", "k_norm") if normed else ()
        shapes |= with_heads(f"{layer}.self_attn", heads, kv_heads, head_dim, *heads_norms)
        shapes |= norms(f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm")
        shapes |= linear(f"{layer}.{mlp}.{router}", N_EXPERTS, HIDDEN)
        shapes |= experts(f"{layer}.{mlp}.experts", N_EXPERTS, names, WIDTH)
    return shapes


def qwen_like(architecture: str, model_type: str, n_layers: int, shapes: Shapes, **options: Any) -> Case:
    given = {
        "num_hidden_layers": n_layers,
        "intermediate_size": 128,
        "moe_intermediate_size": WIDTH,
        "num_experts": N_EXPERTS,
        "num_experts_per_tok": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "norm_topk_prob": True,
        "rope_theta": 1e6,
        "rms_norm_eps": 1e-6,
    }
    return as_published(by_hand(architecture, model_type, shapes, **{**given, **options}))


def rnd1(n_layers: int = 2, tied: bool = False, **options: Any) -> Case:
    more = {"is_causal": False, "use_cache": False, "mask_token_id": 3, "attention_bias": False}
    more |= {"decoder_sparse_step": 1, "mlp_only_layers": [], "use_sliding_window": False}
    shapes = sparse(n_layers, tied=tied)
    return qwen_like("RND1", "rnd1", n_layers, shapes, **more, tie_word_embeddings=tied, **options)


def grovemoe(n_layers: int = 2, head_dim: int = 32) -> Case:
    """Half as many small experts as there are experts, each as wide as a head."""
    shapes = sparse(n_layers, head_dim=head_dim)
    for i in range(n_layers):
        shapes |= experts(f"model.layers.{i}.mlp.chunk_experts", N_EXPERTS // 2, QWEN_NAMES, head_dim)
    return qwen_like("GroveMoeForCausalLM", "grove_moe", n_layers, shapes, head_dim=head_dim, rope_theta=1e7)


def llada_moe(n_layers: int = 2, kv_heads: int = HEADS) -> Case:
    shapes = sparse(n_layers, kv_heads=kv_heads, head_dim=16)
    given = {
        "num_hidden_layers": n_layers,
        "num_key_value_heads": kv_heads,
        "intermediate_size": None,
        "dense_intermediate_size": 128,
        "expert_intermediate_size": WIDTH,
        "shared_expert_intermediate_size": 0,
        "num_experts": N_EXPERTS,
        "num_experts_per_tok": 2,
        "hidden_act": "silu",
        "qk_layernorm": True,
        "moe_layer_freq": [1] * n_layers,
        "moe_router_score_function": "softmax",
        "moe_router_enable_expert_bias": False,
        "norm_topk_prob": False,
        "routed_scaling_factor": 1,
        "rope_theta": 50000,
        "partial_rotary_factor": 1,
    }
    return as_published(by_hand("LLaDAMoEModelLM", "llada_moe", shapes, "no_mask_token", **given))


def maple(kinds: list[str], **options: Any) -> Case:
    shapes = sparse(len(kinds))
    shapes = {name.replace("embed_tokens", "word_embeddings"): shape for name, shape in shapes.items()}
    more = {"use_bias": False, "use_qk_norm": True, "num_shared_experts": 0, "nope_on_global_attention": True}
    more |= {"layer_types": kinds, "sliding_window": 64, "partial_rotary_factor": 0.5, "rope_theta": 10000.0}
    return qwen_like("MapleForCausalLM", "maple", len(kinds), shapes, **{**more, **options})


def smallthinker(n_layers: int, windowed: bool, softmax: bool, tied: bool = False) -> Case:
    """Layers without a rotary embedding, the first of each four, are those that see everything."""
    shapes = sparse(n_layers, "block_sparse_moe", "primary_router", ("gate", "up", "down"), normed=False, tied=tied)
    layout = [int(i % 4 != 0) for i in range(n_layers)]
    given = {
        "num_hidden_layers": n_layers,
        "intermediate_size": None,
        "head_dim": 32,
        "moe_num_primary_experts": N_EXPERTS,
        "moe_num_active_primary_experts": 2,
        "moe_ffn_hidden_size": WIDTH,
        "moe_primary_router_apply_softmax": softmax,
        "moe_layer_layout": [1] * n_layers,
        "moe_enable_early_router": True,
        "moe_enable_secondary_experts": False,
        "use_qk_norm": False,
        "rope_theta": 1.5e6,
        "rope_layout": layout if windowed else [1] * n_layers,
        "sliding_window_layout": layout if windowed else [0] * n_layers,
        "tie_word_embeddings": tied,
    }
    given |= {"sliding_window_size": 4096} if windowed else {}
    return as_published(by_hand("SmallThinkerForCausalLM", "smallthinker", shapes, **given))


def grok(n_layers: int = 2, kv_heads: int = KV_HEADS, *, scaled: bool = False) -> Case:
    """Grok 2: a dense block beside the experts."""
    shapes = ends()
    for i in range(n_layers):
        layer = f"model.layers.{i}"
        shapes |= with_heads(f"{layer}.self_attn", HEADS, kv_heads, 32) | gated(f"{layer}.mlp")
        shapes |= norms(*(f"{layer}.{when}_{what}_norm" for when in ("pre", "post") for what in ("attn", "moe")))
        shapes |= linear(f"{layer}.block_sparse_moe.gate", N_EXPERTS, HIDDEN)
        shapes |= experts(f"{layer}.block_sparse_moe.experts", N_EXPERTS, ("w1", "w3", "w2"), WIDTH)
    yarn = {
        "rope_type": "original",
        "scaling_factor": 16.0,
        "original_max_position_embeddings": 8,
        "extrapolation_factor": 1.0,
        "attn_factor": 1.0,
        "beta_fast": 8,
        "beta_slow": 1,
    }
    given = {
        "num_hidden_layers": n_layers,
        "num_key_value_heads": kv_heads,
        "head_dim": 32,
        "moe_intermediate_size": WIDTH,
        "num_local_experts": N_EXPERTS,
        "num_experts_per_tok": 2,
        "residual_moe": True,
        "hidden_act": "gelu",
        "embedding_multiplier_scale": 8.0,
        "output_multiplier_scale": 0.5,
        "attn_logit_softcapping": 30.0,
        "router_logit_softcapping": 30.0,
        "final_logit_softcapping": 50.0,
        "attn_temperature_len": 64,
        "sliding_window_size": -1,
        "global_attn_every_n": 1,
        "rope_theta": 2e8,
        **(yarn if scaled else {}),
    }
    case = by_hand("Grok1ForCausalLM", "git", shapes, **given)
    return replace(as_published(case), flags=(), tokenizer="spm")


def deepseek_ocr(n_layers: int = 3, *, normed: bool = False) -> Case:
    """The text part of DeepSeek OCR, without latent attention; transformers knows it within the whole only."""
    shapes = ends()
    for i in range(n_layers):
        layer = f"model.layers.{i}"
        shapes |= with_heads(f"{layer}.self_attn", HEADS, HEADS, 16)
        shapes |= norms(f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm")
        if i < 1:
            shapes |= gated(f"{layer}.mlp")
            continue
        shapes |= linear(f"{layer}.mlp.gate", N_EXPERTS, HIDDEN)
        shapes |= experts(f"{layer}.mlp.experts", N_EXPERTS, QWEN_NAMES, WIDTH)
        shapes |= gated(f"{layer}.mlp.shared_experts", 2 * WIDTH)
    given = {
        "num_hidden_layers": n_layers,
        "num_key_value_heads": HEADS,
        "moe_intermediate_size": WIDTH,
        "n_routed_experts": N_EXPERTS,
        "n_shared_experts": 2,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "norm_topk_prob": normed,
        "scoring_func": "softmax",
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    }
    case = by_hand("DeepseekForCausalLM", "deepseek", shapes, **given)
    latent = {"qk_rope_head_dim": 0, "qk_nope_head_dim": 0, "v_head_dim": 0, "kv_lora_rank": None, "head_dim": None}
    groups = {"n_group": 1, "topk_group": 1, "topk_method": "greedy"}
    return replace(case, hparams={**case.options, **latent, **groups, "architectures": ["DeepseekOCRForCausalLM"]})


MAPLE = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
_PLAIN: dict[str, Case] = {
    "deepseek2-ocr": deepseek_ocr(),
    "deepseek2-ocr_normed": deepseek_ocr(2, normed=True),
    "grok": grok(scaled=True),
    "grok_unscaled": grok(3, 1),
    "grovemoe": grovemoe(),
    "grovemoe_wide": grovemoe(3, 64),
    "llada-moe": llada_moe(),
    "llada-moe_gqa": llada_moe(3, 2),
    "maple": maple(MAPLE),
    "maple_whole": maple(MAPLE[2:4], partial_rotary_factor=1.0),
    "rnd1": rnd1(),
    "rnd1_tied": rnd1(3, tied=True),
    "smallthinker": smallthinker(5, windowed=True, softmax=False),
    "smallthinker_4b": smallthinker(2, windowed=False, softmax=True, tied=True),
}
CASES = with_bf16(_PLAIN, "deepseek2-ocr", "grovemoe", "smallthinker")
