"""`--engine ray` on a real cluster of two machines, which are processes here: workers and machines die in the middle.

Ray takes seconds to start and a few hundred MB, so that there is one cluster for all tests, and few tests.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguf2st
from gguf2st import api
from gguf2st.conversion import Options
from gguf2st.errors import EngineError, OutputError, SourceError, UsageError
from gguf2st.scaleout import ray_engine
from tests.hub_server import HubServer
from tests.make_gguf import tiny_llama
from tests.ray_gate import HOLD, finished

ray = pytest.importorskip("ray")

ROOT = Path(__file__).resolve().parent.parent
NODE = {"num_cpus": 1, "object_store_memory": 80_000_000, "include_dashboard": False}
PROMPT = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 300, "health_check_failure_threshold": 3}
NBYTES = 45_000
"""Makes five shards."""
LIMIT_S = 120


class Two:
    """A cluster of two machines with a CPU each, and a gate (ray_gate.py) at which their workers wait."""

    def __init__(self, folder: Path) -> None:
        from ray.cluster_utils import Cluster

        self.gate = folder / "gate"
        self.gate.mkdir()
        head = NODE | {"temp_dir": str(folder), "_system_config": PROMPT}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._second = self._cluster.add_node(**NODE)
        self.address = self._cluster.address

    def connect(self) -> None:
        environment = {"GGUF2ST_TEST_GATE": str(self.gate), "PYTHONPATH": str(ROOT)}
        hook = {"worker_process_setup_hook": "tests.ray_gate.install", "env_vars": environment}
        ray.init(self.address, runtime_env=hook, log_to_driver=False, logging_level="ERROR")

    def lose_a_machine(self) -> None:
        self._cluster.remove_node(self._second, allow_graceful=False)

    def replace_it(self) -> None:
        self._second = self._cluster.add_node(**NODE)
        self._cluster.wait_for_nodes()

    def shut(self, partial: Path, after: int) -> None:
        for pid in self.gate.iterdir():
            pid.unlink()
        (self.gate / "new").write_text(json.dumps({"partial": str(partial), "after": after}))
        (self.gate / "new").rename(self.gate / HOLD)

    def open(self) -> None:
        (self.gate / HOLD).unlink()

    def waiting(self, count: int, running: "Background") -> list[int]:
        """The processes that wait in the middle of a shard, once there are so many."""

        def pids() -> list[int]:
            assert not running.ended, running.result()
            found = [int(p.name) for p in self.gate.iterdir() if p.name.isdecimal()]
            return found if len(found) >= count else []

        return until(pids)

    def stop(self) -> None:
        ray.shutdown()
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Two]:
    folder = Path(tempfile.mkdtemp(prefix="ray-"))  # sockets lie in it, whose names may not be long
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", str(folder))
        (folder / "ray").mkdir()  # where a second node writes the address, which nobody makes for it
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_memory_monitor_refresh_ms", "0")  # it kills workers when others use up the memory
        two = Two(folder)
        try:
            two.connect()
            yield two
        finally:
            two.stop()
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("source") / "m.gguf", layers=2, qtype="Q8_0")


@pytest.fixture(scope="module")
def plain(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The bytes of a conversion in one process."""
    out = tmp_path_factory.mktemp("plain") / "out"
    assert len(gguf2st.convert(source, out, max_shard_size=NBYTES).shards) == 5
    return files_of(out)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def until(found: Callable[[], Any]) -> Any:
    """What a call returns once that is something."""
    deadline = time.monotonic() + LIMIT_S
    while not (result := found()):
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.02)
    return result


class Background:
    """A call in a thread."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._result: list[Any] = []
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        return bool(self._result)

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self._result.append(call())
        except BaseException as err:
            self._result.append(err)

    def result(self) -> Any:
        self._thread.join(LIMIT_S)
        assert self._result, "it did not end"
        if isinstance(self._result[0], BaseException):
            raise self._result[0]
        return self._result[0]


def test_the_bytes_the_report_and_the_progress_are_those_of_a_plain_conversion(
    cluster: Two, source: Path, tmp_path: Path
) -> None:
    told: list[tuple[int, int]] = []
    options: dict[str, Any] = {"repack": "near", "max_shard_size": NBYTES}
    ours = gguf2st.convert(source, tmp_path / "out", engine="ray", progress=lambda *x: told.append(x), **options)
    theirs = gguf2st.convert(source, tmp_path / "plain", **options)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "plain")
    assert not (tmp_path / "out.partial").exists()
    assert (ours.digests, ours.rel_rmse, ours.notes) == (theirs.digests, theirs.rel_rmse, theirs.notes)
    assert len(ours.shards) > 2
    assert sum(nbytes for nbytes, _ in told) == ours.output_nbytes
    assert all(nbytes > 0 and total == ours.output_nbytes for nbytes, total in told)
    with pytest.raises(UsageError, match="no machine of the cluster has more than 1 CPUs"):
        gguf2st.convert(source, tmp_path / "x", engine="ray", threads=2)
    with pytest.raises(UsageError, match="no machine of the cluster has a GPU"):
        gguf2st.convert(source, tmp_path / "x", engine="ray", device="cuda")


def test_a_worker_killed_in_the_middle_of_a_shard(
    cluster: Two, source: Path, plain: dict[str, bytes], tmp_path: Path
) -> None:
    partial = tmp_path / "out.partial"
    cluster.shut(partial, after=2)
    told: list[int] = []
    running = Background(
        lambda: gguf2st.convert(
            source, tmp_path / "out", engine="ray", max_shard_size=NBYTES, progress=lambda n, _: told.append(n)
        )
    )
    pids = cluster.waiting(2, running)
    assert len(list(partial.glob("*.part"))) == 2
    done = {name: (partial / name).stat() for name in finished(partial)}
    assert len(done) >= 2
    os.kill(pids[0], signal.SIGKILL)
    cluster.open()
    report = running.result()
    assert files_of(tmp_path / "out") == plain
    for name, before in done.items():
        after = (tmp_path / "out" / name).stat()
        assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns), "not written again"
    assert sum(told) == report.output_nbytes, "what was lost is not counted twice"


def test_a_machine_that_dies_in_the_middle_of_a_shard(
    cluster: Two, source: Path, plain: dict[str, bytes], tmp_path: Path
) -> None:
    path, partial = tmp_path / "p.plan", tmp_path / "out.partial"
    api.write_plan(source, path, tmp_path / "out", Options(max_shard_size=NBYTES))
    api.convert_planned(path, "2/5")
    kept = (partial / "model-00002-of-00005.safetensors").stat()
    cluster.shut(partial, after=2)
    running = Background(lambda: api.convert_planned(path, engine="ray"))
    cluster.waiting(2, running)
    done = {name: (partial / name).stat() for name in finished(partial)}
    assert len(done) >= 2
    cluster.lose_a_machine()
    cluster.open()
    written = running.result()
    cluster.replace_it()
    assert len(written.shards) == 5
    assert written.kept == ("model-00002-of-00005.safetensors",)
    assert len(written.written) == 4
    api.finish(path)
    assert files_of(tmp_path / "out") == plain
    for name, before in {**done, "model-00002-of-00005.safetensors": kept}.items():
        after = (tmp_path / "out" / name).stat()
        assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns), "not written again"


def test_a_shard_that_is_lost_too_often_and_the_same_command_again(
    cluster: Two, source: Path, plain: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial = tmp_path / "out.partial"
    monkeypatch.setattr(ray_engine, "MAX_RETRIES", 0)
    cluster.shut(partial, after=3)
    running = Background(lambda: gguf2st.convert(source, tmp_path / "out", engine="ray", max_shard_size=NBYTES))
    pids = cluster.waiting(1, running)
    os.kill(pids[0], signal.SIGKILL)
    until(lambda: not Path(f"/proc/{pids[0]}/fd").exists() or not os.listdir(f"/proc/{pids[0]}/fd"))
    cluster.open()
    with pytest.raises(EngineError, match=r"model-0000\d-of-.* lost it in 1 of 1 attempts") as caught:
        running.result()
    assert "\n" not in caught.value.message
    assert not (tmp_path / "out").exists()
    assert len(finished(partial)) >= 3
    report = gguf2st.convert(source, tmp_path / "out", engine="ray", max_shard_size=NBYTES)
    assert any("were finished by an earlier run" in note for note in report.notes)
    assert files_of(tmp_path / "out") == plain


def test_what_fails_for_a_reason_of_the_user_is_that_error(cluster: Two, source: Path, tmp_path: Path) -> None:
    broken = {"blk.1.attn_q.weight": np.full((64, 64), np.nan, np.float32)}
    bad = tiny_llama(tmp_path / "bad.gguf", extra_tensors=broken)
    with pytest.raises(SourceError, match=r"bad.gguf: tensor blk.1.attn_q.weight .* NaN or infinite"):
        gguf2st.convert(bad, tmp_path / "bad", engine="ray")
    assert not (tmp_path / "bad").exists()
    own, path = tmp_path / "own.gguf", tmp_path / "p.plan"
    shutil.copy(source, own)
    api.write_plan(own, path, tmp_path / "out", Options(max_shard_size=NBYTES))
    own.touch()
    with pytest.raises(SourceError, match="has changed since"):
        api.convert_planned(path, engine="ray")
    gguf2st.convert(source, tmp_path / "there")
    with pytest.raises(OutputError, match="exists already"):
        gguf2st.convert(source, tmp_path / "there", engine="ray")


def test_the_command_line(cluster: Two, source: Path, plain: dict[str, bytes], tmp_path: Path) -> None:
    """The command of docs/scale-out.md, in a process that connects by itself."""
    page = (ROOT / "docs" / "scale-out.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^gguf2st (convert .*--engine ray .*)$", page, re.MULTILINE)
    places = {"/data/model.gguf": source, "/data/model": "out", "10.0.0.1:6379": cluster.address}
    command = [sys.executable, "-m", "gguf2st", *(places.get(word, word) for word in shlex.split(line))]
    command += ["--max-shard-size", str(NBYTES), "--json", "-"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["output"] == str(tmp_path / "out")
    assert files_of(tmp_path / "out") == plain


def test_the_hub_as_the_output(
    cluster: Two, source: Path, plain: dict[str, bytes], tmp_path: Path, hub: HubServer
) -> None:
    """Nothing is kept here; all of it becomes visible at the end."""
    command = [sys.executable, "-m", "gguf2st", "convert", source, "-o", "out", "--max-shard-size", str(NBYTES)]
    command += ["--engine", "ray", "--address", cluster.address, "--push", "tester/model", "--no-keep", "--json", "-"]
    environment = os.environ | hub.environment(tmp_path)
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report["output"] is None
    assert report["pushed"]["repo"] == "tester/model"
    made = hub.files("tester/model")
    assert {name: made[name] for name in plain} == plain
    assert not (tmp_path / "out.partial").exists()
    assert not (tmp_path / "out").exists()


def test_without_ray_or_without_a_cluster(source: Path, tmp_path: Path) -> None:
    program = "import sys; sys.modules['ray'] = None; from gguf2st.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", program, "convert", source, "-o", "out", "--engine", "ray"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == EngineError.exit_code
    assert done.stderr.splitlines() == [
        "error: --engine ray needs Ray, which is not installed here",
        "hint: pip install 'gguf2st[ray]'",
    ]
    for address, says in (("127.0.0.1:1", "refused"), ("nowhere", "HOST:PORT")):
        command = [sys.executable, "-m", "gguf2st", "convert", source, "-o", "out", "--engine", "ray"]
        command += ["--address", address]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=LIMIT_S)
        assert done.returncode == EngineError.exit_code
        error, hint = done.stderr.splitlines()
        assert error.startswith(f"error: there is no Ray cluster at {address}: ")
        assert says in error
        assert "ray start --head" in hint
    assert list(tmp_path.iterdir()) == []
