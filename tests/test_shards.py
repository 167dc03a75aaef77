"""safetensors files and their index: byte for byte what the library and transformers write."""

import errno
import json
import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as transformers_module
from safetensors.torch import load_file, save_file
from torch import Tensor

import gguf2st
from gguf2st.errors import OutputError
from gguf2st.output.shards import ShardFile, is_whole, write_text
from gguf2st.plan import Output
from tests.make_gguf import tiny_model

transformers: Any = transformers_module  # its constructors carry no types

TENSORS: dict[str, dict[str, Tensor]] = {
    "one": {"a.weight": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)},
    "several": {
        "model.norm.weight": torch.randn(5, dtype=torch.float32),
        "model.embed_tokens.weight": torch.randn(7, 3).to(torch.bfloat16),
        "lm_head.weight": torch.randn(7, 3).to(torch.float16),
        "Z": torch.randn(1, 1, 2).to(torch.bfloat16),
    },
    "unicode": {"gewicht.ä": torch.ones(1), "重み.権": torch.zeros(2, 2), "😀": torch.ones(3)},
    "escapes": {'a"b\\c\n\t\b\f\r\x01\x7f\u2028/': torch.ones(1)},
    "scalar": {"scale": torch.tensor(1.5), "other": torch.tensor(2.5).to(torch.bfloat16)},
    "empty": {"nothing": torch.empty(0, 4), "also.nothing": torch.empty(0), "something": torch.ones(3)},
    "odd_sizes": {f"t{n}": torch.randn(n).to(torch.float16) for n in range(1, 12)},
    "none": {},
}


def outputs_of(tensors: Mapping[str, Tensor]) -> list[Output]:
    """In the order of the library: by type, wide ones first, then by name."""
    names = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
    outputs, at = [], 0
    for name, t in sorted(tensors.items(), key=lambda item: (list(names).index(item[1].dtype), item[0])):
        outputs.append(Output(name, names[t.dtype], tuple(t.shape), 0, at, at + t.nbytes))
        at += t.nbytes
    return outputs


def write_ours(path: Path, tensors: Mapping[str, Tensor], *, backwards: bool = False) -> None:
    outputs = outputs_of(tensors)
    with ShardFile(path, outputs) as shard:
        for output in reversed(outputs) if backwards else outputs:
            if output.stop > output.start:
                shard.write(output.start, tensors[output.name].reshape(-1).view(torch.uint8).numpy().data)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("case", TENSORS)
def test_bytes_equal_the_library(case: str, backwards: bool, tmp_path: Path) -> None:
    if case == "empty":  # tensors without bytes share an offset, and the library orders them by name only
        order = [o.name for o in outputs_of(TENSORS[case])]
        assert order == ["also.nothing", "nothing", "something"]
    save_file(TENSORS[case], tmp_path / "theirs", metadata={"format": "pt"})
    write_ours(tmp_path / "ours", TENSORS[case], backwards=backwards)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["ours", "theirs"]


def test_converted_files_equal_the_library(tmp_path: Path) -> None:
    source = tiny_model(tmp_path / "m.gguf", "gemma3", layers=3, head_dim=32, qtype="Q8_0")
    report = gguf2st.convert(source, tmp_path / "out", max_shard_size=60_000)
    assert len(report.shards) > 2
    for name in report.shards:
        save_file(load_file(tmp_path / "out" / name), tmp_path / "again", metadata={"format": "pt"})
        assert (tmp_path / "again").read_bytes() == (tmp_path / "out" / name).read_bytes()


def test_index_equals_transformers(tmp_path: Path) -> None:
    """Each sharded file holds what ours does, so that both indexes can be compared as text."""
    source = tiny_model(tmp_path / "m.gguf", "qwen2", layers=3, tied=False)
    report = gguf2st.convert(source, tmp_path / "out", max_shard_size=100_000)
    ours = (tmp_path / "out" / "model.safetensors.index.json").read_text()
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "theirs", max_shard_size="100KB")
    theirs = (tmp_path / "theirs" / "model.safetensors.index.json").read_text()
    expected = json.loads(theirs)
    placed = {name: shard for shard in report.shards for name in load_file(tmp_path / "out" / shard)}
    assert placed.keys() == expected["weight_map"].keys()
    expected["weight_map"] = placed
    assert ours == json.dumps(expected, indent=2, sort_keys=True) + "\n"
    assert theirs == json.dumps(json.loads(theirs), indent=2, sort_keys=True) + "\n", "the form that is compared"


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_mode_follows_the_umask(umask: int, mode: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        write_ours(tmp_path / "shard", TENSORS["one"])
        write_text(tmp_path / "text", "x")
    finally:
        os.umask(before)
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in ("shard", "text")} == {mode}


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENOSPC, "no space left"),
        (errno.EDQUOT, "no space left"),
        (errno.EFBIG, "--max-shard-size"),
        (errno.EROFS, "not writable"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_a_failed_reservation_names_the_file(
    code: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int, offset: int, nbytes: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", fail)
    with pytest.raises(OutputError) as caught:
        write_ours(tmp_path / "model.safetensors", TENSORS["several"])
    assert str(tmp_path / "model.safetensors") in caught.value.message
    assert words in caught.value.message + caught.value.hint
    assert os.listdir(tmp_path) == [], "the space is given back"


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EINVAL])
def test_file_systems_without_reservation(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int, offset: int, nbytes: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", fail)
    save_file(TENSORS["several"], tmp_path / "theirs", metadata={"format": "pt"})
    write_ours(tmp_path / "ours", TENSORS["several"])
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_a_limit_on_file_sizes(tmp_path: Path) -> None:
    """RLIMIT_FSIZE, in a process of its own: the kernel refuses the reservation itself."""
    source = tiny_model(tmp_path / "m.gguf")
    program = "import gguf2st, sys; gguf2st.convert(sys.argv[1], sys.argv[2])"
    done = subprocess.run(
        [sys.executable, "-c", program, source, tmp_path / "out"],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )
    assert "OutputError" in done.stderr
    assert "model.safetensors" in done.stderr
    assert os.listdir(tmp_path) == ["m.gguf"]


@pytest.mark.parametrize("failing", ["pwrite", "fsync"])
def test_a_failing_disk(failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(OutputError, match=r"ours.*Input/output error"):
        write_ours(tmp_path / "ours", TENSORS["one"])
    assert not (tmp_path / "ours").exists()


def test_interrupted_writes_are_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real(fd, bytes(data[:3]), offset))
    write_ours(tmp_path / "ours", TENSORS["several"])
    assert load_file(tmp_path / "ours").keys() == TENSORS["several"].keys()
    for name, tensor in load_file(tmp_path / "ours").items():
        assert torch.equal(tensor, TENSORS["several"][name])


def test_is_whole_sees_size_and_header(tmp_path: Path) -> None:
    path, outputs = tmp_path / "ours", outputs_of(TENSORS["several"])
    assert not is_whole(path, outputs)
    write_ours(path, TENSORS["several"])
    good = path.read_bytes()
    assert is_whole(path, outputs)
    for bad in (good[:-1], good + b"x", b"\0" + good[1:], good.replace(b"lm_head", b"lm_tail"), b""):
        path.write_bytes(bad)
        assert not is_whole(path, outputs)
