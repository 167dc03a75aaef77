"""Loads and rounding stores for the CPU kernels, as numba intrinsics.

Kernels see flat byte and value arrays through these functions only. Compared with plain indexing they skip the
negative-index check, read unaligned words, and tell LLVM that values never overlap blocks. They take and give single
numbers, or neighbours at once, as `Lanes`. A store rounds to the dtype of its array, so one kernel body serves every
output dtype:

    float32 array -> float32        uint16 array -> bfloat16 bits        int16 array -> float16 bits

numba has no arrays of either 16-bit float; signedness is how the two are told apart.
All arithmetic is plain IEEE float32 and integer: bit-identical on every machine, denormals included. What a machine has
instructions for (float16, byte shuffles, AVX-512) only changes how the same bits are made.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numba.extending import intrinsic

from gguf2st.kernels.cpu_lanes import F32, I8, I16, I32, I64, Lanes, constant, has, shaped, shuffle

Bytes = npt.NDArray[np.uint8]
Values = npt.NDArray[Any]
Table = npt.NDArray[Any]

_untyped_intrinsic: Any = intrinsic  # its annotations describe the typing function, not the call in a kernel

_F16, _F64 = ir.HalfType(), ir.DoubleType()

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


def _loader(stored: ir.Type, result: Any, convert: Callable[[Any, Any, Any], Any]) -> Any:
    """An intrinsic `load(array, byte offset)`: one little-endian `stored`, converted to numba type `result`."""

    def load(typing_context: Any, array: Any, offset: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            base = builder.bitcast(data(context, builder, signature.args[0], args[0]), I8.as_pointer())
            pointer = builder.bitcast(builder.gep(base, [args[1]]), stored.as_pointer())
            value = builder.load(pointer, align=1)
            value.set_metadata("noalias", _output_scope(builder))
            return convert(context, builder, value)

        return result(array, types.intp), codegen

    return _untyped_intrinsic(load)


def _half_to_float(context: Any, b: Any, h: Any) -> Any:
    """float16 bits -> float32: rebias the exponent; a subnormal is its mantissa times 2^-24, exactly."""
    if has(context, "f16c"):
        return b.fpext(b.bitcast(h, shaped(h, _F16)), shaped(h, F32))

    def c(value: int) -> Any:
        return constant(h, I32, value)

    word = b.zext(h, shaped(h, I32))
    magnitude = b.and_(word, c(0x7FFF))
    shifted = b.shl(magnitude, c(13))
    subnormal = b.fmul(b.uitofp(magnitude, shaped(h, F32)), constant(h, F32, 2.0**-24))
    normal = b.add(shifted, c((127 - 15) << 23))
    nonfinite = b.or_(shifted, c(0x7F800000))
    bits = b.select(b.icmp_unsigned("<", magnitude, c(0x7C00)), normal, nonfinite)
    bits = b.select(b.icmp_unsigned("<", magnitude, c(0x0400)), b.bitcast(subnormal, shaped(h, I32)), bits)
    return b.bitcast(b.or_(bits, b.shl(b.and_(word, c(0x8000)), c(16))), shaped(h, F32))


def _bf16_to_float(context: Any, b: Any, h: Any) -> Any:
    """bfloat16 bits -> float32."""
    return b.bitcast(b.shl(b.zext(h, I32), I32(16)), F32)


def _float_to_bf16(context: Any, b: Any, x: Any) -> Any:
    """float32 -> bfloat16 bits, to nearest even; the quiet bit keeps a NaN from rounding into an infinity."""
    if isinstance(x.type, ir.VectorType) and x.type.count > 16 and has(context, "avx512bw"):
        return _results_to_bf16(b, x)
    bits = b.bitcast(x, shaped(x, I32))
    odd = b.and_(b.lshr(bits, constant(x, I32, 16)), constant(x, I32, 1))
    rounded = b.add(b.add(bits, constant(x, I32, 0x7FFF)), odd)
    nan = b.or_(bits, constant(x, I32, 0x00400000))
    either = b.select(b.fcmp_unordered("uno", x, x), nan, rounded)
    return b.trunc(b.lshr(either, constant(x, I32, 16)), shaped(x, I16))


def _results_to_bf16(b: Any, x: Any) -> Any:
    """The same for results of float arithmetic, whose NaNs have their quiet bit already, in 16-bit arithmetic.

    That is half the work where a machine takes the halves of two registers apart in one instruction.
    """
    n = x.type.count
    halves = b.bitcast(x, ir.VectorType(I16, 2 * n))
    low, high = (shuffle(b, halves, halves, list(range(first, 2 * n, 2))) for first in (0, 1))
    odd = b.and_(high, constant(x, I16, 1))
    up = b.icmp_unsigned(">", low, b.sub(constant(x, I16, 0x8000), odd))
    finite = b.icmp_unsigned("<", b.and_(high, constant(x, I16, 0x7FFF)), constant(x, I16, 0x7F80))
    return b.add(high, b.zext(b.and_(up, finite), high.type))


def _float_to_f16(context: Any, b: Any, x: Any) -> Any:
    """float32 -> float16 bits, to nearest even.

    Below 2^-14 a float16 is a multiple of 2^-24, which is the unit in the last place of [0.5, 1): adding 0.5 rounds.
    """
    if has(context, "f16c"):
        return b.bitcast(b.fptrunc(x, shaped(x, _F16)), shaped(x, I16))

    def c(value: int) -> Any:
        return constant(x, I32, value)

    bits = b.bitcast(x, shaped(x, I32))
    magnitude = b.and_(bits, c(0x7FFFFFFF))
    odd = b.and_(b.lshr(magnitude, c(13)), c(1))
    normal = b.lshr(b.add(b.sub(magnitude, c(((127 - 15) << 23) - 0x0FFF)), odd), c(13))
    tiny = b.fadd(b.bitcast(magnitude, shaped(x, F32)), constant(x, F32, 0.5))
    tiny = b.sub(b.bitcast(tiny, shaped(x, I32)), c(0x3F000000))
    nonfinite = b.select(b.icmp_unsigned(">", magnitude, c(0x7F800000)), c(0x7E00), c(0x7C00))
    out = b.select(b.icmp_unsigned("<", magnitude, c((127 + 16) << 23)), normal, nonfinite)
    out = b.select(b.icmp_unsigned("<", magnitude, c((127 - 14) << 23)), tiny, out)
    return b.trunc(b.or_(out, b.lshr(b.and_(bits, c(0x80000000)), c(16))), shaped(x, I16))


def _nibbles_to_float(context: Any, b: Any, words: Any) -> Any:
    """Four 16-bit words -> float32 of the float16 whose nibbles are their top nibbles, lowest first (IQ1_M)."""
    bits = I64(0)
    for n in range(4):
        nibble = b.and_(b.lshr(words, I64(16 * n + 12)), I64(15))
        bits = b.or_(bits, b.shl(nibble, I64(4 * n)))
    return _half_to_float(context, b, b.trunc(bits, I16))


_ROUND: dict[Any, Callable[[Any, Any, Any], Any]] = {
    types.float32: lambda context, b, x: x,
    types.uint16: _float_to_bf16,
    types.int16: _float_to_f16,
}

_WIDEN: dict[Any, Callable[[Any, Any, Any], Any]] = {
    types.float32: lambda context, b, x: x,
    types.uint16: _bf16_to_float,
    types.int16: _half_to_float,
}


def round_to(context: Any, builder: Any, dtype: Any, x: Any) -> Any:
    """float32 -> the float32 that an array of numba type `dtype` stores for it."""
    return _WIDEN[dtype](context, builder, _ROUND[dtype](context, builder, x))


def _put(typing_context: Any, values: Any, index: Any, x: Any) -> Any:
    x = x if isinstance(x, Lanes) else types.float32
    ready = isinstance(x, Lanes) and x.dtype == values.dtype

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        stored = args[2] if ready else _ROUND[values.dtype](context, builder, args[2])
        pointer = builder.gep(data(context, builder, signature.args[0], args[0]), [args[1]])
        pointer = builder.bitcast(pointer, stored.type.as_pointer())
        store = builder.store(stored, pointer, align=values.dtype.bitwidth // 8)
        store.set_metadata("alias.scope", _output_scope(builder))
        return context.get_dummy_value()

    return types.void(values, types.intp, x), codegen


def _stored(typing_context: Any, values: Any, x: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _ROUND[values.dtype](context, builder, args[1])

    return Lanes(x.count, values.dtype)(values, x), codegen


def _real(typing_context: Any, code: Any) -> Any:
    many = isinstance(code, Lanes)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        bits = args[0] if many else builder.trunc(args[0], I32)
        return builder.sitofp(bits, shaped(bits, F32))

    return Lanes(code.count, types.float32)(code) if many else types.float32(types.intp), codegen


put: Callable[[Values, int, Any], None] = _untyped_intrinsic(_put)
"""`values[index] = x`, rounded to the dtype that the array stands for; lanes go side by side, from `index` on."""
stored: Callable[[Values, Any], Any] = _untyped_intrinsic(_stored)
"""`f(values, lanes)`: what `put` stores for them. To `pick` from: few different values are rounded once each."""
real: Callable[[Any], Any] = _untyped_intrinsic(_real)
"""A code of at most 32 bits, or lanes of codes, as float32."""


def _bytes(count: int) -> Any:
    return _loader(ir.VectorType(I8, count), Lanes(count), lambda context, b, v: v)


u8: Callable[[Bytes, int], int] = _loader(I8, types.intp, lambda context, b, v: b.zext(v, I64))
"""Unsigned byte at a byte offset."""
s8: Callable[[Bytes, int], int] = _loader(I8, types.intp, lambda context, b, v: b.sext(v, I64))
"""Signed byte at a byte offset."""
u16: Callable[[Bytes, int], int] = _loader(I16, types.intp, lambda context, b, v: b.zext(v, I64))
"""Unsigned 16-bit word at a byte offset."""
u32: Callable[[Bytes, int], int] = _loader(I32, types.intp, lambda context, b, v: b.zext(v, I64))
"""Unsigned 32-bit word at a byte offset."""
u8x4: Callable[[Bytes, int], Any] = _bytes(4)
"""Four bytes at a byte offset, as codes."""
u8x8: Callable[[Bytes, int], Any] = _bytes(8)
"""Eight bytes at a byte offset, as codes."""
u8x16: Callable[[Bytes, int], Any] = _bytes(16)
"""16 bytes at a byte offset, as codes."""
u8x32: Callable[[Bytes, int], Any] = _bytes(32)
"""32 bytes at a byte offset, as codes."""
u64: Callable[[Bytes, int], int] = _loader(I64, types.int64, lambda context, b, v: v)
"""64-bit word at a byte offset, as a signed integer."""
load_f16: Callable[[Bytes, int], float] = _loader(I16, types.float32, _half_to_float)
"""float16 at a byte offset, as float32."""
f16x32: Callable[[Bytes, int], Any] = _loader(ir.VectorType(I16, 32), Lanes(32, types.float32), _half_to_float)
"""32 float16 at a byte offset, as float32."""
load_bf16: Callable[[Bytes, int], float] = _loader(I16, types.float32, _bf16_to_float)
"""bfloat16 at a byte offset, as float32."""
load_f32: Callable[[Bytes, int], float] = _loader(F32, types.float32, lambda context, b, v: v)
"""float32 at a byte offset."""
load_f64: Callable[[Bytes, int], float] = _loader(_F64, types.float32, lambda context, b, v: b.fptrunc(v, F32))
"""float64 at a byte offset, rounded to float32."""
load_i16: Callable[[Bytes, int], float] = _loader(I16, types.float32, lambda context, b, v: b.sitofp(v, F32))
"""Signed 16-bit integer at a byte offset, as float32."""
load_i32: Callable[[Bytes, int], float] = _loader(I32, types.float32, lambda context, b, v: b.sitofp(v, F32))
"""Signed 32-bit integer at a byte offset, rounded to float32."""
load_i64: Callable[[Bytes, int], float] = _loader(I64, types.float32, lambda context, b, v: b.sitofp(v, F32))
"""Signed 64-bit integer at a byte offset, rounded to float32."""
load_f16_nibbles: Callable[[Bytes, int], float] = _loader(I64, types.float32, _nibbles_to_float)
"""float16 spread over the top nibbles of four words at a byte offset, as float32."""
