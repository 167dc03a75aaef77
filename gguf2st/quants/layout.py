"""Byte layout of every ggml type: block size and named fields. No torch here, so that headers stay cheap to read.

Source of the constants: ggml's `enum ggml_type` (ggml.h) and block structs (ggml-common.h), llama.cpp b11434.
"""

from dataclasses import dataclass

from gguf2st.errors import SchemeError


@dataclass(frozen=True, slots=True)
class Field:
    """`nbytes` bytes of a block, made of items of `itemsize` bytes (what a byte-order swap has to reverse)."""

    name: str
    nbytes: int
    itemsize: int = 1


@dataclass(frozen=True, slots=True)
class GgmlType:
    """A ggml type: `block` consecutive elements of one row are stored in `nbytes` bytes, split into `fields`."""

    id: int
    name: str
    block: int
    fields: tuple[Field, ...]

    @property
    def nbytes(self) -> int:
        """Bytes per block."""
        return sum(f.nbytes for f in self.fields)


def _type(id: int, name: str, block: int, **fields: int | tuple[int, int]) -> GgmlType:
    """A field is given as its size in bytes, or as (size, itemsize)."""
    pairs = ((n, v if isinstance(v, tuple) else (v, 1)) for n, v in fields.items())
    return GgmlType(id, name, block, tuple(Field(n, size, item) for n, (size, item) in pairs))


_HALF = (2, 2)  # one float16

_ALL = (
    _type(0, "F32", 1, x=(4, 4)),
    _type(1, "F16", 1, x=_HALF),
    _type(2, "Q4_0", 32, d=_HALF, qs=16),
    _type(3, "Q4_1", 32, d=_HALF, m=_HALF, qs=16),
    _type(6, "Q5_0", 32, d=_HALF, qh=(4, 4), qs=16),
    _type(7, "Q5_1", 32, d=_HALF, m=_HALF, qh=(4, 4), qs=16),
    _type(8, "Q8_0", 32, d=_HALF, qs=32),
    _type(9, "Q8_1", 32, d=_HALF, s=_HALF, qs=32),
    _type(10, "Q2_K", 256, scales=16, qs=64, d=_HALF, dmin=_HALF),
    _type(11, "Q3_K", 256, hmask=32, qs=64, scales=12, d=_HALF),
    _type(12, "Q4_K", 256, d=_HALF, dmin=_HALF, scales=12, qs=128),
    _type(13, "Q5_K", 256, d=_HALF, dmin=_HALF, scales=12, qh=32, qs=128),
    _type(14, "Q6_K", 256, ql=128, qh=64, scales=16, d=_HALF),
    _type(15, "Q8_K", 256, d=(4, 4), qs=256, bsums=(32, 2)),
    _type(16, "IQ2_XXS", 256, d=_HALF, qs=(64, 4)),  # declared uint16_t, but written and read as 32-bit words
    _type(17, "IQ2_XS", 256, d=_HALF, qs=(64, 2), scales=8),
    _type(18, "IQ3_XXS", 256, d=_HALF, qs=64, gas=(32, 4)),
    _type(19, "IQ1_S", 256, d=_HALF, qs=32, qh=(16, 2)),
    _type(20, "IQ4_NL", 32, d=_HALF, qs=16),
    _type(21, "IQ3_S", 256, d=_HALF, qs=64, qh=8, signs=32, scales=4),
    _type(22, "IQ2_S", 256, d=_HALF, qs=32, signs=32, qh=8, scales=8),
    _type(23, "IQ4_XS", 256, d=_HALF, scales_h=_HALF, scales_l=4, qs=128),
    _type(24, "I8", 1, x=1),
    _type(25, "I16", 1, x=(2, 2)),
    _type(26, "I32", 1, x=(4, 4)),
    _type(27, "I64", 1, x=(8, 8)),
    _type(28, "F64", 1, x=(8, 8)),
    _type(29, "IQ1_M", 256, qs=32, qh=16, scales=(8, 2)),
    _type(30, "BF16", 1, x=(2, 2)),
    _type(34, "TQ1_0", 256, qs=48, qh=4, d=_HALF),
    _type(35, "TQ2_0", 256, qs=64, d=_HALF),
    _type(39, "MXFP4", 32, e=1, qs=16),
    _type(40, "NVFP4", 64, d=4, qs=32),
    _type(41, "Q1_0", 128, d=_HALF, qs=16),
    _type(42, "Q2_0", 64, d=_HALF, qs=16),
)

TYPES: dict[str, GgmlType] = {t.name: t for t in _ALL}
BY_ID: dict[int, GgmlType] = {t.id: t for t in _ALL}

INTEGERS: frozenset[str] = frozenset({"I8", "I16", "I32", "I64"})
"""Types of whole numbers, which are no weights: indices and tables of them."""
INT64 = "int64"
"""The dtype that whole numbers have in a checkpoint."""

DECODABLE: frozenset[str] = frozenset(TYPES)
"""Types that every path decodes (a test compares this set with the torch and numba registries)."""


def type_name(type_id: int) -> str:
    """`"Q4_K"` for 12; `"type 57"` for an id this version does not know."""
    return BY_ID[type_id].name if type_id in BY_ID else f"type {type_id}"


def undecodable(qtype: str) -> SchemeError:
    """The error for a type that no decoder reads."""
    return SchemeError(
        f"no decoder for ggml type {qtype!r}; decodable: {', '.join(t for t in TYPES if t in DECODABLE)}",
        hint="requantize the model with llama.cpp's llama-quantize, or take another file of it",
    )
