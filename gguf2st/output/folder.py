"""The output folder: work happens in `OUT.partial/`, and only a complete checkpoint ever gets the name OUT.

`OUT.partial/plan.json` says what is being made and `journal` which shards are finished, so that the same command run
again goes on where the last one stopped; any other plan starts anew. A line of the journal:

    {"shard": "model-00001-of-00002.safetensors", "sums": {"model.layers.0.mlp.up_proj.weight": [0.25, 8192.0]}}

`sums` has, of each weight that was not packed exactly, the squared differences from the source and the squared values;
of a dense one that float16 holds badly, how many values are lost and how many are not 0.

Where several processes write the shards, each shard has a journal of its own instead: see gguf2st/scaleout/folder.py.

At the end everything but these moves into `OUT.partial/complete/`, which is then renamed to OUT. A checkpoint to
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
from gguf2st.fold import few
from gguf2st.output.locks import open_locked
from gguf2st.output.replaceable import is_known
from gguf2st.output.shards import UNFINISHED, output_error, sync_folder, write_text
from gguf2st.output.target import check_target

Sums: TypeAlias = Mapping[str, tuple[float, float]]
"""Entry -> what it lost: see above."""

PARTIAL = ".partial"
"""Suffix of the folder that a conversion works in."""
PLAN_FILE = "plan.json"
JOURNAL_FILE = "journal"
JOURNALS = "journals"
"""Folder in the partial one of the journals of single shards."""
COMPLETE = "complete"
"""Folder in the partial one that becomes OUT."""
REPLACED = "replaced"
"""Folder in the partial one where an overwritten checkpoint waits for its end."""
OUTLINE = "outline"
"""Folder in the partial one of what is kept of shards that were uploaded and deleted."""
_OWN = (JOURNALS, PLAN_FILE, JOURNAL_FILE)


class BusyError(OutputError):
    """Another process works in the folder."""


class OutputFolder:
    """`OUT.partial/` while a conversion runs; `finish` turns it into OUT.

    Attributes:
        out: the final folder, links resolved: what a link points to is what gets written.
        partial: the folder to write into.
        finished: the shards that this or an earlier run of the same plan completed, and what their weights lost.
    """

    def __init__(self, out: Path, fingerprint: str, *, overwrite: bool = False, shared: bool = False) -> None:
        """Check the target; nothing is created yet.

        Args:
            out: final folder.
            fingerprint: text that decides whether an earlier partial folder can be continued.
            overwrite: replace an existing checkpoint.
            shared: several processes have written the shards (scaleout/folder.py): a partial folder of this plan must
                be there, and is kept whatever fails.

        Raises:
            OutputError: the target exists and must not be replaced.
        """
        check_target(out, overwrite=overwrite)
        self.out = Path(os.path.realpath(out))
        self.partial = self.out.with_name(self.out.name + PARTIAL)
        self.finished: Mapping[str, Sums] = {}
        self._fingerprint = fingerprint
        self._overwrite = overwrite
        self._shared = shared
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
            elif self._shared:
                raise OutputError(
                    f"{self.partial} holds no shards of this plan",
                    hint="begin with `gguf2st convert --plan P --shard i/N`, with the same P on all machines",
                )
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
        """Raise OutputError when the folder holds anything besides these files, which would end in the checkpoint.

        Args:
            names: paths below the folder.
        """
        written = {*names}
        homes = {JOURNALS, *(parent.as_posix() for name in written for parent in Path(name).parents)}
        there = (
            path.relative_to(self.partial).as_posix()
            for path in self.partial.rglob("*")
            if path.parent != self.partial / JOURNALS
        )
        written |= {*_OWN, *(home for home in homes if not (self.partial / home).is_symlink())}
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
                if path.name not in _OWN and path != complete:
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
        failed = kind is not None and not self._shared and (not self.finished or issubclass(kind, VerifyError))
        self._close_journal(remove=failed)

    def _require_own(self) -> None:
        """Raise OutputError when the partial folder is there but was not made by a conversion: it will be emptied."""
        if self.partial.is_symlink():
            raise OutputError(f"{self.partial} is a link", hint="remove it, or choose another folder with -o")
        if self.partial.is_dir() and not any((self.partial / name).exists() for name in _OWN):
            others = [p.name for p in self.partial.iterdir() if p.suffix != UNFINISHED]
            if others:
                raise OutputError(
                    f"{self.partial} holds {others[0]!r}, but no plan of a conversion: it is somebody else's folder",
                    hint="move it away, or choose another folder with -o",
                )

    def _open_journal(self) -> IO[str]:
        """The journal, open and locked."""
        if journal := open_locked(self.partial / JOURNAL_FILE):
            return journal
        raise BusyError(
            f"{self.partial}: another conversion is writing here",
            hint="wait for it, or choose another folder with -o",
        )

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

    def _foreign(self) -> list[str]:
        """Files in the partial folder that no conversion writes. A link is none: removing it loses nothing."""
        files = (p.relative_to(self.partial) for p in self.partial.rglob("*") if p.is_file() and not p.is_symlink())
        places = (JOURNALS, OUTLINE, REPLACED, COMPLETE)
        return sorted(
            name.as_posix()
            for name in files
            if name.parts[0] not in (*places, *_OWN) and name.suffix != UNFINISHED and not is_known(name.as_posix())
        )

    def _remove(self) -> None:
        """Remove the partial folder, unless somebody put a file into it; the journal, by which the next run knows it
        as ours, goes last.
        """
        if self._foreign():
            return
        for path in list(self.partial.iterdir()):
            if path.name not in _OWN:
                _unlink(path)
        for name in _OWN:
            with suppress(FileNotFoundError):
                _unlink(self.partial / name)
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
        if foreign := self._foreign():
            raise OutputError(
                f"{self.partial} holds files that no conversion writes: {few([repr(name) for name in foreign], 4)}",
                hint="move them away, or choose another folder with -o",
            )
        for path in list(self.partial.iterdir()):
            if path.name != JOURNAL_FILE:
                _unlink(path)


def _line(shard: str, sums: Sums) -> str:
    return json.dumps({"shard": shard, "sums": sums}) + "\n"


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
