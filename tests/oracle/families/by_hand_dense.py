"""Dense models whose class is not in transformers, as in remote_code.py, and BitNet, whose published names are not."""

from dataclasses import replace
from typing import Any

from torch import Tensor

from tests.oracle.case import TIED, Case, with_bf16
from tests.oracle.families.llama_gemma3_qwen import plus_one
from tests.oracle.families.remote_code import (
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    VOCAB,
    by_hand,
    gated,
    linear,
    llama,
    norms,
)


def as_published(case: Case) -> Case:
    """The converter finds config.json as it is, and not what transformers makes of it."""
    return replace(case, hparams={"rope_parameters": None, **case.options})


def muse_glimmer(n_layers: int = 5, heads: int = HEADS, kv_heads: int = KV_HEADS) -> Case:
    """The text part, under the names that it has in the whole."""
    prefix, q, kv = "model.language_model", heads * HEAD_DIM, kv_heads * HEAD_DIM
    shapes = {f"{prefix}.embed_tokens.weight": (VOCAB, HIDDEN), "lm_head.weight": (VOCAB, HIDDEN)}
    shapes |= norms(f"{prefix}.norm")
    for i in range(n_layers):
        layer = f"{prefix}.layers.{i}"
        shapes |= {f"{layer}.self_attn.{x}_proj.weight": (q, HIDDEN) for x in ("q", "gate")}
        shapes |= {f"{layer}.self_attn.{x}_proj.weight": (kv, HIDDEN) for x in ("k", "v")}
        shapes |= linear(f"{layer}.self_attn.o_proj", HIDDEN, q) | gated(f"{layer}.mlp")
        names = ("input", "post_attention", "pre_feedforward", "post_feedforward")
        shapes |= norms(*(f"{layer}.{name}_layernorm" for name in names))
    full = [(n_layers - 1 - i) % 4 == 0 for i in range(n_layers)]
    config = {
        "num_hidden_layers": n_layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": HEAD_DIM,
        "hidden_activation": "silu",
        "sliding_window": 64,
        "layer_types": ["full_attention" if x else "sliding_attention" for x in full],
        "no_rope_layers": [0 if x else 1 for x in full],
        "layer_rope_theta": [0 if x else 500000.0 for x in full],
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        "final_logit_softcapping": 20.0,
        "output_multiplier": 0.25,
        "qk_scale_factor": 3.5,
        "post_norm_eps": 1e-8,
        "normalize_tok_embeddings": True,
        "use_qk_norm": True,
        "use_attn_output_gate": True,
        "attention_bias": False,
    }
    case = by_hand("MuseGlimmerForCausalLM", "muse_glimmer_text", shapes, **config)
    published = {"architectures": ["MuseGlimmerForConditionalGeneration"]}
    return replace(case, hparams=published, keeps={"*layernorm.weight": plus_one})


def nanbeige(n_layers: int = 2, **options: Any) -> Case:
    given = {"num_hidden_layers": n_layers, "num_loops": 3, "skip_loop_final_norm": True, "rope_theta": 500000.0}
    shapes = llama(n_layers, tied=options.get("tie_word_embeddings", False))
    return by_hand("NanbeigeForCausalLM", "nanbeige", shapes, **{**given, **options})


def spark(kinds: list[str], *, tied: bool = False, shares: tuple[float, float] = (0.25, 1.0)) -> Case:
    """A rotary embedding for each kind of layer, and a gate for each head."""
    shapes = {"model.embedding.weight": (VOCAB, HIDDEN), **norms("model.norm")}
    shapes |= {} if tied else {"lm_head.weight": (VOCAB, HIDDEN)}
    for i in range(len(kinds)):
        layer = f"model.layers.{i}"
        shapes |= linear(f"{layer}.self_attn.q_k_v_proj", (HEADS + 2 * KV_HEADS) * 32, HIDDEN)
        shapes |= linear(f"{layer}.self_attn.g_proj", HEADS, HIDDEN)
        shapes |= linear(f"{layer}.self_attn.out_proj", HIDDEN, HEADS * 32) | gated(f"{layer}.mlp")
        shapes |= norms(f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm")
    ropes = {"full_attention": 5e6, "sliding_attention": 1e4}
    given = {
        "num_hidden_layers": len(kinds),
        "head_dim": 32,
        "hidden_act": "gelu",
        "attention_bias": False,
        "mlp_bias": False,
        "headwise_attn_output_gate": True,
        "gate_attn_act_mode": "sigmoid",
        "sliding_window": 64,
        "layer_types": kinds,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": share}
            for (kind, theta), share in zip(ropes.items(), shares, strict=True)
        },
        "tie_word_embeddings": tied,
    }
    case = by_hand("Spark2_5ForCausalLM", "spark2_5", shapes, **given)
    return replace(case, hparams=case.options)


def ternary(weight: Tensor) -> Tensor:
    """The converter makes three values of each matrix's: minus, nothing and plus its mean size."""
    size = weight.float().abs().mean().clamp(min=1e-5)
    return ((weight.float() * (1 / size)).round().clamp(-1, 1) / (1 / size)).to(weight.dtype)


def of_1bit_llm(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The names of bitnet_b1_58-3B, which are all that the converter knows."""
    names = {"self_attn.attn_sub_norm": "self_attn.inner_attn_ln", "mlp.ffn_sub_norm": "mlp.ffn_layernorm"}
    for ours, theirs in names.items():
        tensors = {name.replace(ours, theirs): tensor for name, tensor in tensors.items()}
    return tensors


def bitnet(**options: Any) -> Case:
    return Case(
        "BitNetConfig",
        {"hidden_act": "silu", **TIED, **options},
        flags=("gpt2_vocab",),
        spelled=of_1bit_llm,
        keeps={"*_proj.weight": ternary},
        tolerance=None,
        unrunnable="what the converter rounds makes other logits; those of what comes back differ by less than 1e-5",
    )


_PLAIN: dict[str, Case] = {
    "bitnet": bitnet(),
    "bitnet_mha": bitnet(num_hidden_layers=3, num_key_value_heads=4),
    "nanbeige": nanbeige(),
    "nanbeige_tied": nanbeige(3, num_loops=1, skip_loop_final_norm=False, tie_word_embeddings=True),
    "spark2_5": spark(["sliding_attention", "sliding_attention", "full_attention"]),
    "spark2_5_tied": spark(["full_attention", "sliding_attention"], tied=True, shares=(1.0, 0.5)),
    "muse-glimmer": muse_glimmer(),
    "muse-glimmer_mqa": muse_glimmer(4, 8, 1),
}
CASES = with_bf16(_PLAIN, "muse-glimmer", "nanbeige", "spark2_5")
