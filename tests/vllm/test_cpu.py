"""The classes of which `check` says that they run on no CPU fail on this one, and others of their kind answer.

Configurations of tiny models, with widths that CPU kernels take; the weights are random.
"""

import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import gguf2st
from gguf2st.header import read_header
from gguf2st.output.small_files import configurations
from gguf2st.serving.hardware import why_no_cpu
from tests.oracle.cases import CASES
from tests.oracle.tiny import oracle_gguf, prepare
from tests.vllm.conftest import ENVIRONMENT, HERE

pytestmark = pytest.mark.slow

FAILING: Mapping[str, str] = {
    "bailingmoe3": "--mamba-block-size",  # vLLM chooses a size of blocks that it refuses
    "deepseek32": "Sparse Attention is not supported on CPU",
    "deepseek4": "v1/attention/ops/metadata.py",
    "dots3note": "failed to be inspected",
    "glm-dsa": "Sparse Attention is not supported on CPU",
    "glm5-next": "--mamba-block-size",
    "hy_v4": "no valid sparse MLA backend",
    "jamba": "layers/mamba/mamba_mixer.py",
    "kimi-k3": "--mamba-block-size",
    "kimi-linear": "--mamba-block-size",
    "laguna": 'scoring_func == "softmax"',
    "mamba": "layers/mamba/mamba_mixer.py",
    "mamba-falcon": "layers/mamba/mamba_mixer.py",
    "mimo2": "triton_attn_diffkv.py",
    "minimax-m2": 'scoring_func == "softmax"',
    "minimax-m3": "No Unquantized MoE backend supports",
    "nemotron_h_moe": "supported only for CUDA",
    "qwen4exp": "pin_memory=True requires a CUDA",
    "step35": "No Unquantized MoE backend supports",
}
"""Arch map -> what vLLM says, or where it fails."""

ANSWERING = ("bailingmoe2", "deepseek2", "glm4moe", "gpt-oss", "lfm2moe", "llama", "mamba2", "qwen35moe", "qwen3next")
"""Arch maps with experts that a sigmoid chooses, latent attention, Mamba layers and other linear attention."""

WIDTHS: Mapping[str, Mapping[str, int]] = {
    "deepseek2": {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128},
    "deepseek4": {"head_dim": 512, "qk_rope_head_dim": 64, "index_head_dim": 128},
}
"""Those of the published models, where vLLM knows no others."""
_KEPT = ("vocab_size", "window_size", "kernel", "chunk", "block", "group", "ngram", "per_layer", "rope_dim")


def widened(config: Any) -> Any:
    """Widths four times as large: CPU kernels take heads of 32 values and up, where a tiny model's have 16."""
    if not isinstance(config, dict):
        return config
    wide = {}
    for key, value in config.items():
        grows = re.search(r"(_dim|_size|_rank)$", key) and not any(word in key for word in _KEPT)
        wide[key] = value * 4 if grows and isinstance(value, int) and value > 0 else widened(value)
    return wide


@pytest.fixture(scope="module")
def plans() -> dict[str, dict[str, Any]]:
    """Arch map -> config.json of one tiny model."""
    unmade = prepare(CASES)  # what the round trip says about them is enough
    found: dict[str, dict[str, Any]] = {}
    for case in (name for name in CASES if name not in unmade):
        plan = gguf2st.make_plan(read_header([oracle_gguf(case)]))
        if plan.map not in found:
            found[plan.map] = configurations(plan)["config.json"]
    return found


@pytest.fixture(scope="module")
def answers(plans: dict[str, Any], vllm_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What goes wrong with each, all in one call."""
    wide = {name: widened(plans[name]) | WIDTHS.get(name, {}) for name in (*FAILING, *ANSWERING)}
    run = subprocess.run(
        [vllm_python, HERE / "cpu_probe.py"], text=True, check=False, capture_output=True,
        input=json.dumps([{"name": name, "config": config} for name, config in wide.items()]),
        env=os.environ | ENVIRONMENT, cwd=tmp_path_factory.mktemp("elsewhere"),
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    results: dict[str, str] = json.loads(run.stdout)
    return results


def test_what_is_said_to_run_on_no_cpu(plans: dict[str, dict[str, Any]]) -> None:
    """Nomic's experts are left out: vLLM's class knows the widths of the published model only."""
    told = {name for name, config in plans.items() if why_no_cpu(config["architectures"][0], config)}
    assert told - {"nomic-bert-moe"} == FAILING.keys()


@pytest.mark.parametrize("name", FAILING)
def test_it_fails_on_a_cpu(name: str, answers: dict[str, str]) -> None:
    assert FAILING[name] in answers[name], answers[name][-2000:]


@pytest.mark.parametrize("name", ANSWERING)
def test_others_of_the_kind_answer_there(name: str, answers: dict[str, str]) -> None:
    assert answers[name] == ""
