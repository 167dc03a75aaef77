"""Ranges of a file on the Hub, by HTTP range requests: a header costs a few megabytes, whatever the model's size."""

import io
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, BinaryIO, cast
from urllib.parse import urlsplit

from gguf2st.errors import HubError
from gguf2st.hub.errors import hub_errors, is_passing
from gguf2st.hub.reference import Reference, parse_address

PIECE_NBYTES = 256 << 10
WAITS_S = (1, 2, 4, 8, 8)
"""Before each further try, when nothing arrives; any byte that does arrive starts the count anew."""


@dataclass(frozen=True)
class RemoteFile:
    """What the Hub says about a file.

    Attributes:
        reference: of the file, its revision a commit.
        nbytes: its size.
        etag: its sha256 if it is stored with LFS, else git's hash of it.
        location: address of the content, which may hold for an hour only.
    """

    reference: Reference
    nbytes: int
    etag: str
    location: str

    def pieces(self, start: int, stop: int) -> Iterator[bytes]:
        """Bytes [start, stop) as they arrive; a connection that breaks is taken up again where it broke.

        Raises:
            HubError: the Hub does not answer, refuses, or sends something else.
        """
        file, at, failures = self, start, 0
        while at < stop:
            try:
                with file._stream(at, stop) as response:
                    for piece in response.iter_bytes(PIECE_NBYTES):
                        at, failures = at + len(piece), 0
                        yield piece
                if at < stop:
                    raise HubError(
                        f"{self.reference.address}: the connection ended early", hint="run the command again"
                    )
            except _NotTheFileError:
                raise  # however often it is asked for
            except HubError:
                if failures == len(WAITS_S):
                    raise
                time.sleep(WAITS_S[failures])
                failures += 1
                file = file._again()

    def read(self, start: int, stop: int) -> bytes:
        """Bytes [start, stop). Raises HubError."""
        return b"".join(self.pieces(start, stop))

    def _again(self) -> "RemoteFile":
        """The same file at its location of now, if the Hub answers. Raises HubError when it refuses."""
        try:
            return describe(self.reference.address)
        except HubError as err:
            if not is_passing(err.__cause__):
                raise
            return self

    @contextmanager
    def _stream(self, start: int, stop: int) -> Iterator[Any]:
        """The answer that carries bytes [start, stop)."""
        from huggingface_hub import constants
        from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

        headers = build_hf_headers(library_name="gguf2st")
        if not _keeps_token(self.location):
            headers.pop("authorization", None)
        headers |= {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
        with (
            hub_errors(self.reference.repo, revision=self.reference.revision, file=self.reference.path),
            get_session().stream(
                "GET", self.location, headers=headers, timeout=timeout, follow_redirects=True
            ) as answer,
        ):
            hf_raise_for_status(answer)
            self._require_range(answer, start, stop)
            yield answer

    def _require_range(self, response: Any, start: int, stop: int) -> None:
        """Refuse an answer that is not the range: a login page of the network, or a server that sends everything."""
        length = response.headers.get("content-length")
        whole = response.status_code == 200 and (start, stop) == (0, self.nbytes) and length == str(stop)
        sent = str(response.headers.get("content-range", ""))
        if not whole and (response.status_code != 206 or not sent.startswith(f"bytes {start}-{stop - 1}/")):
            page = "text/html" in response.headers.get("content-type", "")
            what = "a web page came instead of the file" if page else "the server sends no ranges of the file"
            raise _NotTheFileError(
                f"{self.reference.address}: {what}",
                hint="is there a proxy or a login page in between? Download the file by hand: hf download "
                f"{self.reference.repo} {self.reference.path}",
            )


class _NotTheFileError(HubError):
    """Something else came instead of the range that was asked for."""


def describe(address: str) -> RemoteFile:
    """Size, hash and location of a file, in one request without content. Raises HubError."""
    from huggingface_hub import get_hf_file_metadata, get_token, hf_hub_url

    reference = parse_address(address)
    with hub_errors(reference.repo, revision=reference.revision, file=reference.path):
        url = hf_hub_url(reference.repo, reference.path, revision=reference.revision)
        found = get_hf_file_metadata(url, token=get_token(), library_name="gguf2st")
    if found.size is None or not found.etag:
        raise HubError(f"{address}: the Hub tells neither size nor hash", hint="check HF_ENDPOINT")
    return RemoteFile(reference, found.size, found.etag, found.location)


def open_remote(address: str) -> BinaryIO:
    """A file on the Hub for reading: the cached one if there is one, else by ranges. Raises HubError."""
    from huggingface_hub import try_to_load_from_cache

    reference = parse_address(address)
    cached = try_to_load_from_cache(reference.repo, reference.path, revision=reference.revision)
    if isinstance(cached, str):
        return open(cached, "rb")
    return cast(BinaryIO, _RangeReader(_described(address)))


class _RangeReader(io.RawIOBase):
    """A file object over ranges: one request for each read, as large as the reader asks."""

    def __init__(self, file: RemoteFile) -> None:
        super().__init__()
        self._file, self._at = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.nbytes}[whence]
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        stop = self._file.nbytes if size is None or size < 0 else min(self._at + size, self._file.nbytes)
        if stop <= self._at:
            return b""
        data = self._file.read(self._at, stop)
        self._at = stop
        return data


@lru_cache(maxsize=1024)
def _described(address: str) -> RemoteFile:
    """For the small reads that planning does, one after the other, well within the life of a location."""
    return describe(address)


def _keeps_token(location: str) -> bool:
    """Whether a location is on the Hub itself: elsewhere, its signature stands for the token."""
    from huggingface_hub import constants

    return urlsplit(location).netloc == urlsplit(constants.ENDPOINT).netloc
