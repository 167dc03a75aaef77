"""FP4 types: E2M1 values, doubled to integers, with small float scales, halved."""

from torch import Tensor

from gguf2st.quants.base import Affine, AffineQuant, lookup, unpack


class MXFP4(AffineQuant, qtype="MXFP4", group=32, codes=(-12, 12)):
    """One E8M0 (power of two) scale per 32 weights."""

    @classmethod
    def decode(cls, blocks: Tensor) -> Affine:
        """See `AffineQuant.decode`."""
        f = cls.split(blocks)
        q = lookup("e2m1", unpack(f["qs"], 4, 16))
        return Affine(cls.grouped(q), lookup("e8m0_half", f["e"]).unsqueeze(-1), None)


class NVFP4(AffineQuant, qtype="NVFP4", group=16, codes=(-12, 12)):
    """One unsigned E4M3 scale per 16 weights. A tensor's second, global scale is a tensor of its own in GGUF."""

    @classmethod
    def decode(cls, blocks: Tensor) -> Affine:
        """See `AffineQuant.decode`."""
        f = cls.split(blocks)
        q = lookup("e2m1", unpack(f["qs"], 4, 8))
        return Affine(cls.grouped(q), lookup("ue4m3_half", f["d"]).unsqueeze(-1), None)
