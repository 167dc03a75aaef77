"""A checkpoint folder as its own files describe it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gguf2st.quants.layout import INT64
from gguf2st.verification.formats import Format, Rules

STRANGERS: Mapping[str, Any] = {"local_files_only": True, "trust_remote_code": False}
"""How transformers opens a folder: config.json may name Python files beside it, or on the Hub; they are not run."""
EDITABLE = ("chat-template", "generation-config")
"""What people change in a finished checkpoint on purpose, by the names that `verify --accept` knows."""
FLOATS = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""safetensors' dtype names of weights -> ours."""
DTYPES = {**FLOATS, "I64": INT64}
"""The same of all that is not packed."""


@dataclass(frozen=True)
class Tensor:
    """A tensor as a shard's header describes it; `start` is its first byte in the file."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Packed:
    """A weight that lies in several tensors.

    Attributes:
        format: what quantization_config promises, which its parts keep.
        shape: as the model has it.
        parts: `weight_packed`, `weight_scale`... of compressed-tensors, or `blocks` and `scales` of gpt-oss.
    """

    format: Format
    shape: tuple[int, ...]
    parts: Mapping[str, Tensor]


@dataclass
class Checkpoint:
    """What is in a folder, and what is wrong with it; each level of verification adds its findings.

    Attributes:
        tensors: as they lie in the files.
        packed: name of a weight -> what it is packed in, for those whose parts are right.
        rules: quantization_config; None without one.
        edits: member of EDITABLE -> how it differs from the source.
    """

    folder: Path
    config: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    packed: dict[str, Packed] = field(default_factory=dict)
    rules: Rules | None = None
    edits: dict[str, list[str]] = field(default_factory=dict)

    @property
    def hf_class(self) -> str:
        """The first of config.json's `architectures`; empty when there is none."""
        names = self.config.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else ""


def read_json(path: Path, problems: list[str]) -> dict[str, Any]:
    """A JSON object; {} and a problem when there is none."""
    if path.is_fifo() or path.is_socket():
        problems.append(f"{path.name} is no regular file")
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        problems.append(f"there is no {path.name}")
        return {}
    except (OSError, ValueError, RecursionError) as err:
        problems.append(f"{path.name} cannot be read: {err}")
        return {}
    if not isinstance(value, dict):
        problems.append(f"{path.name} is not a JSON object")
        return {}
    return value


def content(tensor: Tensor) -> bytes:
    """The bytes of a small tensor."""
    with open(tensor.file, "rb") as f:
        f.seek(tensor.start)
        return f.read(tensor.nbytes)
