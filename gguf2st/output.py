"""The output folder: work happens in `OUT.partial/`, and only a complete checkpoint ever gets the name OUT.

`OUT.partial/plan.json` says what is being made and `journal` which shards are finished, so that the same command run
again goes on where the last one stopped; any other plan starts anew. A line of the journal:

    {"shard": "model-00001-of-00002.safetensors", "sums": {"model.layers.0.mlp.up_proj.weight": [0.25, 8192.0]}}

`sums` has, of each weight that was not packed exactly, the squared differences from the source and the squared values.

At the end everything but these two moves into `OUT.partial/complete/`, which is then renamed to OUT. A checkpoint to
overwrite waits as `OUT.partial/replaced/` until that is done. Whoever is killed in between leaves nothing outside of
`OUT.partial/`, and the next run puts it right.
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypeAlias

from gguf2st.errors import OutputError, VerifyError
from gguf2st.quoting import shell_word
from gguf2st.shards import UNFINISHED, output_error, sync_folder, write_text

Sums: TypeAlias = Mapping[str, tuple[float, float]]
"""Entry -> sum of squared differences from the source, sum of squared values."""

PARTIAL = ".partial"
"""Suffix of the folder that a conversion works in."""
PLAN_FILE = "plan.json"
JOURNAL_FILE = "journal"
_NEVER_REPLACED = (".gguf", ".bin", ".pth", ".pt", ".md", ".txt", ".py", ".onnx")
"""Suffixes of files that people keep beside a checkpoint."""
COMPLETE = "complete"
"""Folder in the partial one that becomes OUT."""
REPLACED = "replaced"
"""Folder in the partial one where an overwritten checkpoint waits for its end."""
_OWN_FILES = (PLAN_FILE, JOURNAL_FILE)


class OutputFolder:
    """`OUT.partial/` while a conversion runs; `finish` turns it into OUT.

    Attributes:
        out: the final folder, links resolved: what a link points to is what gets written.
        partial: the folder to write into.
        finished: the shards that this or an earlier run of the same plan completed, and what their weights lost.
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
        check_target(out, overwrite=overwrite)
        self.out = Path(os.path.realpath(out))
        self.partial = self.out.with_name(self.out.name + PARTIAL)
        self.finished: Mapping[str, Sums] = {}
        self._fingerprint = fingerprint
        self._overwrite = overwrite
        self._journal: IO[str] | None = None

    def __enter__(self) -> "OutputFolder":
        """Create or continue the partial folder, and lock it against another conversion.

        Raises:
            OutputError: not writable, holds files of somebody else, or another conversion is at work in it.
        """
        created = False
        try:
            created = not self.partial.exists()
            self._require_own()
            self._journal = self._open_journal()
            self._recover()
            check_target(self.out, overwrite=self._overwrite)
            if (self.partial / PLAN_FILE).is_file() and self._is_same_plan():
                self.finished = {name: sums for name, sums in self._marked() if (self.partial / name).is_file()}
            else:
                self._clear()
                write_text(self.partial / PLAN_FILE, self._fingerprint)
            self._rewrite_journal()
        except BaseException as err:
            self._close_journal(remove=created)
            if isinstance(err, OSError):
                raise output_error(err, self.partial) from err
            raise
        return self

    def mark(self, shard: str, sums: Sums) -> None:
        """Record a shard as finished: it is durable under its name."""
        assert self._journal is not None
        if shard in self.finished:
            return
        try:
            self._journal.write(_line(shard, sums))
            self._journal.flush()
            os.fsync(self._journal.fileno())
        except OSError as err:
            raise output_error(err, self.partial / JOURNAL_FILE) from err
        self.finished = {**self.finished, shard: sums}

    def require_only(self, names: Iterable[str]) -> None:
        """Raise OutputError when the folder holds a file besides these, which would end in the checkpoint.

        Args:
            names: paths below the folder.
        """
        written = {*names, *_OWN_FILES}
        there = (p.relative_to(self.partial).as_posix() for p in self.partial.rglob("*") if not p.is_dir())
        if others := sorted(name for name in there if name not in written):
            raise OutputError(
                f"{self.partial} holds {others[0]!r}, which this conversion did not write",
                hint="move it away, and run the same command again",
                problems=others[1:],
            )

    def finish(self) -> Path:
        """Give the complete folder its final name; an overwritten checkpoint goes only now.

        Raises:
            OutputError: the target has appeared meanwhile, or cannot be renamed. An old checkpoint is still in place.
        """
        check_target(self.out, overwrite=self._overwrite)
        try:
            complete = self.partial / COMPLETE
            complete.mkdir()
            for path in list(self.partial.iterdir()):
                if path.name not in _OWN_FILES and path != complete:
                    path.rename(complete / path.name)
            sync_folder(complete)
            _replace(complete, self.out, self.partial / REPLACED)
            sync_folder(self.out.parent)
        except OSError as err:
            raise output_error(err, self.out) from err
        self._close_journal(remove=True)
        return self.out

    def discard(self) -> None:
        """Remove the folder: what was made in it has gone elsewhere."""
        self._close_journal(remove=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """After a failure keep what can be resumed, and leave nothing behind otherwise.

        Shards that failed verification are nothing to resume: going on with them would fail for ever.
        """
        failed = kind is not None and (not self.finished or issubclass(kind, VerifyError))
        self._close_journal(remove=failed)

    def _require_own(self) -> None:
        """Raise OutputError when the partial folder is there but was not made by a conversion: it will be emptied."""
        if self.partial.is_symlink():
            raise OutputError(f"{self.partial} is a link", hint="remove it, or choose another folder with -o")
        if self.partial.is_dir() and not any((self.partial / name).exists() for name in _OWN_FILES):
            others = [p.name for p in self.partial.iterdir() if p.suffix != UNFINISHED]
            if others:
                raise OutputError(
                    f"{self.partial} holds {others[0]!r}, but no plan of a conversion: it is somebody else's folder",
                    hint="move it away, or choose another folder with -o",
                )

    def _open_journal(self) -> IO[str]:
        """The journal, open and locked."""
        path = self.partial / JOURNAL_FILE
        while True:
            self.partial.mkdir(parents=True, exist_ok=True)
            try:
                journal = open(path, "a+", encoding="utf-8", errors="replace")  # noqa: SIM115 - as long as the folder
            except FileNotFoundError:
                continue  # the one who held the lock has just removed the folder
            if not lock_file(journal):
                journal.close()
                raise OutputError(
                    f"{self.partial}: another conversion is writing here",
                    hint="wait for it, or choose another folder with -o",
                )
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(journal.fileno()), path.stat()):
                    return journal
            journal.close()  # as above

    def _recover(self) -> None:
        """Put right what a run left that was killed: an overwritten checkpoint without its successor comes back, a
        complete one goes on being made, and files that were being written are worth nothing."""
        replaced, complete = self.partial / REPLACED, self.partial / COMPLETE
        if replaced.is_dir():
            if self.out.exists():
                shutil.rmtree(replaced)
            else:
                replaced.rename(self.out)
        if complete.is_dir():
            for path in list(complete.iterdir()):
                path.rename(self.partial / path.name)
            complete.rmdir()
        for path in list(self.partial.rglob(f"*{UNFINISHED}")):
            path.unlink()

    def _close_journal(self, *, remove: bool = False) -> None:
        """End the lock, after removing the partial folder if asked to."""
        if self._journal is None or self._journal.closed:
            return
        if remove:
            with suppress(OSError):
                self._remove()
        self._journal.close()

    def _remove(self) -> None:
        """Remove the partial folder; the journal, by which the next run knows it as ours, goes last."""
        for path in list(self.partial.iterdir()):
            if path.name not in _OWN_FILES:
                _unlink(path)
        for name in _OWN_FILES:
            (self.partial / name).unlink(missing_ok=True)
        self.partial.rmdir()

    def _marked(self) -> Iterator[tuple[str, Sums]]:
        """Shards in the journal. A line that a crash cut short or filled with zeros counts for nothing."""
        assert self._journal is not None
        self._journal.seek(0)
        for line in self._journal:
            try:
                row: Any = json.loads(line)
                name, sums = row["shard"], {entry: (float(e), float(p)) for entry, (e, p) in row["sums"].items()}
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                continue
            if isinstance(name, str) and name == Path(name).name:
                yield name, sums

    def _rewrite_journal(self) -> None:
        assert self._journal is not None
        self._journal.seek(0)
        self._journal.truncate()
        self._journal.writelines(_line(name, self.finished[name]) for name in sorted(self.finished))
        self._journal.flush()

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
        for path in list(self.partial.iterdir()):
            if path.name != JOURNAL_FILE:
                _unlink(path)


def _line(shard: str, sums: Sums) -> str:
    return json.dumps({"shard": shard, "sums": sums}) + "\n"


def check_target(out: Path, *, overwrite: bool) -> None:
    """Whether a conversion may end in `out`: absent, an empty folder, or a checkpoint to overwrite.

    Raises:
        OutputError: it may not, or cannot be looked at.
    """
    try:
        try:
            out.stat()  # `exists` would take a circle of links for nothing at all
        except FileNotFoundError:
            return
        _check_existing(out, overwrite)
    except OSError as err:
        raise output_error(err, out) from err


def _check_existing(out: Path, overwrite: bool) -> None:
    if not out.is_dir():
        raise OutputError(f"{out} is a file; the output is a folder", hint="choose another name with -o")
    # The finished folder gets its name by renaming.
    for cannot, what in ((os.path.ismount(out), "a mount point"), (out.samefile(Path.cwd()), "the current folder")):
        if cannot:
            raise OutputError(
                f"{out} is {what}, which cannot be replaced",
                hint=f"give a folder in it: -o {shell_word(out / 'model')}",
            )
    if not any(out.iterdir()):
        return
    if not overwrite:
        raise OutputError(f"{out} exists already", hint="--overwrite replaces it; -o chooses another folder")
    if not (out / "config.json").is_file():
        raise OutputError(
            f"{out} is not a checkpoint (it has no config.json), so --overwrite leaves it alone",
            hint="remove it yourself, or choose another folder with -o",
        )
    foreign = [p.name for p in out.iterdir() if p.suffix.lower() in _NEVER_REPLACED or p.name == ".git"]
    if foreign:
        raise OutputError(
            f"{out} holds {foreign[0]!r}, which no conversion writes, so --overwrite leaves it alone",
            hint="move it away, or choose another folder with -o",
        )


def _unlink(path: Path) -> None:
    """Remove a file, a link, or a folder with what is in it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _replace(new: Path, out: Path, aside: Path) -> None:
    """Rename `new` to `out`. A checkpoint that is there goes `aside` first, and comes back if that fails."""
    if not out.exists() or not any(out.iterdir()):
        new.rename(out)  # an empty folder gives way by itself
        return
    out.rename(aside)
    try:
        new.rename(out)
    except BaseException:
        if not out.exists():
            aside.rename(out)
        raise


def lock_file(file: IO[str]) -> bool:
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
