"""What an arch map sees of one file: metadata, shorthands and probes. Every read is recorded."""

import sys
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any

from gguf2st import config
from gguf2st.archmap import ArchMap, expr
from gguf2st.archmap.expr import MISSING, Expression
from gguf2st.errors import CoverageError, MapError, SourceError, unreadable
from gguf2st.header import Header, Source, keys
from gguf2st.header.keys import brief
from gguf2st.source import open_file

SMALL_NBYTES = 1 << 16
"""Largest tensor that may become configuration; rope factors are a few hundred bytes."""


def read_small(header: Header) -> Callable[[Source], list[float]]:
    """A reader of small float32 tensors from the files, wherever they are.

    What it returns raises SourceError when a file is gone, or shorter than its header says.
    """

    def read(source: Source) -> list[float]:
        name = header.files[source.file]
        try:
            with open_file(name) as f:
                f.seek(source.offset)
                raw = f.read(source.nbytes or 0)
        except OSError as err:
            raise unreadable(err, name) from err
        if len(raw) != source.nbytes:
            raise SourceError(
                f"{name} ended inside tensor {brief(source.name)}: it has changed", hint="run the command again"
            )
        values = array("f", raw)
        if header.byteorder != sys.byteorder:
            values.byteswap()
        return values.tolist()

    return read


class NoTensorError(MapError):
    """A map asks for the size of a tensor that the file does not have."""

    def __init__(self, tensor: str) -> None:
        super().__init__(f"the file has no tensor {tensor!r}")
        self.tensor = tensor


class MapScope:
    """Names for the expressions of a map: {i} and {e}, then [names], then the metadata key `<arch>.<name>`.

    Attributes:
        read_keys: full metadata keys that some expression has read.
        configured: tensor -> reason, for tensors that became configuration.
        notes: what config functions want to be said in the report.
    """

    def __init__(self, header: Header, amap: ArchMap, read_small: Callable[[Source], list[float]]) -> None:
        """`read_small` gives the values of a small float32 tensor; the one exception to headers-only planning."""
        self.header = header
        self.read_keys: set[str] = set()
        self.configured: dict[str, str] = {}
        self.notes: list[str] = []
        self.functions: dict[str, Callable[..., Any]] = {
            "has": lambda name: self._instance(name) in header.sources,
            "rows": lambda name: self._dim(name, -2),
            "cols": lambda name: self._dim(name, -1),
        } | {name: partial(function.fn, self) for name, function in config.FUNCTIONS.items()}
        self._map = amap
        self._read_small = read_small
        self._index: dict[str, int] = {}
        self._memo: dict[tuple[str, tuple[int | None, ...]], Any] = {}

    def at(self, **index: int) -> "MapScope":
        """The same scope with {i} and {e} set to the given numbers, and unset when not given."""
        self._index = index
        return self

    def evaluate(self, expression: Expression) -> Any:
        """Value of an expression here; computed once per value of the indices that it depends on.

        Raises:
            MapError: a name is missing and has no fallback, a key has the wrong type, or the arithmetic fails.
        """
        here = (expression.text, tuple(map(self._index.get, self._map.use(expression).indices)))
        if here not in self._memo:
            self._memo[here] = expr.evaluate(expression, self)
        return self._memo[here]

    def lookup(self, name: str) -> Any:
        """Value of a dotted name, or MISSING."""
        if name in self._index:
            return self._index[name]
        if name in self._map.names:
            return self.evaluate(self._map.names[name])
        value = self.get(name)
        if isinstance(value, list) and name not in self._map.per_layer and keys.WHOLE_NUMBERS not in keys.KEYS[name]:
            same = value[:1] * (self.get("block_count") or 0)
            if keys.LAYERWISE in keys.KEYS[name] and value and value == same:
                return value[0]  # llama.cpp takes either form
            raise MapError(
                f"{self.header.arch}.{name} has one value per layer, {keys.brief(value)}; the map {self._map.name}"
                " is for models with one value"
            )
        return MISSING if value is None else value

    def get(self, key: str) -> Any:
        """Metadata value of `<arch>.<key>`, else of `<key>` for what stands below no architecture, or None.

        Raises:
            MapError: no such key exists, or the value is not what it holds (header/keys.py).
        """
        keys.require_key(key)
        full = f"{self.header.arch}.{key}"
        if full not in self.header.metadata:
            full = key
        if full not in self.header.metadata:
            return None
        self.read_keys.add(full)
        return keys.checked(full, key, self.header.metadata[full])

    def tensor(self, name: str, why: str) -> list[float] | None:
        """Values of a small float32 tensor that becomes configuration, or None when the file lacks it.

        Raises:
            CoverageError: the tensor is of another type, or large.
        """
        source = self.header.sources.get(name)
        if source is None:
            return None
        self.configured[name] = why
        if source.qtype != "F32" or source.nbytes is None or source.nbytes > SMALL_NBYTES:
            raise CoverageError(f"{name} is {source.qtype} {list(source.shape)}; a small float32 tensor was expected")
        return self._read_small(source)

    def has(self, tensor: str) -> bool:
        """Whether the file has the tensor."""
        return tensor in self.header.sources

    def shape(self, tensor: str) -> tuple[int, ...]:
        """The shape of a tensor.

        Raises:
            NoTensorError: the file lacks it.
        """
        if tensor not in self.header.sources:
            raise NoTensorError(tensor)
        return self.header.sources[tensor].shape

    def note(self, text: str) -> None:
        """Say something about the result in the report; once."""
        if text not in self.notes:
            self.notes.append(text)

    def _instance(self, name: object) -> str:
        if not isinstance(name, str):
            raise TypeError("a tensor is named by a text in quotes")
        for key, number in self._index.items():
            name = name.replace(f"{{{key}}}", str(number))
        return name

    def _dim(self, name: object, axis: int) -> int:
        tensor = self._instance(name)
        source = self.header.sources.get(tensor)
        if source is None:
            raise NoTensorError(tensor)
        return source.shape[axis] if len(source.shape) >= -axis else 1  # leading ones need not be written
