"""Codebook types: an index picks 4 or 8 neighbouring weights of a grid, sign bits are stored apart.

A grid entry holds magnitudes, which are small integers, so these types are affine as well: the code is magnitude times
sign. Scales are `d * (s + 1/2) / 4` (IQ2), `/ 2` (IQ3_XXS) or `d * (2 * s + 1)` (IQ3_S, IQ1), exact in float32.
"""

import torch
from torch import Tensor

from gguf2st.quants.base import Affine, AffineQuant, centred, half, lookup, unpack, unsigned


def _shifted(word: Tensor, shifts: tuple[int, ...], bits: int) -> Tensor:
    """Bit fields of words: (n, words) int64 -> (n, words * len(shifts)) int64."""
    steps = torch.tensor(shifts, device=word.device)
    return (word.unsqueeze(-1) >> steps & (1 << bits) - 1).flatten(1)


def _signed(grid: str, index: Tensor, signs: str, sign_index: Tensor) -> Tensor:
    """Magnitudes times signs: (n, entries) indices of both tables -> (n, 256) int8."""
    magnitude = lookup(grid, index).flatten(1)
    return magnitude * lookup(signs, sign_index).flatten(1)


class IQ2_XXS(AffineQuant, qtype="IQ2_XXS", group=32, codes=(-43, 43)):
    """Eight bytes per 32 weights: four grid indices, then four times 7 sign bits and a 4-bit scale."""

    @classmethod
    def decode(cls, blocks: Tensor) -> Affine:
        """See `AffineQuant.decode`."""
        f = cls.split(blocks)
        pairs = f["qs"].reshape(-1, 8, 2, 4)
        word = unsigned(pairs[:, :, 1].flatten(1), torch.int32)
        q = _signed("iq2_xxs", pairs[:, :, 0].flatten(1), "even_signs", _shifted(word, (0, 7, 14, 21), 7))
        scale = half(f["d"]) * ((word >> 28).float() + 0.5).unsqueeze(-1) * 0.25
        return Affine(cls.grouped(q), scale, None)


class IQ2_XS(AffineQuant, qtype="IQ2_XS", group=16, codes=(-43, 43)):
    """16 bits per 8 weights: a 9-bit grid index and 7 sign bits."""

    @classmethod
    def decode(cls, blocks: Tensor) -> Affine:
        """See `AffineQuant.decode`."""
        f = cls.split(blocks)
        word = unsigned(f["qs"], torch.int16)
        q = _signed("iq2_xs", word & 511, "even_signs", word >> 9)
        scale = half(f["d"]) * (unpack(f["scales"], 4, 1) + 0.5).unsqueeze(-1) * 0.25
        return Affine(cls.grouped(q), scale, None)


class IQ2_S(AffineQuant, qtype="IQ2_S", group=16, codes=(-43, 43)):
    """Ten-bit grid indices (8 bits in `qs`, 2 in `qh`) and a sign byte per 8 weights."""

    @classmethod
    def decode(cls, blocks: Tensor) -> Affine:
        """See `AffineQuant.decode`."""
        f = cls.split(blocks)
        index = f["qs"].long() | unpack(f["qh"], 2, 1).long() << 8
        q = _signed("iq2_s", index, "signs", f["signs"])
        scale = half(f["d"]) * (unpack(f["scales"], 4, 1) + 0.5).unsqueeze(-1) * 0.25
        return Affine(cls.grouped(q), scale, None)


class IQ3_XXS(AffineQuant, qtype="IQ3_XXS", group=32, codes=(-62, 62)):
    """A grid index per 4 weights; per 32 weights a word of four times 7 sign bits and a 4-bit scale."""

    @classmethod
    def decode(cls, blocks: Tensor) -> Affine:
        """See `AffineQuant.decode`."""
        f = cls.split(blocks)
        word = unsigned(f["gas"], torch.int32)
        q = _signed("iq3_xxs", f["qs"], "even_signs", _shifted(word, (0, 7, 14, 21), 7))
        scale = half(f["d"]) * ((word >> 28).float() + 0.5).unsqueeze(-1) * 0.5
        return Affine(cls.grouped(q), scale, None)


class IQ3_S(AffineQuant, qtype="IQ3_S", group=32, codes=(-15, 15)):
    """A nine-bit grid index (8 bits in `qs`, 1 in `qh`) per 4 weights and a sign byte per 8."""

    @classmethod
    def decode(cls, blocks: Tensor) -> Affine:
        """See `AffineQuant.decode`."""
        f = cls.split(blocks)
        index = f["qs"].long() | unpack(f["qh"], 1, 1).long() << 8
        q = _signed("iq3_s", index, "signs", f["signs"])
        scale = half(f["d"]) * (2 * unpack(f["scales"], 4, 1) + 1).unsqueeze(-1)
        return Affine(cls.grouped(q), scale, None)


class IQ1_S(AffineQuant, qtype="IQ1_S", group=32, codes=(-9, 9)):
    """Eleven-bit grid indices of -1, 0, 1, all shifted by 1/8 up or down: codes are eighths.

    `qh` per 32 weights: four times 3 index bits, a 3-bit scale, the sign of the shift.
    """

    @classmethod
    def decode(cls, blocks: Tensor) -> Affine:
        """See `AffineQuant.decode`."""
        f = cls.split(blocks)
        word = unsigned(f["qh"], torch.int16)
        index = f["qs"].long() | _shifted(word, (0, 3, 6, 9), 3) << 8
        shift = (1 - 2 * (word >> 15)).to(torch.int8).unsqueeze(-1)
        q = cls.grouped(lookup("iq1_eighths", index).flatten(1)) + shift
        return Affine(q, half(f["d"]) * (2 * (word >> 12 & 7) + 1).unsqueeze(-1) * 0.125, None)


class IQ1_M(AffineQuant, qtype="IQ1_M", group=16, codes=(-9, 9)):
    """As IQ1_S, with a nibble of `qh` per 8 weights: 3 index bits and the sign of the shift.

    The top nibbles of the four words of `scales` are the float16 scale; 3 bits per 16 weights are left of each.
    """

    @classmethod
    def decode(cls, blocks: Tensor) -> Affine:
        """See `AffineQuant.decode`."""
        f = cls.split(blocks)
        word = unsigned(f["scales"], torch.int16)
        nibbles = torch.tensor((0, 4, 8, 12), device=blocks.device)
        d = ((word >> 12) << nibbles).sum(1, keepdim=True).to(torch.int16).view(torch.float16).float().unsqueeze(-1)
        high = unpack(f["qh"], 4, 1).long()
        shift = 1 - 2 * (high >> 3).to(torch.int8)
        q = lookup("iq1_eighths", f["qs"].long() | (high & 7) << 8) + shift.unsqueeze(-1)
        scale = d * (2 * _shifted(word, (0, 3, 6, 9), 3) + 1).unsqueeze(-1) * 0.125
        return Affine(cls.grouped(q.flatten(1)), scale, None)


class IQ4_NL(AffineQuant, qtype="IQ4_NL", group=32, codes=(-127, 113)):
    """As Q4_0, with a table of 16 unevenly spaced codes."""

    @classmethod
    def decode(cls, blocks: Tensor) -> Affine:
        """See `AffineQuant.decode`."""
        f = cls.split(blocks)
        return Affine(cls.grouped(lookup("iq4", unpack(f["qs"], 4, 16))), half(f["d"]), None)


class IQ4_XS(AffineQuant, qtype="IQ4_XS", group=32, codes=(-127, 113)):
    """IQ4_NL codes with 6-bit scales: 4 bits in `scales_l`, 2 in `scales_h`."""

    @classmethod
    def decode(cls, blocks: Tensor) -> Affine:
        """See `AffineQuant.decode`."""
        f = cls.split(blocks)
        s = unpack(f["scales_l"], 4, 1) | unpack(f["scales_h"], 2, 1) << 4
        q = lookup("iq4", unpack(f["qs"], 4, 16))
        return Affine(cls.grouped(q), half(f["d"]) * centred(s, 32).unsqueeze(-1), None)
