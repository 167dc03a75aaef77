"""What Granite, Falcon H1, Kimi Linear and Nemotron look like beside the round trip: multipliers, old layouts, MTP."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as transformers_module
from safetensors.torch import load_file
from torch import Tensor

import gguf2st
from gguf2st.header import Header, read_header
from gguf2st.plan.build import build
from tests.oracle import tiny
from tests.oracle.case import Case
from tests.oracle.families.granite_ssm_falcon import CASES, FALCON_H1, log_exp
from tests.oracle.tiny import oracle_gguf, original
from tests.test_variants_deepseek_glm import converted, planned, rewritten, same

transformers: Any = transformers_module  # its constructors carry no types
pytestmark = pytest.mark.oracle

MULTIPLIERS: dict[str, Any] = {
    "embedding_multiplier": 5.656854249492381,
    "lm_head_multiplier": 0.0390625,
    "key_multiplier": 0.5,
    "attention_in_multiplier": 1.25,
    "attention_out_multiplier": 0.9375,
    "ssm_in_multiplier": 1.5,
    "ssm_out_multiplier": 0.2357022603955158,
    "mlp_multipliers": [0.8838834764831844, 0.5859375],
    "ssm_multipliers": [0.35355339059327373, 0.25, 0.3, 0.5, 0.7],
}
"""Most as Falcon-H1-1.5B has them; the others are no 1, so that a forgotten one shows."""


@pytest.fixture(scope="module", autouse=True)
def _prepared() -> None:
    """All cases at once: each start of the converter costs more than all conversions."""
    assert tiny.prepare(CASES) == {}


@pytest.fixture(scope="module")
def multiplied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint of Falcon H1 with multipliers, and what comes back of it."""
    folder = tmp_path_factory.mktemp("multipliers")
    before, gguf, after = folder / "before", folder / "falcon_h1.gguf", folder / "after"
    tiny.write_checkpoint(Case("FalconH1Config", {**FALCON_H1, **MULTIPLIERS, "mamba_n_groups": 3}), before)
    job = {"source": str(before), "target": str(gguf), "flags": [], "hparams": {}}
    assert tiny.run_converter([job]) == {}
    gguf2st.convert(gguf, after, dtype="float32")
    return before, after


def test_falcon_h1_has_its_multipliers_in_its_weights(multiplied: tuple[Path, Path]) -> None:
    before, after = (load_file(folder / "model.safetensors") for folder in multiplied)
    in_proj = np.repeat(MULTIPLIERS["ssm_multipliers"], [96, 96, 48, 48, 3]) * MULTIPLIERS["ssm_in_multiplier"]
    attention = MULTIPLIERS["attention_in_multiplier"]
    factors: dict[str, Any] = {
        "embed_tokens": MULTIPLIERS["embedding_multiplier"],
        "lm_head": MULTIPLIERS["lm_head_multiplier"],
        "q_proj": attention,
        "k_proj": attention * MULTIPLIERS["key_multiplier"],
        "v_proj": attention,
        "o_proj": MULTIPLIERS["attention_out_multiplier"],
        "gate_proj": MULTIPLIERS["mlp_multipliers"][0],
        "down_proj": MULTIPLIERS["mlp_multipliers"][1],
        "in_proj": torch.from_numpy(in_proj)[:, None],
        "out_proj": MULTIPLIERS["ssm_out_multiplier"],
    }
    assert before.keys() == after.keys()
    for name, weight in before.items():
        module = name.split(".")[-2]
        expected = (weight.double() * factors.get(module, 1.0)).float()
        if name.endswith("A_log"):
            expected = log_exp(weight)
        torch.testing.assert_close(after[name], expected, rtol=3e-7, atol=0)  # the converter rounds twice or thrice


def test_falcon_h1_without_multipliers_computes_the_same(multiplied: tuple[Path, Path]) -> None:
    config = json.loads((multiplied[1] / "config.json").read_text())
    ones = {key: [1.0] * len(value) if isinstance(value, list) else 1.0 for key, value in MULTIPLIERS.items()}
    assert {key: config[key] for key in MULTIPLIERS} == ones
    ids = torch.arange(5, 45)[None]
    with torch.inference_mode():
        before, after = (transformers.AutoModelForCausalLM.from_pretrained(f)(ids).logits for f in multiplied)
    torch.testing.assert_close(after, before, rtol=0, atol=1e-6)


def _kimi_old(metadata: dict[str, Any], tensors: dict[str, Any]) -> None:
    """As requantized or older files: MLA in one matrix, axes of length 1 gone."""
    before = load_file(original("kimi_linear") / "model.safetensors")
    for name in list(tensors):
        layer = name.split(".")[1]
        if name.endswith("attn_k_b.weight"):
            del tensors[name], tensors[name.replace("_k_b", "_v_b")]
            whole = before[f"model.layers.{layer}.self_attn.kv_b_proj.weight"]
            tensors[name.replace("_k_b", "_kv_b")] = whole.numpy()
        elif "ssm_conv1d" in name:
            tensors[name] = tensors[name].reshape(64, 1, 4)
        elif name.endswith("ssm_a"):
            tensors[name] = tensors[name].reshape(4, 1)


def test_kimi_linear_in_the_old_layout(tmp_path: Path) -> None:
    found = converted(rewritten("kimi_linear", tmp_path / "old.gguf", _kimi_old), tmp_path / "old")
    assert same(found, converted(oracle_gguf("kimi_linear"), tmp_path / "new"))  # which the round trip proves


def test_kimi_linear_with_a_dense_layer(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    dense = {
        "gate": rng.random((128, 64), np.float32),
        "up": rng.random((128, 64), np.float32),
        "down": rng.random((64, 128), np.float32),
    }

    def edit(metadata: dict[str, Any], tensors: dict[str, Any]) -> None:
        metadata["kimi-linear.leading_dense_block_count"] = np.uint32(1)
        for name in [n for n in tensors if n.startswith("blk.0.") and ("exp" in n or "ffn_gate_inp" in n)]:
            del tensors[name]
        tensors |= {f"blk.0.ffn_{part}.weight": value for part, value in dense.items()}

    found = converted(rewritten("kimi_linear", tmp_path / "dense.gguf", edit), tmp_path / "out")
    ours = {name: tensor for name, tensor in found.items() if ".0.mlp." in name or ".0.block_sparse_moe." in name}
    official = {f"model.layers.0.mlp.{part}_proj.weight": torch.from_numpy(value) for part, value in dense.items()}
    assert same(ours, official)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    read = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    assert config["first_k_dense_replace"] == 1
    assert read.mlp_layer_types == ["dense"] + ["sparse"] * 4
    report = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)[1]
    assert not any(report.values()), report


@pytest.mark.parametrize(
    ("case", "chosen"),
    [
        ("granite", "granite"),
        ("granite_4_dense", "granite-hybrid"),
        ("granitemoe", "granitemoe"),
        ("granitemoe_shared", "granitemoe-shared"),
        ("granitemoe_4", "granitemoe-hybrid"),
        ("granitehybrid", "granitehybrid"),
        ("bamba", "granitehybrid-bamba"),
        ("granite_swa", "granite_swa"),
        ("granitemoe_swa", "granite_swa-moe"),
        ("mamba", "mamba"),
        ("falcon_mamba", "mamba-falcon"),
    ],
)
def test_one_map_fits(case: str, chosen: str) -> None:
    assert planned(oracle_gguf(case)).map == chosen


def _changed(case: str, keys: dict[str, Any]) -> Header:
    """The header of a case with metadata keys of its architecture set, or taken away where the value is None."""
    header = read_header([oracle_gguf(case)])
    merged = header.metadata | {f"{header.arch}.{key}": value for key, value in keys.items()}
    return dataclasses.replace(header, metadata={key: value for key, value in merged.items() if value is not None})


@pytest.mark.parametrize(
    ("case", "keys", "message"),
    [
        ("granite", {"rope.scaling.finetuned": False}, "without a rotary embedding"),
        ("granite", {"expert_count": 4}, "with experts"),
        ("granite", {"attention.key_length": 32}, "hidden / heads"),
        ("granitemoe", {"expert_used_count": 5}, "experts are used"),
        ("granitemoe", {"expert_gating_func": 2}, "softmax"),
        ("granitehybrid", {"attention.head_count_kv": 2}, "one value for each of 5 layers"),
        ("granitehybrid", {"attention.head_count_kv": [0, 0, 2, 0, 1]}, "[1, 2]"),
        ("granitehybrid", {"attention.head_count_kv": [0, 2]}, "2 values"),
        ("bamba", {"rope.dimension_count": 16}, "half of each head"),
        ("bamba", {"rope.scaling.finetuned": False}, "without a rotary embedding"),
        ("granite_swa", {"attention.sliding_window_pattern": None}, "sliding_window_pattern is missing"),
        ("granite_swa", {"attention.rope_pattern": [True]}, "1 items for 5 layers"),
        ("falcon_40b", {"attention.head_count_kv": 3}, "multiple of key/value heads"),
        ("falcon_40b", {"tensor_data_layout": "other"}, "another order"),
        ("falcon_h1", {"ssm.time_step_rank": 5}, "does not divide"),
        ("jamba", {"attention.head_count_kv": [0, 2, 0, 2, 2]}, "attn_layer_period"),
        ("nemotron", {"attention.layer_norm_rms_epsilon": 1e-6}, "two norm epsilons"),
        ("nemotron_h", {"feed_forward_length": [0, 0, 0, 128, 64]}, "[64, 128]"),
        ("nemotron_h", {"feed_forward_length": [0, 128, 0, 128, 128]}, "layer 1 has both"),
        ("nemotron_h", {"expert_count": 4}, "with experts"),
        ("nemotron_h_moe", {"expert_used_count": [0, 0, 0, 2, 1]}, "one value per layer"),
        ("nemotron_h_moe", {"expert_gating_func": 1}, "sigmoid"),
        ("lfm2moe", {"expert_gating_func": 1}, "sigmoid"),
        ("kimi_linear", {"attention.key_length": 64}, "as wide as rank and rotary part"),
    ],
)
def test_what_cannot_be_expressed_is_refused(case: str, keys: dict[str, Any], message: str) -> None:
    problems = build(_changed(case, keys)).all_problems
    assert [line for line in problems if message in line], problems


@pytest.mark.parametrize(
    ("case", "keys", "theta"),
    [
        ("falcon_7b", {}, 10000.0),
        ("falcon_40b", {}, 10000.0),
        ("falcon_11b", {}, 500042.0),
        ("falcon_11b", {"rope.freq_base": 20000.0}, 20000.0),
    ],
)
def test_falcon_s_rope_base_is_assumed_unless_the_file_has_one(case: str, keys: dict[str, Any], theta: float) -> None:
    plan = build(_changed(case, keys))
    assert plan.config["rope_theta"] == plan.config["rope_parameters"]["rope_theta"] == theta
    assert bool([note for note in plan.notes if "rope_theta" in note]) == (not keys)


def test_a_lost_head_multiplier_is_told() -> None:
    assert [note for note in planned(oracle_gguf("falcon_h1")).notes if "lm_head_multiplier" in note]
    assert not [note for note in planned(oracle_gguf("falcon_h1_norm")).notes if "lm_head_multiplier" in note]


def test_jamba_with_one_attention_layer_takes_a_period_that_gives_it() -> None:
    config = build(_changed("jamba", {"attention.head_count_kv": [0, 0, 2, 0, 0]})).config
    period, offset = config["attn_layer_period"], config["attn_layer_offset"]
    assert [i for i in range(5) if i % period == offset] == [2]


def _log(values: Tensor) -> Tensor:
    return values.double().log().float()


def test_a_log_is_the_nearest_float_to_the_logarithm(tmp_path: Path) -> None:
    a = np.linspace(-16, -1e-3, 128 * 16, dtype=np.float32).reshape(128, 16)

    def edit(metadata: dict[str, Any], tensors: dict[str, Any]) -> None:
        tensors["blk.0.ssm_a"] = a

    found = converted(rewritten("mamba", tmp_path / "a.gguf", edit), tmp_path / "out")
    assert torch.equal(found["backbone.layers.0.mixer.A_log"], _log(torch.from_numpy(-a)))
