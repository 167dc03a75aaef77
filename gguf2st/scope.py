"""What an arch map sees of one file: metadata, shorthands and probes. Every read is recorded."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from gguf2st import config, expr
from gguf2st.errors import CoverageError, MapError
from gguf2st.expr import MISSING, Expression
from gguf2st.header import Header, Source

SMALL_NBYTES = 1 << 16
"""Largest tensor that may become configuration; rope factors are a few hundred bytes."""


class MapScope:
    """Names for the expressions of a map: {i} and {e}, then [names], then `<arch>.<key>`, then `<key>`.

    Attributes:
        read_keys: full metadata keys that some expression has read.
        configured: tensor -> reason, for tensors that became configuration.
        notes: what config functions want to be said in the report.
    """

    def __init__(
        self,
        header: Header,
        names: Mapping[str, Expression],
        read_small: Callable[[Source], list[float]],
    ) -> None:
        """`read_small` gives the values of a small float32 tensor; the one exception to headers-only planning."""
        self.header = header
        self.read_keys: set[str] = set()
        self.configured: dict[str, str] = {}
        self.notes: list[str] = []
        self.functions: dict[str, Callable[..., Any]] = {
            "has": lambda name: self._instance(name) in header.sources,
            "rows": lambda name: self._dim(name, -2),
            "cols": lambda name: self._dim(name, -1),
        } | {name: partial(fn, self) for name, fn in config.FUNCTIONS.items()}
        self._names = names
        self._read_small = read_small
        self._index: dict[str, int] = {}
        self._memo: dict[str, Any] = {}
        self._open: list[str] = []
        self._per_index = _index_dependent(names)

    def at(self, **index: int) -> "MapScope":
        """The same scope with {i} and {e} set to the given numbers, and unset when not given."""
        self._index = index
        return self

    def lookup(self, name: str) -> Any:
        """Value of a dotted name, or MISSING."""
        if name in self._index:
            return self._index[name]
        if name in self._memo:
            return self._memo[name]
        if name not in self._names:
            value = self.get(name)
            return MISSING if value is None else value
        if name in self._open:
            raise MapError(f"[names] {' -> '.join([*self._open, name])} refers to itself")
        self._open.append(name)
        try:
            value = expr.evaluate(self._names[name], self)
        finally:
            self._open.pop()
        if name not in self._per_index:
            self._memo[name] = value
        return value

    def get(self, key: str) -> Any:
        """Metadata value of `<arch>.<key>`, else of `<key>`, else None."""
        for full in (f"{self.header.arch}.{key}", key):
            if full in self.header.metadata:
                self.read_keys.add(full)
                return self.header.metadata[full]
        return None

    def tensor(self, name: str, why: str) -> list[float] | None:
        """Values of a small float32 tensor that becomes configuration, or None when the file lacks it."""
        source = self.header.sources.get(name)
        if source is None:
            return None
        if source.qtype != "F32" or source.nbytes is None or source.nbytes > SMALL_NBYTES:
            raise CoverageError(f"{name} is {source.qtype} {list(source.shape)}; a small float32 tensor was expected")
        self.configured[name] = why
        return self._read_small(source)

    def note(self, text: str) -> None:
        """Say something about the result in the report; once."""
        if text not in self.notes:
            self.notes.append(text)

    def _instance(self, name: str) -> str:
        for key, number in self._index.items():
            name = name.replace(f"{{{key}}}", str(number))
        return name

    def _dim(self, name: str, axis: int) -> int:
        source = self.header.sources.get(self._instance(name))
        if source is None or len(source.shape) < -axis:
            raise MapError(f"the file has no tensor {name!r} with {-axis} dimensions")
        return source.shape[axis]


def _index_dependent(names: Mapping[str, Expression]) -> frozenset[str]:
    """Shorthands whose value may differ from layer to layer: they read i or e, or a template, or such a shorthand."""
    found = {n for n, x in names.items() if x.names & {"i", "e"} or "{i}" in x.text}
    while more := {n for n, x in names.items() if n not in found and x.names & found}:
        found |= more
    return frozenset(found)
