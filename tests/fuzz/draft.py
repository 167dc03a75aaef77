"""A GGUF taken apart into pieces that can be changed one by one, and put together again without any check.

Written from the format's description (ggml's docs/gguf.md) and not with the reader under test.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import gguf

BOOL, STRING, ARRAY = 7, 8, 9
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
"""Value type -> its struct code."""
SIZES = {number: struct.calcsize("<" + code) for number, code in NUMBERS.items()}


@dataclass(frozen=True, slots=True)
class Array:
    """An array value. `count` is what the file says its length is, where that is a lie."""

    kind: int
    items: Sequence[Any]
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """A metadata key and its value; `key_nbytes` and `nbytes` are lies about the lengths of the key and of a string.

    Attributes:
        raw: the encoded value, where it is known; `changed` forgets it.
    """

    key: bytes
    kind: int
    value: Any
    key_nbytes: int | None = None
    nbytes: int | None = None
    raw: bytes | None = None

    def changed(self, **fields: Any) -> "Item":
        """A copy with other fields."""
        return replace(self, **({"raw": None} | fields))


@dataclass(frozen=True, slots=True)
class Row:
    """A tensor: dims fastest first, offset from the start of the data; `n_dims` and `name_nbytes` are lies."""

    name: bytes
    dims: tuple[int, ...]
    kind: int
    offset: int
    n_dims: int | None = None
    name_nbytes: int | None = None


@dataclass(slots=True)
class Draft:
    """A GGUF in pieces.

    Attributes:
        big: big-endian.
        n_items, n_rows: what the file says there is, where that is a lie.
        alignment: of the data; it is not read from the items.
    """

    version: int
    items: list[Item]
    rows: list[Row]
    data: bytes
    big: bool = False
    n_items: int | None = None
    n_rows: int | None = None
    alignment: int = 32
    magic: bytes = b"GGUF"

    def copy(self) -> "Draft":
        """A draft whose lists can be changed without changing this one."""
        return replace(self, items=self.items.copy(), rows=self.rows.copy())

    def find(self, key: bytes) -> int:
        """Index of the item with a key, or -1."""
        return next((i for i, item in enumerate(self.items) if item.key == key), -1)

    def put(self, item: Item) -> None:
        """Set a key, whether it is there or not."""
        at = self.find(item.key)
        if at < 0:
            self.items.append(item)
        else:
            self.items[at] = item

    def settle(self, limit: int = 1 << 20) -> None:
        """Give the tensors offsets and data that fit their shapes, as far as that takes less than `limit` bytes."""
        at = 0
        rows = []
        for row in self.rows:
            nbytes = row_nbytes(row)
            if at + nbytes > limit:
                return
            rows.append(replace(row, offset=at))
            at += nbytes + -nbytes % self.alignment
        self.rows = rows
        self.data = self.data[:at].ljust(at, b"\0")

    def encode(self) -> bytes:
        """The file."""
        order = ">" if self.big else "<"
        n_rows = len(self.rows) if self.n_rows is None else self.n_rows
        n_items = len(self.items) if self.n_items is None else self.n_items
        parts = [self.magic, struct.pack(order + "IQQ", self.version, n_rows, n_items)]
        for item in self.items:
            raw = item.raw if item.raw is not None and not self.big else encode_value(item, order)
            parts += [_string(item.key, order, item.key_nbytes), struct.pack(order + "I", item.kind), raw]
        for row in self.rows:
            n_dims = len(row.dims) if row.n_dims is None else row.n_dims
            parts.append(_string(row.name, order, row.name_nbytes))
            parts.append(struct.pack(f"{order}I{len(row.dims)}QIQ", n_dims, *row.dims, row.kind, row.offset))
        head = b"".join(parts)
        return head + bytes(-len(head) % self.alignment) + self.data


def row_nbytes(row: Row) -> int:
    """Bytes of a tensor's data, rounded down; of an unknown type 32."""
    elements = 1
    for dim in row.dims:
        elements *= dim
    block, nbytes = _block_sizes().get(row.kind, (elements or 1, 32))
    return elements // block * nbytes


@cache
def _block_sizes() -> dict[int, tuple[int, int]]:
    return {kind.value: sizes for kind, sizes in gguf.GGML_QUANT_SIZES.items()}


def _string(text: bytes, order: str, nbytes: int | None) -> bytes:
    return struct.pack(order + "Q", len(text) if nbytes is None else nbytes) + text


def encode_value(item: Item, order: str = "<") -> bytes:
    """The value of an item, without its type; a value that does not fit the type becomes one that does."""
    return _encode(item.kind, item.value, order, item.nbytes)


def _encode(kind: int, value: Any, order: str, nbytes: int | None) -> bytes:
    if isinstance(value, Array):
        count = len(value.items) if value.count is None else value.count
        head = struct.pack(order + "IQ", value.kind, count & (2**64 - 1))
        if value.kind in NUMBERS:
            return head + _numbers(value.kind, value.items, order)
        return head + b"".join([_encode(value.kind, item, order, None) for item in value.items])
    if kind == STRING:
        return _string(value if isinstance(value, bytes) else str(value).encode(), order, nbytes)
    if kind == BOOL:
        return bytes([int(value) & 0xFF]) if isinstance(value, int) else b"\1"
    if kind in NUMBERS:
        return _numbers(kind, [value], order)
    return value if isinstance(value, bytes) else b""


def _numbers(kind: int, values: Sequence[Any], order: str) -> bytes:
    layout = f"{order}{len(values)}{NUMBERS[kind]}"
    try:
        return struct.pack(layout, *values)
    except (struct.error, OverflowError, TypeError):
        return struct.pack(layout, *[_fitted(kind, value) for value in values])


def _fitted(kind: int, value: Any) -> Any:
    if kind in (6, 12):
        number = (
            value if isinstance(value, float) else float(value) if isinstance(value, int) and value < 2**999 else 0.0
        )
        return number if kind == 12 or abs(number) < 3e38 or number != number else float("inf")
    number = int(value) if isinstance(value, int) or (isinstance(value, float) and abs(value) < 2**64) else 0
    bits = 8 * SIZES[kind]
    number &= (1 << bits) - 1
    return number - (1 << bits) if NUMBERS[kind].islower() and number >> (bits - 1) else number


@dataclass
class _Reader:
    content: bytes
    at: int = 4
    pieces: list[Item] = field(default_factory=list)

    def numbers(self, codes: str) -> tuple[Any, ...]:
        layout = struct.Struct("<" + codes)
        self.at += layout.size
        return layout.unpack_from(self.content, self.at - layout.size)

    def text(self) -> bytes:
        (nbytes,) = self.numbers("Q")
        self.at += nbytes
        return self.content[self.at - nbytes : self.at]

    def value(self, kind: int) -> Any:
        if kind in NUMBERS:
            return self.numbers(NUMBERS[kind])[0]
        if kind == STRING:
            return self.text()
        if kind == BOOL:
            return self.numbers("B")[0] == 1
        inner, count = self.numbers("IQ")
        if inner in NUMBERS:
            return Array(inner, self.numbers(f"{count}{NUMBERS[inner]}"))
        return Array(inner, tuple(self.value(inner) for _ in range(count)))


def take_apart(content: bytes) -> Draft:
    """A little-endian GGUF in pieces. Raises whatever comes up where it is not sound."""
    reader = _Reader(content)
    version, n_rows, n_items = reader.numbers("IQQ")
    items = []
    for _ in range(n_items):
        key = reader.text()
        (kind,) = reader.numbers("I")
        start = reader.at
        value = reader.value(kind)
        items.append(Item(key, kind, value, raw=content[start : reader.at]))
    rows = []
    for _ in range(n_rows):
        name = reader.text()
        (n_dims,) = reader.numbers("I")
        *dims, kind, offset = reader.numbers(f"{n_dims}QIQ")
        rows.append(Row(name, tuple(dims), kind, offset))
    alignment = next((i.value for i in items if i.key == b"general.alignment"), 32)
    if alignment > 4096:
        raise ValueError(f"data aligned to {alignment} would be mostly zeros")
    start = reader.at + -reader.at % alignment
    return Draft(version, items, rows, content[start:], alignment=alignment)
