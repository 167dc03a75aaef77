"""GGUF files that are no model by themselves: one line that says what a file is, and what to give instead."""

import json
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

import gguf2st
from gguf2st import api
from gguf2st.cli import main
from gguf2st.errors import CoverageError
from tests.make_gguf import tiny_llama
from tests.vocabularies import FILES, byte_level, fetched, write_gguf


def _written(path: Path, kind: str, arch: str = "", **tensors: tuple[int, ...]) -> Path:
    """By gguf-py; without an architecture, as imatrices are."""
    writer = gguf.GGUFWriter(path, arch or "none")
    if not arch:
        del writer.kv_data[0]["general.architecture"]
    if kind:
        writer.add_type(kind)
    for name, shape in tensors.items():
        writer.add_tensor(name, np.ones(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


KINDS: dict[str, tuple[Callable[[Path], Path], str, str]] = {
    # name -> (writes it, what it is, what to do)
    "mmproj": (
        lambda p: _written(p, gguf.GGUFType.MMPROJ, "clip", **{"v.blk.0.attn_q.weight": (4, 4)}),
        "general.type is 'mmproj': this is the encoder of a model's images or sound",
        "the GGUF of the language model",
    ),
    "older mmproj": (
        lambda p: _written(p, "", "clip", **{"v.blk.0.attn_q.weight": (4, 4)}),
        "general.architecture is 'clip': this is the encoder of a model's images or sound",
        "the GGUF of the language model",
    ),
    "adapter": (
        lambda p: _written(p, gguf.GGUFType.ADAPTER, "llama", **{"blk.0.attn_q.weight.lora_a": (2, 64)}),
        "general.type is 'adapter': this is an adapter (LoRA)",
        "the GGUF of the model that it adapts",
    ),
    "imatrix": (
        lambda p: _written(p, gguf.GGUFType.IMATRIX, **{"blk.0.attn_q.weight.in_sum2": (1, 64)}),
        "general.type is 'imatrix': this is an importance matrix",
        "the GGUF that was quantized with it",
    ),
    "unheard of": (
        lambda p: tiny_llama(p, layers=1, extra_metadata={"general.type": "diary"}),
        "general.type is 'diary'",
        "the GGUF of the model itself",
    ),
    "vocabulary": (
        lambda p: write_gguf(p, byte_level()),
        "has no tensors, a vocabulary only",
        "the GGUF that has the weights",
    ),
    "a real vocabulary": (
        lambda _: fetched(FILES["qwen2"]),
        "has no tensors, a vocabulary only",
        "the GGUF that has the weights",
    ),
    "metadata": (
        lambda p: _written(p, gguf.GGUFType.MODEL, "llama"),
        "has no tensors, metadata only",
        "the GGUF that has the weights",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_one_line_says_what_it_is_and_what_to_do(kind: str, tmp_path: Path) -> None:
    write, what, instead = KINDS[kind]
    source = write(tmp_path / "file.gguf")
    with pytest.raises(CoverageError) as caught:
        gguf2st.convert(source, tmp_path / "out")
    assert what in caught.value.message
    assert instead in caught.value.hint
    assert caught.value.problems == ()
    assert not (tmp_path / "out").exists()
    [(code, line)] = api.problems(source)
    assert code == CoverageError.exit_code
    assert what in line
    assert instead in line


@pytest.mark.parametrize("kind", KINDS)
def test_every_command_says_it(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write, what, instead = KINDS[kind]
    source = str(write(tmp_path / "file.gguf"))
    for words in (["check", source], ["plan", source], ["convert", source, "-o", str(tmp_path / "out")]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        said = "".join(capsys.readouterr())
        assert ended.value.code == CoverageError.exit_code
        assert said.count("problem: ") + said.count("error: ") == 1
        assert what in said
        assert instead in said
    with pytest.raises(SystemExit) as ended:
        main(["inspect", source])
    assert ended.value.code == 0
    assert what in capsys.readouterr().out


def test_what_is_available_is_a_part_of_a_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file with two things wrong has two problems, each with its details and its way out."""
    metadata = {"tokenizer.ggml.model": "rot13", "llama.attention.head_count_kv": 3}
    source = tiny_llama(tmp_path / "m.gguf", layers=1, extra_metadata=metadata)
    with pytest.raises(SystemExit):
        main(["check", str(source), "--json"])
    problems = json.loads(capsys.readouterr().out)["problems"]
    [line] = [line for line in problems if "tokenizer" in line]
    assert line.startswith("tokenizer.ggml.model 'rot13' is not supported: available: bert, gemma4, gpt2, llama, ")
    assert "--tokenizer-from" in line
    assert not any(line.startswith("available") for line in problems)
