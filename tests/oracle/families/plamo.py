"""PLaMo 3, whose class is code in its repository, as in remote_code.py."""

from dataclasses import replace
from typing import Any

from torch import Tensor

from tests.oracle.case import Case, with_bf16
from tests.oracle.families.by_hand_moe import as_published
from tests.oracle.families.llama_gemma3_qwen import plus_one
from tests.oracle.families.remote_code import FFN, HEADS, HIDDEN, KV_HEADS, by_hand, ends, linear, norms

FIFTH, LESS = 1.0 / 5, 1.0 / (5**1.5)


def plus_fifth(weight: Tensor) -> Tensor:
    return (weight + FIFTH) - FIFTH


def plus_less(weight: Tensor) -> Tensor:
    return (weight + LESS) - LESS


def plamo3(n_layers: int = 5, kv_heads: int = KV_HEADS, head_dim: int = 32, **options: Any) -> Case:
    shapes = ends(tied=options.get("tie_word_embeddings", False))
    q, kv = HEADS * head_dim, kv_heads * head_dim
    for i in range(n_layers):
        layer = f"model.layers.layers.{i}"
        shapes |= linear(f"{layer}.mixer.qkv_proj", q + 2 * kv, HIDDEN) | linear(f"{layer}.mixer.o_proj", HIDDEN, q)
        shapes |= {f"{layer}.mixer.{x}_norm.weight": (head_dim,) for x in "qk"}
        shapes |= linear(f"{layer}.mlp.gate_up_proj", 2 * FFN, HIDDEN) | linear(f"{layer}.mlp.down_proj", HIDDEN, FFN)
        shapes |= norms(*(f"{layer}.{when}_{what}_norm" for when in ("pre", "post") for what in ("mixer", "mlp")))
    given = {
        "num_hidden_layers": n_layers,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "window_size": 64,
        "sliding_window_pattern": 2,
        "rope_theta": 150000,
        "rope_local_theta": 10000,
        "rope_scaling_factor": 1,
        "initial_context_length": None,
        "scale_embedding": False,
    }
    case = by_hand("Plamo3ForCausalLM", "plamo3", shapes, **{**given, **options})
    kept = {"*post_mixer_norm.weight": plus_fifth, "*post_mlp_norm.weight": plus_less, "*norm.weight": plus_one}
    return replace(as_published(case), keeps=kept)


_PLAIN: dict[str, Case] = {
    "plamo3": plamo3(),
    "plamo3_tied": plamo3(3, 1, 16, sliding_window_pattern=8, tie_word_embeddings=True),
    "plamo3_yarn": plamo3(4, rope_scaling_factor=4.0, initial_context_length=32, sliding_window_pattern=4),
}
CASES = with_bf16(_PLAIN, "plamo3")
