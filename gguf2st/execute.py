"""Plan -> shards. Rows stream in chunks through one decoder; memory does not grow with the model.

An entry whose ops only move whole rows is decoded chunk by chunk: the ops are applied to row numbers, and each chunk
gathers its quantized rows. Any other entry is decoded whole in float32, put through its ops, and cast.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gguf2st.errors import SchemeError, SourceError
from gguf2st.header import Header, Source
from gguf2st.kernels import cpu
from gguf2st.kernels.device import Decoder
from gguf2st.ops import OPS
from gguf2st.output import OutputFolder
from gguf2st.plan import DTYPE_NBYTES, Entry, Plan
from gguf2st.quants.byteorder import to_native
from gguf2st.quants.layout import TYPES
from gguf2st.shards import ShardFile, shard_outputs

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


@dataclass(frozen=True, slots=True)
class _Rows:
    """Which source rows an entry's output rows are: `first + r`, or `first + order[r]` where rows are reordered."""

    source: Source
    first: int
    order: NDArray[np.int64] | None
    n_rows: int
    n_cols: int


def execute(
    plan: Plan, folder: OutputFolder, *, decode: Decoder, threads: int, progress: Progress | None = None
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
    with _Reader(plan.header) as reader:
        for index, shard in enumerate(plan.shards):
            if shard.file in folder.finished:
                progress(shard.nbytes)
                continue
            _write_shard(plan, index, folder.partial / shard.file, reader, decode, threads, progress)
            folder.mark(shard.file)


def _write_shard(
    plan: Plan, index: int, path: Path, reader: "_Reader", decode: Decoder, threads: int, progress: Progress
) -> None:
    sources = plan.header.sources
    entries = [e for e in plan.entries if e.outputs[0].shard == index]
    entries.sort(key=lambda e: (sources[e.sources[0]].file, sources[e.sources[0]].offset))  # read forwards
    with ShardFile(path, shard_outputs(plan, index)) as shard:
        chunks = (c for e in entries for c in _chunks(e, plan.header))
        _in_threads(threads, chunks, lambda: _Worker(plan.header, reader, decode, shard, progress))


def _in_threads(threads: int, chunks: Iterator[_Chunk], make_worker: Callable[[], "_Worker"]) -> None:
    """Hand chunks in order to `threads` workers; the first failure (or Ctrl-C) stops all and is raised."""
    lock, stop = threading.Lock(), threading.Event()
    errors: list[BaseException] = []

    def run() -> None:
        worker = make_worker()
        try:
            while not stop.is_set():
                with lock:
                    chunk = next(chunks, None)
                if chunk is None:
                    return
                worker.run(chunk)
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
            for thread in pool:
                if thread.is_alive():
                    thread.join()
            raise
    if errors:
        raise errors[0]


def _chunks(entry: Entry, header: Header) -> Iterator[_Chunk]:
    rows = _row_plan(entry, header)
    if rows is None:
        yield _Chunk(entry, None, 0, 0)
        return
    step = max(1, CHUNK_NBYTES // (rows.n_cols * DTYPE_NBYTES[entry.dtype]))
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
    """One thread's scratch memory, and what it does with a chunk."""

    def __init__(
        self, header: Header, reader: "_Reader", decode: Decoder, shard: ShardFile, progress: Progress
    ) -> None:
        self._header, self._reader, self._decode = header, reader, decode
        self._shard, self._progress = shard, progress
        self._raw = np.empty(0, np.uint8)
        self._gathered = np.empty(0, np.uint8)
        self._out = np.empty(0, np.uint8)

    def run(self, chunk: _Chunk) -> None:
        if chunk.rows is None:
            self._whole(chunk.entry)
        else:
            self._stream(chunk.entry, chunk.rows, chunk.start, chunk.stop)

    def _stream(self, entry: Entry, rows: _Rows, start: int, stop: int) -> None:
        kind = TYPES[rows.source.qtype]
        row_nbytes = rows.n_cols // kind.block * kind.nbytes
        if rows.order is None:
            packed = self._read(rows.source, (rows.first + start) * row_nbytes, (stop - start) * row_nbytes)
        else:
            wanted = rows.order[start:stop]
            low, high = int(wanted.min()), int(wanted.max()) + 1
            packed = self._read(rows.source, (rows.first + low) * row_nbytes, (high - low) * row_nbytes)
            self._gathered = _at_least(self._gathered, len(wanted) * row_nbytes)
            gathered = self._gathered[: len(wanted) * row_nbytes].reshape(len(wanted), row_nbytes)
            packed = np.take(packed.reshape(-1, row_nbytes), wanted - low, axis=0, out=gathered)
        blocks = packed.reshape(-1, kind.nbytes)
        n_row_bytes = rows.n_cols * DTYPE_NBYTES[entry.dtype]
        self._emit(entry, rows.source.qtype, blocks, start * n_row_bytes)

    def _whole(self, entry: Entry) -> None:
        arrays: list[Any] = []
        for name in entry.sources:
            source = self._header.sources[name]
            kind = TYPES[source.qtype]
            blocks = self._read(source, 0, source.nbytes or 0).reshape(-1, kind.nbytes)
            values = np.empty((len(blocks), kind.block), np.float32)
            self._decode(source.qtype, "float32", blocks, values)
            arrays.append(values.reshape(source.shape))
        for op, *arguments in entry.ops:
            arrays = [OPS[op].fn(*arrays, *arguments)]
        flat = np.ascontiguousarray(arrays[0], dtype=np.float32).reshape(-1)
        step = CHUNK_NBYTES // DTYPE_NBYTES[entry.dtype]
        for at in range(0, len(flat), step):
            part = flat[at : at + step]
            self._emit(entry, "F32", part.view(np.uint8).reshape(-1, 4), at * DTYPE_NBYTES[entry.dtype])

    def _emit(self, entry: Entry, qtype: str, blocks: Bytes, at: int) -> None:
        """Decode blocks to the output dtype, check that all values are finite, and write them `at` bytes in."""
        shape = (len(blocks), TYPES[qtype].block)
        nbytes = shape[0] * shape[1] * DTYPE_NBYTES[entry.dtype]
        self._out = _at_least(self._out, nbytes)
        out = self._out[:nbytes].view(np.float32 if entry.dtype == "float32" else np.uint16).reshape(shape)
        self._decode(qtype, entry.dtype, blocks, out)
        if bad := cpu.count_nonfinite(entry.dtype, out):
            raise self._not_finite(entry, qtype, blocks, bad)
        self._shard.write(entry.outputs[0].start + at, self._out[:nbytes].data)
        self._progress(nbytes)

    def _not_finite(self, entry: Entry, qtype: str, blocks: Bytes, bad: int) -> SourceError | SchemeError:
        exact = np.empty((len(blocks), TYPES[qtype].block), np.float32)
        self._decode(qtype, "float32", blocks, exact)
        source = self._header.sources[entry.sources[0]]
        where = f"{self._header.files[source.file]}: tensor {source.name} ({source.qtype})"
        if np.isfinite(exact).all():
            return SchemeError(
                f"{where} has at least {bad} values beyond the range of {entry.dtype}",
                hint="use --dtype bfloat16 or float32",
            )
        return SourceError(
            f"{where} has at least {bad} weights that are NaN or infinite",
            hint="the file is damaged, or the model was broken before it was quantized: get another copy",
        )

    def _read(self, source: Source, at: int, nbytes: int) -> Bytes:
        """Bytes [at, at + nbytes) of a source in native byte order; valid until the next read."""
        self._raw = _at_least(self._raw, nbytes)
        data = self._raw[:nbytes]
        self._reader.read_into(source, at, data.data)
        if not self._reader.native:
            return to_native(source.qtype, data.reshape(-1, TYPES[source.qtype].nbytes)).reshape(-1)
        return data


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


def _at_least(buffer: Bytes, nbytes: int) -> Bytes:
    """The buffer, or a larger one; never zeroed, so that untouched pages cost nothing."""
    return buffer if len(buffer) >= nbytes else np.empty(nbytes, np.uint8)
