"""Whole files into huggingface_hub's cache: in parts, several at once, resumable after any interruption, and checked.

huggingface_hub itself starts a file anew after an interruption. So the parts are fetched here into a file beside its
final place in the cache, with a byte per finished part in a second one:

    CACHE/models--org--repo/blobs/<hash>.gguf2st          the content, full size from the start, with holes
    CACHE/models--org--repo/blobs/<hash>.gguf2st.parts    one byte a part: 1 when it is there

Once the hash is right, the file gets its name in the cache, and huggingface_hub does the rest, as for its own.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread

from gguf2st.errors import HubError, OutputError
from gguf2st.hub.errors import hub_errors
from gguf2st.hub.reference import parse_address
from gguf2st.hub.remote import RemoteFile, describe
from gguf2st.report import human_bytes

Progress = Callable[[int, int], None]
"""Called with (bytes just fetched, bytes to fetch in all)."""

PART_NBYTES = 16 << 20
CONNECTIONS = 8
"""Parts fetched at once: one connection seldom fills a fast line."""

SPARE_NBYTES = 64 << 20
"""Left free on a disk."""


@dataclass(frozen=True)
class _Download:
    """A file that is not in the cache yet."""

    file: RemoteFile
    blob: Path

    @property
    def partial(self) -> Path:
        return self.blob.with_name(self.blob.name + ".gguf2st")

    @property
    def parts(self) -> Path:
        return self.blob.with_name(self.blob.name + ".gguf2st.parts")


def fetch(
    addresses: Sequence[str],
    *,
    revision: str = "",
    progress: Progress | None = None,
    output: tuple[Path, int] | None = None,
) -> tuple[Path, ...]:
    """The files as paths in huggingface_hub's cache, downloaded if need be.

    Args:
        addresses: `hf://org/repo@commit/path`.
        revision: branch or tag that names their commit now; the cache remembers it, for when the Hub is out of reach.
        progress: told about bytes as they arrive; what an earlier run left counts as arrived.
        output: a folder, and how many bytes will be written there afterwards: if it is on the cache's disk, both must
            fit before anything is fetched.

    Raises:
        HubError: the Hub does not answer, refuses, or sends something that is not the file.
        OutputError: the disk is too small or cannot be written to.
    """
    known = {address: found for address in addresses if (found := cached_path(address))}
    with ThreadPoolExecutor(CONNECTIONS) as pool:  # one question each
        prepared = pool.map(_prepare, [address for address in addresses if address not in known])
    downloads = {download.blob: download for download in prepared if download}
    _require_space(list(downloads.values()), output)
    total = sum(d.file.nbytes for d in downloads.values())
    for download in downloads.values():
        _complete(download, lambda nbytes: progress(nbytes, total) if progress else None)
    paths = tuple(known.get(address) or _link(address) for address in addresses)
    _remember(addresses[0], revision)
    return paths


def cached_path(address: str) -> Path | None:
    """Where huggingface_hub's cache has a file; None when it has not."""
    from huggingface_hub import try_to_load_from_cache

    reference = parse_address(address)
    found = try_to_load_from_cache(reference.repo, reference.path, revision=reference.revision)
    return Path(found) if isinstance(found, str) else None


def _prepare(address: str) -> _Download | None:
    """What is to be fetched; None when another revision's or repository's copy in the cache will do."""
    from huggingface_hub import hf_hub_download

    file = describe(address)
    reference = file.reference
    if not re.fullmatch(r"[\w.-]+", file.etag):
        raise HubError(f"{address}: the Hub gives {file.etag[:64]!r} as its hash", hint="check HF_ENDPOINT")
    with hub_errors(reference.repo, revision=reference.revision, file=reference.path):
        if hf_hub_download(reference.repo, reference.path, revision=reference.revision, dry_run=True).is_cached:
            return None
    return _Download(file, cache_folder(reference.repo) / "blobs" / file.etag)


def _link(address: str) -> Path:
    """Let huggingface_hub give a file that lies in its cache the name by which it will be found."""
    from huggingface_hub import hf_hub_download

    reference = parse_address(address)
    with hub_errors(reference.repo, revision=reference.revision, file=reference.path):
        return Path(hf_hub_download(reference.repo, reference.path, revision=reference.revision))


def _remember(address: str, revision: str) -> None:
    """Write refs/<revision> as huggingface_hub does; a cache that cannot be written is no reason to fail."""
    reference = parse_address(address)
    if not revision or revision == reference.revision:
        return
    named = cache_folder(reference.repo) / "refs" / revision
    with suppress(OSError):
        named.parent.mkdir(parents=True, exist_ok=True)
        named.write_text(reference.revision)


def cache_folder(repo: str) -> Path:
    """Where huggingface_hub's cache keeps a repository: blobs/, snapshots/ and refs/."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    return Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repo, repo_type="model")


def _require_space(downloads: list[_Download], output: tuple[Path, int] | None) -> None:
    """Raise OutputError unless everything fits: the rest of the downloads, and the output if it is on the same disk."""
    if not downloads:
        return
    cache = _nearest(downloads[0].blob)
    needed = sum(d.file.nbytes - _allocated(d.partial) for d in downloads) + SPARE_NBYTES
    what = f"the download needs {human_bytes(needed)}"
    if output and cache.stat().st_dev == _nearest(output[0]).stat().st_dev:
        needed += output[1]
        what += f" and the checkpoint {human_bytes(output[1])}"
    free = shutil.disk_usage(cache).free
    if free < needed:
        raise OutputError(
            f"{what}, but {cache} has {human_bytes(free)} free",
            hint="free space, set HF_HOME to a folder on a larger disk, or take a smaller quant",
        )


def _nearest(path: Path) -> Path:
    """The path itself, or the deepest folder above it that exists."""
    return next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())


def _allocated(path: Path) -> int:
    """Bytes of a file with holes that are on the disk."""
    try:
        status = path.stat()
    except OSError:
        return 0
    return min(status.st_size, getattr(status, "st_blocks", 0) * 512)


def _complete(download: _Download, progress: Callable[[int], None]) -> None:
    """Fetch the parts that are missing, check the whole, and give it its name in the cache.

    One process does it, under the lock that huggingface_hub takes for the same file; others wait and find it done.
    """
    from huggingface_hub.utils import WeakFileLock

    folder = download.blob.parent.parent
    lock = folder.parent / ".locks" / folder.name / f"{download.blob.name}.lock"
    with hub_errors(download.file.reference.repo, file=download.file.reference.path):
        for parent in (download.blob.parent, lock.parent):
            parent.mkdir(parents=True, exist_ok=True)
        with WeakFileLock(lock):
            if download.blob.exists():
                return
            _fetch_parts(download, progress)
            _check(download)
            os.replace(download.partial, download.blob)
            download.parts.unlink(missing_ok=True)


def _fetch_parts(download: _Download, progress: Callable[[int], None]) -> None:
    """Fetch what is missing, several parts at once.

    The threads are daemons and write under a lock, so that an interruption waits for no server: from the moment that
    `stopped` is set, nothing is written to files that are about to be closed.
    """
    file, size = download.file, download.file.nbytes
    count = -(-size // PART_NBYTES)
    lock, stopped = Lock(), False
    outcomes: SimpleQueue[BaseException | None] = SimpleQueue()
    with _open(download.partial) as content, _open(download.parts) as marks:
        done = os.pread(marks, count, 0)
        if os.fstat(content).st_size != size or len(done) != count:
            os.ftruncate(content, size)
            os.ftruncate(marks, 0)
            os.ftruncate(marks, count)
            done = bytes(count)
        missing = [n for n in range(count) if not done[n]]

        def write(fd: int, data: bytes, at: int, nbytes: int = 0) -> None:
            with lock:
                if stopped:
                    raise _Stopped
                os.pwrite(fd, data, at)
                if nbytes:
                    progress(nbytes)

        def work(parts: Iterator[int]) -> None:
            try:
                while (number := _next(parts, lock)) is not None:
                    at = number * PART_NBYTES
                    for piece in file.pieces(at, min(at + PART_NBYTES, size)):
                        write(content, piece, at, len(piece))
                        at += len(piece)
                    write(marks, b"\1", number)
                    outcomes.put(None)
            except BaseException as err:
                outcomes.put(err)

        if arrived := sum(min(PART_NBYTES, size - n * PART_NBYTES) for n in range(count) if done[n]):
            progress(arrived)
        parts = iter(missing)
        for _ in range(min(CONNECTIONS, len(missing))):
            Thread(target=work, args=(parts,), daemon=True).start()
        try:
            for _ in missing:
                if error := outcomes.get():
                    raise error
        finally:
            with lock:
                stopped = True


class _Stopped(Exception):  # noqa: N818 - nothing went wrong in this thread
    """The download ended while a thread was still at work."""


def _next(parts: Iterator[int], lock: Lock) -> int | None:
    with lock:
        return next(parts, None)


@contextmanager
def _open(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        yield fd
    finally:
        os.close(fd)


def _check(download: _Download) -> None:
    """Compare the content with the hash that the Hub gives; what differs is deleted. Raises HubError."""
    etag = download.file.etag
    if len(etag) == 64:  # of a file stored with LFS
        digest = hashlib.sha256()
    elif len(etag) == 40:  # git's own
        digest = hashlib.sha1(b"blob %d\0" % download.file.nbytes)
    else:
        return
    with download.partial.open("rb") as content:
        while piece := content.read(4 << 20):
            digest.update(piece)
    if digest.hexdigest() != etag:
        download.partial.unlink()
        download.parts.unlink(missing_ok=True)
        raise HubError(
            f"{download.file.reference.address} arrived damaged: its hash is not the Hub's; it was deleted",
            hint="run the command again",
        )
