"""Odd but whole vocabularies get llama.cpp's ids, and a stranger's tokenizer may not bring everything along."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

import gguf2st
from gguf2st.errors import TokenizerError
from gguf2st.header import read_header
from gguf2st.tokenizer import build_tokenizer
from tests.make_gguf import gpt2_tokenizer, tiny_llama, write_gguf
from tests.oracle.llamacpp import LlamaCpp

MERGES = "tokenizer.ggml.merges"


def _repeated(merges: list[str]) -> list[str]:
    return [*merges, *merges[:3]]


def _all_twice(merges: list[str]) -> list[str]:
    return [*merges, *reversed(merges)]


@pytest.mark.parametrize("change", [_repeated, _all_twice])
def test_a_merge_that_is_there_twice(change: Any, tmp_path: Path) -> None:
    """Its first rank counts: `tokenizers` would take the last, and cut words in other places."""
    keys, _ = gpt2_tokenizer()
    keys[MERGES] = change(keys[MERGES])
    path = write_gguf(tmp_path / "vocab.gguf", {"llama.context_length": 64, **keys}, {})
    ours = Tokenizer.from_str(build_tokenizer(read_header([path]).metadata).files["tokenizer.json"].decode())
    with LlamaCpp(path, vocab_only=True) as theirs:
        for text in ("hello the world and", "capital of France is the 12", "thing hell ab abc theand"):
            ids = theirs.tokenize(text, add_special=False)
            assert ours.encode(text, add_special_tokens=False).ids == ids
            assert len(ids) < len(text) / 2  # words were built


@pytest.mark.parametrize("name", ["tokenizer.model", "additional_chat_templates/rag.jinja"])
def test_a_link_to_a_file_elsewhere_does_not_end_in_the_checkpoint(name: str, tmp_path: Path) -> None:
    """A folder from somebody else may name any file of this machine. A checkpoint of links can be verified, though."""
    source = tiny_llama(tmp_path / "m.gguf")
    gguf2st.convert(source, tmp_path / "made")
    secret = tmp_path / "secret"
    secret.write_text("of nobody else")
    (tmp_path / "made" / name).parent.mkdir(exist_ok=True)
    (tmp_path / "made" / name).symlink_to(secret)
    with pytest.raises(TokenizerError, match=f"{name} is a link to {secret}"):
        gguf2st.convert(source, tmp_path / "out", tokenizer_from=tmp_path / "made")
    assert not (tmp_path / "out").exists()
    assert gguf2st.verify(tmp_path / "made", against=source).ok
