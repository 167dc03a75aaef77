"""What float16 loses at the small end is said. Expected counts come from ggml's decoders and numpy's float16."""

import json
from pathlib import Path

import numpy as np
import pytest

import gguf2st
from gguf2st.conversion import Options
from gguf2st.execute.underflow import lost_values
from gguf2st.quants.layout import TYPES
from gguf2st.report import Report
from tests.make_gguf import Raw, tiny_llama
from tests.oracle import blocks as kinds
from tests.oracle import ggml
from tests.oracle.terminal import run

UP = "model.layers.0.mlp.up_proj.weight"
SAYS = "float16 is too coarse for small values of "


def with_up(path: Path, values: np.ndarray, qtype: str = "F32") -> Path:
    """A model whose blk.0.ffn_up is (128, 64) of these float32 values."""
    data = values.astype(np.float32).reshape(128, 64)
    raw: Raw = (data.view(np.uint8), "F32", (128, 64))
    if qtype == "BF16":
        raw = ((data.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8), "BF16", (128, 64))
    return tiny_llama(path, extra_tensors={"blk.0.ffn_up.weight": raw})


def notes(report: Report) -> list[str]:
    return [note for note in report.notes if note.startswith(SAYS)]


def part_of(share: float, small: float) -> np.ndarray:
    """8,192 values, the first of them `small`."""
    values = np.random.default_rng(3).choice([-0.5, 0.25, 1.0], 8192)
    values[: round(share * 8192)] = small
    return values


@pytest.mark.parametrize("qtype", ["F32", "BF16"])
@pytest.mark.parametrize(
    ("share", "small", "said"),
    [
        (1.0, 1e-10, "100%"),
        (0.25, 1e-10, "25%"),
        (0.25, 1e-7, "25%"),  # 2 * 2^-24 is 19% off
        (0.001, 1e-10, ""),
        (0.25, 0.0, ""),
        (0.25, 2.0**-24, ""),  # the least float16: small, but nothing is lost
        (0.25, 1e-5, ""),  # subnormal: 0.1% off
        (0.25, 1e-3, ""),
    ],
)
def test_values_that_become_nothing(qtype: str, share: float, small: float, said: str, tmp_path: Path) -> None:
    source = with_up(tmp_path / "m.gguf", part_of(share, small), qtype)
    found = notes(gguf2st.convert(source, tmp_path / "out", dtype="float16"))
    assert found == (
        [f"{SAYS}{UP}: {said} become 0, or change by more than 1%; bfloat16 and float32 keep them"] * bool(said)
    )
    assert notes(gguf2st.convert(source, tmp_path / "kept", dtype="bfloat16")) == []
    assert notes(gguf2st.convert(source, tmp_path / "exact", dtype="float32")) == []


def test_a_shard_of_an_earlier_run_and_a_plan_file_say_the_same(tmp_path: Path) -> None:
    source = with_up(tmp_path / "m.gguf", part_of(0.25, 1e-10))
    plain = gguf2st.convert(source, tmp_path / "plain", dtype="float16", max_shard_size=100_000)
    gguf2st.write_plan(source, tmp_path / "p", tmp_path / "out", Options(dtype="float16", max_shard_size=100_000))
    gguf2st.convert_planned(tmp_path / "p", threads=1)
    assert gguf2st.convert_planned(tmp_path / "p").written == ()
    report = gguf2st.finish(tmp_path / "p")
    assert notes(report) == notes(plain) != []
    assert (tmp_path / "out/gguf2st.json").read_bytes() == (tmp_path / "plain/gguf2st.json").read_bytes()
    assert report.rel_rmse == plain.rel_rmse == {}


def test_repacking_is_not_refused_for_a_weight_that_is_not_packed(tmp_path: Path) -> None:
    """The bound is about packed weights; this vector is none."""
    source = tiny_llama(tmp_path / "m.gguf", extra_tensors={"blk.0.attn_norm.weight": np.full(64, 1e-10, np.float32)})
    report = gguf2st.convert(source, tmp_path / "out", repack="near")
    (note,) = notes(report)
    assert "input_layernorm.weight: 100% become 0" in note
    assert not any("layernorm" in name for name in report.rel_rmse)


def test_the_command_line_says_it(tmp_path: Path) -> None:
    source = with_up(tmp_path / "m.gguf", part_of(1.0, 1e-10))
    done = run("convert", source, "-o", tmp_path / "out", "--dtype", "float16")
    assert f"note: {SAYS}{UP}" in done.out
    done = run("convert", source, "-o", tmp_path / "out", "--dtype", "float16", "--overwrite", "--json", "-")
    assert any(note.startswith(SAYS) for note in json.loads(done.out)["notes"])


@pytest.mark.parametrize("kind", ["random", "scales", "quantized"])
@pytest.mark.parametrize("qtype", sorted(TYPES))
def test_every_type_is_counted_as_ggml_and_numpy_say(qtype: str, kind: str) -> None:
    blocks = kinds.make(qtype, kind)
    exact = ggml.expected(qtype, TYPES[qtype].id, blocks).reshape(len(blocks), -1)
    with np.errstate(over="ignore", invalid="ignore"):
        cast = exact.astype(np.float16)
        kept = np.isfinite(cast).all(axis=1)
        blocks, exact, cast = np.ascontiguousarray(blocks[kept]), exact[kept], cast[kept]
        before = blocks.view("<f8") if qtype == "F64" else exact.astype(np.float64)
        lost = np.abs(cast.astype(np.float64) - before) > 0.01 * np.abs(before)
    counted = lost_values(qtype, blocks, cast.view(np.uint16), lambda: exact)
    assert counted[0] == lost.sum()
    if lost.any():
        assert counted[1] == np.count_nonzero(before)
