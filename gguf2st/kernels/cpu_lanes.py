"""Vectors for the CPU kernels: a numba type for neighbouring codes or values, its operators and its moves.

Kernels treat 4 to 32 neighbours at a time as one value of this type and write the arithmetic as for one number:
`q & 15 | bits << 4`, `d * real(q) - m`. LLVM cuts the vectors to whatever registers the machine has. It makes such code
from scalar loops, too, but not where a loop looks up a table, spreads bits or reads fewer than 16 bytes.

Codes are 8-bit and wrap around; `>>` brings in zeros. Values are float32, or what an output array stores.
"""

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numba.core.datamodel import models
from numba.extending import intrinsic, lower_builtin, register_model, type_callable

_untyped_intrinsic: Any = intrinsic  # its annotations describe the typing function, not the call in a kernel
_type_callable: Any = type_callable
_lower_builtin: Any = lower_builtin

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F32 = ir.FloatType()
_ELEMENTS: dict[Any, ir.Type] = {types.int8: I8, types.float32: F32, types.uint16: I16, types.int16: I16}
"""numba type of an element -> its LLVM type."""


class Lanes(types.Type):
    """`count` neighbouring elements: int8 codes, float32 values, or values as an output array stores them."""

    def __init__(self, count: int, dtype: Any = types.int8) -> None:
        self.count, self.dtype = count, dtype
        super().__init__(name=f"Lanes({count}, {dtype})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, lanes: Any) -> None:
        vector = ir.VectorType(_ELEMENTS[lanes.dtype], lanes.count)
        super().__init__(manager, lanes, vector)  # type: ignore[no-untyped-call]


def shaped(x: Any, element: ir.Type) -> Any:
    """The LLVM type of `x`, a number or a vector, with elements of another type."""
    return ir.VectorType(element, x.type.count) if isinstance(x.type, ir.VectorType) else element


def constant(x: Any, element: ir.Type, value: float) -> Any:
    """`value` in the shape of `x`."""
    shape = shaped(x, element)
    return ir.Constant(shape, value if shape is element else [value] * shape.count)


def has(context: Any, feature: str) -> bool:
    """Whether kernels are compiled for a processor with this LLVM feature."""
    return f"+{feature}" in context.codegen().magic_tuple()[2].split(",")


def shuffle(b: Any, x: Any, y: Any, lanes: list[int]) -> Any:
    """A vector of these lanes of `x` and, counted on, `y`."""
    return b.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, len(lanes)), lanes))


def spread(b: Any, x: Any, vector: Any) -> Any:
    """A vector with `x` in every lane."""
    first = b.insert_element(ir.Constant(vector, ir.Undefined), x, I32(0))
    return shuffle(b, first, first, [0] * vector.count)


def _operator(op: Any, of_codes: str, of_values: str = "") -> None:
    """`op` of two equal `Lanes`, or of one and a number: the llvmlite builder's methods for codes and for float32."""

    def typed(context: Any) -> Callable[[Any, Any], Any]:
        def result(x: Any, y: Any) -> Any:
            lanes, other = (x, y) if isinstance(x, Lanes) else (y, x)
            if isinstance(lanes, Lanes):
                if lanes.dtype == types.int8 and (lanes == other or isinstance(other, types.Integer)):
                    return lanes
                if of_values and lanes.dtype == types.float32 and other in (lanes, types.float32):
                    return lanes
            return None

        return result

    def lower(context: Any, b: Any, signature: Any, args: Any) -> Any:
        vector = context.get_value_type(signature.return_type)
        codes = vector.element == I8
        x, y = (a if a.type == vector else spread(b, b.trunc(a, I8) if codes else a, vector) for a in args)
        return getattr(b, of_codes if codes else of_values)(x, y)

    _type_callable(op)(typed)
    for left, right in ((Lanes, Lanes), (Lanes, types.Any), (types.Any, Lanes)):
        _lower_builtin(op, left, right)(lower)


_operator(operator.and_, "and_")
_operator(operator.or_, "or_")
_operator(operator.lshift, "shl")
_operator(operator.rshift, "lshr")
_operator(operator.add, "add", "fadd")
_operator(operator.sub, "sub", "fsub")
_operator(operator.mul, "mul", "fmul")


def _unary(result: Callable[[Any], Any], emit: Callable[[Any, Any, Any], Any]) -> Any:
    """An intrinsic `f(x)`; `emit(context, builder, x)` writes it."""

    def typed(typing_context: Any, x: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return emit(context, builder, args[0])

        return result(x), codegen

    return _untyped_intrinsic(typed)


def _binary(result: Callable[[Any, Any], Any], emit: Callable[[Any, Any, Any, Any], Any]) -> Any:
    """An intrinsic `f(x, y)`; `emit(context, builder, x, y)` writes it."""

    def typed(typing_context: Any, x: Any, y: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return emit(context, builder, *args)

        return result(x, y), codegen

    return _untyped_intrinsic(typed)


def _bits(context: Any, b: Any, word: Any) -> Any:
    return b.zext(b.bitcast(b.trunc(word, I32), ir.VectorType(I1, 32)), ir.VectorType(I8, 32))


def _pairs(context: Any, b: Any, word: Any) -> Any:
    four = b.bitcast(b.trunc(word, I32), ir.VectorType(I8, 4))
    each = shuffle(b, four, four, [lane // 4 for lane in range(16)])
    return b.and_(b.lshr(each, ir.Constant(each.type, [0, 2, 4, 6] * 4)), constant(each, I8, 3))


def _half_of(b: Any, x: Any, half: int) -> Any:
    n = x.type.count // 2
    return shuffle(b, x, x, list(range(half * n, half * n + n)))


def _half(half: int) -> Any:
    return _unary(lambda x: Lanes(x.count // 2, x.dtype)(x), lambda context, b, x: _half_of(b, x, half))


def _joined(b: Any, x: Any, y: Any) -> Any:
    return shuffle(b, x, y, list(range(2 * x.type.count)))


def _reaches(context: Any, b: Any, x: Any, limit: Any) -> Any:
    return b.zext(b.icmp_unsigned(">=", x, spread(b, b.trunc(limit, I8), x.type)), x.type)


def _negated(context: Any, b: Any, x: Any, where: Any) -> Any:
    zero = constant(x, I8, 0)
    return b.select(b.icmp_unsigned("!=", where, zero), b.sub(zero, x), x)


def _byte_shuffle(context: Any) -> str | None:
    """LLVM's name for the instruction that picks 16 of 16 bytes, if the machine has one."""
    if context.codegen().magic_tuple()[0].startswith(("aarch64", "arm64")):
        return "llvm.aarch64.neon.tbl1.v16i8"
    return "llvm.x86.ssse3.pshuf.b.128" if has(context, "ssse3") else None


def _pick(context: Any, b: Any, table: Any, index: Any) -> Any:
    n, element = index.type.count, table.type.element
    if element in (I16, F32) and has(context, "avx512bw") and has(context, "avx512vl"):
        return _pick_lanes(b, table, index)
    if name := _byte_shuffle(context):
        return _pick_bytes(b, name, table, index)
    x = ir.Constant(ir.VectorType(element, n), ir.Undefined)
    for lane in range(n):
        entry = b.extract_element(table, b.zext(b.extract_element(index, I32(lane)), I32))
        x = b.insert_element(x, entry, I32(lane))
    return x


def _pick_lanes(b: Any, table: Any, index: Any) -> Any:
    """One instruction for 32 entries of 16 bits, and for 16 of 32 bits."""
    n, element = index.type.count, table.type.element
    if element == F32 and n == 32:
        return _joined(b, *(_pick_lanes(b, table, _half_of(b, index, half)) for half in (0, 1)))
    entries = table if n == 16 else _joined(b, table, table)
    indices = b.zext(index, ir.VectorType(I16 if element == I16 else I32, n))
    name = "llvm.x86.avx512.permvar." + ("sf.512" if element == F32 else f"hi.{16 * n}")
    of_lanes = ir.FunctionType(entries.type, [entries.type, indices.type])
    return b.call(b.module.declare_intrinsic(name, (), of_lanes), [entries, indices])


def _pick_bytes(b: Any, name: str, table: Any, index: Any) -> Any:
    """A byte shuffle for each byte of an element."""
    n, element = index.type.count, table.type.element
    bytes16 = ir.VectorType(I8, 16)
    instruction = b.module.declare_intrinsic(name, (), ir.FunctionType(bytes16, [bytes16, bytes16]))
    indices = [index] if n == 16 else [_half_of(b, index, half) for half in (0, 1)]
    width = 32 if element == F32 else element.width
    words = b.bitcast(table, ir.VectorType(ir.IntType(width), 16))
    planes = []  # the lowest bytes of all entries, then the next ones
    for shift in range(0, width, 8):
        plane = b.trunc(b.lshr(words, ir.Constant(words.type, [shift] * 16)), bytes16)
        picked = [b.call(instruction, [plane, part]) for part in indices]
        planes.append(picked[0] if n == 16 else _joined(b, *picked))
    zipped = [lane // 2 + lane % 2 * n for lane in range(2 * n)]
    while len(planes) > 1:
        wider = ir.VectorType(ir.IntType(2 * planes[0].type.element.width), n)
        planes = [b.bitcast(shuffle(b, *pair, zipped), wider) for pair in zip(planes[::2], planes[1::2], strict=True)]
    return b.bitcast(planes[0], ir.VectorType(element, n))


def _nibbles(typing_context: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return ir.Constant(ir.VectorType(I8, 16), list(range(16)))

    return Lanes(16)(), codegen


nibbles: Callable[[], Any] = _untyped_intrinsic(_nibbles)
"""The codes 0 to 15."""
bits32: Callable[[int], Any] = _unary(lambda word: Lanes(32)(types.intp), _bits)
"""32 codes of one bit, the lowest first."""
pairs16: Callable[[int], Any] = _unary(lambda word: Lanes(16)(types.intp), _pairs)
"""16 codes of two bits, the lowest first."""
first: Callable[[Any], Any] = _half(0)
"""The first half of the lanes."""
last: Callable[[Any], Any] = _half(1)
"""The second half of the lanes."""
join: Callable[[Any, Any], Any] = _binary(
    lambda x, y: Lanes(2 * x.count, x.dtype)(x, y), lambda context, b, x, y: _joined(b, x, y)
)
"""The lanes of two vectors, one after the other."""
reaches: Callable[[Any, int], Any] = _binary(lambda x, limit: x(x, types.intp), _reaches)
"""`f(codes, limit)`: 1 where an unsigned code is `limit` or more, else 0."""
negated: Callable[[Any, Any], Any] = _binary(lambda x, where: x(x, where), _negated)
"""`f(codes, where)`: `-codes` where the other codes are not zero."""
pick: Callable[[Any, Any], Any] = _binary(lambda table, index: Lanes(index.count, table.dtype)(table, index), _pick)
"""`f(table, index)`: 16 or 32 of the 16 entries of `table`; no index may be above 15."""
