"""What an op of the tensor algebra is, and the registry that the package fills."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Array: TypeAlias = Any
"""A numpy array or a torch tensor."""
Shape: TypeAlias = tuple[int, ...]

ANY = -1
"""`Op.n_arrays` of an op that joins as many tensors as it is given."""


@dataclass(frozen=True, slots=True)
class Op:
    """A registered op.

    Attributes:
        fn: arrays, then arguments -> array.
        shape: shapes, then arguments -> shape; raises ValueError when they do not fit.
        packed: whether `fn` only moves whole rows.
        forgets: whether the result's shape and the arguments leave open what the shape of a source was. The length of
            the first axis under `take` and `rows` does not count: a source that is not used whole is an error anyway.
        n_arrays: how many arrays `fn` takes; ANY for all that there are, 0 for an op that makes a tensor.
        arguments: (name, int or float) of each argument that follows them.
        more: whether the last argument may be repeated, or left out.
        merges: how many elements of its arrays each element of the result is made of; 1 for all ops that only move
            elements or change each by itself.
    """

    name: str
    fn: Callable[..., Array]
    shape: Callable[..., Shape]
    packed: bool
    forgets: bool
    n_arrays: int
    arguments: tuple[tuple[str, type], ...]
    more: bool = False
    merges: int = 1

    def accepts(self, n_arguments: int) -> bool:
        """Whether the op can take that many arguments."""
        return n_arguments == len(self.arguments) or (self.more and n_arguments >= len(self.arguments) - 1)

    def result(self, shapes: Sequence[Shape], *arguments: Any) -> Shape:
        """The shape that `fn` gives.

        Raises:
            ValueError: arguments of the wrong type or number, or shapes that do not fit them.
        """
        if not self.accepts(len(arguments)):
            raise ValueError(f"{self.name} does not take {len(arguments)} arguments")
        kinds = [*self.arguments, *self.arguments[-1:] * (len(arguments) - len(self.arguments))]
        for (name, kind), value in zip(kinds[: len(arguments)], arguments, strict=True):
            if type(value) is not int and type(value) is not kind:
                raise ValueError(
                    f"{name} of {self.name} is {value!r}, not {'a whole number' if kind is int else 'a number'}"
                )
        return self.shape(*shapes, *arguments)


OPS: dict[str, Op] = {}
"""Name -> op."""


def run_ops(ops: Iterable[tuple[Any, ...]], arrays: Sequence[Array]) -> Array:
    """What the (name, *arguments) of an entry, one after the other, make of the arrays of its sources."""
    for name, *arguments in ops:
        arrays = [OPS[name].fn(*arrays, *arguments)]
    return arrays[0]


def op(
    *, packed: bool, shape: Callable[..., Shape], forgets: bool = False, merges: int = 1
) -> Callable[[Callable[..., Array]], Callable[..., Array]]:
    """Register a function under its own name; its annotations tell arrays from arguments."""

    def register(fn: Callable[..., Array]) -> Callable[..., Array]:
        parameters = list(inspect.signature(fn).parameters.values())
        arrays = [p for p in parameters if p.annotation is Array]
        others = [p for p in parameters if p.annotation is not Array]
        n_arrays = ANY if any(p.kind is p.VAR_POSITIONAL for p in arrays) else len(arrays)
        arguments = tuple((p.name, p.annotation) for p in others)
        more = any(p.kind is p.VAR_POSITIONAL for p in others)
        OPS[fn.__name__] = Op(fn.__name__, fn, shape, packed, forgets, n_arrays, arguments, more, merges)
        return fn

    return register
