"""Keys in the other of the two forms that llama.cpp reads: one value, or one for each layer."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import gguf2st
from tests.oracle.llamacpp import LlamaCpp, in_child
from tests.oracle.rewrite import Metadata, Tensors, rewritten
from tests.oracle.tiny import oracle_gguf

pytestmark = pytest.mark.oracle

KEYS = ("attention.head_count", "attention.head_count_kv", "feed_forward_length")


def _listed(metadata: Metadata, _tensors: Tensors) -> None:
    arch, n_layers = next(
        (key[: -len(".block_count")], n) for key, n in metadata.items() if key.endswith("block_count")
    )
    for key in KEYS:
        metadata[f"{arch}.{key}"] = [int(metadata[f"{arch}.{key}"])] * int(n_layers)


def _tokens(gguf: Path) -> Any:
    with LlamaCpp(gguf, n_ctx=64, n_threads=1) as model:
        return model.logits(list(range(5, 20)))


@pytest.mark.parametrize("case", ["llama", "qwen3", "gemma3", "qwen2moe", "starcoder2"])
def test_one_value_for_each_layer_that_is_the_same_in_all(case: str, tmp_path: Path) -> None:
    listed, folders = rewritten(case, tmp_path / "listed.gguf", _listed), (tmp_path / "one", tmp_path / "other")
    for source, folder in zip((oracle_gguf(case), listed), folders, strict=True):
        gguf2st.convert(source, folder, dtype="float32")
    configs = [(folder / "config.json").read_text() for folder in folders]
    assert configs[0] == configs[1]
    found, expected = (load_file(folder / "model.safetensors") for folder in folders)
    assert found.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())
    assert (in_child(_tokens, listed) == in_child(_tokens, oracle_gguf(case))).all()  # and llama.cpp reads it so


def test_values_that_differ_are_no_single_value(tmp_path: Path) -> None:
    def differ(metadata: Metadata, _tensors: Tensors) -> None:
        metadata["llama.feed_forward_length"] = [128, 96]

    plan = gguf2st.make_plan(rewritten("llama", tmp_path / "differ.gguf", differ))
    assert any("one value per layer" in problem for problem in plan.all_problems)


def test_as_many_values_as_layers(tmp_path: Path) -> None:
    def more(metadata: Metadata, _tensors: Tensors) -> None:
        metadata["llama.feed_forward_length"] = [128, 128, 128]

    plan = gguf2st.make_plan(rewritten("llama", tmp_path / "more.gguf", more))
    assert any("one value per layer" in problem for problem in plan.all_problems)
