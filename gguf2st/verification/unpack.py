"""The float32 values of packed weights, from the published layouts alone: nothing here is shared with what writes them.

int     code i of a row lies in bits [i * bits, (i + 1) * bits) of its 32-bit words, lowest bits first, unsigned:
        value = (code - zero) * scale, where zero is 2^(bits - 1) or the zero point. Zero points are packed alike,
        down the rows: word w of a column holds those of rows 32 * w / bits and on.
mxfp4   two E2M1 codes a byte, the first in the low nibble; value = code * 2^(scale - 127)
nvfp4   the same codes; value = code * scale / global scale, the scale being E4M3
gpt-oss the codes of mxfp4 along the rows of the transposed matrix: (experts, rows, groups, 16 bytes)
"""

from typing import Any

import numpy as np

from gguf2st.verification.checkpoint import Packed, Tensor

Array = Any
"""A numpy array."""

E2M1 = np.array([s * x for s in (1, -1) for x in (0, 0.5, 1, 1.5, 2, 3, 4, 6)], np.float32)
"""OCP MX v1.0, table 5: sign, two bits of exponent, one of mantissa."""

_DTYPES = {"I32": "<u4", "I64": "<i8", "U8": "u1", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "F8_E4M3": "u1"}
"""How parts are read; what numpy has no type for is read as bits."""


def unpack(packed: Packed, start: int, stop: int) -> Array:
    """Rows [start, stop) of a weight, its axes but the last flattened: (stop - start, columns) float32."""
    layout, columns = packed.format.layout, packed.shape[-1]
    if layout == "gpt-oss":
        return _gpt_oss(packed, start, stop)
    if layout == "int":
        return _integers(packed, start, stop, columns)
    codes = _e2m1(rows_of(packed.parts["weight_packed"], start, stop))
    stored = rows_of(packed.parts["weight_scale"], start, stop)
    scale = _e8m0(stored) if layout == "mxfp4" else _e4m3(stored) / rows_of(packed.parts["weight_global_scale"], 0, 1)
    return _scaled(codes, scale)


def _integers(packed: Packed, start: int, stop: int, columns: int) -> Array:
    bits, n_rows = packed.format.bits, packed.shape[0]
    codes = _unpack_words(rows_of(packed.parts["weight_packed"], start, stop), bits, columns).astype(np.int16)
    scale = _floats(packed.parts["weight_scale"], start, stop)
    zeros: Array = np.int16(1 << (bits - 1))
    if not packed.format.symmetric:
        first = start // 32 * 32  # a word boundary for every number of bits
        words = rows_of(packed.parts["weight_zero_point"], first * bits // 32, -(-stop * bits // 32))
        count = min(n_rows, stop) - first
        unpacked = _unpack_words(np.ascontiguousarray(words.T), bits, count).T
        zeros = np.repeat(unpacked[start - first :].astype(np.int16), columns // scale.shape[1], axis=1)
    return _scaled((codes - zeros).astype(np.float32), scale)


def _gpt_oss(packed: Packed, start: int, stop: int) -> Array:
    """Rows of (experts, columns of the file, rows of the file), flattened but for the last axis."""
    blocks, scales = packed.parts["blocks"], packed.parts["scales"]
    _, inner, n = packed.shape  # `inner` is what the file packs
    first, last = start // inner, -(-stop // inner)
    codes = _e2m1(rows_of(blocks, first, last).reshape(-1, inner // 2))
    values = _scaled(codes, _e8m0(rows_of(scales, first, last).reshape(-1, inner // 32)))
    turned = values.reshape(last - first, n, inner).swapaxes(1, 2).reshape(-1, n)
    return turned[start - first * inner : stop - first * inner]


def _unpack_words(words: Array, bits: int, count: int) -> Array:
    """(rows, words) uint32 -> (rows, count) uint8: 32 codes lie in every `bits` words."""
    n_rows, n_words = words.shape
    padded = np.zeros((n_rows, -(-n_words // bits) * bits), np.uint32)
    padded[:, :n_words] = words
    padded = padded.reshape(n_rows, -1, bits)
    codes = np.empty((n_rows, padded.shape[1], 32), np.uint8)
    mask = np.uint32((1 << bits) - 1)
    for lane in range(32):
        word, low = divmod(lane * bits, 32)
        code = padded[:, :, word] >> np.uint32(low)
        if low + bits > 32:  # the code goes on in the next word
            code |= padded[:, :, word + 1] << np.uint32(32 - low)
        codes[:, :, lane] = code & mask
    return codes.reshape(n_rows, -1)[:, :count]


def _e2m1(codes: Array) -> Array:
    """(rows, n) bytes -> (rows, 2 * n) float32, the low nibble first."""
    out = np.empty((*codes.shape, 2), np.float32)
    out[..., 0], out[..., 1] = E2M1[codes & 15], E2M1[codes >> 4]
    return out.reshape(len(codes), -1)


def _e8m0(codes: Array) -> Array:
    """2^(code - 127) as float32; 255 is NaN."""
    powers = np.ldexp(np.float32(1), np.arange(255) - 127)
    return np.append(powers, np.float32(np.nan))[codes]


def _e4m3(codes: Array) -> Array:
    """float32 of sign, four bits of exponent (bias 7), three of mantissa; all ones but the sign is NaN."""
    n = np.arange(256)
    exponent, mantissa = n >> 3 & 15, n & 7
    size = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    size[(n & 127) == 127] = np.nan
    table = np.where(n < 128, size, -size).astype(np.float32)
    return table[codes]


def _scaled(values: Array, scale: Array) -> Array:
    """(rows, columns) * (rows, groups), each group of neighbouring columns by its own scale."""
    groups = values.reshape(*scale.shape, -1)
    with np.errstate(over="ignore", invalid="ignore"):  # what a damaged scale gives is the finding
        groups *= scale[:, :, None]
    return groups.reshape(len(values), -1)


def _floats(tensor: Tensor, start: int, stop: int) -> Array:
    """Rows of a floating-point part as float32."""
    values = rows_of(tensor, start, stop)
    if tensor.dtype == "BF16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


def rows_of(tensor: Tensor, start: int, stop: int) -> Array:
    """Elements [start, stop) along the first axis of a tensor, as they lie in the file; a scalar counts as one."""
    kind = np.dtype(_DTYPES[tensor.dtype])
    shape = tensor.shape or (1,)
    stop = min(stop, shape[0])
    row = int(np.prod(shape[1:])) * kind.itemsize
    with open(tensor.file, "rb") as f:
        f.seek(tensor.start + start * row)
        data = f.read((stop - start) * row)
    return np.frombuffer(data, kind).reshape(stop - start, *shape[1:])
