"""Loads and rounding stores for the GPU kernels, and how their threads meet memory.

Every kernel works on a tile of `BLOCKS` blocks, shaped [B, G, R]: block, group, weight in the group. Read flat, a tile
is consecutive weights of the output, and a tile is as large as its threads store with one instruction each:

* a thread stores 8 consecutive 16-bit weights or 4 of float32 as one 16-byte word, a warp one run of 512 bytes;
* neighbouring threads read neighbouring codes of a block. How wide a load may be depends on how far blocks are aligned:
  the compiler proves it from the block size, and reads 8 one-byte codes as one word where blocks are multiples of 8
  bytes (Q4_K: 144), by 2 where they are even (Q8_0: 34, Q6_K: 210), and singly for MXFP4 (17). A warp's loads lie in
  one stretch of memory, which is read once: what threads share, L1 serves;
* codes are loaded by the thread that stores them, in the shape [B, G, R] (hence `+ 0 * i_g`), and scales as [B, G] or
  [B], once per thread. Other shapes, [B, G, 1] among them, or larger tiles cost repeated loads or a detour through
  shared memory. A test looks for both in the compiled code.

Pointers come with the element type that names what they mean:

    out: float32*  -> float32        int16* -> bfloat16 bits        float16* -> float16

Devices round a cast to nearest even. Triton's interpreter, which checks these kernels where there is no GPU, truncates
casts to bfloat16: there the rounding is spelled out.

Kernels must be launched with `enable_fp_fusion=False`: `d * q - m` rounds twice, as ggml does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl


@dataclass(frozen=True, slots=True)
class Body:
    """What Triton compiles for a type: `kernel(p_blocks, p_out, n_blocks, *tables, BLOCKS)`."""

    kernel: Any
    tables: tuple[str, ...]
    """Names in `gguf2st.quants.codebooks`."""
    width: int
    """Consecutive weights per thread, at most."""


BODIES: dict[str, Body] = {}
"""ggml type name -> its body. Complete once `gpu_bodies` and `gpu_codebooks` are imported."""


def jit(function: Callable[..., Any]) -> Any:
    """`triton.jit`, typed. The number of blocks must not choose a kernel: one compilation serves every batch."""
    return triton.jit(function, do_not_specialize=["n_blocks", "n"])


def body(*tables: str, width: int = 8) -> Callable[[Callable[..., Any]], Any]:
    """Compile with Triton, and register under the upper-cased name of the function."""

    def register(function: Callable[..., Any]) -> Any:
        kernel = jit(function)
        BODIES[function.__name__.upper()] = Body(kernel, tables, width)
        return kernel

    return register


@jit
def block_pointers(p_blocks: tl.tensor, n_blocks: tl.tensor, NBYTES: tl.constexpr, BLOCKS: tl.constexpr) -> tl.tensor:
    """First bytes of the tile's blocks -> [B]. Past the end it is the last block again, so no load needs a mask."""
    first = tl.program_id(0).to(tl.int64) * BLOCKS
    last = tl.minimum(n_blocks - first, BLOCKS).to(tl.int32) - 1
    return p_blocks + first * NBYTES + tl.minimum(tl.arange(0, BLOCKS), last) * NBYTES


@jit
def u8(p: tl.tensor) -> tl.tensor:
    """Unsigned bytes, as int32."""
    return tl.load(p).to(tl.int32)


@jit
def s8(p: tl.tensor) -> tl.tensor:
    """Signed bytes, as int32."""
    return tl.load(p.to(tl.pointer_type(tl.int8))).to(tl.int32)


@jit
def u16(p: tl.tensor) -> tl.tensor:
    """Unsigned 16-bit words at even addresses, as int32."""
    return tl.load(p.to(tl.pointer_type(tl.uint16))).to(tl.int32)


@jit
def u32(p: tl.tensor) -> tl.tensor:
    """Unsigned 32-bit words at even addresses: most blocks do not align them further."""
    return u16(p).to(tl.uint32) | u16(p + 2).to(tl.uint32) << 16


@jit
def f16(p: tl.tensor) -> tl.tensor:
    """float16 at even addresses, as float32; subnormals are exact."""
    return tl.load(p.to(tl.pointer_type(tl.float16))).to(tl.float32)


@jit
def real(code: tl.tensor) -> tl.tensor:
    """Integer codes, as float32."""
    return code.to(tl.float32)


INTERPRETED = tl.constexpr(not isinstance(real, triton.JITFunction))
"""Whether kernels run under TRITON_INTERPRET=1."""


@jit
def bf16_bits(x: tl.tensor) -> tl.tensor:
    """float32 -> bfloat16 bits in int16, to nearest even; the quiet bit keeps a NaN from rounding into an infinity."""
    if not INTERPRETED:
        return x.to(tl.bfloat16).to(tl.int16, bitcast=True)
    bits = x.to(tl.uint32, bitcast=True)
    rounded = bits + 0x7FFF + (bits >> 16 & 1)
    return (tl.where(x == x, rounded, bits | 0x400000) >> 16).to(tl.int16)


@jit
def store(p: tl.tensor, x: tl.tensor, mask: tl.tensor) -> None:
    """Store float32 values, rounded to what the pointer stands for."""
    if p.dtype.element_ty == tl.int16:
        tl.store(p, bf16_bits(x), mask=mask)
    else:
        tl.store(p, x.to(p.dtype.element_ty), mask=mask)


@jit
def put(p_out: tl.tensor, n_blocks: tl.tensor, x: tl.tensor) -> None:
    """Store the tile [B, G, R] at its place in the output, the blocks past the end left out."""
    B: tl.constexpr = x.shape[0]
    G: tl.constexpr = x.shape[1]
    R: tl.constexpr = x.shape[2]
    i_b = tl.arange(0, B)[:, None, None]  # [B, 1, 1]
    i_g = tl.arange(0, G)[None, :, None]  # [1, G, 1]
    i_r = tl.arange(0, R)[None, None, :]  # [1, 1, R]
    first = tl.program_id(0).to(tl.int64) * B
    p_tile = (p_out + first * (G * R)) + ((i_b * G + i_g) * R + i_r)  # [B, G, R]
    store(p_tile, x, i_b < n_blocks - first)
