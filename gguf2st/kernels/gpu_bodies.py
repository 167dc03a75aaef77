"""Kernel bodies without tables, one per ggml type: what Triton compiles.

They mirror `gguf2st.quants`, which explains each type. `gpu_access` says how tiles lie in memory.

Every body takes `p_blocks` (n_blocks * nbytes) uint8 and `p_out` (n_blocks * block). In it `p_b` points to blocks [B],
`i_g` counts groups [1, G] and `i_r` the weights of a group [1, 1, R]; `o_` is an offset in bytes.
"""

from typing import Any

import triton.language as tl

from gguf2st.kernels.gpu_access import block_pointers, body, f16, jit, put, real, s8, store, u8, u16

# Only whole tiles are read and written in words: a mask that may end anywhere allows single elements.


@jit
def number(x: tl.tensor) -> tl.tensor:
    """A number as float32; uint16 holds bfloat16 bits."""
    if x.dtype == tl.uint16:
        x = (x.to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    return x.to(tl.float32)


@jit
def plain(p_in: tl.tensor, p_out: tl.tensor, n: tl.tensor, ELEMENTS: tl.constexpr) -> None:
    """Numbers without a block, each converted by way of float32."""
    first = tl.program_id(0).to(tl.int64) * ELEMENTS
    i_v = tl.arange(0, ELEMENTS)
    p_x, p_y = p_in + first + i_v, p_out + first + i_v
    if first + ELEMENTS <= n:
        store(p_y, number(tl.load(p_x)), None)
    else:
        m_v = i_v < n - first
        store(p_y, number(tl.load(p_x, mask=m_v)), m_v)


@jit
def count_masked(
    p_bits: tl.tensor, p_count: tl.tensor, n: tl.tensor, EXPONENT: tl.constexpr, ELEMENTS: tl.constexpr
) -> None:
    """Add to `p_count` how many elements have all bits of EXPONENT set."""
    first = tl.program_id(0).to(tl.int64) * ELEMENTS
    i_v = tl.arange(0, ELEMENTS)
    p_v = p_bits + first + i_v
    if first + ELEMENTS <= n:  # noqa: SIM108  (Triton has no such expression for tensors)
        bits = tl.load(p_v)
    else:
        bits = tl.load(p_v, mask=i_v < n - first, other=0)
    count = tl.sum((bits.to(tl.int32) & EXPONENT == EXPONENT).to(tl.int32))
    tl.atomic_add(p_count, count.to(tl.int64), mask=count > 0)


@body()
def q4_0(p_blocks: tl.tensor, p_out: tl.tensor, n_blocks: tl.tensor, BLOCKS: tl.constexpr) -> None:
    """`d * (q - 8)`; fields d 2, qs 16."""
    p_b = block_pointers(p_blocks, n_blocks, 18, BLOCKS)
    i_g = tl.arange(0, 2)[None, :, None]
    i_r = tl.arange(0, 16)[None, None, :]
    q = u8(p_b[:, None, None] + 2 + i_r + 0 * i_g) >> 4 * i_g & 15
    put(p_out, n_blocks, f16(p_b)[:, None, None] * real(q - 8))


@body()
def q4_1(p_blocks: tl.tensor, p_out: tl.tensor, n_blocks: tl.tensor, BLOCKS: tl.constexpr) -> None:
    """`d * q + m`; fields d 2, m 2, qs 16."""
    p_b = block_pointers(p_blocks, n_blocks, 20, BLOCKS)
    i_g = tl.arange(0, 2)[None, :, None]
    i_r = tl.arange(0, 16)[None, None, :]
    q = u8(p_b[:, None, None] + 4 + i_r + 0 * i_g) >> 4 * i_g & 15
    put(p_out, n_blocks, f16(p_b)[:, None, None] * real(q) + f16(p_b + 2)[:, None, None])


@jit
def five_bits(p_b: tl.tensor, QH: tl.constexpr) -> Any:
    """Nibbles with their fifth bit -> [B, 2, 16]; fields qh 4 (bit k for weight k), qs 16, from byte QH on."""
    i_g = tl.arange(0, 2)[None, :]
    i_r = tl.arange(0, 16)[None, None, :]
    low = u8(p_b[:, None, None] + QH + 4 + i_r + 0 * i_g[:, :, None]) >> 4 * i_g[:, :, None] & 15
    high = u16(p_b[:, None] + QH + 2 * i_g)[:, :, None] >> i_r & 1
    return low | high << 4


@body()
def q5_0(p_blocks: tl.tensor, p_out: tl.tensor, n_blocks: tl.tensor, BLOCKS: tl.constexpr) -> None:
    """`d * (q - 16)`; fields d 2, qh 4, qs 16."""
    p_b = block_pointers(p_blocks, n_blocks, 22, BLOCKS)
    put(p_out, n_blocks, f16(p_b)[:, None, None] * real(five_bits(p_b, 2) - 16))


@body()
def q5_1(p_blocks: tl.tensor, p_out: tl.tensor, n_blocks: tl.tensor, BLOCKS: tl.constexpr) -> None:
    """`d * q + m`; fields d 2, m 2, qh 4, qs 16."""
    p_b = block_pointers(p_blocks, n_blocks, 24, BLOCKS)
    put(p_out, n_blocks, f16(p_b)[:, None, None] * real(five_bits(p_b, 4)) + f16(p_b + 2)[:, None, None])


@body()
def q8_0(p_blocks: tl.tensor, p_out: tl.tensor, n_blocks: tl.tensor, BLOCKS: tl.constexpr) -> None:
    """`d * q`; fields d 2, qs 32."""
    p_b = block_pointers(p_blocks, n_blocks, 34, BLOCKS)
    q = s8(p_b[:, None, None] + 2 + tl.arange(0, 32)[None, None, :])
    put(p_out, n_blocks, f16(p_b)[:, None, None] * real(q))


@body()
def q8_1(p_blocks: tl.tensor, p_out: tl.tensor, n_blocks: tl.tensor, BLOCKS: tl.constexpr) -> None:
    """`d * q`; fields d 2, s 2, qs 32."""
    p_b = block_pointers(p_blocks, n_blocks, 36, BLOCKS)
    q = s8(p_b[:, None, None] + 4 + tl.arange(0, 32)[None, None, :])
    put(p_out, n_blocks, f16(p_b)[:, None, None] * real(q))


@body()
def q8_k(p_blocks: tl.tensor, p_out: tl.tensor, n_blocks: tl.tensor, BLOCKS: tl.constexpr) -> None:
    """`d * q`; fields d 4, qs 256, bsums 32."""
    p_b = block_pointers(p_blocks, n_blocks, 292, BLOCKS)
    d = tl.load(p_b.to(tl.pointer_type(tl.float32)))
    q = s8(p_b[:, None, None] + 4 + tl.arange(0, 256)[None, None, :])
    put(p_out, n_blocks, d[:, None, None] * real(q))


@body()
def q2_k(p_blocks: tl.tensor, p_out: tl.tensor, n_blocks: tl.tensor, BLOCKS: tl.constexpr) -> None:
    """`d * s * q - dmin * m`; fields scales 16, qs 64, d 2, dmin 2."""
    p_b = block_pointers(p_blocks, n_blocks, 84, BLOCKS)
    i_g = tl.arange(0, 16)[None, :]
    i_r = tl.arange(0, 16)[None, None, :]
    pair = u8(p_b[:, None] + i_g)  # [B, G]
    scale = f16(p_b + 80)[:, None] * real(pair & 15)
    low = f16(p_b + 82)[:, None] * real(pair >> 4)
    o_q = (16 + 32 * (i_g >> 3) + 16 * (i_g & 1))[:, :, None] + i_r  # [1, G, R]
    q = u8(p_b[:, None, None] + o_q) >> (i_g & 6)[:, :, None] & 3
    put(p_out, n_blocks, scale[:, :, None] * real(q) - low[:, :, None])


@body()
def q3_k(p_blocks: tl.tensor, p_out: tl.tensor, n_blocks: tl.tensor, BLOCKS: tl.constexpr) -> None:
    """`d * (s - 32) * (q - 4)`; fields hmask 32, qs 64, scales 12 (8 of low nibbles, 4 of high bits), d 2."""
    p_b = block_pointers(p_blocks, n_blocks, 110, BLOCKS)
    i_g = tl.arange(0, 16)[None, :]
    i_r = tl.arange(0, 16)[None, None, :]
    low = u8(p_b[:, None] + 96 + (i_g & 7)) >> 4 * (i_g >> 3) & 15  # [B, G]
    high = u8(p_b[:, None] + 104 + (i_g & 3)) >> 2 * (i_g >> 2) & 3
    scale = f16(p_b + 108)[:, None] * real((low | high << 4) - 32)
    o_m = (16 * (i_g & 1))[:, :, None] + i_r  # [1, G, R]
    q = u8(p_b[:, None, None] + (32 + 32 * (i_g >> 3))[:, :, None] + o_m) >> (i_g & 6)[:, :, None] & 3
    m = u8(p_b[:, None, None] + o_m) >> (i_g >> 1)[:, :, None] & 1
    put(p_out, n_blocks, scale[:, :, None] * real((q | m << 2) - 4))


@jit
def six_bit_pairs(p_b: tl.tensor) -> Any:
    """The scales and minima of Q4_K and Q5_K, times d and dmin -> two [B, G]; fields d 2, dmin 2, scales 12."""
    i_g = tl.arange(0, 8)[None, :]
    p_h = p_b[:, None] + 4 + (i_g & 3)
    a, b, c = u8(p_h), u8(p_h + 4), u8(p_h + 8)
    s = tl.where(i_g < 4, a & 63, c & 15 | a >> 6 << 4)
    m = tl.where(i_g < 4, b & 63, c >> 4 | b >> 6 << 4)
    return f16(p_b)[:, None] * real(s), f16(p_b + 2)[:, None] * real(m)


@body()
def q4_k(p_blocks: tl.tensor, p_out: tl.tensor, n_blocks: tl.tensor, BLOCKS: tl.constexpr) -> None:
    """`d * s * q - dmin * m`; fields d 2, dmin 2, scales 12, qs 128."""
    p_b = block_pointers(p_blocks, n_blocks, 144, BLOCKS)
    i_g = tl.arange(0, 8)[None, :, None]
    i_r = tl.arange(0, 32)[None, None, :]
    scale, low = six_bit_pairs(p_b)
    q = u8(p_b[:, None, None] + 16 + 32 * (i_g >> 1) + i_r) >> 4 * (i_g & 1) & 15  # [B, G, R]
    put(p_out, n_blocks, scale[:, :, None] * real(q) - low[:, :, None])


@body()
def q5_k(p_blocks: tl.tensor, p_out: tl.tensor, n_blocks: tl.tensor, BLOCKS: tl.constexpr) -> None:
    """`d * s * q - dmin * m`; fields d 2, dmin 2, scales 12, qh 32, qs 128."""
    p_b = block_pointers(p_blocks, n_blocks, 176, BLOCKS)
    i_g = tl.arange(0, 8)[None, :, None]
    i_r = tl.arange(0, 32)[None, None, :]
    scale, low = six_bit_pairs(p_b)
    q = u8(p_b[:, None, None] + 48 + 32 * (i_g >> 1) + i_r) >> 4 * (i_g & 1) & 15  # [B, G, R]
    high = u8(p_b[:, None, None] + 16 + i_r + 0 * i_g) >> i_g & 1
    put(p_out, n_blocks, scale[:, :, None] * real(q | high << 4) - low[:, :, None])


@body()
def q6_k(p_blocks: tl.tensor, p_out: tl.tensor, n_blocks: tl.tensor, BLOCKS: tl.constexpr) -> None:
    """`d * s * (q - 32)`; fields ql 128, qh 64, scales 16, d 2."""
    p_b = block_pointers(p_blocks, n_blocks, 210, BLOCKS)
    i_g = tl.arange(0, 16)[None, :]
    i_r = tl.arange(0, 16)[None, None, :]
    scale = f16(p_b + 208)[:, None] * real(s8(p_b[:, None] + 192 + i_g))  # [B, G]
    o_l = (64 * (i_g >> 3) + 16 * (i_g & 3))[:, :, None] + i_r  # [1, G, R]
    o_h = (128 + 32 * (i_g >> 3) + 16 * (i_g & 1))[:, :, None] + i_r
    low = u8(p_b[:, None, None] + o_l) >> (i_g & 4)[:, :, None] & 15
    high = u8(p_b[:, None, None] + o_h) >> (i_g & 6)[:, :, None] & 3
    put(p_out, n_blocks, scale[:, :, None] * real((low | high << 4) - 32))


@body()
def tq1_0(p_blocks: tl.tensor, p_out: tl.tensor, n_blocks: tl.tensor, BLOCKS: tl.constexpr) -> None:
    """`d * (digit - 1)`; fields qs 48, qh 4, d 2. The n-th digit is the top one of the byte times 3^n.

    Digits lie in planes: of 32 bytes for the first ten groups of 16, of 16 bytes for the next five, of 4 for the last.
    """
    p_b = block_pointers(p_blocks, n_blocks, 54, BLOCKS)
    i_g = tl.arange(0, 16)[None, :, None]
    i_r = tl.arange(0, 16)[None, None, :]
    o_q = tl.where(i_g < 10, 16 * (i_g & 1) + i_r, tl.where(i_g < 15, 32 + i_r, 48 + (i_r & 3)))  # [1, G, R]
    n = tl.where(i_g < 10, i_g >> 1, tl.where(i_g < 15, i_g - 10, i_r >> 2))
    power = (1 + 2 * (n & 1)) * (1 + 4 * (n & 2)) * (1 + 20 * (n & 4))
    digit = (u8(p_b[:, None, None] + o_q) * power & 255) * 3 >> 8
    put(p_out, n_blocks, f16(p_b + 52)[:, None, None] * real(digit - 1))


@body()
def tq2_0(p_blocks: tl.tensor, p_out: tl.tensor, n_blocks: tl.tensor, BLOCKS: tl.constexpr) -> None:
    """`d * (q - 1)`; fields qs 64, d 2."""
    p_b = block_pointers(p_blocks, n_blocks, 66, BLOCKS)
    i_g = tl.arange(0, 8)[None, :, None]
    i_r = tl.arange(0, 32)[None, None, :]
    q = u8(p_b[:, None, None] + 32 * (i_g >> 2) + i_r) >> 2 * (i_g & 3) & 3  # [B, G, R]
    put(p_out, n_blocks, f16(p_b + 64)[:, None, None] * real(q - 1))


@body()
def q1_0(p_blocks: tl.tensor, p_out: tl.tensor, n_blocks: tl.tensor, BLOCKS: tl.constexpr) -> None:
    """`d` or `-d`; fields d 2, qs 16."""
    p_b = block_pointers(p_blocks, n_blocks, 18, BLOCKS)
    i_g = tl.arange(0, 16)[None, :]
    i_r = tl.arange(0, 8)[None, None, :]
    q = u8(p_b[:, None] + 2 + i_g)[:, :, None] >> i_r & 1  # [B, G, R]
    put(p_out, n_blocks, f16(p_b)[:, None, None] * real(2 * q - 1))


@body()
def q2_0(p_blocks: tl.tensor, p_out: tl.tensor, n_blocks: tl.tensor, BLOCKS: tl.constexpr) -> None:
    """`d * (q - 1)`; fields d 2, qs 16."""
    p_b = block_pointers(p_blocks, n_blocks, 18, BLOCKS)
    i_g = tl.arange(0, 8)[None, :]
    i_r = tl.arange(0, 8)[None, None, :]
    q = u16(p_b[:, None] + 2 + 2 * i_g)[:, :, None] >> 2 * i_r & 3  # [B, G, R]
    put(p_out, n_blocks, f16(p_b)[:, None, None] * real(q - 1))
