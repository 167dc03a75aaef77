"""Comparing a share of the rows: which ones, what it finds and what it cannot."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import gguf2st
from gguf2st.errors import UsageError
from tests.make_gguf import tiny_llama, write_gguf


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A GGUF with 16,384 embedding rows, and its checkpoint in float32."""
    folder = tmp_path_factory.mktemp("sample")
    source = tiny_llama(folder / "tiny.gguf", vocab=16384)
    gguf2st.convert(source, folder / "out", dtype="float32")
    return source, folder / "out"


def _with_row_changed(folder: Path, copy: Path, row: int) -> Path:
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    tensors["model.embed_tokens.weight"][row, 3] += 1
    save_file(tensors, copy / "model.safetensors", {"format": "pt"})
    return copy


def test_a_share_compares_about_that_share(pair: tuple[Path, Path]) -> None:
    source, out = pair
    whole = gguf2st.verify(out, against=source)
    part = gguf2st.verify(out, against=source, sample=0.1)
    assert part.ok
    assert whole.compared == whole.parameters
    assert 0.05 * whole.compared < part.compared < 0.4 * whole.compared  # small tensors are compared whole
    assert gguf2st.verify(out, against=source, sample=0.1).compared == part.compared


@pytest.mark.parametrize("row", [0, 16383])
def test_the_first_and_last_rows_are_always_looked_at(pair: tuple[Path, Path], row: int, tmp_path: Path) -> None:
    source, out = pair
    found = gguf2st.verify(_with_row_changed(out, tmp_path / "copy", row), against=source, sample=1e-6)
    (problem,) = found.problems
    assert problem.startswith("model.embed_tokens.weight: 1 of ")
    assert f"the first in row {row} of" in problem
    assert "values looked at" in problem


def test_all_rows_find_what_a_sample_may_miss(pair: tuple[Path, Path], tmp_path: Path) -> None:
    source, out = pair
    damaged = _with_row_changed(out, tmp_path / "copy", 8000)
    assert not gguf2st.verify(damaged, against=source).ok
    assert gguf2st.verify(damaged, against=source, sample=1e-6).ok


@pytest.mark.parametrize("sample", [0.0, -0.5, 1.5, float("nan")])
def test_what_is_no_share(pair: tuple[Path, Path], sample: float) -> None:
    with pytest.raises(UsageError, match="a share is above 0 and at most 1"):
        gguf2st.verify(pair[1], against=pair[0], sample=sample)


def test_types_that_gguf_py_lacks_are_compared_too(tmp_path: Path) -> None:
    """Q1_0: the written values against ggml's C decoder, and `verify` agrees."""
    from tests.oracle import ggml

    source = tiny_llama(tmp_path / "tiny.gguf", hidden=128, ffn=128)
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (128, 18), np.uint8)
    blocks[:, :2] = np.frombuffer(np.float16(0.5).tobytes(), np.uint8)
    import gguf

    reader = gguf.GGUFReader(source)
    tensors = {t.name: np.array(t.data) for t in reader.tensors}
    metadata = {
        f.name: f.contents() for f in reader.fields.values() if not f.name.startswith(("GGUF.", "general.architecture"))
    }
    name = "blk.0.attn_output.weight"
    assert tensors[name].shape == (128, 128)
    tensors[name] = (blocks, "Q1_0", (128, 128))
    write_gguf(tmp_path / "q1.gguf", metadata, tensors, arch="llama")
    gguf2st.convert(tmp_path / "q1.gguf", tmp_path / "out", dtype="float32")
    written = load_file(tmp_path / "out/model.safetensors")["model.layers.0.self_attn.o_proj.weight"]
    np.testing.assert_array_equal(written, ggml.expected("Q1_0", 41, blocks).reshape(128, 128))
    assert gguf2st.verify(tmp_path / "out", against=tmp_path / "q1.gguf").ok
