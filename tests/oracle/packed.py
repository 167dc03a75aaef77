"""Packed weights read by others: compressed-tensors' decompressors, and transformers' reader of gpt-oss experts."""

from collections.abc import Mapping

import numpy as np
import torch
from compressed_tensors.compressors.base import BaseCompressor
from compressed_tensors.quantization import QuantizationScheme
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from gguf2st.schemes import Packed, Scheme

DTYPES = {
    "int32": torch.int32,
    "int64": torch.int64,
    "uint8": torch.uint8,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float8_e4m3": torch.float8_e4m3fn,
}


def tensors(
    scheme: Scheme, shape: tuple[int, ...], packed: Packed, dtype: str, scale: float = 1.0
) -> dict[str, torch.Tensor]:
    """The weight's tensors by name, as a checkpoint would hold them; the entry is called `weight`."""
    data: Mapping[str, np.ndarray] = {**packed.parts, **scheme.once(shape, scale)}
    parts = scheme.parts(shape, dtype)
    assert sorted(data) == [p.suffix for p in parts]
    return {
        p.name("weight"): torch.from_numpy(data[p.suffix].copy()).view(DTYPES[p.dtype]).reshape(p.shape) for p in parts
    }


def weights(
    scheme: Scheme, shape: tuple[int, ...], packed: Packed, dtype: str = "float16", scale: float = 1.0
) -> np.ndarray:
    """(rows, columns) float32 that compressed-tensors reads; it computes in the dtype of the scales."""
    state = tensors(scheme, shape, packed, dtype, scale)
    config = dict(scheme.config())
    if config["format"] == "pack-quantized":
        state["weight_scale"] = state["weight_scale"].float()
    reader = BaseCompressor.get_value_from_registry(config["format"])
    group = QuantizationScheme(targets=["Linear"], **config)
    return reader.decompress(state, group)["weight"].float().numpy()


def experts(scheme: Scheme, shape: tuple[int, ...], packed: Packed) -> np.ndarray:
    """(experts, rows, columns) float32 that transformers reads from gpt-oss' layout."""
    state = tensors(scheme, shape, packed, "float16")
    read = convert_moe_packed_tensors(state["weight_blocks"], state["weight_scales"], dtype=torch.float32)
    return read.transpose(1, 2).numpy()
