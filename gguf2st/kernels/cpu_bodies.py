"""Kernel bodies without tables, one per ggml type: what numba compiles.

They mirror `gguf2st.quants`, which explains each type. Where a group of weights has 16 different values or fewer, a
body computes these and picks from them (`stored`, `pick`).

Every body takes flat arrays: `blocks` (n_blocks * nbytes) uint8 and `values` (n_blocks * block). In it `b` is the byte
offset of a block and `v` the index of its first value. `put` rounds to the output dtype.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gguf2st.kernels.cpu_access import (
    Bytes,
    Values,
    f16x32,
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
    spread_f16,
    stored,
    u8x4,
    u8x8,
    u8x16,
    u8x32,
    u32,
)
from gguf2st.kernels.cpu_lanes import bits32, first, join, last, nibbles, pairs16, pick, reaches


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
    for i in range(len(values) // 32):
        put(values, 32 * i, f16x32(blocks, 64 * i))
    for v in range(len(values) & -32, len(values)):
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
        q = u8x16(blocks, b + 2)
        products = stored(values, load_f16(blocks, b) * real(nibbles() - 8))
        put(values, v, pick(products, q & 15))
        put(values, v + 16, pick(products, q >> 4))


@body()
def q4_1(blocks: Bytes, values: Values) -> None:
    """`d * q + m`; fields d 2, m 2, qs 16."""
    for i in range(len(values) // 32):
        b, v = 20 * i, 32 * i
        q = u8x16(blocks, b + 4)
        sums = stored(values, load_f16(blocks, b) * real(nibbles()) + load_f16(blocks, b + 2))
        put(values, v, pick(sums, q & 15))
        put(values, v + 16, pick(sums, q >> 4))


@body()
def q5_0(blocks: Bytes, values: Values) -> None:
    """`d * (q - 16)`; fields d 2, qh 4, qs 16."""
    for i in range(len(values) // 32):
        b, v = 22 * i, 32 * i
        d, q = load_f16(blocks, b), u8x16(blocks, b + 6)
        put(values, v, d * real((join(q & 15, q >> 4) | bits32(u32(blocks, b + 2)) << 4) - 16))


@body()
def q5_1(blocks: Bytes, values: Values) -> None:
    """`d * q + m`; fields d 2, m 2, qh 4, qs 16."""
    for i in range(len(values) // 32):
        b, v = 24 * i, 32 * i
        d, m, q = load_f16(blocks, b), load_f16(blocks, b + 2), u8x16(blocks, b + 8)
        put(values, v, d * real(join(q & 15, q >> 4) | bits32(u32(blocks, b + 4)) << 4) + m)


@body()
def q8_0(blocks: Bytes, values: Values) -> None:
    """`d * q`; fields d 2, qs 32."""
    for i in range(len(values) // 32):
        put(values, 32 * i, spread_f16(blocks, 34 * i) * real(u8x32(blocks, 34 * i + 2)))


@body()
def q8_1(blocks: Bytes, values: Values) -> None:
    """`d * q`; fields d 2, s 2, qs 32."""
    for i in range(len(values) // 32):
        put(values, 32 * i, spread_f16(blocks, 36 * i) * real(u8x32(blocks, 36 * i + 4)))


@body()
def q8_k(blocks: Bytes, values: Values) -> None:
    """`d * q`; fields d 4, qs 256, bsums 32."""
    for i in range(len(values) // 256):
        b = 292 * i
        d = load_f32(blocks, b)
        for g in range(8):
            put(values, 256 * i + 32 * g, d * real(u8x32(blocks, b + 4 + 32 * g)))


@body()
def q2_k(blocks: Bytes, values: Values) -> None:
    """`d * s * q - dmin * m`; fields scales 16, qs 64, d 2, dmin 2. Four groups of 4 values make a table."""
    for i in range(len(values) // 256):
        b = 84 * i
        d, dmin, scales = load_f16(blocks, b + 80), load_f16(blocks, b + 82), u8x16(blocks, b)
        for h in range(4):
            g = 8 * (h >> 1) + (h & 1)
            p = pick(scales, (nibbles() >> 2 << 1) + g)  # bytes g, g + 2, g + 4 and g + 6, each four times
            sums = stored(values, d * real(p & 15) * real(nibbles() & 3) - dmin * real(p >> 4))
            q, v = u8x16(blocks, b + 16 + 16 * h), 256 * i + 16 * g
            for n in range(4):
                put(values, v + 32 * n, pick(sums, q >> 2 * n & 3 | 4 * n))


@body()
def q3_k(blocks: Bytes, values: Values) -> None:
    """`d * (s - 32) * (q - 4)`; fields hmask 32, qs 64, scales 12, d 2. Two groups of 8 values make a table."""
    second = join(nibbles() & 0, nibbles() & 0 | 8)  # where in the table the second group of 32 weights looks
    for i in range(len(values) // 256):
        b = 110 * i
        low, high = u8x8(blocks, b + 96), u8x4(blocks, b + 104)
        high16 = join(join(high & 3, high >> 2 & 3), join(high >> 4 & 3, high >> 6))
        s = (join(low & 15, low >> 4) | high16 << 4) - 32
        d, mask = load_f16(blocks, b + 108), u8x32(blocks, b)
        for h in range(2):
            q, m, v = u8x32(blocks, b + 32 + 32 * h), mask >> 4 * h, 256 * i + 128 * h
            for n in range(4):
                scale = d * real(pick(s, (nibbles() >> 3) + (8 * h + 2 * n)))
                products = stored(values, scale * real((nibbles() & 7) - 4))
                put(values, v + 32 * n, pick(products, q >> 2 * n & 3 | (m >> n & 1) << 2 | second))


# Q4_K and Q5_K read their twelve bytes of scales as three words and spread them to one byte per group, eight at once.


@body()
def q4_k(blocks: Bytes, values: Values) -> None:
    """`d * s * q - dmin * m`; fields d 2, dmin 2, scales 12, qs 128."""
    for i in range(len(values) // 256):
        b = 144 * i
        d, dmin = load_f16(blocks, b), load_f16(blocks, b + 2)
        w0, w1, w2 = u32(blocks, b + 4), u32(blocks, b + 8), u32(blocks, b + 12)
        scales = w0 & 0x3F3F3F3F | (w2 & 0x0F0F0F0F | w0 >> 2 & 0x30303030) << 32
        minima = w1 & 0x3F3F3F3F | (w2 >> 4 & 0x0F0F0F0F | w1 >> 2 & 0x30303030) << 32
        for g in range(4):
            scale0, scale1 = d * real(scales >> 16 * g & 63), d * real(scales >> 16 * g + 8 & 63)
            min0, min1 = dmin * real(minima >> 16 * g & 63), dmin * real(minima >> 16 * g + 8 & 63)
            q, v = u8x32(blocks, b + 16 + 32 * g), 256 * i + 64 * g
            sums = stored(values, join(scale0 * real(nibbles()) - min0, scale1 * real(nibbles()) - min1))
            put(values, v, pick(first(sums), q & 15))
            put(values, v + 32, pick(last(sums), q >> 4))


@body()
def q5_k(blocks: Bytes, values: Values) -> None:
    """`d * s * q - dmin * m`; fields d 2, dmin 2, scales 12, qh 32, qs 128."""
    for i in range(len(values) // 256):
        b = 176 * i
        d, dmin, high = load_f16(blocks, b), load_f16(blocks, b + 2), u8x32(blocks, b + 16)
        w0, w1, w2 = u32(blocks, b + 4), u32(blocks, b + 8), u32(blocks, b + 12)
        scales = w0 & 0x3F3F3F3F | (w2 & 0x0F0F0F0F | w0 >> 2 & 0x30303030) << 32
        minima = w1 & 0x3F3F3F3F | (w2 >> 4 & 0x0F0F0F0F | w1 >> 2 & 0x30303030) << 32
        for g in range(4):
            scale0, scale1 = d * real(scales >> 16 * g & 63), d * real(scales >> 16 * g + 8 & 63)
            min0, min1 = dmin * real(minima >> 16 * g & 63), dmin * real(minima >> 16 * g + 8 & 63)
            q, h, v = u8x32(blocks, b + 48 + 32 * g), high >> 2 * g, 256 * i + 64 * g
            put(values, v, scale0 * real(q & 15 | (h & 1) << 4) - min0)
            put(values, v + 32, scale1 * real(q >> 4 | (h & 2) << 3) - min1)


@body()
def q6_k(blocks: Bytes, values: Values) -> None:
    """`d * s * (q - 32)`; fields ql 128, qh 64, scales 16, d 2."""
    for i in range(len(values) // 256):
        b = 210 * i
        d = load_f16(blocks, b + 208)
        for h in range(2):
            high = u8x32(blocks, b + 128 + 32 * h)
            for k in range(2):
                low = u8x32(blocks, b + 64 * h + 32 * k)
                for n in range(2):
                    g = 8 * h + 4 * n + 2 * k
                    q = real((low >> 4 * n & 15 | (high >> 4 * n + 2 * k & 3) << 4) - 32)
                    s0, s1 = d * real(s8(blocks, b + 192 + g)), d * real(s8(blocks, b + 193 + g))
                    put(values, 256 * i + 16 * g, join(s0 * first(q), s1 * last(q)))


@body()
def tq1_0(blocks: Bytes, values: Values) -> None:
    """`d * (digit - 1)`; fields qs 48, qh 4, d 2. The n-th digit is the top one of the byte times 3^n.

    That is `byte * 3 >> 8`, one more for each third of 256 reached.
    """
    for i in range(len(values) // 256):
        b, v = 54 * i, 256 * i
        products = stored(values, load_f16(blocks, b + 52) * real(nibbles() - 1))
        q, r, t = u8x32(blocks, b), u8x16(blocks, b + 32), u8x4(blocks, b + 48)
        for n in range(5):
            put(values, v + 32 * n, pick(products, reaches(q, 86) + reaches(q, 171)))
            put(values, v + 160 + 16 * n, pick(products, reaches(r, 86) + reaches(r, 171)))
            q, r = q * 3, r * 3
        r = join(join(t, t * 3), join(t * 9, t * 27))
        put(values, v + 240, pick(products, reaches(r, 86) + reaches(r, 171)))


@body()
def tq2_0(blocks: Bytes, values: Values) -> None:
    """`d * (q - 1)`; fields qs 64, d 2."""
    for i in range(len(values) // 256):
        b = 66 * i
        products = stored(values, load_f16(blocks, b + 64) * real(nibbles() - 1))
        for h in range(2):
            q, v = u8x32(blocks, b + 32 * h), 256 * i + 128 * h
            put(values, v, pick(products, q & 3))
            put(values, v + 32, pick(products, q >> 2 & 3))
            put(values, v + 64, pick(products, q >> 4 & 3))
            put(values, v + 96, pick(products, q >> 6))


@body()
def q1_0(blocks: Bytes, values: Values) -> None:
    """`d` or `-d`; fields d 2, qs 16."""
    for i in range(len(values) // 128):
        b = 18 * i
        products = stored(values, load_f16(blocks, b) * real((nibbles() << 1) - 1))
        for g in range(4):
            put(values, 128 * i + 32 * g, pick(products, bits32(u32(blocks, b + 2 + 4 * g))))


@body()
def q2_0(blocks: Bytes, values: Values) -> None:
    """`d * (q - 1)`; fields d 2, qs 16."""
    for i in range(len(values) // 64):
        b = 18 * i
        products = stored(values, load_f16(blocks, b) * real(nibbles() - 1))
        for g in range(4):
            put(values, 64 * i + 16 * g, pick(products, pairs16(u32(blocks, b + 2 + 4 * g))))
