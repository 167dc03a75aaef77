"""Gemma, Phi, Cohere, OLMo, StarCoder, StableLM, Orion, InternLM 2 and MiniCPM, one line each."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tests.oracle import mtp
from tests.oracle.case import TIED, Case, with_bf16


def plus_one(weight: Tensor) -> Tensor:
    """Norms are stored as w + 1, so that w loses its low bits."""
    return (weight + 1) - 1


def published(architecture: str, **more: Any) -> Mapping[str, Any]:
    return {"architectures": [architecture], **more}


def internlm2(llama: dict[str, Tensor]) -> dict[str, Tensor]:
    """InternLM 2 is a Llama whose q, k and v are one tensor: for each key/value head its queries, key and value."""
    names = {
        "embed_tokens": "tok_embeddings",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.down_proj": "feed_forward.w2",
        "mlp.up_proj": "feed_forward.w3",
        "lm_head": "output",
    }
    spelled: dict[str, Tensor] = {}
    for name, tensor in llama.items():
        part = next((part for part in names if part in name), "norm")
        if "self_attn" not in name:
            spelled[name.replace(part, names.get(part, part))] = tensor
    for i in range(sum("q_proj" in name for name in llama)):
        q, k, v, out = (llama[f"model.layers.{i}.self_attn.{x}_proj.weight"] for x in "qkvo")
        heads = [x.reshape(2, -1, 16, 64) for x in (q, k, v)]
        spelled[f"model.layers.{i}.attention.wqkv.weight"] = torch.cat(heads, 1).reshape(-1, 64)
        spelled[f"model.layers.{i}.attention.wo.weight"] = out
    return spelled


PLUS_ONE = {"*norm.weight": plus_one}
GELU = 1e-2
"""llama.cpp looks GELU up in a float16 table."""
EOT = {
    "eos_token_id": ([1, 107], "the converter names CodeGemma's <end_of_turn>, token 107, in every file of this arch")
}
BIASED: Mapping[str, Any] = {"attention_bias": True}
GEMMA: Mapping[str, Any] = {"head_dim": 32, **TIED}
GEMMA2: Mapping[str, Any] = {**GEMMA, "query_pre_attn_scalar": 32, "sliding_window": 64}
PHI2: Mapping[str, Any] = {"num_key_value_heads": 4, "intermediate_size": 256}
COHERE: Mapping[str, Any] = {"logit_scale": 0.25, **TIED}
COHERE2: Mapping[str, Any] = {**COHERE, "num_hidden_layers": 5, "sliding_window": 64}
COHERE2_PUBLISHED = {"rotary_pct": 1.0}
OLMO3: Mapping[str, Any] = {"sliding_window": 64, "num_hidden_layers": 5}
OLMOE: Mapping[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2}
STARCODER2: Mapping[str, Any] = {"sliding_window": 4096}
"""As published, which no GGUF says: the map takes it for granted."""
BIGCODE: Mapping[str, Any] = {
    "n_embd": 64,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 128,
    **TIED,
    "intermediate_size": None,
    "num_key_value_heads": 1,
}
MINICPM3: Mapping[str, Any] = {"q_lora_rank": 24, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32}
LONG: Mapping[str, Any] = {
    "short_factor": [1.0, 1.03, 1.05, 1.1, 1.25, 2.0, 3.5, 7.875],
    "long_factor": [1.07, 1.12, 1.5, 2.75, 4.0, 8.0, 16.5, 32.0],
}
"""Divisors for the eight frequencies of 16 rotary dimensions."""
LENGTHS = {"original_max_position_embeddings": 256, "max_position_embeddings": 1024}
"""llama.cpp takes the long divisors for any context above the original one, and rounds contexts up to 256."""


SHARED: Mapping[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "head_dim": 32,
    **COHERE,
    "num_hidden_layers": 5,
    "sliding_window": 64,
}
GEMMA3N: Mapping[str, Any] = {
    **GEMMA,
    "vocab_size_per_layer_input": 512,
    "hidden_size_per_layer_input": 16,
    "laurel_rank": 8,
    "sliding_window": 64,
}
GEMMA3N_E2B: Mapping[str, Any] = {
    **GEMMA3N,
    "num_hidden_layers": 30,
    "num_kv_shared_layers": 10,
    "hidden_size_per_layer_input": 256,
    "laurel_rank": 64,
    "intermediate_size": 32,
    "activation_sparsity_pattern": [0.95] * 10 + [0.0] * 20,
}
"""What llama.cpp has built in, or tells by the number of layers."""
GEMMA4: Mapping[str, Any] = {
    **GEMMA,
    "global_head_dim": 64,
    "sliding_window": 64,
    "num_hidden_layers": 6,
    "vocab_size_per_layer_input": 512,
    "hidden_size_per_layer_input": 0,
}
GEMMA4_MOE: Mapping[str, Any] = {
    **GEMMA4,
    "enable_moe_block": True,
    "num_experts": 4,
    "top_k_experts": 2,
    "moe_intermediate_size": 48,
}
PHIMOE: Mapping[str, Any] = {"num_local_experts": 4}
PHIMOE_NAME = {
    "architectures": (["PhiMoEForCausalLM"], "the published name, which vLLM knows; transformers goes by model_type")
}
MINICPM: Mapping[str, Any] = {
    "num_hidden_layers": 4,
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.5,
    "logits_scaling": 2.0,
    "attention_multiplier": 0.25,
}
MINICPM_PUBLISHED = published("MiniCPMForCausalLM", scale_emb=12, scale_depth=1.0, dim_model_base=32)
"""The computation is Granite's, under other names: scale_depth / sqrt(layers), hidden / dim_model_base."""
SPARSE_MIXER = "it routes by softmax over all experts"


def partial(share: float) -> Mapping[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": share}}


def longrope(original: int, share: float | None = None, **more: Any) -> Mapping[str, Any]:
    part = {} if share is None else {"partial_rotary_factor": share}
    both = {"original_max_position_embeddings": original}
    return {
        "rope_parameters": {
            "type": "longrope",
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            **both,
            **part,
            **LONG,
            **more,
        }
    }


def olmo3_rope(**full: Any) -> Mapping[str, Any]:
    local = {"rope_type": "default", "rope_theta": 500000.0}
    return {"rope_parameters": {"full_attention": {"rope_theta": 500000.0, **full}, "sliding_attention": local}}


_PLAIN: dict[str, Case] = {
    "gemma": Case("GemmaConfig", GEMMA, tokenizer="spm", keeps=PLUS_ONE, tolerance=GELU, differs=EOT),
    "gemma_mqa": Case(
        "GemmaConfig",
        {**GEMMA, "num_key_value_heads": 1, "num_hidden_layers": 3},
        tokenizer="spm",
        keeps=PLUS_ONE,
        tolerance=GELU,
        differs=EOT,
    ),
    "gemma2": Case("Gemma2Config", GEMMA2, tokenizer="spm", keeps=PLUS_ONE, tolerance=GELU),
    "gemma2_odd": Case(
        "Gemma2Config",
        {**GEMMA2, "num_hidden_layers": 3, "attn_logit_softcapping": 40.0, "final_logit_softcapping": 20.0},
        tokenizer="spm",
        keeps=PLUS_ONE,
        tolerance=GELU,
    ),
    # llama.cpp tells the 27B model, which scales its queries otherwise, by the number of layers
    "gemma2_27b": Case(
        "Gemma2Config",
        {**GEMMA2, "num_hidden_layers": 46, "query_pre_attn_scalar": 16, "intermediate_size": 32},
        tokenizer="spm",
        keeps=PLUS_ONE,
        tolerance=5e-2,
    ),
    "command_r": Case("CohereConfig", COHERE),
    "command_r_bias": Case(
        "CohereConfig",
        {**COHERE, **BIASED, "num_hidden_layers": 3},
        tolerance=None,
        unrunnable="it loads no bias of the output projection for this arch",
    ),
    "command_r_qk_norm": Case(
        "CohereConfig",
        {**COHERE, "use_qk_norm": True, "num_hidden_layers": 64, "intermediate_size": 32},
        tolerance=1e-4,
    ),
    "command_r_fused_qkv": Case("CohereConfig", COHERE, flags=("fuse_qkv",)),
    "cohere2": Case("Cohere2Config", COHERE2, hparams=COHERE2_PUBLISHED),
    "cohere2_theta": Case(
        "Cohere2Config",
        {**COHERE2, "num_key_value_heads": 1, "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0}},
        hparams=COHERE2_PUBLISHED,
    ),
    "olmo": Case("OlmoConfig"),
    "olmo_tied_clip": Case("OlmoConfig", {**TIED, "clip_qkv": 8.0, "num_hidden_layers": 3}),
    "olmo2": Case("Olmo2Config"),
    "olmo2_tied": Case(
        "Olmo2Config",
        {**TIED, "num_hidden_layers": 3, "num_key_value_heads": 4, "rms_norm_eps": 1e-6},
        tolerance=None,
        unrunnable="it asks for output.weight",
    ),
    "olmo3": Case("Olmo3Config", OLMO3),
    "olmo3_yarn": Case(
        "Olmo3Config",
        {
            **OLMO3,
            **olmo3_rope(
                rope_type="yarn",
                factor=4.0,
                original_max_position_embeddings=32,
                beta_fast=32.0,
                beta_slow=1.0,
                attention_factor=1.1386294,
            ),
        },
    ),
    "olmoe": Case("OlmoeConfig", OLMOE, tolerance=None, unrunnable="it takes k_norm to be as wide as q_norm"),
    "olmoe_3_of_8": Case(
        "OlmoeConfig", {"num_experts": 8, "num_experts_per_tok": 3, "num_hidden_layers": 3, "num_key_value_heads": 4}
    ),
    "starcoder2": Case("Starcoder2Config", {**STARCODER2, **TIED}, tolerance=GELU),
    "starcoder2_plain": Case(
        "Starcoder2Config",
        {
            **STARCODER2,
            "use_bias": False,
            "num_hidden_layers": 3,
            "rope_parameters": {"rope_type": "default", "rope_theta": 999999.5},
        },
        tolerance=None,
        unrunnable="it asks for the biases",
    ),
    "starcoder2_fused_qkv": Case("Starcoder2Config", STARCODER2, flags=("fuse_qkv",), tolerance=GELU),
    "starcoder": Case("GPTBigCodeConfig", BIGCODE, tolerance=GELU),
    "stablelm": Case("StableLmConfig", {"use_qkv_bias": True, **partial(0.25)}),
    "stablelm_parallel": Case(
        "StableLmConfig", {"use_parallel_residual": True, **partial(0.5), "num_hidden_layers": 3}
    ),
    "phi2": Case("PhiConfig", {**PHI2, **partial(0.5)}, tolerance=GELU),
    "phi2_odd": Case(
        "PhiConfig",
        {**PHI2, **partial(0.4), "num_hidden_layers": 3, "hidden_size": 160, "intermediate_size": 640},
        tolerance=GELU,
    ),
    "phi2_fused_qkv": Case("PhiConfig", {**PHI2, **partial(0.5)}, flags=("fuse_qkv",), tolerance=GELU),
    "phi_3": Case("Phi3Config", {"original_max_position_embeddings": 128}, tokenizer="spm"),
    "phi_3_window_tied": Case(
        "Phi3Config",
        {"original_max_position_embeddings": 128, "sliding_window": 100, **TIED, "num_hidden_layers": 3},
        tokenizer="spm",
    ),
    "phi_3_longrope": Case("Phi3Config", {**longrope(256, 1.0), **LENGTHS}, tokenizer="spm"),
    "phi_3_partial": Case(
        "Phi3Config",
        {**longrope(256, 0.5), **LENGTHS, "num_attention_heads": 2, "num_key_value_heads": 1},
        tokenizer="spm",
    ),
    "internlm2": Case(
        "LlamaConfig",
        {"num_hidden_layers": 3, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
        tokenizer="spm",
        spelled=internlm2,
        hparams=published("InternLM2ForCausalLM", head_dim=None),
    ),
    "cohere2moe": Case("Cohere2MoeConfig", SHARED),
    "cohere2moe_dense": Case(
        "Cohere2MoeConfig",
        {
            **SHARED,
            "first_k_dense_replace": 2,
            "prefix_dense_intermediate_size": 160,
            "num_shared_experts": 2,
            "expert_selection_fn": "sigmoid",
        },
    ),
    "cohere2moe_untied": Case(
        "Cohere2MoeConfig",
        {
            **SHARED,
            "tie_word_embeddings": False,
            "expert_selection_fn": "sigmoid",
            "norm_topk_prob": False,
            "num_shared_experts": 1,
        },
    ),
    "cohere2moe_fused": Case("Cohere2MoeConfig", SHARED, flags=("fuse_gate_up_exps",)),
    "cohere2moe_mtp": Case("Cohere2MoeConfig", SHARED, hparams={"num_nextn_predict_layers": 1}, spelled=mtp.appended),
    "cohere2moe_rms": Case("Cohere2MoeConfig", {**SHARED, "rms_norm_eps": 1e-6}),
    "phimoe": Case(
        "PhimoeConfig",
        {**PHIMOE, **BIASED, "lm_head_bias": True},
        tokenizer="spm",
        hparams=published("PhiMoEForCausalLM", original_max_position_embeddings=128),
        tolerance=None,
        unrunnable=SPARSE_MIXER,
        differs=PHIMOE_NAME,
    ),
    "phimoe_longrope": Case(
        "PhimoeConfig",
        {
            **PHIMOE,
            **longrope(64, short_mscale=1.243163121016122, long_mscale=1.243163121016122),
            "num_hidden_layers": 3,
        },
        tokenizer="spm",
        hparams=published("PhiMoEForCausalLM"),
        tolerance=None,
        unrunnable=SPARSE_MIXER,
        differs=PHIMOE_NAME,
    ),
    "orion": Case(
        "StableLmConfig", partial(1.0), tokenizer="spm", hparams=published("OrionForCausalLM", rms_norm_eps=1e-5)
    ),
    "orion_mha": Case(
        "StableLmConfig",
        {**partial(1.0), "num_key_value_heads": 4, "num_hidden_layers": 3},
        tokenizer="spm",
        hparams=published("OrionForCausalLM", rms_norm_eps=1e-5),
    ),
    "minicpm": Case("GraniteConfig", {**MINICPM, **TIED}, tokenizer="spm", hparams=MINICPM_PUBLISHED, tolerance=2e-4),
    "minicpm_longrope": Case(
        "GraniteConfig",
        {**MINICPM, **longrope(256), "max_position_embeddings": 256},
        tokenizer="spm",
        hparams=MINICPM_PUBLISHED,
        tolerance=2e-4,
    ),
    "gemma3n": Case(
        "Gemma3nTextConfig",
        {
            **GEMMA3N,
            "num_hidden_layers": 5,
            "num_kv_shared_layers": 0,
            "activation_sparsity_pattern": [0.95, 0.9, 0.0, 0.0, 0.0],
        },
        tokenizer="spm",
        tolerance=None,
        unrunnable="it has the layers of the published models built in",
    ),
    "gemma3n_e2b": Case(
        "Gemma3nTextConfig",
        GEMMA3N_E2B,
        tokenizer="spm",
        tolerance=None,
        unrunnable="it asks for keys and values that nothing reads; tests/test_variants_... adds them",
    ),
    "gemma_embedding": Case(
        "Gemma3TextConfig",
        {**GEMMA2, "num_hidden_layers": 7, "use_bidirectional_attention": True},
        tokenizer="spm",
        auto="AutoModel",
        keeps=PLUS_ONE,
        tolerance=GELU,
    ),
    "gemma4": Case("Gemma4TextConfig", GEMMA4, tokenizer="gemma4", tolerance=3e-2),
    "gemma4_moe": Case(
        "Gemma4TextConfig",
        {**GEMMA4_MOE, "attention_k_eq_v": True, "num_global_key_value_heads": 1, "final_logit_softcapping": 30.0},
        tokenizer="gemma4",
        tolerance=GELU,
    ),
    "gemma4_per_layer": Case(
        "Gemma4TextConfig",
        {
            **GEMMA4,
            "hidden_size_per_layer_input": 16,
            "num_hidden_layers": 12,
            "num_kv_shared_layers": 6,
            "use_double_wide_mlp": True,
        },
        tokenizer="gemma4",
        tolerance=1e-1,
    ),
    "minicpm3": Case("MiniCPM3Config", {**MINICPM3, "num_key_value_heads": 4}, tokenizer="spm", tolerance=2e-4),
    "minicpm3_longrope": Case(
        "MiniCPM3Config",
        {
            **MINICPM3,
            "num_key_value_heads": 4,
            **longrope(256),
            "max_position_embeddings": 256,
            **TIED,
            "num_hidden_layers": 3,
        },
        tokenizer="spm",
        tolerance=2e-4,
    ),
}
CASES = with_bf16(
    _PLAIN,
    "gemma",
    "gemma2",
    "command_r",
    "cohere2",
    "olmo",
    "olmo2",
    "olmo3",
    "olmoe",
    "starcoder2",
    "starcoder",
    "stablelm",
    "phi2",
    "phi_3",
    "minicpm3",
    "cohere2moe",
    "phimoe",
    "orion",
    "minicpm",
    "gemma3n",
    "gemma_embedding",
    "gemma4_moe",
)
