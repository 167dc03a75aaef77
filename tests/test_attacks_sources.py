"""Sources as strangers leave them: shards of another model, names in capitals, and hints that lead nowhere."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf2st.errors import HeaderError, SourceError
from gguf2st.header import read_header
from gguf2st.source import locate
from gguf2st.source.local import find_files
from tests.make_gguf import write_gguf

MODEL = {
    "llama.rope.freq_base": 1e5,
    "llama.block_count": 2,
    "tokenizer.ggml.tokens": ["a", "b"],
    "tokenizer.ggml.scores": np.array([1.0, float("nan")], np.float32),
    "llama.rope.scaling.factor": float("nan"),
}


def _split(folder: Path, second: dict[str, Any], name: str = "m-0000{n}-of-00002.gguf") -> list[Path]:
    """Two shards of one tensor each; the first has MODEL, the second what is given."""
    paths = []
    for number, metadata in enumerate((MODEL, second)):
        about = {"split.no": np.uint16(number), "split.count": np.uint16(2), "split.tensors.count": np.int32(2)}
        path = folder / name.format(n=number + 1)
        paths.append(write_gguf(path, metadata | about, {f"t{number}": np.zeros(4, np.float32)}))
    return paths


@pytest.mark.parametrize(
    "second",
    [
        {},
        {"general.alignment": 64},
        {"general.name": "only here"},
        MODEL,
    ],
)
def test_shards_of_one_model(second: dict[str, Any], tmp_path: Path) -> None:
    """Later shards say nothing about the model, as llama.cpp writes them, or the same as the first."""
    header = read_header(_split(tmp_path, second))
    assert [header.metadata["llama.block_count"], *header.sources] == [2, "t0", "t1"]


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ({"llama.rope.freq_base": 5e5}, "'llama.rope.freq_base' = 500000.0, which the first shard gives as 100000.0"),
        ({"tokenizer.ggml.tokens": ["a", "c"]}, "'tokenizer.ggml.tokens' = ['a', 'c'], which the first shard gives"),
        ({"llama.rope.scaling.type": "yarn"}, "'llama.rope.scaling.type' = 'yarn', which the first shard does not say"),
        ({"general.file_type": 7, "llama.block_count": 3}, "'llama.block_count' = 3, which the first shard gives as 2"),
    ],
)
def test_a_shard_that_says_otherwise_than_the_first(second: dict[str, Any], said: str, tmp_path: Path) -> None:
    """Only the first shard's metadata is read, so that this would be lost without a word."""
    with pytest.raises(HeaderError) as caught:
        read_header(_split(tmp_path, second))
    assert said in caught.value.message
    assert "m-00002-of-00002.gguf" in caught.value.message


def test_shards_named_in_capitals(tmp_path: Path) -> None:
    paths = _split(tmp_path, {}, "M-0000{n}-OF-00002.GGUF")
    assert list(find_files(paths[1])) == list(find_files(tmp_path)) == paths
    paths[0].unlink()
    with pytest.raises(SourceError, match=r"1 of 2 shards is missing: M-00001-OF-00002\.GGUF"):
        find_files(paths[1])


@pytest.mark.parametrize(
    ("src", "hint"),
    [("../models/x.gguf", ""), ("./a/x.gguf", ""), ("a/../x.gguf", ""), ("org/repo/x.gguf", "hf://org/repo/x.gguf")],
)
def test_only_names_of_the_hub_are_taken_for_such(
    src: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "a" / "home"
    home.mkdir(parents=True)
    monkeypatch.chdir(home)
    with pytest.raises(SourceError) as caught:
        locate(src)
    assert ("hf://" in caught.value.hint) == bool(hint)
    assert hint in caught.value.hint
