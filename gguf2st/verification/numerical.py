"""Every value against gguf-py's dequantization of the source, an implementation we did not write."""

from collections.abc import Callable, Iterator
from typing import Any

import gguf
import numpy as np

from gguf2st.errors import SchemeError
from gguf2st.ops import OPS
from gguf2st.plan import DTYPE_NBYTES, Entry, Plan
from gguf2st.quants.byteorder import to_native
from gguf2st.quants.layout import TYPES
from gguf2st.verification.checkpoint import FLOATS, Checkpoint, Tensor

CHUNK_ELEMENTS = 1 << 22
"""Elements compared at a time: bounds memory to a few tens of MB whatever the tensor's size."""


def compare_values(ckpt: Checkpoint, plan: Plan, progress: Callable[[int], None]) -> int:
    """Compare every value with the source; returns how many were compared."""
    compared = 0
    for entry in plan.entries:
        tensor = ckpt.tensors.get(entry.name)
        if tensor is None or tensor.shape != entry.shape or FLOATS.get(tensor.dtype) != entry.dtype:
            continue  # compare_names has said so
        different, first = 0, 0
        for at, n, wrong in _compare(entry, tensor, plan):
            compared += n
            progress(n)
            if wrong and not different:
                first = at
            different += wrong
        if different:
            ckpt.problems.append(
                f"{entry.name}: {different} of {entry.n_elements} values differ from the source, the first in row "
                f"{first} of {list(entry.shape)}"
            )
    return compared


def _compare(entry: Entry, tensor: Tensor, plan: Plan) -> Iterator[tuple[int, int, int]]:
    """(first differing row or first row, values compared, values that differ) for runs of rows."""
    n_cols = entry.shape[-1] if entry.shape else 1
    step = max(1, CHUNK_ELEMENTS // n_cols)
    itemsize = DTYPE_NBYTES[entry.dtype]
    at = 0
    with open(tensor.file, "rb") as f:
        for expected in _expected(entry, plan, step):
            bits = _cast_bits(expected.reshape(-1, n_cols), entry.dtype)
            f.seek(tensor.start + at * n_cols * itemsize)
            written = np.frombuffer(f.read(bits.nbytes), bits.dtype).reshape(bits.shape)
            wrong = written != bits
            rows = np.flatnonzero(wrong.any(axis=1))
            yield at + (int(rows[0]) if len(rows) else 0), bits.size, int(wrong.sum())
            at += len(bits)


def _expected(entry: Entry, plan: Plan, step: int) -> Iterator[Any]:
    """float32 values of the entry's output, in runs of at most `step` rows where its ops allow it."""

    sources = [plan.header.sources[s] for s in entry.sources]
    if not entry.packed or len(sources) != 1 or len(sources[0].shape) < 2:
        arrays: list[Any] = [_dequantize(plan, s.name, slice(None)).reshape(s.shape) for s in sources]
        for op, *arguments in entry.ops:
            arrays = [OPS[op].fn(*arrays, *arguments)]
        yield arrays[0]
        return
    (source,) = sources
    order: Any = np.arange(source.n_rows).reshape(*source.shape[:-1], 1)
    for op, *arguments in entry.ops:
        order = OPS[op].fn(order, *arguments)
    order = order.reshape(-1)
    for at in range(0, len(order), step):
        yield _dequantize(plan, source.name, order[at : at + step])


def _dequantize(plan: Plan, name: str, rows: Any) -> Any:
    """float32 rows of a source by gguf-py: an implementation we did not write."""

    source = plan.header.sources[name]
    kind = TYPES[source.qtype]
    raw = np.memmap(plan.header.files[source.file], np.uint8, "r", source.offset, (source.nbytes or 0,))
    packed = raw.reshape(source.n_rows, -1)[rows]
    if plan.header.byteorder == "big":
        packed = to_native(source.qtype, packed.reshape(-1, kind.nbytes)).reshape(packed.shape)
    try:
        return gguf.quants.dequantize(np.ascontiguousarray(packed), gguf.GGMLQuantizationType[source.qtype])
    except (NotImplementedError, KeyError):
        raise SchemeError(f"{name}: gguf-py cannot decode {source.qtype}, so it cannot be compared") from None


def _cast_bits(values: Any, dtype: str) -> Any:
    """float32 -> the bits of `dtype`, rounded to nearest even; written apart from the kernels on purpose."""
    values = np.ascontiguousarray(values, np.float32)
    if dtype == "float32":
        return values.view(np.uint32)
    if dtype == "float16":
        return values.astype(np.float16).view(np.uint16)
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)).astype(np.uint16)
