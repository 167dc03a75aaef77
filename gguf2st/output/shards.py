"""safetensors files, written header-first: every byte's place is known before the first weight is read.

    header nbytes u64 LE | header JSON, padded with spaces to a multiple of 8 | tensor data

The bytes equal what the safetensors library's `save_file` writes for the same tensors (a test holds that). The library
itself needs all tensors in memory at once, which is why this module exists.
"""

import errno
import json
import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from gguf2st.errors import OutputError
from gguf2st.plan import Output, Plan

INDEX_FILE = "model.safetensors.index.json"
MAKE_ROOM = "free some space or choose another folder with -o, then run the same command again"
"""The hint of a full disk."""
UNFINISHED = ".part"
"""Suffix of a shard that is being written."""

_DTYPE_NAMES = {
    "float32": "F32",
    "bfloat16": "BF16",
    "float16": "F16",
    "float8_e4m3": "F8_E4M3",
    "int64": "I64",
    "int32": "I32",
    "uint8": "U8",
}


def header_bytes(outputs: Iterable[Output]) -> bytes:
    """Length field and padded JSON for tensors given in the order they lie in the file."""
    table: dict[str, object] = {"__metadata__": {"format": "pt"}}
    for o in outputs:
        table[o.name] = {"dtype": _DTYPE_NAMES[o.dtype], "shape": o.shape, "data_offsets": (o.start, o.stop)}
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def shard_outputs(plan: Plan, index: int) -> list[Output]:
    """The tensors of one shard in file order."""
    outputs = (o for e in plan.entries for o in e.outputs if o.shard == index)
    return sorted(outputs, key=lambda o: o.start)


def index_json(plan: Plan) -> str:
    """model.safetensors.index.json as transformers writes it."""
    weight_map = {o.name: plan.shards[o.shard].file for e in plan.entries for o in e.outputs}
    metadata = {
        "total_parameters": sum(e.n_elements for e in plan.entries),
        "total_size": sum(s.nbytes for s in plan.shards),
    }
    return json.dumps({"metadata": metadata, "weight_map": weight_map}, indent=2, sort_keys=True) + "\n"


class ShardFile:
    """One shard being written: space reserved, header in place, tensors at their final offsets in any order.

    Writing is thread-safe. `close` makes the file durable and gives it its final name.
    """

    def __init__(self, path: Path, outputs: Sequence[Output], part: Path | None = None) -> None:
        """Create the unfinished file.

        Args:
            path: of the finished shard.
            outputs: its tensors, in file order.
            part: of the unfinished one, in the same folder; `path` + ".part" by default.

        Raises:
            OutputError: the space is not there, or the file cannot be created.
        """
        self.path = path
        self._part = part or path.with_name(path.name + UNFINISHED)
        header = header_bytes(outputs)
        self._data_start = len(header)
        nbytes = len(header) + (outputs[-1].stop if outputs else 0)
        try:
            # 0666 & ~umask, unlike the library's 0600: a server often runs as another user.
            self._fd = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
            try:
                _reserve(self._fd, nbytes)
                _pwrite(self._fd, memoryview(header), 0)
            except BaseException:
                self._discard()
                raise
        except OSError as err:
            raise output_error(err, self._part, nbytes) from err

    def write(self, start: int, data: memoryview) -> None:
        """Put bytes at `start` after the header."""
        try:
            _pwrite(self._fd, data, self._data_start + start)
        except OSError as err:
            raise output_error(err, self._part, len(data)) from err

    def close(self) -> None:
        """Make the shard durable under its final name."""
        try:
            try:
                os.fsync(self._fd)
            finally:
                os.close(self._fd)
            self._part.rename(self.path)
            sync_folder(self.path.parent)
        except OSError as err:
            raise output_error(err, self.path) from err

    def __enter__(self) -> "ShardFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._discard()

    def _discard(self) -> None:
        os.close(self._fd)
        self._part.unlink(missing_ok=True)


def is_whole(path: Path, outputs: Sequence[Output]) -> bool:
    """Whether a path is a regular file, no link, with the size and the header of a shard with these tensors."""
    header = header_bytes(outputs)
    nbytes = len(header) + (outputs[-1].stop if outputs else 0)
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return False
        with open(path, "rb") as f:
            return path.stat().st_size == nbytes and f.read(len(header)) == header
    except OSError:
        return False


def write_text(path: Path, text: str | bytes) -> None:
    """Write a small file durably, or not at all."""
    part = path.with_name(path.name + UNFINISHED)
    # A name of a file may be no text; backslashreplace writes its bytes as JSON's escapes.
    data = text.encode("utf-8", "backslashreplace") if isinstance(text, str) else text
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        part.replace(path)
    except OSError as err:
        with suppress(OSError):
            part.unlink()
        raise output_error(err, path, len(data)) from err


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` durable, where the system allows it."""
    if os.name != "posix":
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def output_error(err: OSError, path: Path, nbytes: int | None = None) -> OutputError:
    """The OutputError that explains a failed system call on an output file."""
    size = f" of {nbytes:,} bytes" if nbytes else ""
    if err.errno in (errno.ENOSPC, errno.EDQUOT):
        return OutputError(
            f"{path}: no space left for a file{size}",
            hint=MAKE_ROOM,
        )
    if err.errno == errno.EFBIG:
        return OutputError(
            f"{path}: no file{size} is allowed here, by the file system or by `ulimit -f`",
            hint="use a smaller --max-shard-size, or choose another folder with -o",
        )
    if err.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return OutputError(f"{path}: not writable ({err.strerror})", hint="choose another folder with -o")
    if err.errno in (errno.ENOENT, errno.ENOTDIR):
        hint = "its folder is not there, or takes no files of ours: choose another one with -o"
        return OutputError(f"{path} cannot be written: {err.strerror}", hint=hint)
    hint = "the disk or the network may be failing (`dmesg`): run the command again, or choose another folder with -o"
    return OutputError(f"{path} cannot be written: {err.strerror or err}", hint=hint)


def _reserve(fd: int, nbytes: int) -> None:
    """Reserve the space now, so that a full disk is known at the start and not after an hour."""
    if not hasattr(os, "posix_fallocate"):
        os.ftruncate(fd, nbytes)
        return
    try:
        os.posix_fallocate(fd, 0, nbytes)
    except OSError as err:
        if err.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        os.ftruncate(fd, nbytes)  # a file system without reservations, such as some network mounts


def _pwrite(fd: int, data: memoryview, offset: int) -> None:
    while len(data):
        n = os.pwrite(fd, data, offset)
        data, offset = data[n:], offset + n
