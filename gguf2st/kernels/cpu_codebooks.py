"""Kernel bodies of the types that look up tables, which come as extra arguments (see `gguf2st.quants.codebooks`)."""

from typing import Any

import numpy as np

from gguf2st.kernels.cpu_access import (
    Bytes,
    Table,
    Values,
    load_f16,
    load_f16_nibbles,
    load_f32,
    put,
    real,
    s8,
    u8,
    u16,
    u32,
)
from gguf2st.kernels.cpu_bodies import body

# Plain Python numbers are float64 to numba: they would widen the arithmetic around them.
HALF: Any = np.float32(0.5)
QUARTER: Any = np.float32(0.25)
EIGHTH: Any = np.float32(0.125)


@body("iq2_xxs", "even_signs")
def iq2_xxs(blocks: Bytes, values: Values, grid: Table, signs: Table) -> None:
    """Fields d 2, qs 64: per 32 weights four grid indices, then a word of signs and scale."""
    for i in range(len(values) // 256):
        b = 66 * i
        d = load_f16(blocks, b)
        for g in range(8):
            at = b + 2 + 8 * g
            word = u32(blocks, at + 4)
            scale = d * (real(word >> 28) + HALF) * QUARTER
            for k in range(4):
                entry, sign = 8 * u8(blocks, at + k), 8 * (word >> 7 * k & 127)
                v = 256 * i + 32 * g + 8 * k
                for j in range(8):
                    put(values, v + j, scale * real(s8(grid, entry + j) * s8(signs, sign + j)))


@body("iq2_xs", "even_signs")
def iq2_xs(blocks: Bytes, values: Values, grid: Table, signs: Table) -> None:
    """Fields d 2, qs 64, scales 8: 9 bits of index and 7 of signs per 8 weights, a nibble of scale per 16."""
    for i in range(len(values) // 256):
        b = 74 * i
        d = load_f16(blocks, b)
        for g in range(16):
            scale = d * (real(u8(blocks, b + 66 + (g >> 1)) >> 4 * (g & 1) & 15) + HALF) * QUARTER
            for k in range(2):
                word = u16(blocks, b + 2 + 4 * g + 2 * k)
                entry, sign = 8 * (word & 511), 8 * (word >> 9)
                v = 256 * i + 16 * g + 8 * k
                for j in range(8):
                    put(values, v + j, scale * real(s8(grid, entry + j) * s8(signs, sign + j)))


@body("iq2_s", "signs")
def iq2_s(blocks: Bytes, values: Values, grid: Table, signs: Table) -> None:
    """Fields d 2, qs 32, signs 32, qh 8, scales 8: 10 bits of index per 8 weights, a nibble of scale per 16."""
    for i in range(len(values) // 256):
        b = 82 * i
        d = load_f16(blocks, b)
        for g in range(16):
            scale = d * (real(u8(blocks, b + 74 + (g >> 1)) >> 4 * (g & 1) & 15) + HALF) * QUARTER
            high = u8(blocks, b + 66 + (g >> 1)) >> 4 * (g & 1)
            for k in range(2):
                entry = 8 * (u8(blocks, b + 2 + 2 * g + k) | (high >> 2 * k & 3) << 8)
                sign = 8 * u8(blocks, b + 34 + 2 * g + k)
                v = 256 * i + 16 * g + 8 * k
                for j in range(8):
                    put(values, v + j, scale * real(s8(grid, entry + j) * s8(signs, sign + j)))


@body("iq3_xxs", "even_signs")
def iq3_xxs(blocks: Bytes, values: Values, grid: Table, signs: Table) -> None:
    """Fields d 2, qs 64, gas 32: an index per 4 weights, a word of signs and scale per 32."""
    for i in range(len(values) // 256):
        b = 98 * i
        d = load_f16(blocks, b)
        for g in range(8):
            word = u32(blocks, b + 66 + 4 * g)
            scale = d * (real(word >> 28) + HALF) * HALF
            for k in range(8):
                entry = 4 * u8(blocks, b + 2 + 8 * g + k)
                sign = 8 * (word >> 7 * (k >> 1) & 127) + 4 * (k & 1)
                v = 256 * i + 32 * g + 4 * k
                for j in range(4):
                    put(values, v + j, scale * real(s8(grid, entry + j) * s8(signs, sign + j)))


@body("iq3_s", "signs")
def iq3_s(blocks: Bytes, values: Values, grid: Table, signs: Table) -> None:
    """Fields d 2, qs 64, qh 8, signs 32, scales 4: 9 bits of index per 4 weights, a nibble of scale per 32."""
    for i in range(len(values) // 256):
        b = 110 * i
        d = load_f16(blocks, b)
        for g in range(8):
            scale = d * real(2 * (u8(blocks, b + 106 + (g >> 1)) >> 4 * (g & 1) & 15) + 1)
            high = u8(blocks, b + 66 + g)
            for k in range(8):
                entry = 4 * (u8(blocks, b + 2 + 8 * g + k) | (high >> k & 1) << 8)
                sign = 8 * u8(blocks, b + 74 + 4 * g + (k >> 1)) + 4 * (k & 1)
                v = 256 * i + 32 * g + 4 * k
                for j in range(4):
                    put(values, v + j, scale * real(s8(grid, entry + j) * s8(signs, sign + j)))


@body("iq1_eighths")
def iq1_s(blocks: Bytes, values: Values, grid: Table) -> None:
    """Fields d 2, qs 32, qh 16: per 32 weights four times 3 index bits, a 3-bit scale and the sign of the shift."""
    for i in range(len(values) // 256):
        b = 50 * i
        d = load_f16(blocks, b) * EIGHTH
        for g in range(8):
            word = u16(blocks, b + 34 + 2 * g)
            scale = d * real(2 * (word >> 12 & 7) + 1)
            shift = 1 - 2 * (word >> 15)
            for k in range(4):
                entry = 8 * (u8(blocks, b + 2 + 4 * g + k) | (word >> 3 * k & 7) << 8)
                v = 256 * i + 32 * g + 8 * k
                for j in range(8):
                    put(values, v + j, scale * real(s8(grid, entry + j) + shift))


@body("iq1_eighths")
def iq1_m(blocks: Bytes, values: Values, grid: Table) -> None:
    """Fields qs 32, qh 16, scales 8: a nibble of index and shift per 8 weights; scales hold 3 bits per 16, and d."""
    for i in range(len(values) // 256):
        b = 56 * i
        d = load_f16_nibbles(blocks, b + 48) * EIGHTH
        for g in range(16):
            scale = d * real(2 * (u16(blocks, b + 48 + 2 * (g >> 2)) >> 3 * (g & 3) & 7) + 1)
            pair = u8(blocks, b + 32 + g)
            for k in range(2):
                entry = 8 * (u8(blocks, b + 2 * g + k) | (pair >> 4 * k & 7) << 8)
                shift = 1 - 2 * (pair >> 4 * k + 3 & 1)
                v = 256 * i + 16 * g + 8 * k
                for j in range(8):
                    put(values, v + j, scale * real(s8(grid, entry + j) + shift))


@body("iq4")
def iq4_nl(blocks: Bytes, values: Values, codes: Table) -> None:
    """`d * codes[q]`; fields d 2, qs 16."""
    for i in range(len(values) // 32):
        b, v = 18 * i, 32 * i
        d = load_f16(blocks, b)
        for j in range(16):
            q = u8(blocks, b + 2 + j)
            put(values, v + j, d * real(s8(codes, q & 15)))
            put(values, v + 16 + j, d * real(s8(codes, q >> 4)))


@body("iq4")
def iq4_xs(blocks: Bytes, values: Values, codes: Table) -> None:
    """`d * (s - 32) * codes[q]`; fields d 2, scales_h 2, scales_l 4, qs 128."""
    for i in range(len(values) // 256):
        b = 136 * i
        d, high, low = load_f16(blocks, b), u16(blocks, b + 2), u32(blocks, b + 4)
        for g in range(8):
            scale = d * real((low >> 4 * g & 15 | (high >> 2 * g & 3) << 4) - 32)
            v = 256 * i + 32 * g
            for j in range(16):
                q = u8(blocks, b + 8 + 16 * g + j)
                put(values, v + j, scale * real(s8(codes, q & 15)))
                put(values, v + 16 + j, scale * real(s8(codes, q >> 4)))


@body("e2m1", "e8m0_half")
def mxfp4(blocks: Bytes, values: Values, codes: Table, scales: Table) -> None:
    """`scales[e] * codes[q]`; fields e 1, qs 16."""
    for i in range(len(values) // 32):
        b, v = 17 * i, 32 * i
        scale = load_f32(scales, 4 * u8(blocks, b))
        for j in range(16):
            q = u8(blocks, b + 1 + j)
            put(values, v + j, scale * real(s8(codes, q & 15)))
            put(values, v + 16 + j, scale * real(s8(codes, q >> 4)))


@body("e2m1", "ue4m3_half")
def nvfp4(blocks: Bytes, values: Values, codes: Table, scales: Table) -> None:
    """`scales[d] * codes[q]` per 16 weights; fields d 4, qs 32."""
    for i in range(len(values) // 64):
        b = 36 * i
        for g in range(4):
            scale = load_f32(scales, 4 * u8(blocks, b + g))
            v = 64 * i + 16 * g
            for j in range(8):
                q = u8(blocks, b + 4 + 8 * g + j)
                put(values, v + j, scale * real(s8(codes, q & 15)))
                put(values, v + 8 + j, scale * real(s8(codes, q >> 4)))
