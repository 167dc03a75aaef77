"""Every value against gguf-py's dequantization of the source, an implementation we did not write.

What is not packed must be equal to the bit after rounding to its dtype; `losses` judges what is packed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gguf2st.plan import DTYPE_NBYTES, Entry, Plan
from gguf2st.quants.layout import INT64
from gguf2st.verification.checkpoint import DTYPES, Checkpoint, Tensor
from gguf2st.verification.losses import Judge, Loss
from gguf2st.verification.original import CHUNK_ELEMENTS, difference, expected_values
from gguf2st.verification.repeat import repeat_of


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
    judge = Judge(ckpt, plan, progress, sample, max_rel_rmse, repeat_of(ckpt, plan), result.losses)
    for entry in plan.entries:
        packed, tensor = ckpt.packed.get(entry.name), ckpt.tensors.get(entry.name)
        if packed is not None and packed.shape == entry.shape:
            result.compared += judge.judge(entry, packed)
        elif tensor is not None and tensor.shape == entry.shape and DTYPES.get(tensor.dtype) == entry.dtype:
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
        ckpt.problems.append(difference(entry, different, seen, first))
    return seen


def _compare(entry: Entry, tensor: Tensor, plan: Plan, sample: float) -> Iterator[tuple[int, int, int]]:
    """(first differing row or first row, values compared, values that differ) for runs of rows."""
    n_cols = entry.shape[-1] if entry.shape else 1
    row_nbytes = n_cols * DTYPE_NBYTES[entry.dtype]
    with open(tensor.file, "rb") as f:
        for at, expected in expected_values(entry, plan, max(1, CHUNK_ELEMENTS // n_cols), sample):
            bits = _cast_bits(expected.reshape(-1, n_cols), entry.dtype)
            f.seek(tensor.start + at * row_nbytes)
            written = np.frombuffer(f.read(bits.nbytes), bits.dtype).reshape(bits.shape)
            wrong = written != bits
            rows = np.flatnonzero(wrong.any(axis=1))
            yield at + (int(rows[0]) if len(rows) else 0), bits.size, int(wrong.sum())


def _cast_bits(values: Any, dtype: str) -> Any:
    """float32 -> the bits of `dtype`, rounded to nearest even; written apart from the kernels on purpose.

    Whole numbers are int64 already.
    """
    if dtype == INT64:
        return np.ascontiguousarray(values, np.int64)
    values = np.ascontiguousarray(values, np.float32)
    if dtype == "float32":
        return values.view(np.uint32)
    if dtype == "float16":
        return values.astype(np.float16).view(np.uint16)
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)).astype(np.uint16)
