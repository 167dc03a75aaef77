"""Tests with a real vLLM. They take minutes and an environment of their own, so they run only when this folder is
named: `make test-vllm`."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
PYTHON = ROOT / ".venv-vllm/bin/python"

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "2",
}
"""For a small machine without a network."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    named = [Path(str(a).split("::")[0]).resolve() for a in config.invocation_params.args if not str(a).startswith("-")]
    return None if any(path == HERE or HERE in path.parents for path in named) else True


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """The interpreter that has vLLM; its absence is a failure, for whoever runs these tests wants them."""
    if not PYTHON.exists():
        pytest.fail("there is no .venv-vllm: run `make vllm-env`")
    return PYTHON


@pytest.fixture
def environment() -> dict[str, str]:
    return os.environ | ENVIRONMENT
