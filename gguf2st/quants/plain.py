"""Types without a block: every element is one number. ggml converts each to float32 by value."""

from typing import ClassVar

import torch
from torch import Tensor

from gguf2st.quants.base import Quant, words


class Plain(Quant):
    """A number type; `dtype` is its torch counterpart. Values beyond float32 round to nearest even."""

    dtype: ClassVar[torch.dtype]

    def __init_subclass__(cls, *, qtype: str, dtype: torch.dtype) -> None:
        super().__init_subclass__(qtype=qtype)
        cls.dtype = dtype

    @classmethod
    def dequantize(cls, blocks: Tensor) -> Tensor:
        """(n, itemsize) uint8 -> (n, 1) float32."""
        return words(blocks, cls.dtype).to(torch.float32)


class F32(Plain, qtype="F32", dtype=torch.float32):
    """IEEE binary32."""


class F16(Plain, qtype="F16", dtype=torch.float16):
    """IEEE binary16."""


class BF16(Plain, qtype="BF16", dtype=torch.bfloat16):
    """The upper half of a binary32."""


class F64(Plain, qtype="F64", dtype=torch.float64):
    """IEEE binary64."""


class I8(Plain, qtype="I8", dtype=torch.int8):
    """Signed 8-bit integer."""


class I16(Plain, qtype="I16", dtype=torch.int16):
    """Signed 16-bit integer."""


class I32(Plain, qtype="I32", dtype=torch.int32):
    """Signed 32-bit integer."""


class I64(Plain, qtype="I64", dtype=torch.int64):
    """Signed 64-bit integer."""
