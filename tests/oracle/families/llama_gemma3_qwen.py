"""Llama, Mistral, Gemma 3 and Qwen, one line each.

Shapes are awkward on purpose: grouped key/value heads, head_dim != hidden_size / heads, tied and untied heads, biases,
odd layer counts, each rope scaling of the family.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from tests.oracle.case import BIASES, MOE, TIED, Case, llama3, pooled, rope, with_bf16, yarn

QWEN2MOE: Mapping[str, Any] = {**MOE, "decoder_sparse_step": 1, "shared_expert_intermediate_size": 80}
WINDOW = {"sliding_window": "the converter writes no window for arch llama, and llama.cpp runs it without one"}


def gemma3_rope(local_theta: float = 10000.0, **full: Any) -> Mapping[str, Any]:
    local = {"rope_type": "default", "rope_theta": local_theta}
    return {"rope_parameters": {"full_attention": {"rope_theta": 1e6, **full}, "sliding_attention": local}}


HEADS_6_3 = {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 96}
"""Head counts that are no powers of two."""
LLAMA_3_2 = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "max_position_embeddings": 131072}
"""Rope geometry of Llama 3.2 1B, with its real scaling figures."""
QWEN3MOE: Mapping[str, Any] = {"head_dim": 32, "norm_topk_prob": True, **MOE}
"""llama.cpp always normalises the chosen experts' weights of this architecture."""


def plus_one(weight: Tensor) -> Tensor:
    """Norms are stored as w + 1, so that w loses its low bits."""
    return (weight + 1) - 1


def gemma3(**options: Any) -> Case:
    """Seven layers unless told otherwise: the sixth is the only global one."""
    small = {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 64, "num_hidden_layers": 7, **TIED}
    # GELU, which llama.cpp looks up in a float16 table, adds up to 1.3e-2 over 62 layers; a wrong query scale makes 2.3
    return Case(
        "Gemma3TextConfig", {**small, **options}, tokenizer="spm", keeps={"*norm.weight": plus_one}, tolerance=5e-2
    )


_PLAIN: dict[str, Case] = {
    "llama": Case("LlamaConfig"),
    "llama_tied": Case("LlamaConfig", {**TIED, "num_hidden_layers": 3}),
    "llama_mha": Case("LlamaConfig", {"num_key_value_heads": 4}),
    "llama_mqa": Case("LlamaConfig", {"num_key_value_heads": 1}),
    "llama_head_dim": Case("LlamaConfig", {"head_dim": 32, "rms_norm_eps": 1e-5}),
    "llama_heads_6_3": Case("LlamaConfig", HEADS_6_3),
    "llama_bias": Case("LlamaConfig", BIASES),
    "llama_attn_bias": Case("LlamaConfig", {"attention_bias": True, **TIED}),
    "llama_mlp_bias": Case("LlamaConfig", {"mlp_bias": True, "head_dim": 32}),
    "llama_spm": Case("LlamaConfig", {"num_key_value_heads": 4}, tokenizer="spm"),
    "llama_rope3_8": Case("LlamaConfig", llama3(8.0, 64)),
    "llama_rope3_32_tied": Case("LlamaConfig", {**llama3(32.0, 64), **TIED}),
    "llama_rope3_real_8": Case("LlamaConfig", {**LLAMA_3_2, **llama3(8.0, 8192, 500000.0)}),
    "llama_rope3_real_32_tied": Case("LlamaConfig", {**LLAMA_3_2, **llama3(32.0, 8192, 500000.0), **TIED}),
    "llama_rope3_bias": Case("LlamaConfig", {**llama3(8.0, 64), **BIASES, "head_dim": 32}),
    "llama_linear": Case("LlamaConfig", {**rope("linear", 4.0), "num_hidden_layers": 3}),
    "llama_yarn": Case("LlamaConfig", yarn(4.0, 32, 10000.0)),
    "llama_theta": Case("LlamaConfig", {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}),
    "llama_fused_qkv": Case("LlamaConfig", {"head_dim": 32}, flags=("fuse_qkv",)),
    "llama_fused_qkv_bias": Case("LlamaConfig", BIASES, flags=("fuse_qkv",)),
    "mistral": Case("MistralConfig", {"head_dim": 32, "sliding_window": 64}, becomes="LlamaConfig", lost=WINDOW),
    "mistral_spm": Case("MistralConfig", {"sliding_window": None}, tokenizer="spm", becomes="LlamaConfig", lost=WINDOW),
    "gemma3": gemma3(),
    "gemma3_linear": gemma3(**gemma3_rope(rope_type="linear", factor=8.0)),
    "gemma3_local_theta": gemma3(**gemma3_rope(local_theta=20000.0, rope_type="default"), rms_norm_eps=1e-5),
    "gemma3_mqa": gemma3(num_key_value_heads=1, num_hidden_layers=13),
    # llama.cpp tells the 27B model, which scales its queries otherwise, by the number of layers
    "gemma3_27b": gemma3(num_hidden_layers=62, query_pre_attn_scalar=16, intermediate_size=32),
    "qwen2": Case("Qwen2Config"),
    "qwen2_tied": Case("Qwen2Config", {**TIED, "num_hidden_layers": 3}),
    "qwen2_yarn": Case("Qwen2Config", yarn(4.0, 32)),
    "qwen2_heads_6_3": Case("Qwen2Config", HEADS_6_3),
    "qwen2_fused_qkv": Case("Qwen2Config", flags=("fuse_qkv",)),
    "qwen2moe": Case("Qwen2MoeConfig", QWEN2MOE),
    "qwen2moe_mha": Case("Qwen2MoeConfig", {**QWEN2MOE, "num_hidden_layers": 3, "num_key_value_heads": 4}),
    "qwen2moe_3_of_8": Case("Qwen2MoeConfig", {**QWEN2MOE, "num_experts": 8, "num_experts_per_tok": 3}),
    "qwen3": Case("Qwen3Config", {"head_dim": 32}),
    "qwen3_embedding": Case("Qwen3Config", {"head_dim": 32, **TIED}, files=pooled("lasttoken")),
    "qwen3_tied": Case("Qwen3Config", {"head_dim": 32, **TIED, "num_hidden_layers": 3}),
    "qwen3_yarn": Case("Qwen3Config", {"head_dim": 32, **yarn(4.0, 32)}),
    "qwen3_fused_qkv": Case("Qwen3Config", {"head_dim": 16}, flags=("fuse_qkv",)),
    "qwen3moe": Case("Qwen3MoeConfig", QWEN3MOE),
    "qwen3moe_yarn": Case("Qwen3MoeConfig", {**QWEN3MOE, **yarn(4.0, 32)}),
    "qwen3moe_3_of_8": Case("Qwen3MoeConfig", {**QWEN3MOE, "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 3}),
}
CASES = with_bf16(
    _PLAIN,
    "llama",
    "llama_bias",
    "llama_rope3_real_8",
    "mistral",
    "gemma3",
    "qwen2",
    "qwen2moe",
    "qwen3",
    "qwen3moe",
)
