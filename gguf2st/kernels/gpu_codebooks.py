"""Kernel bodies of the types that look up tables, which come as extra arguments (see `gguf2st.quants.codebooks`).

A row of a grid or of signs is 4 or 8 consecutive bytes, aligned to its size: one load for 4 or 8 weights. Here `i_e`
counts the entries [1, E] of a block and `i_r` the weights of an entry [1, 1, R]; `p_b` and `o_` are as in `gpu_bodies`.
"""

import triton.language as tl

from gguf2st.kernels.gpu_access import block_pointers, body, f16, jit, put, real, s8, u8, u16, u32


@jit
def row(p_table: tl.tensor, index: tl.tensor, R: tl.constexpr) -> tl.tensor:
    """Rows of a table of signed bytes: [B, E] -> [B, E, R]."""
    return s8(p_table + (R * index)[:, :, None] + tl.arange(0, R)[None, None, :])


@jit
def signed(p_grid: tl.tensor, index: tl.tensor, p_signs: tl.tensor, sign_index: tl.tensor) -> tl.tensor:
    """Rows of 8 magnitudes times rows of 8 signs: [B, E] twice -> [B, E, 8]."""
    return row(p_grid, index, 8) * row(p_signs, sign_index, 8)


@jit
def half_signed(p_grid: tl.tensor, index: tl.tensor, p_signs: tl.tensor, sign_index: tl.tensor) -> tl.tensor:
    """Rows of 4 magnitudes times halves of rows of 8 signs, which neighbours share: [B, E] twice -> [B, E, 4]."""
    i_e = tl.arange(0, index.shape[1])[None, :]
    return row(p_grid, index, 4) * row(p_signs, 2 * sign_index + (i_e & 1), 4)


@body("iq2_xxs", "even_signs")
def iq2_xxs(
    p_blocks: tl.tensor,
    p_out: tl.tensor,
    n_blocks: tl.tensor,
    p_grid: tl.tensor,
    p_signs: tl.tensor,
    BLOCKS: tl.constexpr,
) -> None:
    """Fields d 2, qs 64: per 32 weights four grid indices, then a word of signs and scale."""
    p_b = block_pointers(p_blocks, n_blocks, 66, BLOCKS)
    i_e = tl.arange(0, 32)[None, :]
    p_g = p_b[:, None] + 2 + 8 * (i_e >> 2)  # [B, E]
    word = u32(p_g + 4)
    scale = f16(p_b)[:, None] * (real(word >> 28) + 0.5) * 0.25
    q = signed(p_grid, u8(p_g + (i_e & 3)), p_signs, (word >> 7 * (i_e & 3) & 127).to(tl.int32))
    put(p_out, n_blocks, scale[:, :, None] * real(q))


@jit
def scale_16(p_b: tl.tensor, i_e: tl.tensor, SCALES: tl.constexpr) -> tl.tensor:
    """`d * (s + 1/2) / 4` with a nibble of s per 16 weights -> [B, E]; fields d 2, ..., scales 8 from SCALES on."""
    s = u8(p_b[:, None] + SCALES + (i_e >> 2)) >> 4 * (i_e >> 1 & 1) & 15
    return f16(p_b)[:, None] * (real(s) + 0.5) * 0.25


@body("iq2_xs", "even_signs")
def iq2_xs(
    p_blocks: tl.tensor,
    p_out: tl.tensor,
    n_blocks: tl.tensor,
    p_grid: tl.tensor,
    p_signs: tl.tensor,
    BLOCKS: tl.constexpr,
) -> None:
    """Fields d 2, qs 64, scales 8: 9 bits of index and 7 of signs per 8 weights, a nibble of scale per 16."""
    p_b = block_pointers(p_blocks, n_blocks, 74, BLOCKS)
    i_e = tl.arange(0, 32)[None, :]
    word = u16(p_b[:, None] + 2 + 2 * i_e)  # [B, E]
    q = signed(p_grid, word & 511, p_signs, word >> 9)
    put(p_out, n_blocks, scale_16(p_b, i_e, 66)[:, :, None] * real(q))


@body("iq2_s", "signs")
def iq2_s(
    p_blocks: tl.tensor,
    p_out: tl.tensor,
    n_blocks: tl.tensor,
    p_grid: tl.tensor,
    p_signs: tl.tensor,
    BLOCKS: tl.constexpr,
) -> None:
    """Fields d 2, qs 32, signs 32, qh 8, scales 8: 10 bits of index per 8 weights, a nibble of scale per 16."""
    p_b = block_pointers(p_blocks, n_blocks, 82, BLOCKS)
    i_e = tl.arange(0, 32)[None, :]
    high = u8(p_b[:, None] + 66 + (i_e >> 2)) >> 2 * (i_e & 3) & 3  # [B, E]
    q = signed(p_grid, u8(p_b[:, None] + 2 + i_e) | high << 8, p_signs, u8(p_b[:, None] + 34 + i_e))
    put(p_out, n_blocks, scale_16(p_b, i_e, 74)[:, :, None] * real(q))


@body("iq3_xxs", "even_signs", width=4)
def iq3_xxs(
    p_blocks: tl.tensor,
    p_out: tl.tensor,
    n_blocks: tl.tensor,
    p_grid: tl.tensor,
    p_signs: tl.tensor,
    BLOCKS: tl.constexpr,
) -> None:
    """Fields d 2, qs 64, gas 32: an index per 4 weights, a word of signs and scale per 32."""
    p_b = block_pointers(p_blocks, n_blocks, 98, BLOCKS)
    i_e = tl.arange(0, 64)[None, :]
    word = u32(p_b[:, None] + 66 + 4 * (i_e >> 3))  # [B, E]
    scale = f16(p_b)[:, None] * (real(word >> 28) + 0.5) * 0.5
    sign_index = (word >> 7 * (i_e >> 1 & 3) & 127).to(tl.int32)
    q = half_signed(p_grid, u8(p_b[:, None] + 2 + i_e), p_signs, sign_index)
    put(p_out, n_blocks, scale[:, :, None] * real(q))


@body("iq3_s", "signs", width=4)
def iq3_s(
    p_blocks: tl.tensor,
    p_out: tl.tensor,
    n_blocks: tl.tensor,
    p_grid: tl.tensor,
    p_signs: tl.tensor,
    BLOCKS: tl.constexpr,
) -> None:
    """Fields d 2, qs 64, qh 8, signs 32, scales 4: 9 bits of index per 4 weights, a nibble of scale per 32."""
    p_b = block_pointers(p_blocks, n_blocks, 110, BLOCKS)
    i_e = tl.arange(0, 64)[None, :]
    s = u8(p_b[:, None] + 106 + (i_e >> 4)) >> 4 * (i_e >> 3 & 1) & 15  # [B, E]
    scale = f16(p_b)[:, None] * real(2 * s + 1)
    high = u8(p_b[:, None] + 66 + (i_e >> 3)) >> (i_e & 7) & 1
    index = u8(p_b[:, None] + 2 + i_e) | high << 8
    q = half_signed(p_grid, index, p_signs, u8(p_b[:, None] + 74 + (i_e >> 1)))
    put(p_out, n_blocks, scale[:, :, None] * real(q))


@body("iq1_eighths")
def iq1_s(p_blocks: tl.tensor, p_out: tl.tensor, n_blocks: tl.tensor, p_grid: tl.tensor, BLOCKS: tl.constexpr) -> None:
    """Fields d 2, qs 32, qh 16: per 32 weights four times 3 index bits, a 3-bit scale and the sign of the shift."""
    p_b = block_pointers(p_blocks, n_blocks, 50, BLOCKS)
    i_e = tl.arange(0, 32)[None, :]
    word = u16(p_b[:, None] + 34 + 2 * (i_e >> 2))  # [B, E]
    scale = f16(p_b)[:, None] * 0.125 * real(2 * (word >> 12 & 7) + 1)
    index = u8(p_b[:, None] + 2 + i_e) | (word >> 3 * (i_e & 3) & 7) << 8
    q = row(p_grid, index, 8) + (1 - 2 * (word >> 15))[:, :, None]
    put(p_out, n_blocks, scale[:, :, None] * real(q))


@body("iq1_eighths")
def iq1_m(p_blocks: tl.tensor, p_out: tl.tensor, n_blocks: tl.tensor, p_grid: tl.tensor, BLOCKS: tl.constexpr) -> None:
    """Fields qs 32, qh 16, scales 8: a nibble of index and shift per 8 weights; scales hold 3 bits per 16, and d."""
    p_b = block_pointers(p_blocks, n_blocks, 56, BLOCKS)
    i_e = tl.arange(0, 32)[None, :]
    p_s = p_b + 48
    bits = u16(p_s) >> 12 | u16(p_s + 2) >> 12 << 4 | u16(p_s + 4) >> 12 << 8 | u16(p_s + 6) >> 12 << 12  # [B]
    d = bits.to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
    s = u16(p_s[:, None] + 2 * (i_e >> 3)) >> 3 * (i_e >> 1 & 3) & 7  # [B, E]
    scale = d[:, None] * 0.125 * real(2 * s + 1)
    nibble = u8(p_b[:, None] + 32 + (i_e >> 1)) >> 4 * (i_e & 1)
    q = row(p_grid, u8(p_b[:, None] + i_e) | (nibble & 7) << 8, 8) + (1 - 2 * (nibble >> 3 & 1))[:, :, None]
    put(p_out, n_blocks, scale[:, :, None] * real(q))


@body("iq4")
def iq4_nl(
    p_blocks: tl.tensor, p_out: tl.tensor, n_blocks: tl.tensor, p_codes: tl.tensor, BLOCKS: tl.constexpr
) -> None:
    """`d * codes[q]`; fields d 2, qs 16."""
    p_b = block_pointers(p_blocks, n_blocks, 18, BLOCKS)
    i_g = tl.arange(0, 2)[None, :, None]
    i_r = tl.arange(0, 16)[None, None, :]
    q = u8(p_b[:, None, None] + 2 + i_r + 0 * i_g) >> 4 * i_g & 15  # [B, G, R]
    put(p_out, n_blocks, f16(p_b)[:, None, None] * real(s8(p_codes + q)))


@body("iq4")
def iq4_xs(
    p_blocks: tl.tensor, p_out: tl.tensor, n_blocks: tl.tensor, p_codes: tl.tensor, BLOCKS: tl.constexpr
) -> None:
    """`d * (s - 32) * codes[q]`; fields d 2, scales_h 2, scales_l 4, qs 128."""
    p_b = block_pointers(p_blocks, n_blocks, 136, BLOCKS)
    i_g = tl.arange(0, 16)[None, :]  # halves of the groups of 32: low nibbles, high nibbles
    i_r = tl.arange(0, 16)[None, None, :]
    low = u8(p_b[:, None] + 4 + (i_g >> 2)) >> 4 * (i_g >> 1 & 1) & 15  # [B, G]
    high = u16(p_b + 2)[:, None] >> 2 * (i_g >> 1) & 3
    scale = f16(p_b)[:, None] * real((low | high << 4) - 32)
    q = u8(p_b[:, None, None] + (8 + 16 * (i_g >> 1))[:, :, None] + i_r) >> 4 * (i_g & 1)[:, :, None] & 15
    put(p_out, n_blocks, scale[:, :, None] * real(s8(p_codes + q)))


@body("e2m1", "e8m0_half")
def mxfp4(
    p_blocks: tl.tensor,
    p_out: tl.tensor,
    n_blocks: tl.tensor,
    p_codes: tl.tensor,
    p_scales: tl.tensor,
    BLOCKS: tl.constexpr,
) -> None:
    """`scales[e] * codes[q]`; fields e 1, qs 16."""
    p_b = block_pointers(p_blocks, n_blocks, 17, BLOCKS)
    i_g = tl.arange(0, 2)[None, :, None]
    i_r = tl.arange(0, 16)[None, None, :]
    scale = tl.load(p_scales + u8(p_b))  # [B]
    q = u8(p_b[:, None, None] + 1 + i_r + 0 * i_g) >> 4 * i_g & 15  # [B, G, R]
    put(p_out, n_blocks, scale[:, None, None] * real(s8(p_codes + q)))


@body("e2m1", "ue4m3_half")
def nvfp4(
    p_blocks: tl.tensor,
    p_out: tl.tensor,
    n_blocks: tl.tensor,
    p_codes: tl.tensor,
    p_scales: tl.tensor,
    BLOCKS: tl.constexpr,
) -> None:
    """`scales[d] * codes[q]` per 16 weights; fields d 4, qs 32."""
    p_b = block_pointers(p_blocks, n_blocks, 36, BLOCKS)
    i_g = tl.arange(0, 8)[None, :]  # halves of the groups of 16: low nibbles, high nibbles
    i_r = tl.arange(0, 8)[None, None, :]
    scale = tl.load(p_scales + u8(p_b[:, None] + (i_g >> 1)))  # [B, G]
    q = u8(p_b[:, None, None] + (4 + 8 * (i_g >> 1))[:, :, None] + i_r) >> 4 * (i_g & 1)[:, :, None] & 15
    put(p_out, n_blocks, scale[:, :, None] * real(s8(p_codes + q)))
