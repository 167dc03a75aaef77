"""JSON values -> dataclasses, by their annotations: what a stranger wrote has the types that the code relies on.

    from_plain(Shard, {"file": "model.safetensors", "nbytes": 8}) -> Shard("model.safetensors", 8)

Lists become tuples or frozensets where the annotation says so. Fields with a default may be absent, others may not, and
none may be unknown.
"""

import dataclasses
import types
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


class MistypedError(ValueError):
    """A value has another type than its annotation, or a field is absent or unknown."""


def from_plain(kind: Any, value: Any) -> Any:
    """The value as the annotated type `kind`.

    Supported: Any, None, bool, int, float, str, Literal, unions, `tuple[X, ...]`, `tuple[X, Y]`, `frozenset[X]`,
    `list[X]`, `dict[str, X]`, `Mapping[str, X]`, and dataclasses of these; an instance of a dataclass stays itself.

    Raises:
        MistypedError: naming the field.
    """
    return _reader(kind)(value)


@cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    """What reads a type; made once, as a plan has ten thousands of rows."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda value: value
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind)
    if origin is Literal:
        return lambda value: value if value in arguments and type(value) is not bool else _refuse(value, kind)
    if origin in (Union, types.UnionType):
        return _union(arguments, kind)
    if origin is tuple and arguments[-1:] != (...,):
        return _fixed_tuple(arguments, kind)
    if origin in (tuple, list, frozenset):
        read, make = _reader(arguments[0]), origin
        return lambda value: make(map(read, value)) if isinstance(value, list) else _refuse(value, kind)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(_reader(arguments[1]), kind)
    if kind is float:
        return lambda value: value if type(value) in (float, int) else _refuse(value, kind)
    return lambda value: value if type(value) is kind else _refuse(value, kind)


def _dataclass(kind: Any) -> Callable[[Any], Any]:
    fields: dict[str, Callable[[Any], Any]] = {}
    required = {
        f.name
        for f in dataclasses.fields(kind)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    }

    def read(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        if not isinstance(value, dict):
            _refuse(value, kind)
        if not fields:
            hints = get_type_hints(kind)
            fields.update((field.name, _reader(hints[field.name])) for field in dataclasses.fields(kind))
        if lacking := required - value.keys():
            raise MistypedError(f"{kind.__name__} lacks {', '.join(sorted(lacking))}")
        if unknown := value.keys() - fields.keys():
            raise MistypedError(f"{kind.__name__} has no {min(unknown)[:60]!r}")
        made = {}
        for name, item in value.items():
            try:
                made[name] = fields[name](item)
            except MistypedError as err:
                raise MistypedError(f"{kind.__name__}.{name}: {err}") from None
        return kind(**made)

    return read


def _union(kinds: tuple[Any, ...], kind: Any) -> Callable[[Any], Any]:
    readers = [_reader(k) for k in kinds]

    def read(value: Any) -> Any:
        for reader in readers:
            try:
                return reader(value)
            except MistypedError:
                continue
        return _refuse(value, kind)

    return read


def _fixed_tuple(kinds: tuple[Any, ...], kind: Any) -> Callable[[Any], Any]:
    readers = [_reader(k) for k in kinds]

    def read(value: Any) -> Any:
        if not isinstance(value, list) or len(value) != len(readers):
            _refuse(value, kind)
        return tuple(reader(item) for reader, item in zip(readers, value, strict=True))

    return read


def _mapping(read_item: Callable[[Any], Any], kind: Any) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            _refuse(value, kind)
        return {key: read_item(item) for key, item in value.items()}

    return read


def _refuse(value: Any, kind: Any) -> Any:
    text = repr(value if not isinstance(value, list | dict) else type(value).__name__)
    raise MistypedError(f"{text[:60]} is no {getattr(kind, '__name__', kind)}")
