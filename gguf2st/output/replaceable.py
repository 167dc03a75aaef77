"""Which files of a checkpoint folder may be replaced with it: those that a conversion or the Hub put there.

Everything else is somebody's work, whatever its name looks like: notes, logs, adapters, the state of a training,
another checkpoint in a subfolder.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gguf2st.config.pooling import MODULES_FILE, POOLING_FILE
from gguf2st.hub.provenance import PROVENANCE_FILE
from gguf2st.output.shards import INDEX_FILE
from gguf2st.plan import SHARD_NAME
from gguf2st.tokenizer.copied import TOKENIZER_FILES
from gguf2st.tokenizer.templates import TEMPLATE_DIR

_HUB_CACHE = ".cache/huggingface"
"""Where `hf download --local-dir` keeps, for each file that it fetched, `download/FILE.metadata`."""
_FROM_HUB = ("README.md", ".gitattributes")
"""Texts that people write too: they are the Hub's where its metadata says so."""
_KNOWN = frozenset(
    {
        PROVENANCE_FILE,
        INDEX_FILE,
        "config.json",
        "generation_config.json",
        *TOKENIZER_FILES,
        # transformers' image and audio processors (save_pretrained)
        "preprocessor_config.json",
        "processor_config.json",
        "video_preprocessor_config.json",
        # sentence-transformers
        MODULES_FILE,
        "sentence_bert_config.json",
        "config_sentence_transformers.json",
        POOLING_FILE,
    }
)


def foreign_in(folder: Path) -> list[str]:
    """What a checkpoint folder holds that neither a conversion nor the Hub put there, subfolders with a `/`, sorted.

    Where gguf2st.json lists the files of a conversion, nothing else is ours. In other folders the names by which
    Hugging Face's libraries save models are taken for theirs.

    Raises:
        OSError: it cannot be read.
    """
    listed = _listed(folder)
    ours = (_KNOWN if listed is None else listed | {PROVENANCE_FILE}) | _shards(folder)
    by_hub = {name for name in _FROM_HUB if (folder / _HUB_CACHE / "download" / f"{name}.metadata").is_file()}
    return sorted(_foreign(folder, folder, ours | by_hub, named=listed is None))


def is_known(name: str) -> bool:
    """Whether a path below a folder is one that a conversion may write: a file of a checkpoint, or a shard."""
    return name in _KNOWN or bool(SHARD_NAME.fullmatch(name)) or _is_template(name)


def _foreign(root: Path, folder: Path, ours: frozenset[str], *, named: bool) -> Iterator[str]:
    """The entries of a folder below `root` that are not ours. A folder of ours is one that can hold what is."""
    for path in folder.iterdir():
        name = path.relative_to(root).as_posix()
        if path.is_dir() and not path.is_symlink():
            if name == _HUB_CACHE:
                continue
            homes = {*ours, _HUB_CACHE, *([f"{TEMPLATE_DIR}/x.jinja"] if named else [])}
            if any(home.startswith(f"{name}/") for home in homes):
                yield from _foreign(root, path, ours, named=named)
            else:
                yield f"{name}/"
        elif name not in ours and not (named and (SHARD_NAME.fullmatch(name) or _is_template(name))):
            yield name


def _is_template(name: str) -> bool:
    folder, _, file = name.rpartition("/")
    return folder == TEMPLATE_DIR and file.endswith(".jinja")


def _listed(folder: Path) -> frozenset[str] | None:
    """The small files that gguf2st.json lists; None without one that can be read."""
    digests = _read(folder / PROVENANCE_FILE, "digests")
    return frozenset(digests) if digests else None


def _shards(folder: Path) -> frozenset[str]:
    """The shards that the index names; without one there is a single file."""
    names = {str(name) for name in _read(folder / INDEX_FILE, "weight_map").values()}
    shards = {name for name in names if name.endswith(".safetensors") and name == Path(name).name}
    return frozenset(shards or {"model.safetensors"})


def _read(path: Path, key: str) -> dict[str, Any]:
    """An object in a JSON file; empty where there is none."""
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    table = found.get(key) if isinstance(found, dict) else None
    return table if isinstance(table, dict) else {}
