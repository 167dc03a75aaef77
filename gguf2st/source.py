"""What SRC can be: a GGUF file under any name, any shard of a split, or a folder that holds one model.

Only names, sizes and first bytes are looked at here; what the files contain is `gguf2st.header`'s duty.
"""

import difflib
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from struct import unpack_from

from gguf2st.errors import SourceError

MAGIC = b"GGUF"
COMPANIONS = ("mmproj", "imatrix")
"""First letters of GGUF files that lie beside a model without being one: vision projectors and importance matrices."""

START_NBYTES = 512
"""How much of a file is read to tell what it is."""

MAX_LISTED = 20
"""Problems listed one by one before the rest is only counted."""

# llama.cpp's llama_split_path: "%s-%05d-of-%05d.gguf", counted from 1.
_SHARD = re.compile(r"(?P<prefix>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
# Files cut by `split` because hosts had size limits: none but the first is a GGUF.
_CUT = re.compile(r"(?P<whole>.*\.gguf)[.-](?:split-\w+|part-?\w+)", re.DOTALL | re.IGNORECASE)
# org/repo or org/repo:quant; with a host also whatever follows.
_HUB = re.compile(
    r"(?P<host>(?:https?://)?(?:huggingface\.co|hf\.co)/|hf://(?:models/)?)?(?P<repo>\w[\w.-]*/\w[\w.-]*)"
    r"(?(host)(?:[:/@].*)?|(?::[\w.-]+)?)"
)


def find_files(src: str | Path) -> tuple[Path, ...]:
    """The files of the model that `src` names: one, or all shards of a split in order.

    Args:
        src: a GGUF file (told by its first bytes, whatever its name), any shard `NAME-00001-of-00003.gguf` of a split,
            or a folder holding exactly one model (files named mmproj* or imatrix* and hidden files are passed over).

    Raises SourceError when nothing, several models, or something else than a GGUF is there, or when shards are missing.
    """
    if str(src) in ("", "-"):
        what = "a GGUF cannot be read from standard input: its parts are read in another order than they lie in"
        raise SourceError(what if src else "the name of the source is empty", hint="give a file or a folder")
    path = Path(src)
    try:
        if not path.exists():
            raise _missing(str(src), path)
        files = _folder_model(path) if path.is_dir() else _with_shards(path)
        for file in files:
            _check_magic(file)
    except OSError as error:
        raise SourceError(f"{error.filename or src}: {error.strerror or error}") from error
    return files


def default_output(files: Sequence[Path]) -> Path:
    """Where the checkpoint goes when the user names no folder: beside the source, `model.Q4_K_M-safetensors`.

    The name is the file's without `.gguf` and without the shard number, so that every shard gives the same folder.
    """
    name = files[0].name
    shard = _shard_name(name)
    stem = shard[0] if shard else re.sub(r"\.gguf$", "", name, flags=re.IGNORECASE)
    return files[0].with_name(f"{stem or name}-safetensors")


def describe_foreign(start: bytes, size: int) -> tuple[str, str]:
    """What a file that is not a GGUF is: (message, hint).

    Args:
        start: its first bytes, up to START_NBYTES.
        size: of the whole file in bytes.
    """
    again = "download the file again"
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if size == 0:
        return "the file is empty", again
    if start.startswith(b"version https://git-lfs"):
        return (
            "this is a Git LFS pointer, not the model",
            "run `git lfs pull` where it was cloned, or use `hf download`",
        )
    if text.startswith((b"<!doctype html", b"<html", b"<?xml")):
        return "this is a web page, not a GGUF", "a Hub file's own address contains /resolve/, not /blob/"
    if start.startswith(b"PK\x03\x04"):
        return "this is a zip archive or a PyTorch checkpoint, not a GGUF", "unzip it, or use the checkpoint as it is"
    if start.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"(\xb5/\xfd", b"7z\xbc\xaf")):
        return "this is a compressed archive, not a GGUF", "unpack it first"
    if start[8:9] == b"{" and 2 <= unpack_from("<Q", start)[0] <= size - 8:
        return "this is a safetensors file, not a GGUF", "it needs no conversion"
    if start.startswith((b"lmgg", b"fmgg", b"tjgg")):
        return "this is a GGML file from before GGUF (2023)", "get a GGUF conversion of the model"
    if not any(start):
        return "the file starts with zeros: an unfinished download", again
    if text and all(32 <= byte < 127 or byte in b"\t\r\n" for byte in start):
        return f"this is a text file, not a GGUF: {start.strip()[:80].decode().splitlines()[0]!r}", again
    return f"this is not a GGUF: it starts with {start[:4]!r} instead of {MAGIC!r}", again


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


def _shard_name(name: str) -> tuple[str, int] | None:
    """(name without the shard number, number of shards) of a shard's file name, else None."""
    match = _SHARD.fullmatch(name)
    if match and 1 <= int(match["number"]) <= int(match["count"]):
        return match["prefix"], int(match["count"])
    return None


def _with_shards(path: Path) -> tuple[Path, ...]:
    """The file itself, or the whole split that it is a shard of."""
    if cut := _CUT.fullmatch(path.name):
        others = ((other.name, _CUT.fullmatch(other.name)) for other in path.parent.iterdir())
        pieces = sorted(name for name, piece in others if piece and piece["whole"] == cut["whole"])
        raise SourceError(
            f"{path}: a piece of {cut['whole']}, which was cut for upload",
            hint=f"join the pieces in order: cat {' '.join(pieces)} > {cut['whole']}",
        )
    shard = _shard_name(path.name)
    if shard is None:
        return (path,)
    prefix, count = shard
    names = [f"{prefix}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]
    there = {other.name for other in path.parent.iterdir()}
    if absent := [name for name in names if name not in there]:
        raise SourceError(
            f"{path}: {len(absent)} of {count} shards are missing: {absent[0]}" + (" ..." if len(absent) > 1 else ""),
            hint=f"download the missing shards into {path.parent}",
            problems=_shortened(absent),
        )
    return tuple(path.with_name(name) for name in names)


def _folder_model(folder: Path) -> tuple[Path, ...]:
    """The files of the only model in a folder. Several quantizations of one model are several models."""
    everything = sorted(folder.iterdir())
    files = [path for path in everything if path.is_file() and not path.name.startswith(".")]
    named = [path for path in files if path.suffix.lower() == ".gguf" or _start(path).startswith(MAGIC)]
    models: dict[tuple[str, int], list[Path]] = {}
    for path in named:
        if not path.name.lower().startswith(COMPANIONS):
            models.setdefault(_shard_name(path.name) or (path.name, 0), []).append(path)
    if len(models) == 1:
        return _with_shards(next(iter(models.values()))[0])
    if models:
        raise SourceError(
            f"{folder}: {len(models)} models are here; which one is meant?",
            hint=f"name one of the files, such as {next(iter(models.values()))[0]}",
            problems=_shortened([_listing(paths) for paths in models.values()]),
        )
    hint = "give a GGUF file, or a folder that holds one"
    if named:
        hint = f"only companions of a model are here: {', '.join(path.name for path in named)}"
    elif inside := [path for path in everything if path.is_dir() and any(path.glob("*.gguf"))]:
        hint = f"there are some one level down: {', '.join(str(path) for path in inside[:MAX_LISTED])}"
    raise SourceError(f"{folder}: no GGUF model is in this folder", hint=hint)


def _listing(paths: list[Path]) -> str:
    nbytes = sum(path.stat().st_size for path in paths)
    size = f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.1f} MB"
    shards = f", {len(paths)} shards" if len(paths) > 1 else ""
    return f"{paths[0].name} ({size}{shards})"


def _shortened(lines: list[str]) -> list[str]:
    rest = len(lines) - MAX_LISTED
    return lines if rest <= 0 else [*lines[:MAX_LISTED], f"... and {rest} more"]


def _missing(src: str, path: Path) -> SourceError:
    """The error for a source that does not exist: a Hub repository, or a name with a slip."""
    if path.is_symlink():
        return SourceError(
            f"{path}: a link to {path.readlink()}, which does not exist",
            hint="download the file again, or mend the link",
        )
    hub = _HUB.fullmatch(src)
    if hub and (hub["host"] or not (src.lower().endswith(".gguf") or Path(src.split("/")[0]).is_dir())):
        repo = hub["repo"]
        return SourceError(
            f"{src}: no such file or folder, and Hub repositories are not supported as a source yet",
            hint=f"hf download {repo} --include '*Q4_K_M*.gguf' --local-dir {repo.split('/')[1]}, and give that folder",
        )
    slip = path
    while slip.parent != slip and not slip.parent.exists():
        slip = slip.parent
    folder = slip.parent
    names = [other.name for other in folder.iterdir()] if folder.is_dir() else []
    lowered = {name.lower(): name for name in names}
    close = difflib.get_close_matches(slip.name.lower(), lowered, n=3, cutoff=0.6)
    if close:
        hint = f"did you mean {' or '.join(str(folder / lowered[name]) for name in close)}?"
    elif "\\" in src and Path(src.replace("\\", "/")).exists():
        hint = f"did you mean {src.replace(chr(92), '/')}?"
    else:
        models = sorted(name for name in names if name.lower().endswith(".gguf"))[:3]
        hint = f"{folder} holds {', '.join(models)}" if models else "check the name and the current folder"
    return SourceError(f"{src}: no such file or folder", hint=hint)
