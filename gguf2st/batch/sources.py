"""The models of a batch without a manifest: sources by name, a folder for every model in it, all with the defaults."""

import os
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from gguf2st.batch.manifest import Manifest, checked_models, name_of
from gguf2st.errors import SourceError, UsageError, unreadable
from gguf2st.source import default_output
from gguf2st.source.foreign import MAGIC
from gguf2st.source.selection import group

STATE_NAME = "gguf2st-batch.toml"
"""The manifest that there might be, beside which the state lies."""


def is_manifest(names: Sequence[str]) -> bool:
    """Whether the arguments of a batch are a manifest: one file that is no GGUF, or a name with `.toml`.

    Raises:
        UsageError: a manifest among others.
        SourceError: the file cannot be read.
    """
    manifests = [name for name in names if name.lower().endswith(".toml")]
    if manifests and len(names) > 1:
        raise UsageError(f"{manifests[0]} is a manifest: a batch has one of them, or sources")
    path = Path(names[0])
    if manifests or len(names) > 1 or not path.is_file():
        return bool(manifests)
    try:
        with path.open("rb") as file:
            return path.suffix.lower() != ".gguf" and file.read(len(MAGIC)) != MAGIC
    except OSError as error:
        raise unreadable(error, path) from error


def read_sources(names: Sequence[str], check: Callable[[Sequence[str]], str]) -> Manifest:
    """The batch of some sources, whose relative paths start in the current folder.

    Args:
        names: what `gguf2st convert` takes each; of a folder all models are meant, those one level down too. The shards
            of a split are one model, and companions such as mmproj-F16.gguf are none.
        check: as for `read_manifest`.

    Raises:
        SourceError: a folder without a model, or it cannot be read.
        UsageError: several models would have one name or one output.
    """
    files: dict[str, int] = {}
    others: list[str] = []
    for name in names:
        path = Path(name)
        if path.is_dir():
            files |= _inside(path)
        elif path.is_file() and path.suffix.lower() == ".gguf":
            files[os.path.normpath(name)] = 0
        else:
            others.append(name)
    sources = [models.names[0] for models in group(files)] + others
    if not sources:
        raise SourceError(f"{names[0]}: no model is here", hint="name GGUF files, or a folder that holds some")
    alike = Counter(name_of(source) for source in sources)
    rows = [_row(source, files, alike=alike[name_of(source)] > 1) for source in sources]
    models, problems = checked_models(Path.cwd(), {}, rows, {"output": False}, check)
    if problems:
        raise UsageError(problems[0], problems=problems[1:], hint="a manifest names each: `gguf2st batch --help`")
    return Manifest(Path.cwd() / STATE_NAME, models)


def _inside(folder: Path) -> dict[str, int]:
    """The GGUF files of a folder, and one level down, by path -> 0."""
    try:
        below = [path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith(".")]
        found = [path for place in (folder, *below) for path in sorted(place.iterdir())]
    except OSError as error:
        raise unreadable(error, folder) from error
    files = {str(path): 0 for path in found if path.suffix.lower() == ".gguf" and not path.name.startswith(".")}
    if not files:
        raise SourceError(
            f"{folder}: no GGUF file is in this folder, nor one level down",
            hint="name the folder that holds the models, or write a manifest: `gguf2st batch --help` has an example",
        )
    return files


def _row(source: str, files: Collection[str], *, alike: bool) -> dict[str, str]:
    """The table [[model]] of a source; names that are alike but for their folders get those too."""
    if not alike:
        return {"src": source}
    row = {"src": source, "name": f"{name_of(Path(source).resolve().parent.name)}-{name_of(source)}"}
    return row | ({"output": str(default_output(Path(source)))} if source in files else {})
