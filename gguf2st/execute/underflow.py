"""What a cast to float16 loses at the small end: below 2^-14 its values are 2^-24 apart, and below 2^-25 they are 0.

Only the few values that float16 holds as subnormal numbers or as 0 are looked at again.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

LOST = 0.01
"""Change of a value, relative to itself, from which on it counts as lost."""
_EXPONENT = 0x7C00
_CAN_LOSE = frozenset(
    {"F32", "F64", "BF16", "MXFP4", "Q8_K", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"}
)
"""Types with values between the multiples of 2^-24. In the others each value is a float16 times a whole number, which
is such a multiple; or, in NVFP4, of 2^-10."""
_MXFP4_SAFE = 104
"""Exponent byte of a block from which on no value is lost: 2^(104 - 127) times the least code, a half, is 2^-24."""


def lost_values(
    qtype: str, blocks: Bytes, out: NDArray[Any], exact: Callable[[], "NDArray[np.float32]"]
) -> tuple[int, int]:
    """(values that lose `LOST` or become 0, values that are not 0) of blocks that were cast to float16.

    Args:
        qtype: of the blocks.
        blocks: (n_blocks, nbytes).
        out: uint16, the bits of the float16 values, any shape.
        exact: decodes the blocks to float32.
    """
    bits = out.reshape(-1)
    if qtype not in _CAN_LOSE or (qtype == "MXFP4" and blocks.reshape(-1, 17)[:, 0].min() >= _MXFP4_SAFE):
        return 0, len(bits)
    small = np.flatnonzero((bits & _EXPONENT) == 0)
    if not len(small):
        return 0, len(bits)
    values = _at(qtype, blocks, small, exact).astype(np.float64)
    became = bits[small].view(np.float16).astype(np.float64)
    lost = np.count_nonzero(np.abs(became - values) > LOST * np.abs(values))
    return int(lost), len(bits) - len(small) + int(np.count_nonzero(values))


def _at(qtype: str, blocks: Bytes, small: "NDArray[np.int64]", exact: Callable[[], Any]) -> Any:
    """The values at some places."""
    if qtype in ("F32", "F64"):
        return blocks.reshape(-1).view(np.float32 if qtype == "F32" else np.float64)[small]
    if qtype == "BF16":
        return (blocks.reshape(-1).view(np.uint16)[small].astype(np.uint32) << 16).view(np.float32)
    return exact().reshape(-1)[small]
