"""Decode blocks on the CPU: numba kernels that release the GIL and write the output dtype directly.

A kernel is compiled when its (type, dtype) pair is first used, in about 0.1 CPU seconds, and kept in numba's disk
cache, or in memory only where no cache folder can be written.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from gguf2st.kernels import cpu_codebooks  # noqa: F401  (registers the bodies that use tables)
from gguf2st.kernels.cpu_access import BF16_ARRAY, F16_ARRAY
from gguf2st.kernels.cpu_bodies import BODIES
from gguf2st.kernels.cpu_cache import run
from gguf2st.quants.codebooks import table
from gguf2st.quants.layout import TYPES, undecodable

QTYPES: frozenset[str] = frozenset(BODIES)
"""ggml types with a kernel."""

_ELEMENTS: dict[str, tuple[type[np.generic], type[np.generic]]] = {
    "float32": (np.float32, np.float32),
    "bfloat16": (np.uint16, BF16_ARRAY),
    "float16": (np.uint16, F16_ARRAY),
}
"""Output dtype -> (elements of the caller's array, elements that the kernel sees)."""

SAME_BITS = frozenset({("F32", "float32"), ("BF16", "bfloat16"), ("F16", "float16")})
"""(ggml type, output dtype) where decoding is a copy."""
EXPONENTS = {"float32": 0x7F800000, "bfloat16": 0x7F80, "float16": 0x7C00}
"""Output dtype -> the bits that are all set in what is NaN or infinite."""


def _element_types(dtype: str) -> tuple[type[np.generic], type[np.generic]]:
    if dtype not in _ELEMENTS:
        raise ValueError(f"no kernel writes {dtype!r}; available: {', '.join(_ELEMENTS)}")
    return _ELEMENTS[dtype]


def dequantize(qtype: str, dtype: str, blocks: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> None:
    """Decode `blocks` into `out`, each value rounded once from ggml's float32 to nearest even.

    Args:
        qtype: ggml type name, one of `QTYPES`.
        dtype: "float32", or "bfloat16" / "float16" whose bits go into uint16.
        blocks: (n_blocks, nbytes) uint8, C-contiguous.
        out: (n_blocks, block) float32 or uint16, C-contiguous; overwritten. Must not overlap `blocks`.

    Raises:
        SchemeError: no kernel for `qtype`.
        ValueError: an unknown `dtype`, or an array of another shape, element type or layout.
    """
    if qtype not in QTYPES:
        raise undecodable(qtype)
    element, marker = _element_types(dtype)
    layout = TYPES[qtype]
    for name, array, row, want in (("blocks", blocks, layout.nbytes, np.uint8), ("out", out, layout.block, element)):
        if array.shape != (len(blocks), row) or array.dtype != want or not array.flags.c_contiguous:
            raise ValueError(
                f"{name} is {array.dtype} {array.shape}, expected C-contiguous {np.dtype(want)} {(len(blocks), row)} "
                f"for {qtype} -> {dtype}"
            )
    if (qtype, dtype) in SAME_BITS:
        np.copyto(out.view(np.uint8), blocks)
    else:
        kernel = BODIES[qtype]
        tables = (table(name) for name in kernel.tables)
        run(kernel.function, blocks.reshape(-1), out.reshape(-1).view(marker), *tables)


def count_nonfinite(dtype: str, out: npt.NDArray[Any]) -> int:
    """How many values are NaN or infinite.

    Args:
        dtype: as in `dequantize`.
        out: any shape, C-contiguous; float32 or uint16.

    Raises:
        ValueError: an unknown `dtype`, or an array of another element type or layout.
    """
    element, _ = _element_types(dtype)
    if out.dtype != element or not out.flags.c_contiguous:
        raise ValueError(f"out is {out.dtype}, expected C-contiguous {np.dtype(element)} for {dtype}")
    bits = out.reshape(-1).view(np.uint32 if dtype == "float32" else np.uint16)
    return int(run(_count_masked, bits, np.array([EXPONENTS[dtype]], bits.dtype)))


def _count_masked(bits: npt.NDArray[Any], mask: npt.NDArray[Any]) -> int:
    """Elements that have all bits of `mask[0]` set, with a fast pass for stretches that hold none."""
    stretch, exponent, count = 2048, mask[0], 0
    for start in range(0, len(bits), stretch):
        part = bits[start : start + stretch]
        largest = exponent ^ exponent
        for x in part:
            largest = max(largest, x & exponent)
        if largest == exponent:
            for x in part:
                count += (x & exponent) == exponent
    return count
