"""Faults that a hostile tester found once: each must stay found."""

import json
import os
import shutil
from array import array
from pathlib import Path
from typing import Any

import pytest

import gguf2st
from gguf2st import api, execute
from gguf2st.cli.common import printable
from gguf2st.config import generation_config
from gguf2st.errors import CoverageError, HeaderError, OutputError, SourceError, TokenizerError
from gguf2st.header import parse_header
from gguf2st.tokenizer import refused, special_tokens
from gguf2st.tokenizer.vocab import read_numbers
from tests.make_gguf import tiny_llama


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "tiny.gguf", layers=3)


def test_a_source_that_changes_meanwhile(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Overwritten in place with the same size, while shards are written."""
    write = execute._write_shard

    def overwriting(*arguments: Any) -> None:
        write(*arguments)
        content = source.read_bytes()
        source.write_bytes(content[:-64] + bytes(64))

    monkeypatch.setattr(execute, "_write_shard", overwriting)
    with pytest.raises(SourceError, match="changed while it was read"):
        gguf2st.convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_resuming_is_not_fooled_by_a_kept_time(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another model of the same layout and time of writing, put in place between two runs."""
    out, write = tmp_path / "out", execute._write_shard
    calls = []

    def failing(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        write(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(execute, "_write_shard", failing)
        with pytest.raises(KeyboardInterrupt):
            gguf2st.convert(source, out, max_shard_size=90_000)
    before = source.stat()
    other = tiny_llama(tmp_path / "other.gguf", layers=3, seed=7)
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(other, source)
    gguf2st.convert(source, out, max_shard_size=90_000)
    assert gguf2st.verify(out, against=source).ok


@pytest.mark.parametrize("where", ["out", "out.partial"])
def test_the_source_is_never_inside_the_output(where: str, tmp_path: Path) -> None:
    folder = tmp_path / where
    folder.mkdir()
    source = tiny_llama(folder / "tiny.gguf")
    (folder / "config.json").write_text("{}")
    with pytest.raises(OutputError, match="holds the source"):
        gguf2st.convert(source, tmp_path / "out", overwrite=True)
    assert source.exists()


@pytest.mark.parametrize("name", ["notes.txt", "other.gguf", "README.md"])
def test_overwriting_spares_what_people_keep_beside_a_checkpoint(name: str, source: Path, tmp_path: Path) -> None:
    gguf2st.convert(source, tmp_path / "out")
    (tmp_path / "out" / name).write_text("mine")
    with pytest.raises(OutputError, match="which no conversion writes"):
        gguf2st.convert(source, tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / name).read_text() == "mine"


def test_a_partial_folder_of_somebody_else_is_left_alone(source: Path, tmp_path: Path) -> None:
    partial = tmp_path / "out.partial"
    partial.mkdir()
    (partial / "mine.safetensors").write_text("mine")
    with pytest.raises(OutputError, match="somebody else's folder"):
        gguf2st.convert(source, tmp_path / "out")
    assert (partial / "mine.safetensors").read_text() == "mine"
    shutil.rmtree(partial)
    (tmp_path / "elsewhere").mkdir()
    partial.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputError, match="is a link"):
        gguf2st.convert(source, tmp_path / "out")


def test_heads_that_cannot_share_keys(tmp_path: Path) -> None:
    source = tiny_llama(tmp_path / "tiny.gguf", heads=4, kv_heads=3)
    with pytest.raises(CoverageError, match="4 attention heads cannot share 3 key-value heads"):
        gguf2st.convert(source, tmp_path / "out")


@pytest.mark.parametrize("kind", ["mmproj", "adapter", "imatrix"])
def test_what_is_no_model_by_itself(kind: str, tmp_path: Path) -> None:
    source = tiny_llama(tmp_path / "tiny.gguf", extra_metadata={"general.type": kind})
    with pytest.raises(CoverageError, match=f"general.type is '{kind}'"):
        gguf2st.convert(source, tmp_path / "out")


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("scores", ["1", "2"]),
        ("scores", [True, False]),
        ("token_type", array("f", [1.0, float("nan")])),
        ("token_type", array("f", [1.0, float("inf")])),
        ("token_type", [1.7, 1.0]),
        ("token_type", [-1, 1]),
    ],
)
def test_per_token_arrays_of_the_wrong_kind(key: str, values: Any) -> None:
    with pytest.raises(TokenizerError, match=key):
        read_numbers({f"tokenizer.ggml.{key}": values}, key, 2)


@pytest.mark.parametrize("template", ["{{ a" + ".b" * 3000 + " }}", "{{ " + "9" * 5000 + " }}", "{{ " + "(" * 5000])
def test_templates_that_break_the_parser(template: str) -> None:
    assert refused(template)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"temp": 0.0}, {"do_sample": False}),
        ({"temp": -5.0}, {}),
        ({"top_k": -3}, {}),
        ({"top_p": 7.0}, {}),
        ({"penalty_repeat": 0.0}, {}),
        ({"temp": 0.7, "top_p": 2.0}, {"do_sample": True, "temperature": 0.7}),
    ],
)
def test_sampling_that_transformers_would_refuse(metadata: dict[str, float], expected: dict[str, Any]) -> None:
    tokens = special_tokens({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a"]})
    assert generation_config(tokens, {f"general.sampling.{k}": v for k, v in metadata.items()}) == expected


def _checkpoint(source: Path, folder: Path) -> Path:
    gguf2st.convert(source, folder)
    return folder


def test_a_tokenizer_that_cannot_be_loaded(source: Path, tmp_path: Path) -> None:
    out = _checkpoint(source, tmp_path / "out")
    whole = json.loads((out / "tokenizer.json").read_text())
    (out / "tokenizer.json").write_text(
        json.dumps({"model": {"vocab": whole["model"]["vocab"]}, "added_tokens": whole["added_tokens"]})
    )
    assert any("cannot be loaded" in p for p in gguf2st.verify(out, against=source).problems)
    with pytest.raises(TokenizerError, match="cannot be loaded"):
        gguf2st.convert(source, tmp_path / "again", tokenizer_from=out)


def test_no_tensors_at_all(source: Path, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    out = _checkpoint(source, tmp_path / "out")
    save_file({}, out / "model.safetensors", {"format": "pt"})
    assert "there are no tensors" in gguf2st.verify(out).problems


def test_a_pipe_where_a_file_should_be(source: Path, tmp_path: Path) -> None:
    out = _checkpoint(source, tmp_path / "out")
    os.mkfifo(out / "extra.safetensors")
    (out / "config.json").unlink()
    os.mkfifo(out / "config.json")
    assert {"extra.safetensors is no regular file", "config.json is no regular file"} <= set(
        gguf2st.verify(out).problems
    )


def test_absurd_layer_numbers(source: Path, tmp_path: Path) -> None:
    import numpy as np
    from safetensors.numpy import load_file, save_file

    out = _checkpoint(source, tmp_path / "out")
    gguf2st.convert(source, tmp_path / "f32", dtype="float32")
    tensors = load_file(tmp_path / "f32/model.safetensors")
    tensors["model.layers.4000000000.x.weight"] = np.zeros(1, np.float32)
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    assert any("a number that no model has" in p for p in gguf2st.verify(out).problems)


class _Sparse:
    """A file of 3 GB that is all one metadata string, without its bytes."""

    def __init__(self) -> None:
        key = b"k" * 8
        self.start = b"GGUF" + (3).to_bytes(4, "little") + (0).to_bytes(8, "little") + (1).to_bytes(8, "little")
        self.start += len(key).to_bytes(8, "little") + key + (8).to_bytes(4, "little") + (2 << 30).to_bytes(8, "little")
        self.size, self.pos = 3 << 30, 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self.pos = offset if whence == 0 else self.size + offset
        return self.pos

    def tell(self) -> int:
        return self.pos

    def read(self, n: int) -> bytes:
        assert n < 64 << 20, "a whole gigabyte would be read"
        data = self.start[self.pos : self.pos + n].ljust(min(n, self.size - self.pos), b"\0")
        self.pos += len(data)
        return data


def test_a_length_that_would_read_a_whole_model() -> None:
    with pytest.raises(HeaderError, match="no header is so long"):
        parse_header(_Sparse(), "big.gguf")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["tiny.gguf", "sha256-0123"])
def test_a_report_never_takes_the_place_of_the_source(name: str, source: Path) -> None:
    """Whatever the source is called: blobs of other programs have no suffix."""
    from click.testing import CliRunner

    from gguf2st.cli import cli

    source = source.rename(source.with_name(name))
    result = CliRunner().invoke(cli, ["convert", str(source), "--dry-run", "--json", str(source)])
    assert result.exit_code == 2
    assert api.open_gguf(source).sources


def test_escapes_of_a_terminal_are_shown_not_obeyed() -> None:
    assert printable("a\x1b[31mb\x07") == "a\\x1b[31mb\\x07"


def test_a_vocabulary_whose_merges_would_fill_the_disk() -> None:
    from gguf2st.tokenizer import check_tokenizer

    letters = ["a" * n for n in range(1, 1025)]
    tokens = ["<unk>", *(f"<0x{b:02X}>" for b in range(256)), *letters]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": array("f", range(len(tokens))),
        "tokenizer.ggml.token_type": array("i", [2, *[6] * 256, *[1] * len(letters)]),
        "tokenizer.ggml.add_bos_token": False,
    }
    with pytest.raises(TokenizerError, match="no real one comes near"):
        check_tokenizer(metadata)
