"""Kernel bodies of the types that look up tables, which come as extra arguments (see `gguf2st.quants.codebooks`)."""

from typing import Any

import numpy as np
from numba.extending import register_jitable

from gguf2st.kernels.cpu_access import (
    Bytes,
    Table,
    Values,
    load_f16,
    load_f16_nibbles,
    load_f32,
    put,
    real,
    stored,
    u8,
    u8x4,
    u8x8,
    u8x16,
    u16,
    u32,
    u64,
)
from gguf2st.kernels.cpu_bodies import body
from gguf2st.kernels.cpu_lanes import bits32, first, join, last, negated, pick

# Plain Python numbers are float64 to numba: they would widen the arithmetic around them.
HALF: Any = np.float32(0.5)
QUARTER: Any = np.float32(0.25)
EIGHTH: Any = np.float32(0.125)


@register_jitable
def _even(signs: Any) -> Any:
    """Four bytes of 7 sign bits, each with an eighth that makes the number of minus signs even."""
    odd = signs ^ signs >> 4
    odd ^= odd >> 2
    odd ^= odd >> 1
    return signs | (odd & 0x01010101) << 7


@register_jitable
def _sevens(word: Any) -> Any:
    """Four times 7 bits, a byte for each."""
    return word & 0x7F | (word & 0x3F80) << 1 | (word & 0x1FC000) << 2 | (word & 0x0FE00000) << 3


@register_jitable
def _rows8(grid: Table, i: Any, j: Any) -> Any:
    """Two rows of 8 codes."""
    return join(u8x8(grid, 8 * i), u8x8(grid, 8 * j))


@register_jitable
def _rows4(grid: Table, blocks: Bytes, at: int, high: Any) -> Any:
    """Four rows of 4 codes: a byte of index each, and the lowest bits of `high`."""
    i, j = u8(blocks, at) | (high & 1) << 8, u8(blocks, at + 1) | (high & 2) << 7
    k, m = u8(blocks, at + 2) | (high & 4) << 6, u8(blocks, at + 3) | (high & 8) << 5
    return join(join(u8x4(grid, 4 * i), u8x4(grid, 4 * j)), join(u8x4(grid, 4 * k), u8x4(grid, 4 * m)))


@body("iq2_xxs")
def iq2_xxs(blocks: Bytes, values: Values, grid: Table) -> None:
    """Fields d 2, qs 64: per 32 weights four grid indices, then a word of signs and scale."""
    for i in range(len(values) // 256):
        b = 66 * i
        d = load_f16(blocks, b)
        for g in range(8):
            at = b + 2 + 8 * g
            word = u32(blocks, at + 4)
            q = join(
                _rows8(grid, u8(blocks, at), u8(blocks, at + 1)),
                _rows8(grid, u8(blocks, at + 2), u8(blocks, at + 3)),
            )
            scale = d * (real(word >> 28) + HALF) * QUARTER
            put(values, 256 * i + 32 * g, scale * real(negated(q, bits32(_even(_sevens(word))))))


@register_jitable
def _halves(d: Any, nibbles: Any, q: Any) -> Any:
    """`d * (s + 1/2) / 4 * q`: a byte has the two s of 32 codes."""
    s0, s1 = d * (real(nibbles & 15) + HALF) * QUARTER, d * (real(nibbles >> 4) + HALF) * QUARTER
    x = real(q)
    return join(s0 * first(x), s1 * last(x))


@body("iq2_xs")
def iq2_xs(blocks: Bytes, values: Values, grid: Table) -> None:
    """Fields d 2, qs 64, scales 8: 9 bits of index and 7 of signs per 8 weights, a nibble of scale per 16."""
    for i in range(len(values) // 256):
        b = 74 * i
        d = load_f16(blocks, b)
        for g in range(8):
            words = u64(blocks, b + 2 + 8 * g)
            q = join(
                _rows8(grid, words & 511, words >> 16 & 511),
                _rows8(grid, words >> 32 & 511, words >> 48 & 511),
            )
            signs = words >> 9 & 0x7F | words >> 17 & 0x7F00 | words >> 25 & 0x7F0000 | words >> 33 & 0x7F000000
            q = negated(q, bits32(_even(signs)))
            put(values, 256 * i + 32 * g, _halves(d, u8(blocks, b + 66 + g), q))


@body("iq2_s")
def iq2_s(blocks: Bytes, values: Values, grid: Table) -> None:
    """Fields d 2, qs 32, signs 32, qh 8, scales 8: 10 bits of index per 8 weights, a nibble of scale per 16."""
    for i in range(len(values) // 256):
        b = 82 * i
        d = load_f16(blocks, b)
        for g in range(8):
            at, high = b + 2 + 4 * g, u8(blocks, b + 66 + g)
            q = join(
                _rows8(grid, u8(blocks, at) | (high & 3) << 8, u8(blocks, at + 1) | (high >> 2 & 3) << 8),
                _rows8(grid, u8(blocks, at + 2) | (high >> 4 & 3) << 8, u8(blocks, at + 3) | (high >> 6) << 8),
            )
            q = negated(q, bits32(u32(blocks, at + 32)))
            put(values, 256 * i + 32 * g, _halves(d, u8(blocks, b + 74 + g), q))


@body("iq3_xxs")
def iq3_xxs(blocks: Bytes, values: Values, grid: Table) -> None:
    """Fields d 2, qs 64, gas 32: an index per 4 weights, a word of signs and scale per 32."""
    for i in range(len(values) // 256):
        b = 98 * i
        d = load_f16(blocks, b)
        for g in range(8):
            at, word = b + 2 + 8 * g, u32(blocks, b + 66 + 4 * g)
            q = join(_rows4(grid, blocks, at, 0), _rows4(grid, blocks, at + 4, 0))
            scale = d * (real(word >> 28) + HALF) * HALF
            put(values, 256 * i + 32 * g, scale * real(negated(q, bits32(_even(_sevens(word))))))


@body("iq3_s")
def iq3_s(blocks: Bytes, values: Values, grid: Table) -> None:
    """Fields d 2, qs 64, qh 8, signs 32, scales 4: 9 bits of index per 4 weights, a nibble of scale per 32."""
    for i in range(len(values) // 256):
        b = 110 * i
        d = load_f16(blocks, b)
        for g in range(8):
            scale = d * real(2 * (u8(blocks, b + 106 + (g >> 1)) >> 4 * (g & 1) & 15) + 1)
            at, high = b + 2 + 8 * g, u8(blocks, b + 66 + g)
            q = join(_rows4(grid, blocks, at, high), _rows4(grid, blocks, at + 4, high >> 4))
            put(values, 256 * i + 32 * g, scale * real(negated(q, bits32(u32(blocks, b + 74 + 4 * g)))))


@body("iq1_eighths")
def iq1_s(blocks: Bytes, values: Values, grid: Table) -> None:
    """Fields d 2, qs 32, qh 16: per 32 weights four times 3 index bits, a 3-bit scale and the sign of the shift."""
    for i in range(len(values) // 256):
        b = 50 * i
        d = load_f16(blocks, b) * EIGHTH
        for g in range(8):
            at, word = b + 2 + 4 * g, u16(blocks, b + 34 + 2 * g)
            q = join(
                _rows8(grid, u8(blocks, at) | (word & 7) << 8, u8(blocks, at + 1) | (word >> 3 & 7) << 8),
                _rows8(grid, u8(blocks, at + 2) | (word >> 6 & 7) << 8, u8(blocks, at + 3) | (word >> 9 & 7) << 8),
            )
            scale, shift = d * real(2 * (word >> 12 & 7) + 1), 1 - 2 * (word >> 15)
            put(values, 256 * i + 32 * g, scale * real(q + shift))


@body("iq1_eighths")
def iq1_m(blocks: Bytes, values: Values, grid: Table) -> None:
    """Fields qs 32, qh 16, scales 8: a nibble of index and shift per 8 weights; scales hold 3 bits per 16, and d."""
    for i in range(len(values) // 256):
        b = 56 * i
        d = load_f16_nibbles(blocks, b + 48) * EIGHTH
        for g in range(8):
            s = u16(blocks, b + 48 + 2 * (g >> 1)) >> 6 * (g & 1)
            at, nibbles = b + 4 * g, u16(blocks, b + 32 + 2 * g)
            q0 = u8x8(grid, 8 * (u8(blocks, at) | (nibbles & 7) << 8)) + (1 - (nibbles >> 2 & 2))
            q1 = u8x8(grid, 8 * (u8(blocks, at + 1) | (nibbles >> 4 & 7) << 8)) + (1 - (nibbles >> 6 & 2))
            q2 = u8x8(grid, 8 * (u8(blocks, at + 2) | (nibbles >> 8 & 7) << 8)) + (1 - (nibbles >> 10 & 2))
            q3 = u8x8(grid, 8 * (u8(blocks, at + 3) | (nibbles >> 12 & 7) << 8)) + (1 - (nibbles >> 14 & 2))
            x0 = d * real(2 * (s & 7) + 1) * real(join(q0, q1))
            x1 = d * real(2 * (s >> 3 & 7) + 1) * real(join(q2, q3))
            put(values, 256 * i + 32 * g, join(x0, x1))


@body("iq4")
def iq4_nl(blocks: Bytes, values: Values, codes: Table) -> None:
    """`d * codes[q]`; fields d 2, qs 16."""
    for i in range(len(values) // 32):
        b, v = 18 * i, 32 * i
        q = u8x16(blocks, b + 2)
        products = stored(values, load_f16(blocks, b) * real(u8x16(codes, 0)))
        put(values, v, pick(products, q & 15))
        put(values, v + 16, pick(products, q >> 4))


@body("iq4")
def iq4_xs(blocks: Bytes, values: Values, codes: Table) -> None:
    """`d * (s - 32) * codes[q]`; fields d 2, scales_h 2, scales_l 4, qs 128."""
    for i in range(len(values) // 256):
        b = 136 * i
        d, high, low = load_f16(blocks, b), u16(blocks, b + 2), u32(blocks, b + 4)
        for g in range(8):
            scale = d * real((low >> 4 * g & 15 | (high >> 2 * g & 3) << 4) - 32)
            q, v = u8x16(blocks, b + 8 + 16 * g), 256 * i + 32 * g
            products = stored(values, scale * real(u8x16(codes, 0)))
            put(values, v, pick(products, q & 15))
            put(values, v + 16, pick(products, q >> 4))


@body("e2m1", "e8m0_half")
def mxfp4(blocks: Bytes, values: Values, codes: Table, scales: Table) -> None:
    """`scales[e] * codes[q]`; fields e 1, qs 16."""
    for i in range(len(values) // 32):
        b, v = 17 * i, 32 * i
        q = u8x16(blocks, b + 1)
        products = stored(values, load_f32(scales, 4 * u8(blocks, b)) * real(u8x16(codes, 0)))
        put(values, v, pick(products, q & 15))
        put(values, v + 16, pick(products, q >> 4))


@body("e2m1", "ue4m3_half")
def nvfp4(blocks: Bytes, values: Values, codes: Table, scales: Table) -> None:
    """`scales[d] * codes[q]` per 16 weights; fields d 4, qs 32."""
    for i in range(len(values) // 64):
        b = 36 * i
        for h in range(2):
            q, v = u8x16(blocks, b + 4 + 16 * h), 64 * i + 32 * h
            low, high = pick(u8x16(codes, 0), q & 15), pick(u8x16(codes, 0), q >> 4)
            scale0 = load_f32(scales, 4 * u8(blocks, b + 2 * h))
            scale1 = load_f32(scales, 4 * u8(blocks, b + 2 * h + 1))
            x0, x1 = scale0 * real(join(first(low), first(high))), scale1 * real(join(last(low), last(high)))
            put(values, v, join(x0, x1))
