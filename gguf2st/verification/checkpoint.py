"""A checkpoint folder as its own files describe it."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FLOATS = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""safetensors' dtype names -> ours."""


@dataclass(frozen=True)
class Tensor:
    """A tensor as a shard's header describes it; `start` is its first byte in the file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


@dataclass
class Checkpoint:
    """What is in a folder, and what is wrong with it; each level of verification adds its findings."""

    folder: Path
    config: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


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
