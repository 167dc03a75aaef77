"""Read forwards through a binary file that may lie: nothing is allocated before the file is known to hold it."""

from struct import Struct
from typing import Any, BinaryIO, Literal, NoReturn

from gguf2st.errors import HeaderError

FIRST_CHUNK_NBYTES = 256 << 10
MAX_CHUNK_NBYTES = 2 << 20
"""A chunk is one request where the file is on the Hub: small enough that little is fetched in vain behind the header of
a shard (some kB) or of a whole model (1 to 10 MB), large enough that requests are few."""

MAX_HEADER_NBYTES = 1 << 30
"""Fifty times the longest header known (vocabularies of 260,000 tokens); a flipped bit must not read a whole model."""


class Cursor:
    """Reads forwards through a file in growing chunks; errors of the file object itself pass through.

    Attributes:
        size: of the file in bytes.
        where: what is being read, for messages. Set it as you go.
        order: byte order of the numbers, as `struct` spells it.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.file, self.name, self.where = file, name, "the start of the header"
        self.size = file.seek(0, 2)
        file.seek(0)
        self.order: Literal["<", ">"] = "<"
        self.buffer, self.pos, self.base = b"", 0, 0  # `base`: where in the file the buffer starts
        self.chunk = FIRST_CHUNK_NBYTES

    def fail(self, what: str, hint: str = "the file is damaged or incomplete: download it again") -> NoReturn:
        """Raise a HeaderError that names the file."""
        raise HeaderError(f"{self.name}: {what}", hint=hint)

    @property
    def offset(self) -> int:
        """Position in the file."""
        return self.base + self.pos

    def need(self, nbytes: int) -> None:
        """Have `nbytes` bytes in the buffer from `pos` on."""
        have = len(self.buffer) - self.pos
        if have >= nbytes:
            return
        left = self.size - self.offset
        if self.offset + nbytes > MAX_HEADER_NBYTES and nbytes <= left:
            self.fail(f"{self.where} reaches past {MAX_HEADER_NBYTES} bytes: no header is so long")
        if nbytes > left:
            self.fail(f"{self.where} needs {nbytes} bytes at byte {self.offset}, but the file ends after {left} more")
        pieces = [self.buffer[self.pos :]]
        wanted = min(max(nbytes - have, self.chunk), left - have)
        while wanted > 0:
            piece = self.file.read(wanted)
            if not piece:
                self.fail(f"reading stopped inside {self.where}: the file is shorter than it was")
            pieces.append(piece)
            wanted -= len(piece)
        self.base, self.pos, self.buffer = self.offset, 0, b"".join(pieces)
        self.chunk = min(2 * self.chunk, MAX_CHUNK_NBYTES)

    def take(self, nbytes: int) -> bytes:
        """The next `nbytes` bytes."""
        self.need(nbytes)
        self.pos += nbytes
        return self.buffer[self.pos - nbytes : self.pos]

    def unpack(self, codes: str) -> tuple[Any, ...]:
        """Numbers in the file's byte order; `codes` as for `struct`."""
        layout = Struct(self.order + codes)
        self.need(layout.size)
        self.pos += layout.size
        return layout.unpack_from(self.buffer, self.pos - layout.size)

    def check_room(self, count: int, min_nbytes: int, what: str) -> None:
        """Refuse a count that the rest of the file cannot hold."""
        left = self.size - self.offset
        if count * min_nbytes > left:
            self.fail(f"the header promises {count} {what}, but only {left} bytes follow")

    def name_string(self, what: str) -> str:
        """A key or a tensor name, which must be UTF-8."""
        self.where = what
        (nbytes,) = self.unpack("Q")
        raw = self.take(nbytes)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self.fail(f"{what} is not UTF-8: {raw[:64]!r}")

    def strings(self, count: int) -> list[str]:
        """`count` strings in one pass; bytes that are not UTF-8 survive as surrogate escapes."""
        texts: list[str] = []
        append, length_at = texts.append, Struct(self.order + "Q").unpack_from
        buffer, pos, end = self.buffer, self.pos, len(self.buffer)
        for _ in range(count):
            if pos + 8 > end:
                self.pos = pos
                self.need(8)
                buffer, pos, end = self.buffer, self.pos, len(self.buffer)
            (nbytes,) = length_at(buffer, pos)
            start = pos + 8
            pos = start + nbytes
            if pos > end:
                self.pos = start
                self.need(nbytes)
                buffer, start, end = self.buffer, self.pos, len(self.buffer)
                pos = start + nbytes
            append(str(buffer[start:pos], "utf-8", "surrogateescape"))
        self.pos = pos
        return texts
