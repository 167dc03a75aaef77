"""What a thread does with a batch: read rows, decode or pack them, check them, write them."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gguf2st.errors import SchemeError, SourceError
from gguf2st.execute.losses import Losses
from gguf2st.execute.reader import Bytes, Reader
from gguf2st.execute.rows import Chunk, Rows
from gguf2st.execute.underflow import lost_values
from gguf2st.execute.whole import whole_numbers
from gguf2st.header import Source
from gguf2st.kernels import cpu
from gguf2st.kernels.device import Backend
from gguf2st.ops import run_ops
from gguf2st.output.shards import ShardFile
from gguf2st.plan import DENSE, DTYPE_NBYTES, Entry, Plan
from gguf2st.quants.layout import TYPES
from gguf2st.schemes import SCHEMES, Packed

Progress = Callable[[int], None]
"""Called with the number of output bytes just written, from any thread."""


MOST_UNWANTED = 4
"""Rows of a source that are read for each one that is wanted, before only the wanted ones are read, run by run."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the next `n_blocks` of a batch go: `at` bytes into an entry's only output."""

    entry: Entry
    at: int
    n_blocks: int


@dataclass(frozen=True, slots=True)
class _Run:
    """Rows of one type: those of a chunk, or those `at` some of them."""

    chunk: Chunk
    rows: Rows
    at: "NDArray[np.int64] | None"

    @property
    def n_rows(self) -> int:
        return self.chunk.stop - self.chunk.start if self.at is None else len(self.at)


class Worker:
    """One thread's scratch memory, and its part of a shard."""

    def __init__(
        self, plan: Plan, reader: Reader, backend: Backend, shard: ShardFile, losses: Losses, progress: Progress
    ) -> None:
        self._plan, self._reader, self._backend = plan, reader, backend
        self._shard, self._losses, self._progress = shard, losses, progress
        self._raw = np.empty(0, np.uint8)
        self._blocks = np.empty(0, np.uint8)
        self._out = np.empty(0, np.uint8)

    def run(self, batch: list[Chunk]) -> None:
        """Read, decode or pack, check and write."""
        if batch[0].entry.whole:
            self._numbers(batch[0])
        elif batch[0].rows is None:
            self._whole(batch[0].entry)
        else:
            work = self._stream if batch[0].entry.scheme == DENSE else self._pack
            work([(chunk, chunk.rows) for chunk in batch if chunk.rows is not None])

    def _stream(self, batch: list[tuple[Chunk, Rows]]) -> None:
        """Decode chunks of one type in one call; those that the file scales one by one, through float32."""
        qtype = batch[0][1].sources[0].qtype
        kind = TYPES[qtype]
        plain, places = [], []
        for chunk, rows in batch:
            at = chunk.start * rows.n_cols * DTYPE_NBYTES[chunk.entry.dtype]
            n_values = (chunk.stop - chunk.start) * rows.n_cols
            if (factors := self._factors(chunk, rows)) is None:
                plain.append((chunk, rows))
                places.append(_Place(chunk.entry, at, n_values // kind.block))
                continue
            blocks = self._room(n_values // kind.block * kind.nbytes)
            self._fill(blocks.reshape(chunk.stop - chunk.start, -1), chunk, rows)
            values = self._exact(qtype, blocks).reshape(-1, rows.n_cols)
            values *= factors[:, None]
            self._emit("F32", values.reshape(-1).view(np.uint8).reshape(-1, 4), [_Place(chunk.entry, at, n_values)])
        if not plain:
            return
        blocks = self._room(sum(p.n_blocks for p in places) * kind.nbytes).reshape(-1, kind.nbytes)
        begin = 0
        for (chunk, rows), place in zip(plain, places, strict=True):
            here = blocks[begin : begin + place.n_blocks]
            self._fill(here.reshape(chunk.stop - chunk.start, -1), chunk, rows)
            begin += place.n_blocks
        self._emit(qtype, blocks, places)

    def _pack(self, batch: list[tuple[Chunk, Rows]]) -> None:
        """Pack chunks of one type in one call; a chunk of several types is a batch by itself, and each type a call."""
        entry, qtypes = batch[0][0].entry, batch[0][1].qtypes
        scheme = SCHEMES[entry.scheme]
        for qtype in qtypes:
            kind = TYPES[qtype]
            runs = [_Run(chunk, rows, None if len(qtypes) == 1 else _at(chunk, rows, qtype)) for chunk, rows in batch]
            runs = [run for run in runs if run.n_rows]
            if not runs:
                continue
            sizes = [(run.n_rows * run.rows.n_cols // kind.block, run.n_rows) for run in runs]
            ends = np.cumsum([n_blocks for n_blocks, _ in sizes])
            blocks = self._room(int(ends[-1]) * kind.nbytes).reshape(-1, kind.nbytes)
            parts = np.split(blocks, ends[:-1])
            for run, part in zip(runs, parts, strict=True):
                self._fill(part.reshape(run.n_rows, -1), run.chunk, run.rows, run.at)
            packs = self._backend.pack(scheme, qtype, entry.dtype, blocks, sizes)
            for run, part, packed in zip(runs, parts, packs, strict=True):
                if packed.bad:
                    raise self._unpackable(run.chunk.entry, qtype, part, packed.bad)
                self._write_parts(run.chunk, packed, run.at)
                self._losses.add(run.chunk.entry.name, packed.error, packed.power)
        for chunk, _ in batch:
            if chunk.start == 0:
                self._write_once(chunk.entry)

    def _write_parts(self, chunk: Chunk, packed: Packed, at: "NDArray[np.int64] | None") -> None:
        """Write the packed rows of a chunk, or those `at` some of its rows."""
        entry = chunk.entry
        for part, output in zip(SCHEMES[entry.scheme].parts(entry.row_shape, entry.dtype), entry.outputs, strict=True):
            if not part.span:
                continue
            data = packed.parts[part.suffix]
            n_parts = -(-math.prod(entry.row_shape[:-1]) // part.span)
            row_nbytes = (output.stop - output.start) // n_parts
            begin = output.start + chunk.start // part.span * row_nbytes
            if at is None:
                self._shard.write(begin, data.data)
            else:
                for run, rows in zip(_runs(at), np.split(data.reshape(len(at), -1), _breaks(at)), strict=True):
                    self._shard.write(begin + run * row_nbytes, np.ascontiguousarray(rows).reshape(-1).data)
            self._progress(len(data))

    def _write_once(self, entry: Entry) -> None:
        """Write the parts that do not depend on the rows."""
        scheme = SCHEMES[entry.scheme]
        parts = zip(scheme.parts(entry.row_shape, entry.dtype), entry.outputs, strict=True)
        once = scheme.once(entry.row_shape, entry.scale)
        for part, output in parts:
            if not part.span:
                self._shard.write(output.start, once[part.suffix].data)
                self._progress(output.stop - output.start)

    def _fill(self, packed: Bytes, chunk: Chunk, rows: Rows, at: "NDArray[np.int64] | None" = None) -> None:
        """Read a chunk's rows, or those `at` some of them -> `packed` (rows, bytes per row)."""
        row_nbytes = packed.shape[1]
        if rows.order is None and len(rows.sources) == 1:
            self._reader.read_into(packed.reshape(-1), rows.sources[0], (rows.first + chunk.start) * row_nbytes)
            return
        numbers = rows.numbers(chunk.start, chunk.stop)
        numbers = numbers if at is None else numbers[at]
        for source, start, stop in zip(rows.sources, rows.starts, rows.starts[1:], strict=False):
            here = np.flatnonzero((numbers >= start) & (numbers < stop))
            if len(here):
                self._gather(packed, here, source, numbers[here] - start)

    def _gather(self, packed: Bytes, here: "NDArray[np.int64]", source: Source, wanted: "NDArray[np.int64]") -> None:
        """Read rows `wanted` of a source -> the rows `here` of `packed`."""
        row_nbytes = packed.shape[1]
        low, high = int(wanted.min()), int(wanted.max()) + 1
        if high - low > MOST_UNWANTED * len(wanted):
            for run in np.split(np.arange(len(wanted)), _breaks(wanted)):
                first = int(wanted[run[0]])
                stretch = self._stretch(source, first * row_nbytes, len(run) * row_nbytes)
                packed[here[run]] = stretch.reshape(-1, row_nbytes)
            return
        stretch = self._stretch(source, low * row_nbytes, (high - low) * row_nbytes).reshape(-1, row_nbytes)
        if len(here) == len(packed):
            # The mode only matters for numbers out of range; the default one goes through a copy of `out`.
            np.take(stretch, wanted - low, axis=0, out=packed, mode="clip")
        else:
            packed[here] = stretch[wanted - low]

    def _factors(self, chunk: Chunk, rows: Rows) -> "NDArray[np.float32] | None":
        """What the file multiplies each row of a chunk by; None where it does not."""
        scales = [self._plan.scales.get(s.name) for s in rows.sources]
        if not any(scales):
            return None
        numbers = rows.numbers(chunk.start, chunk.stop)
        factors = np.ones(len(numbers), np.float32)
        for scale, start, stop in zip(scales, rows.starts, rows.starts[1:], strict=False):
            if scale:
                here = (numbers >= start) & (numbers < stop)
                member = (numbers[here] - start) // ((stop - start) // len(scale))
                factors[here] = np.array(scale, np.float32)[member]
        return factors

    def _whole(self, entry: Entry) -> None:
        """Decode all sources in float32, run the ops, and cast."""
        arrays: list[Any] = []
        for name in entry.sources:
            source = self._plan.header.sources[name]
            blocks = self._stretch(source, 0, source.nbytes or 0)
            values = self._exact(source.qtype, blocks).reshape(source.shape)
            if scale := self._plan.scales.get(name):
                values.reshape(len(scale), -1)[:] *= np.array(scale, np.float32)[:, None]
            arrays.append(values)
        flat = np.ascontiguousarray(run_ops(entry.ops, arrays), dtype=np.float32).reshape(-1)
        itemsize = DTYPE_NBYTES[entry.dtype]
        step = max(1, self._backend.chunk_nbytes // itemsize)
        for at in range(0, len(flat), step):
            part = flat[at : at + step].view(np.uint8).reshape(-1, 4)
            self._emit("F32", part, [_Place(entry, at * itemsize, len(part))])

    def _numbers(self, chunk: Chunk) -> None:
        """Write whole numbers, of the file's tensors or of its metadata, as they are."""
        entry, rows, start = chunk.entry, chunk.rows, 0
        if rows is not None:
            kind = TYPES[rows.sources[0].qtype]
            blocks = self._room((chunk.stop - chunk.start) * rows.n_cols * kind.nbytes)
            self._fill(blocks.reshape(chunk.stop - chunk.start, -1), chunk, rows)
            numbers, start = whole_numbers(kind.name, blocks), chunk.start * rows.n_cols
        else:
            arrays: list[Any] = []
            for source in (self._plan.header.sources[name] for name in entry.sources):
                stretch = self._stretch(source, 0, source.nbytes or 0)
                arrays.append(whole_numbers(source.qtype, stretch).reshape(source.shape))
            numbers = np.ascontiguousarray(run_ops(entry.ops, arrays))
        data = numbers.reshape(-1).view(np.uint8)
        self._shard.write(entry.outputs[0].start + start * DTYPE_NBYTES[entry.dtype], data.data)
        self._progress(len(data))

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
            if dtype == "float16":
                exact = partial(self._exact, qtype, blocks[part])
                self._losses.add_cast(place.entry.name, *lost_values(qtype, blocks[part], out[part], exact))
            written = out[part].reshape(-1).view(np.uint8)
            self._shard.write(place.entry.outputs[0].start + place.at, written.data)
            self._progress(len(written))

    def _not_finite(self, entry: Entry, qtype: str, blocks: Bytes, bad: int) -> SourceError | SchemeError:
        where = self._where(entry)
        if np.isfinite(self._exact(qtype, blocks)).all():
            return SchemeError(
                f"{where} has at least {bad} values beyond the range of {entry.dtype}",
                hint="use --dtype float32" if entry.dtype == "bfloat16" else "use --dtype bfloat16 or float32",
            )
        if qtype == "F64" and np.isfinite(np.ascontiguousarray(blocks).view(np.float64)).all():
            return SchemeError(
                f"{where} has at least {bad} values beyond the range of float32, the widest format of a checkpoint",
                hint="get a conversion of the model in another type",
            )
        return SourceError(
            f"{where} has at least {bad} weights that are NaN or infinite",
            hint="the file is damaged, or the model was broken before it was quantized: get another copy",
        )

    def _unpackable(self, entry: Entry, qtype: str, blocks: Bytes, bad: int) -> SourceError | SchemeError:
        """Why some groups of a packed entry cannot be written."""
        values = self._exact(qtype, blocks)
        if not np.isfinite(values).all():
            return self._not_finite(entry, qtype, blocks, bad)
        return SchemeError(
            f"{self._where(entry)}: the scales of {bad} groups of {entry.scheme} are beyond the range of {entry.dtype}",
            hint="use --dtype bfloat16" if entry.dtype == "float16" else "use --repack none",
        )

    def _where(self, entry: Entry) -> str:
        source = self._plan.header.sources[entry.sources[0]]
        return f"{self._plan.header.files[source.file]}: tensor {source.name} ({source.qtype})"

    def _exact(self, qtype: str, blocks: Bytes) -> "NDArray[np.float32]":
        """Blocks -> float32 values (n_blocks, block)."""
        kind = TYPES[qtype]
        blocks = blocks.reshape(-1, kind.nbytes)
        values = np.empty((len(blocks), kind.block), np.float32)
        self._backend.decode(qtype, "float32", blocks, values)
        return values

    def _room(self, nbytes: int) -> Bytes:
        """Memory for blocks; valid until the next call."""
        if len(self._blocks) < nbytes:
            self._blocks = self._backend.empty(nbytes)
        return self._blocks[:nbytes]

    def _stretch(self, source: Source, at: int, nbytes: int) -> Bytes:
        """Bytes [at, at + nbytes) of a source; valid until the next call."""
        if len(self._raw) < nbytes:
            self._raw = np.empty(nbytes, np.uint8)
        self._reader.read_into(self._raw[:nbytes], source, at)
        return self._raw[:nbytes]


def _at(chunk: Chunk, rows: Rows, qtype: str) -> "NDArray[np.int64]":
    """Which of a chunk's rows are rows of sources of a type."""
    numbers = rows.numbers(chunk.start, chunk.stop)
    found = np.zeros(len(numbers), np.bool_)
    for source, start, stop in zip(rows.sources, rows.starts, rows.starts[1:], strict=False):
        if source.qtype == qtype:
            found |= (numbers >= start) & (numbers < stop)
    return np.flatnonzero(found)


def _breaks(at: "NDArray[np.int64]") -> "NDArray[np.int64]":
    """Positions in `at` where a run of neighbouring numbers ends."""
    return np.flatnonzero(np.diff(at) != 1) + 1


def _runs(at: "NDArray[np.int64]") -> list[int]:
    """The first number of each run of neighbouring numbers."""
    return [int(at[0]), *(int(n) for n in at[_breaks(at)])]
