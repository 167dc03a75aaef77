"""Scales of whole weights in tensors of their own, as llama.cpp's converter writes them for NVFP4: a hand-made file."""

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

import gguf2st
from gguf2st import api
from gguf2st.errors import CoverageError
from tests.make_gguf import quantize, tiny_model
from tests.oracle import repacked

HALF, QUARTER = np.array([0.5], np.float32), np.array([0.25], np.float32)
ODD = np.array([0.0123456789], np.float32)
"""No power of two."""


def scaled(path: Path, scales: dict[str, Any], *, arch: str = "llama", **options: Any) -> Path:
    """A small NVFP4 model with one more tensor for each of `scales`: `attn_q` -> blk.0.attn_q.scale."""
    extra = {name if "." in name else f"blk.0.{name}.scale": value for name, value in scales.items()}
    defaults: dict[str, Any] = {"layers": 1, "tied": False, "qtype": "NVFP4", "expert_ffn": 64, "head_dim": 16}
    return tiny_model(path, arch, extra_tensors=extra, **defaults | options)


def values(path: Path, name: str) -> np.ndarray:
    """float32 of a tensor by gguf-py, without its scale."""
    reader: Any = gguf.GGUFReader(path)
    (tensor,) = (t for t in reader.tensors if t.name == name)
    dequantized = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    return np.asarray(dequantized, np.float32).reshape([int(n) for n in reversed(tensor.shape)])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("scale", [HALF, ODD])
def test_a_dense_weight_is_its_blocks_times_the_scale(scale: Any, dtype: str, tmp_path: Path) -> None:
    source, out = scaled(tmp_path / "m.gguf", {"ffn_up": scale, "blk.0.ffn_up.input_scale": ODD}), tmp_path / "out"
    report = gguf2st.convert(source, out, dtype=dtype)
    expected = torch.from_numpy(values(source, "blk.0.ffn_up.weight") * scale).to(getattr(torch, dtype))
    found = repacked.stored(out)
    assert torch.equal(found["model.layers.0.mlp.up_proj.weight"], expected)
    gate = torch.from_numpy(values(source, "blk.0.ffn_gate.weight")).to(getattr(torch, dtype))
    assert torch.equal(found["model.layers.0.mlp.gate_proj.weight"], gate), "what has no scale is as before"
    assert "quantized at run time" in report.dropped["blk.0.ffn_up.input_scale"]


def test_an_unpermuted_weight_is_scaled_too(tmp_path: Path) -> None:
    """Rows that are gathered, and a chunk of one row."""
    source, plain = scaled(tmp_path / "m.gguf", {"attn_q": ODD}), scaled(tmp_path / "p.gguf", {})
    for path, name in ((source, "one"), (plain, "two")):
        gguf2st.convert(path, tmp_path / name, dtype="float32")
    one, two = (repacked.stored(tmp_path / n)["model.layers.0.self_attn.q_proj.weight"] for n in ("one", "two"))
    assert torch.equal(one, two * torch.from_numpy(ODD))


def test_experts_have_a_scale_each(tmp_path: Path) -> None:
    scales = np.array([0.5, 0.0123, 3.25, 1e-3], np.float32)
    same = {"ffn_gate_exps": scales, "ffn_up_exps": scales, "ffn_down_exps": scales[::-1].copy()}
    source = scaled(tmp_path / "m.gguf", same, arch="qwen3moe")
    gguf2st.convert(source, tmp_path / "dense", dtype="float32")
    report = gguf2st.convert(source, tmp_path / "packed", repack="exact")
    dense, packed = repacked.stored(tmp_path / "dense"), repacked.weights(tmp_path / "packed")
    raw = {part: values(source, f"blk.0.ffn_{part}_exps.weight") for part in ("gate", "up", "down")}
    for e in range(4):
        for part in ("gate", "up", "down"):
            scale = scales[3 - e] if part == "down" else scales[e]
            name = f"model.layers.0.mlp.experts.{e}.{part}_proj.weight"
            assert torch.equal(dense[name], torch.from_numpy(raw[part][e] * scale)), name
            # A divisor of 1 / scale is rounded once more.
            torch.testing.assert_close(packed[name], dense[name], rtol=2.5e-7, atol=0)
    assert report.choices == {}


def test_a_packed_weight_keeps_its_scale_as_a_divisor(tmp_path: Path) -> None:
    source = scaled(tmp_path / "m.gguf", {"ffn_down": QUARTER, "output.scale": HALF})
    gguf2st.convert(source, tmp_path / "out", repack="exact")
    tensors = repacked.stored(tmp_path / "out")
    down = "model.layers.0.mlp.down_proj.weight"
    assert tensors[f"{down}_global_scale"].tolist() == [4.0]
    assert tensors["lm_head.weight_global_scale"].tolist() == [2.0]
    assert tensors["model.layers.0.mlp.up_proj.weight_global_scale"].tolist() == [1.0]
    expected = torch.from_numpy(values(source, "blk.0.ffn_down.weight") * QUARTER)
    assert torch.equal(repacked.weights(tmp_path / "out")[down], expected)


def test_members_of_a_module_whose_scales_differ_are_dequantized(tmp_path: Path) -> None:
    """vLLM keeps one divisor for q, k and v: the largest."""
    source = scaled(tmp_path / "m.gguf", {"attn_q": HALF, "attn_k": HALF, "attn_v": QUARTER, "ffn_up": HALF})
    report = gguf2st.convert(source, tmp_path / "out", repack="exact")
    found = {m.rpartition(".")[2] for m in repacked.groups(tmp_path / "out")}
    assert found == {"o_proj", "down_proj", "lm_head"}
    why = report.choices["model.layers.0.self_attn.q_proj"]
    assert why.endswith(
        "q_proj (NVFP4), k_proj (NVFP4), v_proj (NVFP4) are one parameter in vLLM, and their scales differ"
    )
    expected = torch.from_numpy(values(source, "blk.0.attn_v.weight") * QUARTER).to(torch.float16)
    assert torch.equal(repacked.stored(tmp_path / "out")["model.layers.0.self_attn.v_proj.weight"], expected)


def test_equal_scales_stay_packed(tmp_path: Path) -> None:
    source = scaled(tmp_path / "m.gguf", {"attn_q": HALF, "attn_k": HALF, "attn_v": HALF})
    gguf2st.convert(source, tmp_path / "out", repack="exact")
    scales = {n: t for n, t in repacked.stored(tmp_path / "out").items() if n.endswith("_proj.weight_global_scale")}
    assert {t.item() for n, t in scales.items() if "q_proj" in n or "k_proj" in n or "v_proj" in n} == {2.0}


def test_a_scale_of_another_type_has_no_place_in_its_scheme(tmp_path: Path) -> None:
    source = scaled(tmp_path / "m.gguf", {"ffn_down": HALF}, qtype="Q8_0")
    report = gguf2st.convert(source, tmp_path / "out", repack="near")
    assert report.choices == {
        "model.layers.0.mlp.down_proj": "dequantized: it has a scale of its own, for which only nvfp4 has a place"
    }
    expected = torch.from_numpy(values(source, "blk.0.ffn_down.weight") * HALF).to(torch.float16)
    assert torch.equal(repacked.stored(tmp_path / "out")["model.layers.0.mlp.down_proj.weight"], expected)


def test_a_big_endian_file(tmp_path: Path) -> None:
    little = scaled(tmp_path / "l.gguf", {"ffn_up": ODD}, qtype="Q8_0")
    big = scaled(tmp_path / "b.gguf", {"ffn_up": ODD}, qtype="Q8_0", byteorder="big")
    assert api.make_plan(big).scales == api.make_plan(little).scales == {"blk.0.ffn_up.weight": (float(ODD[0]),)}


@pytest.mark.parametrize(
    ("scales", "line"),
    [
        (
            {"ffn_up": np.array([0.5, 0.5], np.float32)},
            "blk.0.ffn_up.scale is F32 [2]; the scale of blk.0.ffn_up.weight is one",
        ),
        (
            {"ffn_up": np.array([1], np.float16)},
            "blk.0.ffn_up.scale is F16 [1]; the scale of blk.0.ffn_up.weight is one",
        ),
        ({"ffn_up": np.array([np.nan], np.float32)}, "blk.0.ffn_up.scale is not a finite number"),
        ({"ffn_sideways": HALF}, "GGUF tensors without a place in the map llama: blk.0.ffn_sideways.scale"),
        (
            {"ffn_up": HALF, "blk.0.ffn_up.bias": np.zeros(128, np.float32)},
            "blk.0.ffn_up.scale stands beside blk.0.ffn_up.bias",
        ),
    ],
)
def test_what_cannot_be_a_scale_is_refused(scales: dict[str, Any], line: str, tmp_path: Path) -> None:
    source = scaled(tmp_path / "m.gguf", scales)
    with pytest.raises(CoverageError) as err:
        gguf2st.convert(source, tmp_path / "out")
    assert any(text.startswith(line) for text in (re.sub(r"^\S+: ", "", err.value.message), *err.value.problems))


def test_gguf_py_reads_our_blocks() -> None:
    """The quantizer that wrote these files and the reader that they are compared with agree."""
    x = np.random.default_rng(0).standard_normal((4, 64), np.float32)
    y = gguf.quants.dequantize(quantize(x, "NVFP4"), gguf.GGMLQuantizationType.NVFP4)
    assert float(np.abs(x - y).mean()) < 0.1
