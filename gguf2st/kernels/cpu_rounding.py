"""Conversions between float32 and the 16-bit floats, in LLVM: of a number or of a vector, to nearest even.

The same bits come out on every machine, subnormals and NaNs included. What a machine has instructions for only changes
how they are made.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types

from gguf2st.kernels.cpu_lanes import F32, I1, I16, I32, constant, has, shaped, shuffle

_F16 = ir.HalfType()
_SUBNORMAL = 0x20
"""The class of VFPCLASSPS."""


def half_to_float(context: Any, b: Any, h: Any) -> Any:
    """float16 bits -> float32: rebias the exponent; a subnormal is its mantissa times 2^-24, exactly."""
    if has(context, "f16c"):
        return b.fpext(b.bitcast(h, shaped(h, _F16)), shaped(h, F32))

    c = partial(constant, h, I32)
    word = b.zext(h, shaped(h, I32))
    magnitude = b.and_(word, c(0x7FFF))
    shifted = b.shl(magnitude, c(13))
    subnormal = b.fmul(b.uitofp(magnitude, shaped(h, F32)), constant(h, F32, 2.0**-24))
    normal = b.add(shifted, c((127 - 15) << 23))
    nonfinite = b.or_(shifted, c(0x7F800000))
    bits = b.select(b.icmp_unsigned("<", magnitude, c(0x7C00)), normal, nonfinite)
    bits = b.select(b.icmp_unsigned("<", magnitude, c(0x0400)), b.bitcast(subnormal, shaped(h, I32)), bits)
    return b.bitcast(b.or_(bits, b.shl(b.and_(word, c(0x8000)), c(16))), shaped(h, F32))


def bf16_to_float(context: Any, b: Any, h: Any) -> Any:
    """bfloat16 bits -> float32."""
    return b.bitcast(b.shl(b.zext(h, shaped(h, I32)), constant(h, I32, 16)), shaped(h, F32))


def _float_to_bf16(context: Any, b: Any, x: Any) -> Any:
    """float32 -> bfloat16 bits; the quiet bit keeps a NaN from rounding into an infinity."""
    n = x.type.count if isinstance(x.type, ir.VectorType) else 1
    if n in (16, 32) and has(context, "avx512bf16"):
        return _bf16_instruction(b, x)
    if n == 32 and has(context, "avx512bw"):
        return _bf16_halves(b, x)
    return _bf16_words(b, x)


def _bf16_words(b: Any, x: Any) -> Any:
    bits = b.bitcast(x, shaped(x, I32))
    odd = b.and_(b.lshr(bits, constant(x, I32, 16)), constant(x, I32, 1))
    rounded = b.add(b.add(bits, constant(x, I32, 0x7FFF)), odd)
    nan = b.or_(bits, constant(x, I32, 0x00400000))
    either = b.select(b.fcmp_unordered("uno", x, x), nan, rounded)
    return b.trunc(b.lshr(either, constant(x, I32, 16)), shaped(x, I16))


def _bf16_halves(b: Any, x: Any) -> Any:
    """16-bit arithmetic: half the work where a machine takes the halves of two registers apart in one instruction.

    For results of float arithmetic, whose NaNs have their quiet bit already.
    """
    n = x.type.count
    halves = b.bitcast(x, ir.VectorType(I16, 2 * n))
    low, high = (shuffle(b, halves, halves, list(range(first, 2 * n, 2))) for first in (0, 1))
    odd = b.and_(high, constant(x, I16, 1))
    up = b.icmp_unsigned(">", low, b.sub(constant(x, I16, 0x8000), odd))
    finite = b.icmp_unsigned("<", b.and_(high, constant(x, I16, 0x7FFF)), constant(x, I16, 0x7F80))
    return b.add(high, b.zext(b.and_(up, finite), high.type))


def _bf16_instruction(b: Any, x: Any) -> Any:
    """VCVTNEPS2BF16, which takes subnormals for zeros: where there are any, the work is done again without it."""
    n, sixteen = x.type.count, ir.VectorType(F32, 16)
    parts = [shuffle(b, x, x, list(range(first, first + 16))) for first in range(0, n, 16)]
    of_class = ir.FunctionType(ir.VectorType(I1, 16), [sixteen, I32])
    classify = b.module.declare_intrinsic("llvm.x86.avx512.fpclass.ps.512", (), of_class)
    subnormal = I16(0)
    for part in parts:
        subnormal = b.or_(subnormal, b.bitcast(b.call(classify, [part, I32(_SUBNORMAL)]), I16))
    name = f"llvm.x86.avx512bf16.cvtne{'2' if n == 32 else ''}ps2bf16.512"
    of_floats = ir.FunctionType(shaped(x, I16), [sixteen] * len(parts))
    converted = b.call(b.module.declare_intrinsic(name, (), of_floats), parts[::-1])
    before = b.block
    with b.if_then(b.icmp_unsigned("!=", subnormal, I16(0)), likely=False):
        exact, inside = _bf16_words(b, x), b.block
    result = b.phi(converted.type)
    result.add_incoming(converted, before)
    result.add_incoming(exact, inside)
    return result


def _float_to_f16(context: Any, b: Any, x: Any) -> Any:
    """float32 -> float16 bits.

    Below 2^-14 a float16 is a multiple of 2^-24, which is the unit in the last place of [0.5, 1): adding 0.5 rounds.
    """
    if has(context, "f16c"):
        return b.bitcast(b.fptrunc(x, shaped(x, _F16)), shaped(x, I16))

    c = partial(constant, x, I32)
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


ROUND: dict[Any, Callable[[Any, Any, Any], Any]] = {
    types.float32: lambda context, b, x: x,
    types.uint16: _float_to_bf16,
    types.int16: _float_to_f16,
}
"""numba type of an output array's elements -> float32 to what the array stores."""

_WIDEN: dict[Any, Callable[[Any, Any, Any], Any]] = {
    types.float32: lambda context, b, x: x,
    types.uint16: bf16_to_float,
    types.int16: half_to_float,
}


def round_to(context: Any, builder: Any, dtype: Any, x: Any) -> Any:
    """float32 -> the float32 that an array of numba type `dtype` stores for it."""
    return _WIDEN[dtype](context, builder, ROUND[dtype](context, builder, x))
