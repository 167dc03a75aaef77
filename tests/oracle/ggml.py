"""ggml's own quantizers and decoders (libggml-python) through ctypes: the outside truth for every quantized type."""

import ctypes
from importlib.util import find_spec
from pathlib import Path

import numpy as np

TYPE_COUNT = 43
"""ggml.h `GGML_TYPE_COUNT`."""
SLOW_TO_QUANTIZE = frozenset({"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"})
"""Types whose quantizer first builds a table of nearest grid points, for 2 to 24 seconds."""


class Traits(ctypes.Structure):
    """ggml.h `struct ggml_type_traits`."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("block", ctypes.c_int64),
        ("block_interleave", ctypes.c_int64),
        ("nbytes", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.c_void_p),
        ("from_float_ref", ctypes.c_void_p),
    )


def _library() -> ctypes.CDLL:
    spec = find_spec("libggml")
    assert spec is not None
    assert spec.submodule_search_locations
    return ctypes.CDLL(str(Path(spec.submodule_search_locations[0]) / "lib64" / "libggml-base.so"))


_LIB = _library()
_LIB.ggml_get_type_traits.restype = ctypes.POINTER(Traits)
_LIB.ggml_quantize_chunk.restype = ctypes.c_size_t
_LIB.ggml_quantize_chunk.argtypes = [
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_void_p,
]
_LIB.ggml_quantize_requires_imatrix.restype = ctypes.c_bool
_ROW = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


def traits(type_id: int) -> Traits:
    """What ggml knows about a type."""
    return _LIB.ggml_get_type_traits(type_id).contents


def _row_function(name: str, address: int | None) -> object:
    """A C `void (const void *, void *, int64_t)`: by its address, or exported under `name`."""
    return _ROW(address) if address else _ROW((name, _LIB))


def to_float(type_id: int, blocks: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """(n_blocks, nbytes) uint8 -> (n_blocks, block) float32 as ggml dequantizes it; into `out` if there is one."""
    t = traits(type_id)
    blocks = np.ascontiguousarray(blocks)
    assert blocks.dtype == np.uint8
    assert blocks.shape[1] == t.nbytes
    if out is None:
        out = np.empty((len(blocks), t.block), np.float32)
    assert out.shape == (len(blocks), t.block)
    name = f"dequantize_row_{t.type_name.decode()}"
    _row_function(name, t.to_float)(blocks.ctypes.data, out.ctypes.data, out.size)
    return out


def quantize(type_id: int, x: np.ndarray) -> np.ndarray:
    """(n_blocks, block) float32 -> (n_blocks, nbytes) uint8; every block is a row, all weights equally important."""
    t = traits(type_id)
    x = np.ascontiguousarray(x, np.float32)
    assert x.shape[1] == t.block
    out = np.zeros((len(x), t.nbytes), np.uint8)
    importance = np.ones(t.block, np.float32)
    needs_it = _LIB.ggml_quantize_requires_imatrix(type_id)
    weights = importance.ctypes.data if needs_it else None
    written = _LIB.ggml_quantize_chunk(type_id, x.ctypes.data, out.ctypes.data, 0, len(x), t.block, weights)
    assert written == out.size
    return out


def quantize_reference(type_id: int, x: np.ndarray) -> np.ndarray:
    """As `quantize`, for the types of activations (Q8_1, Q8_K), which `ggml_quantize_chunk` refuses."""
    t = traits(type_id)
    x = np.ascontiguousarray(x, np.float32)
    out = np.zeros((len(x), t.nbytes), np.uint8)
    _row_function(f"quantize_row_{t.type_name.decode()}_ref", t.from_float_ref)(x.ctypes.data, out.ctypes.data, x.size)
    return out


PLAIN = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "I8": "<i1", "I16": "<i2", "I32": "<i4", "I64": "<i8"}
"""numpy's name of each type that ggml stores as plain numbers (BF16 is unknown to numpy)."""


def expected(qtype: str, type_id: int, blocks: np.ndarray) -> np.ndarray:
    """(n_blocks, nbytes) uint8 -> (n_blocks, block) float32 for every type; numpy's casts for plain numbers."""
    if qtype in PLAIN:
        with np.errstate(over="ignore", invalid="ignore"):
            return np.ascontiguousarray(blocks).view(PLAIN[qtype]).astype(np.float32)
    if qtype == "Q8_1":  # ggml has no decoder: it is Q8_0 plus `s`, a sum that dot products use
        return to_float(8, np.delete(blocks, [2, 3], axis=1))
    return to_float(type_id, blocks)
