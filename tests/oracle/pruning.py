"""The cache of `tests.oracle.tiny` does not grow for ever: what no test run knows any more goes after two days.

Every change of a case, of a program or of a library makes new names. Once a day a run marks all names that it may
use before it uses them, and removes what was neither made nor marked for KEPT_S.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from filelock import FileLock, Timeout

EVERY_S = 86_400
KEPT_S = 2 * EVERY_S
"""A run that began before the last marking has its names marked by the one before that."""
LOCKS = "locks"
_GONE = "gone-"


def prune_daily(cache: Path, used: Callable[[], Iterable[Path]]) -> list[str]:
    """Once a day, and in one process at a time: remove the entries of a cache that are not used.

    Args:
        cache: the folder; each folder in it is an entry, but that of the locks.
        used: gives the paths of entries in use, which need not be there.

    Returns: the names of what was removed.
    """
    stamp = cache / LOCKS / ".pruned"
    stamp.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(Timeout), FileLock(stamp.with_suffix(".lock"), blocking=False):
        if stamp.exists() and time.time() - stamp.stat().st_mtime < EVERY_S:
            return []
        removed = list(_pruned(cache, {path.name for path in used()}))
        stamp.touch()
        return removed
    return []


def _pruned(cache: Path, used: Iterable[str]) -> Iterable[str]:
    for name in used:
        with contextlib.suppress(FileNotFoundError):
            os.utime(cache / name)
    now = time.time()
    for entry in sorted(cache.iterdir()):
        was_gone = entry.name.startswith(_GONE)  # but its removal was cut short
        if entry.name == LOCKS or not entry.is_dir() or not (was_gone or now - entry.stat().st_mtime > KEPT_S):
            continue
        gone = entry if was_gone else entry.rename(cache / f"{_GONE}{entry.name}")  # half an entry is never seen
        shutil.rmtree(gone, ignore_errors=True)
        yield entry.name
