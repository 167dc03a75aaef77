"""A plan file, shares of its shards, and `finish` make the bytes of a plain conversion, whatever fails meanwhile."""

import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gguf2st
from gguf2st import api
from gguf2st.conversion import Options
from gguf2st.errors import CoverageError, OutputError, SchemeError, SourceError, UsageError, VerifyError
from gguf2st.kernels import cpu, device
from gguf2st.output import folder as output
from gguf2st.scaleout import finishing, work
from gguf2st.scaleout.folder import SharedFolder
from gguf2st.scaleout.shares import Share, parse_share, share_numbers
from tests.hub_server import HubServer
from tests.make_gguf import tiny_gemma3, tiny_llama, tiny_model
from tests.test_hub_sources import split

ROOT = Path(__file__).resolve().parent.parent
NBYTES = 45_000
"""Makes five shards of the tiny llama."""

Files = dict[str, bytes]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("source") / "m.gguf", layers=2, qtype="Q8_0")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A source that a test may change."""
    return tiny_llama(tmp_path / "own.gguf", layers=2, qtype="Q8_0")


def files_of(folder: Path) -> Files:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def plan_of(source: Path, folder: Path, **options: Any) -> Path:
    """A plan file beside the output `out`."""
    path = folder / "p.plan"
    api.write_plan(source, path, folder / "out", Options(**{"max_shard_size": NBYTES} | options))
    return path


def straight(source: Path, folder: Path, **options: Any) -> Files:
    gguf2st.convert(source, folder / "straight", **{"max_shard_size": NBYTES} | options)
    return files_of(folder / "straight")


def run(*arguments: object, cwd: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "gguf2st", *map(str, arguments)]
    return subprocess.run(
        command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=120
    )


# --- Shares -------------------------------------------------------------------------------------------------------


def test_shares_are_neighbours_of_about_the_same_size() -> None:
    sizes = [5, 5, 5, 5, 5, 2]
    assert share_numbers(sizes, 2) == [1, 1, 1, 2, 2, 2]
    assert share_numbers(sizes, 3) == [1, 1, 2, 2, 3, 3]
    assert share_numbers(sizes, 6) == [1, 2, 3, 4, 5, 6]
    assert share_numbers([10, 1, 1, 1], 2) == [1, 2, 2, 2]
    assert Share(2, 3).indices(sizes) == (2, 3)
    assert share_numbers([1, 1, 1, 100], 2) == [1, 1, 1, 2]
    assert share_numbers([100, 1, 1, 1], 3) == [1, 2, 3, 3]
    assert share_numbers([5] * 9 + [1], 10) == list(range(1, 11))
    assert Share(2, 9).indices([4, 4]) == (1,)
    assert Share(3, 9).indices([4, 4]) == ()
    assert Share(1, 1).indices([0]) == (0,)


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=60), st.integers(1, 70))
def test_every_shard_is_in_one_share_and_none_has_much_more_than_its_part(sizes: list[int], of: int) -> None:
    shares = [Share(number, of).indices(sizes) for number in range(1, of + 1)]
    assert [index for share in shares for index in share] == list(range(len(sizes)))
    for share in shares:
        assert sum(sizes[index] for index in share) <= sum(sizes) / of + max(sizes)
    assert sum(not share for share in shares) == max(0, of - len(sizes))


@pytest.mark.parametrize("text", ["0/3", "4/3", "1/0", "1", "1/2/3", "a/b", "-1/2", "", "1/ 2", "1/9999999999"])
def test_no_shares(text: str) -> None:
    with pytest.raises(UsageError):
        parse_share(text)


# --- The same bytes -----------------------------------------------------------------------------------------------


MODELS: dict[str, tuple[Callable[[Path], Path], dict[str, Any]]] = {
    "dequantized": (lambda p: tiny_llama(p, qtype="Q8_0"), {}),
    "one shard": (lambda p: tiny_llama(p, qtype="Q8_0"), {"max_shard_size": 5_000_000_000}),
    "packed": (
        lambda p: tiny_llama(p, hidden=256, ffn=256, layers=1, qtype="Q6_K"),
        {"repack": "near", "max_shard_size": 300_000},
    ),
    "digests": (lambda p: tiny_llama(p, qtype="Q4_0"), {"digests": True, "dtype": "float16"}),
    "too small for float16": (
        lambda p: tiny_llama(p, extra_tensors={"blk.0.attn_q.weight": np.full((64, 64), 1e-9, np.float32)}),
        {"dtype": "float16"},
    ),
    "experts": (lambda p: tiny_model(p, "qwen3moe", qtype="Q8_0"), {}),
    "another tokenizer": (lambda p: tiny_gemma3(p, qtype="Q8_0"), {"max_shard_size": 200_000}),
    "big-endian": (lambda p: tiny_llama(p, qtype="Q8_0", byteorder="big"), {"tokenizer_pre": "qwen2"}),
}


@pytest.mark.parametrize("of", [1, 3, 20])
@pytest.mark.parametrize("model", MODELS)
def test_shares_and_finish_make_the_bytes_of_a_plain_conversion(model: str, of: int, tmp_path: Path) -> None:
    make, options = MODELS[model]
    source = make(tmp_path / "m.gguf")
    path = plan_of(source, tmp_path, **options)
    numbers = list(range(1, of + 1))
    random.Random(of).shuffle(numbers)
    written = [api.convert_planned(path, f"{number}/{of}") for number in numbers]
    report = api.finish(path)
    names = [name for one in written for name in one.written]
    assert sorted(names) == sorted(report.shards)
    assert sum(one.nbytes for one in written) == report.output_nbytes
    assert any(not one.shards for one in written) == (of > len(report.shards))
    assert files_of(tmp_path / "out") == straight(source, tmp_path, **options)
    assert not (tmp_path / "out.partial").exists()
    gguf2st.verify(tmp_path / "out", source).require_ok()


def test_the_report_is_that_of_a_plain_conversion(source: Path, tmp_path: Path) -> None:
    path = plan_of(source, tmp_path, repack="near")
    api.convert_planned(path)
    told: list[tuple[int, int]] = []
    shared = json.loads(api.finish(path, progress=lambda *x: told.append(x)).to_json())
    plain = json.loads(gguf2st.convert(source, tmp_path / "b", repack="near", max_shard_size=NBYTES).to_json())
    assert shared.pop("output") == str(tmp_path / "out")
    assert plain.pop("output") == str(tmp_path / "b")
    for report in (shared, plain):
        report["verification"].pop("folder")
        report.pop("seconds")
    assert shared == plain
    assert sum(nbytes for nbytes, _ in told) == plain["output_nbytes"]
    assert {total for _, total in told} == {plain["output_nbytes"]}


def test_from_other_folders_with_relative_names(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    source = tiny_llama(tmp_path / "here" / "m.gguf", qtype="Q8_0")
    run("convert", source, "-o", "tok", "-q", cwd=tmp_path / "here")
    (tmp_path / "here" / "my.toml").write_bytes((ROOT / "arch_maps" / "llama.toml").read_bytes())
    options = ["--tokenizer-from", "tok", "--arch-map", "my.toml", "--max-shard-size", "45kB"]
    done = run("plan", "m.gguf", "-o", "out", *options, "--write", "../p.plan", "--json", cwd=tmp_path / "here")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["output"] is None
    for command in (["convert", "--plan", "p.plan"], ["finish", "p.plan"]):
        done = run(*command, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    plain = run("convert", "m.gguf", "-o", "plain", *options, cwd=tmp_path / "here")
    assert plain.returncode == 0, plain.stderr
    assert files_of(tmp_path / "here" / "out") == files_of(tmp_path / "here" / "plain")


def test_a_plan_file_is_the_same_every_time_and_replaces_only_its_like(source: Path, tmp_path: Path) -> None:
    first = plan_of(source, tmp_path).read_bytes()
    assert plan_of(source, tmp_path).read_bytes() == first
    head, plan = first.decode().splitlines()
    assert json.loads(head)["gguf2st"] == gguf2st.__version__
    assert len(json.loads(plan)["shards"]) == 5
    other = tmp_path / "notes.txt"
    other.write_text("mine")
    with pytest.raises(OutputError, match="is no plan file"):
        api.write_plan(source, other, tmp_path / "out")
    with pytest.raises(OutputError, match="is no plan file"):
        api.write_plan(source, source, tmp_path / "out")
    assert other.read_text() == "mine"


def test_what_cannot_be_converted_is_not_planned(tmp_path: Path) -> None:
    source = tiny_llama(tmp_path / "m.gguf", drop=["blk.1.attn_q.weight"])
    with pytest.raises(CoverageError):
        plan_of(source, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.gguf"]


# --- Again, and at the same time ----------------------------------------------------------------------------------


def inodes(partial: Path) -> dict[str, tuple[int, int]]:
    return {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in partial.glob("*.safetensors")}


def test_a_finished_shard_is_kept_and_a_damaged_one_is_not(source: Path, tmp_path: Path) -> None:
    path = plan_of(source, tmp_path)
    told: list[int] = []
    first = api.convert_planned(path, progress=lambda nbytes, total: told.append(nbytes))
    before = inodes(tmp_path / "out.partial")
    again = api.convert_planned(path, "2/2")
    assert (again.written, again.kept) == ((), again.shards)
    assert sum(told) == first.nbytes
    damaged = tmp_path / "out.partial" / first.shards[1]
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(OutputError, match=r"1 of 5 shards of .* are changed since they were written") as caught:
        api.finish(path)
    assert caught.value.problems == (f"{first.shards[1]}: gguf2st convert --plan {path} --shard 2/5",)
    third = api.convert_planned(path)
    assert third.written == (first.shards[1],)
    after = inodes(tmp_path / "out.partial")
    assert {name for name in before if before[name] != after[name]} == {first.shards[1]}
    api.finish(path)
    assert files_of(tmp_path / "out") == straight(source, tmp_path)


JOURNALS: dict[str, Callable[[Path], object]] = {
    "cut short": lambda p: os.truncate(p, p.stat().st_size - 20),
    "of zeros": lambda p: p.write_bytes(bytes(200)),
    "not UTF-8": lambda p: p.write_bytes(b"\xff\xfe" + p.read_bytes()),
    "of another shard": lambda p: p.write_text(p.read_text().replace("00002-of", "00001-of")),
    "of other types": lambda p: p.write_text('{"shard": 3, "sums": [], "sha256": null}\n[]\n4\n'),
    "removed": lambda p: p.unlink(),
}


@pytest.mark.parametrize("damage", JOURNALS)
def test_a_damaged_journal_means_that_the_shard_is_written_again(damage: str, source: Path, tmp_path: Path) -> None:
    path = plan_of(source, tmp_path)
    shards = api.convert_planned(path).shards
    JOURNALS[damage](tmp_path / "out.partial" / "journals" / shards[1])
    written = api.convert_planned(path).written
    assert written == (() if damage == "not UTF-8" else (shards[1],))  # there the line itself is whole
    api.finish(path)
    assert files_of(tmp_path / "out") == straight(source, tmp_path)


def test_the_commands_that_finish_names_make_what_is_missing(source: Path, tmp_path: Path) -> None:
    path = plan_of(source, tmp_path)
    done = run("finish", path, "--json", "-", cwd=tmp_path)
    assert done.returncode == OutputError.exit_code
    assert json.loads(done.stdout)["error"] == f"5 of 5 shards of {tmp_path / 'out'} are missing"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p.plan"]
    api.convert_planned(path, "2/3")
    problems = json.loads(run("finish", path, "--json", "-", cwd=tmp_path).stdout)["problems"]
    assert len(problems) == 4
    for line in problems:
        name, command = line.split(": ")
        program, *arguments = shlex.split(command)
        assert program == "gguf2st"
        made = run(*arguments, "--json", "-", cwd=tmp_path)
        assert json.loads(made.stdout)["written"] == [name], made.stderr
    assert run("finish", path, "-q", cwd=tmp_path).returncode == 0
    assert files_of(tmp_path / "out") == straight(source, tmp_path)
    for again in (["finish", path], ["convert", "--plan", path, "--shard", "1/2"]):
        done = run(*again, cwd=tmp_path)
        assert (done.returncode, "exists already, with every shard" in done.stderr) == (OutputError.exit_code, True)
        (command,) = re.findall(r"`(gguf2st verify .*?)`", done.stderr)
        assert run(*shlex.split(command)[1:], cwd=tmp_path).returncode == 0
        assert "(options of `gguf2st plan`" in done.stderr, "this command has neither --overwrite nor -o"
    gguf2st.convert(source, tmp_path / "out", max_shard_size=2 * NBYTES, overwrite=True)
    done = run("finish", path, cwd=tmp_path)
    assert "with every shard" not in done.stderr, "another checkpoint"
    assert "exists already\n" in done.stderr


SLOW = """
import sys, time
from gguf2st.kernels import cpu, device
def decode(qtype, dtype, blocks, out):
    cpu.dequantize(qtype, dtype, blocks, out)
    time.sleep(0.01)
device.decoder = lambda name: decode
from gguf2st import api
print(api.convert_planned(sys.argv[1], threads=1).to_json())
"""


def test_processes_with_the_same_share_divide_it_among_themselves(source: Path, tmp_path: Path) -> None:
    path = plan_of(source, tmp_path, max_shard_size=20_000)
    command = [sys.executable, "-c", SLOW, path]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    results = [json.loads(process.communicate(timeout=120)[0]) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    shards = api.write_plan(source, path, tmp_path / "out", Options(max_shard_size=20_000)).shards
    assert sorted(name for result in results for name in result["written"]) == sorted(shards), "each once"
    assert all(sorted(result["written"] + result["kept"]) == sorted(shards) for result in results)
    api.finish(path)
    assert files_of(tmp_path / "out") == straight(source, tmp_path, max_shard_size=20_000)


def test_where_a_file_system_has_no_locks_two_may_write_the_same(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gguf2st.output.locks.lock_file", lambda file, **how: True)
    monkeypatch.setattr("gguf2st.scaleout.folder.lock_file", lambda file, **how: True)
    path = plan_of(source, tmp_path)
    api.convert_planned(path, "1/5")
    barrier = threading.Barrier(2)
    results: list[Any] = []

    def work() -> None:
        barrier.wait()
        results.append(api.convert_planned(path, threads=1))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 2
    api.finish(path)
    assert files_of(tmp_path / "out") == straight(source, tmp_path)


KILLED = """
import os, pathlib, signal, sys, time
from gguf2st.kernels import cpu, device
def decode(qtype, dtype, blocks, out):
    cpu.dequantize(qtype, dtype, blocks, out)
    if len(list(partial.glob("*.safetensors"))) == 2:
        while len([p for p in (partial / "journals").glob("*") if p.stat().st_size]) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
partial = pathlib.Path(sys.argv[1]).with_name("out.partial")
device.decoder = lambda name: decode
from gguf2st import api
api.convert_planned(sys.argv[1], threads=1)
"""


def test_a_process_killed_in_the_middle_loses_no_finished_shard(source: Path, tmp_path: Path) -> None:
    path = plan_of(source, tmp_path)
    done = subprocess.run([sys.executable, "-c", KILLED, path], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    partial = tmp_path / "out.partial"
    marked = [p.name for p in (partial / "journals").iterdir() if p.stat().st_size]
    assert len(marked) == 2
    assert len(list(partial.glob("*.part"))) == 1
    before = inodes(partial)
    again = api.convert_planned(path)
    assert sorted(again.kept) == sorted(marked)
    assert not list(partial.glob("*.part")), "what the killed one left takes no room"
    assert {name: inodes(partial)[name] for name in marked} == {name: before[name] for name in marked}
    api.finish(path)
    assert files_of(tmp_path / "out") == straight(source, tmp_path)


@pytest.fixture
def joined(source: Path, tmp_path: Path) -> Iterator[tuple[Path, SharedFolder]]:
    """A plan file, and a process (this one) that works on it."""
    path = plan_of(source, tmp_path)
    text = path.read_text()
    with SharedFolder(tmp_path / "out", text, overwrite=False) as folder:
        yield path, folder


def test_a_shard_that_another_process_keeps(
    joined: tuple[Path, SharedFolder], monkeypatch: pytest.MonkeyPatch, source: Path, tmp_path: Path
) -> None:
    path, folder = joined
    monkeypatch.setattr(work, "WAIT_S", 0.3)
    claim = folder.claim("model-00002-of-00005.safetensors")
    assert claim is not None
    with pytest.raises(OutputError, match="another process has been writing model-00002-of-00005") as caught:
        api.convert_planned(path)
    assert len(inodes(folder.partial)) == 4, "the others are written meanwhile"
    assert caught.value.hint.endswith(f"rm {folder.partial}/journals/model-00002-of-00005.safetensors")
    Path(caught.value.hint.split("rm ")[1]).unlink()
    assert api.convert_planned(path).written == ("model-00002-of-00005.safetensors",)
    claim.close()


def test_waiting_for_a_shard_ends_when_it_is_finished(
    joined: tuple[Path, SharedFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, folder = joined
    claim = folder.claim("model-00001-of-00005.safetensors")
    assert claim is not None
    monkeypatch.setattr(time, "sleep", lambda seconds: claim.close())
    written = api.convert_planned(path)
    assert len(written.written) == 5


def test_others_are_refused_while_a_share_is_at_work(
    joined: tuple[Path, SharedFolder], source: Path, tmp_path: Path
) -> None:
    path, folder = joined
    api.convert_planned(path)
    before = files_of(folder.partial)
    with pytest.raises(OutputError, match="another conversion is writing here"):
        gguf2st.convert(source, tmp_path / "out")
    with pytest.raises(OutputError, match="another conversion is writing here"):
        api.finish(path)
    api.write_plan(source, tmp_path / "other.plan", tmp_path / "out", Options(dtype="float16"))
    with pytest.raises(OutputError, match="another conversion is writing here"):
        api.convert_planned(tmp_path / "other.plan")
    assert files_of(folder.partial) == before
    assert not (tmp_path / "out").exists()


def test_a_share_is_refused_while_another_conversion_is_at_work(source: Path, tmp_path: Path) -> None:
    path = plan_of(source, tmp_path)
    with output.OutputFolder(tmp_path / "out", "another plan"):
        with pytest.raises(OutputError, match="another conversion is writing here"):
            api.convert_planned(path)
        assert (tmp_path / "out.partial/plan.json").read_text() == "another plan"


def test_another_plan_starts_anew_once_nobody_works(source: Path, tmp_path: Path) -> None:
    path = plan_of(source, tmp_path)
    api.convert_planned(path)
    other = tmp_path / "other.plan"
    api.write_plan(source, other, tmp_path / "out", Options(dtype="float16", max_shard_size=NBYTES))
    assert api.convert_planned(other, "1/2").kept == ()
    with pytest.raises(OutputError, match=r"5 of 5 shards of .* are missing"):
        api.finish(path)
    api.convert_planned(other, "2/2")
    api.finish(other)
    assert files_of(tmp_path / "out") == straight(source, tmp_path, dtype="float16")


def test_somebody_elses_folder_is_left_alone(source: Path, tmp_path: Path) -> None:
    path = plan_of(source, tmp_path)
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "mine.txt").write_text("mine")
    with pytest.raises(OutputError, match="somebody else's folder"):
        api.convert_planned(path)
    with pytest.raises(OutputError, match="are missing"):
        api.finish(path)
    assert files_of(tmp_path / "out.partial") == {"mine.txt": b"mine"}


def test_a_stray_file_does_not_end_in_the_checkpoint(source: Path, tmp_path: Path) -> None:
    path = plan_of(source, tmp_path)
    api.convert_planned(path)
    stray = tmp_path / "out.partial" / "stray.txt"
    stray.write_text("mine")
    with pytest.raises(OutputError, match=r"holds 'stray.txt'"):
        api.finish(path)
    stray.unlink()
    api.finish(path)
    assert files_of(tmp_path / "out") == straight(source, tmp_path)


def test_overwriting(source: Path, tmp_path: Path) -> None:
    gguf2st.convert(source, tmp_path / "out", dtype="float16")
    old = files_of(tmp_path / "out")
    path = tmp_path / "p.plan"
    with pytest.raises(OutputError, match="exists already"):
        api.write_plan(source, path, tmp_path / "out")
    api.write_plan(source, path, tmp_path / "out", Options(overwrite=True, max_shard_size=NBYTES))
    api.convert_planned(path)
    assert files_of(tmp_path / "out") == old
    api.finish(path)
    assert files_of(tmp_path / "out") == straight(source, tmp_path)


def test_an_old_checkpoint_of_the_same_layout_is_not_taken_for_the_new_one(source: Path, tmp_path: Path) -> None:
    """Nothing is written yet: what there is may be another model's, and the command that makes the shards is named."""
    other = tiny_llama(tmp_path / "other.gguf", layers=2, qtype="Q8_0", seed=5)
    gguf2st.convert(other, tmp_path / "out", max_shard_size=NBYTES)
    path = plan_of(source, tmp_path, overwrite=True)
    before = files_of(tmp_path / "out")
    with pytest.raises(OutputError, match="has all shards of this plan already") as caught:
        api.finish(path)
    assert f"gguf2st convert --plan {path}" in caught.value.hint
    assert files_of(tmp_path / "out") == before
    api.convert_planned(path)
    api.finish(path)
    assert files_of(tmp_path / "out") == straight(source, tmp_path)
    with pytest.raises(OutputError, match="has all shards of this plan already") as caught:
        api.finish(path)
    assert f"gguf2st verify {tmp_path / 'out'} --against" in caught.value.hint


def test_a_failed_verification_keeps_the_shards(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = plan_of(source, tmp_path)
    api.convert_planned(path)
    before = inodes(tmp_path / "out.partial")

    def fail(*_: object, **__: object) -> None:
        raise VerifyError("broken")

    with monkeypatch.context() as patch:
        patch.setattr(finishing, "conclude", fail)
        with pytest.raises(VerifyError):
            api.finish(path)
    assert inodes(tmp_path / "out.partial") == before
    api.finish(path)
    assert files_of(tmp_path / "out") == straight(source, tmp_path)


# --- What is refused ----------------------------------------------------------------------------------------------


def same_time(path: Path, change: Callable[[Path], object]) -> None:
    status = path.stat()
    change(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "grown": (lambda p: same_time(p, lambda q: q.write_bytes(q.read_bytes() + bytes(32))), "its size"),
    "touched": (lambda p: os.utime(p, ns=(1, 1)), "its time of its last change"),
    "another header": (
        lambda p: same_time(p, lambda q: q.write_bytes(q.read_bytes().replace(b"Tiny llama", b"Tiny LLAMA"))),
        "its header",
    ),
    "other weights": (lambda p: tiny_llama(p, layers=2, qtype="Q8_0", seed=1), "its time of its last change"),
    "gone": (lambda p: p.unlink(), "No such file"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_source_that_changed_since_it_was_planned(change: str, own: Path, tmp_path: Path) -> None:
    path = plan_of(own, tmp_path)
    api.convert_planned(path)
    alter, says = CHANGES[change]
    alter(own)
    for call in (lambda: api.convert_planned(path, "1/2"), lambda: api.finish(path)):
        with pytest.raises(SourceError, match=f"own.gguf.*{says}"):
            call()
    assert not (tmp_path / "out").exists()


def test_a_source_that_changes_while_a_shard_is_written(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = plan_of(own, tmp_path)

    def decode(qtype: str, dtype: str, blocks: Any, out: Any) -> None:
        cpu.dequantize(qtype, dtype, blocks, out)
        own.touch()

    monkeypatch.setattr(device, "decoder", lambda name: decode)
    with pytest.raises(SourceError, match="changed while it was read"):
        api.convert_planned(path)
    assert inodes(tmp_path / "out.partial") == {}
    assert all(not p.stat().st_size for p in (tmp_path / "out.partial/journals").iterdir())


def test_a_weight_that_loses_too_much(tmp_path: Path) -> None:
    source = tiny_llama(tmp_path / "m.gguf", hidden=256, ffn=256, layers=1, qtype="Q6_K")
    path = plan_of(source, tmp_path, repack="near", max_rel_rmse=1e-4)
    with pytest.raises(SchemeError, match="is allowed"):
        api.convert_planned(path)
    partial = tmp_path / "out.partial"
    assert inodes(partial).keys() == {p.name for p in (partial / "journals").iterdir() if p.stat().st_size}
    assert not list(partial.glob("*.part"))


def head_of(text: str, **fields: object) -> str:
    head, plan = text.splitlines()
    return f"{json.dumps(json.loads(head) | fields)}\n{plan}\n"


def plan_with(text: str, edit: Callable[[dict[str, Any]], object]) -> str:
    head, plan = text.splitlines()
    table = json.loads(plan)
    edit(table)
    return f"{head}\n{json.dumps(table)}\n"


BAD_PLANS: dict[str, tuple[Callable[[str], str | bytes], str]] = {
    "another version": (lambda t: head_of(t, gguf2st="0.0.9"), "was written by gguf2st 0.0.9, this is "),
    "no version": (lambda t: head_of(t, gguf2st=None), "was written by gguf2st None, this is "),
    "a plan alone": (lambda t: t.splitlines()[1], "is no plan file"),
    "empty": (lambda t: "", "is no plan file"),
    "bytes": (lambda t: b"GGUF\xff\xfe\0", "is no plan file"),
    "no plan": (lambda t: t.splitlines()[0] + "\n", "this is no plan"),
    "cut short": (lambda t: t[: len(t) - 50], "this is no plan"),
    "no output": (lambda t: head_of(t, output=3), "is damaged"),
    "relative output": (lambda t: head_of(t, output="out"), "is no folder"),
    "the root": (lambda t: head_of(t, output="/"), "is no folder"),
    "other files": (lambda t: head_of(t, model=json.loads(t.splitlines()[0])["model"] | {"files": ["/x"]}), "other"),
    "no files": (lambda t: head_of(t, files=[]), "0 states of 1 files"),
    "unknown option": (lambda t: head_of(t, options={"speed": 3}), "has no 'speed'"),
    "no shards": (lambda t: plan_with(t, lambda p: p.update(shards=[])), "no shard"),
    "a shard elsewhere": (lambda t: t.replace("model-00001-of", "../../el-0001-of"), "is no name of a shard"),
    "a deep head": (lambda t: "[" * 100_000, "is no plan file"),
}


@pytest.mark.parametrize("bad", BAD_PLANS)
def test_bad_plan_files(bad: str, source: Path, tmp_path: Path) -> None:
    path = plan_of(source, tmp_path)
    change, says = BAD_PLANS[bad]
    content = change(path.read_text())
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    for call in (lambda: api.convert_planned(path, "1/2"), lambda: api.finish(path)):
        with pytest.raises(SourceError, match=says) as caught:
            call()
        assert str(path) in caught.value.message
        assert "\n" not in caught.value.message
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p.plan"]


def test_plan_files_that_are_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "gone.plan", tmp_path):
        with pytest.raises(SourceError, match=str(path)):
            api.convert_planned(path)


def test_a_plan_that_says_something_else_than_the_source_is_not_finished(source: Path, tmp_path: Path) -> None:
    """The shards of such a plan can be written, as it is sound; but nothing made of them gets a name."""
    path = plan_of(source, tmp_path)
    text = path.read_text()
    assert text.count('["unpermute",2]') == 2
    path.write_text(text.replace('["unpermute",2]', '["unpermute",4]', 1))
    api.convert_planned(path)
    with pytest.raises(SourceError, match="is not what this source and these options give"):
        api.finish(path)
    assert not (tmp_path / "out").exists()


USAGE = {
    "out of range": (["--plan", "p.plan", "--shard", "3/2"], "no share 3 of 2"),
    "no share": (["--plan", "p.plan", "--shard", "2"], "is no share"),
    "source and plan": (["{source}", "--plan", "p.plan"], "SRC is not given with --plan"),
    "options and plan": (["--plan", "p.plan", "--repack", "near"], "--repack is settled by the plan"),
    "output and plan": (["--plan", "p.plan", "-o", "x"], "--output is settled by the plan"),
    "push and plan": (["--plan", "p.plan", "--push", "a/b"], "`gguf2st finish P` uploads"),
    "share without a plan": (["{source}", "--shard", "1/2"], "--shard goes with --plan"),
    "neither": ([], "missing argument 'SRC', or --plan"),
    "address alone": (["{source}", "--address", "localhost:1"], "--address goes with --engine ray"),
}


@pytest.mark.parametrize("case", USAGE)
def test_commands_that_cannot_be_meant(case: str, source: Path, tmp_path: Path) -> None:
    plan_of(source, tmp_path)
    arguments, says = USAGE[case]
    done = run("convert", *(a.format(source=source) for a in arguments), cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p.plan"]


def test_the_command_line(source: Path, tmp_path: Path) -> None:
    done = run("plan", source, "-o", "out", "--max-shard-size", "45kB", "--write", "p.plan", cwd=tmp_path)
    assert done.stdout.splitlines()[-3:] == [
        "done: p.plan: 5 shard(s), 186.8 kB",
        "  each of N processes, i from 1 to N:  gguf2st convert --plan p.plan --shard i/N",
        "  once every share is done:            gguf2st finish p.plan",
    ]
    done = run("convert", "--plan", "p.plan", "--shard", "7/7", cwd=tmp_path)
    assert done.stdout.splitlines()[0] == "done: share 7/7 is empty, as there are fewer shards than shares"
    assert done.returncode == 0
    done = run("convert", "--plan", "p.plan", "--shard", "1/2", cwd=tmp_path)
    assert "model-00001-of-00005 to model-00002-of-00005: 2 written" in done.stdout
    done = run("convert", "--plan", "p.plan", cwd=tmp_path)
    assert "model-00001-of-00005 to model-00005-of-00005: 3 written" in done.stdout
    assert done.stdout.splitlines()[0].endswith(", 2 were finished already")
    done = run("finish", "p.plan", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"gguf2st verify {tmp_path / 'out'} --against {source}" in done.stdout


# --- The Hub ------------------------------------------------------------------------------------------------------


def test_a_model_on_the_hub(hub: HubServer, source: Path, tmp_path: Path) -> None:
    """The plan names the commit; a share fetches the files that it needs; `finish` uploads."""
    (tmp_path / "pieces").mkdir()
    hub.add("org/big", split(source, tmp_path / "pieces"))
    environment = hub.environment(tmp_path)

    def go(*arguments: object) -> str:
        done = run(*arguments, cwd=tmp_path, **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def cached() -> list[str]:
        return sorted(path.name for path in (tmp_path / "hf-home").rglob("snapshots/*/*/*.gguf"))

    go("plan", "org/big", "-o", "out", "--max-shard-size", "45kB", "--write", "p.plan")
    hub.add("org/big", {"big/big-Q8_0-00002-of-00003.gguf": b"GGUF"})
    assert cached() == []
    go("convert", "--plan", "p.plan", "--shard", "5/5")
    assert 0 < len(cached()) < 3
    assert "big-Q8_0-00001-of-00003.gguf" not in cached()
    go("convert", "--plan", "p.plan", "--shard", "1/1")
    assert len(cached()) == 3
    said = go("finish", "p.plan", "--push", "tester/model", "--private")
    assert "pushed" in said
    assert hub.store.repos["tester/model"].private
    made = files_of(tmp_path / "out")
    assert {name: hub.files("tester/model")[name] for name in made} == made
    shards = {name: content for name, content in made.items() if name.endswith(".safetensors")}
    plain = straight(source, tmp_path)
    assert shards == {name: content for name, content in plain.items() if name.endswith(".safetensors")}


# --- docs/scale-out.md --------------------------------------------------------------------------------------------

SBATCH = """#!/bin/sh
# Runs what it is given at once: a command, or each task of an array.
case "$*" in
*--wrap*)
    for last; do :; done
    exec sh -c "$last" ;;
esac
for script; do :; done
count=$(sed -n 's/^#SBATCH --array=1-//p' "$script")
cpus=$(sed -n 's/^#SBATCH --cpus-per-task=//p' "$script")
for task in $(seq "$count"); do
    SLURM_ARRAY_TASK_ID=$task SLURM_ARRAY_TASK_COUNT=$count SLURM_CPUS_PER_TASK=$cpus sh -e "$script" >&2 || exit 1
done
echo 4711
"""


def blocks(kind: str, folder: Path) -> list[str]:
    """The blocks of a kind in docs/scale-out.md, about a source in `folder`."""
    text = (ROOT / "docs" / "scale-out.md").read_text(encoding="utf-8").replace("/data", str(folder))
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def shell(tmp_path: Path) -> Callable[..., None]:
    """Runs a script in which `gguf2st` and `sbatch` mean ours."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "gguf2st").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m gguf2st "$@"\n')
    (programs / "sbatch").write_text(SBATCH)
    for program in programs.iterdir():
        program.chmod(0o755)

    def go(script: str, **environment: str) -> None:
        paths = {"PATH": f"{programs}:{os.environ['PATH']}"}
        command = ["sh", "-ec", script]
        done = subprocess.run(
            command, cwd=tmp_path, env=os.environ | paths | environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    return go


def test_the_slurm_scripts(source: Path, tmp_path: Path, shell: Callable[..., None]) -> None:
    (tmp_path / "model.gguf").write_bytes(source.read_bytes())
    (script,) = blocks("slurm", tmp_path)
    (tmp_path / "shards.sh").write_text(script)
    submit = next(text for text in blocks("sh", tmp_path) if "sbatch" in text)
    shell(submit.replace("--write", "--max-shard-size 45kB --write"))
    gguf2st.verify(tmp_path / "model", source).require_ok()
    assert len(list((tmp_path / "model").glob("*.safetensors"))) == 5


def test_the_kubernetes_job(source: Path, tmp_path: Path, shell: Callable[..., None]) -> None:
    import yaml

    (tmp_path / "model.gguf").write_bytes(source.read_bytes())
    shell(f"gguf2st plan {tmp_path}/model.gguf -o {tmp_path}/model --max-shard-size 45kB --write {tmp_path}/model.plan")
    (text,) = blocks("yaml", tmp_path)
    spec = yaml.safe_load(text)["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    sh, flag, command = container["command"]
    assert (sh, flag, spec["completionMode"]) == ("sh", "-c", "Indexed")
    for index in range(spec["completions"]):
        shell(command, JOB_COMPLETION_INDEX=str(index))
    shell(f"gguf2st finish {tmp_path}/model.plan")
    gguf2st.verify(tmp_path / "model", source).require_ok()
