"""Loads and rounding stores for the CPU kernels, as numba intrinsics.

Kernels see flat byte and value arrays through these functions only. Compared with plain indexing they skip the
negative-index check, read unaligned words, and tell LLVM that values never overlap blocks. They take and give single
numbers, or neighbours at once, as `Lanes`. A store rounds to the dtype of its array, so one kernel body serves every
output dtype:

    float32 array -> float32        uint16 array -> bfloat16 bits        int16 array -> float16 bits

numba has no arrays of either 16-bit float; signedness is how the two are told apart.
All arithmetic is plain IEEE float32 and integer: bit-identical on every machine, subnormals included.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numba.extending import intrinsic

from gguf2st.kernels.cpu_lanes import F32, I8, I16, I32, I64, Lanes, shaped, shuffle, spread
from gguf2st.kernels.cpu_rounding import ROUND, bf16_to_float, half_to_float

Bytes = npt.NDArray[np.uint8]
Values = npt.NDArray[Any]
Table = npt.NDArray[Any]

_untyped_intrinsic: Any = intrinsic  # its annotations describe the typing function, not the call in a kernel

_F64 = ir.DoubleType()

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


def _nibbles_to_float(context: Any, b: Any, words: Any) -> Any:
    """Four 16-bit words -> float32 of the float16 whose nibbles are their top nibbles, lowest first (IQ1_M)."""
    bits = I64(0)
    for n in range(4):
        nibble = b.and_(b.lshr(words, I64(16 * n + 12)), I64(15))
        bits = b.or_(bits, b.shl(nibble, I64(4 * n)))
    return half_to_float(context, b, b.trunc(bits, I16))


def _put(typing_context: Any, values: Any, index: Any, x: Any) -> Any:
    x = x if isinstance(x, Lanes) else types.float32
    ready = isinstance(x, Lanes) and x.dtype == values.dtype

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        stored = args[2] if ready else ROUND[values.dtype](context, builder, args[2])
        pointer = builder.gep(data(context, builder, signature.args[0], args[0]), [args[1]])
        pointer = builder.bitcast(pointer, stored.type.as_pointer())
        store = builder.store(stored, pointer, align=values.dtype.bitwidth // 8)
        store.set_metadata("alias.scope", _output_scope(builder))
        return context.get_dummy_value()

    return types.void(values, types.intp, x), codegen


def _stored(typing_context: Any, values: Any, x: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return ROUND[values.dtype](context, builder, args[1])

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


def _spread_half(context: Any, b: Any, h: Any) -> Any:
    sixteen = half_to_float(context, b, spread(b, h, ir.VectorType(I16, 16)))
    return shuffle(b, sixteen, sixteen, [lane % 16 for lane in range(32)])


u64: Callable[[Bytes, int], int] = _loader(I64, types.int64, lambda context, b, v: v)
"""64-bit word at a byte offset, as a signed integer."""
load_f16: Callable[[Bytes, int], float] = _loader(I16, types.float32, half_to_float)
"""float16 at a byte offset, as float32."""
f16x32: Callable[[Bytes, int], Any] = _loader(ir.VectorType(I16, 32), Lanes(32, types.float32), half_to_float)
"""32 float16 at a byte offset, as float32."""
spread_f16: Callable[[Bytes, int], Any] = _loader(I16, Lanes(32, types.float32), _spread_half)
"""32 times the float16 at a byte offset, as float32.

Of a single number LLVM leaves the rest of the register as it was, so that each block waits for the one before.
"""
load_bf16: Callable[[Bytes, int], float] = _loader(I16, types.float32, bf16_to_float)
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
