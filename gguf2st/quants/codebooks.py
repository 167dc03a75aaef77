"""Number tables of the codebook types, as numpy arrays (no torch). The grids come from the gguf package."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import quants

Table = npt.NDArray[Any]


def _grid(name: str, factor: int = 1) -> Callable[[], Table]:
    """(entries, 4 or 8) int8: the grid of a ggml type, whose rows are groups of neighbouring weights."""

    def build() -> Table:
        source = getattr(quants, name)
        source.init_grid()
        grid: Table = source.grid.reshape(source.grid_shape) * factor
        return grid.astype(np.int8)

    return build


def _signs() -> Table:
    """(256, 8) int8: row `byte`, -1 where bit j of it is set, else 1."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return 1 - 2 * bits.astype(np.int8)


def _even_signs() -> Table:
    """(128, 8) int8: as `_signs` for 7 stored bits; the eighth makes the number of minus signs even."""
    seven = np.arange(128)
    parity = np.bitwise_xor.reduce(seven[:, None] >> np.arange(7) & 1, axis=1)
    even: Table = _signs()[seven | parity << 7]
    return even


def _e2m1() -> Table:
    """(16,) int8: FP4 values, doubled (ggml-common.h `kvalues_mxfp4`); the scales below are halved in return."""
    magnitudes = [0, 1, 2, 3, 4, 6, 8, 12]
    return np.array(magnitudes + [-m for m in magnitudes], np.int8)


def _iq4() -> Table:
    """(16,) int8: the non-linear 4-bit code (ggml-common.h `kvalues_iq4nl`)."""
    return np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)


def _e8m0_half() -> Table:
    """(256,) float32: `2^(e - 127) / 2`. ggml gives no meaning to 255, which the OCP format calls NaN."""
    return np.ldexp(np.float32(0.5), np.arange(256) - 127).astype(np.float32)


def _ue4m3_half() -> Table:
    """(256,) float32: 4 exponent bits with bias 7 and 3 mantissa bits, halved. 0x7F is 0; the sign bit is ignored.

    As in ggml-impl.h `ggml_ue4m3_to_fp32`, which tests for 0x7F before it drops the sign: 0xFF is 240.
    """
    x = np.arange(256)
    exponent, mantissa = x >> 3 & 15, x & 7
    value = np.where(exponent == 0, np.ldexp(mantissa / 8, -6), np.ldexp(1 + mantissa / 8, exponent - 7))
    return np.where(x == 0x7F, 0, value / 2).astype(np.float32)


_BUILDERS: dict[str, Callable[[], Table]] = {
    "iq2_xxs": _grid("IQ2_XXS"),
    "iq2_xs": _grid("IQ2_XS"),
    "iq2_s": _grid("IQ2_S"),
    "iq3_xxs": _grid("IQ3_XXS"),
    "iq3_s": _grid("IQ3_S"),
    "iq1_eighths": _grid("IQ1_S", factor=8),  # IQ1_M has the same grid; its codes are shifted by an eighth up or down
    "iq4": _iq4,
    "signs": _signs,
    "even_signs": _even_signs,
    "e2m1": _e2m1,
    "e8m0_half": _e8m0_half,
    "ue4m3_half": _ue4m3_half,
}


@cache
def table(name: str) -> Table:
    """A table by name, read-only.

    Raises:
        KeyError: no such table.
    """
    array = np.ascontiguousarray(_BUILDERS[name]())
    array.flags.writeable = False
    return array
