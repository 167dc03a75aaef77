"""How far packed weights are from the source: unpacked by code of their own (`unpack`), and compared in float32.

Where a format holds the numbers of the source's type, all must be equal. Else three things bound the loss:

1. of a weight, the relative rmse: sqrt(sum of squared differences / sum of squares);
2. of each group of weights that share a scale, the greatest difference: some steps of that scale, if it was chosen for
   their range. A weight of a million groups hides one that is wrong in its rmse, but not here;
3. where gguf2st.json says that this version made the checkpoint, packing the source again gives the same bytes.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gguf2st.plan import Entry, Plan
from gguf2st.verification.checkpoint import Checkpoint, Packed
from gguf2st.verification.formats import Format
from gguf2st.verification.original import CHUNK_ELEMENTS, difference, expected_values
from gguf2st.verification.repeat import Repeat
from gguf2st.verification.unpack import rows_of, unpack

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
"""What rounding scales to bfloat16 costs at most, relative to a value."""

ROUNDED_PRODUCT = 2.0**-22
"""What NVFP4 costs at most with a scale of the whole weight: its inverse is a float32 number, and so is each of three
products. Nothing where it is a power of two."""

LOSS_OF_8_BITS = 0.01
"""Allowed relative rmse of 8 bits; each bit less doubles it. Measured for groups of 32: 0.0053 with 8 bits, 0.07 to
0.11 with 4. A wrong scale, another weight or another order of rows gives 0.5 and more."""

STEPS = 5
"""Steps that a value may be away, where a step is the range of its group divided by the codes. Rounding costs half of
one; scales that clip up to a quarter of the range, which pays off at 4 bits, cost 4."""

SHARE = 0.75
"""Of the greatest value of a group, what no value of it may be away: with a scale of 0 the greatest is 1 away. Formats
of 3 bits and less have steps as wide as that."""

SHARE_OF_FP4 = 0.5
"""The same for FP4, whose greatest codes are 4 and 6: a third is between them, a quarter is clipped by scales that are
powers of two."""

_SMALLEST: Mapping[str, float] = {"F16": 2.0**-24, "BF16": 2.0**-126, "F32": 2.0**-126, "F8_E4M3": 2.0**-9}
"""The smallest scales: of smaller groups a code may be away as if a step were as wide."""


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
class Judge:
    """Compares packed weights with the source.

    Attributes:
        ckpt: gets the differences as problems.
        plan: of the source.
        progress: told about the number of values just compared.
        sample: share of each weight's rows that are looked at.
        max_rel_rmse: allowed for weights that cannot be equal; None for what their number of bits can reach.
        repeat: packs the source again where that must give the same bytes; None where another program packed.
        losses: by the name of a format.
    """

    ckpt: Checkpoint
    plan: Plan
    progress: Callable[[int], None]
    sample: float
    max_rel_rmse: float | None
    repeat: Repeat | None
    losses: dict[str, Loss]

    def judge(self, entry: Entry, packed: Packed) -> int:
        """Compare a packed weight; how many values were looked at."""
        n_cols = entry.shape[-1]
        qtypes = {self.plan.header.sources[s].qtype for s in entry.sources}
        scaled = any(not _power_of_two(x) for s in entry.sources for x in self.plan.scales.get(s, ()))
        each = [_kept(q, packed, scaled) for q in qtypes]
        kept = None if None in each else max(x for x in each if x is not None)
        again = self.repeat.scheme(entry, packed) if self.repeat and kept is None else None
        seen, different, first, error, power = 0, 0, 0, 0.0, 0.0
        groups: list[int] = []
        changed: list[int] = []
        step = max(32, CHUNK_ELEMENTS // n_cols // 32 * 32)  # whole words of zero points
        for at, expected in expected_values(entry, self.plan, step, self.sample):
            rows = expected.reshape(-1, n_cols)
            written = unpack(packed, at, at + len(rows))
            wrong = written != rows  # -0.0 equals 0.0: ggml's FP4 has no negative zero
            if not different and (where := np.flatnonzero(wrong.any(axis=1))).size:
                first = at + int(where[0])
            different += int(wrong.sum())
            if kept != 0.0:
                groups += (at + _rows_beyond(packed, written, rows, kept)).tolist()
            if again and self.repeat:
                changed += (at + self.repeat.rows_that_differ(again, entry, packed, at, at + len(rows))).tolist()
            error += float(np.square(written - rows, dtype=np.float64).sum())
            power += float(np.square(rows, dtype=np.float64).sum())
            seen += rows.size
            self.progress(rows.size)
        rmse = math.sqrt(error / power) if power else math.inf if error else 0.0
        allowed = self._allowed(packed.format) if kept is None else kept
        self._count(entry, packed, rmse if different else None, allowed)
        source = ", ".join(sorted(qtypes))
        if different and kept == 0.0:
            said = f"{difference(entry, different, seen, first)}; {packed.format} could hold them exactly"
        elif not rmse <= allowed:
            said = (
                f"{entry.name}: as {packed.format} its relative rmse from the source ({source}) is {rmse:.3g}; allowed "
                f"are {allowed:.3g}"
            )
        elif groups:
            said = (
                f"{entry.name}: {len(groups)} rows have groups that are further from the source ({source}) than "
                f"{packed.format} can be, the first is row {groups[0]} of {list(entry.shape)}"
            )
        elif changed and self.repeat:
            said = (
                f"{entry.name}: {len(changed)} rows are not what gguf2st {self.repeat.version}, which made this "
                f"checkpoint, packs the source ({source}) into, the first is row {changed[0]} of {list(entry.shape)}"
            )
        else:
            return seen
        self.ckpt.problems.append(said)
        return seen

    def _count(self, entry: Entry, packed: Packed, rmse: float | None, allowed: float) -> None:
        """Keep the loss of a weight; None where it has none."""
        loss = self.losses.setdefault(str(packed.format), Loss(str(packed.format)))
        loss.weights += 1
        if rmse is None:
            loss.equal += 1
        elif not rmse <= loss.rmse:
            loss.rmse, loss.worst, loss.allowed = rmse, entry.name, allowed

    def _allowed(self, kept: Format) -> float:
        """The relative rmse that a format may have where it cannot hold the source's numbers."""
        if self.max_rel_rmse is not None:
            return self.max_rel_rmse
        return LOSS_OF_8_BITS * 2.0 ** (8 - kept.bits)


def _kept(qtype: str, packed: Packed, scaled: bool) -> float | None:
    """The relative difference of values that a format may have from a type whose numbers it holds; None: it does not.

    `scaled`: by a number that is no power of two.
    """
    if not holds(packed.format, qtype):
        return None
    if packed.format.layout == "int":
        return ROUNDED_SCALE if packed.parts["weight_scale"].dtype == "BF16" else 0.0
    return ROUNDED_PRODUCT if scaled else 0.0


def _power_of_two(x: float) -> bool:
    return math.frexp(abs(x))[0] == 0.5


def _rows_beyond(packed: Packed, written: Any, rows: Any, kept: float | None) -> Any:
    """Rows (n, columns) that have a group further from the source than the format's steps for its range allow."""
    form = packed.format
    if form.layout == "gpt-oss":  # its groups lie across these rows
        return np.empty(0, int)
    shape = (len(rows), -1, form.group or rows.shape[1])
    source = rows.reshape(shape)
    away = np.abs(written.reshape(shape) - source).max(axis=2)
    high, low = source.max(axis=2), source.min(axis=2)
    greatest = np.maximum(high, -low)
    if kept is not None:
        allowed = 2 * kept * greatest
    elif form.layout == "int":
        span = 2 * greatest if form.symmetric else np.maximum(high, 0) - np.minimum(low, 0)
        smallest = _SMALLEST[packed.parts["weight_scale"].dtype] * 2 ** (form.bits - 1)
        allowed = np.minimum(STEPS * span / (2**form.bits - 1), SHARE * greatest) + smallest
    else:
        allowed = SHARE_OF_FP4 * greatest
        if form.layout == "nvfp4":
            divisor = rows_of(packed.parts["weight_global_scale"], 0, 1)
            allowed = allowed + 6 * _SMALLEST["F8_E4M3"] / divisor.reshape(1)
    return np.flatnonzero(~(away <= allowed).all(axis=1))


def holds(kept: Format, qtype: str) -> bool:
    """Whether a packed format has a place for every number of a ggml type."""
    if kept.layout != "int" or qtype not in LATTICES:
        return kept.layout in SAME.get(qtype, ())
    bits, group = LATTICES[qtype]
    return kept.symmetric and kept.bits >= bits and kept.group > 0 and group % kept.group == 0
