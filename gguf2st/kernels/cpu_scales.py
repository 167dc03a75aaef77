"""Scales of the types whose codes `int8_g32` keeps: one float32 per 32 weights, as in `gguf2st.quants`.

Every body takes flat arrays: `blocks` (n_blocks * nbytes) and `scales` (n_blocks * block / 32) float32.
"""

from collections.abc import Callable

from gguf2st.kernels.cpu_access import Bytes, Table, Values, load_f16, load_f32, put, real, u8, u16, u32
from gguf2st.kernels.cpu_bodies import Body
from gguf2st.kernels.cpu_codebooks import EIGHTH, HALF, QUARTER

SCALES: dict[str, Body] = {}
"""ggml type name -> its body."""


def _body(*tables: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def register(function: Callable[..., None]) -> Callable[..., None]:
        SCALES[function.__name__.removesuffix("_scales").upper()] = Body(function, tables)
        return function

    return register


@_body()
def iq2_xxs_scales(blocks: Bytes, scales: Values) -> None:
    """`d * (s + 1/2) / 4`, s in the top bits of every second word."""
    for i in range(len(scales) // 8):
        d = load_f16(blocks, 66 * i)
        for g in range(8):
            put(scales, 8 * i + g, d * (real(u32(blocks, 66 * i + 6 + 8 * g) >> 28) + HALF) * QUARTER)


@_body()
def iq3_xxs_scales(blocks: Bytes, scales: Values) -> None:
    """`d * (s + 1/2) / 2`, s in the top bits of every word of `gas`."""
    for i in range(len(scales) // 8):
        d = load_f16(blocks, 98 * i)
        for g in range(8):
            put(scales, 8 * i + g, d * (real(u32(blocks, 98 * i + 66 + 4 * g) >> 28) + HALF) * HALF)


@_body()
def iq3_s_scales(blocks: Bytes, scales: Values) -> None:
    """`d * (2 * s + 1)`, s a nibble."""
    for i in range(len(scales) // 8):
        d = load_f16(blocks, 110 * i)
        for g in range(8):
            s = u8(blocks, 110 * i + 106 + (g >> 1)) >> 4 * (g & 1) & 15
            put(scales, 8 * i + g, d * real(2 * s + 1))


@_body()
def iq1_s_scales(blocks: Bytes, scales: Values) -> None:
    """`d * (2 * s + 1) / 8`, s three bits of a word of `qh`."""
    for i in range(len(scales) // 8):
        d = load_f16(blocks, 50 * i)
        for g in range(8):
            s = u16(blocks, 50 * i + 34 + 2 * g) >> 12 & 7
            put(scales, 8 * i + g, d * real(2 * s + 1) * EIGHTH)


@_body()
def iq4_xs_scales(blocks: Bytes, scales: Values) -> None:
    """`d * (s - 32)`, s of 4 and 2 bits."""
    for i in range(len(scales) // 8):
        b = 136 * i
        d, high, low = load_f16(blocks, b), u16(blocks, b + 2), u32(blocks, b + 4)
        for g in range(8):
            put(scales, 8 * i + g, d * real((low >> 4 * g & 15 | (high >> 2 * g & 3) << 4) - 32))


@_body("e8m0_half")
def mxfp4_scales(blocks: Bytes, scales: Values, powers: Table) -> None:
    """`powers[e]`."""
    for i in range(len(scales)):
        put(scales, i, load_f32(powers, 4 * u8(blocks, 17 * i)))
