"""What llama.cpp's converter fuses when it is asked to: queries, keys and values, or gate and up of the experts.

Of architectures whose own tables have no such case.
"""

from collections.abc import Mapping
from dataclasses import replace

from tests.oracle.case import Case
from tests.oracle.families import (
    by_hand_experts,
    by_hand_moe,
    deepseek_glm_gptoss,
    gemma_phi_cohere,
    granite_ssm_falcon,
    llama_gemma3_qwen,
)


def fused(table: Mapping[str, Case], flag: str, *names: str) -> dict[str, Case]:
    return {f"{name}_{flag}": replace(table[name], flags=(*table[name].flags, flag)) for name in names}


CASES: dict[str, Case] = {
    **fused(llama_gemma3_qwen.CASES, "fuse_qkv", "gemma3"),
    **fused(gemma_phi_cohere.CASES, "fuse_qkv", "gemma3n", "phimoe"),
    **fused(deepseek_glm_gptoss.CASES, "fuse_qkv", "solar_open"),
    **fused(granite_ssm_falcon.CASES, "fuse_qkv", "nemotron_h_moe", "kimi_linear"),
    **fused(by_hand_moe.CASES, "fuse_qkv", "step35"),
    **fused(by_hand_experts.CASES, "fuse_gate_up_exps", "deepseek2-ocr"),
}
