"""Which rows of the sources an entry's rows are, and which of them are worked on together."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gguf2st.header import Header, Source
from gguf2st.ops import OPS, SLICES, run_ops
from gguf2st.plan import DENSE, DTYPE_NBYTES, Entry
from gguf2st.quants.layout import TYPES
from gguf2st.schemes import SCHEMES


@dataclass(frozen=True, slots=True)
class Rows:
    """Which source rows an entry's rows are. The rows of several sources are numbered one source after the other.

    Attributes:
        first, order: row r is number `first + r`, or `first + order[r]` where rows are reordered.
        starts: number of the first row of each source, then of all rows.
        n_cols: of every source and of the entry.
    """

    sources: tuple[Source, ...]
    first: int
    order: NDArray[np.int64] | None
    starts: tuple[int, ...]
    n_rows: int
    n_cols: int

    @property
    def qtypes(self) -> tuple[str, ...]:
        """The different types of the sources."""
        return tuple(dict.fromkeys(s.qtype for s in self.sources))

    def numbers(self, start: int, stop: int) -> NDArray[np.int64]:
        """The numbers of the entry's rows [start, stop)."""
        if self.order is None:
            return np.arange(self.first + start, self.first + stop, dtype=np.int64)
        return self.first + self.order[start:stop]

    def row_nbytes(self, source: Source) -> int:
        """Bytes of a row of a source."""
        kind = TYPES[source.qtype]
        return self.n_cols // kind.block * kind.nbytes


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows [start, stop) of an entry's output; the whole entry when `rows` is None."""

    entry: Entry
    rows: Rows | None
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """Of the rows when dequantized."""
        n_cols = self.rows.n_cols if self.rows else 0
        return (self.stop - self.start) * n_cols * DTYPE_NBYTES[self.entry.dtype]


def rows_of(entry: Entry, header: Header) -> Rows | None:
    """How the entry's rows follow from those of its sources, or None when it must be decoded whole."""
    sources = tuple(header.sources[s] for s in entry.sources)
    several = entry.scheme == DENSE and len({s.qtype for s in sources}) > 1
    if not sources or several or not all(OPS[op].packed for op, *_ in entry.row_ops):
        return None
    shapes = [_matrix(s, bool(entry.row_ops)) for s in sources]
    if None in shapes:
        return None  # reordering the elements of a quantized vector would cut blocks
    starts = np.cumsum([0, *(int(np.prod(shape[:-1])) for shape in shapes if shape)])
    ops = list(entry.row_ops)
    first, lead = 0, list(shapes[0] or ())
    while len(sources) == 1 and ops and ops[0][0] == "take" and len(lead) > 2:
        # A stack's member is an offset, not a list of rows.
        first += ops.pop(0)[1] * int(np.prod(lead[1:-1]))
        lead.pop(0)
        shapes = [tuple(lead)]
    while len(sources) == 1 and ops and ops[0][0] in SLICES and len(lead) == 2:
        op, *arguments = ops.pop(0)
        kept = OPS[op].fn(range(lead[0]), *arguments)  # a table may have more rows than their numbers find room
        first, lead[0] = first + kept.start, len(kept)
        shapes = [tuple(lead)]
    order, n_rows = None, int(starts[-1]) if len(sources) > 1 else int(np.prod(lead[:-1]))
    if ops:
        arrays: list[Any] = [
            np.arange(begin, begin + np.prod(shape[:-1]), dtype=np.int64).reshape(*shape[:-1], 1)
            for shape, begin in zip(shapes, starts, strict=False)
            if shape
        ]
        order = np.ascontiguousarray(run_ops(ops, arrays)).reshape(-1)
        n_rows = len(order)
    return Rows(sources, first, order, tuple(map(int, starts)), n_rows, lead[-1])


def _matrix(source: Source, reordered: bool) -> tuple[int, ...] | None:
    """A source's shape with two axes at least, the last of them within a row; None where that would cut blocks."""
    shape = source.shape or (1,)
    if len(shape) > 1:
        return shape
    if not reordered:
        return (1, shape[0])
    # The elements of a vector are its rows when ops move them.
    return (shape[0], 1) if TYPES[source.qtype].block == 1 else None


def chunks_of(entry: Entry, header: Header, nbytes: int) -> Iterator[Chunk]:
    """An entry in runs of rows that are about `nbytes` when dequantized, or in one piece."""
    rows = rows_of(entry, header)
    if rows is None:
        yield Chunk(entry, None, 0, 0)
        return
    step = max(1, nbytes // (rows.n_cols * DTYPE_NBYTES[entry.dtype]))
    if entry.scheme != DENSE:
        multiple = SCHEMES[entry.scheme].row_step
        step = max(multiple, step // multiple * multiple)
    for start in range(0, rows.n_rows, step):
        yield Chunk(entry, rows, start, min(start + step, rows.n_rows))


def batches_of(chunks: Iterator[Chunk], nbytes: int) -> Iterator[list[Chunk]]:
    """Chunks that one call can decode or pack: of one ggml type, scheme and dtype, together `nbytes` or just above.

    An entry in one piece, of several types, or whole numbers, are a batch by themselves.
    """
    waiting: dict[tuple[str, str, str], list[Chunk]] = {}
    sizes: Counter[tuple[str, str, str]] = Counter()
    for chunk in chunks:
        if chunk.rows is None or len(chunk.rows.qtypes) > 1 or chunk.entry.whole:
            yield [chunk]
            continue
        kind = chunk.rows.sources[0].qtype, chunk.entry.scheme, chunk.entry.dtype
        waiting.setdefault(kind, []).append(chunk)
        sizes[kind] += chunk.nbytes
        if sizes[kind] >= nbytes:
            sizes[kind] = 0
            yield waiting.pop(kind)
    yield from waiting.values()
