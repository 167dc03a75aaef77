"""The tensor algebra of arch maps: what undoes llama.cpp's converter.

An op is a pure function over arrays. It uses only what numpy arrays and torch tensors share, so it runs on either,
on any device. Its shape rule stands beside it, so that planning needs neither library (a test holds the two
together on torch's meta device).

`packed=True`: the op only moves whole rows. On a matrix it never touches the last axis, so that it runs unchanged on
quantized bytes `(..., rows, bytes per row)` and commutes with dequantization. The rows of a vector are its elements.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Array: TypeAlias = Any
"""A numpy array or a torch tensor."""
Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Op:
    """A registered op.

    Attributes:
        fn: arrays, then arguments -> array.
        shape: shapes, then arguments -> shape; raises ValueError when they do not fit.
        packed: whether `fn` only moves whole rows.
        n_arrays: how many arrays `fn` takes.
        arguments: (name, int or float) of each argument that follows them.
    """

    name: str
    fn: Callable[..., Array]
    shape: Callable[..., Shape]
    packed: bool
    n_arrays: int
    arguments: tuple[tuple[str, type], ...]

    def result(self, shapes: Sequence[Shape], *arguments: Any) -> Shape:
        """The shape that `fn` gives.

        Raises:
            ValueError: arguments of the wrong type, or shapes that do not fit them.
        """
        for (name, kind), value in zip(self.arguments, arguments, strict=True):
            if type(value) is not int and type(value) is not kind:
                raise ValueError(
                    f"{name} of {self.name} is {value!r}, not {'a whole number' if kind is int else 'a number'}"
                )
        return self.shape(*shapes, *arguments)


OPS: dict[str, Op] = {}


def _op(*, packed: bool, shape: Callable[..., Shape]) -> Callable[[Callable[..., Array]], Callable[..., Array]]:
    def register(fn: Callable[..., Array]) -> Callable[..., Array]:
        parameters = list(inspect.signature(fn).parameters.values())
        arguments = tuple((p.name, p.annotation) for p in parameters if p.annotation is not Array)
        OPS[fn.__name__] = Op(fn.__name__, fn, shape, packed, len(parameters) - len(arguments), arguments)
        return fn

    return register


def _unpermute_shape(x: Shape, heads: int) -> Shape:
    if not x or heads < 1 or x[0] % (2 * heads):
        raise ValueError(f"{x[0] if x else 'no'} rows are not {heads} heads of an even width")
    return x


@_op(packed=True, shape=_unpermute_shape)
def unpermute(x: Array, heads: int) -> Array:
    """Undo llama.cpp's interleave of rotary pairs: rows (heads, d/2, 2) -> (heads, 2, d/2).

    One head of four rows: [r0, r2, r1, r3] in the file, where the pairs that rotate together are neighbours
    -> [r0, r1, r2, r3].
    """
    return x.reshape(heads, -1, 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def _take_shape(x: Shape, index: int) -> Shape:
    if len(x) < 2 or not 0 <= index < x[0]:
        raise ValueError(f"a tensor of shape {list(x)} has no element {index} along its first axis")
    return x[1:]


@_op(packed=True, shape=_take_shape)
def take(x: Array, index: int) -> Array:
    """One expert of a stack: (experts, rows, cols) -> (rows, cols)."""
    return x[index]


@_op(packed=False, shape=lambda x, value: x)
def minus(x: Array, value: float) -> Array:
    """Undo llama.cpp's `norm.weight + 1`: (n,) -> (n,), subtracted in float32."""
    return x - value
