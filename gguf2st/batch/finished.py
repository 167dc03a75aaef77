"""Whether the folder of a model is what its row in the manifest makes, or somebody made another checkpoint there.

gguf2st.json says what a checkpoint was made from and by which options; it names no folders, so that only last parts of
paths can be compared.
"""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path, PurePath

from gguf2st.batch.manifest import BatchModel
from gguf2st.errors import Gguf2stError
from gguf2st.hub.provenance import PROVENANCE_FILE, Provenance, read_provenance
from gguf2st.plan.planning import DEFAULT_SHARD_NBYTES
from gguf2st.source import locate

_DECIDING = ("repack", "tokenizer-from", "tokenizer-pre", "arch-map")
"""Options that decide about the bytes, besides the dtype and the size of shards."""
_ORIGIN = re.compile(r"(?:hf|ollama)://([^@:]+)")


def is_finished(model: BatchModel, folder: Path) -> bool:
    """Whether a model's output is a finished checkpoint of its source and its options.

    Args:
        model: of a manifest.
        folder: of the manifest, in which relative paths start.
    """
    found = read_provenance(model.output)
    return found is not None and _has_options(model, found) and _is_from(model, found, folder)


def is_newer_than_source(model: BatchModel, folder: Path) -> bool:
    """Whether the checkpoint was written after its source; True for a source that is not a file here."""
    try:
        made = (model.output / PROVENANCE_FILE).stat().st_mtime_ns
        files = _local_files(model.src, folder) or ()
        return all(file.stat().st_mtime_ns <= made for file in files)
    except OSError:
        return False


def _has_options(model: BatchModel, found: Provenance) -> bool:
    was = _options_of(found.command)
    for name in _DECIDING:
        wanted = str(model.options.get(name, ""))
        wanted = "" if (name, wanted) == ("repack", "none") else wanted
        if PurePath(wanted).name != PurePath(was.get(name, "")).name:
            return False
    # With --repack the default depends on the model.
    usual = found.dtype if "repack" in was else "bfloat16"
    if found.dtype != model.options.get("dtype", usual):
        return False
    return int(was.get("max-shard-size", DEFAULT_SHARD_NBYTES)) == _shard_nbytes(model)


def _options_of(command: str) -> Mapping[str, str]:
    """Option -> value of the command in gguf2st.json: `gguf2st convert SRC --name value ...`."""
    words = shlex.split(command)[3:]
    return {name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2], strict=False)}


def _shard_nbytes(model: BatchModel) -> int:
    from gguf2st.cli.common import Size  # the manifest has it as the command line does

    given = model.options.get("max-shard-size")
    return DEFAULT_SHARD_NBYTES if given is None else Size().convert(given, None, None)


def _is_from(model: BatchModel, found: Provenance, folder: Path) -> bool:
    here = _local_files(model.src, folder)
    if here is not None:
        return tuple(file.name for file in here) == found.files
    if not found.origin:  # a file that has gone since
        return PurePath(model.src).name in found.files
    # On the Hub, or ollama's: its name, and which of its files.
    origin = _ORIGIN.match(found.origin)
    if origin is None or origin[1].lower() not in model.src.lower():
        return False
    chosen = model.src[model.src.lower().index(origin[1].lower()) + len(origin[1]) :]
    words = re.findall(r"[a-z0-9]+", chosen.rpartition(":")[2].lower()) if ":" in chosen else []
    return all(word in f"{found.origin} {' '.join(found.files)}".lower() for word in words)


def _local_files(src: str, folder: Path) -> tuple[Path, ...] | None:
    """The files of a source on this machine; None where there is nothing, () where there is no such model."""
    path, head = folder / src, src.rpartition(":")[0]
    if not path.exists() and not (head and (folder / head).is_dir()):
        return None
    try:
        return locate(str(path)).paths
    except Gguf2stError:
        return ()
