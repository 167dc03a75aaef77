"""Blocks of big-endian GGUF files (s390x and the like) brought to the little-endian layout that every decoder reads."""

import numpy as np
import numpy.typing as npt

from gguf2st.quants.layout import TYPES


def to_native(qtype: str, blocks: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """A copy of `blocks` with the bytes of every item of every field reversed.

    (n_blocks, nbytes) uint8 of a big-endian file -> the same shape, little-endian. Fields of single bytes stay.

    Raises:
        KeyError: `qtype` is not in `TYPES`.
    """
    out = blocks.copy()
    start = 0
    for field in TYPES[qtype].fields:
        stop = start + field.nbytes
        if field.itemsize > 1:
            items = blocks[:, start:stop].reshape(len(blocks), -1, field.itemsize)
            out[:, start:stop] = items[:, :, ::-1].reshape(len(blocks), field.nbytes)
        start = stop
    return out
