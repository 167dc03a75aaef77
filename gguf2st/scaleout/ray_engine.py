"""Shards as tasks of a Ray cluster. A task does what `convert --plan P --shard` does for one shard, and no more: when
its worker or its machine dies, Ray runs it again, and a shard that is finished stays as it is.

All machines need gguf2st, and the source and the output in the same place.
"""

import dataclasses
import hashlib
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from gguf2st.conversion import Conversion, Progress, require_workers
from gguf2st.errors import EngineError, Gguf2stError, OutputError, UsageError
from gguf2st.hub.push import PushOptions
from gguf2st.hub.stream import ShardStream
from gguf2st.output.folder import PLAN_FILE
from gguf2st.report import Report
from gguf2st.scaleout.finishing import finish, finish_streamed
from gguf2st.scaleout.folder import SharedFolder, partial_of
from gguf2st.scaleout.planned import Planned, planned_by, read_planned
from gguf2st.scaleout.work import Written, write_shards

MAX_RETRIES = 5
"""How often Ray runs a shard again whose worker or machine died."""
TELL_S = 0.5
"""How often a task says how far it is, and how often that is looked at."""
CONNECT_S = 10.0
MAX_THREADS = 4
"""Per task, unless told otherwise: several tasks on a machine use its cores better than one with many threads."""
_MACHINES = "`ray status` lists what the machines have: add one, or ask for less with --device and --threads"


def convert_on_ray(
    conversion: Conversion,
    device: str,
    threads: int | None,
    address: str | None,
    progress: Progress | None,
    stream_to: PushOptions | None = None,
) -> Report:
    """Convert on a cluster, start to end; arguments as for `gguf2st.convert`. Uploads go from this machine.

    Raises:
        EngineError: Ray is not there, or a shard was lost too often.
        Gguf2stError: as `gguf2st.convert`.
    """
    started = time.monotonic()
    planned = planned_by(conversion, partial_of(conversion.folder) / PLAN_FILE)
    where = planned, range(len(planned.sizes)), device, threads, address
    if stream_to is None:
        written = write_on_ray(*where, progress)
        report = finish(planned)
    else:
        total = 2 * sum(planned.sizes)  # written, and uploaded
        tell = (lambda nbytes: progress(nbytes, total)) if progress else None
        with SharedFolder(planned.output, planned.text, overwrite=planned.options.overwrite) as folder:
            partial = folder.partial
        with ShardStream(stream_to, planned.plan, partial, tell) as stream:
            written = write_on_ray(*where, (lambda nbytes, _: tell(nbytes)) if tell else None, stream.take)
            report = finish_streamed(conversion, planned, stream)
    notes: tuple[str, ...] = written.notes
    if written.kept:
        notes = (f"{len(written.kept)} of {len(written.shards)} shards were finished by an earlier run", *notes)
    return dataclasses.replace(report, notes=(*report.notes, *notes), seconds=round(time.monotonic() - started, 3))


def write_on_ray(
    planned: Planned,
    indices: Sequence[int],
    device: str,
    threads: int | None,
    address: str | None,
    progress: Progress | None,
    on_shard: Callable[[Path], None] | None = None,
) -> Written:
    """As `write_shards`, each shard a task. `threads` and `device` are a task's; only `cuda` gets it a GPU.

    `on_shard` is called here with each finished shard, and may take it away: only as many are begun before as the
    cluster can write at once.

    Raises:
        EngineError: Ray is not there, or a shard was lost too often.
        Gguf2stError: the first one of a task.
    """
    started = time.monotonic()
    require_workers(device, threads)
    with (
        _cluster(address) as ray,
        SharedFolder(planned.output, planned.text, overwrite=planned.options.overwrite) as folder,
    ):
        threads = _threads(ray, device, threads)
        meter = ray.remote(num_cpus=0, max_restarts=-1)(Meter).remote()
        task = ray.remote(num_cpus=threads, num_gpus=int(device == "cuda"), max_retries=MAX_RETRIES)(_write_shard)
        digest = hashlib.sha256(planned.text.encode("utf-8", "surrogatepass")).hexdigest()
        what = str(folder.partial / PLAN_FILE), digest, device, threads, meter
        at_once = len(indices)
        if on_shard:
            at_once = 1 + sum(int(m.get("CPU", 0)) // threads for m in _machines(ray))
        jobs = _Jobs(ray, lambda index: task.remote(*what, index), at_once, planned, meter)
        results = jobs.run(
            indices, progress, lambda n: on_shard(folder.partial / planned.plan.shards[n].file) if on_shard else None
        )
    done = [result for _, result in sorted(results.items())]
    return Written(
        output=str(planned.output),
        partial=str(folder.partial),
        shards=tuple(planned.plan.shards[n].file for n in indices),
        written=tuple(name for result in done for name in result.written),
        kept=tuple(name for result in done for name in result.kept),
        nbytes=sum(result.nbytes for result in done),
        notes=tuple(dict.fromkeys(note for result in done for note in result.notes)),
        seconds=round(time.monotonic() - started, 3),
    )


class Meter:
    """Knows how far each task is; an actor of the cluster."""

    def __init__(self) -> None:
        self._done: dict[int, int] = {}

    def tell(self, index: int, nbytes: int) -> None:
        """So many bytes of a shard are written; fewer than before when it was begun anew."""
        self._done[index] = nbytes

    def read(self) -> dict[int, int]:
        """Shard -> bytes."""
        return self._done


def _write_shard(
    plan_file: str, digest: str, device: str, threads: int, meter: Any, index: int
) -> "Written | Gguf2stError":
    """The task. An error of ours is a result, lest Ray wrap it into one of its own."""
    done, told = 0, time.monotonic()
    lock = threading.Lock()

    def tell(nbytes: int, total: int) -> None:
        nonlocal done, told
        with lock:  # several threads report
            done += nbytes
            if (now := time.monotonic()) - told < TELL_S:
                return
            told = now
        meter.tell.remote(index, done)

    try:
        return write_shards(_read(plan_file, digest), [index], device=device, threads=threads, progress=tell)
    except Gguf2stError as err:
        return err


@lru_cache(maxsize=1)
def _read(plan_file: str, digest: str) -> Planned:
    """The plan, read once by each worker."""
    if not Path(plan_file).is_file():
        raise OutputError(
            f"{plan_file} is not there on {socket.gethostname()}",
            hint="all machines of the cluster need the output and the source in the same place: use a shared folder",
        )
    return read_planned(Path(plan_file))


@dataclass(frozen=True)
class _Jobs:
    """Tasks, of which `at_once` are with the cluster at a time."""

    ray: Any
    submit: Callable[[int], Any]
    at_once: int
    planned: Planned
    meter: Any

    def run(
        self, indices: Sequence[int], progress: Progress | None, on_shard: Callable[[int], None]
    ) -> dict[int, Written]:
        """Wait for all tasks, and report how far they are; after the first failure stop the others."""
        ray, sizes = self.ray, self.planned.sizes
        total, seen = sum(sizes[index] for index in indices), dict.fromkeys(indices, 0)
        todo, waiting, found = list(reversed(indices)), dict[Any, int](), dict[int, Written]()

        def show(index: int, nbytes: int) -> None:
            if progress and nbytes > seen[index]:
                progress(nbytes - seen[index], total)
                seen[index] = nbytes

        try:
            while todo or waiting:
                while todo and len(waiting) < self.at_once:
                    index = todo.pop()
                    waiting[self.submit(index)] = index
                ready, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=TELL_S)
                for task in ready:
                    index = waiting.pop(task)
                    found[index] = _result(ray, task, self.planned.plan.shards[index].file)
                    show(index, sizes[index])
                    on_shard(index)
                if progress and waiting:
                    with suppress(ray.exceptions.RayError):  # it moves to another machine when its own dies
                        for index, nbytes in ray.get(self.meter.read.remote(), timeout=TELL_S).items():
                            show(index, min(nbytes, sizes[index]))
        except BaseException:
            for task in waiting:
                ray.cancel(task)
            if waiting:
                ray.wait(list(waiting), num_returns=len(waiting), timeout=CONNECT_S)
            raise
        return found


def _result(ray: Any, task: Any, shard: str) -> Written:
    """What a task returned.

    Raises:
        Gguf2stError: of the task; EngineError when there is no result.
    """
    try:
        result: Written | Gguf2stError = ray.get(task)
    except ray.exceptions.RayTaskError as err:
        said = str(err.cause).strip().splitlines() or [""]
        raise EngineError(
            f"{shard}: a task failed on the cluster: {type(err.cause).__name__}: {said[0]}",
            hint="all its machines need the same gguf2st and Python; the same command goes on from here",
        ) from err
    except ray.exceptions.RayError as err:
        said = str(err).strip().splitlines() or [type(err).__name__]
        raise EngineError(
            f"{shard}: the cluster lost it in {MAX_RETRIES + 1} of {MAX_RETRIES + 1} attempts: {said[0]}",
            hint="see `ray status` and the logs of its machines; the same command goes on from here",
        ) from err
    if isinstance(result, Gguf2stError):
        raise result
    return result


@contextmanager
def _cluster(address: str | None) -> Iterator[Any]:
    """The module `ray`, connected: as the caller has it already, or for as long as this lasts.

    Raises:
        EngineError: Ray is not installed, or there is no cluster.
    """
    try:
        import ray
    except ImportError:
        raise EngineError(
            "--engine ray needs Ray, which is not installed here", hint="pip install 'gguf2st[ray]'"
        ) from None
    if ray.is_initialized():
        yield ray
        return
    where = f"at {address}" if address else "on this machine"
    hint = "begin one with `ray start --head`, join it elsewhere with `ray start --address HOST:6379`"
    before = signal.getsignal(signal.SIGTERM)
    try:
        if address:
            _require_listening(address)
        ray.init(address=address or "auto", logging_level=logging.ERROR, log_to_driver=False)
    except (OSError, RuntimeError, ValueError, ConnectionError) as err:
        said = str(err).strip().splitlines() or [type(err).__name__]
        raise EngineError(f"there is no Ray cluster {where}: {said[0]}", hint=hint) from err
    try:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray has put its own there
        yield ray
    finally:
        ray.shutdown()


def _require_listening(address: str) -> None:
    """Raise OSError unless somebody answers: Ray itself would try for a minute."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError("an address is written HOST:PORT, such as 10.0.0.1:6379")
    with socket.create_connection((host.strip("[]"), int(port)), CONNECT_S):
        pass


def _threads(ray: Any, device: str, threads: int | None) -> int:
    """How many CPUs a task asks for.

    Raises:
        UsageError: no machine of the cluster has what a task needs.
    """
    machines = _machines(ray)
    if device == "cuda":
        machines = [m for m in machines if m.get("GPU", 0) >= 1]
    most = [int(m.get("CPU", 0)) for m in machines if m.get("CPU", 0) >= 1]
    if not most:
        raise UsageError(
            f"no machine of the cluster has a {'GPU' if device == 'cuda' else 'CPU'} for a task", hint=_MACHINES
        )
    if threads is not None and threads > max(most):
        raise UsageError(
            f"threads is {threads}; no machine of the cluster has more than {max(most)} CPUs", hint=_MACHINES
        )
    return threads or min(MAX_THREADS, *most)


def _machines(ray: Any) -> list[dict[str, float]]:
    """What each machine of the cluster has."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]
