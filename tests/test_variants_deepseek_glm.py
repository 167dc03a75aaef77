"""Layouts of DeepSeek, GLM and gpt-oss that the converter of today does not write, but files in the wild have."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import gguf2st
from gguf2st.config import mla
from gguf2st.header import read_header
from gguf2st.plan import Plan
from gguf2st.plan.build import build
from tests.oracle.rewrite import rewritten
from tests.oracle.tiny import oracle_gguf, original

pytestmark = pytest.mark.oracle

Array = npt.NDArray[Any]
Edit = Callable[[dict[str, Any], dict[str, Any]], None]


def converted(path: Path, folder: Path) -> dict[str, Tensor]:
    gguf2st.convert(path, folder, dtype="float32")
    return load_file(folder / "model.safetensors")


def same(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


def planned(path: Path) -> Plan:
    return build(read_header([path]))


def _without_groups(metadata: dict[str, Any], _: dict[str, Any]) -> None:
    del metadata["deepseek2.expert_group_count"], metadata["deepseek2.expert_group_used_count"]


def _merge_kv_b(tensors: dict[str, Array], *, keep_parts: bool) -> None:
    for name in [name for name in tensors if name.endswith("attn_k_b.weight")]:
        value_name = name.replace("_k_b", "_v_b")
        keys, values = tensors[name], tensors[value_name]
        heads = [np.concatenate([keys[h].T, values[h]]) for h in range(len(keys))]
        if not keep_parts:
            del tensors[name], tensors[value_name]
        tensors[name.replace("_k_b", "_kv_b")] = np.concatenate(heads)


def _before_absorption(metadata: dict[str, Any], tensors: dict[str, Any]) -> None:
    """As files were until April 2025: one matrix, and head widths of attention that is not absorbed."""
    _merge_kv_b(tensors, keep_parts=False)
    metadata["deepseek2.attention.head_count_kv"] = metadata["deepseek2.attention.head_count"]
    for key in ("key_length", "value_length"):
        metadata[f"deepseek2.attention.{key}"] = metadata.pop(f"deepseek2.attention.{key}_mla")


@pytest.mark.parametrize("case", ["deepseek_v2", "deepseek_v3", "youtu"])
def test_latent_attention_in_one_matrix(case: str, tmp_path: Path) -> None:
    found = converted(rewritten(case, tmp_path / "old.gguf", _before_absorption), tmp_path / "out")
    assert same(found, load_file(original(case) / "model.safetensors"))


def test_latent_attention_both_whole_and_split(tmp_path: Path) -> None:
    path = rewritten("deepseek_v3", tmp_path / "both.gguf", lambda _, tensors: _merge_kv_b(tensors, keep_parts=True))
    parts = [f"blk.{i}.attn_{part}_b.weight" for i in range(2) for part in "kv"]
    assert planned(path).dropped == dict.fromkeys(parts, "attn_kv_b holds the same")
    assert same(converted(path, tmp_path / "out"), load_file(original("deepseek_v3") / "model.safetensors"))


@pytest.mark.parametrize(("case", "method"), [("deepseek_v2", "greedy"), ("deepseek_v3", "noaux_tc")])
def test_groups_that_the_file_does_not_name_are_noted(case: str, method: str, tmp_path: Path) -> None:
    plan = planned(rewritten(case, tmp_path / "old.gguf", _without_groups))
    assert [plan.config[key] for key in ("n_group", "topk_group", "topk_method")] == [1, 1, method]
    assert [note for note in plan.notes if "n_group" in note]


class Keys:
    """A scope of nothing but metadata."""

    def __init__(self, **keys: int) -> None:
        self.keys, self.notes = keys, list[str]()

    def get(self, key: str) -> int | None:
        return self.keys.get(key)

    def has(self, name: str) -> bool:
        return False

    def tensor(self, name: str, why: str) -> None:
        return None

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.parametrize(
    ("layers", "experts", "v2", "expected"),
    [
        (60, 160, True, (8, 3, "group_limited_greedy")),  # V2, V2.5
        (27, 64, True, (1, 1, "greedy")),  # V2-Lite
        (61, 256, False, (8, 4)),  # V3, R1
        (61, 384, False, (1, 1)),  # Kimi K2
    ],
)
def test_groups_of_published_models(layers: int, experts: int, v2: bool, expected: tuple[int | str, ...]) -> None:
    old, new = Keys(), Keys(expert_group_count=2, expert_group_used_count=1)
    groups = mla.deepseek_v2_groups if v2 else mla.deepseek_groups
    assert tuple(groups(old, layers, experts).values()) == expected
    assert len(old.notes) == 1
    assert tuple(groups(new, layers, experts).values())[:2] == (2, 1)
    assert new.notes == []


def test_other_families_have_no_groups_that_the_file_does_not_name() -> None:
    """GLM-4.5 has as many experts as DeepSeek-V2, and no groups."""
    assert mla.expert_groups(Keys()) == {"n_group": 1, "topk_group": 1}


def _fuse_experts(_: dict[str, Any], tensors: dict[str, Any]) -> None:
    for name in [name for name in tensors if name.endswith("ffn_gate_exps.weight")]:
        gate, up = tensors.pop(name), tensors.pop(name.replace("gate", "up"))
        tensors[name.replace("gate", "gate_up")] = np.concatenate([gate, up], 1)


@pytest.mark.parametrize("case", ["deepseek_v2", "deepseek_v3", "glm4_moe_lite", "hy_v3"])
def test_gate_and_up_of_the_experts_in_one_tensor(case: str, tmp_path: Path) -> None:
    """llama.cpp loads it, gate first (build_moe_ffn), though its converter has no such tensor for these."""
    path = rewritten(case, tmp_path / "fused.gguf", _fuse_experts)
    assert same(converted(path, tmp_path / "out"), converted(oracle_gguf(case), tmp_path / "apart"))


def _other_order(metadata: dict[str, Any], tensors: dict[str, Any]) -> None:
    """As other programs hold them in memory: up first, under the name that says so."""
    _fuse_experts(metadata, tensors)
    for name in [name for name in tensors if "ffn_gate_up_exps" in name]:
        gate, up = np.split(tensors.pop(name), 2, axis=1)
        tensors[name.replace("gate_up", "up_gate")] = np.concatenate([up, gate], 1)


def test_the_other_order_is_not_taken_for_llama_cpp_s(tmp_path: Path) -> None:
    problems = planned(rewritten("deepseek_v3", tmp_path / "up_gate.gguf", _other_order)).all_problems
    assert [line for line in problems if "ffn_up_gate_exps" in line and "without a place" in line], problems


def test_experts_in_mxfp4(tmp_path: Path) -> None:
    """As gpt-oss is published; what they must become is gguf-py's reading of them, gate and up taking turns."""
    values: dict[str, Array] = {}

    def edit(_: dict[str, Any], tensors: dict[str, Any]) -> None:
        mxfp4 = gguf.GGMLQuantizationType.MXFP4
        for name in [name for name in tensors if name.endswith("_exps.weight")]:
            blocks = gguf.quants.quantize(tensors[name], mxfp4)
            values[name] = gguf.quants.dequantize(blocks, mxfp4)
            tensors[name] = (blocks, "MXFP4", tensors[name].shape)

    found = converted(rewritten("gpt_oss", tmp_path / "mxfp4.gguf", edit), tmp_path / "out")
    for i in range(2):
        gate, up, down = (values[f"blk.{i}.ffn_{part}_exps.weight"] for part in ("gate", "up", "down"))
        fused = found[f"model.layers.{i}.mlp.experts.gate_up_proj"].numpy()
        np.testing.assert_array_equal(fused[:, :, ::2], gate.swapaxes(1, 2))
        np.testing.assert_array_equal(fused[:, :, 1::2], up.swapaxes(1, 2))
        np.testing.assert_array_equal(found[f"model.layers.{i}.mlp.experts.down_proj"].numpy(), down.swapaxes(1, 2))


def _all_dimensions_rotate(metadata: dict[str, Any], _: dict[str, Any]) -> None:
    metadata["bailingmoe2.rope.dimension_count"] = metadata["bailingmoe2.attention.key_length"]


def test_sarvam_is_not_taken_for_bailing(tmp_path: Path) -> None:
    """The same architecture name; heads that rotate whole are the only difference that a file shows."""
    plan = planned(rewritten("bailing_moe_v2", tmp_path / "sarvam.gguf", _all_dimensions_rotate))
    assert plan.config["architectures"] == ["SarvamMoEForCausalLM"]
    assert planned(oracle_gguf("bailing_moe_v2")).config["architectures"] == ["BailingMoeV2ForCausalLM"]


def _forget_alpha(metadata: dict[str, Any], _: dict[str, Any]) -> None:
    metadata["hunyuan-dense.rope.freq_base"] = np.float32(123456.7)


def test_a_base_that_no_alpha_gives_is_written_as_it_is(tmp_path: Path) -> None:
    plan = planned(rewritten("hunyuan_dense_alpha", tmp_path / "base.gguf", _forget_alpha))
    assert plan.config["rope_parameters"] == {"rope_type": "default", "rope_theta": 123456.7}
    assert [note for note in plan.notes if "no whole alpha" in note]
