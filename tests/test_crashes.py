"""Runs killed, starved and disturbed at random points: what tests/crash_runs.py says must hold afterwards.

A few points with a fixed seed; `python scripts/crash_test.py` tries 50 for each way to fail.
"""

import random
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gguf2st
from gguf2st.errors import OutputError
from gguf2st.output.folder import COMPLETE, PARTIAL, REPLACED
from tests.crash_runs import HUB, LOCAL, SHARES, CrashTest, Mode, can_mount, files_of
from tests.hub_server import HubServer
from tests.make_gguf import tiny_llama

SHARDED, NEAR, OVERWRITE = LOCAL[1], LOCAL[3], LOCAL[5]


@pytest.fixture(scope="module")
def test(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashTest]:
    with CrashTest(tmp_path_factory.mktemp("crashes")) as made:
        yield made


@pytest.fixture(scope="module")
def hub_test(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashTest]:
    folder = tmp_path_factory.mktemp("crashes")
    with HubServer(folder / "hub") as hub, CrashTest(folder, hub) as made:
        yield made


def points(test: CrashTest, mode: Mode, count: int) -> list[int]:
    """Steps spread over a run: one by chance of each of `count` parts."""
    rng, steps = random.Random(mode.name), test.expected(mode)[2]
    return [rng.randrange(steps * i // count, steps * (i + 1) // count) for i in range(count)]


def fail(test: CrashTest, mode: Mode, statuses: tuple[int, ...], **fault: Any) -> str:
    """How the run ended."""
    outcome, problems = test.fail(mode, statuses, **fault)
    assert not problems, fault
    return str(outcome.status)


@pytest.mark.parametrize("mode", [*LOCAL, *SHARES], ids=lambda mode: mode.name)
def test_kill_9(mode: Mode, test: CrashTest) -> None:
    for at in points(test, mode, 5):
        fail(test, mode, (-9,), at=at)


@pytest.mark.parametrize("mode", [SHARDED, OVERWRITE, SHARES[3]], ids=lambda mode: mode.name)
def test_kill_9_while_the_folder_gets_its_name(mode: Mode, test: CrashTest) -> None:
    """The last steps: the finished files move, the old checkpoint goes aside, the new one takes its place."""
    steps = test.expected(mode)[2]
    for at in range(steps - (28 if mode.overwrites else 10), steps, 2):
        fail(test, mode, (-9,), at=at)


@pytest.mark.parametrize("mode", HUB, ids=lambda mode: mode.name)
def test_kill_9_on_the_way_to_the_hub(mode: Mode, hub_test: CrashTest) -> None:
    """HTTP requests are cut in the middle too; the Hub shows nothing or everything."""
    for at in points(hub_test, mode, 2):
        fail(hub_test, mode, (-9,), at=at)


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_being_asked_to_stop(stop: signal.Signals, test: CrashTest) -> None:
    for at in points(test, OVERWRITE, 4):
        fail(test, OVERWRITE, (130,), at=at, signal=int(stop))


@pytest.mark.parametrize("errno", ["ENOSPC", "EIO", "EACCES", "EROFS"])
def test_a_file_system_that_refuses(errno: str, test: CrashTest) -> None:
    ends = [fail(test, OVERWRITE, (0, 6), at=at, refuses=errno) for at in points(test, OVERWRITE, 4)]
    assert ends[:3] == ["6", "6", "6"], "only when all is written a refusal can come too late to matter"


@pytest.mark.parametrize("change", ["truncated", "grown", "overwritten", "replaced", "removed"])
def test_a_source_that_changes(change: str, test: CrashTest) -> None:
    ends = [fail(test, SHARDED, (0, 3), at=at, changes=change) for at in points(test, SHARDED, 3)]
    assert ends[:2] == ["3", "3"], "only what was read already may change"


def test_limits(test: CrashTest) -> None:
    assert fail(test, NEAR, (6,), limits={"RLIMIT_FSIZE": 5_000}) == "6"
    assert fail(test, NEAR, (6,), limits={"RLIMIT_FSIZE": 300_000}) == "6"
    assert fail(test, NEAR, (1,), limits={"RLIMIT_AS": 10 << 20}) == "1"
    for at in points(test, NEAR, 3):
        fail(test, NEAR, (0, 1), at=at, leaves=4 << 20)


def test_real_file_systems(test: CrashTest, tmp_path: Path) -> None:
    if not can_mount(tmp_path / "mount"):
        pytest.skip("mounting needs root")
    for mode, room in ((SHARDED, 8_000), (SHARDED, 1_500_000), (OVERWRITE, 700_000)):
        assert fail(test, mode, (6,), room=room) == "6"
    assert fail(test, SHARDED, (6,), read_only=True) == "6"


def test_threads_of_one_process_do_not_share_a_target(tmp_path: Path) -> None:
    """Started at once, again and again: one converts, and the others say why they do not."""
    source = tiny_llama(tmp_path / "m.gguf")
    gguf2st.convert(source, tmp_path / "alone", threads=1)
    expected, done, said = files_of(tmp_path / "alone"), [], []
    for number in range(8):
        start, out = threading.Barrier(3), tmp_path / str(number) / "out"

        def convert(start: threading.Barrier = start, out: Path = out) -> None:
            start.wait()
            try:
                done.append(gguf2st.convert(source, out, threads=1))
            except OutputError as err:
                said.append(err.message)

        threads = [threading.Thread(target=convert) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert files_of(out) == expected
        assert [p.name for p in out.parent.iterdir()] == ["out"]
    assert len(done) == 8
    assert len(said) == 16
    assert all("another conversion is writing here" in text or "exists already" in text for text in said)


@pytest.fixture
def halfway(tmp_path: Path) -> Path:
    """A folder as it is between the two renames of an overwriting run: nothing is called `out`."""
    source = tiny_llama(tmp_path / "m.gguf")
    gguf2st.convert(source, tmp_path / "old", dtype="float16")
    gguf2st.convert(source, tmp_path / "new")
    partial = tmp_path / f"out{PARTIAL}"
    partial.mkdir()
    (partial / "journal").touch()
    (partial / "plan.json").write_text("{}")
    shutil.copytree(tmp_path / "old", partial / REPLACED)
    shutil.copytree(tmp_path / "new", partial / COMPLETE)
    return tmp_path


def test_an_overwritten_checkpoint_comes_back(halfway: Path) -> None:
    """Even for a run that would not have overwritten it: that one is told that it is there."""
    with pytest.raises(OutputError, match="exists already"):
        gguf2st.convert(halfway / "m.gguf", halfway / "out")
    assert files_of(halfway / "out") == files_of(halfway / "old")


def test_a_run_that_overwrites_goes_on(halfway: Path) -> None:
    gguf2st.convert(halfway / "m.gguf", halfway / "out", overwrite=True)
    assert files_of(halfway / "out") == files_of(halfway / "new")
    assert not (halfway / f"out{PARTIAL}").exists()


def test_what_was_replaced_goes_once_its_successor_is_there(halfway: Path) -> None:
    """Killed after the second rename. The same shards lie in the journal, in the old folder and in the new one."""
    partial = halfway / f"out{PARTIAL}"
    (partial / COMPLETE).rename(halfway / "out")
    gguf2st.convert(halfway / "m.gguf", halfway / "out", overwrite=True, dtype="float32")
    gguf2st.verify(halfway / "out", halfway / "m.gguf").require_ok()
    assert sorted(p.name for p in halfway.iterdir()) == ["m.gguf", "new", "old", "out"]


@pytest.mark.parametrize("name", ["journal", "plan.json"])
def test_a_removal_that_was_cut_short(name: str, tmp_path: Path) -> None:
    """The folder is still known as ours."""
    source = tiny_llama(tmp_path / "m.gguf")
    partial = tmp_path / f"out{PARTIAL}"
    partial.mkdir()
    (partial / name).touch()
    (partial / "model-00001-of-00002.safetensors").write_bytes(b"half")
    gguf2st.convert(source, tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.gguf", "out"]
