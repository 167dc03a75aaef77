"""The torch decoders: the reference for every other path, on any device.

`QUANTS` is complete once this module is imported.
"""

import torch
from torch import Tensor

from gguf2st.quants import iquants, kquants, legacy, microscaling, plain, ternary  # noqa: F401  (registers the types)
from gguf2st.quants.base import QUANTS, Affine, AffineQuant, Quant
from gguf2st.quants.layout import undecodable

__all__ = ["QUANTS", "Affine", "AffineQuant", "Quant", "dequantize", "quant"]


def quant(qtype: str) -> type[Quant]:
    """The class of a ggml type.

    Raises:
        SchemeError: no decoder for `qtype`.
    """
    if qtype not in QUANTS:
        raise undecodable(qtype)
    return QUANTS[qtype]


def dequantize(qtype: str, blocks: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """(n_blocks, nbytes) uint8 -> (n_blocks, block) `dtype`, rounded once from ggml's float32 to nearest even.

    Raises:
        SchemeError: no decoder for `qtype`.
    """
    return quant(qtype).dequantize(blocks).to(dtype)
