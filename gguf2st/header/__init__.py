"""Read GGUF headers (v2 and v3, both byte orders) from any binary file object: metadata, and where each tensor lies.

    magic "GGUF" | version u32 | n_tensors u64 | n_kv u64
    n_kv      x  key string | value type u32 | value         string := nbytes u64 | UTF-8 bytes
    n_tensors x  name string | n_dims u32 | dims u64 x n_dims, fastest first | ggml type u32 | offset u64
    padding to general.alignment | tensor data (offsets count from here)

The bytes come from strangers: each length, count and offset is compared with the size of the file before it is used,
so that a hostile header costs a small multiple of its own size and ends in a HeaderError that names the file. Only the
header is read, forwards, in chunks: a remote file is as good as a local one.

Source of the format: ggml/src/gguf.cpp (llama.cpp b11434), and docs/gguf.md, which is stricter about bools. Laxer than
ggml: tensors may lie in any order with gaps between them, and nested arrays are read.
"""

import math
import sys
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from struct import Struct
from typing import Any, BinaryIO, Literal, TypeAlias

from gguf2st.errors import HeaderError, SourceError, unreadable
from gguf2st.header.cursor import Cursor
from gguf2st.header.keys import brief
from gguf2st.header.spellings import respelled
from gguf2st.header.split import joined
from gguf2st.quants.layout import BY_ID, type_name
from gguf2st.source import is_address, open_file
from gguf2st.source.foreign import MAGIC, START_NBYTES, describe_foreign

Value: TypeAlias = "bool | int | float | str | list[Any] | array[Any]"
"""A metadata value. Arrays of numbers are `array.array` in native byte order; arrays of anything else are lists."""

ByteOrder: TypeAlias = Literal["little", "big"]

DEFAULT_ALIGNMENT = 32  # GGUF_DEFAULT_ALIGNMENT
MAX_DIMS = 4  # GGML_MAX_DIMS
MAX_ELEMENTS = 2**63 - 1  # ggml counts elements in an int64
MAX_ARRAY_DEPTH = 4  # the format sets no limit, and files in the wild nest nothing at all
MIN_KV_NBYTES = 8 + 1 + 4 + 1  # a one-letter key with a bool
MIN_TENSOR_NBYTES = 8 + 4 + 4 + 8  # an unnamed scalar

# Value type ids of gguf.h's `enum gguf_type`; numbers are given as their struct and array code.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
_UINT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 6, 7, 8, 9
_MIN_NBYTES = {_BOOL: 1, _STRING: 8, _ARRAY: 4 + 8} | {i: Struct("<" + code).size for i, code in _NUMBERS.items()}
"""The smallest encoding of one value of each type."""


@dataclass(frozen=True, slots=True)
class Source:
    """One tensor of a GGUF: a row of its header.

    Attributes:
        name: as written in the file.
        qtype: ggml's type name such as `"Q4_K"`, or `"type 57"` when this version does not know the id.
        shape: in torch order, the reverse of ggml's: (rows, cols) with cols contiguous.
        file: index into `Header.files`.
        offset: of the first byte, from the start of that file.
        nbytes: None when the type is unknown.
        neighbours: whether neighbouring numbers share a byte, and not, as in ggml's MXFP4, those 16 apart.
    """

    name: str
    qtype: str
    shape: tuple[int, ...]
    file: int
    offset: int
    nbytes: int | None
    neighbours: bool = False

    @property
    def n_elements(self) -> int:
        """Number of weights; 1 for a scalar."""
        return math.prod(self.shape)

    @property
    def n_rows(self) -> int:
        """Number of rows; a row is the unit that ggml divides into blocks."""
        return math.prod(self.shape[:-1])


@dataclass(frozen=True)
class Header:
    """What the headers of one model's files say.

    Attributes:
        files: names as given to the reader, in shard order.
        sizes: bytes of each file.
        version: GGUF version of the first file.
        byteorder: of every number in the files, weights included.
        metadata: of the first file.
        sources: every tensor by name, in file order.
        beside: tensors of other parts of the model, such as an encoder of images -> why they are left behind.
        notes: what the reader of the result should know of the file.
    """

    files: tuple[str, ...]
    sizes: tuple[int, ...]
    version: int
    byteorder: ByteOrder
    metadata: dict[str, Value]
    sources: dict[str, Source]
    beside: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def arch(self) -> str:
        """`general.architecture`. Raises HeaderError when it is absent or not a string."""
        arch = self.metadata.get("general.architecture")
        if isinstance(arch, str) and arch:
            return arch
        found = "is absent" if arch is None else f"is {brief(arch)}, not a name"
        raise HeaderError(
            f"{self.files[0]}: general.architecture {found}: the header does not say which model this is",
            hint="get a conversion by llama.cpp's converter, which writes it; `gguf2st archs` lists the known ones",
        )


def read_header(files: Sequence[str | Path]) -> Header:
    """The header of one file, or of all shards of a split in order.

    Args:
        files: paths, or addresses of files on the Hub, of which only the headers are fetched, several at once.

    Raises HeaderError for a malformed header or shards that do not belong together, SourceError for unreadable files,
    HubError when the Hub does not answer or refuses.
    """
    if not files:
        raise SourceError("no GGUF file was given", hint="give the path of one, or of the first shard of a split")
    if len(files) > 1 and any(map(is_address, files)):
        with ThreadPoolExecutor(8) as pool:
            parts = list(pool.map(_read_one, range(len(files)), files))
    else:
        parts = [_read_one(index, path) for index, path in enumerate(files)]
    return respelled(joined(parts))


def _read_one(index: int, path: str | Path) -> Header:
    try:
        with open_file(path) as file:
            return parse_header(file, str(path), index=index)
    except OSError as error:
        raise unreadable(error, path) from error


def parse_header(file: BinaryIO, name: str, *, index: int = 0) -> Header:
    """The header of one file (`read`, `seek` and `tell` suffice); a shard of a split is read like any other file.

    Args:
        file: read forwards from its first byte, never further past the header than one chunk.
        name: what to call it in messages.
        index: recorded as `Source.file`.

    Raises HeaderError when the header is malformed, truncated, or contradicts the size of the file.
    """
    cursor = Cursor(file, name)
    version = _read_preamble(cursor)
    n_tensors, n_kv = cursor.unpack("QQ")
    cursor.check_room(n_kv, MIN_KV_NBYTES, "metadata keys")
    cursor.check_room(n_tensors, MIN_TENSOR_NBYTES, "tensors")
    metadata, alignment = _read_metadata(cursor, n_kv)
    rows = _read_rows(cursor, n_tensors)
    sources = _place(cursor, rows, alignment, index)
    return Header((name,), (cursor.size,), version, _byteorder(cursor), metadata, sources)


def _read_preamble(cursor: Cursor) -> int:
    """Check magic and version, set the byte order, and return the version."""
    if cursor.size < 4 or cursor.take(4) != MAGIC:
        cursor.pos = 0
        cursor.fail(*describe_foreign(cursor.take(min(cursor.size, START_NBYTES)), cursor.size))
    cursor.where = "the version"
    (version,) = cursor.unpack("I")
    if version & 0xFFFF == 0:  # as ggml tells a foreign byte order: no version has 16 zero bits
        cursor.order = ">"
        version = int.from_bytes(version.to_bytes(4, "little"), "big")
    if version == 1:
        cursor.fail("GGUF version 1 (August 2023) is no longer supported", "get a newer conversion of the model")
    if version not in (2, 3):
        cursor.fail(f"GGUF version {version} is not supported: versions 2 and 3 are", "is there a newer gguf2st?")
    cursor.where = "the number of tensors and keys"
    return int(version)


def _byteorder(cursor: Cursor) -> ByteOrder:
    return "little" if cursor.order == "<" else "big"


def _read_metadata(cursor: Cursor, n_kv: int) -> tuple[dict[str, Value], int]:
    """The metadata, and the alignment it sets."""
    metadata: dict[str, Value] = {}
    alignment = DEFAULT_ALIGNMENT
    for n in range(n_kv):
        key = cursor.name_string(f"metadata key {n + 1} of {n_kv}")
        if not key:
            cursor.fail(f"metadata key {n + 1} of {n_kv} is empty")
        if key in metadata:
            cursor.fail(f"metadata key {key!r} occurs twice")
        cursor.where = f"the value of {key!r}"
        (type_id,) = cursor.unpack("I")
        value = metadata[key] = _read_value(cursor, type_id, 0)
        if key == "general.alignment":
            if type_id != _UINT32 or not isinstance(value, int) or value.bit_count() != 1:
                cursor.fail(f"general.alignment is {brief(value)}; it must be a power of two, stored as uint32")
            alignment = value
    return metadata, alignment


def _read_value(cursor: Cursor, type_id: int, depth: int) -> Value:
    if type_id in _NUMBERS:
        (number,) = cursor.unpack(_NUMBERS[type_id])
        value: Value = shortest_float32(number) if type_id == _FLOAT32 else number
        return value
    if type_id == _BOOL:
        return _bools(cursor, 1)[0]
    if type_id == _STRING:
        return cursor.strings(1)[0]
    if type_id != _ARRAY:
        cursor.fail(f"{cursor.where} has value type {type_id}; types 0 to 12 exist")
    if depth == MAX_ARRAY_DEPTH:
        cursor.fail(f"{cursor.where} is an array nested more than {MAX_ARRAY_DEPTH} deep")
    return _read_array(cursor, depth)


def _read_array(cursor: Cursor, depth: int) -> Value:
    item_type, count = cursor.unpack("IQ")
    if item_type not in _MIN_NBYTES:
        cursor.fail(f"{cursor.where} is an array of value type {item_type}; types 0 to 12 exist")
    cursor.check_room(count, _MIN_NBYTES[item_type], f"items in {cursor.where}")
    if item_type == _STRING:
        return cursor.strings(count)
    if item_type == _BOOL:
        return _bools(cursor, count)
    if item_type == _ARRAY:
        return [_read_value(cursor, _ARRAY, depth + 1) for _ in range(count)]
    numbers: array[Any] = array(_NUMBERS[item_type])
    numbers.frombytes(cursor.take(count * numbers.itemsize))
    if _byteorder(cursor) != sys.byteorder:
        numbers.byteswap()
    return numbers


def _bools(cursor: Cursor, count: int) -> list[bool]:
    raw = cursor.take(count)
    if raw.translate(None, b"\0\1"):
        cursor.fail(f"{cursor.where} holds a bool that is neither 0 nor 1")
    return [byte == 1 for byte in raw]


def shortest_float32(value: float) -> float:
    """The shortest decimal that names the same float32: 9.999999974752427e-07 -> 1e-06."""
    if not math.isfinite(value):
        return value
    candidates = (float(f"{value:.{digits}g}") for digits in range(1, 9))
    # Nine significant digits name every float32, so that a candidate is missing only where nine are needed.
    return next((c for c in candidates if array("f", (c,))[0] == value), float(f"{value:.9g}"))


def _read_rows(cursor: Cursor, n_tensors: int) -> dict[str, tuple[tuple[int, ...], int, int]]:
    """Per tensor name: shape in torch order, type id, offset from the start of the tensor data."""
    rows: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for n in range(n_tensors):
        name = cursor.name_string(f"the name of tensor {n + 1} of {n_tensors}")
        cursor.where = f"the description of tensor {name!r}"
        if name in rows:
            cursor.fail(f"tensor {name!r} occurs twice")
        (n_dims,) = cursor.unpack("I")
        if n_dims > MAX_DIMS:
            cursor.fail(f"tensor {name!r} has {n_dims} dimensions; ggml has at most {MAX_DIMS}")
        *dims, type_id, offset = cursor.unpack(f"{n_dims}QIQ")
        if 0 in dims or math.prod(dims) > MAX_ELEMENTS:
            cursor.fail(f"tensor {name!r} has the impossible shape {dims}")
        rows[name] = (tuple(reversed(dims)), type_id, offset)
    return rows


def _place(
    cursor: Cursor, rows: dict[str, tuple[tuple[int, ...], int, int]], alignment: int, index: int
) -> dict[str, Source]:
    """Turn offsets into positions in the file, and check that every tensor lies inside it, aligned and alone."""
    data_start = cursor.offset + -cursor.offset % alignment
    sources: dict[str, Source] = {}
    for name, (shape, type_id, offset) in rows.items():
        if offset % alignment:
            cursor.fail(f"tensor {name!r} has offset {offset}, not a multiple of the alignment {alignment}")
        sources[name] = Source(
            name, type_name(type_id), shape, index, data_start + offset, _nbytes(cursor, name, shape, type_id)
        )
    placed = sorted(sources.values(), key=lambda source: source.offset)
    _check_complete(cursor, placed)
    for before, after in pairwise(placed):
        # A tensor of unknown type has an unknown size, but no tensor is empty.
        if before.offset + (before.nbytes or 1) > after.offset:
            cursor.fail(f"tensors {before.name!r} and {after.name!r} overlap at byte {after.offset}")
    return sources


def _nbytes(cursor: Cursor, name: str, shape: tuple[int, ...], type_id: int) -> int | None:
    if type_id not in BY_ID:
        return None
    kind = BY_ID[type_id]
    cols = shape[-1] if shape else 1
    if cols % kind.block:
        cursor.fail(f"tensor {name!r} has rows of {cols} elements; {kind.name} needs a multiple of {kind.block}")
    return math.prod(shape) // kind.block * kind.nbytes


def _check_complete(cursor: Cursor, placed: list[Source]) -> None:
    """Name the first tensor that reaches past the end of the file, and how many bytes are missing in all."""
    cut = [source for source in placed if source.offset + (source.nbytes or 1) > cursor.size]
    if cut:
        missing = max(source.offset + (source.nbytes or 1) for source in cut) - cursor.size
        others = f" does, and {len(cut) - 1} after it" if len(cut) > 1 else " does"
        lack = f"{missing} of {missing + cursor.size} bytes are missing"
        cursor.fail(
            f"the file ends before tensor {cut[0].name!r}{others}: {lack}", "the file is incomplete: download it again"
        )
