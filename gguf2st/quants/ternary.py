"""Types of one and two bits: signs and ternary digits with one scale per block."""

import torch
from torch import Tensor

from gguf2st.quants.base import Affine, AffineQuant, centred, half, unpack


def _digits(packed: Tensor, run: int, count: int) -> Tensor:
    """Base-3 digits, in planes as `base.unpack` orders bit fields: (n, nbytes) uint8 -> (n, nbytes * count) uint8.

    A byte is a fraction of 256: the n-th digit is what leaves it on top after a product with 3^n, modulo 256, and 3.
    """
    powers = torch.tensor([3**n for n in range(count)], dtype=torch.int16, device=packed.device).view(1, 1, -1, 1)
    runs = packed.reshape(len(packed), packed.shape[1] // run, 1, run).to(torch.int16)
    return ((runs * powers & 255) * 3 >> 8).to(torch.uint8).flatten(1)


class TQ1_0(AffineQuant, qtype="TQ1_0", group=256, codes=(-1, 1)):
    """`w = d * q`; five ternary digits per byte of `qs`, four per byte of `qh`."""

    @classmethod
    def decode(cls, blocks: Tensor) -> Affine:
        """See `AffineQuant.decode`."""
        f = cls.split(blocks)
        qs = f["qs"]
        digits = torch.cat([_digits(qs[:, :32], 32, 5), _digits(qs[:, 32:], 16, 5), _digits(f["qh"], 4, 4)], 1)
        return Affine(cls.grouped(centred(digits, 1)), half(f["d"]), None)


class TQ2_0(AffineQuant, qtype="TQ2_0", group=256, codes=(-1, 2)):
    """`w = d * (q - 1)`, 2 bits. The quantizer never writes code 2, but a file can hold it."""

    @classmethod
    def decode(cls, blocks: Tensor) -> Affine:
        """See `AffineQuant.decode`."""
        f = cls.split(blocks)
        return Affine(cls.grouped(centred(unpack(f["qs"], 2, 32), 1)), half(f["d"]), None)


class Q1_0(AffineQuant, qtype="Q1_0", group=128, codes=(-1, 1)):
    """`w = d` where the bit is set, else `-d`."""

    @classmethod
    def decode(cls, blocks: Tensor) -> Affine:
        """See `AffineQuant.decode`."""
        f = cls.split(blocks)
        return Affine(cls.grouped(centred(unpack(f["qs"], 1, 1) << 1, 1)), half(f["d"]), None)


class Q2_0(AffineQuant, qtype="Q2_0", group=64, codes=(-1, 2)):
    """`w = d * (q - 1)`, 2 bits, neighbours in one byte."""

    @classmethod
    def decode(cls, blocks: Tensor) -> Affine:
        """See `AffineQuant.decode`."""
        f = cls.split(blocks)
        return Affine(cls.grouped(centred(unpack(f["qs"], 2, 1), 1)), half(f["d"]), None)
