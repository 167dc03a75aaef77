"""Text parts of models that see and hear: what the converter makes of them, and the text class that becomes of it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.oracle.case import TIED, Case, with_bf16


def paddleocr(**options: Any) -> Case:
    """The sections of its rotary embedding make no difference to text."""
    rotary = {"rope_type": "default", "rope_theta": 500000.0}
    return Case(
        "LlamaConfig",
        {"rope_parameters": rotary, "rms_norm_eps": 1e-5, **options},
        tokenizer="spm",
        hparams={
            "architectures": ["PaddleOCRVLForConditionalGeneration"],
            "rope_parameters": {**rotary, "mrope_section": [4, 2, 2]},
        },
    )


def hunyuan_vl(alpha: float = 1000.0, **options: Any) -> Case:
    rotary = {"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": alpha, "factor": 1.0}
    return Case(
        "HunYuanDenseV1Config",
        {"head_dim": 32, "use_qk_norm": True, "eod_token_id": 1, "rope_parameters": rotary, **options},
        hparams={
            "architectures": ["HunYuanVLForConditionalGeneration"],
            "rope_parameters": {**rotary, "rope_type": "xdrope", "xdrope_section": [4, 4, 4, 4]},
        },
        differs={"eod_token_id": (3, "transformers' default; no layer uses it")},
        tolerance=2e-3,  # llama.cpp raises alpha to a power in float32
    )


SECTIONS: Mapping[str, Any] = {
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [2, 3, 3],
    }
}


def glm4_vision(**options: Any) -> Case:
    """GLM-4.1V: the text part is GLM-4, but for the order of rows that the converter gives q and k."""
    rotary = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}
    return Case(
        "Glm4Config",
        {"head_dim": 32, "attention_bias": True, "eos_token_id": [1, 4], **rotary, **options},
        tokenizer="glm",
        hparams={"architectures": ["Glm4vForConditionalGeneration"], **SECTIONS},
        tolerance=5e-3,
    )


def glm4moe_vision(**options: Any) -> Case:
    given = {
        "head_dim": 32,
        "moe_intermediate_size": 48,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 3,
        "num_nextn_predict_layers": 0,
        "attention_bias": True,
        "use_qk_norm": False,
    }
    return Case(
        "Glm4MoeConfig",
        {**given, **options},
        tokenizer="glm",
        hparams={"architectures": ["Glm4vMoeForConditionalGeneration"], **SECTIONS},
    )


_PLAIN: dict[str, Case] = {
    "glm4-vision": glm4_vision(),
    "glm4-vision_no_bias": glm4_vision(attention_bias=False, num_hidden_layers=3, num_key_value_heads=4),
    "glm4-vision_fused_qkv": replace(glm4_vision(), flags=("fuse_qkv",)),
    "glm4moe_vision": glm4moe_vision(),
    "paddleocr": paddleocr(),
    "paddleocr_head_dim": paddleocr(head_dim=32, num_hidden_layers=3, **TIED),
    "hunyuan_vl": hunyuan_vl(),
    "hunyuan_vl_tied": hunyuan_vl(50.0, num_hidden_layers=3, num_key_value_heads=1, **TIED),
}
CASES = with_bf16(_PLAIN, "glm4-vision", "paddleocr", "hunyuan_vl")
