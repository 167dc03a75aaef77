"""Tensors of whole numbers, which nothing decodes and nothing rounds."""

import numpy as np
from numpy.typing import NDArray

_ITEMS = {"I8": np.int8, "I16": np.int16, "I32": np.int32, "I64": np.int64}
"""ggml type -> what numpy calls it."""


def whole_numbers(qtype: str, data: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Bytes of a member of `quants.layout.INTEGERS`, in native order -> its numbers, in an array of their own."""
    return data.view(_ITEMS[qtype]).astype(np.int64)
