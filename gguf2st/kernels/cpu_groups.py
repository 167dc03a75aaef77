"""Vector arithmetic on the 32 weights of a group, for the packing kernels, as numba intrinsics.

A group is `values[at : at + 32]` of a float32 array. Its weights become codes and come back as

    code = clamp(rint(weight * inverse), low, high)         weight ~ scale * code

with `rint` to nearest even. LLVM cuts the vectors of 32 to whatever the machine has. Sums add halves (16 + 16, then
8 + 8, ...), so that they are the same everywhere, and the same as in `gpu_pack_bodies`.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numba.extending import intrinsic

from gguf2st.kernels.cpu_access import Bytes, Values, data
from gguf2st.kernels.cpu_rounding import round_to

N = 32
"""Weights in a group."""

_I8, _I32, _F32 = ir.IntType(8), ir.IntType(32), ir.FloatType()
_WEIGHTS = ir.VectorType(_F32, N)
_untyped_intrinsic: Any = intrinsic


def _all(b: Any, x: Any) -> Any:
    """A vector of 32 times `x`."""
    first = b.insert_element(ir.Constant(_WEIGHTS, ir.Undefined), x, _I32(0))
    return b.shuffle_vector(first, ir.Constant(_WEIGHTS, ir.Undefined), ir.Constant(ir.VectorType(_I32, N), [0] * N))


def _part(b: Any, x: Any, lanes: list[int]) -> Any:
    mask = ir.Constant(ir.VectorType(_I32, len(lanes)), lanes)
    return b.shuffle_vector(x, ir.Constant(x.type, ir.Undefined), mask)


def _fold(b: Any, x: Any, join: Callable[[Any, Any, Any], Any]) -> Any:
    """All lanes joined into one, halves first."""
    n = N
    while n > 1:
        n //= 2
        x = join(b, _part(b, x, list(range(n))), _part(b, x, list(range(n, 2 * n))))
    return b.extract_element(x, _I32(0))


def _add(b: Any, x: Any, y: Any) -> Any:
    return b.fadd(x, y)


def _lesser(b: Any, x: Any, y: Any) -> Any:
    return b.select(b.fcmp_ordered("<", y, x), y, x)


def _greater(b: Any, x: Any, y: Any) -> Any:
    return b.select(b.fcmp_ordered(">", y, x), y, x)


def _codes(b: Any, weights: Any, inverse: Any, low: Any, high: Any) -> Any:
    rint = b.module.declare_intrinsic(f"llvm.rint.v{N}f32", (), ir.FunctionType(_WEIGHTS, [_WEIGHTS]))
    codes = b.call(rint, [b.fmul(weights, _all(b, inverse))])
    return _lesser(b, _greater(b, codes, _all(b, low)), _all(b, high))


def _weights(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    pointer = builder.gep(data(context, builder, signature.args[0], args[0]), [args[1]])
    return builder.load(builder.bitcast(pointer, _WEIGHTS.as_pointer()), align=4)


def _of_weights(compute: Callable[[Any, Any], Any]) -> Any:
    """An intrinsic `f(values, at)`; `compute(builder, weights)` emits it."""

    def read(typing_context: Any, values: Any, at: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return compute(builder, _weights(context, builder, signature, args))

        return types.float32(values, types.intp), codegen

    return _untyped_intrinsic(read)


def _residual(typing_context: Any, values: Any, at: Any, scale: Any, inverse: Any, low: Any, high: Any) -> Any:
    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        weights = _weights(context, b, signature, args)
        left = b.fsub(weights, b.fmul(_all(b, args[2]), _codes(b, weights, *args[3:])))
        return _fold(b, b.fmul(left, left), _add)

    return types.float32(values, types.intp, *[types.float32] * 4), codegen


def _fitted(typing_context: Any, values: Any, at: Any, inverse: Any, low: Any, high: Any) -> Any:
    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        weights = _weights(context, b, signature, args)
        codes = _codes(b, weights, *args[2:])
        squares = _fold(b, b.fmul(codes, codes), _add)
        scale = b.fdiv(_fold(b, b.fmul(weights, codes), _add), squares)
        return b.select(b.fcmp_ordered(">", squares, _F32(0)), scale, _F32(0))

    return types.float32(values, types.intp, *[types.float32] * 3), codegen


smallest: Callable[[Values, int], float] = _of_weights(lambda b, weights: _fold(b, weights, _lesser))
"""The smallest weight."""
largest: Callable[[Values, int], float] = _of_weights(lambda b, weights: _fold(b, weights, _greater))
"""The largest weight."""
squares: Callable[[Values, int], float] = _of_weights(lambda b, weights: _fold(b, b.fmul(weights, weights), _add))
"""Sum of the squared weights."""
residual: Callable[[Values, int, float, float, float, float], float] = _untyped_intrinsic(_residual)
"""`f(values, at, scale, inverse, low, high)`: sum of the squares of `weight - scale * code`."""
fitted: Callable[[Values, int, float, float, float], float] = _untyped_intrinsic(_fitted)
"""`f(values, at, inverse, low, high)`: the scale that suits the codes best (least squares); 0 if they are all 0."""


def _writer(bits: int) -> Any:
    def write(
        typing_context: Any, values: Any, at: Any, inverse: Any, low: Any, high: Any, zero: Any, out: Any, byte: Any
    ) -> Any:
        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            codes = _codes(b, _weights(context, b, signature, args), *args[2:5])
            unsigned = b.fptosi(b.fadd(codes, _all(b, args[5])), ir.VectorType(_I32, N))
            stored = b.trunc(unsigned, ir.VectorType(_I8, N))
            if bits == 4:
                even, odd = (_part(b, stored, list(range(first, N, 2))) for first in (0, 1))
                stored = b.or_(even, b.shl(odd, ir.Constant(odd.type, [_I8(4)] * (N // 2))))
            pointer = b.gep(data(context, b, signature.args[6], args[6]), [args[7]])
            b.store(stored, b.bitcast(pointer, stored.type.as_pointer()), align=1)
            return context.get_dummy_value()

        numbers = [types.float32] * 4
        return types.void(values, types.intp, *numbers, out, types.intp), codegen

    return _untyped_intrinsic(write)


write4: Callable[[Values, int, float, float, float, float, Bytes, int], None] = _writer(4)
"""`f(values, at, inverse, low, high, zero, out, byte)`: `code + zero` as nibbles, low ones first, 16 bytes."""
write8: Callable[[Values, int, float, float, float, float, Bytes, int], None] = _writer(8)
"""As `write4`, a byte for each, 32 bytes."""


def _rounded(typing_context: Any, array: Any, x: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return round_to(context, builder, array.dtype, args[1])

    return types.float32(array, types.float32), codegen


rounded: Callable[[Values, float], float] = _untyped_intrinsic(_rounded)
"""`f(array, x)`: what `put(array, ..., x)` stores, as float32."""
