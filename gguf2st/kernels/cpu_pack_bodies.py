"""What numba compiles for packing. `gguf2st.schemes.search` says what a search does and why.

Arrays are flat. `values` holds float32 weights in groups of 32; `packed` bytes; `scales` an array as `put` takes it,
one element per group. Kernels that search return how many groups have no finite candidate, and add the sums of squared
errors and of squared weights to `sums`.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba.extending import register_jitable

from gguf2st.kernels.cpu_access import Bytes, Table, Values, load_bf16, load_f16, load_f32, put, real, u8, u16, u64
from gguf2st.kernels.cpu_groups import fitted, largest, residual, rounded, smallest, squares, write4, write8

# Plain Python numbers are float64 to numba.
ZERO: Any = np.float32(0)
HALF: Any = np.float32(0.5)
ONE: Any = np.float32(1)
INFINITE: Any = np.float32(np.inf)
TINY: Any = np.float32(2.0**-126)
LOW8: Any = np.float32(-128)
HIGH8: Any = np.float32(127)
ZERO8: Any = np.float32(128)
MIDDLE4: Any = np.float32(7.5)
TOP4: Any = np.float32(15)
ROUND: Any = np.float32(3 << 22)
"""Added and taken off again, it leaves the nearest whole number of anything below 2^22."""

Sums = npt.NDArray[np.float64]


@register_jitable
def _inverse(scale: Any) -> Any:
    """1 / scale, or 0 where that is no normal float32."""
    return ONE / scale if abs(scale) >= TINY else ZERO


def symmetric8(
    values: Values, known: Values, trials: Bytes, keep: Table, packed: Bytes, scales: Values, sums: Sums
) -> int:
    """Best scale of each group for codes of -128 to 127; `known` scales, if there are any, come first."""
    n, bad = len(trials) >> 3, 0
    found = np.empty(2 * n, np.float32)
    for g in range(len(scales)):
        at = 32 * g
        power = squares(values, at)
        best, scale, inverse, search = INFINITE, ZERO, ZERO, True
        if len(known):
            s = rounded(scales, known[g])
            i = _inverse(known[g])
            error = residual(values, at, s, i, LOW8, HIGH8)
            if error < best:
                best, scale, inverse = error, s, i
            search = not best <= power * keep[0]
        if search:
            low, high = smallest(values, at), largest(values, at)
            size, sign = (high, -ONE) if high > -low else (-low, ONE)
            for c in range(n):  # a loop of its own, so that LLVM makes vectors of it
                s = sign * rounded(scales, size * load_f32(trials, 4 * c) + load_f32(trials, 4 * (n + c)))
                put(found, c, s)
                put(found, n + c, _inverse(s))
            for c in range(n):
                s, i = found[c], found[n + c]
                error = residual(values, at, s, i, LOW8, HIGH8)
                if error < best:
                    best, scale, inverse = error, s, i
            if best < INFINITE:
                s = rounded(scales, fitted(values, at, inverse, LOW8, HIGH8))
                i = _inverse(s)
                error = residual(values, at, s, i, LOW8, HIGH8)
                if error < best:
                    best, scale, inverse = error, s, i
        put(scales, g, scale + ZERO)  # never -0
        write8(values, at, inverse, LOW8, HIGH8, ZERO8, packed, at)
        bad += not best < INFINITE
        sums[0] += best
        sums[1] += power
    return bad


def asymmetric4(values: Values, trials: Bytes, packed: Bytes, scales: Values, zeros: Bytes, sums: Sums) -> int:
    """Best scale and zero point of each group for codes of 0 to 15; `zeros` gets a byte per group."""
    n, bad = len(trials) >> 3, 0
    found = np.empty(3 * n, np.float32)
    for g in range(len(scales)):
        at = 32 * g
        low, high = min(smallest(values, at), ZERO), max(largest(values, at), ZERO)
        best, scale, inverse, zero = INFINITE, ZERO, ZERO, ZERO
        for c in range(n):
            s = rounded(scales, (high - low) * load_f32(trials, 4 * c) + load_f32(trials, 4 * (n + c)))
            i = _inverse(s)
            put(found, c, s)
            put(found, n + c, i)
            put(found, 2 * n + c, min(max(MIDDLE4 - (high + low) * i * HALF + ROUND - ROUND, ZERO), TOP4))
        for c in range(n):
            s, i, z = found[c], found[n + c], found[2 * n + c]
            error = residual(values, at, s, i, -z, TOP4 - z)
            if error < best:
                best, scale, inverse, zero = error, s, i, z
        if best < INFINITE:
            s = rounded(scales, fitted(values, at, inverse, -zero, TOP4 - zero))
            i = _inverse(s)
            error = residual(values, at, s, i, -zero, TOP4 - zero)
            if error < best:
                best, scale, inverse = error, s, i
        put(scales, g, scale + ZERO)  # never -0
        write4(values, at, inverse, -zero, TOP4 - zero, zero, packed, at >> 1)
        zeros[g] = np.uint8(zero)
        bad += not best < INFINITE
        sums[0] += best
        sums[1] += squares(values, at)
    return bad


def take_scales(blocks: Bytes, nbytes: int, at: int, unit: int, scales: Values) -> int:
    """Move the float16 at byte `at` of every block to `scales`, and 1 into its place; for a `unit` of -1 negate both.

    Counts those that are NaN or infinite.
    """
    bad = 0
    sign = 0x80 if unit < 0 else 0
    for i in range(len(scales)):
        b = nbytes * i + at
        put(scales, i, load_f16(blocks, b) * real(unit))
        bad += u16(blocks, b) & 0x7C00 == 0x7C00
        blocks[b], blocks[b + 1] = 0, 0x3C | sign
    return bad


def code_bytes(values: Bytes, zero: int, codes: Bytes) -> None:
    """Whole numbers as bfloat16 -> bytes, `zero` added."""
    for i in range(len(codes)):
        codes[i] = np.int32(load_bf16(values, 2 * i)) + zero


def nibbles(codes: Bytes, packed: Bytes) -> None:
    """Bytes of 0 to 15 -> two to a byte, the first in the low nibble."""
    for i in range(len(packed)):
        pair = u16(codes, 2 * i)
        packed[i] = pair | pair >> 4


def scale_errors(codes: Bytes, zero: int, exact: Values, scales: Values, sums: Sums) -> None:
    """Add to `sums` what rounding `exact` scales to what `scales` holds costs, and the squares of the weights."""
    width = len(codes) // max(len(exact), 1)
    for g in range(len(exact)):
        power = 0
        for j in range(width):
            code = int(codes[width * g + j]) - zero
            power += code * code
        left = np.float64(exact[g]) - np.float64(rounded(scales, exact[g]))
        sums[0] += left * left * power
        sums[1] += np.float64(exact[g]) * np.float64(exact[g]) * power


def add_up(errors: Table, powers: Table, sums: Sums) -> None:
    """Add errors to the first of `sums` and powers to the second, one after the other."""
    for g in range(len(errors)):
        sums[0] += errors[g]
        sums[1] += powers[g]


@register_jitable
def _in_order(x: int) -> int:
    """The low nibbles of 8 bytes side by side: 64 -> 32 bits."""
    x &= 0x0F0F0F0F0F0F0F0F
    x = (x | x >> 4) & 0x00FF00FF00FF00FF
    x = (x | x >> 8) & 0x0000FFFF0000FFFF
    return (x | x >> 16) & 0xFFFFFFFF


@register_jitable
def _most(x: int) -> int:
    """The largest magnitude (three bits) of 16 E2M1 numbers."""
    most = 0
    for _ in range(16):
        most = max(most, x & 7)
        x >>= 4
    return most


def mxfp4(blocks: Bytes, packed: npt.NDArray[np.uint32], scales: Bytes) -> int:
    """Blocks e 1, qs 16 -> nibbles in order and E8M0 bytes. Counts groups beyond float32 or with a scale of 255.

    From 2^(e - 127) with e = 253 on, the largest magnitudes (6 for 4.0, 4 for 2.0) are no float32 any more. A scale of
    255, which is NaN outside ggml, does no harm to zeros: it becomes 0.
    """
    bad = 0
    for i in range(len(scales)):
        b = 17 * i
        e = u8(blocks, b)
        first, second = u64(blocks, b + 1), u64(blocks, b + 9)
        packed[4 * i], packed[4 * i + 1] = _in_order(first), _in_order(second)
        packed[4 * i + 2], packed[4 * i + 3] = _in_order(first >> 4), _in_order(second >> 4)
        if e >= 253:
            most = max(_most(first), _most(second))
            bad += most >= (6 if e == 253 else 4 if e == 254 else 1)
            if e == 255:
                e = 0
        scales[i] = e
    return bad


def nvfp4(blocks: Bytes, packed: npt.NDArray[np.uint32], scales: Bytes) -> int:
    """Blocks d 4, qs 32 -> nibbles in order and E4M3 bytes, four groups a block. Counts groups with a scale of 255.

    ggml ignores the sign of a scale, reads 0x7F as 0 and 0xFF as 480, which E4M3 does not have (both are NaN there).
    """
    bad = 0
    for i in range(len(scales)):
        block, g = i >> 2, i & 3
        codes = u64(blocks, 36 * block + 4 + 8 * g)
        packed[2 * i], packed[2 * i + 1] = _in_order(codes), _in_order(codes >> 4)
        d = u8(blocks, 36 * block + g)
        bad += d == 255 and _most(codes) > 0
        scales[i] = 0 if d & 127 == 127 else d & 127
    return bad
