"""Run inputs under limits, and tell a fault from a refusal.

A refusal is a Gguf2stError: what hostile input should end in. A fault is everything else: another exception, more than
TIME_LIMIT_S of CPU time, more memory than `memory_limit` allows, or a broken promise of the target (AssertionError).
"""

import signal
import time
import traceback
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType
from typing import Protocol

from gguf2st.errors import Gguf2stError

TIME_LIMIT_S = 2.0
"""CPU seconds of one input, all threads together: wall time would blame the neighbours on a shared machine."""

BLOCK_LIMIT_S = 60.0
"""Seconds by the clock, for what waits and uses none of them: reading a pipe that nobody writes to."""

MEMORY_FACTOR = 32
MEMORY_BASE_NBYTES = 64 << 20
MEMORY_EVERY = 25
"""Tracing memory makes Python several times slower, so that only each 25th input is traced."""

PACKAGE = Path(__file__).resolve().parents[2] / "gguf2st"

Files = Mapping[str, bytes]
"""An input: what is in the folder, by path below it."""


class Target(Protocol):
    """Something to call with hostile input.

    Attributes:
        name: on the command line.
        describes: what is called, in a few words.
    """

    name: str
    describes: str

    def make(self, rng: Random) -> Files:
        """An input; the same for the same state of `rng`."""
        ...

    def run(self, files: Files, folder: Path) -> None:
        """Call the code. Files are not written yet; `folder` is empty."""
        ...


class HangError(BaseException):
    """The CPU time of one input is used up. No Exception, so that nothing under test handles it."""


@dataclass(frozen=True)
class Fault:
    """An input that ended in something else than success or a refusal.

    Attributes:
        place: what and where, the same for all inputs that fail alike.
        detail: traceback or measure.
    """

    target: str
    seed: int
    index: int
    place: str
    detail: str

    def __str__(self) -> str:
        return f"{self.target}:{self.seed}:{self.index}  {self.place}"


@dataclass
class Tally:
    """What became of the inputs of one target.

    Attributes:
        outcomes: "accepted", the name of each kind of refusal, "fault" -> how many.
        slowest_s: CPU time of the slowest input.
        largest_factor: most memory traced, as a multiple of MEMORY_BASE_NBYTES + the input's size.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[Fault] = field(default_factory=list)
    slowest_s: float = 0.0
    largest_factor: float = 0.0

    @property
    def inputs(self) -> int:
        """How many were run."""
        return self.outcomes.total()


def memory_limit(files: Files) -> int:
    """Bytes that Python may allocate for an input."""
    return MEMORY_BASE_NBYTES + MEMORY_FACTOR * size(files)


def size(files: Files) -> int:
    """Bytes of an input."""
    return sum(map(len, files.values()))


def make_input(target: Target, seed: int, index: int) -> Files:
    """The input with this number."""
    return target.make(Random(f"{target.name}:{seed}:{index}"))


def write_input(files: Files, folder: Path) -> None:
    """Put an input on disk."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def run_slice(
    target: Target,
    seed: int,
    indices: range,
    scratch: Path,
    *,
    before: Callable[[int], None] = lambda index: None,
    memory_every: int = MEMORY_EVERY,
) -> Tally:
    """Make and run the inputs with these numbers, one after the other.

    Args:
        target: what to call.
        seed: of all inputs.
        indices: which of them.
        scratch: a folder that is left empty.
        before: told the number of each input before it is run: where a crash of the process happened.
        memory_every: trace the memory of each so-manieth input.
    """
    tally = Tally()
    for index in indices:
        files = make_input(target, seed, index)
        before(index)
        run_one(target, files, scratch, tally, seed, index, traced=index % memory_every == 0)
    return tally


def run_one(
    target: Target, files: Files, scratch: Path, tally: Tally, seed: int = 0, index: int = 0, *, traced: bool = False
) -> None:
    """Run one input and count what became of it."""
    outcome, place, detail, peak = "accepted", "", "", 0
    started = time.process_time()
    if traced:
        tracemalloc.start()
    try:
        with time_limit(TIME_LIMIT_S * (5 if traced else 1)):
            target.run(files, scratch)
    except Gguf2stError as error:
        outcome = type(error).__name__
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a panic of a Rust library is no Exception
        outcome, place, detail = "fault", _place(error), "".join(traceback.format_exception(error)[-12:])
    finally:
        if traced:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        empty(scratch)
    seconds = time.process_time() - started
    if not traced:
        tally.slowest_s = max(tally.slowest_s, seconds)
        if seconds > TIME_LIMIT_S and outcome != "fault":
            outcome, place, detail = "fault", f"slow: {target.name}", f"{seconds:.1f} s for {size(files)} bytes"
    elif outcome != "fault":
        tally.largest_factor = max(tally.largest_factor, peak / (MEMORY_BASE_NBYTES + size(files)))
        if peak > memory_limit(files):
            outcome, place, detail = "fault", f"memory: {target.name}", f"{peak} bytes for {size(files)} bytes"
    tally.outcomes[outcome] += 1
    if outcome == "fault":
        tally.faults.append(Fault(target.name, seed, index, place, detail))


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise HangError once this process has used so much CPU time, or has waited for BLOCK_LIMIT_S; again and again,
    should somebody swallow it."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise HangError(f"more than {seconds} s of CPU time, or {BLOCK_LIMIT_S} s of waiting")

    before = {number: signal.signal(number, stop) for number in (signal.SIGPROF, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_PROF, seconds, 0.2)
    signal.setitimer(signal.ITIMER_REAL, BLOCK_LIMIT_S, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def empty(folder: Path) -> None:
    """Remove everything in a folder."""
    import shutil

    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _place(error: BaseException) -> str:
    """`KeyError at plan.py:233`: the innermost line of the package, or of the target where its promise broke."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if Path(frame.filename).is_relative_to(PACKAGE)] or frames
    if isinstance(error, AssertionError):
        ours = frames
    where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "?"
    return f"{type(error).__name__} at {where}: {str(error)[:160]}"
