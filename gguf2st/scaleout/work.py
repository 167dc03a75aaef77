"""Write shards of a planned conversion: what every process of it does, whoever started it."""

import dataclasses
import json
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gguf2st import __version__
from gguf2st.conversion import Progress, decoder_for, downloaded, require_workers
from gguf2st.errors import OutputError
from gguf2st.limits import require_address_space
from gguf2st.output.digests import sha256_of
from gguf2st.output.folder import JOURNALS, Sums
from gguf2st.output.shards import is_whole, shard_outputs
from gguf2st.plan import Plan
from gguf2st.quoting import shell_word
from gguf2st.scaleout.folder import ShardJournal, SharedFolder, partial_of
from gguf2st.scaleout.planned import Planned, require_same_source, require_target
from gguf2st.source import is_address
from gguf2st.source.unchanged import identity, require_unchanged

if TYPE_CHECKING:
    from gguf2st.execute import ShardWriter

WAIT_S = 150.0
"""How long to wait for processes that write the last shards, while none of these is finished. An NFS server keeps the
locks of a machine that died for 90 seconds."""
POLL_S = 0.25


@dataclass(frozen=True)
class Written:
    """What a process did.

    Attributes:
        output: folder of the checkpoint, which `finish` makes.
        partial: the folder where the shards lie until then.
        shards: that the process was to write.
        written: those that it wrote.
        kept: those that were finished already, by their sha256.
        nbytes: of `written`.
        notes: what the user should know.
        seconds: wall time.
    """

    output: str
    partial: str
    shards: tuple[str, ...]
    written: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    nbytes: int = 0
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    version: str = __version__

    def to_json(self) -> str:
        """Indented JSON with a final newline."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"


def write_shards(
    planned: Planned,
    indices: Sequence[int],
    *,
    device: str = "auto",
    threads: int | None = None,
    progress: Progress | None = None,
    download_progress: Progress | None = None,
) -> Written:
    """Write some shards of a plan, but those that are finished already. Any number of processes may do so at once.

    Args:
        planned: what is made, and where.
        indices: of the shards.
        device, threads: as for `gguf2st.convert`.
        progress: told about bytes written, those of finished shards included.
        download_progress: told about bytes downloaded.

    Raises:
        SourceError: the source has changed since the plan was written, or is damaged.
        SchemeError: values do not fit the output dtype, or a repacked weight lost too much.
        OutputError: the output cannot be written, or another process keeps a shard for too long.
    """
    started = time.monotonic()
    require_workers(device, threads)
    plan, options, place = planned.plan, planned.options, partial_of(planned.output)
    require_target(planned)
    here = [Path(file) for file in plan.header.files if not is_address(file)]
    before = identity(here)
    require_same_source(planned)
    result = Written(str(planned.output), str(place), tuple(plan.shards[n].file for n in indices))
    if not indices:
        return result
    require_address_space()
    from gguf2st.execute import ShardWriter, require_space  # loads numpy and numba

    decode, threads, notes = decoder_for(device, threads)
    total = sum(plan.shards[n].nbytes for n in indices)
    plan = downloaded(plan, planned.model, download_progress, output=(place, total), only=_files(plan, indices))
    tell = (lambda nbytes: progress(nbytes, total)) if progress else None
    with (
        SharedFolder(planned.output, planned.text, overwrite=options.overwrite) as folder,
        ThreadPoolExecutor(1) as background,
        ShardWriter(plan, decode=decode, threads=threads, max_rel_rmse=options.bound, progress=tell) as writer,
    ):
        absent = [n for n in indices if not (place / plan.shards[n].file).exists()]
        require_space(place, sum(plan.shards[n].nbytes for n in absent))
        work = _Work(plan, folder, writer, background, lambda: require_unchanged(here, before))
        work.run(indices)
    return dataclasses.replace(
        result,
        written=tuple(plan.shards[n].file for n in sorted(work.written)),
        kept=tuple(plan.shards[n].file for n in sorted(work.kept)),
        nbytes=sum(plan.shards[n].nbytes for n in work.written),
        notes=notes,
        seconds=round(time.monotonic() - started, 3),
    )


class _Work:
    """The shards of one process, in order but for those that another one has at the moment."""

    def __init__(
        self,
        plan: Plan,
        folder: SharedFolder,
        writer: "ShardWriter",
        background: Executor,
        require_same: Callable[[], None],
    ) -> None:
        """`background` hashes a shard while the next one is written; `require_same` raises for a changed source."""
        self.written: list[int] = []
        self.kept: list[int] = []
        self._plan, self._folder, self._writer = plan, folder, writer
        self._background, self._require_same = background, require_same
        self._marks: list[Callable[[], None]] = []

    def run(self, indices: Iterable[int]) -> None:
        waiting, since = list(indices), time.monotonic()
        while waiting:
            busy = [index for index in waiting if not self._take(index)]
            if len(busy) < len(waiting):
                since = time.monotonic()
            elif time.monotonic() - since > WAIT_S:
                raise self._still_busy(busy)
            else:
                time.sleep(POLL_S)
            waiting = busy
        for mark in self._marks:
            mark()

    def _take(self, index: int) -> bool:
        """Finish a shard, unless another process has it."""
        from gguf2st.execute.threads import run_ahead

        journal = self._folder.claim(self._plan.shards[index].file)
        if journal is None:
            return False
        try:
            if self._is_finished(index, journal):
                self._writer.progress(self._plan.shards[index].nbytes)
                self.kept.append(index)
                journal.close()
            else:
                sums = self._write(index, journal)
                self._marks.append(run_ahead(self._background, partial(_mark, journal, sums)))
                self.written.append(index)
        except BaseException:
            journal.close()
            raise
        return True

    def _is_finished(self, index: int, journal: ShardJournal) -> bool:
        record = journal.record()
        if record is None or not is_whole(journal.path, shard_outputs(self._plan, index)):
            return False
        if sha256_of(journal.path) != record.sha256:
            return False
        self._writer.losses(record.sums)
        return True

    def _write(self, index: int, journal: ShardJournal) -> Sums:
        sums = self._writer.write(index, journal.path, journal.part())
        try:
            self._writer.losses(sums)
            self._require_same()
        except BaseException:
            with suppress(OSError):
                journal.path.unlink()  # it has no line in its journal, but takes room
            raise
        return sums

    def _still_busy(self, busy: list[int]) -> OutputError:
        names = [self._plan.shards[index].file for index in busy]
        lock = self._folder.partial / JOURNALS / names[0]
        more = f" (and {len(names) - 1} others)" if len(names) > 1 else ""
        return OutputError(
            f"{self._folder.partial}: another process has been writing {names[0]}{more} for {WAIT_S:.0f} s",
            hint=f"wait for it; if its machine is gone, remove the file that it locked: rm {shell_word(lock)}",
        )


def _mark(journal: ShardJournal, sums: Sums) -> None:
    """Record a shard once its bytes were read back."""
    try:
        journal.mark(sums, sha256_of(journal.path))
    finally:
        journal.close()


def _files(plan: Plan, indices: Sequence[int]) -> set[int]:
    """Numbers of the source's files that hold something of these shards."""
    wanted = set(indices)
    entries = (e for e in plan.entries if e.outputs[0].shard in wanted)
    return {plan.header.sources[name].file for e in entries for name in e.sources}
