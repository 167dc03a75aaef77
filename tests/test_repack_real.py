"""Repacking real models: SmolLM2-135M (Q4_1, and requantized to others) and gemma3-270m (Q4_K_M)."""

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

import gguf2st
from gguf2st.report import Report
from tests.make_gguf import quantize, write_gguf
from tests.oracle import repacked
from tests.oracle.dequantized import hf_tensors

pytestmark = pytest.mark.real

LAYERS = r"layers\.(0|7|15)\."
"""Unpacking all of them by compressed-tensors takes ten times as long; `verify` compares every value."""


def requantized(source: Path, target: Path, qtype: str) -> Path:
    """A model with all of its linear layers in one type, by ggml's quantizers; embeddings as they are."""
    reader: Any = gguf.GGUFReader(source)
    metadata: dict[str, Any] = {}
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            value = field.contents()
            exact = len(field.types) == 1 and not isinstance(value, str | bool)
            metadata[name] = np.dtype(field.parts[field.data[0]].dtype).type(value) if exact else value
    tensors: dict[str, Any] = {}
    for t in reader.tensors:
        shape, kind = tuple(int(n) for n in reversed(t.shape)), t.tensor_type.name
        blocks = t.data.view(np.uint8)
        if len(shape) == 2 and t.name != "token_embd.weight":
            blocks, kind = quantize(gguf.quants.dequantize(t.data, t.tensor_type), qtype), qtype
        tensors[t.name] = (blocks, kind, shape)
    return write_gguf(target, metadata, tensors, "llama")


def worst(folder: Path, source: Path) -> dict[str, float]:
    """Config group -> the largest relative rmse of its weights in some layers, against gguf-py."""
    found, group = repacked.weights(folder, LAYERS), repacked.groups(folder)
    result = dict.fromkeys(group.values(), 0.0)
    for name, expected in hf_tensors(source, torch.float32):
        if name in found:
            scheme = group[name.removesuffix(".weight")]
            result[scheme] = max(result[scheme], relative(found.pop(name), expected))
    assert not found
    return result


def reported(report: Report) -> float:
    """The largest relative rmse in the same layers, by the report."""
    return max(rmse for name, rmse in report.rel_rmse.items() if re.search(LAYERS, name))


def n_packed(folder: Path) -> int:
    """Packed weights."""
    return sum(int(t.prod()) for name, t in repacked.stored(folder).items() if name.endswith("weight_shape"))


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).double().norm() / expected.double().norm())


def packed_ratio(report: Report) -> float:
    """Bytes after and before, of what was packed: embeddings aside."""
    rows = [t for t in report.types if t.scheme != "dense"]
    return sum(t.output_nbytes for t in rows) / sum(t.nbytes for t in rows)


def test_smollm2_near_and_int4(smollm2: Path, tmp_path: Path) -> None:
    near = gguf2st.convert(smollm2, tmp_path / "near", repack="near")
    measured = worst(tmp_path / "near", smollm2)
    assert measured == pytest.approx({"int8_g32": reported(near)}, rel=1e-3)
    assert 0.003 < measured["int8_g32"] < 0.006, "facts: 0.57 % with the largest weight as the scale"
    int4 = gguf2st.convert(smollm2, tmp_path / "int4", repack="int4")
    measured = worst(tmp_path / "int4", smollm2)
    assert measured == pytest.approx({"int4_asym_g32": reported(int4)}, rel=1e-3)
    assert measured["int4_asym_g32"] < 0.086, "facts: 8.6 % without a search"
    assert n_packed(tmp_path / "near") == 30 * (2 * 576 * 576 + 2 * 192 * 576 + 3 * 1536 * 576)
    embedding = near.parameters - n_packed(tmp_path / "near")
    linear = [r.output_nbytes - 2 * embedding for r in (near, int4)]
    of_bfloat16 = [n / (near.bfloat16_nbytes - 2 * embedding) for n in linear]
    assert of_bfloat16 == pytest.approx([8.5 / 16, 4.625 / 16], rel=1e-3)


@pytest.mark.parametrize(("qtype", "group"), [("Q4_0", "int4_g32"), ("Q8_0", "int8_g32")])
def test_exact_models_stay_as_small_as_their_gguf(qtype: str, group: str, smollm2: Path, tmp_path: Path) -> None:
    source = requantized(smollm2, tmp_path / "m.gguf", qtype)
    report = gguf2st.convert(source, tmp_path / "out", repack="exact")
    assert worst(tmp_path / "out", source) == {group: 0.0}
    assert packed_ratio(report) <= 1.1
    assert gguf2st.verify(tmp_path / "out", against=source).problems == ()


def test_gemma3_is_promoted_by_module(gemma3: Path, tmp_path: Path) -> None:
    """Four types side by side, and a model that float16 overflows."""
    report = gguf2st.convert(gemma3, tmp_path / "out", repack="near")
    measured = worst(tmp_path / "out", gemma3)
    assert measured.keys() == {"int8_g32"}
    assert measured["int8_g32"] == pytest.approx(reported(report), rel=1e-3)
    assert measured["int8_g32"] < 0.01
    results = {t.qtype: t.result for t in report.types if t.scheme == "int8_g32"}
    assert results == {"Q5_0": "exact", "Q8_0": "exact", "Q4_K": "bounded", "Q6_K": "bounded"}
    assert report.dtype == "bfloat16"
    written = sum(t.output_nbytes for t in report.types if t.scheme == "int8_g32")
    assert written <= 0.58 * 2 * n_packed(tmp_path / "out")
