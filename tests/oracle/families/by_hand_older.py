"""Jais, NeoBERT, OpenELM and PLaMo 2, whose classes are code in their repositories: as in remote_code.py."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from tests.oracle.case import Case, with_bf16
from tests.oracle.families.by_hand_moe import as_published
from tests.oracle.families.granite_ssm_falcon import A_LOG
from tests.oracle.families.llama_gemma3_qwen import plus_one
from tests.oracle.families.plamo import plus_fifth, plus_less
from tests.oracle.families.remote_code import FFN, HEADS, HIDDEN, KV_HEADS, VOCAB, Shapes, by_hand, linear, norms

NO_LLAMA = dict.fromkeys(
    (
        *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
        *("max_position_embeddings", "rms_norm_eps", "tie_word_embeddings"),
    )
)


def scaled(by: float) -> Callable[[Tensor], Tensor]:
    def times(weight: Tensor) -> Tensor:
        return weight * by

    return times


def jais(n_layers: int = 2, embedding: float = 8.0, output: float = 0.5, inner: int = FFN) -> Case:
    """The converter multiplies the embedding and the head by the factors that the configuration has for them."""
    top = "transformer"
    shapes: Shapes = {f"{top}.wte.weight": (VOCAB, HIDDEN), "lm_head.weight": (VOCAB, HIDDEN)}
    shapes |= {f"{top}.ln_f.{x}": (HIDDEN,) for x in ("weight", "bias")}
    for i in range(n_layers):
        layer = f"{top}.h.{i}"
        shapes |= {f"{layer}.{norm}.{x}": (HIDDEN,) for norm in ("ln_1", "ln_2") for x in ("weight", "bias")}
        for name, rows, cols in (
            ("attn.c_attn", HIDDEN, 3 * HIDDEN),
            ("attn.c_proj", HIDDEN, HIDDEN),
            ("mlp.c_fc", HIDDEN, inner),
            ("mlp.c_fc2", HIDDEN, inner),
            ("mlp.c_proj", inner, HIDDEN),
        ):
            shapes |= {f"{layer}.{name}.weight": (rows, cols), f"{layer}.{name}.bias": (cols,)}
    given = {
        "n_embd": HIDDEN,
        "n_layer": n_layers,
        "n_head": HEADS,
        "n_inner": inner,
        "n_positions": 128,
        "layer_norm_epsilon": 1e-5,
        "activation_function": "swiglu",
        "position_embedding_type": "alibi",
        "scale_attn_weights": True,
        "mup_embeddings_scale": embedding,
        "mup_output_alpha": output,
        "mup_width_scale": 0.25,
        "mup_scale_qk_dot_by_d": True,
        "tie_word_embeddings": False,
    }
    case = by_hand("JAISLMHeadModel", "jais", shapes, **{**NO_LLAMA, **given})
    within = (1.0, "the GGUF has it within the weights")
    factors = ("mup_embeddings_scale", "mup_output_alpha", "mup_width_scale")
    return replace(
        case,
        keeps={"*wte.weight": scaled(embedding), "lm_head.weight": scaled(output * 0.25)},
        differs=dict.fromkeys(factors, within),
    )


def neobert(n_layers: int = 2, **options: Any) -> Case:
    shapes: Shapes = {"encoder.weight": (VOCAB, HIDDEN), **norms("layer_norm")}
    for i in range(n_layers):
        layer = f"transformer_encoder.{i}"
        shapes |= norms(f"{layer}.attention_norm", f"{layer}.ffn_norm") | linear(f"{layer}.wo", HIDDEN, HIDDEN)
        shapes |= linear(f"{layer}.qkv", 3 * HIDDEN, HIDDEN) | linear(f"{layer}.ffn.w12", 2 * 64, HIDDEN)
        shapes |= linear(f"{layer}.ffn.w3", HIDDEN, 64)
    given = {
        "hidden_size": HIDDEN,
        "intermediate_size": 96,
        "num_hidden_layers": n_layers,
        "num_attention_heads": HEADS,
        "norm_eps": 1e-5,
        "max_length": 128,
        "hidden_act": "SwiGLU",
        "rms_norm": True,
        "rope": True,
    }
    case = by_hand("NeoBERT", "neobert", shapes, **{**NO_LLAMA, **given, **options})
    return replace(case, flags=(), tokenizer="wpm")


def openelm(queries: tuple[int, ...] = (4, 6, 8), widths: tuple[int, ...] = (256, 512, 256)) -> Case:
    """Heads and widths grow from layer to layer, by factors that the configuration has."""
    shapes: Shapes = {"transformer.token_embeddings.weight": (VOCAB, HIDDEN), **norms("transformer.norm")}
    for i, (heads, width) in enumerate(zip(queries, widths, strict=True)):
        layer = f"transformer.layers.{i}"
        shapes |= norms(f"{layer}.attn_norm", f"{layer}.ffn_norm")
        shapes |= linear(f"{layer}.attn.qkv_proj", 2 * heads * 8, HIDDEN)
        shapes |= linear(f"{layer}.attn.out_proj", HIDDEN, heads * 8)
        shapes |= {f"{layer}.attn.{x}_norm.weight": (8,) for x in "qk"}
        shapes |= linear(f"{layer}.ffn.proj_1", 2 * width, HIDDEN) | linear(f"{layer}.ffn.proj_2", HIDDEN, width)
    given = {
        "model_dim": HIDDEN,
        "head_dim": 8,
        "num_transformer_layers": len(queries),
        "num_query_heads": list(queries),
        "num_kv_heads": [n // 2 for n in queries],
        "num_gqa_groups": 2,
        "qkv_multipliers": [0.5, 1.0],
        "ffn_multipliers": [width / HIDDEN for width in widths],
        "ffn_dim_divisor": 256,
        "ffn_with_glu": True,
        "activation_fn_name": "swish",
        "normalization_layer_name": "rms_norm",
        "normalize_qk_projections": True,
        "max_context_length": 128,
        "rope_freq_constant": 10000,
        "rope_max_length": 256,
        "share_input_output_layers": True,
    }
    case = by_hand("OpenELMForCausalLM", "openelm", shapes, **{**NO_LLAMA, **given})
    return replace(case, flags=(), tokenizer="spm")


def plamo2(n_layers: int = 4, step: int = 2, state: int = 16) -> Case:
    """Every `step`-th layer has attention, the others are Mamba."""
    shapes: Shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN), **norms("model.norm")}
    inner, rank = 8 * 16, 64
    for i in range(n_layers):
        layer = f"model.layers.layers.{i}"
        shapes |= norms(*(f"{layer}.{when}_{what}_norm" for when in ("pre", "post") for what in ("mixer", "mlp")))
        shapes |= linear(f"{layer}.mlp.gate_up_proj", 2 * FFN, HIDDEN) | linear(f"{layer}.mlp.down_proj", HIDDEN, FFN)
        if i % step == step // 2:
            shapes |= linear(f"{layer}.mixer.qkv_proj", (HEADS + 2 * KV_HEADS) * 16, HIDDEN)
            shapes |= linear(f"{layer}.mixer.o_proj", HIDDEN, HEADS * 16)
            shapes |= {f"{layer}.mixer.q_weight": (HEADS, 16), f"{layer}.mixer.k_weight": (KV_HEADS, 16)}
            continue
        shapes |= linear(f"{layer}.mixer.in_proj", 2 * inner, HIDDEN) | linear(f"{layer}.mixer.out_proj", HIDDEN, inner)
        shapes |= linear(f"{layer}.mixer.bcdt_proj", rank + 2 * state, inner)
        shapes |= linear(f"{layer}.mixer.dt_proj", 8, rank)
        shapes |= {f"{layer}.mixer.conv1d.weight": (inner, 1, 4)}
        shapes |= {f"{layer}.mixer.{x}": (8,) for x in ("A_log", "D", "dt_bias")}
        shapes |= {f"{layer}.mixer.{x}_norm_weight": (n,) for x, n in (("dt", rank), ("B", state), ("C", state))}
    given = {
        "num_hidden_layers": n_layers,
        "hidden_size_per_head": 16,
        "mamba_step": step,
        "mamba_enabled": True,
        "mamba_d_state": state,
        "mamba_d_conv": 4,
        "mamba_num_heads": 8,
        "mamba_chunk_size": 256,
        "attention_window_size": 2048,
        "full_attention_idx": [],
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000,
        "tie_word_embeddings": True,
    }
    case = as_published(by_hand("Plamo2ForCausalLM", "plamo2", shapes, **given))
    kept = {"*post_mixer_norm.weight": plus_fifth, "*post_mlp_norm.weight": plus_less, "*norm.weight": plus_one}
    return replace(case, keeps={**kept, **A_LOG})


_PLAIN: dict[str, Case] = {
    "jais": jais(),
    "jais_wide": jais(3, 14.6, 1.0, 176),
    "neo-bert": neobert(),
    "neo-bert_3_layers": neobert(3, num_attention_heads=2, norm_eps=1e-6),
    "openelm": openelm(),
    "openelm_2_layers": openelm((4, 8), (512, 256)),
    "plamo2": plamo2(),
    "plamo2_step_4": plamo2(7, 4, 32),
}
CASES = with_bf16(_PLAIN, "openelm")
