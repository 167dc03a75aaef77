"""`OUT.partial/` while several processes, on any machines, write shards into it.

    plan.json          the plan file that all of them follow
    journal            locked by each of them, shared; by `finish`, or by another conversion, exclusively
    journals/SHARD     locked by the one that writes the shard; one line once it is finished:

        {"shard": "model-00001-of-00002.safetensors", "sums": {}, "sha256": "..."}

    SHARD.*.part       being written, under a name of its own

Locks only keep processes from doing the same work twice. Where the file system has none, two may write a shard at the
same time, under names of their own; the bytes are the same, and the last rename wins.
"""

import json
import os
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from gguf2st.output.folder import (
    JOURNAL_FILE,
    JOURNALS,
    PARTIAL,
    PLAN_FILE,
    BusyError,
    OutputFolder,
    Sums,
)
from gguf2st.output.locks import lock_file, open_locked
from gguf2st.output.shards import UNFINISHED, output_error
from gguf2st.output.target import check_target

JOIN_S = 10.0
"""How long to wait for a process that is just making the folder, before it counts as one that works in it."""


@dataclass(frozen=True)
class Record:
    """What the journal of a finished shard says: see `output.Sums`, and the sha256 of the file."""

    sums: Sums
    sha256: str


class ShardJournal:
    """The journal of one shard, locked until `close`."""

    def __init__(self, partial: Path, shard: str, file: IO[str]) -> None:
        """`file`: open and locked."""
        self.path = partial / shard
        self._file = file

    def record(self) -> Record | None:
        """What it says, if the shard is finished."""
        return read_record(self._file, self.path.name)

    def part(self) -> Path:
        """A new name for the unfinished file; what earlier processes left under such names goes away."""
        left = list(self.path.parent.glob(f"{self.path.name}.*{UNFINISHED}"))
        if left and self._is_locked():
            for path in left:
                with suppress(OSError):
                    path.unlink()
        return self.path.with_name(f"{self.path.name}.{uuid.uuid4().hex[:12]}{UNFINISHED}")

    def mark(self, sums: Sums, sha256: str) -> None:
        """Record the shard as finished: it is durable under its name.

        Raises:
            OutputError: the journal cannot be written.
        """
        line = json.dumps({"shard": self.path.name, "sums": sums, "sha256": sha256})
        try:
            self._file.write(f"\n{line}\n")  # a line that a crash cut short ends here
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as err:
            raise output_error(err, self.path.parent / JOURNALS / self.path.name) from err

    def close(self) -> None:
        """End the lock."""
        self._file.close()

    def _is_locked(self) -> bool:
        """Whether locks mean anything here: a second one must fail."""
        with open(self._file.name, encoding="utf-8") as other:
            return not lock_file(other, shared=True)


class SharedFolder:
    """`OUT.partial/`, entered by any number of processes with the same plan at once."""

    def __init__(self, out: Path, text: str, *, overwrite: bool) -> None:
        """Nothing happens yet.

        Args:
            out: the final folder.
            text: of the plan file.
            overwrite: whether a checkpoint there will be replaced.
        """
        self._out, self._text, self._overwrite = out, text, overwrite
        self.partial = partial_of(out)
        self._journal: IO[str] | None = None

    def __enter__(self) -> "SharedFolder":
        """Join those at work, or begin. What another plan left there is removed if nobody works on it.

        Raises:
            OutputError: not writable, somebody else's, or another conversion is at work in it; or the target exists.
        """
        check_target(self._out, overwrite=self._overwrite)
        deadline = time.monotonic() + JOIN_S
        try:
            while not self._join():
                try:
                    with OutputFolder(self._out, self._text, overwrite=self._overwrite):
                        pass  # made, and marked as this plan's
                except BusyError:
                    if self._is_others() or time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)
        except OSError as err:
            raise output_error(err, self.partial) from err
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Everything stays: `finish`, or the next process, goes on with it."""
        if self._journal is not None:
            self._journal.close()

    def claim(self, shard: str) -> ShardJournal | None:
        """The right to write a shard; None while another process has it.

        Raises:
            OutputError: its journal cannot be opened.
        """
        path = self.partial / JOURNALS / shard
        try:
            file = open_locked(path)
        except OSError as err:
            raise output_error(err, path) from err
        return None if file is None else ShardJournal(self.partial, shard, file)

    def _join(self) -> bool:
        """Lock the journal with the others, if there is a folder of this plan."""
        if not self._is_same():
            return False
        journal = open_locked(self.partial / JOURNAL_FILE, shared=True)
        if journal is not None and self._is_same():
            self._journal = journal
            return True
        if journal is not None:
            journal.close()  # the folder has become another plan's before it was locked
        return False

    def _is_same(self) -> bool:
        return follows(self.partial, self._text)

    def _is_others(self) -> bool:
        """Whether another plan is being followed there."""
        return (self.partial / PLAN_FILE).exists() and not self._is_same()


def partial_of(out: Path) -> Path:
    """The folder in which a checkpoint is made; links are resolved as `OutputFolder` does."""
    real = Path(os.path.realpath(out))
    return real.with_name(real.name + PARTIAL)


def read_record(journal: IO[str], shard: str) -> Record | None:
    """The last whole line of the journal of a shard. Lines that a crash cut short count for nothing."""
    journal.seek(0)
    found = None
    for line in journal:
        try:
            row: Any = json.loads(line)
            sums = {entry: (float(error), float(power)) for entry, (error, power) in row["sums"].items()}
            if row["shard"] == shard and isinstance(row["sha256"], str):
                found = Record(sums, row["sha256"])
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue
    return found


def records_in(partial: Path, shards: list[str]) -> dict[str, Record]:
    """Shard -> what its journal says, of those that are finished."""
    found = {}
    for shard in shards:
        with suppress(OSError), open(partial / JOURNALS / shard, encoding="utf-8", errors="replace") as journal:
            if record := read_record(journal, shard):
                found[shard] = record
    return found


def follows(partial: Path, text: str) -> bool:
    """Whether the shards there are those of this plan file."""
    try:
        return (partial / PLAN_FILE).read_text(encoding="utf-8") == text
    except (OSError, UnicodeDecodeError):
        return False
