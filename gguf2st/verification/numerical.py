"""Every value against gguf-py's dequantization of the source, an implementation we did not write."""

from collections.abc import Callable, Iterator
from typing import Any
from zlib import crc32

import gguf
import numpy as np

from gguf2st.ops import OPS
from gguf2st.plan import DTYPE_NBYTES, Entry, Plan
from gguf2st.quants.byteorder import to_native
from gguf2st.quants.layout import TYPES
from gguf2st.verification.checkpoint import FLOATS, Checkpoint, Tensor

CHUNK_ELEMENTS = 1 << 22
"""Elements compared at a time: bounds memory to a few tens of MB whatever the tensor's size."""
SAMPLED_ROWS = 64
"""Neighbouring rows that a sample looks at together."""


def compare_values(ckpt: Checkpoint, plan: Plan, progress: Callable[[int], None], sample: float = 1.0) -> int:
    """Compare values with the source; returns how many were compared.

    Args:
        ckpt: gets the differences as problems.
        plan: of the source.
        progress: told about the number of values just compared.
        sample: share of each tensor's rows to compare, its first and last among them. Which rows is decided by the
            tensor's name alone, so that two runs look at the same ones.
    """
    compared = 0
    for entry in plan.entries:
        tensor = ckpt.tensors.get(entry.name)
        if tensor is None or tensor.shape != entry.shape or FLOATS.get(tensor.dtype) != entry.dtype:
            continue  # compare_names has said so
        seen, different, first = 0, 0, 0
        for at, n, wrong in _compare(entry, tensor, plan, sample):
            seen += n
            progress(n)
            if wrong and not different:
                first = at
            different += wrong
        compared += seen
        if different:
            looked_at = f"{seen} values looked at" if seen < entry.n_elements else f"{entry.n_elements} values"
            ckpt.problems.append(
                f"{entry.name}: {different} of {looked_at} differ from the source, the first in row {first} of "
                f"{list(entry.shape)}"
            )
    return compared


def _compare(entry: Entry, tensor: Tensor, plan: Plan, sample: float) -> Iterator[tuple[int, int, int]]:
    """(first differing row or first row, values compared, values that differ) for runs of rows."""
    n_cols = entry.shape[-1] if entry.shape else 1
    row_nbytes = n_cols * DTYPE_NBYTES[entry.dtype]
    with open(tensor.file, "rb") as f:
        for at, expected in _expected(entry, plan, max(1, CHUNK_ELEMENTS // n_cols), sample):
            bits = _cast_bits(expected.reshape(-1, n_cols), entry.dtype)
            f.seek(tensor.start + at * row_nbytes)
            written = np.frombuffer(f.read(bits.nbytes), bits.dtype).reshape(bits.shape)
            wrong = written != bits
            rows = np.flatnonzero(wrong.any(axis=1))
            yield at + (int(rows[0]) if len(rows) else 0), bits.size, int(wrong.sum())


def _expected(entry: Entry, plan: Plan, step: int, sample: float) -> Iterator[tuple[int, Any]]:
    """(first row, float32 values) of the entry's output, in runs of at most `step` rows where its ops allow it."""
    sources = [plan.header.sources[s] for s in entry.sources]
    if not entry.packed or len(sources) != 1 or len(sources[0].shape) < 2:
        arrays: list[Any] = [_dequantize(plan, s.name, slice(None)).reshape(s.shape) for s in sources]
        for op, *arguments in entry.ops:
            arrays = [OPS[op].fn(*arrays, *arguments)]
        yield 0, arrays[0]
        return
    (source,) = sources
    order: Any = np.arange(source.n_rows).reshape(*source.shape[:-1], 1)
    for op, *arguments in entry.ops:
        order = OPS[op].fn(order, *arguments)
    order = order.reshape(-1)
    for start, stop in _runs(len(order), step, sample, entry.name):
        yield start, _dequantize(plan, source.name, order[start:stop])


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


def _dequantize(plan: Plan, name: str, rows: Any) -> Any:
    """float32 rows of a source by gguf-py: an implementation we did not write."""
    source = plan.header.sources[name]
    kind = TYPES[source.qtype]
    raw = np.memmap(plan.header.files[source.file], np.uint8, "r", source.offset, (source.nbytes or 0,))
    packed = raw.reshape(source.n_rows, -1)[rows]
    if plan.header.byteorder == "big":
        packed = to_native(source.qtype, packed.reshape(-1, kind.nbytes)).reshape(packed.shape)
    packed = np.ascontiguousarray(packed)
    their_type = gguf.GGMLQuantizationType.__members__.get(source.qtype)
    if their_type is None:
        return _by_reference(source.qtype, packed)
    try:
        return gguf.quants.dequantize(packed, their_type)
    except NotImplementedError:
        return _by_reference(source.qtype, packed)


def _by_reference(qtype: str, packed: Any) -> Any:
    """float32 rows by the torch reference, for types that gguf-py lacks: ours, but not what wrote the checkpoint."""
    import torch

    from gguf2st.quants.reference import dequantize

    blocks = torch.from_numpy(packed.reshape(-1, TYPES[qtype].nbytes))
    return dequantize(qtype, blocks).numpy().reshape(len(packed), -1)


def _cast_bits(values: Any, dtype: str) -> Any:
    """float32 -> the bits of `dtype`, rounded to nearest even; written apart from the kernels on purpose."""
    values = np.ascontiguousarray(values, np.float32)
    if dtype == "float32":
        return values.view(np.uint32)
    if dtype == "float16":
        return values.astype(np.float16).view(np.uint16)
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)).astype(np.uint16)
