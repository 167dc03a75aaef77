"""Locks that end with the process, on the files by which processes know of each other."""

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import IO

_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)
"""What `flock` answers on file systems without locks, such as Lustre mounted without them."""


def open_locked(path: Path, *, shared: bool = False) -> IO[str] | None:
    """Open a file and lock it, making it and its folder if need be; None while another process keeps it locked.

    Args:
        path: of the file.
        shared: whether others may have it locked in this way too.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = open(path, "a+", encoding="utf-8", errors="replace")  # noqa: SIM115 - as long as the lock
        except FileNotFoundError:
            continue  # the one who held the lock has just removed the folder
        if not lock_file(file, shared=shared):
            file.close()
            return None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()  # as above


def lock_file(file: IO[str], *, shared: bool = False) -> bool:
    """Take a lock that ends with the process; True also where the system or the file system has no such locks."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as err:
        return err.errno in _NO_LOCKS
    return True
