"""Which weights stay dense whatever the output, for most of them because vLLM builds them without quantization.

Read from the model classes of vLLM 0.32 by building each of them with a quantization that records what asks for it
(tests/vllm/test_modules.py holds this table to it). A weight is named by its GGUF tensor, without the layer.
"""

import re
from collections.abc import Mapping

_EMBEDDING = "vLLM looks rows up in it, and reads it for a tied head"
_ROUTER = "all but a few classes of vLLM, and all but a few of transformers, read routers in 16 bits alone"
"""Of vLLM's classes those of Qwen3 MoE and LFM2 MoE read packed ones too; a router is too small to be worth a rule."""
_SMALL = "it is small, and vLLM keeps it in 16 bits or has no kernel for so few rows"
_NO_LINEAR = "it is no linear layer"

EVERYWHERE: Mapping[str, str] = {
    "token_embd": _EMBEDDING,
    "token_embd_norm": _NO_LINEAR,
    "position_embd": _EMBEDDING,
    "token_types": _EMBEDDING,
    "per_layer_token_embd": _EMBEDDING,
    "ffn_gate_inp": _ROUTER,
    "ffn_gate_inp_shexp": _ROUTER,
    "ssm_conv1d": _NO_LINEAR,
    "ssm_conv1d_q": _NO_LINEAR,
    "ssm_conv1d_k": _NO_LINEAR,
    "ssm_conv1d_v": _NO_LINEAR,
    "shortconv.conv": _NO_LINEAR,
    "attn_q_norm": _NO_LINEAR,
    "attn_k_norm": _NO_LINEAR,
    "ssm_norm": _NO_LINEAR,
    "ssm_ba": _SMALL,
    "ssm_alpha": _SMALL,
    "ssm_beta": _SMALL,
    "indexer.attn_k": _SMALL,
    "indexer.proj": _SMALL,
    "cls": _SMALL,
    "cls.output": _SMALL,
}
"""GGUF tensor -> why it stays dense in every class; a class of vLLM may be able to read it packed."""

_WITHOUT = "vLLM's {} builds it without quantization"
_UNNAMED = "vLLM's {} gives it no name that a quantization could be looked up by"

_OTHER_NAMES = "vLLM's {} looks it up by a name that the checkpoint does not have"
_PLAIN = "vLLM's {} takes its weight past the quantization, for kernels of its own"
_QKV = ("attn_q", "attn_k", "attn_v", "attn_qkv")
_GATE_UP = ("ffn_gate", "ffn_up")
_GATE_UP_SHARED = ("ffn_gate_shexp", "ffn_up_shexp")
_KV_A = ("attn_q_a", "attn_kv_a_mqa")
_KDA = ("ssm_f_a", "ssm_f_b", "ssm_g_a", "ssm_g_b")
_MAMBA = ("ssm_in", "ssm_out", "ssm_x", "ssm_dt")

BY_CLASS: Mapping[str, Mapping[str, str]] = {
    "AfmoeForCausalLM": {"output": _UNNAMED},
    "BailingMoeV3ForCausalLM": dict.fromkeys(_KV_A, _OTHER_NAMES),
    "Cohere2MoeForCausalLM": {"output": "vLLM's {} always ties its head to the embedding"},
    "DeepseekForCausalLM": dict.fromkeys((*_QKV, "attn_output"), _UNNAMED),
    "FalconMambaForCausalLM": dict.fromkeys(("output", *_MAMBA), _WITHOUT),
    "Gemma3TextModel": dict.fromkeys((*_QKV, *_GATE_UP), _OTHER_NAMES),
    "Glm5NextForCausalLM": {
        **dict.fromkeys((*_QKV, *_KV_A, *_KDA, "attn_q_b", "attn_output", "indexer.attn_q_b"), _WITHOUT),
        **dict.fromkeys((*_GATE_UP, *_GATE_UP_SHARED), _OTHER_NAMES),
    },
    "KimiLinearForCausalLM": {  # which is Kimi K3's class too
        **dict.fromkeys(("ssm_f_b", "ffn_routed_up"), _PLAIN),
        "attn_gate": "vLLM's {} has a loader of its own for it",
        "ssm_g": "vLLM's {} makes one parameter of it and of ssm_beta, which is small",
    },
    "ModernBertForSequenceClassification": dict.fromkeys((*_QKV, "attn_output", "ffn_up", "ffn_down"), _OTHER_NAMES),
    "MuseGlimmerForCausalLM": {"attn_gate": _OTHER_NAMES},
    "NomicBertModel": dict.fromkeys((*_QKV, "attn_output", *_GATE_UP, "ffn_down"), _OTHER_NAMES),
    "Qwen3NextForCausalLM": {"output": _WITHOUT},
    "Qwen4ExpForCausalLM": {
        "output": _WITHOUT,
        **{
            f"{where}_{what}": _WITHOUT
            for where in ("hc_attn", "hc_ffn", "output_hc")
            for what in ("down", "up", "inject")
        },
    },
    "StableLmForCausalLM": dict.fromkeys((*_QKV, *_GATE_UP), _OTHER_NAMES),
    "Dots3NoteForCausalLM": dict.fromkeys((*_KV_A, *_GATE_UP, *_GATE_UP_SHARED), _OTHER_NAMES),
    "ExaoneMoeForCausalLM": {"output": _UNNAMED},
    "FalconH1ForCausalLM": {"output": _WITHOUT},
    "GPTNeoXForCausalLM": {"output": _OTHER_NAMES},
    "GptOssForCausalLM": {"output": _WITHOUT},
    "JambaForCausalLM": dict.fromkeys(("output", *_MAMBA), _WITHOUT),
    "Mamba2ForCausalLM": {"output": _WITHOUT},
    "MambaForCausalLM": dict.fromkeys(("output", *_MAMBA), _WITHOUT),
    "MiniCPM3ForCausalLM": {"attn_q_a": _UNNAMED},
    "PhiMoEForCausalLM": {"output": _WITHOUT},
}
"""HF class -> GGUF tensor -> why it stays dense there; {} stands for the class."""

ALIKE: Mapping[str, frozenset[str]] = {"FalconH1ForCausalLM": frozenset({"ssm_in", "ssm_out"})}
"""HF class -> GGUF tensors that vLLM looks up by another layer's number, so that all layers must be packed alike."""

TOGETHER: Mapping[str, str] = {
    "attn_q": "qkv",
    "attn_k": "qkv",
    "attn_v": "qkv",
    "attn_q_a": "qkv_a",
    "attn_kv_a_mqa": "qkv_a",
    "ffn_gate": "gate_up",
    "ffn_up": "gate_up",
    "ffn_gate_shexp": "gate_up_shexp",
    "ffn_up_shexp": "gate_up_shexp",
    "ffn_gate_exps": "exps",
    "ffn_up_exps": "exps",
    "ffn_down_exps": "exps",
}
"""GGUF tensor -> what nearly every class loads it as in one layer, for maps without a [fused] table."""

_LAYER = re.compile(r"(?:enc\.|dec\.)?blk\.\d+\.")


def layerless(source: str) -> str:
    """`ffn_gate_inp` for `blk.3.ffn_gate_inp.weight`."""
    return _LAYER.sub("", source).removesuffix(".weight")


def unquantized(hf_class: str, source: str) -> str:
    """Why the weight from a GGUF tensor stays dense; empty when it may be packed.

    Args:
        hf_class: first of the configuration's `architectures`.
        source: `blk.3.ffn_gate_inp.weight`.
    """
    name = layerless(source)
    if why := EVERYWHERE.get(name):
        return why
    return BY_CLASS.get(hf_class, {}).get(name, "").format(hf_class)


def never_quantized(hf_class: str, source: str) -> str:
    """The same, but only where vLLM cannot read the weight packed, whatever the targets of a config group are."""
    name = layerless(source)
    found = EVERYWHERE.get(name) or BY_CLASS.get(hf_class, {}).get(name, "")
    return found.format(hf_class) if found in (_NO_LINEAR, _WITHOUT) else ""  # some classes read packed routers
