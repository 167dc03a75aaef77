"""What the source says of an entry: its values by gguf-py, an implementation we did not write, and its blocks."""

from collections.abc import Iterator
from typing import Any
from zlib import crc32

import gguf
import numpy as np

from gguf2st.ops import OPS, SLICES, run_ops
from gguf2st.plan import Entry, Plan
from gguf2st.quants.byteorder import to_native
from gguf2st.quants.layout import TYPES
from gguf2st.quants.nibbles import apart

CHUNK_ELEMENTS = 1 << 22
"""Elements compared at a time: bounds memory to a few tens of MB whatever the tensor's size."""
SAMPLED_ROWS = 64
"""Neighbouring rows that a sample looks at together."""


def expected_values(entry: Entry, plan: Plan, step: int, sample: float) -> Iterator[tuple[int, Any]]:
    """(first row, values) of the entry's output, in runs of at most `step` rows where its ops allow it.

    The values are float32, or int64 where the entry has whole numbers.
    """
    sources = [plan.header.sources[s] for s in entry.sources]
    read = _whole if entry.whole else _dequantize
    if not entry.packed or len(sources) != 1 or len(sources[0].shape) < 2:
        arrays: list[Any] = [read(plan, s.name, slice(None)).reshape(s.shape) for s in sources]
        values = run_ops(entry.ops, arrays)
        yield 0, values if entry.whole else np.asarray(values, np.float32)
        return
    (source,) = sources
    order = row_order(entry, plan)
    for start, stop in _runs(len(order), step, sample, entry.name):
        yield start, read(plan, source.name, order[start:stop])


def _runs(n_rows: int, step: int, sample: float, name: str) -> Iterator[tuple[int, int]]:
    """Runs of rows: all of them, or a share spread at random over short runs."""
    if sample >= 1.0:
        yield from ((start, min(start + step, n_rows)) for start in range(0, n_rows, step))
        return
    length = min(step, SAMPLED_ROWS)
    starts = np.arange(0, n_rows, length)
    chosen = np.random.default_rng(crc32(name.encode())).random(len(starts)) < sample
    chosen[[0, -1]] = True
    yield from ((int(start), min(int(start) + length, n_rows)) for start in starts[chosen])


def row_order(entry: Entry, plan: Plan) -> Any:
    """The row of the sources, put one below the other, that each row of an entry is; its ops move whole rows."""
    arrays, n, ops = [], 0, list(entry.ops)
    for name in entry.sources:
        source = plan.header.sources[name]
        numbers = range(n, n + source.n_rows)
        while len(entry.sources) == 1 and ops and ops[0][0] in SLICES and len(source.shape) == 2:
            op, *arguments = ops.pop(0)
            numbers = OPS[op].fn(numbers, *arguments)  # a table may have more rows than their numbers find room
        shape = source.shape[:-1] if len(numbers) == source.n_rows else (len(numbers),)
        arrays.append(np.arange(numbers.start, numbers.stop).reshape(*shape, 1))
        n += source.n_rows
    return np.asarray(run_ops(ops, arrays)).reshape(-1)


def _dequantize(plan: Plan, name: str, rows: Any) -> Any:
    """float32 rows of a source by gguf-py, an implementation we did not write, times the scale beside it."""
    source = plan.header.sources[name]
    values = _decode(source.qtype, stored_rows(plan, name, rows))
    if scales := plan.scales.get(name):
        member = np.arange(source.n_rows)[rows] // (source.n_rows // len(scales))
        values = values * np.array(scales, np.float32)[member, None]
    return values


def _whole(plan: Plan, name: str, rows: Any) -> Any:
    """int64 rows of a source of whole numbers: `I32` is numpy's `i4`."""
    kind = TYPES[plan.header.sources[name].qtype]
    return stored_rows(plan, name, rows).view(f"i{kind.nbytes}").astype(np.int64)


def stored_rows(plan: Plan, name: str, rows: Any) -> Any:
    """Rows of a source as they lie in the file, (rows, bytes) uint8, but in the byte order and layout of its type."""
    source = plan.header.sources[name]
    raw = np.memmap(plan.header.files[source.file], np.uint8, "r", source.offset, (source.nbytes or 0,))
    packed = raw.reshape(source.n_rows, -1)[rows]
    if plan.header.byteorder == "big":
        packed = to_native(source.qtype, packed.reshape(-1, TYPES[source.qtype].nbytes)).reshape(packed.shape)
    if source.neighbours:
        packed = apart(packed.reshape(-1, TYPES[source.qtype].nbytes)).reshape(packed.shape)
    return np.ascontiguousarray(packed)


def _decode(qtype: str, packed: Any) -> Any:
    their_type = gguf.GGMLQuantizationType.__members__.get(qtype)
    if their_type is None:
        return _by_reference(qtype, packed)
    try:
        return gguf.quants.dequantize(packed, their_type)
    except NotImplementedError:  # what gguf-py raises for a type that it names and does not decode
        return _by_reference(qtype, packed)


def _by_reference(qtype: str, packed: Any) -> Any:
    """float32 rows by the torch reference, for types that gguf-py lacks: ours, but not what wrote the checkpoint."""
    import torch

    from gguf2st.quants.reference import dequantize

    blocks = torch.from_numpy(packed.reshape(-1, TYPES[qtype].nbytes))
    return dequantize(qtype, blocks).numpy().reshape(len(packed), -1)


def difference(entry: Entry, different: int, seen: int, first: int) -> str:
    """That some values of an entry are not the source's."""
    looked_at = f"{seen} values looked at" if seen < entry.n_elements else f"{entry.n_elements} values"
    return (
        f"{entry.name}: {different} of {looked_at} differ from the source, the first in row {first} of "
        f"{list(entry.shape)}"
    )
