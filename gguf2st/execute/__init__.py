"""Plan -> shards. Rows stream in chunks through one decoder, or one packer; memory does not grow with the model.

Chunks of several entries whose blocks have the same type may share a call (a batch), as GPUs like it.

An entry whose ops only move whole rows is read chunk by chunk: the ops are applied to row numbers, and each chunk
gathers its quantized rows, which are then decoded, or packed in their new order. Any other entry is decoded whole in
float32, put through its ops, and cast.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType

from gguf2st.errors import OutputError, SchemeError
from gguf2st.execute.losses import Losses, measure
from gguf2st.execute.reader import Reader
from gguf2st.execute.rows import batches_of, chunks_of
from gguf2st.execute.threads import in_threads
from gguf2st.execute.worker import Progress, Worker
from gguf2st.kernels.device import Backend, Decoder, Host
from gguf2st.output.folder import OutputFolder, Sums
from gguf2st.output.shards import MAKE_ROOM, ShardFile, is_whole, shard_outputs
from gguf2st.plan import DENSE, Entry, Plan

CHUNK_NBYTES = 2 << 20
"""Output bytes per chunk: decoded, checked and written while they are still in a core's cache."""

SMALL_FILES_NBYTES = 128 << 20
"""Room for everything but weights: tokenizer files, index, and the headers of shards that were taken away."""

__all__ = ["CHUNK_NBYTES", "Progress", "ShardWriter", "execute", "require_space"]


def execute(
    plan: Plan,
    folder: OutputFolder,
    *,
    decode: Decoder | Backend,
    threads: int,
    max_rel_rmse: float | None = None,
    progress: Progress | None = None,
    on_shard: Callable[[Path], None] | None = None,
    keeps: bool = True,
) -> Mapping[str, float]:
    """Write every shard of the plan that `folder` does not have yet.

    Args:
        plan: laid out and complete.
        folder: entered; shards are marked in it as they finish.
        decode: from `kernels.device.decoder`.
        threads: how many decode and write at once.
        max_rel_rmse: how far a repacked weight may be from the source's, relative to its size; None for any loss.
        progress: told about bytes written, those of finished shards included.
        on_shard: called, between shards, with the path of each one that is durable and marked, finished ones included.
        keeps: whether shards stay in the folder; else `on_shard` takes each one away, and there is room for one only.

    Returns: entry -> relative rmse, of those that were not packed exactly; of a dense one that float16 holds badly, the
    share of its values that are lost.

    Raises:
        SourceError: a source is unreadable, has changed, or holds values that are not finite numbers.
        SchemeError: values do not fit the output dtype, or a repacked weight lost more than `max_rel_rmse`.
        OutputError: the output cannot be written.
    """
    on_shard = on_shard or (lambda path: None)
    whole = {
        index
        for index, shard in enumerate(plan.shards)
        if shard.file in folder.finished and is_whole(folder.partial / shard.file, shard_outputs(plan, index))
    }
    sizes = [s.nbytes for i, s in enumerate(plan.shards) if i not in whole]
    require_space(folder.partial, sum(sizes) if keeps else max(sizes, default=0) + SMALL_FILES_NBYTES)
    rmses: dict[str, float] = {}
    with ShardWriter(plan, decode=decode, threads=threads, max_rel_rmse=max_rel_rmse, progress=progress) as writer:
        for index, shard in enumerate(plan.shards):
            path = folder.partial / shard.file
            if index in whole:
                writer.progress(shard.nbytes)
                sums = folder.finished[shard.file]
            else:
                sums = writer.write(index, path)
            rmses |= writer.losses(sums)
            folder.mark(shard.file, sums)
            on_shard(path)
    return rmses


class ShardWriter:
    """Writes shards of a plan, one at a time. The source is open while the `with` block lasts."""

    def __init__(
        self,
        plan: Plan,
        *,
        decode: Decoder | Backend,
        threads: int,
        max_rel_rmse: float | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Arguments as for `execute`."""
        self.progress = progress or (lambda nbytes: None)
        self._plan, self._threads, self._bound = plan, threads, max_rel_rmse
        self._backend = decode if isinstance(decode, Backend) else Host(decode, CHUNK_NBYTES)
        self._reader = Reader(plan.header)

    def __enter__(self) -> "ShardWriter":
        self._reader.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.__exit__()

    def write(self, index: int, path: Path, part: Path | None = None) -> Sums:
        """Write one shard; what is lost in it, of the weights that were not packed exactly.

        Args:
            index: of the shard in the plan.
            path: of the finished file.
            part: of the unfinished one; see `ShardFile`.

        Raises:
            SourceError, SchemeError, OutputError: as `execute`.
        """
        work = self._reader, self._backend, self._threads, self.progress
        return _write_shard(self._plan, index, path, *work, part)

    def losses(self, sums: Sums) -> Mapping[str, float]:
        """Entry -> relative rmse, or the share of lost values: as `execute` returns them.

        Raises:
            SchemeError: one is beyond `max_rel_rmse`.
        """
        schemes = {e.name: e.scheme for e in self._plan.entries} if sums else {}
        found = {name: measure(schemes[name], pair) for name, pair in sums.items() if name in schemes}
        packed = {name: rmse for name, rmse in found.items() if schemes[name] != DENSE}
        _require_within(self._plan.entries, packed, self._bound)
        return found


def require_space(folder: Path, nbytes: int) -> None:
    """Raise OutputError unless the file system has room: each shard reserves its own, but the last one comes late."""
    try:
        status = os.statvfs(folder)
    except (AttributeError, OSError):
        return  # the system cannot tell
    free = status.f_bavail * status.f_frsize
    if status.f_blocks and free < nbytes:
        raise OutputError(
            f"{folder}: no space left: {nbytes:,} bytes are needed, {free:,} are free",
            hint=MAKE_ROOM,
        )


def _require_within(entries: Iterable[Entry], rmses: Mapping[str, float], bound: float | None) -> None:
    """Raise SchemeError for the worst of the weights that lost more than the bound."""
    if bound is None or not rmses or max(rmses.values()) <= bound:
        return
    name = max(rmses, key=rmses.__getitem__)
    scheme = next(e.scheme for e in entries if e.name == name)
    above = sum(rmse > bound for rmse in rmses.values())
    more = f"; so do {above - 1} others of this shard" if above > 1 else ""
    raise SchemeError(
        f"{name} as {scheme} differs by {rmses[name]:.3g} (relative rmse) from the source, {bound:g} is allowed{more}",
        hint="--max-rel-rmse sets the bound; --repack exact dequantizes whatever would lose anything",
    )


def _write_shard(
    plan: Plan,
    index: int,
    path: Path,
    reader: Reader,
    backend: Backend,
    threads: int,
    progress: Progress,
    part: Path | None = None,
) -> Sums:
    """Write one shard; returns the sums of squared differences and values of what was not packed exactly."""
    sources, losses = plan.header.sources, Losses()
    entries = [e for e in plan.entries if e.outputs[0].shard == index]
    entries.sort(key=lambda e: [(sources[s].file, sources[s].offset) for s in e.sources])  # read forwards
    with ShardFile(path, shard_outputs(plan, index), part) as shard:
        # Packed weights are cut alike for every backend, because what is lost is summed up by chunks.
        sizes = ((e, backend.chunk_nbytes if e.scheme == DENSE else CHUNK_NBYTES) for e in entries)
        chunks = (c for e, nbytes in sizes for c in chunks_of(e, plan.header, nbytes))
        batches = batches_of(chunks, backend.batch_nbytes)
        in_threads(threads, batches, lambda: Worker(plan, reader, backend, shard, losses, progress).run)
    return losses.sums(e.name for e in entries)
