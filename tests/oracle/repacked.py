"""A repacked checkpoint as others read it: config.json and weights by compressed-tensors and transformers alone."""

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors.base import BaseCompressor
from compressed_tensors.quantization import QuantizationScheme
from compressed_tensors.utils.match import match_name
from safetensors.torch import load_file
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors


def config_of(folder: Path) -> dict[str, Any]:
    """config.json."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


def stored(folder: Path) -> dict[str, Tensor]:
    """Every tensor of the checkpoint as it lies there."""
    return {name: t for file in sorted(folder.glob("*.safetensors")) for name, t in load_file(file).items()}


def groups(folder: Path) -> dict[str, str]:
    """Packed module -> the config group whose targets compressed-tensors matches with its name, one and only one."""
    table = config_of(folder)["quantization_config"]
    found: dict[str, str] = {}
    for module in sorted({n.removesuffix(".weight_packed") for n in stored(folder) if n.endswith(".weight_packed")}):
        assert not any(match_name(module, ignored) for ignored in table["ignore"]), f"{module} is ignored"
        (found[module],) = (
            name
            for name, group in table["config_groups"].items()
            if any(match_name(module, target) for target in group["targets"])
        )
    return found


def untargeted(folder: Path) -> set[str]:
    """Modules with a dense matrix that some target matches: a reader would look for packed weights there."""
    targets = [t for g in config_of(folder)["quantization_config"]["config_groups"].values() for t in g["targets"]]
    dense = {n.removesuffix(".weight") for n, t in stored(folder).items() if n.endswith(".weight") and t.ndim > 1}
    return {module for module in dense if any(match_name(module, target) for target in targets)}


def weights(folder: Path, only: str = "") -> dict[str, Tensor]:
    """Weight -> float32 that compressed-tensors unpacks, its scales taken as float32, for every packed module.

    `only`: a regular expression that modules have to contain.
    """
    table = config_of(folder)["quantization_config"]["config_groups"]
    parts: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for name, tensor in stored(folder).items():
        module, _, last = name.rpartition(".")
        parts[module][last] = tensor
    return {
        f"{module}.weight": unpack(parts[module], table[group], group)
        for module, group in groups(folder).items()
        if re.search(only, module)
    }


def unpack(parts: dict[str, Tensor], group: dict[str, Any], name: str) -> Tensor:
    """One weight in float32."""
    scheme = QuantizationScheme.model_validate(group)
    reader = BaseCompressor.get_value_from_registry(group["format"])
    state = {part: tensor for part, tensor in parts.items() if part.startswith("weight")}
    if group["format"] == "pack-quantized":
        state["weight_scale"] = state["weight_scale"].float()
    if name != "nvfp4":
        return reader.decompress(state, scheme)["weight"].float()
    # Its decompressor rounds products to bfloat16; codes and scales by themselves are exact.
    unit = {"weight_packed": state["weight_packed"], "weight_scale": torch.ones_like(state["weight_scale"].float())}
    codes = reader.decompress(unit, scheme)["weight"].float()
    scale = state["weight_scale"].float() / state["weight_global_scale"]
    return (codes.reshape(*scale.shape, -1) * scale[:, :, None]).reshape(codes.shape)


def gpt_oss_experts(folder: Path) -> dict[str, Tensor]:
    """Experts of gpt-oss -> float32 (experts, columns, rows), as transformers reads them."""
    tensors = stored(folder)
    names = [name.removesuffix("_blocks") for name in tensors if name.endswith("_blocks")]
    return {
        name: convert_moe_packed_tensors(tensors[f"{name}_blocks"], tensors[f"{name}_scales"], dtype=torch.float32)
        for name in names
    }
