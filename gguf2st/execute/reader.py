"""Read the source files from any thread."""

import os
import sys

import numpy as np
from numpy.typing import NDArray

from gguf2st.errors import SourceError, unreadable
from gguf2st.header import Header, Source
from gguf2st.quants.byteorder import to_native
from gguf2st.quants.layout import TYPES
from gguf2st.quants.nibbles import apart
from gguf2st.source import is_address

Bytes = NDArray[np.uint8]


class Reader:
    """The source files, read with pread: any thread, no shared position, and no mapping that a truncation turns into
    SIGBUS or that counts as resident memory.
    """

    def __init__(self, header: Header) -> None:
        self._header = header
        self._fds: list[int] = []
        self._native = header.byteorder == sys.byteorder

    def __enter__(self) -> "Reader":
        try:
            for file, size in zip(self._header.files, self._header.sizes, strict=True):
                if is_address(file):  # not downloaded, because no tensor of it is wanted
                    self._fds.append(-1)
                    continue
                self._fds.append(os.open(file, os.O_RDONLY))
                if os.fstat(self._fds[-1]).st_size != size:
                    raise SourceError(f"{file} has changed since its header was read", hint="run the command again")
        except OSError as err:
            self.__exit__()
            raise unreadable(err) from err
        return self

    def __exit__(self, *exc: object) -> None:
        while self._fds:
            if (fd := self._fds.pop()) >= 0:
                os.close(fd)

    def read_into(self, data: Bytes, source: Source, at: int) -> None:
        """Fill `data`, whole blocks of `source` in one axis, from its byte `at`, as decoders know them."""
        self._read(source, at, data.data)
        blocks = data.reshape(-1, TYPES[source.qtype].nbytes)
        if not self._native:
            np.copyto(blocks, to_native(source.qtype, blocks))
        if source.neighbours:
            np.copyto(blocks, apart(blocks))

    def _read(self, source: Source, at: int, buffer: memoryview) -> None:
        fd, offset = self._fds[source.file], source.offset + at
        while len(buffer):
            try:
                n = os.preadv(fd, [buffer], offset)
            except OSError as err:
                raise unreadable(err, self._header.files[source.file]) from err
            if n == 0:
                raise SourceError(
                    f"{self._header.files[source.file]} ended inside tensor {source.name}: it has changed",
                    hint="run the command again once nothing else writes to it",
                )
            buffer, offset = buffer[n:], offset + n
