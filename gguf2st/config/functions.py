"""The registry of functions that maps may call in [config]."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar


class FileScope(Protocol):
    """What a config function sees of the file; every read is recorded, so that nothing is dropped unread."""

    def get(self, key: str) -> Any:
        """Metadata value below the architecture, or None."""
        ...

    def tensor(self, name: str, why: str) -> list[float] | None:
        """Values of a small float32 tensor that becomes configuration (`why`), or None when the file lacks it."""
        ...

    def has(self, tensor: str) -> bool:
        """Whether the file has the tensor."""
        ...

    def shape(self, tensor: str) -> tuple[int, ...]:
        """The shape of a tensor. Raises MapError when the file lacks it."""
        ...

    def note(self, text: str) -> None:
        """Say something about the result in the report."""
        ...


@dataclass(frozen=True, slots=True)
class Function:
    """A function that maps may call.

    Attributes:
        fn: (scope, *arguments) -> config.json keys.
        reads: metadata keys that are its business; one that ends in a dot stands for all that begin so.
    """

    fn: Callable[..., Any]
    reads: tuple[str, ...]


def given(scope: FileScope, key: str, default: Any) -> Any:
    """What the file says under `key`, be it 0 or false; `default` only where it says nothing (`a or b` in a map)."""
    value = scope.get(key)
    return default if value is None else value


def nonzero(scope: FileScope, key: str, default: Any = None) -> Any:
    """`given` for a key with which 0 means that there is none (`nonzero(a) or b` in a map)."""
    return default if (value := scope.get(key)) is None or value == 0 else value


FUNCTIONS: dict[str, Function] = {}

_Fn = TypeVar("_Fn", bound=Callable[..., Any])


def function(*reads: str) -> Callable[[_Fn], _Fn]:
    """Register a function under its own name, with the metadata keys that are its business."""

    def register(fn: _Fn) -> _Fn:
        FUNCTIONS[fn.__name__] = Function(fn, reads)
        return fn

    return register


@function()
def assumed(scope: FileScope, value: Any, key: str, why: str) -> Any:
    """`value`, with a line in the report: no file holds this key of config.json, or this one lacks it.

    In a map it stands behind an `or`: `final_logit_softcapping or assumed(30.0, 'final_logit_softcapping', '...')`.
    """
    scope.note(f"{key} = {value!r} is assumed: {why}")
    return value
