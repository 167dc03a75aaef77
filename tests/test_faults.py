"""Each fault ends in one clear line that names the file and the thing, the right exit code, and nothing written."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from tests.make_gguf import tiny_llama, tiny_qwen2, tiny_qwen3moe
from tests.oracle.terminal import FULL_DISK, GGUF2ST, Done, interrupted, run

SHARD = "90KB"


def assert_clean_failure(done: Done, code: int, *words: str) -> None:
    """Exit code, nothing on standard output, no traceback, and words in what is said."""
    assert done.code == code, done
    assert done.out == ""
    assert "Traceback" not in done.err
    first, *others = done.err.splitlines()
    assert first.startswith("error: ")
    assert all(line.startswith(("  - ", "hint: ")) for line in others), done.err
    for word in words:
        assert re.search(word, done.err), (word, done.err)


@dataclass(frozen=True)
class Fault:
    """A broken source: how it is made, the exit code, and what the message names (as regular expressions)."""

    make: Callable[[Path], object]
    code: int
    words: tuple[str, ...]


def patched(change: Callable[[bytearray], object]) -> Callable[[Path], object]:
    """A good model, with some of its bytes changed."""

    def make(path: Path) -> None:
        tiny_llama(path, qtype="Q8_0")
        content = bytearray(path.read_bytes())
        change(content)
        path.write_bytes(content)

    return make


def number(at: int, value: int, nbytes: int = 8) -> Callable[[bytearray], object]:
    """Put a little-endian number at a byte of the header: magic 0, version 4, tensors 8, keys 16, first key 24."""

    def change(content: bytearray) -> None:
        content[at : at + nbytes] = value.to_bytes(nbytes, "little")

    return change


def after(text: bytes, skip: int, value: int, nbytes: int = 8) -> Callable[[bytearray], object]:
    """Put a little-endian number `skip` bytes after a text."""
    return lambda content: number(content.index(text) + len(text) + skip, value, nbytes)(content)


def poisoned(tensor: str, value: Any, at: int = 0, qtype: str = "Q8_0") -> Callable[[Path], object]:
    def make(path: Path) -> None:
        tiny_llama(path, hidden=256, ffn=256, heads=8, kv_heads=4, qtype=qtype)
        reader: Any = gguf.GGUFReader(path)
        offset = next(t.data_offset for t in reader.tensors if t.name == tensor)
        with open(path, "r+b") as f:
            f.seek(offset + at)
            f.write(np.asarray(value).tobytes())

    return make


def truncated(keep: Callable[[int], int]) -> Callable[[Path], object]:
    def make(path: Path) -> None:
        tiny_llama(path, qtype="Q8_0")
        os.truncate(path, keep(path.stat().st_size))

    return make


ZEROS = np.zeros((4, 4), np.float32)
VECTOR = np.zeros(4, np.float32)
DOWN = "blk.1.ffn_down.weight"

FAULTS: dict[str, Fault] = {
    # a tensor removed
    "norm removed": Fault(
        lambda p: tiny_llama(p, drop=["output_norm.weight"]), 4, ("output_norm.weight", "model.norm.weight")
    ),
    "embedding removed": Fault(lambda p: tiny_llama(p, drop=["token_embd.weight"]), 4, ("token_embd.weight",)),
    "q removed": Fault(lambda p: tiny_llama(p, drop=["blk.1.attn_q.weight"]), 4, ("blk.1.attn_q.weight",)),
    "v removed everywhere": Fault(
        lambda p: tiny_llama(p, drop=["blk.0.attn_v.weight", "blk.1.attn_v.weight"]),
        4,
        (r"blk.\{0..1\}.attn_v.weight",),
    ),
    "bias removed": Fault(lambda p: tiny_qwen2(p, drop=["blk.1.attn_k.bias"]), 4, ("blk.1.attn_k.bias",)),
    "experts removed": Fault(
        lambda p: tiny_qwen3moe(p, drop=["blk.0.ffn_up_exps.weight"]), 4, ("blk.0.ffn_up_exps.weight",)
    ),
    # one added
    "tensor added": Fault(
        lambda p: tiny_llama(p, extra_tensors={"blk.0.mystery.weight": ZEROS}), 4, ("blk.0.mystery.weight",)
    ),
    "layer added": Fault(
        lambda p: tiny_llama(p, extra_tensors={"blk.2.attn_norm.weight": VECTOR}), 4, ("blk.2.attn_norm.weight",)
    ),
    "bias added": Fault(
        lambda p: tiny_llama(p, extra_tensors={"blk.1.attn_q.bias": VECTOR}), 4, ("blk.1.attn_q.bias",)
    ),
    "key added": Fault(lambda p: tiny_llama(p, extra_metadata={"llama.rope.warp": 2.0}), 4, ("llama.rope.warp",)),
    # contradictions
    "shape": Fault(lambda p: tiny_llama(p, extra_tensors={DOWN: ZEROS}), 4, (DOWN,)),
    "layer count": Fault(lambda p: tiny_llama(p, extra_metadata={"llama.block_count": 3}), 4, ("blk.2",)),
    "absurd layer count": Fault(
        lambda p: tiny_llama(p, extra_metadata={"llama.block_count": 2**32 - 1}), 4, ("block_count",)
    ),
    "no layer count": Fault(lambda p: tiny_llama(p, extra_metadata={"llama.block_count": None}), 4, ("block_count",)),
    "no heads": Fault(lambda p: tiny_llama(p, extra_metadata={"llama.attention.head_count": 0}), 4, ("head",)),
    "vocabulary": Fault(
        lambda p: tiny_llama(p, extra_tensors={"token_embd.weight": np.zeros((8, 64), np.float32)}),
        4,
        ("vocab_size", "302"),
    ),
    # no tokenizer that could be rebuilt
    "no tokenizer": Fault(
        lambda p: tiny_llama(p, extra_metadata={"tokenizer.ggml.model": None}), 4, ("tokenizer.ggml.model",)
    ),
    "unknown pre": Fault(
        lambda p: tiny_llama(p, extra_metadata={"tokenizer.ggml.pre": "klingon"}), 4, ("klingon", "--tokenizer-from")
    ),
    "more tokens than rows": Fault(
        lambda p: tiny_llama(
            p,
            extra_metadata={"llama.vocab_size": 300},
            extra_tensors={"token_embd.weight": np.zeros((300, 64), np.float32)},
        ),
        4,
        ("302", "300"),
    ),
    # a truncated file
    "empty": Fault(truncated(lambda n: 0), 3, (r"m\.gguf", "empty")),
    "only a magic": Fault(truncated(lambda n: 4), 3, (r"m\.gguf",)),
    "cut in the header": Fault(truncated(lambda n: 3000), 3, (r"m\.gguf",)),
    "cut in the weights": Fault(truncated(lambda n: n // 2), 3, (r"m\.gguf", "incomplete|ends before")),
    "last byte gone": Fault(truncated(lambda n: n - 1), 3, (r"m\.gguf", "1 of")),
    # a flipped magic
    "flipped magic": Fault(patched(number(0, 0x46554746, 4)), 3, (r"m\.gguf", "GGUF")),
    "magic of safetensors": Fault(lambda p: p.write_bytes(b"\x10\0\0\0\0\0\0\0{}" + b" " * 30), 3, ("safetensors",)),
    "a web page": Fault(lambda p: p.write_text("<!DOCTYPE html><html></html>"), 3, ("web page",)),
    "a pointer": Fault(lambda p: p.write_text("version https://git-lfs.github.com/spec/v1\n"), 3, ("git lfs pull",)),
    "version 9": Fault(patched(number(4, 9, 4)), 3, ("version 9",)),
    # a header whose counts lie
    "one tensor too many": Fault(patched(number(8, 21)), 3, (r"m\.gguf",)),
    "one tensor too few": Fault(patched(number(8, 19)), 4, ("attn_output|attn_q|attn_v|ffn_|norm",)),
    "absurd tensors": Fault(patched(number(8, 2**63)), 3, ("tensors",)),
    "absurd keys": Fault(patched(number(16, 2**40)), 3, ("keys",)),
    "one key too many": Fault(patched(lambda c: number(16, c[16] + 1)(c)), 3, (r"m\.gguf",)),
    "absurd key length": Fault(patched(number(24, 2**62)), 3, (r"m\.gguf", "key 1")),
    "absurd array": Fault(patched(after(b"tokenizer.ggml.tokens", 8, 2**60)), 3, ("tokenizer.ggml.tokens",)),
    "absurd dimension": Fault(patched(after(DOWN.encode(), 4, 2**50)), 3, (DOWN,)),
    "too many dimensions": Fault(patched(after(DOWN.encode(), 0, 77, 4)), 3, (DOWN, "77")),
    "offset beyond the file": Fault(patched(after(DOWN.encode(), 4 + 16 + 4, 2**40)), 3, (DOWN,)),
    "overlapping tensors": Fault(patched(after(DOWN.encode(), 4 + 16 + 4, 0)), 3, (DOWN, "overlap")),
    "unknown type": Fault(patched(after(DOWN.encode(), 4 + 16, 57, 4)), 4, ("type 57", DOWN)),
    # scales that are no numbers
    "NaN scale Q8_0": Fault(poisoned(DOWN, np.float16("nan")), 3, (r"m\.gguf", DOWN, "NaN")),
    "infinite scale Q4_0": Fault(poisoned(DOWN, np.float16("inf"), 18, "Q4_0"), 3, (r"m\.gguf", DOWN)),
    "NaN scale Q4_K": Fault(poisoned(DOWN, np.float16("nan"), 144, "Q4_K"), 3, (r"m\.gguf", DOWN)),
    "NaN scale Q6_K": Fault(poisoned(DOWN, np.float16("nan"), 208, "Q6_K"), 3, (r"m\.gguf", DOWN)),
    "NaN norm": Fault(poisoned("output_norm.weight", np.float32("nan")), 3, (r"m\.gguf", "output_norm.weight")),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_broken_sources(kind: str, tmp_path: Path) -> None:
    fault = FAULTS[kind]
    fault.make(tmp_path / "m.gguf")
    done = run("convert", tmp_path / "m.gguf", "-o", tmp_path / "out", "--max-shard-size", SHARD)
    assert_clean_failure(done, fault.code, *fault.words)
    assert str(tmp_path / "m.gguf") in done.err or fault.code == 4
    left = sorted(os.listdir(tmp_path))
    assert left in (["m.gguf"], ["m.gguf", "out.partial"])
    if "out.partial" in left:
        assert "NaN" in done.err, "only weights are read that late"


@pytest.mark.parametrize("kind", [kind for kind, fault in FAULTS.items() if "scale" not in kind and "NaN" not in kind])
def test_check_knows_before(kind: str, tmp_path: Path) -> None:
    """Everything that does not hide in the weights."""
    fault = FAULTS[kind]
    fault.make(tmp_path / "m.gguf")
    done = run("check", tmp_path / "m.gguf")
    assert done.code == fault.code
    assert done.err == ""
    words = [word for word in fault.words if word not in ("git lfs pull", "--tokenizer-from", "incomplete|ends before")]
    for word in words:
        assert re.search(word, done.out), done.out


def test_an_existing_target(tmp_path: Path) -> None:
    tiny_llama(tmp_path / "m.gguf")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine").write_text("mine")
    done = run("convert", tmp_path / "m.gguf", "-o", tmp_path / "out")
    assert_clean_failure(done, 6, "out exists already", "--overwrite")
    assert os.listdir(tmp_path / "out") == ["mine"]


def test_a_full_disk(tmp_path: Path) -> None:
    tiny_llama(tmp_path / "m.gguf")
    done = run("convert", tmp_path / "m.gguf", "-o", tmp_path / "out", program=FULL_DISK)
    assert_clean_failure(done, 6, r"model\.safetensors.*no space left", "free some space")
    assert os.listdir(tmp_path) == ["m.gguf"]


def mounted(options: str, folder: Path, source: Path) -> Done:
    """Convert into a small or read-only file system of its own, in a mount namespace that ends with the process."""
    script = 'mount -t tmpfs -o "$0" none "$1" && shift && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", script, options, folder, *GGUF2ST, "convert", source, "-o", folder / "out"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if "error: " not in done.stderr:
        pytest.skip("a file system can only be mounted by root")
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    ("options", "words"),
    [("size=100k", "no space left"), ("size=1m,nr_inodes=3", "no space left"), ("ro", "not writable")],
)
def test_real_file_systems(options: str, words: str, tmp_path: Path) -> None:
    tiny_llama(tmp_path / "m.gguf")
    (tmp_path / "disk").mkdir()
    assert_clean_failure(mounted(options, tmp_path / "disk", tmp_path / "m.gguf"), 6, words, "hint: ", "disk/out")


def test_ctrl_c(tmp_path: Path) -> None:
    """Before any shard is finished: nothing is left."""
    tiny_llama(tmp_path / "m.gguf")
    part = tmp_path / "out.partial/model.safetensors.part"
    done = interrupted("convert", tmp_path / "m.gguf", "-o", tmp_path / "out", once=part)
    assert (done.code, done.out, done.err) == (130, "", "no unfinished file is left behind\ninterrupted\n")
    assert os.listdir(tmp_path) == ["m.gguf"]


def test_every_byte_of_a_header_may_lie(tmp_path: Path) -> None:
    """Random damage to the header, in one process: an error of ours or a plan, and never anything else."""
    program = """
import random, sys
from pathlib import Path
import gguf2st
from gguf2st import api
path, good = Path(sys.argv[1]), Path(sys.argv[1]).read_bytes()
end = good.index(b"blk.0.attn_norm.weight") + 2000
rng = random.Random(7)
for _ in range(400):
    content = bytearray(good)
    for _ in range(rng.choice((1, 1, 2, 8))):
        content[rng.randrange(end)] = rng.choice((0, 1, 255, rng.randrange(256)))
    path.write_bytes(content)
    api.problems(path)
    try:
        gguf2st.convert(path, path.with_name("out"), dry_run=True)
    except gguf2st.Gguf2stError:
        pass
"""
    source = tiny_llama(tmp_path / "m.gguf")
    done = subprocess.run([sys.executable, "-c", program, source], capture_output=True, text=True, check=False)
    assert done.stderr[-2000:] == ""
    assert done.returncode == 0
