"""GGUF files that the converter of today does not write: those it does write, changed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from tests.make_gguf import write_gguf
from tests.oracle.tiny import oracle_gguf

Metadata = dict[str, Any]
Tensors = dict[str, npt.NDArray[Any]]


def rewritten(case: str, target: Path, edit: Callable[[Metadata, Tensors], None]) -> Path:
    """The GGUF of `case` once `edit(metadata, tensors)` has changed it; shapes in torch order."""
    reader: Any = gguf.GGUFReader(oracle_gguf(case))
    metadata: Metadata = {}
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            value = field.contents()
            exact = len(field.types) == 1 and not isinstance(value, str | bool)
            metadata[name] = np.dtype(field.parts[field.data[0]].dtype).type(value) if exact else value
    tensors = {t.name: np.array(t.data).reshape([int(n) for n in reversed(t.shape)]) for t in reader.tensors}
    edit(metadata, tensors)
    return write_gguf(target, metadata, tensors, reader.fields["general.architecture"].contents())
