"""Kernel bodies without tables, one per ggml type: what numba compiles.

They mirror `gguf2st.quants`, which explains each type.

Every body takes flat arrays: `blocks` (n_blocks * nbytes) uint8 and `values` (n_blocks * block). In it `b` is the byte
offset of a block and `v` the index of its first value. `put` rounds to the output dtype.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gguf2st.kernels.cpu_access import (
    Bytes,
    Values,
    load_bf16,
    load_f16,
    load_f32,
    load_f64,
    load_i16,
    load_i32,
    load_i64,
    put,
    real,
    s8,
    u8,
    u32,
)


@dataclass(frozen=True, slots=True)
class Body:
    """What numba compiles for a type: `function(blocks, values, *tables)`."""

    function: Callable[..., None]
    tables: tuple[str, ...]
    """Names in `gguf2st.quants.codebooks`."""


BODIES: dict[str, Body] = {}
"""ggml type name -> its body. Complete once `cpu_codebooks` is imported too."""


def body(*tables: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a body under the upper-cased name of its function."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        BODIES[function.__name__.upper()] = Body(function, tables)
        return function

    return register


@body()
def f32(blocks: Bytes, values: Values) -> None:
    """binary32."""
    for v in range(len(values)):
        put(values, v, load_f32(blocks, 4 * v))


@body()
def f16(blocks: Bytes, values: Values) -> None:
    """binary16."""
    for v in range(len(values)):
        put(values, v, load_f16(blocks, 2 * v))


@body()
def bf16(blocks: Bytes, values: Values) -> None:
    """The upper half of a binary32."""
    for v in range(len(values)):
        put(values, v, load_bf16(blocks, 2 * v))


@body()
def f64(blocks: Bytes, values: Values) -> None:
    """binary64, through float32."""
    for v in range(len(values)):
        put(values, v, load_f64(blocks, 8 * v))


@body()
def i8(blocks: Bytes, values: Values) -> None:
    """Signed byte."""
    for v in range(len(values)):
        put(values, v, real(s8(blocks, v)))


@body()
def i16(blocks: Bytes, values: Values) -> None:
    """Signed 16-bit integer."""
    for v in range(len(values)):
        put(values, v, load_i16(blocks, 2 * v))


@body()
def i32(blocks: Bytes, values: Values) -> None:
    """Signed 32-bit integer, through float32."""
    for v in range(len(values)):
        put(values, v, load_i32(blocks, 4 * v))


@body()
def i64(blocks: Bytes, values: Values) -> None:
    """Signed 64-bit integer, through float32."""
    for v in range(len(values)):
        put(values, v, load_i64(blocks, 8 * v))


@body()
def q4_0(blocks: Bytes, values: Values) -> None:
    """`d * (q - 8)`; fields d 2, qs 16."""
    for i in range(len(values) // 32):
        b, v = 18 * i, 32 * i
        d = load_f16(blocks, b)
        for j in range(16):
            q = u8(blocks, b + 2 + j)
            put(values, v + j, d * real((q & 15) - 8))
            put(values, v + 16 + j, d * real((q >> 4) - 8))


@body()
def q4_1(blocks: Bytes, values: Values) -> None:
    """`d * q + m`; fields d 2, m 2, qs 16."""
    for i in range(len(values) // 32):
        b, v = 20 * i, 32 * i
        d, m = load_f16(blocks, b), load_f16(blocks, b + 2)
        for j in range(16):
            q = u8(blocks, b + 4 + j)
            put(values, v + j, d * real(q & 15) + m)
            put(values, v + 16 + j, d * real(q >> 4) + m)


@body()
def q5_0(blocks: Bytes, values: Values) -> None:
    """`d * (q - 16)`; fields d 2, qh 4, qs 16."""
    for i in range(len(values) // 32):
        b, v = 22 * i, 32 * i
        d, high = load_f16(blocks, b), u32(blocks, b + 2)
        for j in range(16):
            q = u8(blocks, b + 6 + j)
            put(values, v + j, d * real((q & 15 | (high >> j & 1) << 4) - 16))
            put(values, v + 16 + j, d * real((q >> 4 | (high >> (16 + j) & 1) << 4) - 16))


@body()
def q5_1(blocks: Bytes, values: Values) -> None:
    """`d * q + m`; fields d 2, m 2, qh 4, qs 16."""
    for i in range(len(values) // 32):
        b, v = 24 * i, 32 * i
        d, m, high = load_f16(blocks, b), load_f16(blocks, b + 2), u32(blocks, b + 4)
        for j in range(16):
            q = u8(blocks, b + 8 + j)
            put(values, v + j, d * real(q & 15 | (high >> j & 1) << 4) + m)
            put(values, v + 16 + j, d * real(q >> 4 | (high >> (16 + j) & 1) << 4) + m)


@body()
def q8_0(blocks: Bytes, values: Values) -> None:
    """`d * q`; fields d 2, qs 32."""
    for i in range(len(values) // 32):
        b, v = 34 * i, 32 * i
        d = load_f16(blocks, b)
        for j in range(32):
            put(values, v + j, d * real(s8(blocks, b + 2 + j)))


# A byte of `qs` holds one weight of each of four groups (two, for nibbles). The loops read it once and write all of
# them: LLVM makes full vectors of that form only. `h` counts the runs of 16 bytes: 128 weights take two.


@body()
def q2_k(blocks: Bytes, values: Values) -> None:
    """`d * s * q - dmin * m`; fields scales 16, qs 64, d 2, dmin 2."""
    for i in range(len(values) // 256):
        b = 84 * i
        d, dmin = load_f16(blocks, b + 80), load_f16(blocks, b + 82)
        for h in range(4):
            g = 8 * (h >> 1) + (h & 1)
            p0, p1, p2, p3 = u8(blocks, b + g), u8(blocks, b + g + 2), u8(blocks, b + g + 4), u8(blocks, b + g + 6)
            scale0, scale1, scale2, scale3 = d * real(p0 & 15), d * real(p1 & 15), d * real(p2 & 15), d * real(p3 & 15)
            min0, min1, min2, min3 = (
                dmin * real(p0 >> 4),
                dmin * real(p1 >> 4),
                dmin * real(p2 >> 4),
                dmin * real(p3 >> 4),
            )
            v = 256 * i + 16 * g
            for j in range(16):
                q = u8(blocks, b + 16 + 16 * h + j)
                put(values, v + j, scale0 * real(q & 3) - min0)
                put(values, v + 32 + j, scale1 * real(q >> 2 & 3) - min1)
                put(values, v + 64 + j, scale2 * real(q >> 4 & 3) - min2)
                put(values, v + 96 + j, scale3 * real(q >> 6) - min3)


@body()
def q3_k(blocks: Bytes, values: Values) -> None:
    """`d * (s - 32) * (q - 4)`; fields hmask 32, qs 64, scales 12, d 2. Its sixteen s are spread like those of Q4_K."""
    for i in range(len(values) // 256):
        b = 110 * i
        d = load_f16(blocks, b + 108)
        for h in range(4):
            n, k = h >> 1, h & 1
            even, odd = u32(blocks, b + 96) >> 4 * n, u32(blocks, b + 100) >> 4 * n
            high = u32(blocks, b + 104) >> 4 * n
            s0 = even & 0x0F0F0F0F | (high & 0x03030303) << 4
            s1 = odd & 0x0F0F0F0F | (high >> 2 & 0x03030303) << 4
            scale0, scale1 = d * real((s0 >> 8 * k & 63) - 32), d * real((s0 >> 16 + 8 * k & 63) - 32)
            scale2, scale3 = d * real((s1 >> 8 * k & 63) - 32), d * real((s1 >> 16 + 8 * k & 63) - 32)
            v = 256 * i + 128 * n + 16 * k
            for j in range(16):
                q, m = u8(blocks, b + 32 + 16 * h + j), u8(blocks, b + 16 * k + j) >> 4 * n
                put(values, v + j, scale0 * real((q & 3 | (m & 1) << 2) - 4))
                put(values, v + 32 + j, scale1 * real((q >> 2 & 3 | (m & 2) << 1) - 4))
                put(values, v + 64 + j, scale2 * real((q >> 4 & 3 | m & 4) - 4))
                put(values, v + 96 + j, scale3 * real((q >> 6 | m >> 1 & 4) - 4))


# Q4_K and Q5_K read their twelve bytes of scales as three words and spread them to one byte per group, eight at once.


@body()
def q4_k(blocks: Bytes, values: Values) -> None:
    """`d * s * q - dmin * m`; fields d 2, dmin 2, scales 12, qs 128."""
    for i in range(len(values) // 256):
        b, v = 144 * i, 256 * i
        d, dmin = load_f16(blocks, b), load_f16(blocks, b + 2)
        w0, w1, w2 = u32(blocks, b + 4), u32(blocks, b + 8), u32(blocks, b + 12)
        scales = w0 & 0x3F3F3F3F | (w2 & 0x0F0F0F0F | w0 >> 2 & 0x30303030) << 32
        minima = w1 & 0x3F3F3F3F | (w2 >> 4 & 0x0F0F0F0F | w1 >> 2 & 0x30303030) << 32
        for g in range(4):
            scale0, scale1 = d * real(scales >> 16 * g & 63), d * real(scales >> 16 * g + 8 & 63)
            min0, min1 = dmin * real(minima >> 16 * g & 63), dmin * real(minima >> 16 * g + 8 & 63)
            for j in range(32):
                q = u8(blocks, b + 16 + 32 * g + j)
                put(values, v + 64 * g + j, scale0 * real(q & 15) - min0)
                put(values, v + 64 * g + 32 + j, scale1 * real(q >> 4) - min1)


@body()
def q5_k(blocks: Bytes, values: Values) -> None:
    """`d * s * q - dmin * m`; fields d 2, dmin 2, scales 12, qh 32, qs 128."""
    for i in range(len(values) // 256):
        b, v = 176 * i, 256 * i
        d, dmin = load_f16(blocks, b), load_f16(blocks, b + 2)
        w0, w1, w2 = u32(blocks, b + 4), u32(blocks, b + 8), u32(blocks, b + 12)
        scales = w0 & 0x3F3F3F3F | (w2 & 0x0F0F0F0F | w0 >> 2 & 0x30303030) << 32
        minima = w1 & 0x3F3F3F3F | (w2 >> 4 & 0x0F0F0F0F | w1 >> 2 & 0x30303030) << 32
        for g in range(4):
            scale0, scale1 = d * real(scales >> 16 * g & 63), d * real(scales >> 16 * g + 8 & 63)
            min0, min1 = dmin * real(minima >> 16 * g & 63), dmin * real(minima >> 16 * g + 8 & 63)
            for j in range(32):
                q, high = u8(blocks, b + 48 + 32 * g + j), u8(blocks, b + 16 + j) >> 2 * g
                put(values, v + 64 * g + j, scale0 * real(q & 15 | (high & 1) << 4) - min0)
                put(values, v + 64 * g + 32 + j, scale1 * real(q >> 4 | (high >> 1 & 1) << 4) - min1)


@body()
def q6_k(blocks: Bytes, values: Values) -> None:
    """`d * s * (q - 32)`; fields ql 128, qh 64, scales 16, d 2."""
    for i in range(len(values) // 256):
        b = 210 * i
        d = load_f16(blocks, b + 208)
        for h in range(4):
            n, k = h >> 1, h & 1
            s = b + 192 + 8 * n + k
            scale0, scale1 = d * real(s8(blocks, s)), d * real(s8(blocks, s + 2))
            scale2, scale3 = d * real(s8(blocks, s + 4)), d * real(s8(blocks, s + 6))
            ql, v = b + 64 * n + 16 * k, 256 * i + 128 * n + 16 * k
            for j in range(16):
                q0, q1, high = u8(blocks, ql + j), u8(blocks, ql + 32 + j), u8(blocks, b + 128 + 16 * h + j)
                put(values, v + j, scale0 * real((q0 & 15 | (high & 3) << 4) - 32))
                put(values, v + 32 + j, scale1 * real((q1 & 15 | (high >> 2 & 3) << 4) - 32))
                put(values, v + 64 + j, scale2 * real((q0 >> 4 | (high >> 4 & 3) << 4) - 32))
                put(values, v + 96 + j, scale3 * real((q1 >> 4 | (high >> 6) << 4) - 32))


@body()
def q8_1(blocks: Bytes, values: Values) -> None:
    """`d * q`; fields d 2, s 2, qs 32."""
    for i in range(len(values) // 32):
        b, v = 36 * i, 32 * i
        d = load_f16(blocks, b)
        for j in range(32):
            put(values, v + j, d * real(s8(blocks, b + 4 + j)))


@body()
def q8_k(blocks: Bytes, values: Values) -> None:
    """`d * q`; fields d 4, qs 256, bsums 32."""
    for i in range(len(values) // 256):
        b, v = 292 * i, 256 * i
        d = load_f32(blocks, b)
        for j in range(256):
            put(values, v + j, d * real(s8(blocks, b + 4 + j)))


@body()
def tq1_0(blocks: Bytes, values: Values) -> None:
    """`d * (digit - 1)`; fields qs 48, qh 4, d 2. The n-th digit is the top one of the byte times 3^n."""
    for i in range(len(values) // 256):
        b, v = 54 * i, 256 * i
        d = load_f16(blocks, b + 52)
        power = 1
        for n in range(5):
            for j in range(32):
                put(values, v + 32 * n + j, d * real(((u8(blocks, b + j) * power & 255) * 3 >> 8) - 1))
            for j in range(16):
                put(values, v + 160 + 16 * n + j, d * real(((u8(blocks, b + 32 + j) * power & 255) * 3 >> 8) - 1))
            if n < 4:
                for j in range(4):
                    put(values, v + 240 + 4 * n + j, d * real(((u8(blocks, b + 48 + j) * power & 255) * 3 >> 8) - 1))
            power *= 3


@body()
def tq2_0(blocks: Bytes, values: Values) -> None:
    """`d * (q - 1)`; fields qs 64, d 2."""
    for i in range(len(values) // 256):
        b = 66 * i
        d = load_f16(blocks, b + 64)
        for h in range(2):
            v = 256 * i + 128 * h
            for j in range(32):
                q = u8(blocks, b + 32 * h + j)
                put(values, v + j, d * real((q & 3) - 1))
                put(values, v + 32 + j, d * real((q >> 2 & 3) - 1))
                put(values, v + 64 + j, d * real((q >> 4 & 3) - 1))
                put(values, v + 96 + j, d * real((q >> 6) - 1))


@body()
def q1_0(blocks: Bytes, values: Values) -> None:
    """`d` or `-d`; fields d 2, qs 16."""
    for i in range(len(values) // 128):
        b = 18 * i
        d = load_f16(blocks, b)
        for g in range(4):
            word, v = u32(blocks, b + 2 + 4 * g), 128 * i + 32 * g
            for j in range(32):
                put(values, v + j, d * real(2 * (word >> j & 1) - 1))


@body()
def q2_0(blocks: Bytes, values: Values) -> None:
    """`d * (q - 1)`; fields d 2, qs 16."""
    for i in range(len(values) // 64):
        b = 18 * i
        d = load_f16(blocks, b)
        for g in range(4):
            word, v = u32(blocks, b + 2 + 4 * g), 64 * i + 16 * g
            for j in range(16):
                put(values, v + j, d * real((word >> 2 * j & 3) - 1))
