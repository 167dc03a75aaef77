"""Packing on the CPU: numba kernels that release the GIL. They take a type's decoder and know nothing else of it.

A type whose weights are whole numbers times one float16 per block is decoded with that float16 set to one: the values
are its codes then. Any other type is decoded to float32, a piece at a time, and codes are searched for the values.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gguf2st.kernels import cpu
from gguf2st.kernels import cpu_pack_bodies as bodies
from gguf2st.kernels.cpu_access import BF16_ARRAY, F16_ARRAY
from gguf2st.kernels.cpu_bodies import BODIES, Body
from gguf2st.kernels.cpu_cache import run
from gguf2st.kernels.cpu_scales import SCALES
from gguf2st.quants.codebooks import table
from gguf2st.quants.layout import TYPES
from gguf2st.schemes.base import Packed
from gguf2st.schemes.lattice import LATTICES, scale_offset
from gguf2st.schemes.search import KEEP, KEPT, PEAK_TRIALS, RANGE_TRIALS

if TYPE_CHECKING:
    from gguf2st.schemes.fp4 import Fp4
    from gguf2st.schemes.integers import Integers

Bytes = npt.NDArray[np.uint8]

GROUP = 32
PIECE = 1 << 17
"""Weights that are decoded to float32 at a time: large against the cost of a call, small against a core's cache."""

_SCALES: dict[str, type[np.generic]] = {"float32": np.float32, "bfloat16": BF16_ARRAY, "float16": F16_ARRAY}
"""dtype of scales -> elements that kernels see."""

_PEAK_TRIALS = np.array(PEAK_TRIALS, np.float32).T.reshape(-1).view(np.uint8)
_RANGE_TRIALS = np.array(RANGE_TRIALS, np.float32).T.reshape(-1).view(np.uint8)
_KEEP = np.array([KEEP], np.float32)


def integers(scheme: "Integers", qtype: str, blocks: Bytes, n_rows: int, dtype: str) -> Packed:
    """`Integers.pack` on the CPU."""
    if scheme.lattice(qtype) is not None:
        return _exact(scheme, qtype, blocks, n_rows, dtype)
    return _searched(scheme, qtype, blocks, n_rows, dtype)


def _exact(scheme: "Integers", qtype: str, blocks: Bytes, n_rows: int, dtype: str) -> Packed:
    """`d` becomes the scale, and what the decoder gives for a `d` of one the codes."""
    layout, lattice = TYPES[qtype], LATTICES[qtype]
    zero = 1 << scheme.bits - 1
    packed = np.empty(len(blocks) * layout.block * scheme.bits // 8, np.uint8)
    scales = np.empty(len(blocks), _SCALES[dtype])
    step = PIECE // layout.block
    room = min(step, len(blocks))
    ones = np.empty((room, layout.nbytes), np.uint8)
    values = np.empty(room * layout.block, BF16_ARRAY)
    apart = np.empty(0 if scheme.bits == 8 else len(values), np.uint8)
    exact = np.empty(room, np.float32)
    sums, bad = np.zeros(2), 0
    for first in range(0, len(blocks), step):
        n = min(step, len(blocks) - first)
        size = n * layout.block
        np.copyto(ones[:n], blocks[first : first + n])
        bad += run(
            bodies.take_scales, ones[:n].reshape(-1), layout.nbytes, scale_offset(qtype), lattice.unit, exact[:n]
        )
        _decode(BODIES[qtype], ones[:n], values[:size])
        out = packed[first * layout.block * scheme.bits // 8 :][: size * scheme.bits // 8]
        codes = out if scheme.bits == 8 else apart[:size]
        run(bodies.code_bytes, values[:size].view(np.uint8), zero, codes)
        if scheme.bits == 4:
            run(bodies.nibbles, codes, out)
        run(BODIES["F32"].function, exact[:n].view(np.uint8), scales[first : first + n])
        if dtype == "bfloat16":
            run(bodies.scale_errors, codes, zero, exact[:n], scales, sums)
    repeats = layout.block // scheme.group
    if repeats > 1:
        scales = np.repeat(scales, repeats)
    parts = {"_packed": packed, "_scale": scales.view(np.uint8)}
    if not scheme.symmetric:
        parts["_zero_point"] = down(np.full(len(scales), zero, np.uint8), n_rows)
    return Packed(parts, float(sums[0]), float(sums[1]), int(bad) * repeats)


def _searched(scheme: "Integers", qtype: str, blocks: Bytes, n_rows: int, dtype: str) -> Packed:
    layout = TYPES[qtype]
    n_groups = len(blocks) * layout.block // GROUP
    group_nbytes = GROUP * scheme.bits // 8
    keeps = scheme.symmetric and qtype in KEPT
    packed = np.empty(n_groups * group_nbytes, np.uint8)
    scales = np.empty(n_groups, _SCALES[dtype])
    zeros = np.empty(0 if scheme.symmetric else n_groups, np.uint8)
    step = PIECE // layout.block
    values = np.empty(min(step, len(blocks)) * layout.block, np.float32)
    known = np.empty(len(values) // GROUP if keeps else 0, np.float32)
    sums, bad = np.zeros(2), 0
    for first in range(0, len(blocks), step):
        piece = blocks[first : first + step]
        weights = values[: len(piece) * layout.block]
        cpu.dequantize(qtype, "float32", piece, weights.reshape(-1, layout.block))
        start = first * layout.block // GROUP
        stop = start + len(weights) // GROUP
        codes = packed[start * group_nbytes : stop * group_nbytes]
        if scheme.symmetric:
            kept = known[: stop - start]
            if keeps:
                known_scales(qtype, piece, kept)
            bad += run(bodies.symmetric8, weights, kept, _PEAK_TRIALS, _KEEP, codes, scales[start:stop], sums)
        else:
            bad += run(bodies.asymmetric4, weights, _RANGE_TRIALS, codes, scales[start:stop], zeros[start:stop], sums)
    parts = {"_packed": packed, "_scale": scales.view(np.uint8)}
    if not scheme.symmetric:
        parts["_zero_point"] = down(zeros, n_rows)
    return Packed(parts, float(sums[0]), float(sums[1]), int(bad))


def fp4(scheme: "Fp4", qtype: str, blocks: Bytes, n_rows: int) -> Packed:
    """`Fp4.pack` on the CPU."""
    n = len(blocks) * TYPES[qtype].block
    packed = np.empty(n // 8, np.uint32)
    scales = np.empty(n // scheme.group, np.uint8)
    kernel = {"MXFP4": bodies.mxfp4, "NVFP4": bodies.nvfp4}[qtype]
    bad = run(kernel, blocks.reshape(-1), packed, scales)
    return Packed({scheme.codes: packed.view(np.uint8), scheme.scales: scales}, 0.0, 0.0, int(bad))


def known_scales(qtype: str, blocks: Bytes, out: npt.NDArray[np.float32]) -> None:
    """The scale of every 32 weights of a type of `KEPT`, row after row, flat."""
    _decode(SCALES[qtype], blocks, out)


def added_up(errors: npt.NDArray[Any], powers: npt.NDArray[Any]) -> tuple[float, float]:
    """Their sums, added up one after the other in float64, as the kernels that search do it."""
    found = np.zeros(2)
    run(bodies.add_up, errors, powers, found)
    return float(found[0]), float(found[1])


def _decode(body: Body, blocks: Bytes, out: npt.NDArray[Any]) -> None:
    run(body.function, blocks.reshape(-1), out, *(table(name) for name in body.tables))


def down(zeros: Bytes, n_rows: int) -> Bytes:
    """Zero points of 4 bits, a byte each, row after row -> words of 8 rows, the first in the lowest bits."""
    rows = zeros.reshape(n_rows, -1)
    if n_rows % 8:
        rows = np.concatenate([rows, np.zeros((-n_rows % 8, rows.shape[1]), np.uint8)])
    pairs = rows[0::2] | rows[1::2] << 4
    return np.ascontiguousarray(pairs.reshape(-1, 4, rows.shape[1]).swapaxes(1, 2)).reshape(-1)
