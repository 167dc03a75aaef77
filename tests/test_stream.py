"""`convert --push` and `--no-keep` against a real HTTP server: what is on the disk meanwhile, and after a crash."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from tests.hub_server import READER, WRITER, HubServer
from tests.make_gguf import tiny_llama
from tests.oracle.terminal import completed

Run = subprocess.CompletedProcess[str]
SHARDS = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """2.5 MB of weights in three shards of 943, 786 and 787 kB, most of it in tensors above 64 KiB."""
    return tiny_llama(tmp_path / "tiny.gguf", qtype="Q8_0", hidden=256, ffn=512)


@pytest.fixture
def kept(source: Path, tmp_path: Path) -> dict[str, bytes]:
    """What a conversion without a Hub writes."""
    completed("convert", source, "-o", tmp_path / "kept", *SIZE).check_returncode()
    files = {path.name: path.read_bytes() for path in (tmp_path / "kept").iterdir()}
    assert [name for name in sorted(files) if name.endswith(".safetensors")] == SHARDS
    return files


SIZE = ("--max-shard-size", "1MB")


@pytest.fixture
def command(source: Path, hub: HubServer, tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    def start(*arguments: str, token: str = WRITER, code: str = "") -> subprocess.Popen[str]:
        module = ["-c", f"{code}\nfrom gguf2st.cli import main\nmain()"] if code else ["-m", "gguf2st"]
        words = ["convert", str(source), "-o", str(tmp_path / "out"), *SIZE, "--push", "tester/tiny", *arguments]
        environment = os.environ | hub.environment(tmp_path, token)
        return subprocess.Popen(
            [sys.executable, *module, *words],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def _ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    with process:
        out, err = process.communicate(timeout=120)
    assert WRITER not in out + err
    assert "Traceback" not in err
    return process.returncode, out, err


def _sent(hub: HubServer, since: int = 0) -> list[str]:
    return [r.path.removeprefix("/_lfs/") for r in hub.requests[since:] if r.method == "PUT"]


def test_converted_pushed_and_kept(
    hub: HubServer, command: Callable[..., subprocess.Popen[str]], kept: dict[str, bytes], tmp_path: Path
) -> None:
    code, out, err = _ended(command("--json", "-", "--private"))
    assert code == 0, err
    there = hub.files("tester/tiny")
    assert there.pop("README.md")
    assert there == kept
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == kept
    report = json.loads(out)
    assert report["output"] == str(tmp_path / "out")
    assert report["pushed"]["commit"] == hub.store.repos["tester/tiny"].refs["main"].oid
    assert hub.store.repos["tester/tiny"].private


def test_access_is_asked_for_before_the_work_and_a_late_failure_loses_nothing(
    hub: HubServer, command: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    hub.add("tester/tiny", {})
    code, _, err = _ended(command(token=READER))
    assert (code, "must use a write token" in err) == (8, True)
    assert not (tmp_path / "out").exists()
    hub.fail("POST", "/commit/", 501)
    code, _, err = _ended(command())
    assert code == 8
    assert f"out is complete; to upload it: gguf2st push {tmp_path}/out tester/tiny" in err
    assert (tmp_path / "out" / "config.json").is_file()


def test_nothing_is_kept_and_only_one_shard_is_here_at_a_time(
    hub: HubServer, command: Callable[..., subprocess.Popen[str]], kept: dict[str, bytes], tmp_path: Path
) -> None:
    digest = sha256(kept[SHARDS[1]]).hexdigest()
    held = hub.hold("PUT", f"/_lfs/{digest}", after=1000)
    process = command("--no-keep")
    assert held.reached.wait(60)
    partial = tmp_path / "out.partial"
    on_disk = {path.name: path.stat().st_blocks * 512 for path in partial.rglob("*.safetensors")}
    assert [path.name for path in partial.glob("*.safetensors")] == [SHARDS[1]]
    assert hub.files("tester/tiny") == {}, "nothing is visible before the commit"
    assert sum(on_disk.values()) < 1_300_000, "one shard, and of two others the header and small tensors"
    held.released.set()
    code, out, err = _ended(process)
    assert code == 0, err
    there = hub.files("tester/tiny")
    assert there.pop("README.md")
    assert there == kept
    assert not (tmp_path / "out").exists()
    assert not partial.exists()
    assert "nothing is kept here" in out
    assert len(hub.store.repos["tester/tiny"].commits) == 2, "the Hub's own and one of ours"


def test_killed_in_the_middle_and_run_again(
    hub: HubServer, command: Callable[..., subprocess.Popen[str]], kept: dict[str, bytes], tmp_path: Path
) -> None:
    digests = [sha256(kept[name]).hexdigest() for name in SHARDS]
    held = hub.hold("PUT", f"/_lfs/{digests[1]}", after=1000)
    process = command("--no-keep")
    assert held.reached.wait(60)
    process.send_signal(signal.SIGKILL)
    _ended(process)
    held.released.set()
    before = len(hub.requests)
    assert hub.files("tester/tiny") == {}
    code, _, err = _ended(command("--no-keep"))
    assert code == 0, err
    assert _sent(hub, before) == digests[1:], "the first shard is at the Hub already"
    there = hub.files("tester/tiny")
    assert there.pop("README.md")
    assert there == kept


def test_interrupted_between_shards_by_ctrl_c(
    hub: HubServer, command: Callable[..., subprocess.Popen[str]], kept: dict[str, bytes], tmp_path: Path
) -> None:
    held = hub.hold("PUT", f"/_lfs/{sha256(kept[SHARDS[2]]).hexdigest()}", after=1000)
    process = command("--no-keep")
    assert held.reached.wait(60)
    process.send_signal(signal.SIGINT)
    held.released.set()
    code, _, err = _ended(process)
    assert code == 130
    assert "the same command goes on from there" in err
    assert hub.files("tester/tiny") == {}
    assert _ended(command("--no-keep"))[0] == 0
    assert {name: hub.files("tester/tiny")[name] for name in SHARDS} == {name: kept[name] for name in SHARDS}


FREE = """
import os
real = os.statvfs
class Free:
    def __init__(self, path):
        status = real(path)
        self.f_frsize, self.f_blocks, self.f_bavail = 1, status.f_blocks, {free}
os.statvfs = Free
"""


def test_the_disk_of_one_shard_is_enough(
    hub: HubServer, command: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    """128 MiB are set aside for small files."""
    room = (128 << 20) + 950_000
    code, _, err = _ended(command(code=FREE.format(free=2_500_000)))
    assert (code, "no space left" in err) == (6, True)
    code, _, err = _ended(command("--no-keep", code=FREE.format(free=room - 10_000)))
    assert (code, "no space left" in err) == (6, True)
    assert _ended(command("--no-keep", code=FREE.format(free=room)))[0] == 0


def test_a_shard_that_is_not_what_was_planned_does_not_go(
    hub: HubServer, command: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    damage = """
from gguf2st.output import shards
close = shards.ShardFile.close
def damaged(self):
    close(self)
    with open(self.path, "r+b") as file:
        file.seek(20)
        file.write(b"X")
shards.ShardFile.close = damaged
"""
    code, _, err = _ended(command("--no-keep", code=damage))
    assert code == 5
    assert f"{SHARDS[0]} does not have the size and header that were planned" in err
    assert not _sent(hub)


def test_options_of_pushing_need_a_push(source: Path) -> None:
    for option in ("--no-keep", "--private", "--create-pr", "--message=x", "--revision=x"):
        done = completed("convert", source, option)
        assert (done.returncode, "with --push REPO" in done.stderr) == (2, True)
