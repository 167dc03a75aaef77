"""Types with one scale per 32 weights (ggml-quants.c `dequantize_row_q4_0` and its neighbours).

The low nibbles of `qs` are the first 16 weights, the high nibbles the last 16.
A `_1` type adds its `m`, so its minimum is `-m`: `x - (-m)` and `x + m` are the same float operation.
"""

import torch
from torch import Tensor

from gguf2st.quants.base import Affine, AffineQuant, centred, half, unpack, words


class Q4_0(AffineQuant, qtype="Q4_0", group=32, codes=(-8, 7)):
    """`w = d * (q - 8)`, 4 bits."""

    @classmethod
    def decode(cls, blocks: Tensor) -> Affine:
        """See `AffineQuant.decode`."""
        f = cls.split(blocks)
        return Affine(cls.grouped(centred(unpack(f["qs"], 4, 16), 8)), half(f["d"]), None)


class Q4_1(AffineQuant, qtype="Q4_1", group=32, codes=(0, 15)):
    """`w = d * q + m`, 4 bits."""

    @classmethod
    def decode(cls, blocks: Tensor) -> Affine:
        """See `AffineQuant.decode`."""
        f = cls.split(blocks)
        return Affine(cls.grouped(unpack(f["qs"], 4, 16).to(torch.int8)), half(f["d"]), -half(f["m"]))


def _five_bits(f: dict[str, Tensor]) -> Tensor:
    """Nibbles of `qs` with their fifth bit from `qh`, whose bit k belongs to weight k -> (n_blocks, 32) uint8."""
    return unpack(f["qs"], 4, 16) | unpack(f["qh"], 1, 1) << 4


class Q5_0(AffineQuant, qtype="Q5_0", group=32, codes=(-16, 15)):
    """`w = d * (q - 16)`, 5 bits."""

    @classmethod
    def decode(cls, blocks: Tensor) -> Affine:
        """See `AffineQuant.decode`."""
        f = cls.split(blocks)
        return Affine(cls.grouped(centred(_five_bits(f), 16)), half(f["d"]), None)


class Q5_1(AffineQuant, qtype="Q5_1", group=32, codes=(0, 31)):
    """`w = d * q + m`, 5 bits."""

    @classmethod
    def decode(cls, blocks: Tensor) -> Affine:
        """See `AffineQuant.decode`."""
        f = cls.split(blocks)
        return Affine(cls.grouped(_five_bits(f).to(torch.int8)), half(f["d"]), -half(f["m"]))


class Q8_0(AffineQuant, qtype="Q8_0", group=32, codes=(-128, 127)):
    """`w = d * q`, 8 bits."""

    @classmethod
    def decode(cls, blocks: Tensor) -> Affine:
        """See `AffineQuant.decode`."""
        f = cls.split(blocks)
        return Affine(cls.grouped(words(f["qs"], torch.int8)), half(f["d"]), None)


class Q8_1(AffineQuant, qtype="Q8_1", group=32, codes=(-128, 127)):
    """`w = d * q`; `s`, the sum of the weights, only serves dot products. ggml stores activations in this type."""

    @classmethod
    def decode(cls, blocks: Tensor) -> Affine:
        """See `AffineQuant.decode`."""
        f = cls.split(blocks)
        return Affine(cls.grouped(words(f["qs"], torch.int8)), half(f["d"]), None)
