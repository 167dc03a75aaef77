"""What every ggml type defines, and the bit fields they share. Registration is by class keyword (`qtype="Q4_K"`)."""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from gguf2st.quants.codebooks import table
from gguf2st.quants.layout import TYPES, GgmlType

QUANTS: dict[str, type["Quant"]] = {}
"""ggml type name -> its class. Filled when the family modules are imported (`gguf2st.quants.reference` does)."""


class Affine(NamedTuple):
    """Blocks taken apart without loss: `w = scale * q - min`, in float32 and in this order."""

    q: Tensor
    """(n_blocks, groups, group) int8"""
    scale: Tensor
    """(n_blocks, groups, 1) float32"""
    min: Tensor | None
    """(n_blocks, groups, 1) float32; None for a symmetric type"""


class Quant(ABC):
    """A ggml type. `layout` names the bytes of its block; subclasses say what they mean."""

    layout: ClassVar[GgmlType]

    def __init_subclass__(cls, *, qtype: str | None = None) -> None:
        super().__init_subclass__()
        if qtype is not None:
            cls.layout = TYPES[qtype]
            QUANTS[qtype] = cls

    @classmethod
    def split(cls, blocks: Tensor) -> dict[str, Tensor]:
        """(n_blocks, nbytes) uint8 -> field name -> (n_blocks, field nbytes) uint8, views of `blocks`."""
        fields = cls.layout.fields
        parts = torch.split(blocks, [f.nbytes for f in fields], dim=1)
        return {f.name: part for f, part in zip(fields, parts, strict=True)}

    @classmethod
    @abstractmethod
    def dequantize(cls, blocks: Tensor) -> Tensor:
        """(n_blocks, nbytes) uint8 -> (n_blocks, block) float32, the bits that ggml's C reference gives."""


class AffineQuant(Quant):
    """A type whose weights are integer codes times a group scale, less a group minimum.

    Codebook types belong here too: their tables hold small integers.
    """

    group: ClassVar[int]
    """Consecutive weights that share one scale."""
    codes: ClassVar[tuple[int, int]]
    """Smallest and largest code that a block can hold."""

    def __init_subclass__(
        cls, *, qtype: str | None = None, group: int | None = None, codes: tuple[int, int] | None = None
    ) -> None:
        super().__init_subclass__(qtype=qtype)
        if group is not None:
            cls.group = group
        if codes is not None:
            cls.codes = codes

    @classmethod
    @abstractmethod
    def decode(cls, blocks: Tensor) -> Affine:
        """(n_blocks, nbytes) uint8 -> codes, scales and minima."""

    @classmethod
    def dequantize(cls, blocks: Tensor) -> Tensor:
        """(n_blocks, nbytes) uint8 -> (n_blocks, block) float32."""
        q, scale, minimum = cls.decode(blocks)
        w = scale * q
        return (w if minimum is None else w - minimum).flatten(1)

    @classmethod
    def grouped(cls, q: Tensor) -> Tensor:
        """(n_blocks, block) -> (n_blocks, groups, group)."""
        return q.view(len(q), cls.layout.block // cls.group, cls.group)


def words(field: Tensor, dtype: torch.dtype) -> Tensor:
    """Reinterpret little-endian bytes: (n, nbytes) uint8 -> (n, nbytes / itemsize) of `dtype`.

    Copies unless the bytes already lie as `dtype` wants them: a column slice of blocks seldom does.
    """
    if not field.is_contiguous() or field.storage_offset() % dtype.itemsize:
        field = field.clone(memory_format=torch.contiguous_format)
    return field.view(dtype)


def half(field: Tensor) -> Tensor:
    """float16 fields as column scales: (n, 2 * groups) uint8 -> (n, groups, 1) float32."""
    return words(field, torch.float16).float().unsqueeze(-1)


def unsigned(field: Tensor, dtype: torch.dtype) -> Tensor:
    """Little-endian unsigned words: (n, nbytes) uint8 -> (n, words) int64; `dtype` is the signed type of that size."""
    return words(field, dtype).to(torch.int64) & ((1 << 8 * dtype.itemsize) - 1)


def unpack(packed: Tensor, bits: int, run: int) -> Tensor:
    """Unsigned bit fields in ggml's plane order: (n, nbytes) uint8 -> (n, nbytes * 8 / bits) uint8.

    Each run of `run` bytes gives the lowest field of all its bytes, then the next field of all its bytes, and so on.
    For example, with 4 bits and a run of 2: `[0xA0, 0xB1] -> [0, 1, 10, 11]`; with a run of 1: `[0, 10, 1, 11]`.
    """
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=packed.device).view(1, 1, -1, 1)
    runs = packed.reshape(len(packed), packed.shape[1] // run, 1, run)
    return ((runs >> shifts) & ((1 << bits) - 1)).flatten(1)


def centred(codes: Tensor, zero: int) -> Tensor:
    """Unsigned codes -> int8 codes around `zero`: `[0, 15]` with zero 8 -> `[-8, 7]`."""
    return codes.to(torch.int8) - zero


def lookup(name: str, index: Tensor) -> Tensor:
    """Rows of a `codebooks.table`: (...) integers -> (..., *row) of the table's dtype."""
    rows = torch.tensor(table(name), device=index.device)
    return rows[index.long()]
