"""vLLM's own loader, which is silent about parameters that it misses, fills all of its class from what gguf2st writes.

One tiny model in 16 bits for each arch map of a class that vLLM serves, and one whose head is its embedding, if the map
knows such; loaded, not run.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

import gguf2st
from gguf2st.header import read_header
from gguf2st.serving.preflight import who_serves
from tests.oracle.cases import CASES
from tests.oracle.tiny import oracle_gguf, prepare
from tests.vllm.conftest import ENVIRONMENT, HERE

pytestmark = pytest.mark.slow

TIED = "-tied"
UNBUILT: Mapping[str, str] = {
    "dbrx": "vLLM's loader finds no parameter for the experts under any name",
    "deci": "vLLM reads the configuration with code of the model's repository",
    "deepseek4": "vLLM's class knows the widths of the published model's heads only",
    "dots3note": "vLLM's class imports a library for GPUs",
    "granitehybrid-bamba": "vLLM 0.32 has no Bamba",
    "minimax-m3": "vLLM's class knows the widths of the published model's heads only",
    "nanbeige": "the Transformers backend needs code of the model's repository",
    "nomic-bert-moe": "vLLM's class knows the widths of the published model's heads only",
    "plamo3": "vLLM reads the configuration with code of the model's repository",
}
"""Arch maps whose models vLLM cannot build or load here."""

LACKING: Mapping[str, tuple[str, str]] = {
    "laguna": ("e_score_correction_bias", "vLLM 0.32 looks for it elsewhere than the published checkpoint has it"),
}
"""Arch map -> the end of the names of parameters that stay empty, and why that is none of ours."""

PADDED: Mapping[str, str] = {
    "kimi-k3": "in_proj_qkvgfab.weight",
    "qwen4exp": "input_mix_weight_down_block_inject.weight",
}
"""Arch map -> the end of the names of parameters that vLLM pads."""


@pytest.fixture(scope="module")
def loaded(vllm_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Arch map, and whether the head is tied -> what vLLM says, all in one process."""
    unmade = prepare(CASES)  # what the round trip says about them is enough
    folder = tmp_path_factory.mktemp("dense")
    jobs: dict[str, str] = {}
    for case in (name for name in CASES if name not in unmade):
        plan = gguf2st.make_plan(read_header([oracle_gguf(case)]))
        served = who_serves(plan.config["architectures"][0])[0] != "not served"
        name = plan.map + TIED * (plan.config.get("tie_word_embeddings") is True)
        if name not in jobs and served and plan.map not in UNBUILT:
            gguf2st.convert(oracle_gguf(case), folder / name)
            jobs[name] = str(folder / name)
    run = subprocess.run(
        [vllm_python, HERE / "loading_probe.py"], text=True, check=False, capture_output=True,
        input=json.dumps([{"name": name, "folder": where} for name, where in jobs.items()]),
        env=os.environ | ENVIRONMENT, cwd=tmp_path_factory.mktemp("elsewhere"),
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    results: dict[str, object] = json.loads(run.stdout)
    return results


def test_no_parameter_stays_empty(loaded: dict[str, object]) -> None:
    assert len(loaded) > 150
    wrong: list[str] = []
    for name, found in loaded.items():
        if not isinstance(found, dict):
            wrong.append(f"{name}: {str(found).strip().splitlines()[-1]}")
            continue
        by_map = name.removesuffix(TIED)
        lacking, padded = LACKING.get(by_map, ("nothing", ""))[0], PADDED.get(by_map, "nothing")
        wrong += [f"{name}: {parameter} is empty" for parameter in found["empty"] if not parameter.endswith(lacking)]
        wrong += [f"{name}: {parameter} has gaps" for parameter in found["partly"] if not parameter.endswith(padded)]
    assert wrong == []
