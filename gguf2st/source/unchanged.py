"""Whether the files of a source stay as they are while a checkpoint is made of them."""

import os
from collections.abc import Sequence
from pathlib import Path

from gguf2st.errors import OutputError, SourceError, unreadable
from gguf2st.output.folder import PARTIAL


def identity(files: Sequence[Path]) -> list[tuple[int, ...]]:
    """What tells whether a file is still the same: which one, how large, and when it was last changed in any way.

    The time of writing alone is not enough: copies may keep it.

    Raises:
        SourceError: a file is gone.
    """
    try:
        found = [file.stat() for file in files]
    except OSError as err:
        raise unreadable(err) from err
    return [(s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for s in found]


def require_unchanged(files: Sequence[Path], before: list[tuple[int, ...]]) -> None:
    """Raise SourceError when a file was written to since `identity` was taken: what was read may be a mixture."""
    for file, was, now in zip(files, before, identity(files), strict=True):
        if was != now:
            raise SourceError(
                f"{file} changed while it was read", hint="run the command again once nothing else writes to it"
            )


def require_apart(files: Sequence[Path], folder: Path) -> None:
    """Raise OutputError when the output folder, or the one it is made in, holds a file of the source."""
    target = Path(os.path.realpath(folder))  # `resolve` raises for a circle of links
    for file in files:
        for taken in (target, Path(f"{target}{PARTIAL}")):
            # Into "/" or the current folder nothing is written anyway: `check_target` says so.
            if target != Path.cwd() and target.name and taken in file.resolve().parents:
                raise OutputError(f"the output {folder} holds the source {file}", hint="choose another folder with -o")
