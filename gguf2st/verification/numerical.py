"""Every value against gguf-py's dequantization of the source, an implementation we did not write.

What is not packed must be equal to the bit after rounding to its dtype. Packed weights are unpacked by code of their
own (`unpack`) and compared in float32: equal where their format holds the numbers of the source's type, else within a
bound on the relative rmse, sqrt(sum of squared differences / sum of squares).
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import gguf
import numpy as np

from gguf2st.ops import OPS
from gguf2st.plan import DTYPE_NBYTES, Entry, Plan
from gguf2st.quants.byteorder import to_native
from gguf2st.quants.layout import TYPES
from gguf2st.verification.checkpoint import FLOATS, Checkpoint, Packed, Tensor
from gguf2st.verification.formats import Format
from gguf2st.verification.unpack import unpack

CHUNK_ELEMENTS = 1 << 22
"""Elements compared at a time: bounds memory to a few tens of MB whatever the tensor's size."""
SAMPLED_ROWS = 64
"""Neighbouring rows that a sample looks at together."""


LATTICES: Mapping[str, tuple[int, int]] = {
    "Q4_0": (4, 32),
    "Q5_0": (5, 32),
    "Q8_0": (8, 32),
    "Q8_1": (8, 32),
    "Q3_K": (8, 256),  # a signed scale of 6 bits times a code of 3
    "IQ4_NL": (8, 32),
    "TQ1_0": (2, 256),
    "TQ2_0": (3, 256),  # its fourth code is 2
    "Q1_0": (2, 128),
    "Q2_0": (3, 64),
}
"""ggml types whose values are scale * integer: bits of the integers, and values that share a float16 scale."""

SAME = {"MXFP4": ("mxfp4", "gpt-oss"), "NVFP4": ("nvfp4",)}
"""ggml types whose values the FP4 layouts hold."""

ROUNDED_SCALE = 2.0**-9
"""What rounding scales to bfloat16 costs at most."""

LOSS_OF_8_BITS = 0.01
"""Allowed relative rmse of 8 bits; each bit less doubles it. Measured for groups of 32: 0.0053 with 8 bits, 0.07 to
0.11 with 4. A wrong scale, another weight or another order of rows gives 0.5 and more."""


@dataclass
class Loss:
    """How the weights of one format compare with the source.

    Attributes:
        format: as `str(Format)`.
        weights, equal: how many there are, and how many of them hold the source's numbers.
        rmse, worst: the greatest relative rmse and the weight that has it.
        allowed: for that weight.
    """

    format: str
    weights: int = 0
    equal: int = 0
    rmse: float = 0.0
    worst: str = ""
    allowed: float = 0.0

    def __str__(self) -> str:
        parts = [f"{self.equal} equal to the source"] if self.equal else []
        if inexact := self.weights - self.equal:
            parts.append(
                f"{inexact} within a relative rmse of {self.rmse:.2g} (allowed {self.allowed:.2g}; worst {self.worst})"
            )
        return f"{self.format}: {self.weights} weights, {', '.join(parts)}"


@dataclass
class Comparison:
    """What comparing values showed: their number, and the losses of each packed format."""

    compared: int = 0
    losses: dict[str, Loss] = field(default_factory=dict)


def compare_values(
    ckpt: Checkpoint,
    plan: Plan,
    progress: Callable[[int], None],
    sample: float = 1.0,
    max_rel_rmse: float | None = None,
) -> Comparison:
    """Compare values with the source.

    Args:
        ckpt: gets the differences as problems.
        plan: of the source.
        progress: told about the number of values just compared.
        sample: share of each tensor's rows to compare, its first and last among them. Which rows is decided by the
            tensor's name alone, so that two runs look at the same ones.
        max_rel_rmse: allowed for packed weights that cannot be equal; by default what their number of bits can reach.
    """
    result = Comparison()
    for entry in plan.entries:
        packed, tensor = ckpt.packed.get(entry.name), ckpt.tensors.get(entry.name)
        if packed is not None and packed.shape == entry.shape:
            result.compared += _judge_packed(ckpt, entry, packed, plan, progress, sample, max_rel_rmse, result.losses)
        elif tensor is not None and tensor.shape == entry.shape and FLOATS.get(tensor.dtype) == entry.dtype:
            result.compared += _judge_dense(ckpt, entry, tensor, plan, progress, sample)
        # else: compare_names has said so
    return result


def _judge_dense(
    ckpt: Checkpoint, entry: Entry, tensor: Tensor, plan: Plan, progress: Callable[[int], None], sample: float
) -> int:
    """Compare a tensor that is not packed; how many values were looked at."""
    seen, different, first = 0, 0, 0
    for at, n, wrong in _compare(entry, tensor, plan, sample):
        seen += n
        progress(n)
        if wrong and not different:
            first = at
        different += wrong
    if different:
        ckpt.problems.append(_difference(entry, different, seen, first))
    return seen


def _difference(entry: Entry, different: int, seen: int, first: int) -> str:
    looked_at = f"{seen} values looked at" if seen < entry.n_elements else f"{entry.n_elements} values"
    return (
        f"{entry.name}: {different} of {looked_at} differ from the source, the first in row {first} of "
        f"{list(entry.shape)}"
    )


def _judge_packed(
    ckpt: Checkpoint,
    entry: Entry,
    packed: Packed,
    plan: Plan,
    progress: Callable[[int], None],
    sample: float,
    max_rel_rmse: float | None,
    losses: dict[str, Loss],
) -> int:
    """Compare a packed weight; how many values were looked at."""
    n_cols = entry.shape[-1]
    seen, different, first, error, power = 0, 0, 0, 0.0, 0.0
    for at, expected in _expected(entry, plan, max(1, CHUNK_ELEMENTS // n_cols), sample):
        rows = expected.reshape(-1, n_cols)
        written = unpack(packed, at, at + len(rows))
        wrong = written != rows  # -0.0 equals 0.0: ggml's FP4 has no negative zero
        if not different and (where := np.flatnonzero(wrong.any(axis=1))).size:
            first = at + int(where[0])
        different += int(wrong.sum())
        error += float(np.square(written - rows, dtype=np.float64).sum())
        power += float(np.square(rows, dtype=np.float64).sum())
        seen += rows.size
        progress(rows.size)
    rmse = math.sqrt(error / power) if power else math.inf if error else 0.0
    qtypes = {plan.header.sources[s].qtype for s in entry.sources}
    allowed = max(_allowed(q, packed, max_rel_rmse) for q in qtypes)
    loss = losses.setdefault(str(packed.format), Loss(str(packed.format)))
    loss.weights += 1
    if not different:
        loss.equal += 1
    elif not rmse <= loss.rmse:
        loss.rmse, loss.worst, loss.allowed = rmse, entry.name, allowed
    if different and not allowed:
        ckpt.problems.append(f"{_difference(entry, different, seen, first)}; {packed.format} could hold them exactly")
    elif not rmse <= allowed:
        ckpt.problems.append(
            f"{entry.name}: as {packed.format} its relative rmse from the source ({', '.join(sorted(qtypes))}) is "
            f"{rmse:.3g}; allowed are {allowed:.3g}"
        )
    return seen


def _allowed(qtype: str, packed: Packed, max_rel_rmse: float | None) -> float:
    """The relative rmse that a format may have from a source of some type; 0 where it can hold the numbers."""
    kept = packed.format
    if holds(kept, qtype):
        rounded = kept.layout == "int" and packed.parts["weight_scale"].dtype == "BF16"
        return ROUNDED_SCALE if rounded else 0.0
    if max_rel_rmse is not None:
        return max_rel_rmse
    return LOSS_OF_8_BITS * 2.0 ** (8 - kept.bits)


def holds(kept: Format, qtype: str) -> bool:
    """Whether a packed format has a place for every number of a ggml type."""
    if kept.layout != "int" or qtype not in LATTICES:
        return kept.layout in SAME.get(qtype, ())
    bits, group = LATTICES[qtype]
    return kept.symmetric and kept.bits >= bits and kept.group > 0 and group % kept.group == 0


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
        yield 0, np.asarray(arrays[0], np.float32)
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
    """float32 rows of a source by gguf-py, an implementation we did not write, times the scale beside it."""
    source = plan.header.sources[name]
    kind = TYPES[source.qtype]
    raw = np.memmap(plan.header.files[source.file], np.uint8, "r", source.offset, (source.nbytes or 0,))
    packed = raw.reshape(source.n_rows, -1)[rows]
    if plan.header.byteorder == "big":
        packed = to_native(source.qtype, packed.reshape(-1, kind.nbytes)).reshape(packed.shape)
    values = _decode(source.qtype, np.ascontiguousarray(packed))
    if scales := plan.scales.get(name):
        member = np.arange(source.n_rows)[rows] // (source.n_rows // len(scales))
        values = values * np.array(scales, np.float32)[member, None]
    return values


def _decode(qtype: str, packed: Any) -> Any:
    their_type = gguf.GGMLQuantizationType.__members__.get(qtype)
    if their_type is None:
        return _by_reference(qtype, packed)
    try:
        return gguf.quants.dequantize(packed, their_type)
    except NotImplementedError:
        return _by_reference(qtype, packed)


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
