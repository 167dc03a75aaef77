"""A few hundred hostile inputs of a fixed seed for each target, and whether the net that catches faults has holes.

`scripts/fuzz.py` runs any number of them: docs/robustness.md.
"""

import hashlib
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from gguf2st import api
from gguf2st.errors import HeaderError
from tests.fuzz.draft import Array, Item, Row, take_apart
from tests.fuzz.harness import MEMORY_FACTOR, Files, Tally, make_input, memory_limit, run_one, run_slice
from tests.fuzz.planning import ArchitecturesTarget
from tests.fuzz.seeds import drafts
from tests.fuzz.targets import TARGETS
from tests.make_gguf import tiny_llama

SEED = 2026
COUNTS = {
    "header": 1_000,
    "peer": 40,
    "split": 150,
    "plan": 60,
    "architectures": 25,
    "tokenizer": 250,
    "expression": 1_000,
    "map": 200,
    "plan-file": 250,
    "checkpoint": 40,
    "dry-run": 60,
    "convert": 25,
    "resume": 8,
    "command": 40,
    "real": 3,
    "folder": 100,
}
MARKS = {"architectures": pytest.mark.oracle, "real": pytest.mark.real}
CASES = ("llama_rope3_8", "gemma3n", "deepseek_v3", "granitehybrid", "qwen3next", "gpt_oss", "mamba2", "xlm-roberta")


@pytest.mark.parametrize("name", [pytest.param(n, marks=MARKS[n]) if n in MARKS else n for n in COUNTS])
def test_every_input_is_refused_or_kept_to(name: str, tmp_path: Path) -> None:
    target = ArchitecturesTarget(CASES) if name == "architectures" else TARGETS[name]
    tally = run_slice(target, SEED, range(COUNTS[name]), tmp_path)
    assert tally.faults == []
    assert tally.inputs == COUNTS[name]
    assert tally.outcomes["accepted"] > 0, "an input that is always refused reaches nothing"


def test_every_target_is_run() -> None:
    assert COUNTS.keys() == TARGETS.keys()


class _Target:
    """One that does what it is told."""

    name = "told"
    describes = "nothing"

    def __init__(self, act: Callable[[], object]) -> None:
        self.act = act

    def make(self, rng: Random) -> Files:
        return {"x": rng.randbytes(8)}

    def run(self, files: Files, folder: Path) -> None:
        (folder / "left").write_bytes(files["x"])
        self.act()


def _fail(error: BaseException) -> Callable[[], object]:
    def act() -> None:
        raise error

    return act


def _spin() -> None:
    while True:
        pass


def _swallow() -> None:
    while True:
        try:
            _spin()
        except Exception:
            continue


@pytest.mark.parametrize(
    ("act", "outcome", "place"),
    [
        (lambda: None, "accepted", ""),
        (_fail(HeaderError("no")), "HeaderError", ""),
        (_fail(KeyError("k")), "fault", "KeyError"),
        (_fail(RecursionError()), "fault", "RecursionError"),
        (_fail(SystemExit(1)), "fault", "SystemExit"),
        (_fail(AssertionError("promise")), "fault", "promise"),
        (_spin, "fault", "HangError"),
        (_swallow, "fault", "HangError"),
        (lambda: time.sleep(100), "fault", "HangError"),
        (lambda: bytearray(memory_limit({"x": bytes(8)}) + 1), "fault", "memory"),
    ],
)
def test_what_counts_as_a_fault(
    act: Callable[[], object], outcome: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.fuzz.harness.TIME_LIMIT_S", 0.05)
    monkeypatch.setattr("tests.fuzz.harness.BLOCK_LIMIT_S", 1.0)
    tally = Tally()
    run_one(_Target(act), {"x": bytes(8)}, tmp_path, tally, traced=place == "memory")
    assert tally.outcomes == {outcome: 1}
    assert all(place in fault.place for fault in tally.faults)
    assert len(tally.faults) == (outcome == "fault")
    assert list(tmp_path.iterdir()) == []


def _digest(hash_seed: str) -> str:
    program = """
import hashlib
from tests.fuzz.harness import make_input
from tests.fuzz.targets import TARGETS
found = hashlib.sha256()
for name in ("header", "tokenizer", "map", "expression", "plan-file", "command"):
    for index in range(20):
        for file, content in make_input(TARGETS[name], 1, index).items():
            found.update(file.encode("utf-8", "surrogateescape") + content)
print(found.hexdigest())
"""
    root = Path(__file__).resolve().parent.parent
    environment = {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(root), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment, check=True, cwd=root)
    return done.stdout.decode().split()[-1]


def test_an_input_is_named_by_its_number() -> None:
    """The same in another process, whatever the order of its sets."""
    assert _digest("1") == _digest("2")
    target = TARGETS["header"]
    assert make_input(target, 1, 7) == make_input(target, 1, 7) != make_input(target, 2, 7)


def test_a_draft_is_the_file_it_was_made_of(tmp_path: Path) -> None:
    content = tiny_llama(tmp_path / "m.gguf", qtype="Q8_0").read_bytes()
    draft = take_apart(content)
    assert draft.encode() == content
    draft.settle()
    assert draft.encode() == content
    assert hashlib.sha256(drafts()[0].encode()).digest() == hashlib.sha256(drafts()[0].copy().encode()).digest()
    again = Item(b"k", 9, Array(5, [1, -1])).changed(value=Array(5, [1], count=2**64 - 1))
    draft.items = [again]
    assert draft.encode()[24:].startswith(
        b"\1" + bytes(7) + b"k" + b"\x09\0\0\0" + b"\5\0\0\0" + b"\xff" * 8 + b"\1\0\0\0"
    )


def _numbered(make: Callable[[int], object], nbytes: int) -> list[object]:
    return [make(i) for i in range(300_000 // nbytes)]


COSTLY: dict[str, Callable[[], list[object]]] = {
    "bools": lambda: [Item(b"k", 9, Array(7, [1] * 300_000))],
    "empty strings": lambda: [Item(b"k", 9, Array(8, [b""] * (300_000 // 8)))],
    "empty arrays": lambda: [Item(b"k", 9, Array(9, [Array(0, ())] * (300_000 // 12)))],
    "keys": lambda: _numbered(lambda i: Item(b"llama.%x" % i, 7, 1), 24),
    "tensors": lambda: _numbered(lambda i: Row(b"%x" % i, (), 0, 32 * i), 60),
    "names of many numbers": lambda: _numbered(
        lambda i: Row(b"%d." % i + b".".join(b"%d" % (i * 7**n % 10) for n in range(12)), (), 0, 32 * i), 90
    ),
}


@pytest.mark.parametrize("kind", COSTLY)
def test_headers_that_cost_most_for_their_size(kind: str, tmp_path: Path) -> None:
    """All memory of reading and planning, beyond what the same takes without them."""
    draft = drafts()[0].copy()
    pieces = COSTLY[kind]()
    draft.items = draft.items + [piece for piece in pieces if isinstance(piece, Item)]
    draft.rows = draft.rows + [piece for piece in pieces if isinstance(piece, Row)]
    draft.settle(1 << 24)
    content = draft.encode()
    (tmp_path / "m.gguf").write_bytes(content)
    api.problems(tmp_path / "m.gguf")
    tracemalloc.start()
    try:
        assert all(len(line) < 2_100 for _, line in api.problems(tmp_path / "m.gguf"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MEMORY_FACTOR * len(content) + (4 << 20)
