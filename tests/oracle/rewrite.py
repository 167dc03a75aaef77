"""GGUF files that the converter of today does not write: those it does write, changed."""

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from tests.make_gguf import quantize, write_gguf
from tests.oracle.tiny import oracle_gguf

Metadata = dict[str, Any]
Tensors = dict[str, npt.NDArray[Any]]


def rewritten(case: str, target: Path, edit: Callable[[Metadata, Tensors], None]) -> Path:
    """The GGUF of `case` once `edit(metadata, tensors)` has changed it; shapes in torch order."""
    arch, metadata, tensors = copy.deepcopy(_read(case))
    edit(metadata, tensors)
    return write_gguf(target, metadata, tensors, arch)


@functools.lru_cache(maxsize=16)
def _read(case: str) -> tuple[str, Metadata, Tensors]:
    """Architecture, metadata and tensors of a case: gguf-py takes longer to read them than all else that tests do."""
    reader: Any = gguf.GGUFReader(oracle_gguf(case))
    tensors = {t.name: np.array(t.data).reshape([int(n) for n in reversed(t.shape)]) for t in reader.tensors}
    return reader.fields["general.architecture"].contents(), _metadata(reader), tensors


def requantized(source: Path, target: Path, choose: Callable[[str], str]) -> Path:
    """A GGUF with its matrices in other types, by gguf-py's decoders and ggml's quantizers.

    `choose(name)`: the new type; "" leaves a tensor as it is. Vectors and routers stay as they are in any case.
    """
    reader: Any = gguf.GGUFReader(source)
    tensors: dict[str, Any] = {}
    for tensor in reader.tensors:
        shape = tuple(int(n) for n in reversed(tensor.shape))
        kind = choose(tensor.name) if len(shape) > 1 and "ffn_gate_inp" not in tensor.name else ""
        if kind:
            values = np.asarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type), np.float32).reshape(shape)
            tensors[tensor.name] = quantize(values, kind), kind, shape
        else:
            tensors[tensor.name] = np.array(tensor.data).view(np.uint8), tensor.tensor_type.name, shape
    return write_gguf(target, _metadata(reader), tensors, reader.fields["general.architecture"].contents())


def _metadata(reader: Any) -> Metadata:
    found: Metadata = {}
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            value = field.contents()
            exact = len(field.types) == 1 and not isinstance(value, str | bool)
            found[name] = np.dtype(field.parts[field.data[0]].dtype).type(value) if exact else value
            if isinstance(value, list) and any(type(x) is int and x >= 2**31 for x in value):
                found[name] = np.array(value, np.uint64)  # lists are written with 32 bits
    return found
