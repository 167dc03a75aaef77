"""Loads and rounding stores for the CPU kernels, as numba intrinsics.

Kernels see flat byte and value arrays through these functions only. Compared with plain indexing they skip the
negative-index check, read unaligned words, tell LLVM that values never overlap blocks (so that inner loops become
vector code without overlap tests), and keep integer arithmetic in 32 bits. A store rounds to the dtype of its array,
so one kernel body serves every output dtype:

    float32 array -> float32        uint16 array -> bfloat16 bits        int16 array -> float16 bits

numba has no arrays of either 16-bit float; signedness is how the two are told apart.
All arithmetic is plain IEEE float32 and integer: bit-identical on every machine, denormals included.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numba.extending import intrinsic

Bytes = npt.NDArray[np.uint8]
Values = npt.NDArray[Any]
Table = npt.NDArray[Any]

_untyped_intrinsic: Any = intrinsic  # its annotations describe the typing function, not the call in a kernel

_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_F32, _F64 = ir.FloatType(), ir.DoubleType()

BF16_ARRAY = np.uint16
"""Element type that marks an output array as bfloat16 bits."""
F16_ARRAY = np.int16
"""Element type that marks an output array as float16 bits."""


def data(context: Any, builder: Any, array_type: Any, array: Any) -> Any:
    """Pointer to the first element of a numba array."""
    return context.make_array(array_type)(context, builder, array).data


def _output_scope(builder: Any) -> Any:
    """LLVM alias scope of everything `put` writes; loads declare that they never touch it."""
    domain = builder.module.add_metadata(["gguf2st"])
    return builder.module.add_metadata([builder.module.add_metadata(["values", domain])])


def _loader(stored: ir.Type, result: Any, convert: Callable[[Any, Any], Any]) -> Any:
    """An intrinsic `load(array, byte offset)`: one little-endian `stored`, converted to numba type `result`."""

    def load(typing_context: Any, array: Any, offset: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            base = builder.bitcast(data(context, builder, signature.args[0], args[0]), _I8.as_pointer())
            pointer = builder.bitcast(builder.gep(base, [args[1]]), stored.as_pointer())
            value = builder.load(pointer, align=1)
            value.set_metadata("noalias", _output_scope(builder))
            return convert(builder, value)

        return result(array, types.intp), codegen

    return _untyped_intrinsic(load)


def _half_to_float(b: Any, h: Any) -> Any:
    """float16 bits -> float32: rebias the exponent; a subnormal is its mantissa times 2^-24, exactly."""
    word = b.zext(h, _I32)
    magnitude = b.and_(word, _I32(0x7FFF))
    shifted = b.shl(magnitude, _I32(13))
    subnormal = b.bitcast(b.fmul(b.uitofp(magnitude, _F32), _F32(2.0**-24)), _I32)
    normal = b.add(shifted, _I32((127 - 15) << 23))
    nonfinite = b.or_(shifted, _I32(0x7F800000))
    bits = b.select(b.icmp_unsigned("<", magnitude, _I32(0x7C00)), normal, nonfinite)
    bits = b.select(b.icmp_unsigned("<", magnitude, _I32(0x0400)), subnormal, bits)
    return b.bitcast(b.or_(bits, b.shl(b.and_(word, _I32(0x8000)), _I32(16))), _F32)


def _bf16_to_float(b: Any, h: Any) -> Any:
    """bfloat16 bits -> float32."""
    return b.bitcast(b.shl(b.zext(h, _I32), _I32(16)), _F32)


def _float_to_bf16(b: Any, x: Any) -> Any:
    """float32 -> bfloat16 bits, to nearest even; the quiet bit keeps a NaN from rounding into an infinity."""
    bits = b.bitcast(x, _I32)
    odd = b.and_(b.lshr(bits, _I32(16)), _I32(1))
    rounded = b.add(b.add(bits, _I32(0x7FFF)), odd)
    nan = b.or_(bits, _I32(0x00400000))
    return b.trunc(b.lshr(b.select(b.fcmp_unordered("uno", x, x), nan, rounded), _I32(16)), _I16)


def _float_to_f16(b: Any, x: Any) -> Any:
    """float32 -> float16 bits, to nearest even.

    Below 2^-14 a float16 is a multiple of 2^-24, which is the unit in the last place of [0.5, 1): adding 0.5 rounds.
    """
    bits = b.bitcast(x, _I32)
    magnitude = b.and_(bits, _I32(0x7FFFFFFF))
    odd = b.and_(b.lshr(magnitude, _I32(13)), _I32(1))
    normal = b.lshr(b.add(b.sub(magnitude, _I32(((127 - 15) << 23) - 0x0FFF)), odd), _I32(13))
    tiny = b.sub(b.bitcast(b.fadd(b.bitcast(magnitude, _F32), _F32(0.5)), _I32), _I32(0x3F000000))
    nonfinite = b.select(b.icmp_unsigned(">", magnitude, _I32(0x7F800000)), _I32(0x7E00), _I32(0x7C00))
    out = b.select(b.icmp_unsigned("<", magnitude, _I32((127 + 16) << 23)), normal, nonfinite)
    out = b.select(b.icmp_unsigned("<", magnitude, _I32((127 - 14) << 23)), tiny, out)
    return b.trunc(b.or_(out, b.lshr(b.and_(bits, _I32(0x80000000)), _I32(16))), _I16)


def _nibbles_to_float(b: Any, words: Any) -> Any:
    """Four 16-bit words -> float32 of the float16 whose nibbles are their top nibbles, lowest first (IQ1_M)."""
    bits = _I64(0)
    for n in range(4):
        nibble = b.and_(b.lshr(words, _I64(16 * n + 12)), _I64(15))
        bits = b.or_(bits, b.shl(nibble, _I64(4 * n)))
    return _half_to_float(b, b.trunc(bits, _I16))


_ROUND: dict[Any, Callable[[Any, Any], Any]] = {
    types.float32: lambda b, x: x,
    types.uint16: _float_to_bf16,
    types.int16: _float_to_f16,
}

_WIDEN: dict[Any, Callable[[Any, Any], Any]] = {
    types.float32: lambda b, x: x,
    types.uint16: _bf16_to_float,
    types.int16: _half_to_float,
}


def round_to(builder: Any, dtype: Any, x: Any) -> Any:
    """float32 -> the float32 that an array of numba type `dtype` stores for it."""
    return _WIDEN[dtype](builder, _ROUND[dtype](builder, x))


def _put(typing_context: Any, values: Any, index: Any, x: Any) -> Any:
    rounded = _ROUND[values.dtype]

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.gep(data(context, builder, signature.args[0], args[0]), [args[1]])
        builder.store(rounded(builder, args[2]), pointer).set_metadata("alias.scope", _output_scope(builder))
        return context.get_dummy_value()

    return types.void(values, types.intp, types.float32), codegen


def _real(typing_context: Any, code: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.sitofp(builder.trunc(args[0], _I32), _F32)

    return types.float32(types.intp), codegen


put: Callable[[Values, int, float], None] = _untyped_intrinsic(_put)
"""`values[index] = x`, rounded to the dtype that the array stands for."""
real: Callable[[int], float] = _untyped_intrinsic(_real)
"""A code of at most 32 bits as float32."""

u8: Callable[[Bytes, int], int] = _loader(_I8, types.intp, lambda b, v: b.zext(v, _I64))
"""Unsigned byte at a byte offset."""
s8: Callable[[Bytes, int], int] = _loader(_I8, types.intp, lambda b, v: b.sext(v, _I64))
"""Signed byte at a byte offset."""
u16: Callable[[Bytes, int], int] = _loader(_I16, types.intp, lambda b, v: b.zext(v, _I64))
"""Unsigned 16-bit word at a byte offset."""
u32: Callable[[Bytes, int], int] = _loader(_I32, types.intp, lambda b, v: b.zext(v, _I64))
"""Unsigned 32-bit word at a byte offset."""
u64: Callable[[Bytes, int], int] = _loader(_I64, types.int64, lambda b, v: v)
"""64-bit word at a byte offset, as a signed integer."""
load_f16: Callable[[Bytes, int], float] = _loader(_I16, types.float32, _half_to_float)
"""float16 at a byte offset, as float32."""
load_bf16: Callable[[Bytes, int], float] = _loader(_I16, types.float32, _bf16_to_float)
"""bfloat16 at a byte offset, as float32."""
load_f32: Callable[[Bytes, int], float] = _loader(_F32, types.float32, lambda b, v: v)
"""float32 at a byte offset."""
load_f64: Callable[[Bytes, int], float] = _loader(_F64, types.float32, lambda b, v: b.fptrunc(v, _F32))
"""float64 at a byte offset, rounded to float32."""
load_i16: Callable[[Bytes, int], float] = _loader(_I16, types.float32, lambda b, v: b.sitofp(v, _F32))
"""Signed 16-bit integer at a byte offset, as float32."""
load_i32: Callable[[Bytes, int], float] = _loader(_I32, types.float32, lambda b, v: b.sitofp(v, _F32))
"""Signed 32-bit integer at a byte offset, rounded to float32."""
load_i64: Callable[[Bytes, int], float] = _loader(_I64, types.float32, lambda b, v: b.sitofp(v, _F32))
"""Signed 64-bit integer at a byte offset, rounded to float32."""
load_f16_nibbles: Callable[[Bytes, int], float] = _loader(_I64, types.float32, _nibbles_to_float)
"""float16 spread over the top nibbles of four words at a byte offset, as float32."""
