"""Sources on this machine: a GGUF file under any name, any shard of a split, or a folder.

Only names, sizes and first bytes are looked at here; what the files contain is `gguf2st.header`'s duty.
"""

import difflib
import stat
from pathlib import Path

from gguf2st.errors import SourceError, unreadable
from gguf2st.quoting import shell_line, shell_word, source_word
from gguf2st.source.foreign import MAGIC, START_NBYTES, describe_foreign
from gguf2st.source.selection import (
    CUT,
    MAX_LISTED,
    Candidate,
    choose,
    group,
    is_companion,
    label,
    missing_shards,
    shard_names,
)


def find_files(src: str | Path, select: str = "") -> tuple[Path, ...]:
    """The files of the model that a path names: one, or all shards of a split in order.

    Args:
        src: a GGUF file (told by its first bytes, whatever its name), any shard `NAME-00001-of-00003.gguf` of a split,
            or a folder (files named mmproj* or imatrix* and hidden files are passed over).
        select: which of several models of a folder: see `selection.matching`.

    Raises:
        SourceError: nothing, several models, or something else than a GGUF is there, or shards are missing.
    """
    path = Path(src)
    try:
        if not path.exists():
            raise missing(str(src), path)
        if path.is_dir():
            files = _folder_model(path, select)
        elif select:
            raise SourceError(f"{path} is one file: there is nothing to select", hint="leave out --select")
        else:
            files = _with_shards(path)
        for file in files:
            _check_magic(file)
    except OSError as error:
        raise unreadable(error, src) from error
    return files


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(START_NBYTES)


def _check_magic(path: Path) -> None:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise SourceError(f"{path}: not a regular file", hint="save it to a file first: it is not read front to back")
    start = _start(path)
    if start.startswith(MAGIC):
        return
    message, hint = describe_foreign(start, status.st_size)
    raise SourceError(f"{path}: {message}", hint=hint)


def _with_shards(path: Path) -> tuple[Path, ...]:
    """The file itself, or the whole split that it is a shard of."""
    if cut := CUT.fullmatch(path.name):
        others = ((other.name, CUT.fullmatch(other.name)) for other in path.parent.iterdir())
        pieces = sorted(name for name, piece in others if piece and piece["whole"] == cut["whole"])
        raise SourceError(
            f"{path}: a piece of {cut['whole']}, which was cut for upload",
            hint=f"join the pieces in order: cat {shell_line(map(Path, pieces))} > {shell_word(Path(cut['whole']))}",
        )
    names = shard_names(path.name)
    if len(names) > 1:
        there = {other.name for other in path.parent.iterdir()}
        if absent := tuple(name for name in names if name not in there):
            split = Candidate(tuple(name for name in names if name in there), absent, 0)
            raise missing_shards(str(path), split, hint=f"download the missing shards into {path.parent}")
    return tuple(path.with_name(name) for name in names)


def _folder_model(folder: Path, select: str) -> tuple[Path, ...]:
    """The files of the only model in a folder, or of the selected one; with `select`, one level down too.

    Several quantizations of one model are several models.
    """
    everything = sorted(folder.iterdir())
    files = [path for path in everything if path.is_file() and not path.name.startswith(".")]
    named = [path for path in files if path.suffix.lower() == ".gguf" or _start(path).startswith(MAGIC)]
    inside = [path for path in everything if path.is_dir() and any(path.glob("*.gguf"))]
    if select:
        named += [path for below in inside for path in sorted(below.glob("*.gguf"))]
    candidates = group({path.relative_to(folder).as_posix(): path.stat().st_size for path in named})
    if candidates:
        chosen = choose(
            candidates,
            select,
            where=str(folder),
            spell=lambda c: source_word(f"{folder}:{label(c, candidates)}"),
            listing=lambda c: c.names[0],
        )
        return _with_shards(folder / chosen.names[0])
    if cut := [path for path in files if CUT.fullmatch(path.name)]:
        return _with_shards(cut[0])  # says how to join the pieces
    hint = "give a GGUF file, or a folder that holds one"
    if named:
        hint = f"only companions of a model are here: {', '.join(path.name for path in named)}"
    elif inside:
        hint = f"there are some one level down: {', '.join(str(path) for path in inside[:MAX_LISTED])}"
    elif any(path.suffix.lower() == ".safetensors" for path in files):
        hint = "it holds safetensors, which need no conversion"
    raise SourceError(f"{folder}: no GGUF model is in this folder", hint=hint)


def missing(src: str, path: Path, *, hint: str = "") -> SourceError:
    """The error for a path that does not exist: a name with a slip, or one that is meant for the Hub.

    Args:
        src: as the user wrote it.
        path: of it.
        hint: used where nothing here has a similar name.
    """
    if path.is_symlink():
        return SourceError(
            f"{path}: a link to {path.readlink()}, which does not exist",
            hint="download the file again, or mend the link",
        )
    slip = path
    while slip.parent != slip and not slip.parent.exists():
        slip = slip.parent
    folder = slip.parent
    names = [other.name for other in folder.iterdir()] if folder.is_dir() else []
    # `.gguf` is in most names: compared with it, all of these are alike. Of two that differ in nothing else, the kind
    # that was meant.
    same_kind = sorted(names, key=lambda name: Path(name).suffix.lower() == slip.suffix.lower())
    lowered = {_bare(name): name for name in same_kind}
    close = difflib.get_close_matches(_bare(slip.name), lowered, n=3, cutoff=0.6)
    models = sorted(name for name in names if name.lower().endswith(".gguf") and not is_companion(name))[:3]
    if "\\" in src and Path(src.replace("\\", "/")).exists():
        hint = f"did you mean {src.replace(chr(92), '/')}?"
    elif close:
        hint = f"did you mean {' or '.join(str(folder / lowered[name]) for name in close)}?"
    elif models and not hint:
        hint = f"{folder} holds {', '.join(models)}"
    return SourceError(f"{src}: no such file or folder", hint=hint or "check the name and the current folder")


def _bare(name: str) -> str:
    """A name in small letters without `.gguf`."""
    return name.lower().removesuffix(".gguf")
