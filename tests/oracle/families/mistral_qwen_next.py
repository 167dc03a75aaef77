"""Mixtral, Ministral 3 and its relatives, Qwen 3 Next and 3.5, Qwen in vision models, Llama 4 and the EXAONE family.

SmolLM 3, Arcee, Seed-OSS and Apertus besides.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from tests.oracle import mtp
from tests.oracle.case import MOE, TIED, Case, llama3, rope, with_bf16, yarn

MIXTRAL: Mapping[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 96}
APERTUS: Mapping[str, Any] = {"num_hidden_layers": 3, **llama3(8.0, 64, 12e6)}
"""Always three layers: the converter keeps activation parameters of earlier models of the same process."""
HEADS_6_3: Mapping[str, Any] = {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 96}


def plus_one(weight: Tensor) -> Tensor:
    """Norms are stored as w + 1, so that w loses its low bits."""
    return (weight + 1) - 1


def log_exp(a_log: Tensor) -> Tensor:
    """The converter stores -exp(A_log), whose logarithm may differ from A_log in the last bit."""
    return a_log.exp().double().log().float()


EXAONE = Case(
    "ExaoneConfig",
    hparams={"architectures": ["ExaoneForCausalLM"], "activation_function": "silu"},
    differs={
        "architectures": (["ExaoneForCausalLM"], "the published name; transformers writes that of the class it uses")
    },
)


def exaone(**options: Any) -> Case:
    return replace(EXAONE, options=options)


WINDOW: Mapping[str, Any] = {"sliding_window": 64, "sliding_window_pattern": 4}
FULL: Mapping[str, Any] = {"sliding_window": None, "sliding_window_pattern": None}
NO_OUT_BIAS: Mapping[str, Any] = {"tolerance": None, "unrunnable": "llama.cpp loads no bias of the output projection"}
NO_TEMPERATURE: Mapping[str, Any] = {
    "tolerance": None,
    "unrunnable": "llama.cpp asserts a temperature scale that such a file cannot have",
}
NO_EPSILON: Mapping[str, Any] = {
    "tolerance": None,
    "unrunnable": "llama.cpp does not read the epsilon of this architecture, and takes 0",
}
NO_TIED: Mapping[str, Any] = {"tolerance": None, "unrunnable": "llama.cpp wants an output.weight of its own"}
NO_WINDOW: Mapping[str, Any] = {
    "tolerance": None,
    "unrunnable": "llama.cpp uses the window of this architecture only at 64 layers",
}


def exaone4_full(layers: int, **options: Any) -> Case:
    return Case(
        "Exaone4Config", {"num_hidden_layers": layers, **FULL, "layer_types": ["full_attention"] * layers, **options}
    )


EXAONE_MOE: Mapping[str, Any] = {"num_hidden_layers": 5, "head_dim": 32, **MOE, **WINDOW}


def exaone_moe(**options: Any) -> Case:
    return Case("ExaoneMoeConfig", {**EXAONE_MOE, **options}, hparams={"scoring_func": "sigmoid"})


MINISTRAL3_ROPE: Mapping[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}


def ministral3(rope_options: Mapping[str, Any] = {}, **options: Any) -> Case:
    """The original context is shorter than the text, so that the growth of the queries shows."""
    parameters = {**MINISTRAL3_ROPE, **rope_options}
    beta, context = parameters["llama_4_scaling_beta"], parameters["original_max_position_embeddings"]
    differs: dict[str, tuple[Any, str]] = {
        "llama_4_scaling": ({"beta": beta, "original_max_position_embeddings": context}, "vLLM reads it here")
    }
    if parameters["mscale_all_dim"]:
        differs["rope_parameters"] = ({**parameters, "apply_yarn_scaling": False}, "vLLM's word for it")
    return Case("Ministral3Config", {"head_dim": 32, **options, "rope_parameters": parameters}, differs=differs)


def mistral3(**options: Any) -> Case:
    """Mistral Small 3.1: the language model of a Mistral3ForConditionalGeneration."""
    hparams = {"architectures": ["Mistral3ForConditionalGeneration"]}
    return Case("MistralConfig", {"head_dim": 32, "sliding_window": None, **options}, hparams=hparams)


def llama4(**options: Any) -> Case:
    return Case("Llama4TextConfig", {**LLAMA4, **options})


def vision(config: str, architecture: str, sections: list[int], **options: Any) -> Case:
    """The text part of a vision model: the sections of its rotary embedding make no difference to text.

    llama.cpp does not rotate the frequencies that are in no section, so that those of Qwen 3 VL must be of equal size
    (24, 20, 20 of the published models leaves out two that turn by a millionth).
    """
    rotary = {"rope_type": "default", "rope_theta": 1e6}
    hparams = {"architectures": [architecture], "rope_parameters": {**rotary, "mrope_section": sections}}
    return Case(config, {**options, "rope_parameters": rotary}, hparams=hparams)


LINEAR: Mapping[str, Any] = {
    "num_hidden_layers": 5,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
ALL_FULL: Mapping[str, Any] = {
    "attention_chunk_size": None,
    "no_rope_layers": [1] * 5,
    "layer_types": ["full_attention"] * 5,
    "attn_temperature_tuning": False,
}
EXPERTS: Mapping[str, Any] = {**MOE, "shared_expert_intermediate_size": 80}
KEEPS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "*.A_log": log_exp,
    "*.linear_attn.norm.weight": lambda weight: weight,
    "*norm.weight": plus_one,
}


def linear(config: str, **options: Any) -> Case:
    """Six value heads share two key heads, unless told otherwise; the fourth layer is full.

    Rounding adds up in delta nets: the first token alone, computed by llama.cpp's other way, differs by 7e-6, and the
    worst of a text by 9e-5. Rows out of order make 0.2 and more.
    """
    return Case(config, {**LINEAR, **options}, flags=("no_mtp",), keeps=KEEPS, tolerance=3e-4)


def qwen3next(**options: Any) -> Case:
    return linear("Qwen3NextConfig", **{**EXPERTS, **options})


def qwen35(**options: Any) -> Case:
    return linear("Qwen3_5TextConfig", **options)


def qwen35moe(**options: Any) -> Case:
    return linear("Qwen3_5MoeTextConfig", **{**EXPERTS, **options})


SHARED_ROPE: Mapping[str, Any] = {"rope_parameters": {**yarn(4.0, 32)["rope_parameters"], "partial_rotary_factor": 0.5}}
SECTIONS: Mapping[str, Any] = {
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
        "partial_rotary_factor": 0.25,
    }
}
NO_SECTIONS: Mapping[str, Any] = {
    "rope_parameters": (
        {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        "sections of images say nothing about text, and vLLM's text class is not made for them",
    )
}
LLAMA4: Mapping[str, Any] = {
    "num_hidden_layers": 5,
    "intermediate_size": 96,
    "intermediate_size_mlp": 128,
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
    "head_dim": 32,
    "interleave_moe_layer_step": 2,
}

_PLAIN: dict[str, Case] = {
    "mixtral": Case("MixtralConfig", MIXTRAL),
    "mixtral_head_dim_tied": Case("MixtralConfig", {**MIXTRAL, "head_dim": 32, "num_hidden_layers": 3, **TIED}),
    "mixtral_3_of_8": Case("MixtralConfig", {**MIXTRAL, **HEADS_6_3, "num_local_experts": 8, "num_experts_per_tok": 3}),
    "mixtral_rope3": Case("MixtralConfig", {**MIXTRAL, **llama3(8.0, 64), "num_key_value_heads": 4}),
    "smollm3": Case("SmolLM3Config", {"num_hidden_layers": 5}),
    "smollm3_tied": Case("SmolLM3Config", {"num_hidden_layers": 8, **TIED, "num_key_value_heads": 1}),
    "smollm3_yarn": Case("SmolLM3Config", {"num_hidden_layers": 4, **yarn(4.0, 32), **HEADS_6_3}),
    "arcee": Case("ArceeConfig", {"head_dim": 32}),
    "arcee_yarn": Case("ArceeConfig", {"num_hidden_layers": 3, **yarn(4.0, 32, 10000.0)}),
    "arcee_tied": Case("ArceeConfig", {**HEADS_6_3, **TIED}),
    "seed_oss": Case("SeedOssConfig", {"head_dim": 32}),
    "seed_oss_no_bias_tied": Case(
        "SeedOssConfig", {"attention_bias": False, "head_dim": 16, "num_hidden_layers": 3, **TIED}
    ),
    "seed_oss_out_bias": replace(Case("SeedOssConfig", {"attention_out_bias": True, "head_dim": 16}), **NO_OUT_BIAS),
    "seed_oss_linear": Case("SeedOssConfig", {**HEADS_6_3, "head_dim": 16, **rope("linear", 4.0, 1e7)}),
    "apertus": Case("ApertusConfig", APERTUS),
    "apertus_tied": Case("ApertusConfig", {**APERTUS, **TIED, "num_key_value_heads": 1}, **NO_TIED),
    "apertus_default_rope": Case(
        "ApertusConfig", {**APERTUS, **HEADS_6_3, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    ),
    "exaone": exaone(),
    "exaone_rope3": exaone(**llama3(8.0, 64), num_hidden_layers=3),
    "exaone_tied": exaone(**HEADS_6_3, **TIED),
    "exaone4": exaone4_full(3, **TIED),
    "exaone4_rope3": exaone4_full(2, **llama3(16.0, 64, 1e6), **HEADS_6_3),
    "exaone4_mtp": replace(
        exaone4_full(3),
        hparams={"architectures": ["Exaone4_5_ForConditionalGeneration"], "num_nextn_predict_layers": 1},
        spelled=mtp.apart,
    ),
    "exaone4_window": replace(Case("Exaone4Config", {"num_hidden_layers": 5, **WINDOW}), **NO_WINDOW),
    "exaone4_window_64": Case("Exaone4Config", {"num_hidden_layers": 64, **WINDOW, "intermediate_size": 32}),
    "exaone_moe": exaone_moe(),
    "exaone_moe_2_dense": exaone_moe(
        first_k_dense_replace=2, num_hidden_layers=4, n_group=2, topk_group=1, num_experts=8, routed_scaling_factor=1.5
    ),
    "exaone_moe_mtp": replace(
        exaone_moe(), hparams={"scoring_func": "sigmoid", "num_nextn_predict_layers": 1}, spelled=mtp.apart_dense
    ),
    "exaone_moe_2_shared": exaone_moe(num_shared_experts=2, norm_topk_prob=False, **HEADS_6_3),
    "ministral3": ministral3(),
    "ministral3_tied": ministral3(head_dim=16, num_hidden_layers=3, **TIED),
    "ministral3_growing": ministral3({"mscale_all_dim": 0.0, "factor": 8.0}, **HEADS_6_3),
    "mistral3": mistral3(),
    "mistral3_tied": mistral3(**TIED, **rope("linear", 4.0, 1e7), num_hidden_layers=3),
    "llama4": llama4(),
    "llama4_all_moe": llama4(interleave_moe_layer_step=1, num_hidden_layers=4, num_experts_per_tok=2, **TIED),
    "llama4_rope3": llama4(**llama3(8.0, 64, 5e5), **HEADS_6_3, head_dim=16),
    "llama4_full": replace(llama4(**ALL_FULL), **NO_TEMPERATURE),
    "llama4_128_experts": llama4(num_local_experts=128, use_qk_norm=False, intermediate_size=32, num_hidden_layers=4),
    "qwen2vl": vision("Qwen2Config", "Qwen2VLForConditionalGeneration", [4, 2, 2], rms_norm_eps=1e-12),
    "qwen2vl_tied": replace(
        vision("Qwen2Config", "Qwen2_5_VLForConditionalGeneration", [4, 2, 2], **TIED, num_hidden_layers=3),
        **NO_EPSILON,
    ),
    "qwen3vl": vision("Qwen3Config", "Qwen3VLForConditionalGeneration", [6, 5, 5], head_dim=32),
    "qwen3vl_tied": vision(
        "Qwen3Config", "Qwen3VLForConditionalGeneration", [3, 3, 2], head_dim=16, **TIED, **HEADS_6_3
    ),
    "qwen3vlmoe": vision(
        "Qwen3MoeConfig", "Qwen3VLMoeForConditionalGeneration", [6, 5, 5], head_dim=32, norm_topk_prob=True, **MOE
    ),
    "qwen3next": qwen3next(),
    "qwen3next_4_layers": qwen3next(num_hidden_layers=4, linear_num_value_heads=2, linear_num_key_heads=2),
    "qwen3next_yarn": qwen3next(linear_num_key_heads=3, **SHARED_ROPE),
    "qwen3next_fused": replace(qwen3next(num_hidden_layers=4), flags=("no_mtp", "fuse_gate_up_exps")),
    "qwen3next_mtp": replace(qwen3next(num_hidden_layers=4), flags=(), spelled=mtp.apart),
    "qwen3next_3_of_8": qwen3next(
        num_experts=8,
        num_experts_per_tok=3,
        num_hidden_layers=4,
        layer_types=["full_attention", "linear_attention"] * 2,
    ),
    "qwen35": qwen35(),
    "qwen35_tied": qwen35(**TIED, num_hidden_layers=4, linear_num_key_heads=6),
    "qwen35_mqa_yarn": qwen35(linear_num_key_heads=1, num_key_value_heads=1, **SHARED_ROPE),
    "qwen35_fused_qkv": replace(qwen35(num_hidden_layers=4), flags=("no_mtp", "fuse_qkv")),
    "qwen35_sections": replace(qwen35(**SECTIONS), differs=NO_SECTIONS),
    "qwen35_mtp": replace(qwen35(), flags=(), spelled=mtp.apart, hparams={"mtp_num_hidden_layers": 1}),
    "qwen35moe": qwen35moe(),
    "qwen35moe_mtp": replace(qwen35moe(), flags=(), spelled=mtp.apart, hparams={"mtp_num_hidden_layers": 1}),
    "qwen35moe_tied": qwen35moe(**TIED, num_hidden_layers=4, linear_num_key_heads=3),
    "qwen35moe_fused": replace(qwen35moe(num_hidden_layers=4), flags=("no_mtp", "fuse_gate_up_exps")),
    "qwen35moe_3_of_8": qwen35moe(
        num_experts=8,
        num_experts_per_tok=3,
        num_hidden_layers=4,
        layer_types=["full_attention", "linear_attention"] * 2,
    ),
}
CASES = with_bf16(
    _PLAIN,
    "mixtral",
    "smollm3",
    "arcee",
    "seed_oss",
    "apertus",
    "exaone",
    "exaone4",
    "exaone_moe",
    "qwen3next",
    "qwen35",
    "qwen35moe",
    "ministral3",
    "mistral3",
    "llama4",
    "qwen3vl",
)
