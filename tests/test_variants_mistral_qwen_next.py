"""Layouts of Mixtral, Qwen 3 Next and 3.5, EXAONE and their like that the converter of today does not write."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from gguf2st.archmap.mapfile import maps_folder
from gguf2st.errors import MapError
from gguf2st.header import Header, read_header
from gguf2st.plan.build import build
from tests.oracle.tiny import oracle_gguf, original
from tests.test_variants_deepseek_glm import converted, planned, rewritten, same

pytestmark = pytest.mark.oracle


def _apart(metadata: dict[str, Any], tensors: dict[str, Any]) -> None:
    """As files from before April 2024: one tensor per expert."""
    for name in [name for name in tensors if "_exps." in name]:
        for e, expert in enumerate(tensors.pop(name)):
            tensors[name.replace("_exps.weight", f".{e}.weight")] = expert


@pytest.mark.parametrize("case", ["mixtral", "mixtral_3_of_8"])
def test_experts_of_old_files(case: str, tmp_path: Path) -> None:
    path = rewritten(case, tmp_path / "old.gguf", _apart)
    assert same(converted(path, tmp_path / "out"), load_file(original(case) / "model.safetensors"))


def test_an_expert_of_an_old_file_is_missing(tmp_path: Path) -> None:
    def edit(metadata: dict[str, Any], tensors: dict[str, Any]) -> None:
        _apart(metadata, tensors)
        del tensors["blk.1.ffn_up.3.weight"]

    plan = planned(rewritten("mixtral", tmp_path / "old.gguf", edit))
    lost = "model.layers.1.block_sparse_moe.experts.3.w3.weight"
    assert list(plan.missing) == [lost]
    assert "blk.1.ffn_up" in plan.missing[lost]


def _as_hf(metadata: dict[str, Any], tensors: dict[str, Any]) -> None:
    """As the first files of Qwen 3 Next: q, k, v and z of a key head together, as in the original checkpoint."""
    before = load_file(original("qwen3next") / "model.safetensors")
    for name in [name for name in tensors if name.endswith("attn_gate.weight")]:
        layer = name.split(".")[1]
        del tensors[name], tensors[f"blk.{layer}.attn_qkv.weight"]
        tensors[f"blk.{layer}.ssm_in.weight"] = before[f"model.layers.{layer}.linear_attn.in_proj_qkvz.weight"].numpy()


def test_projections_of_old_qwen3next_files(tmp_path: Path) -> None:
    path = rewritten("qwen3next", tmp_path / "old.gguf", _as_hf)
    found = converted(path, tmp_path / "old")
    assert same(found, converted(oracle_gguf("qwen3next"), tmp_path / "new"))  # which the round trip proves


@pytest.mark.parametrize("case", ["qwen3next", "qwen35", "qwen35moe"])
def test_full_layers_told_by_their_interval_alone(case: str) -> None:
    header = _changed(case, **{"attention.recurrent_layers": None})
    assert build(header).config == planned(oracle_gguf(case)).config


@pytest.mark.parametrize("case", ["qwen3next", "qwen35", "qwen35moe"])
def test_layers_of_another_kind_than_listed(case: str) -> None:
    """The list says that the third layer is full: its tensors have no place then, and those of a full one are lost."""
    plan = build(_changed(case, **{"attention.recurrent_layers": [True, True, False, False, True]}))
    assert [name for name in plan.missing if name.startswith("model.layers.2.self_attn.")]
    assert [name for name in plan.unmapped if name.startswith("blk.2.ssm_")]


def test_exaone4_window_without_a_pattern() -> None:
    header = _changed("exaone4_window", **{"attention.sliding_window_pattern": None})
    assert build(header).config == planned(oracle_gguf("exaone4_window")).config


def _changed(case: str, **keys: Any) -> Header:
    """The header of a case with metadata keys of its architecture set, or taken away where the value is None."""
    header = read_header([oracle_gguf(case)])
    prefixed = {key if "xielu" in key else f"{header.arch}.{key}": value for key, value in keys.items()}
    metadata = {key: value for key, value in (header.metadata | prefixed).items() if value is not None}
    return dataclasses.replace(header, metadata=metadata)


@pytest.mark.parametrize(
    ("case", "keys", "message"),
    [
        ("apertus", {"xielu.alpha_n": [0.5]}, "xielu"),
        ("apertus", {"xielu.beta": None}, "xielu.beta"),
        ("apertus", {"xielu.eps": ["x", "y", "z"]}, "number"),
        ("apertus", {"attention.key_length": 32, "attention.value_length": 32}, "hidden / heads"),
        ("ministral3", {"rope.scaling.yarn_log_multiplier": 0.5}, "yarn_log_multiplier is 0.5"),
        ("ministral3", {"rope.scaling.type": None, "rope.scaling.factor": None}, "without a yarn scaling"),
        ("ministral3", {"attention.temperature_scale": None}, "yarn_log_multiplier"),
        ("llama4", {"expert_used_count": 5}, "experts are used"),
        (
            "llama4",
            {"interleave_moe_layer_step": 0},
            "no layer step between experts (llama4.interleave_moe_layer_step = 0",
        ),
        ("exaone_moe", {"expert_gating_func": 1}, "sigmoid"),
        ("exaone_moe", {"attention.sliding_window_pattern": [True, False]}, "2 items for 5 layers"),
        ("exaone_moe", {"attention.sliding_window": None}, "no sliding window"),
        ("mixtral", {"expert_gating_func": 2}, "softmax"),
        ("qwen3next", {"attention.recurrent_layers": [True, False]}, "do not fit 5 layers"),
        ("qwen35", {"ssm.group_count": 4}, "whole key heads"),
        ("qwen35", {"rope.dimension_count": 7}, "even number"),
        ("smollm3", {"attention.key_length": 32, "attention.value_length": 32}, "hidden / heads"),
    ],
)
def test_what_cannot_be_expressed_is_refused(case: str, keys: dict[str, Any], message: str) -> None:
    problems = build(_changed(case, **keys)).all_problems
    assert [line for line in problems if message in line], problems


@pytest.mark.parametrize(
    ("case", "chosen"),
    [("mixtral", "llama-mixtral"), ("ministral3", "mistral3"), ("mistral3", "mistral3-mistral"), ("llama4", "llama4")],
)
def test_one_map_fits(case: str, chosen: str) -> None:
    assert planned(oracle_gguf(case)).map == chosen


def test_a_map_for_another_class_is_refused() -> None:
    """Forced with --arch-map, a map must not make a dense Llama of a mixture."""
    header = read_header([oracle_gguf("mixtral")])
    with pytest.raises(MapError, match="is for architecture 'mistral3'"):
        build(header, arch_map=maps_folder() / "mistral3.toml")
    plan = build(header, arch_map=maps_folder() / "llama.toml")
    assert plan.missing
    assert plan.unmapped
