"""The output folder: nothing but a complete checkpoint ever has its name, and an interrupted run goes on."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gguf2st
from gguf2st import api, conversion, tokenizer
from gguf2st.errors import Gguf2stError, OutputError, SourceError, TokenizerError, VerifyError
from gguf2st.hub.provenance import PROVENANCE_FILE
from gguf2st.kernels import cpu, device
from gguf2st.output import locks
from gguf2st.output.folder import OutputFolder
from gguf2st.output.shards import write_text
from gguf2st.report import Report
from gguf2st.verification import verify_folder
from tests.make_gguf import tiny_llama

SHARDS = ["model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors"]
SHARD_NBYTES = 90_000
"""Makes three shards of the tiny model."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "m.gguf", layers=2, qtype="Q8_0")


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def convert(source: Path, out: Path, **options: Any) -> Report:
    return gguf2st.convert(source, out, max_shard_size=SHARD_NBYTES, threads=1, **options)


def fail_after(monkeypatch: pytest.MonkeyPatch, finished: int, error: BaseException) -> None:
    """Raise from the decoder once so many shards are finished."""

    def decode(qtype: str, dtype: str, blocks: Any, out: Any) -> None:
        if len(folders[-1].finished) >= finished:
            raise error
        cpu.dequantize(qtype, dtype, blocks, out)

    folders: list[OutputFolder] = []
    enter = OutputFolder.__enter__

    def remembered(self: OutputFolder) -> OutputFolder:
        folders.append(self)
        return enter(self)

    monkeypatch.setattr(OutputFolder, "__enter__", remembered)
    monkeypatch.setattr(device, "decoder", lambda name: decode)


@pytest.mark.parametrize("error", [SourceError("broken"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_resuming_keeps_finished_shards(
    error: BaseException, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(convert(source, tmp_path / "straight").shards) == SHARDS
    with monkeypatch.context() as patch:
        fail_after(patch, 1, error)
        with pytest.raises(type(error)):
            convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    partial = tmp_path / "out.partial"
    assert sorted(os.listdir(partial)) == ["journal", SHARDS[0], "plan.json"]
    before = (partial / SHARDS[0]).stat()
    convert(source, tmp_path / "out")
    after = (tmp_path / "out" / SHARDS[0]).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "straight")
    assert not partial.exists()


@pytest.mark.parametrize("change", ["dtype", "source", "options", "version"])
def test_another_plan_starts_anew(change: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        fail_after(patch, 1, SourceError("broken"))
        with pytest.raises(SourceError):
            convert(source, tmp_path / "out")
    first = tmp_path / "out.partial" / SHARDS[0]
    inode = first.stat().st_ino
    options: dict[str, Any] = {}
    (tmp_path / "hold").hardlink_to(first)  # or its inode number could be used again
    if change == "dtype":
        options["dtype"] = "float16"
    elif change == "source":  # the same header, other weights
        tiny_llama(source, layers=2, qtype="Q8_0", seed=1)
    elif change == "version":
        monkeypatch.setattr(api, "__version__", "9.9.9")
    else:
        options["tokenizer_from"] = tmp_path / "straight"
    convert(source, tmp_path / "straight")
    convert(source, tmp_path / "out", **options)
    assert (tmp_path / "out" / SHARDS[0]).stat().st_ino != inode
    if change == "source":
        assert files_of(tmp_path / "out") == files_of(tmp_path / "straight")
    gguf2st.verify(tmp_path / "out", source).require_ok()


def edit(path: Path, old: bytes, new: bytes) -> None:
    path.write_bytes(path.read_bytes().replace(old, new))


def become_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "shard truncated": lambda p: os.truncate(p / SHARDS[0], 5000),
    "shard removed": lambda p: (p / SHARDS[0]).unlink(),
    "shard of another header": lambda p: edit(p / SHARDS[0], b"norm", b"nurm"),
    "journal of zeros": lambda p: (p / "journal").write_bytes(bytes(100)),
    "journal cut short": lambda p: os.truncate(p / "journal", 10),
    "journal is not UTF-8": lambda p: (p / "journal").write_bytes(b"\xff\xfe\n"),
    "journal names a path": lambda p: (p / "journal").write_text('{"shard": "../m.gguf", "sums": {}}\n["a"]\n3\n'),
    "journal of an earlier version": lambda p: (p / "journal").write_text(f'"{SHARDS[0]}"\n'),
    "journal removed": lambda p: (p / "journal").unlink(),
    "plan removed": lambda p: (p / "plan.json").unlink(),
    "plan is not UTF-8": lambda p: (p / "plan.json").write_bytes(b"\xff"),
    "plan is a folder": lambda p: become_folder(p / "plan.json"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_partial_folder_still_ends_well(
    damage: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fail_after(patch, 1, SourceError("broken"))
        with pytest.raises(SourceError):
            convert(source, tmp_path / "out")
    DAMAGE[damage](tmp_path / "out.partial")
    with monkeypatch.context() as patch:  # what this run adds to the journal must be readable for the next
        fail_after(patch, 2, SourceError("broken"))
        with pytest.raises(SourceError):
            convert(source, tmp_path / "out")
    journal = [json.loads(x) for x in (tmp_path / "out.partial/journal").read_text().splitlines()]
    assert journal == [{"shard": name, "sums": {}} for name in SHARDS[:2]]
    convert(source, tmp_path / "out")
    convert(source, tmp_path / "straight")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "straight")


def test_shards_that_fail_verification_are_not_resumed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = verify_folder

    def broken(folder: Path, **options: Any) -> Any:
        (folder / SHARDS[1]).unlink()
        return real(folder, **options)

    with monkeypatch.context() as patch:
        patch.setattr(conversion, "verify_folder", broken)
        with pytest.raises(VerifyError, match=SHARDS[1]):
            convert(source, tmp_path / "out")
    assert os.listdir(tmp_path) == ["m.gguf"]
    convert(source, tmp_path / "out")


@pytest.mark.parametrize("name", ["notes.txt", "holiday.jpg", "data/table.csv"])
def test_foreign_files_stop_a_conversion(name: str, source: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "out.partial" / name
    foreign.parent.mkdir(parents=True)
    foreign.write_text("mine")
    with pytest.raises(OutputError, match=r"out\.partial holds '"):
        convert(source, tmp_path / "out")
    assert foreign.read_text() == "mine"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["notes.txt", "holiday.jpg", "data/table.csv"])
def test_foreign_files_in_a_folder_of_ours_stop_a_conversion(name: str, source: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "out.partial" / name
    foreign.parent.mkdir(parents=True)
    foreign.write_text("mine")
    (tmp_path / "out.partial/journal").touch()
    with pytest.raises(OutputError, match=r"out\.partial holds files that no conversion writes"):
        convert(source, tmp_path / "out")
    assert foreign.read_text() == "mine"


def test_a_partial_file_is_not_a_folder(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out.partial").write_text("mine")
    with pytest.raises(OutputError, match=r"out\.partial"):
        convert(source, tmp_path / "out")
    assert (tmp_path / "out.partial").read_text() == "mine"


def test_links_in_the_partial_folder_are_not_followed(source: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/x.json").write_text("mine")
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial/journal").touch()
    (tmp_path / "out.partial/link").symlink_to(tmp_path / "elsewhere")
    convert(source, tmp_path / "out")
    assert (tmp_path / "elsewhere/x.json").read_text() == "mine"
    assert not (tmp_path / "out/link").exists()


def test_an_existing_target_is_left_alone(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "out")
    before = files_of(tmp_path / "out")
    with pytest.raises(OutputError, match="exists already") as caught:
        convert(source, tmp_path / "out", dtype="float16")
    assert "--overwrite" in caught.value.hint
    assert files_of(tmp_path / "out") == before


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_target_that_is_a_file(overwrite: bool, source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(OutputError, match="is a file"):
        convert(source, tmp_path / "out", overwrite=overwrite)
    assert (tmp_path / "out").read_text() == "mine"


def test_an_empty_folder_is_a_target(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    convert(source, tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["m.gguf", "out"]


def test_overwriting_replaces_a_checkpoint(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "straight", dtype="float16")
    convert(source, tmp_path / "out")
    (tmp_path / "out.replaced").mkdir()  # somebody else's
    (tmp_path / "out/gguf2st.json").unlink()  # as any other checkpoint
    (tmp_path / "out/merges.txt").write_text("of the old one")
    convert(source, tmp_path / "out", dtype="float16", overwrite=True)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "straight")
    assert sorted(os.listdir(tmp_path)) == ["m.gguf", "out", "out.replaced", "straight"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_only_a_checkpoint_is_overwritten(overwrite: bool, source: Path, tmp_path: Path) -> None:
    """Nor does the first message promise that --overwrite helps."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.txt").write_text("mine")
    with pytest.raises(OutputError, match="is not a checkpoint") as caught:
        convert(source, tmp_path / "out", overwrite=overwrite)
    assert ("out exists already" in caught.value.message, caught.value.hint) == (
        not overwrite,
        "choose another folder with -o, or remove it yourself",
    )
    assert (tmp_path / "out/thesis.txt").read_text() == "mine"
    (tmp_path / "out/config.json").write_text("{}")
    with pytest.raises(OutputError, match=r"holds 'thesis\.txt', which no conversion put there"):
        convert(source, tmp_path / "out", overwrite=overwrite)


@pytest.mark.parametrize("finished", [0, 1])
def test_a_failed_overwrite_keeps_the_old_checkpoint(
    finished: int, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert(source, tmp_path / "out")
    before = files_of(tmp_path / "out")
    fail_after(monkeypatch, finished, SourceError("broken"))
    with pytest.raises(SourceError):
        convert(source, tmp_path / "out", dtype="float16", overwrite=True)
    assert files_of(tmp_path / "out") == before


@pytest.mark.parametrize("failing", ["new", "old"])
def test_a_failed_rename_keeps_the_old_checkpoint(
    failing: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert(source, tmp_path / "out")
    before, rename = files_of(tmp_path / "out"), Path.rename

    def fail(self: Path, target: Path) -> Path:
        if self.name == ("complete" if failing == "new" else "out") and "replaced" not in str(self):
            raise OSError(errno.EBUSY, "Device or resource busy")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OutputError, match="busy"):
        convert(source, tmp_path / "out", dtype="float16", overwrite=True)
    assert files_of(tmp_path / "out") == before
    assert not [name for name in os.listdir(tmp_path) if "replaced" in name]


def test_a_linked_target_is_written_where_the_link_points(source: Path, tmp_path: Path) -> None:
    (tmp_path / "disk/real").mkdir(parents=True)
    (tmp_path / "out").symlink_to(tmp_path / "disk/real")
    (tmp_path / "new").symlink_to(tmp_path / "disk/new")
    for name in ("out", "new"):
        convert(source, tmp_path / name)
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / "disk").joinpath("real" if name == "out" else name, "config.json").is_file()
    convert(source, tmp_path / "out", dtype="float16", overwrite=True)
    assert (tmp_path / "out").is_symlink()
    assert json.loads((tmp_path / "disk/real/config.json").read_text())["dtype"] == "float16"


@pytest.mark.parametrize("name", [".", "../here", "/", "/proc"])
def test_targets_that_cannot_be_renamed(
    name: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(OutputError, match=r"current folder|mount point") as caught:
        convert(source, Path(name))
    assert "-o" in caught.value.hint
    assert os.listdir(tmp_path / "here") == []


BLOCKED: dict[str, Callable[[Path], Path]] = {
    "below a file": lambda tmp: tmp / "m.gguf" / "out",
    "name too long": lambda tmp: tmp / ("x" * 300),
    "not a place for files": lambda tmp: Path("/proc/1/out"),
}


@pytest.mark.parametrize("where", BLOCKED)
def test_targets_that_cannot_be_written(where: str, source: Path, tmp_path: Path) -> None:
    out = BLOCKED[where](tmp_path)
    with pytest.raises(OutputError) as caught:
        convert(source, out)
    assert out.name in caught.value.message
    assert os.listdir(tmp_path) == ["m.gguf"]


@pytest.mark.parametrize("call", ["mkdir", "exists"])
def test_no_permission(call: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests may run as root, whom nothing is forbidden."""
    real = getattr(Path, call)

    def forbidden(self: Path, *arguments: Any, **options: Any) -> Any:
        if self.name.startswith("out"):
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return real(self, *arguments, **options)

    monkeypatch.setattr(Path, call, forbidden)
    with pytest.raises(OutputError, match=r"out.*not writable") as caught:
        convert(source, tmp_path / "out")
    assert "-o" in caught.value.hint


def test_a_disk_too_small_is_known_before_anything_is_decoded(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three shards, two would fit."""
    real = os.statvfs

    def nearly_full(path: Any) -> os.statvfs_result:
        fields = list(real(path))
        fields[1], fields[4] = 1, 150_000  # f_frsize, f_bavail
        return os.statvfs_result(fields)

    monkeypatch.setattr(os, "statvfs", nearly_full)
    monkeypatch.setattr(device, "decoder", lambda name: None)
    with pytest.raises(OutputError, match=r"no space left.*150,000 are free"):
        convert(source, tmp_path / "out")
    assert os.listdir(tmp_path) == ["m.gguf"]


@pytest.mark.parametrize(
    "victim", ["plan.json", "tokenizer.json", "config.json", "model.safetensors.index.json", "journal"]
)
def test_a_disk_that_fills_up(victim: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync

    def full(fd: int) -> None:
        if victim in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OutputError, match=f"{victim}: no space left"):
            convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "out.partial").exists() == (victim not in ("plan.json", "journal")), "kept what can be resumed"
    convert(source, tmp_path / "out")


ERRORS: list[BaseException] = [
    SourceError("x"),
    OutputError("x"),
    TokenizerError("x"),
    KeyboardInterrupt(),
    MemoryError(),
    RuntimeError("a bug"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_a_failure_before_any_shard_leaves_nothing(
    error: BaseException, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_after(monkeypatch, 0, error)
    with pytest.raises(type(error)):
        convert(source, tmp_path / "out")
    assert os.listdir(tmp_path) == ["m.gguf"]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_a_failing_tokenizer_leaves_no_target(
    error: BaseException, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr(tokenizer.TokenizerPlan, "build", fail)
    with pytest.raises(type(error)):
        convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_two_conversions_do_not_share_a_target(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[OutputError] = []

    def decode(qtype: str, dtype: str, blocks: Any, out: Any) -> None:
        if not errors:
            with pytest.raises(OutputError) as caught:
                convert(source, tmp_path / "out")
            errors.append(caught.value)
        cpu.dequantize(qtype, dtype, blocks, out)

    monkeypatch.setattr(device, "decoder", lambda name: decode)
    convert(source, tmp_path / "out")
    assert "another conversion is writing here" in errors[0].message
    gguf2st.verify(tmp_path / "out", source).require_ok()


def test_a_target_that_appears_meanwhile(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert(source, tmp_path / "other")

    def decode(qtype: str, dtype: str, blocks: Any, out: Any) -> None:
        if not (tmp_path / "out").exists():
            shutil.copytree(tmp_path / "other", tmp_path / "out")
            (tmp_path / "out/mine").write_text("mine")
        cpu.dequantize(qtype, dtype, blocks, out)

    monkeypatch.setattr(device, "decoder", lambda name: decode)
    with pytest.raises(OutputError, match="exists already"):
        convert(source, tmp_path / "out")
    assert (tmp_path / "out/mine").read_text() == "mine"
    assert (tmp_path / "out.partial/plan.json").exists(), "can be resumed once the other folder is gone"


def test_a_folder_removed_while_waiting_for_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other conversion fails between our opening the journal and our locking it: we lock a removed file."""
    real, calls = locks.lock_file, []

    def lock(file: Any, **how: Any) -> bool:
        calls.append(file.name)
        if len(calls) == 1:
            shutil.rmtree(tmp_path / "out.partial")
        return real(file, **how)

    monkeypatch.setattr(locks, "lock_file", lock)
    with OutputFolder(tmp_path / "out", "plan"):
        assert len(calls) == 2
        with pytest.raises(OutputError, match="another conversion"), OutputFolder(tmp_path / "out", "plan"):
            pass


SLOW = """
import pathlib, sys, time
from gguf2st.kernels import cpu, device
first = pathlib.Path(sys.argv[2] + ".partial", sys.argv[4])
def decode(qtype, dtype, blocks, out):
    cpu.dequantize(qtype, dtype, blocks, out)
    time.sleep(2 if first.exists() else 0)  # so slow from then on that it is stopped in the middle on any machine
device.decoder = lambda name: decode
import gguf2st
gguf2st.convert(sys.argv[1], sys.argv[2], max_shard_size=int(sys.argv[3]), threads=2)
"""


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT], ids=["kill", "interrupt"])
def test_a_killed_process_can_be_resumed(stop: signal.Signals, source: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SLOW, str(source), str(tmp_path / "out"), str(SHARD_NBYTES), SHARDS[0]]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    partial = tmp_path / "out.partial"
    deadline = time.monotonic() + 60
    while not (partial / SHARDS[0]).exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.1)
    process.send_signal(stop)
    process.communicate()
    assert not (tmp_path / "out").exists()
    inode = (partial / SHARDS[0]).stat().st_ino
    convert(source, tmp_path / "out")
    assert (tmp_path / "out" / SHARDS[0]).stat().st_ino == inode
    convert(source, tmp_path / "straight")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "straight")


def test_the_order_of_the_last_files(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with an index and config.json has everything else."""
    names: list[str] = []

    def spy(path: Path, text: str | bytes) -> None:
        names.append(path.name)
        write_text(path, text)

    monkeypatch.setattr(conversion, "write_text", spy)
    convert(source, tmp_path / "out")
    assert names[-4:] == ["model.safetensors.index.json", "generation_config.json", "config.json", PROVENANCE_FILE]
    assert "tokenizer.json" in names[:-3]


def test_dry_runs_write_nothing(source: Path, tmp_path: Path) -> None:
    report = convert(source, tmp_path / "out", dry_run=True)
    assert report.output is None
    assert list(report.shards) == SHARDS
    assert os.listdir(tmp_path) == ["m.gguf"]


def test_errors_are_ours(source: Path) -> None:
    assert issubclass(OutputError, Gguf2stError)
    assert OutputError("x").exit_code == 6
