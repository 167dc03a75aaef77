"""vLLM's CPU build serves 4-bit checkpoints with the logprobs that transformers gives the weights in them.

GGUF -> requantized by ggml -> packed by gguf2st -> vLLM; against transformers in float32 on what compressed-tensors
unpacks from the same files. 8-bit integers and FP4 have no CPU kernel: tests/test_quantized_loading.py has those.
Packed experts have one on CPUs with AMX only.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as transformers_module

import gguf2st
from tests.oracle import compressed, tiny
from tests.oracle.cases import CASES, Case
from tests.oracle.rewrite import requantized
from tests.vllm.test_logprobs import IDS, TEXT, WIDER, Served, ask, by_transformers, mean_difference

transformers: Any = transformers_module  # its constructors carry no types

MEAN_TOLERANCE: Mapping[str, float] = {"float16": 0.005, "bfloat16": 0.02}
"""What computing in a dtype may cost on average; measured: 0.0004 to 0.0006 in float16, 0.004 to 0.008 in bfloat16."""

THIRTY_LAYERS = 0.02
"""The same for SmolLM2; measured: 0.007 to 0.008 in float16."""

NO_KERNEL = "No WNA16 MoE backend supports the deployment configuration."
"""vLLM's answer to packed experts on a CPU without AMX."""


@dataclass(frozen=True)
class Quantized:
    """A case of the round trip in a ggml type, and how it is packed.

    Attributes:
        case: a key of CASES, made wider; "" for SmolLM2.
        qtype: of each matrix, by the GGUF tensor's name.
        repack: mode of `convert`.
        schemes: names of the config groups that must come of it.
        dtype: that vLLM computes in.
    """

    case: str
    qtype: Callable[[str], str]
    repack: str
    schemes: frozenset[str]
    dtype: str = "float16"


def all_in(qtype: str) -> Callable[[str], str]:
    return lambda name: qtype


def ffn_in(first: str, other: str) -> Callable[[str], str]:
    return lambda name: first if "ffn" in name else other


MODELS: Mapping[str, Quantized] = {
    "llama_q4_0": Quantized("llama", all_in("Q4_0"), "exact", frozenset({"int4_g32"})),
    "llama_q4_0_bfloat16": Quantized("llama", all_in("Q4_0"), "exact", frozenset({"int4_g32"}), "bfloat16"),
    "llama_q4_1": Quantized("llama", all_in("Q4_1"), "int4", frozenset({"int4_asym_g32"})),
    "llama_tq2_0": Quantized("llama", all_in("TQ2_0"), "exact", frozenset({"int4_g128"})),
    "llama_mixed": Quantized("llama", ffn_in("Q4_0", "Q4_1"), "int4", frozenset({"int4_g32", "int4_asym_g32"})),
    "llama_half": Quantized("llama", ffn_in("Q4_0", "F16"), "exact", frozenset({"int4_g32"})),
    "qwen2_q4_k": Quantized("qwen2", all_in("Q4_K"), "int4", frozenset({"int4_asym_g32"})),
    "gemma3_q4_0": Quantized("gemma3", all_in("Q4_0"), "exact", frozenset({"int4_g32"}), "bfloat16"),
    "qwen3moe_attention": Quantized("qwen3moe", ffn_in("F16", "Q4_0"), "exact", frozenset({"int4_g32"})),
    "qwen3moe_q4_0": Quantized("qwen3moe", all_in("Q4_0"), "exact", frozenset({"int4_g32"})),
    "qwen3moe_q4_1": Quantized("qwen3moe", all_in("Q4_1"), "int4", frozenset({"int4_asym_g32"})),
    "smollm2_q4_0": Quantized("", all_in("Q4_0"), "exact", frozenset({"int4_g32"})),
    "smollm2_q4_1": Quantized("", all_in(""), "int4", frozenset({"int4_asym_g32"})),
}

EXPERTS: Mapping[str, Any] = {"moe_intermediate_size": 256}
WIDE: Mapping[str, Case] = {
    f"quantized_{name}": replace(
        CASES[name], options={**CASES[name].options, **WIDER, **(EXPERTS if name == "qwen3moe" else {})}
    )
    for name in sorted({m.case for m in MODELS.values()} - {""})
}


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> dict[str, Served]:
    home = tmp_path_factory.mktemp("quantized")
    made = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny, "CASES", WIDE)
        assert tiny.prepare(WIDE) == {}
        for name, model in MODELS.items():
            source = tiny.oracle_gguf(f"quantized_{model.case}") if model.case else smollm2
            gguf = requantized(source, home / f"{name}.gguf", model.qtype)
            gguf2st.convert(gguf, home / name, repack=model.repack)
            gguf2st.verify(home / name, gguf).require_ok()
            dense = compressed.decompress(home / name, home / f"{name}-dense")
            ids = IDS if model.case else transformers.AutoTokenizer.from_pretrained(home / name)(TEXT)["input_ids"]
            made[name] = Served(dense, home / name, ids, model.dtype)
    return made


@pytest.fixture(scope="session")
def answers(served: dict[str, Served], vllm_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return ask(vllm_python, served, tmp_path_factory.mktemp("elsewhere"))


@pytest.mark.parametrize("name", MODELS)
def test_vllm_gives_the_logprobs_of_the_weights(name: str, served: dict[str, Served], answers: dict[str, Any]) -> None:
    one = served[name]
    assert compressed.groups(one.after) == MODELS[name].schemes
    found = answers[name]
    if name in ("qwen3moe_q4_0", "qwen3moe_q4_1") and "amx_tile" not in Path("/proc/cpuinfo").read_text():
        assert NO_KERNEL in found
        return
    assert isinstance(found, list), found
    expected = by_transformers(one, torch.float32)
    mean = mean_difference(found, expected)
    allowed = MEAN_TOLERANCE[one.dtype] if MODELS[name].case else THIRTY_LAYERS
    print(f"{name}: mean difference {mean:.6f}, allowed {allowed}")
    assert mean < allowed
