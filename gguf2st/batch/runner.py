"""Run the models of a manifest, each in processes of its own: a crash, or running out of memory, ends that model only.

A model is planned first (`convert --dry-run`), which finds out what can be known early and how much disk it needs; then
it is converted, and then uploaded if it is to be. One thread does all of this: it only looks after processes.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from gguf2st.batch.finished import is_finished, is_newer_than_source
from gguf2st.batch.manifest import BatchModel, Manifest
from gguf2st.batch.state import Result, StateFile
from gguf2st.errors import DeviceError, EngineError, OutputError
from gguf2st.output.folder import PARTIAL
from gguf2st.report import human_bytes

POLL_S = 0.05
TICK_S = 0.2
STOP_S = 30.0
"""How long processes have to end by themselves after Ctrl-C; they only close files."""
MACHINE_FAILED = frozenset({DeviceError.exit_code, EngineError.exit_code})
"""Exit codes that say nothing about a model: it is tried again."""
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True)
class Running:
    """What a process is at: `done` of `total` bytes are written; 0 of 0 where that is not known."""

    name: str
    phase: str
    seconds: float
    done: int
    total: int


@dataclass(frozen=True)
class Event:
    """Something to show: a model started, skipped, done, failed or stopped; or a tick, with what is running."""

    kind: str
    name: str = ""
    result: Result | None = None
    running: tuple[Running, ...] = ()


@dataclass
class _Task:
    """A model at work: one process after the other."""

    model: BatchModel
    result: Result
    started: float = field(default_factory=time.monotonic)
    phase: str = ""
    needs: int = 0
    """Bytes of disk, once it is planned."""
    process: "subprocess.Popen[bytes] | None" = None
    stdout: IO[bytes] | None = None
    stderr: IO[bytes] | None = None


def run_batch(
    manifest: Manifest, state: StateFile, *, jobs: int = 1, retry_failed: bool = False, ticks: bool = False
) -> Generator[Event, None, None]:
    """Run what is not done yet. Closing the iterator, or an exception such as Ctrl-C, stops every process cleanly.

    Args:
        manifest: what to do.
        state: entered; it tells what was done, and is told what happens.
        jobs: how many models at a time.
        retry_failed: run models again that failed, although nothing about them was changed; those that a machine's
            failure ended are run in any case.
        ticks: whether to report what is running.

    Raises:
        OutputError: the state cannot be written.
    """
    queue: deque[BatchModel] = deque()
    for model in manifest.models:
        before = state.results.get(model.name)
        if before and before.key == model.key and _stays(before, model, manifest.path.parent, retry_failed):
            yield Event("skipped", model.name, before)
        else:
            queue.append(model)
    batch = _Batch(manifest.path.parent, state, jobs)
    told = 0.0
    try:
        while queue or batch.tasks:
            while queue and len(batch.tasks) < jobs and not batch.waiting:
                model = queue.popleft()
                yield Event("started", model.name)
                batch.start(model)
            for result in batch.ended():
                yield Event(result.status, result.name, result)
            if ticks and time.monotonic() - told > TICK_S:
                told = time.monotonic()
                yield Event("tick", running=batch.running())
            if batch.tasks:
                time.sleep(POLL_S)
    finally:
        batch.stop()


def _stays(before: Result, model: BatchModel, folder: Path, retry_failed: bool) -> bool:
    """Whether a model needs no run: done, and its checkpoint is still there; or failed, by itself and not for the
    machine, and nobody wants it retried."""
    if before.status == "failed":
        return not retry_failed and before.exit_code not in MACHINE_FAILED
    return before.status == "done" and (model.streams or is_finished(model, folder))


class _Batch:
    """The models at work."""

    def __init__(self, folder: Path, state: StateFile, jobs: int) -> None:
        self.tasks: list[_Task] = []
        self.waiting: list[_Task] = []
        """Those of them that are planned, but find no room while others still write."""
        self._folder, self._state, self._jobs = folder, state, jobs

    def start(self, model: BatchModel) -> None:
        """Begin with a model: by planning it, or where an earlier batch was interrupted."""
        before = self._state.results.get(model.name)
        if before and _is_converted(before, model, self._folder):
            task = _Task(model, replace(before, status="converted"))
        else:
            task = _Task(model, Result(model.name, "started", model.key, existed=model.output.exists()))
        self.tasks.append(task)
        self._state.write(task.result)
        if task.result.status == "started":
            self._spawn(task, "planning", ["convert", "--dry-run", "--json", "-", *model.convert_arguments])

    def ended(self) -> Iterator[Result]:
        """Look after every process, start the next ones, and give the models that have come to their end."""
        for task in list(self.tasks):
            if task.process is not None and task.process.poll() is None:
                continue
            result = self._convert(task) if task in self.waiting else self._next(task)
            if result:
                self.tasks.remove(task)
                yield result

    def running(self) -> tuple[Running, ...]:
        """What every model is at."""
        now = time.monotonic()
        rows = ((t, _written(t.model) if t.phase == "converting" and t.needs else 0) for t in self.tasks)
        return tuple(Running(t.model.name, t.phase, now - t.started, done, t.needs) for t, done in rows)

    def stop(self) -> None:
        """End every process: first by asking, as Ctrl-C does, so that finished shards are kept."""
        processes = [task.process for task in self.tasks if task.process is not None]
        for process in processes:
            with suppress(OSError):
                process.send_signal(signal.SIGINT)
        until = time.monotonic() + STOP_S
        for process in processes:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                until = 0.0  # a second Ctrl-C: do not wait for the others either
                process.kill()
                process.wait()
        for task in self.tasks:
            self._end(task, self._settled(task))
        self.tasks.clear()

    def _settled(self, task: _Task) -> str:
        """The status of a model whose processes have ended. One that was asked to may have been done just before."""
        if task.process is None or task.process.returncode or task.phase == "planning":
            return "stopped"
        found = _json(task.stdout)
        if task.phase == "uploading":
            task.result = replace(task.result, pushed=found)
            return "done"
        task.result = replace(task.result, report=found, pushed=found.get("pushed") or {})
        return "stopped" if task.model.push_arguments else "done"

    def _next(self, task: _Task) -> Result | None:
        """Start the next process of a model that has none at work; its result when it has come to its end."""
        if task.process is not None:
            code, found, errors = task.process.returncode, _json(task.stdout), _tail(task.stderr)
            task.process = None
            if code:
                return self._end(task, "failed", code, *_explain(code, found, errors))
            if task.phase == "planning":
                task.needs = 0 if task.model.streams else _number(found.get("output_nbytes"))
                return self._convert(task)
            if task.phase == "uploading":
                task.result = replace(task.result, pushed=found)
                return self._end(task, "done")
            task.result = replace(task.result, status="converted", report=found, pushed=found.get("pushed") or {})
            self._state.write(task.result)
        if task.model.push_arguments:
            self._spawn(task, "uploading", ["push", "--json", *task.model.push_arguments])
            return None
        return self._end(task, "done")

    def _convert(self, task: _Task) -> Result | None:
        """Start the conversion of a planned model, unless the disk has no room for it beside what is being written."""
        others = sum(max(0, t.needs - _written(t.model)) for t in self.tasks if t.phase == "converting")
        free = _free(task.model.output) - others
        missing = task.needs - _written(task.model) - free
        if missing > 0 and others:
            if task not in self.waiting:
                self.waiting.append(task)
            task.phase = "waiting for disk space"
            return None
        if task in self.waiting:
            self.waiting.remove(task)
        if missing > 0:
            error = f"no space left: {human_bytes(task.needs)} are needed, {human_bytes(max(0, free))} are free"
            return self._end(task, "failed", OutputError.exit_code, error, "free some space, then use --retry-failed")
        arguments = ["convert", "--json", "-", *self._threads(task.model), *task.model.convert_arguments]
        self._spawn(task, "converting", arguments)
        return None

    def _threads(self, model: BatchModel) -> list[str]:
        """The cores are shared between the models at work."""
        from gguf2st.api import default_threads

        if self._jobs == 1 or "threads" in model.options:
            return []
        return [f"--threads={max(1, default_threads() // self._jobs)}"]

    def _spawn(self, task: _Task, phase: str, arguments: Sequence[str]) -> None:
        task.phase = phase
        # Files, not pipes: nobody has to read them while the process runs.
        task.stdout, task.stderr = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - read and closed later
        task.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "gguf2st", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=task.stdout,
            stderr=task.stderr,
            cwd=self._folder,
            start_new_session=True,  # Ctrl-C reaches this process only, which then asks its children
            preexec_fn=_dying_with_parent(),
        )

    def _end(
        self, task: _Task, status: str, code: int = 0, error: str = "", hint: str = "", problems: Sequence[str] = ()
    ) -> Result:
        seconds = round(time.monotonic() - task.started, 3)
        said: dict[str, Any] = {"exit_code": code, "error": error, "hint": hint, "problems": tuple(problems)}
        result = replace(task.result, status=status, seconds=seconds, **said)
        self._state.write(result)
        return result


def _is_converted(before: Result, model: BatchModel, folder: Path) -> bool:
    """Whether an earlier batch has finished the conversion, and was interrupted after it or failed to upload it.

    A folder gets its name only when it is complete. Where the batch could not note that, whoever made the folder since
    must have made the same of the same source.
    """
    if model.streams or before.key != model.key or not is_finished(model, folder):
        return False
    if before.report:
        return True
    return before.status in ("started", "stopped") and not before.existed and is_newer_than_source(model, folder)


def _explain(code: int, found: dict[str, Any], errors: list[str]) -> tuple[str, str, list[str]]:
    """(error, hint, further lines) of a process that failed."""
    if isinstance(found.get("error"), str):
        return found["error"], str(found.get("hint", "")), [str(line) for line in found.get("problems") or ()]
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
        hint = "the system may have run out of memory: use fewer --jobs" if -code == signal.SIGKILL else ""
        return f"the process was killed by {name}", hint, errors
    return (errors[-1] if errors else f"exit code {code}"), "", errors[:-1]


def _json(file: IO[bytes] | None) -> dict[str, Any]:
    """The JSON object that a process printed; {} when it printed none."""
    assert file is not None
    file.seek(0)
    try:
        found = json.loads(file.read())
    except (ValueError, RecursionError):
        found = None
    file.close()
    return found if isinstance(found, dict) else {}


def _tail(file: IO[bytes] | None) -> list[str]:
    """The last lines that a process wrote to stderr."""
    assert file is not None
    file.seek(0, os.SEEK_END)
    file.seek(max(0, file.tell() - 8192))
    lines = file.read().decode(errors="replace").splitlines()
    file.close()
    return [line for line in lines if line.strip()][-5:]


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _written(model: BatchModel) -> int:
    """Bytes on disk of an unfinished conversion."""
    partial = model.output.with_name(model.output.name + PARTIAL)
    nbytes = 0
    with suppress(OSError):
        for file in os.scandir(partial):
            with suppress(OSError):
                nbytes += file.stat().st_blocks * 512  # POSIX counts in 512 bytes, whatever the file system does
    return nbytes


def _free(folder: Path) -> int:
    """Bytes free where a folder is or will be."""
    while not folder.exists() and folder.parent != folder:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _dying_with_parent() -> Callable[[], None] | None:
    """What a child does first: ask Linux to end it with this process, even if that is killed."""
    if sys.platform != "linux":
        return None
    import ctypes

    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)  # it has ended already

    return ask
