"""MXFP4 blocks of ollama's files of August 2025, older than ggml's type, brought to the layout that decoders read."""

import numpy as np
import numpy.typing as npt


def apart(blocks: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """A copy of MXFP4 blocks in which ggml's pairs of numbers share a byte, and no longer neighbours.

    (n_blocks, 17) uint8, of the scale `e` and the 16 bytes `qs` -> the same shape. The low and the high half of byte j
    are the numbers 2j and 2j + 1 before, j and j + 16 after.
    """
    out = blocks.copy()
    first, second = blocks[:, 1:9], blocks[:, 9:]  # numbers 0 to 15, and 16 to 31
    out[:, 1::2] = first & 15 | second << 4
    out[:, 2::2] = first >> 4 | second & 240
    return out
