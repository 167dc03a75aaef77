"""Plan -> shards. Rows stream in chunks through one decoder; memory does not grow with the model.

Chunks of several entries whose blocks have the same type may share a call of the decoder (a batch), as GPUs like it.

An entry whose ops only move whole rows is decoded chunk by chunk: the ops are applied to row numbers, and each chunk
gathers its quantized rows. Any other entry is decoded whole in float32, put through its ops, and cast.
"""

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gguf2st.errors import OutputError, SchemeError, SourceError
from gguf2st.header import Header, Source
from gguf2st.kernels import cpu
from gguf2st.kernels.device import Backend, Decoder, Host
from gguf2st.ops import OPS
from gguf2st.output import OutputFolder
from gguf2st.plan import DTYPE_NBYTES, Entry, Plan
from gguf2st.quants.byteorder import to_native
from gguf2st.quants.layout import TYPES
from gguf2st.shards import ShardFile, is_whole, shard_outputs

CHUNK_NBYTES = 2 << 20
"""Output bytes per chunk: decoded, checked and written while they are still in a core's cache."""

Bytes = NDArray[np.uint8]
Progress = Callable[[int], None]
"""Called with the number of output bytes just written, from any thread."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Rows [start, stop) of an entry's output; the whole entry when `rows` is None."""

    entry: Entry
    rows: "_Rows | None"
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """Of the output."""
        n_cols = self.rows.n_cols if self.rows else 0
        return (self.stop - self.start) * n_cols * DTYPE_NBYTES[self.entry.dtype]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the next `n_blocks` of a batch go: `at` bytes into an entry's output."""

    entry: Entry
    at: int
    n_blocks: int


@dataclass(frozen=True, slots=True)
class _Rows:
    """Which source rows an entry's output rows are: `first + r`, or `first + order[r]` where rows are reordered."""

    source: Source
    first: int
    order: NDArray[np.int64] | None
    n_rows: int
    n_cols: int


def execute(
    plan: Plan, folder: OutputFolder, *, decode: Decoder | Backend, threads: int, progress: Progress | None = None
) -> None:
    """Write every shard of the plan that `folder` does not have yet.

    Args:
        plan: laid out and complete.
        folder: entered; shards are marked in it as they finish.
        decode: from `kernels.device.decoder`.
        threads: how many decode and write at once.
        progress: told about bytes written, those of finished shards included.

    Raises:
        SourceError: a source is unreadable, has changed, or holds values that are not finite numbers.
        SchemeError: values do not fit the output dtype.
        OutputError: the output cannot be written.
    """
    progress = progress or (lambda nbytes: None)
    backend = decode if isinstance(decode, Backend) else Host(decode, CHUNK_NBYTES)
    whole = {
        index
        for index, shard in enumerate(plan.shards)
        if shard.file in folder.finished and is_whole(folder.partial / shard.file, shard_outputs(plan, index))
    }
    _require_space(folder.partial, sum(s.nbytes for i, s in enumerate(plan.shards) if i not in whole))
    with _Reader(plan.header) as reader:
        for index, shard in enumerate(plan.shards):
            if index in whole:
                progress(shard.nbytes)
                continue
            _write_shard(plan, index, folder.partial / shard.file, reader, backend, threads, progress)
            folder.mark(shard.file)


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


def _write_shard(
    plan: Plan, index: int, path: Path, reader: "_Reader", backend: Backend, threads: int, progress: Progress
) -> None:
    sources = plan.header.sources
    entries = [e for e in plan.entries if e.outputs[0].shard == index]
    entries.sort(key=lambda e: [(sources[s].file, sources[s].offset) for s in e.sources])  # read forwards
    with ShardFile(path, shard_outputs(plan, index)) as shard:
        chunks = (c for e in entries for c in _chunks(e, plan.header, backend.chunk_nbytes))
        batches = _batches(chunks, backend.batch_nbytes)
        _in_threads(threads, batches, lambda: _Worker(plan.header, reader, backend, shard, progress))


def _in_threads(threads: int, batches: Iterator[list[_Chunk]], make_worker: Callable[[], "_Worker"]) -> None:
    """Hand batches in order to `threads` workers; the first failure (or Ctrl-C) stops all and is raised."""
    lock, stop = threading.Lock(), threading.Event()
    errors: list[BaseException] = []

    def run() -> None:
        worker = make_worker()
        try:
            while not stop.is_set():
                with lock:
                    batch = next(batches, None)
                if batch is None:
                    return
                worker.run(batch)
        except BaseException as err:
            errors.append(err)
            stop.set()

    if threads == 1:
        run()
    else:
        pool = [threading.Thread(target=run, daemon=True) for _ in range(threads)]
        try:
            for thread in pool:
                thread.start()
            for thread in pool:
                thread.join()
        except BaseException:
            stop.set()
            while any(thread.is_alive() for thread in pool):
                # A second Ctrl-C must not leave them writing to a file that is closed already.
                with suppress(KeyboardInterrupt):
                    for thread in pool:
                        if thread.is_alive():
                            thread.join()
            raise
    if errors:
        raise errors[0]


def _batches(chunks: Iterator[_Chunk], nbytes: int) -> Iterator[list[_Chunk]]:
    """Chunks that one call can decode: of one ggml type and dtype, together `nbytes` of output or just above."""
    waiting: dict[tuple[str, str], list[_Chunk]] = {}
    sizes: Counter[tuple[str, str]] = Counter()
    for chunk in chunks:
        if chunk.rows is None:
            yield [chunk]
            continue
        kind = chunk.rows.source.qtype, chunk.entry.dtype
        waiting.setdefault(kind, []).append(chunk)
        sizes[kind] += chunk.nbytes
        if sizes[kind] >= nbytes:
            sizes[kind] = 0
            yield waiting.pop(kind)
    yield from waiting.values()


def _chunks(entry: Entry, header: Header, nbytes: int) -> Iterator[_Chunk]:
    rows = _row_plan(entry, header)
    if rows is None:
        yield _Chunk(entry, None, 0, 0)
        return
    step = max(1, nbytes // (rows.n_cols * DTYPE_NBYTES[entry.dtype]))
    for start in range(0, rows.n_rows, step):
        yield _Chunk(entry, rows, start, min(start + step, rows.n_rows))


def _row_plan(entry: Entry, header: Header) -> _Rows | None:
    """How the entry's rows follow from its source's rows, or None when it must be decoded whole."""
    if not entry.packed or len(entry.sources) != 1:
        return None
    source = header.sources[entry.sources[0]]
    shape = source.shape or (1,)
    if len(shape) == 1:
        if entry.ops and TYPES[source.qtype].block > 1:
            return None  # reordering the elements of a quantized vector would cut blocks
        # The elements of a vector are its rows when ops move them, else all of it is one row.
        shape = (shape[0], 1) if entry.ops else (1, shape[0])
    ops = list(entry.ops)
    first, lead = 0, list(shape)
    while ops and ops[0][0] == "take" and len(lead) > 2:  # a stack's member is an offset, not a list of rows
        first += ops.pop(0)[1] * int(np.prod(lead[1:-1]))
        lead.pop(0)
    order = None
    n_rows = int(np.prod(lead[:-1]))
    if ops:
        numbers: Any = np.arange(n_rows, dtype=np.int64).reshape(*lead[:-1], 1)
        for op, *arguments in ops:
            numbers = OPS[op].fn(numbers, *arguments)
        order = np.ascontiguousarray(numbers).reshape(-1)
        n_rows = len(order)
    return _Rows(source, first, order, n_rows, lead[-1])


class _Worker:
    """One thread's scratch memory, and what it does with a batch."""

    def __init__(
        self, header: Header, reader: "_Reader", backend: Backend, shard: ShardFile, progress: Progress
    ) -> None:
        self._header, self._reader, self._backend = header, reader, backend
        self._shard, self._progress = shard, progress
        self._raw = np.empty(0, np.uint8)
        self._packed = np.empty(0, np.uint8)
        self._out = np.empty(0, np.uint8)

    def run(self, batch: list[_Chunk]) -> None:
        if batch[0].rows is None:
            self._whole(batch[0].entry)
        else:
            self._stream([(chunk, chunk.rows) for chunk in batch if chunk.rows is not None])

    def _stream(self, batch: list[tuple[_Chunk, _Rows]]) -> None:
        qtype = batch[0][1].source.qtype
        kind = TYPES[qtype]
        places = []
        for chunk, rows in batch:
            n_blocks = (chunk.stop - chunk.start) * rows.n_cols // kind.block
            places.append(_Place(chunk.entry, chunk.start * rows.n_cols * DTYPE_NBYTES[chunk.entry.dtype], n_blocks))
        nbytes = sum(p.n_blocks for p in places) * kind.nbytes
        if len(self._packed) < nbytes:
            self._packed = self._backend.empty(nbytes)
        blocks = self._packed[:nbytes].reshape(-1, kind.nbytes)
        at = 0
        for (chunk, rows), place in zip(batch, places, strict=True):
            self._fill(blocks[at : at + place.n_blocks].reshape(chunk.stop - chunk.start, -1), chunk, rows)
            at += place.n_blocks
        self._emit(qtype, blocks, places)

    def _fill(self, packed: Bytes, chunk: _Chunk, rows: _Rows) -> None:
        """Read a chunk's rows -> `packed` (rows, bytes per row)."""
        row_nbytes = packed.shape[1]
        if rows.order is None:
            self._read_into(packed.reshape(-1), rows.source, (rows.first + chunk.start) * row_nbytes)
            return
        wanted = rows.order[chunk.start : chunk.stop]
        low, high = int(wanted.min()), int(wanted.max()) + 1
        stretch = self._read(rows.source, (rows.first + low) * row_nbytes, (high - low) * row_nbytes)
        # The mode only matters for numbers out of range; the default one goes through a copy of `out`.
        np.take(stretch.reshape(-1, row_nbytes), wanted - low, axis=0, out=packed, mode="clip")

    def _whole(self, entry: Entry) -> None:
        arrays: list[Any] = []
        for name in entry.sources:
            source = self._header.sources[name]
            kind = TYPES[source.qtype]
            blocks = self._read(source, 0, source.nbytes or 0).reshape(-1, kind.nbytes)
            values = np.empty((len(blocks), kind.block), np.float32)
            self._backend.decode(source.qtype, "float32", blocks, values)
            arrays.append(values.reshape(source.shape))
        for op, *arguments in entry.ops:
            arrays = [OPS[op].fn(*arrays, *arguments)]
        flat = np.ascontiguousarray(arrays[0], dtype=np.float32).reshape(-1)
        itemsize = DTYPE_NBYTES[entry.dtype]
        step = max(1, self._backend.chunk_nbytes // itemsize)
        for at in range(0, len(flat), step):
            part = flat[at : at + step].view(np.uint8).reshape(-1, 4)
            self._emit("F32", part, [_Place(entry, at * itemsize, len(part))])

    def _emit(self, qtype: str, blocks: Bytes, places: list[_Place]) -> None:
        """Decode blocks to the output dtype, check that all values are finite, and write them to their places."""
        block, dtype = TYPES[qtype].block, places[0].entry.dtype
        nbytes = len(blocks) * block * DTYPE_NBYTES[dtype]
        if len(self._out) < nbytes:
            self._out = self._backend.empty(nbytes)
        out = self._out[:nbytes].view(np.float32 if dtype == "float32" else np.uint16).reshape(-1, block)
        bad = self._backend.decode(qtype, dtype, blocks, out)
        at = 0
        for place in places:
            part = slice(at, at + place.n_blocks)
            at += place.n_blocks
            if bad and (here := cpu.count_nonfinite(dtype, out[part])):
                raise self._not_finite(place.entry, qtype, blocks[part], here)
            written = out[part].reshape(-1).view(np.uint8)
            self._shard.write(place.entry.outputs[0].start + place.at, written.data)
            self._progress(len(written))

    def _not_finite(self, entry: Entry, qtype: str, blocks: Bytes, bad: int) -> SourceError | SchemeError:
        exact = np.empty((len(blocks), TYPES[qtype].block), np.float32)
        self._backend.decode(qtype, "float32", blocks, exact)
        source = self._header.sources[entry.sources[0]]
        where = f"{self._header.files[source.file]}: tensor {source.name} ({source.qtype})"
        if np.isfinite(exact).all():
            return SchemeError(
                f"{where} has at least {bad} values beyond the range of {entry.dtype}",
                hint="use --dtype float32" if entry.dtype == "bfloat16" else "use --dtype bfloat16 or float32",
            )
        return SourceError(
            f"{where} has at least {bad} weights that are NaN or infinite",
            hint="the file is damaged, or the model was broken before it was quantized: get another copy",
        )

    def _read(self, source: Source, at: int, nbytes: int) -> Bytes:
        """Bytes [at, at + nbytes) of a source in native byte order; valid until the next read."""
        if len(self._raw) < nbytes:
            self._raw = np.empty(nbytes, np.uint8)
        self._read_into(self._raw[:nbytes], source, at)
        return self._raw[:nbytes]

    def _read_into(self, data: Bytes, source: Source, at: int) -> None:
        """Fill `data` from byte `at` of a source, in native byte order."""
        self._reader.read_into(source, at, data.data)
        if not self._reader.native:
            blocks = data.reshape(-1, TYPES[source.qtype].nbytes)
            np.copyto(blocks, to_native(source.qtype, blocks))


class _Reader:
    """The source files, read with pread: any thread, no shared position, and no mapping that a truncation turns into
    SIGBUS or that counts as resident memory.
    """

    def __init__(self, header: Header) -> None:
        self._header = header
        self._fds: list[int] = []
        self.native = header.byteorder == sys.byteorder

    def __enter__(self) -> "_Reader":
        try:
            for file, size in zip(self._header.files, self._header.sizes, strict=True):
                self._fds.append(os.open(file, os.O_RDONLY))
                if os.fstat(self._fds[-1]).st_size != size:
                    raise SourceError(f"{file} has changed since its header was read", hint="run the command again")
        except OSError as err:
            self.__exit__()
            raise SourceError(f"{err.filename}: {err.strerror}") from err
        return self

    def __exit__(self, *exc: object) -> None:
        while self._fds:
            os.close(self._fds.pop())

    def read_into(self, source: Source, at: int, buffer: memoryview) -> None:
        """Fill the buffer from byte `at` of a source."""
        fd, offset = self._fds[source.file], source.offset + at
        while len(buffer):
            try:
                n = os.preadv(fd, [buffer], offset)
            except OSError as err:
                raise SourceError(f"{self._header.files[source.file]}: {err.strerror}") from err
            if n == 0:
                raise SourceError(
                    f"{self._header.files[source.file]} ended inside tensor {source.name}: it has changed",
                    hint="run the command again once nothing else writes to it",
                )
            buffer, offset = buffer[n:], offset + n
