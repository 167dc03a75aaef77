"""gguf2st.json: what a checkpoint was made from and how, for the model card. Loaders pass it over.

It goes where the checkpoint goes, so it holds names only: no folder, user or machine.
"""

import dataclasses
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, get_origin

from gguf2st import __version__
from gguf2st.report import Report, TypeRow

PROVENANCE_FILE = "gguf2st.json"

# gguf-py's names (constants.py, class Keys.General) of what describes a model; its datasets and sampling are not asked.
_GENERAL = re.compile(
    r"general\.(name|basename|finetune|size_label|version|author|organization|quantized_by|tags|languages"
    r"|license(\.(name|link))?|url|repo_url|source\.(url|repo_url|huggingface\.repository)"
    r"|base_model\.(count|[0-9]{1,3}\.(name|organization|version|url|repo_url)))"
)
_FIELDS = ("arch", "map", "hf_class", "dtype", "tensors", "parameters", "source_nbytes", "output_nbytes")
# A name of a folder, as old converters wrote into general.name, or as a note has it.
_FOLDER = re.compile(r"(?:(?<=[\s'\"(])|^)(?:~?/[^\s/]+/|\.{1,2}[/\\]|[A-Za-z]:[\\/]|\\\\)")
_JSON_KINDS: dict[Any, type] = {tuple: list, Mapping: dict}
MAX_TEXT = 300
"""Characters of a value from the GGUF; longer ones are no names, tags or addresses."""
MAX_ITEMS = 1000
"""Items of a list from the GGUF; models have up to a few hundred languages."""


@dataclass(frozen=True)
class Provenance:
    """What a conversion knows about a checkpoint.

    Attributes:
        version: of gguf2st.
        command: that makes it, with files named as in their folder or repository.
        files: names of the source's files.
        origin: `hf://org/repo@commit/path` or `ollama://model:tag`; empty for other files.
        arch, map, hf_class, dtype, tensors, parameters, source_nbytes, output_nbytes: as in the report.
        types: one row per ggml type and output dtype.
        dropped: GGUF tensor -> why it was left behind.
        notes: of the conversion.
        checked: levels of verification that the checkpoint passed before it got its name.
        digests: file -> its sha256.
        general: the GGUF's own general.* keys.
    """

    version: str
    command: str
    files: tuple[str, ...]
    origin: str
    arch: str
    map: str
    hf_class: str
    dtype: str
    tensors: int
    parameters: int
    source_nbytes: int
    output_nbytes: int
    types: tuple[TypeRow, ...]
    dropped: Mapping[str, str]
    notes: tuple[str, ...]
    checked: tuple[str, ...]
    digests: Mapping[str, str]
    general: Mapping[str, Any]

    def to_json(self) -> str:
        """Indented JSON with a final newline; the same conversion gives the same bytes."""
        return json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False) + "\n"


def make_provenance(report: Report, metadata: Mapping[str, object], options: Mapping[str, object]) -> Provenance:
    """What to keep of a conversion.

    Args:
        report: on it.
        metadata: of the GGUF.
        options: of the command, by name without dashes; those that are None, False or empty were not given.
    """
    files = tuple(PurePath(file).name for file in report.files)
    given = {name: value for name, value in options.items() if value not in (None, False, "")}
    words = ["gguf2st", "convert", report.origin or files[0]]
    for name, value in given.items():
        words += [f"--{name}"] if value is True else [f"--{name}", _public(value)]
    hidden = [str(value) for value in given.values() if _public(value) != str(value)]
    return Provenance(
        version=__version__,
        command=shlex.join(words),
        files=files,
        origin=report.origin,
        **{field: getattr(report, field) for field in _FIELDS},
        types=report.types,
        dropped=report.dropped,
        notes=tuple(n for n in report.notes if not _names_folder(n) and not any(path in n for path in hidden)),
        checked=report.verification.levels if report.verification else (),
        digests=report.digests,
        general={key: value for key, value in sorted(metadata.items()) if _wanted(key, value)},
    )


def read_provenance(folder: Path) -> Provenance | None:
    """What a conversion wrote into a checkpoint; None where there is nothing, or not what this version writes."""
    try:
        found: Any = json.loads((folder / PROVENANCE_FILE).read_text(encoding="utf-8"))
        for field in dataclasses.fields(Provenance):
            kind: Any = get_origin(field.type) or field.type
            if not isinstance(found[field.name], _JSON_KINDS.get(kind, kind)):
                return None
        texts = {name: tuple(map(str, found[name])) for name in ("files", "notes", "checked")}
        return Provenance(**found | texts | {"types": tuple(TypeRow(**row) for row in found["types"])})
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return None


def _public(value: object) -> str:
    """A value of an option without folders: a path's last part; a repository's name, or any other word, as it is."""
    text = str(value)
    path = PurePath(text)
    return path.name if path.is_absolute() or len(path.parts) > 2 or Path(text).exists() else text


def _names_folder(note: str) -> bool:
    """Whether a note names a place on this machine: it is for the one who converts, not for the card's readers."""
    own = (str(Path.home()), str(Path.cwd()))
    return any(len(folder) > 1 and folder in note for folder in own) or bool(_FOLDER.search(note))


def _wanted(key: str, value: object) -> bool:
    values = value if isinstance(value, list) else [value]
    if not _GENERAL.fullmatch(key) or len(values) > MAX_ITEMS:
        return False
    plain = all(isinstance(v, int | float) or (isinstance(v, str) and len(v) <= MAX_TEXT) for v in values)
    return plain and not any(_FOLDER.match(str(v)) for v in values)
