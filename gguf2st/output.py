"""The output folder: work happens in `OUT.partial/`, and only a complete checkpoint ever gets the name OUT.

`OUT.partial/plan.json` says what is being made and `journal` which shards are finished, so that the same command run
again goes on where the last one stopped; any other plan starts anew.
"""

import json
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import IO

from gguf2st.errors import OutputError
from gguf2st.shards import UNFINISHED, output_error, sync_folder, write_text

PLAN_FILE = "plan.json"
JOURNAL_FILE = "journal"
_OWN_FILES = (PLAN_FILE, JOURNAL_FILE)


class OutputFolder:
    """`OUT.partial/` while a conversion runs; `finish` turns it into OUT.

    Attributes:
        partial: the folder to write into.
        finished: names of the shards that an earlier run of the same plan completed.
    """

    def __init__(self, out: Path, fingerprint: str, *, overwrite: bool = False) -> None:
        """Check the target; nothing is created yet.

        Args:
            out: final folder.
            fingerprint: text that decides whether an earlier partial folder can be continued.
            overwrite: replace an existing checkpoint.

        Raises:
            OutputError: the target exists and must not be replaced.
        """
        self.out = out
        self.partial = out.with_name(out.name + ".partial")
        self.finished: frozenset[str] = frozenset()
        self._fingerprint = fingerprint
        self._overwrite = overwrite
        self._journal: IO[str] | None = None
        check_target(out, overwrite=overwrite)

    def __enter__(self) -> "OutputFolder":
        """Create or continue the partial folder, and lock it against another conversion.

        Raises:
            OutputError: not writable, or another conversion is at work in it.
        """
        try:
            self.partial.mkdir(parents=True, exist_ok=True)
            self._journal = open(self.partial / JOURNAL_FILE, "a+", encoding="utf-8")
        except OSError as err:
            raise output_error(err, self.partial) from err
        if not _lock(self._journal):
            self._journal.close()
            raise OutputError(
                f"{self.partial}: another conversion is writing here",
                hint="wait for it, or choose another folder with -o",
            )
        if self._is_same_plan():
            self._journal.seek(0)
            done = (json.loads(line) for line in self._journal if line.endswith("\n"))
            self.finished = frozenset(name for name in done if (self.partial / name).is_file())
        else:
            self._clear()
            write_text(self.partial / PLAN_FILE, self._fingerprint)
        return self

    def mark(self, shard: str) -> None:
        """Record a shard as finished: it is durable under its name."""
        assert self._journal is not None
        self._journal.write(json.dumps(shard) + "\n")
        self._journal.flush()
        os.fsync(self._journal.fileno())
        self.finished |= {shard}

    def finish(self) -> Path:
        """Give the complete folder its final name; an overwritten checkpoint goes only now."""
        assert self._journal is not None
        try:
            for name in _OWN_FILES:
                (self.partial / name).unlink(missing_ok=True)
            self._journal.close()
            old = None
            if self.out.exists():
                check_target(self.out, overwrite=self._overwrite)
                old = self.out.with_name(self.out.name + ".replaced")
                shutil.rmtree(old, ignore_errors=True)
                self.out.rename(old)
            self.partial.rename(self.out)
            sync_folder(self.out.parent)
            if old is not None:
                shutil.rmtree(old)
        except OSError as err:
            raise output_error(err, self.out) from err
        return self.out

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """After a failure keep what can be resumed, and leave nothing behind otherwise."""
        if self._journal is None or self._journal.closed:
            return
        if kind is not None and not self.finished:
            shutil.rmtree(self.partial, ignore_errors=True)
        self._journal.close()

    def _is_same_plan(self) -> bool:
        try:
            return (self.partial / PLAN_FILE).read_text(encoding="utf-8") == self._fingerprint
        except (OSError, UnicodeDecodeError):
            return False

    def _clear(self) -> None:
        """Remove what another plan left. Files we would never write stop us: the folder is not ours."""
        ours = (".safetensors", ".json", ".jinja", ".model", UNFINISHED)
        foreign = [
            p for p in self.partial.rglob("*") if p.is_file() and p.suffix not in ours and p.name not in _OWN_FILES
        ]
        if foreign:
            raise OutputError(
                f"{self.partial} holds files that no conversion writes, such as {foreign[0].name!r}",
                hint="move them away, or choose another folder with -o",
            )
        assert self._journal is not None
        self._journal.truncate(0)
        for path in self.partial.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != JOURNAL_FILE:
                path.unlink()


def check_target(out: Path, *, overwrite: bool) -> None:
    """Whether a conversion may end in `out`: absent, an empty folder, or a checkpoint to overwrite.

    Raises:
        OutputError: it may not.
    """
    if not out.exists():
        return
    if not out.is_dir():
        raise OutputError(f"{out} is a file; the output is a folder", hint="choose another name with -o")
    if not any(out.iterdir()):
        return
    if not overwrite:
        raise OutputError(f"{out} exists already", hint="--overwrite replaces it; -o chooses another folder")
    if not (out / "config.json").is_file():
        raise OutputError(
            f"{out} is not a checkpoint (it has no config.json), so --overwrite leaves it alone",
            hint="remove it yourself, or choose another folder with -o",
        )


def _lock(file: IO[str]) -> bool:
    """Take an exclusive lock that ends with the process; True where the system has no such locks."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
