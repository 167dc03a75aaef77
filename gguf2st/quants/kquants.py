"""Super-blocks of 256 weights: small integer scales per group, times one float16 (ggml-quants.c, `*_K`).

A group scale is `d * s` and a group minimum `dmin * m`, each rounded to float32 before it meets a code, as ggml does.
"""

import torch
from torch import Tensor

from gguf2st.quants.base import Affine, AffineQuant, centred, half, unpack, words


class Q2_K(AffineQuant, qtype="Q2_K", group=16, codes=(0, 3)):
    """`w = d * s * q - dmin * m`; a byte of `scales` holds s (low nibble) and m (high nibble) of one group."""

    @classmethod
    def decode(cls, blocks: Tensor) -> Affine:
        """See `AffineQuant.decode`."""
        f = cls.split(blocks)
        s, m = (f["scales"] & 15).unsqueeze(-1), (f["scales"] >> 4).unsqueeze(-1)
        q = unpack(f["qs"], 2, 32).to(torch.int8)
        return Affine(cls.grouped(q), half(f["d"]) * s, half(f["dmin"]) * m)


class Q3_K(AffineQuant, qtype="Q3_K", group=16, codes=(-4, 3)):
    """`w = d * (s - 32) * (q - 4)`; `hmask` has the third bit of q; `scales` has 8 bytes of nibbles, 4 of high bits."""

    @classmethod
    def decode(cls, blocks: Tensor) -> Affine:
        """See `AffineQuant.decode`."""
        f = cls.split(blocks)
        s = unpack(f["scales"][:, :8], 4, 8) | unpack(f["scales"][:, 8:], 2, 4) << 4
        q = unpack(f["qs"], 2, 32) | unpack(f["hmask"], 1, 32) << 2
        return Affine(cls.grouped(centred(q, 4)), half(f["d"]) * centred(s, 32).unsqueeze(-1), None)


def _six_bit_pairs(scales: Tensor) -> tuple[Tensor, Tensor]:
    """Eight 6-bit scales and minima: (n, 12) uint8 -> two (n, 8, 1) uint8.

    Bytes 0-3 hold scales 0-3 and bytes 4-7 minima 0-3 in their low 6 bits. A byte of 8-11 holds the low nibbles of
    scale and minimum 4-7, whose high 2 bits are the top bits of bytes 0-3 and 4-7.
    """
    a, b, c = torch.split(scales, 4, dim=1)
    s = torch.cat([a & 63, (c & 15) | (a >> 6) << 4], 1)
    m = torch.cat([b & 63, (c >> 4) | (b >> 6) << 4], 1)
    return s.unsqueeze(-1), m.unsqueeze(-1)


class Q4_K(AffineQuant, qtype="Q4_K", group=32, codes=(0, 15)):
    """`w = d * s * q - dmin * m`, 4 bits."""

    @classmethod
    def decode(cls, blocks: Tensor) -> Affine:
        """See `AffineQuant.decode`."""
        f = cls.split(blocks)
        s, m = _six_bit_pairs(f["scales"])
        q = unpack(f["qs"], 4, 32).to(torch.int8)
        return Affine(cls.grouped(q), half(f["d"]) * s, half(f["dmin"]) * m)


class Q5_K(AffineQuant, qtype="Q5_K", group=32, codes=(0, 31)):
    """`w = d * s * q - dmin * m`; bit g of `qh[k]` is the fifth bit of weight k of group g."""

    @classmethod
    def decode(cls, blocks: Tensor) -> Affine:
        """See `AffineQuant.decode`."""
        f = cls.split(blocks)
        s, m = _six_bit_pairs(f["scales"])
        q = (unpack(f["qs"], 4, 32) | unpack(f["qh"], 1, 32) << 4).to(torch.int8)
        return Affine(cls.grouped(q), half(f["d"]) * s, half(f["dmin"]) * m)


class Q6_K(AffineQuant, qtype="Q6_K", group=16, codes=(-32, 31)):
    """`w = d * s * (q - 32)`, s a signed byte; 4 bits of q in `ql`, 2 in `qh`."""

    @classmethod
    def decode(cls, blocks: Tensor) -> Affine:
        """See `AffineQuant.decode`."""
        f = cls.split(blocks)
        q = unpack(f["ql"], 4, 64) | unpack(f["qh"], 2, 32) << 4
        s = words(f["scales"], torch.int8).unsqueeze(-1)
        return Affine(cls.grouped(centred(q, 32)), half(f["d"]) * s, None)


class Q8_K(AffineQuant, qtype="Q8_K", group=256, codes=(-128, 127)):
    """`w = d * q` with a float32 d; `bsums` only serves dot products. ggml stores activations in this type."""

    @classmethod
    def decode(cls, blocks: Tensor) -> Affine:
        """See `AffineQuant.decode`."""
        f = cls.split(blocks)
        d = words(f["d"], torch.float32).unsqueeze(-1)
        return Affine(cls.grouped(words(f["qs"], torch.int8)), d, None)
