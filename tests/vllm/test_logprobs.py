"""vLLM gives our checkpoints the logprobs that transformers gives the models they came from.

HF -> GGUF by llama.cpp's converter -> checkpoint by gguf2st -> vLLM in bfloat16, against transformers in float32 on the
first of these.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as transformers_module

import gguf2st
from gguf2st.serving.preflight import who_serves
from tests.oracle import tiny
from tests.oracle.cases import CASES, Case
from tests.vllm.conftest import ENVIRONMENT, HERE

transformers: Any = transformers_module  # its constructors carry no types

IDS = list(range(5, 45))
TEXT = "The capital of France is Paris. Water boils at one hundred degrees Celsius, and freezes at zero."

MEAN_TOLERANCE: Mapping[str, float] = {"bfloat16": 0.02, "float32": 1e-4}
"""What a dtype may cost on average; measured: 0.002 to 0.009 for bfloat16, and 0.04 to 0.34 for heads in another order,
norms left out or a scaling ignored. Thirty layers cost more: there, transformers itself in bfloat16 is the measure."""

WIDER: Mapping[str, Any] = {"hidden_size": 256, "intermediate_size": 512}
"""vLLM's CPU attention takes heads of 32 values and up; four heads of a tiny model have 16."""

NAMES = [
    "llama",
    "llama_tied",
    "llama_bias",
    "llama_rope3_8",
    "llama_linear",
    "llama_yarn",
    "llama_fused_qkv",
    "mistral",
    "gemma3",
    "qwen2",
    "qwen2_yarn",
    "qwen3",
    "qwen3_tied",
    "qwen3moe",
]
MODELS: Mapping[str, Case] = {
    f"wide_{name}": replace(CASES[name], options={**CASES[name].options, **WIDER}) for name in NAMES
}


@dataclass(frozen=True)
class Served:
    """A model, the folder of it for transformers, the one for vLLM, and what both read in which dtype."""

    before: Path
    after: Path
    ids: list[int]
    dtype: str = "bfloat16"


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> dict[str, Served]:
    home = tmp_path_factory.mktemp("vllm")
    made = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny, "CASES", MODELS)
        assert tiny.prepare(MODELS) == {}
        for name in MODELS:
            gguf2st.convert(tiny.oracle_gguf(name), home / name)
            made[name] = Served(tiny.original(name), home / name, IDS)
    smol = home / "smollm2"
    gguf2st.convert(smollm2, smol)
    ids = transformers.AutoTokenizer.from_pretrained(smol)(TEXT)["input_ids"]
    return made | {"smollm2": Served(smol, smol, ids), "smollm2_float32": Served(smol, smol, ids, "float32")}


@pytest.fixture(scope="session")
def answers(served: dict[str, Served], vllm_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return ask(vllm_python, served, tmp_path_factory.mktemp("elsewhere"))


def ask(vllm_python: Path, served: Mapping[str, Served], elsewhere: Path) -> dict[str, Any]:
    """What vLLM says about each checkpoint, all in one process."""
    jobs = [{"name": name, "folder": str(s.after), "ids": s.ids, "dtype": s.dtype} for name, s in served.items()]
    run = subprocess.run(
        [vllm_python, HERE / "llm_probe.py"], input=json.dumps(jobs), env=os.environ | ENVIRONMENT,
        cwd=elsewhere, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    results: dict[str, Any] = json.loads(run.stdout)
    return results


@pytest.mark.parametrize("name", [*MODELS, "smollm2", "smollm2_float32"])
def test_vllm_gives_the_logprobs_of_the_original(name: str, served: dict[str, Served], answers: dict[str, Any]) -> None:
    one = served[name]
    hf_class = json.loads((one.after / "config.json").read_text())["architectures"][0]
    assert who_serves(hf_class)[0] != "not served"
    found = answers[name]
    assert isinstance(found, list), found
    expected = by_transformers(one, torch.float32)
    tolerance = MEAN_TOLERANCE[one.dtype]
    if name == "smollm2":
        tolerance = max(tolerance, 1.5 * mean_difference(by_transformers(one, torch.bfloat16), expected))
    mean = mean_difference(found, expected)
    print(f"{name}: mean difference {mean:.6f}, allowed {tolerance:.4f}")
    assert mean < tolerance


def by_transformers(one: Served, dtype: torch.dtype) -> list[float]:
    model = transformers.AutoModelForCausalLM.from_pretrained(one.before, dtype=dtype).eval()
    with torch.inference_mode():
        logprobs = torch.log_softmax(model(torch.tensor([one.ids])).logits[0].float(), -1)
    return [logprobs[i - 1, one.ids[i]].item() for i in range(1, len(one.ids))]


def mean_difference(found: list[float], expected: list[float]) -> float:
    return sum(abs(a - b) for a, b in zip(found, expected, strict=True)) / len(found)
