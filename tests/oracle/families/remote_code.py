"""Models whose class is not in transformers: checkpoints made by hand, with the official names of their tensors.

The configurations are those of published checkpoints, made small. Weights and configuration are compared, no logits.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from tests.oracle.case import Case

Shapes = dict[str, tuple[int, ...]]

HIDDEN, FFN, VOCAB = 64, 128, 512
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 16
LLAMA: Mapping[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": FFN,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


def linear(name: str, rows: int, cols: int, bias: bool = False) -> Shapes:
    return {f"{name}.weight": (rows, cols), **({f"{name}.bias": (rows,)} if bias else {})}


def attention(layer: str, kv_heads: int = KV_HEADS, bias: bool = False, out_bias: bool = False) -> Shapes:
    """Separate projections of heads that are 16 wide."""
    return {
        **linear(f"{layer}.self_attn.q_proj", HEADS * HEAD_DIM, HIDDEN, bias),
        **linear(f"{layer}.self_attn.k_proj", kv_heads * HEAD_DIM, HIDDEN, bias),
        **linear(f"{layer}.self_attn.v_proj", kv_heads * HEAD_DIM, HIDDEN, bias),
        **linear(f"{layer}.self_attn.o_proj", HIDDEN, HEADS * HEAD_DIM, out_bias),
    }


def gated(prefix: str, ffn: int = FFN) -> Shapes:
    up = dict.fromkeys((f"{prefix}.gate_proj.weight", f"{prefix}.up_proj.weight"), (ffn, HIDDEN))
    return {**up, f"{prefix}.down_proj.weight": (HIDDEN, ffn)}


def norms(*names: str) -> Shapes:
    return {f"{name}.weight": (HIDDEN,) for name in names}


def ends(tied: bool = False) -> Shapes:
    head = {} if tied else {"lm_head.weight": (VOCAB, HIDDEN)}
    return {"model.embed_tokens.weight": (VOCAB, HIDDEN), **norms("model.norm"), **head}


def layers(*parts: Shapes) -> Shapes:
    """The parts on top of each other: `layers(a, b)` has the names of both."""
    return {name: shape for part in parts for name, shape in part.items()}


def llama(
    n_layers: int = 2, *, kv_heads: int = KV_HEADS, tied: bool = False, bias: bool = False, out_bias: bool = False
) -> Shapes:
    shapes = ends(tied)
    for i in range(n_layers):
        layer = f"model.layers.{i}"
        shapes |= attention(layer, kv_heads, bias, out_bias) | gated(f"{layer}.mlp")
        shapes |= norms(f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm")
    return shapes


def by_hand(architecture: str, model_type: str, weights: Shapes, *flags: str, **options: Any) -> Case:
    config = {"architectures": [architecture], "model_type": model_type, **LLAMA, **options}
    given = {key: value for key, value in config.items() if value is not None or key not in LLAMA}
    return Case("", given, flags=("gpt2_vocab", *flags), weights=weights, tolerance=None, unrunnable="no class")


def nemotron_nas(*blocks: tuple[int, bool, int], tied: bool = False, **options: Any) -> Case:
    """A block is (key/value heads, whether attention is one matrix, width); 0 stands for a part that is missing."""
    shapes, configs = ends(tied), []
    for i, (kv_heads, one_matrix, width) in enumerate(blocks):
        layer = f"model.layers.{i}"
        if kv_heads:
            shapes |= attention(layer, kv_heads)
        if one_matrix:
            shapes |= linear(f"{layer}.self_attn.linear_attn", HIDDEN, HIDDEN)
        if kv_heads or one_matrix:
            shapes |= norms(f"{layer}.input_layernorm")
        if width:
            shapes |= gated(f"{layer}.mlp", width) | norms(f"{layer}.post_attention_layernorm")
        group = HEADS // kv_heads if kv_heads else None
        configs.append(
            {
                "attention": {
                    "n_heads_in_group": group,
                    "no_op": not kv_heads and not one_matrix,
                    "replace_with_linear": one_matrix,
                },
                "ffn": {
                    "ffn_mult": 1.5 * width / HIDDEN if width else None,
                    "no_op": not width,
                    "replace_with_linear": False,
                },
            }
        )
    given = {"num_key_value_heads": None, "intermediate_size": None, "num_hidden_layers": len(blocks)}
    given |= {"block_configs": configs, "rope_theta": 500000.0, "tie_word_embeddings": tied, **options}
    return by_hand("DeciLMForCausalLM", "nemotron-nas", shapes, **given)


def experts(prefix: str, n: int, names: tuple[str, str, str], ffn: int = 96) -> Shapes:
    """Gate, up and down projection of each expert, and the order of `names`."""
    gate, up, down = names
    shapes: Shapes = {}
    for e in range(n):
        shapes |= {f"{prefix}.{e}.{gate}.weight": (ffn, HIDDEN), f"{prefix}.{e}.{up}.weight": (ffn, HIDDEN)}
        shapes |= {f"{prefix}.{e}.{down}.weight": (HIDDEN, ffn)}
    return shapes


def gpt(layer: Callable[[str], Shapes], n_layers: int = 2, *, bias: bool = False, tied: bool = False) -> Shapes:
    """Models that number their layers `transformer.h.0`, ..."""
    shapes: Shapes = {"transformer.wte.weight": (VOCAB, HIDDEN), "transformer.ln_f.weight": (HIDDEN,)}
    shapes |= {"transformer.ln_f.bias": (HIDDEN,)} if bias else {}
    shapes |= {} if tied else {"lm_head.weight": (VOCAB, HIDDEN)}
    for i in range(n_layers):
        shapes |= layer(f"transformer.h.{i}")
    return shapes


def qwen(layer: str) -> Shapes:
    """In the configuration `intermediate_size` counts both halves of the MLP."""
    return {
        **norms(f"{layer}.ln_1", f"{layer}.ln_2"),
        **linear(f"{layer}.attn.c_attn", 3 * HIDDEN, HIDDEN, bias=True),
        **linear(f"{layer}.attn.c_proj", HIDDEN, HIDDEN),
        **linear(f"{layer}.mlp.w1", FFN // 2, HIDDEN),
        **linear(f"{layer}.mlp.w2", FFN // 2, HIDDEN),
        **linear(f"{layer}.mlp.c_proj", HIDDEN, FFN // 2),
    }


def refact(layer: str) -> Shapes:
    """The MLP is 2/3 of four times as wide as the rest, rounded up to a multiple of 256."""
    return {
        **norms(f"{layer}.ln_1", f"{layer}.ln_2"),
        **linear(f"{layer}.attn.q", HIDDEN, HIDDEN),
        **linear(f"{layer}.attn.kv", 2 * HEAD_DIM, HIDDEN),
        **linear(f"{layer}.attn.c_proj", HIDDEN, HIDDEN),
        **linear(f"{layer}.mlp.gate_up_proj", 2 * 256, HIDDEN),
        **linear(f"{layer}.mlp.c_proj", HIDDEN, 256),
    }


def codeshell(layer: str) -> Shapes:
    both = {f"{layer}.{norm}.bias": (HIDDEN,) for norm in ("ln_1", "ln_2")}
    return {
        **norms(f"{layer}.ln_1", f"{layer}.ln_2"),
        **both,
        **linear(f"{layer}.attn.c_attn", (HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN, bias=True),
        **linear(f"{layer}.attn.c_proj", HIDDEN, HIDDEN, bias=True),
        **linear(f"{layer}.mlp.c_fc", 4 * HIDDEN, HIDDEN, bias=True),
        **linear(f"{layer}.mlp.c_proj", HIDDEN, 4 * HIDDEN, bias=True),
    }


def normed(shapes: Shapes, n_layers: int = 2) -> Shapes:
    """With norms on the heads of queries and keys."""
    heads = (f"model.layers.{i}.self_attn.{name}.weight" for i in range(n_layers) for name in ("q_norm", "k_norm"))
    return shapes | dict.fromkeys(heads, (HEAD_DIM,))


def llada(n_layers: int = 2) -> Shapes:
    shapes = {f"model.transformer.{name}.weight": (VOCAB, HIDDEN) for name in ("wte", "ff_out")}
    shapes |= norms("model.transformer.ln_f")
    for i in range(n_layers):
        block = f"model.transformer.blocks.{i}"
        shapes |= norms(f"{block}.attn_norm", f"{block}.ff_norm")
        shapes |= linear(f"{block}.q_proj", HIDDEN, HIDDEN) | linear(f"{block}.attn_out", HIDDEN, HIDDEN)
        shapes |= {f"{block}.{name}.weight": (KV_HEADS * HEAD_DIM, HIDDEN) for name in ("k_proj", "v_proj")}
        shapes |= {f"{block}.{name}.weight": (FFN, HIDDEN) for name in ("ff_proj", "up_proj")}
        shapes |= linear(f"{block}.ff_out", HIDDEN, FFN)
    return shapes


def plm(n_layers: int = 2, rank: int = 32, nope: int = 24, rotary: int = 8, value: int = 16) -> Shapes:
    """Latent attention, and a tied head."""
    shapes = ends(tied=True)
    for i in range(n_layers):
        layer = f"model.layers.{i}"
        shapes |= norms(f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm")
        shapes |= linear(f"{layer}.self_attn.q_proj", HEADS * (nope + rotary), HIDDEN)
        shapes |= linear(f"{layer}.self_attn.kv_a_proj_with_mqa", rank + rotary, HIDDEN)
        shapes |= {f"{layer}.self_attn.kv_a_layernorm.weight": (rank,)}
        shapes |= linear(f"{layer}.self_attn.kv_b_proj", HEADS * (nope + value), rank)
        shapes |= linear(f"{layer}.self_attn.o_proj", HIDDEN, HEADS * value)
        shapes |= linear(f"{layer}.mlp.up_proj", FFN, HIDDEN) | linear(f"{layer}.mlp.down_proj", HIDDEN, FFN)
    return shapes


def layer_norm(name: str) -> Shapes:
    return {f"{name}.weight": (HIDDEN,), f"{name}.bias": (HIDDEN,)}


def nomic_moe(n_layers: int = 3, n_experts: int = 4) -> Shapes:
    """Experts in the second, fourth, ... layer."""
    shapes = linear("embeddings.word_embeddings", VOCAB, HIDDEN) | layer_norm("emb_ln")
    shapes |= linear("embeddings.token_type_embeddings", 1, HIDDEN)
    for i in range(n_layers):
        layer = f"encoder.layers.{i}"
        shapes |= linear(f"{layer}.attn.Wqkv", 3 * HIDDEN, HIDDEN, bias=True)
        shapes |= linear(f"{layer}.attn.out_proj", HIDDEN, HIDDEN, bias=True)
        shapes |= layer_norm(f"{layer}.norm1") | layer_norm(f"{layer}.norm2")
        if i % 2:
            shapes |= linear(f"{layer}.mlp.router.layer", n_experts, HIDDEN)
            shapes |= {f"{layer}.mlp.experts.mlp.{w}": (n_experts * FFN, HIDDEN) for w in ("w1", "w2")}
            shapes |= {f"{layer}.mlp.experts.bias": (HIDDEN,)}
        else:
            shapes |= linear(f"{layer}.mlp.fc1", FFN, HIDDEN, bias=True)
            shapes |= linear(f"{layer}.mlp.fc2", HIDDEN, FFN, bias=True)
    return shapes


def jina(n_layers: int = 2) -> Shapes:
    shapes = linear("embeddings.word_embeddings", VOCAB, HIDDEN) | layer_norm("embeddings.LayerNorm")
    shapes |= linear("embeddings.token_type_embeddings", 2, HIDDEN)
    for i in range(n_layers):
        layer = f"encoder.layer.{i}"
        for name in ("query", "key", "value"):
            shapes |= linear(f"{layer}.attention.self.{name}", HIDDEN, HIDDEN, bias=True)
        shapes |= linear(f"{layer}.attention.output.dense", HIDDEN, HIDDEN, bias=True)
        shapes |= layer_norm(f"{layer}.attention.output.LayerNorm") | layer_norm(f"{layer}.mlp.layernorm")
        shapes |= linear(f"{layer}.mlp.gated_layers", 2 * FFN, HIDDEN) | linear(
            f"{layer}.mlp.wo", HIDDEN, FFN, bias=True
        )
    return shapes


def arctic(n_layers: int = 2, n_experts: int = 4) -> Shapes:
    """Beside the experts of each layer a dense MLP, which has a norm of its own and is as wide as the model."""
    shapes = ends()
    for i in range(n_layers):
        layer = f"model.layers.{i}"
        shapes |= attention(layer)
        shapes |= norms(*(f"{layer}.{n}_layernorm" for n in ("input", "post_attention", "residual")))
        shapes |= linear(f"{layer}.block_sparse_moe.gate", n_experts, HIDDEN)
        shapes |= experts(f"{layer}.block_sparse_moe.experts", n_experts, ("w1", "w3", "w2"), FFN)
        shapes |= {f"{layer}.residual_mlp.{w}.weight": (HIDDEN, HIDDEN) for w in ("w1", "w2", "w3")}
    return shapes


GPT: Mapping[str, Any] = {
    "hidden_size": None,
    "intermediate_size": None,
    "num_hidden_layers": None,
    "num_attention_heads": None,
    "num_key_value_heads": None,
    "max_position_embeddings": None,
    "rms_norm_eps": None,
    "n_embd": HIDDEN,
    "n_head": HEADS,
    "n_layer": 2,
    "n_positions": 128,
    "layer_norm_epsilon": 1e-5,
}
"""GPT-2's names in place of Llama's."""
QWEN: Mapping[str, Any] = {"num_key_value_heads": None, "rms_norm_eps": None, "layer_norm_epsilon": 1e-6}

DREAM: Mapping[str, Any] = {"mask_token_id": 5, "rope_theta": 1000000.0}
PLM: Mapping[str, Any] = {
    "num_key_value_heads": HEADS,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "tie_word_embeddings": True,
    "rope_theta": 100000.0,
}
LLADA: Mapping[str, Any] = {
    **dict.fromkeys(LLAMA),
    "d_model": HIDDEN,
    "mlp_hidden_size": FFN,
    "n_layers": 2,
    "n_heads": HEADS,
    "n_kv_heads": KV_HEADS,
    "vocab_size": VOCAB,
    "embedding_size": VOCAB,
    "max_sequence_length": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "weight_tying": False,
}

NOMIC_MOE: Mapping[str, Any] = {
    **GPT,
    "tie_word_embeddings": None,
    "n_layer": 3,
    "n_inner": FFN,
    "n_positions": 2048,
    "type_vocab_size": 1,
    "vocab_size": VOCAB,
    "rotary_emb_base": 10000,
    "num_experts": 4,
    "moe_top_k": 2,
    "moe_every_n_layers": 2,
    "activation_function": "gelu",
    "causal": False,
    "prenorm": False,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), True),
}
NOMIC_OF_TRANSFORMERS: Mapping[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": FFN,
    "num_hidden_layers": 3,
    "num_attention_heads": HEADS,
    "head_dim": HEAD_DIM,
    "max_position_embeddings": 512,
    "layer_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
"""What the converter gets to see: transformers' class of the first version fills in its own names with its defaults."""
JINA: Mapping[str, Any] = {
    **dict.fromkeys(("num_key_value_heads", "rms_norm_eps")),
    "layer_norm_eps": 1e-12,
    "model_max_length": 128,
    "type_vocab_size": 2,
    "position_embedding_type": "alibi",
    "feed_forward_type": "geglu",
    "hidden_act": "gelu",
    "tie_word_embeddings": None,
}

CASES: Mapping[str, Case] = {
    "nomic-bert-moe": replace(
        by_hand("NomicBertModel", "nomic_bert", nomic_moe(), **NOMIC_MOE),
        tokenizer="wpm",
        flags=(),
        hparams=NOMIC_OF_TRANSFORMERS,
        keeps={"*experts.bias": torch.zeros_like},
        differs={"n_positions": (512, "the length that the model was trained for, which the converter writes")},
    ),
    "jina-bert-v2": replace(
        by_hand("JinaBertForMaskedLM", "bert", jina(), **JINA),
        tokenizer="wpm",
        flags=(),
    ),
    "dream": by_hand("DreamModel", "Dream", llama(bias=True), **DREAM),
    "llada": by_hand("LLaDAModelLM", "llada", llada(), **LLADA),
    "maincoder": by_hand("MaincoderForCausalLM", "maincoder", normed(llama()), head_dim=HEAD_DIM, rope_theta=1e6),
    "plm": by_hand("PLMForCausalLM", "plm", plm(), **PLM),
    "xverse": by_hand("XverseForCausalLM", "xverse", llama(kv_heads=HEADS), num_key_value_heads=None),
    "qwen": by_hand("QWenLMHeadModel", "qwen", gpt(qwen), **QWEN, rotary_emb_base=10000, seq_length=128),
    "refact": by_hand("GPTRefactForCausalLM", "gpt_refact", gpt(refact), **GPT, multi_query=True),
    "codeshell": by_hand(
        "CodeShellForCausalLM", "codeshell", gpt(codeshell, bias=True), **GPT, num_query_groups=KV_HEADS
    ),
    "arctic": by_hand(
        "ArcticForCausalLM", "arctic", arctic(), num_local_experts=4, num_experts_per_tok=2, rope_theta=20000.0
    ),
    "deci": nemotron_nas((2, False, 256), (1, False, 512), (4, False, 256)),
    "deci_gaps": nemotron_nas((2, False, 256), (0, False, 512), (0, True, 256), (1, False, 0)),
    "pangu-embedded": by_hand(
        "PanguEmbeddedForCausalLM", "PanguEmbedded", llama(bias=True, out_bias=True), bias=True, rope_theta=16000000.0
    ),
    "pangu-embedded_tied": by_hand(
        "PanguEmbeddedForCausalLM",
        "PanguEmbedded",
        llama(3, tied=True, bias=True, out_bias=True),
        bias=True,
        rope_theta=4000000.0,
        num_hidden_layers=3,
        tie_word_embeddings=True,
    ),
}
