"""Plan -> shards. Rows stream in chunks through one decoder, or one packer; memory does not grow with the model.

Chunks of several entries whose blocks have the same type may share a call of the decoder (a batch), as GPUs like it.

An entry whose ops only move whole rows is read chunk by chunk: the ops are applied to row numbers, and each chunk
gathers its quantized rows, which are then decoded, or packed in their new order. Any other entry is decoded whole in
float32, put through its ops, and cast. Packing runs on the CPU, whatever decodes.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from gguf2st.errors import OutputError, SchemeError
from gguf2st.execute.losses import Losses, relative_rmse
from gguf2st.execute.reader import Reader
from gguf2st.execute.rows import batches_of, chunks_of
from gguf2st.execute.threads import in_threads
from gguf2st.execute.worker import Progress, Worker
from gguf2st.kernels.device import Backend, Decoder, Host
from gguf2st.output import OutputFolder
from gguf2st.plan import Entry, Plan
from gguf2st.shards import ShardFile, is_whole, shard_outputs

CHUNK_NBYTES = 2 << 20
"""Output bytes per chunk: decoded, checked and written while they are still in a core's cache."""

SMALL_FILES_NBYTES = 128 << 20
"""Room for everything but weights: tokenizer files, index, and the headers of shards that were taken away."""

__all__ = ["CHUNK_NBYTES", "Progress", "execute"]


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
        keeps: whether the shards stay; if `on_shard` takes them away, there need be room for one at a time only.
        keeps: whether shards stay in the folder; else `on_shard` takes each one away, and there is room for one only.

    Returns: entry -> relative rmse, of those that were not packed exactly.

    Raises:
        SourceError: a source is unreadable, has changed, or holds values that are not finite numbers.
        SchemeError: values do not fit the output dtype, or a repacked weight lost more than `max_rel_rmse`.
        OutputError: the output cannot be written.
    """
    progress = progress or (lambda nbytes: None)
    on_shard = on_shard or (lambda path: None)
    backend = decode if isinstance(decode, Backend) else Host(decode, CHUNK_NBYTES)
    whole = {
        index
        for index, shard in enumerate(plan.shards)
        if shard.file in folder.finished and is_whole(folder.partial / shard.file, shard_outputs(plan, index))
    }
    sizes = [s.nbytes for i, s in enumerate(plan.shards) if i not in whole]
    _require_space(folder.partial, sum(sizes) if keeps else max(sizes, default=0) + SMALL_FILES_NBYTES)
    rmses: dict[str, float] = {}
    with Reader(plan.header) as reader:
        for index, shard in enumerate(plan.shards):
            path = folder.partial / shard.file
            if index in whole:
                progress(shard.nbytes)
                sums = folder.finished[shard.file]
            else:
                sums = _write_shard(plan, index, path, reader, backend, threads, progress)
            found = {name: relative_rmse(error, power) for name, (error, power) in sums.items()}
            _require_within(plan.entries, found, max_rel_rmse)
            rmses |= found
            folder.mark(shard.file, sums)
            on_shard(path)
    return rmses


def _require_space(folder: Path, nbytes: int) -> None:
    """Raise OutputError unless the file system has room: each shard reserves its own, but the last one comes late."""
    try:
        status = os.statvfs(folder)
    except (AttributeError, OSError):
        return  # the system cannot tell
    free = status.f_bavail * status.f_frsize
    if status.f_blocks and free < nbytes:
        raise OutputError(
            f"{folder}: no space left: {nbytes:,} bytes are needed, {free:,} are free",
            hint="free some space or choose another folder with -o, then run the same command again",
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
    plan: Plan, index: int, path: Path, reader: Reader, backend: Backend, threads: int, progress: Progress
) -> Mapping[str, tuple[float, float]]:
    """Write one shard; returns the sums of squared differences and values of what was not packed exactly."""
    sources, losses = plan.header.sources, Losses()
    entries = [e for e in plan.entries if e.outputs[0].shard == index]
    entries.sort(key=lambda e: [(sources[s].file, sources[s].offset) for s in e.sources])  # read forwards
    with ShardFile(path, shard_outputs(plan, index)) as shard:
        chunks = (c for e in entries for c in chunks_of(e, plan.header, backend.chunk_nbytes))
        batches = batches_of(chunks, backend.batch_nbytes)
        in_threads(threads, batches, lambda: Worker(plan, reader, backend, shard, losses, progress).run)
    return losses.sums(e.name for e in entries)
