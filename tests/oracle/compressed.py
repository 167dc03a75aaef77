"""Checkpoints packed by compressed-tensors' own compressor: made by code that is not ours, for verification to read."""

import json
import math
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from compressed_tensors.utils.match import match_name
from safetensors.torch import load_file, save_file
from torch import Tensor

Tensors = dict[str, Tensor]
Config = dict[str, Any]
Change = Callable[[Tensors, Config], object]


def integers(bits: int, group: int = 32, *, symmetric: bool = True) -> dict[str, Any]:
    """`weights` of a config group; group 0 is one scale per row."""
    by = {"strategy": "group", "group_size": group} if group else {"strategy": "channel"}
    return {"num_bits": bits, "type": "int", "symmetric": symmetric, **by}


SCHEMES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    **{f"int{bits}_g32": ("pack-quantized", integers(bits)) for bits in range(2, 9)},
    **{f"int{bits}_asym_g32": ("pack-quantized", integers(bits, symmetric=False)) for bits in range(2, 9)},
    "int4_g16": ("pack-quantized", integers(4, 16)),
    "int8_g64": ("pack-quantized", integers(8, 64)),
    "int4_channel": ("pack-quantized", integers(4, 0)),
    "int5_channel": ("pack-quantized", integers(5, 0)),
    "int8_channel": ("pack-quantized", integers(8, 0)),
    "int4_asym_channel": ("pack-quantized", integers(4, 0, symmetric=False)),
    "mxfp4": (
        "mxfp4-pack-quantized",
        {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "group", "group_size": 32,
         "scale_dtype": "torch.uint8"},
    ),
    "nvfp4": (
        "nvfp4-pack-quantized",
        {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16,
         "scale_dtype": "torch.float8_e4m3fn"},
    ),
}  # fmt: skip
"""Name -> (format, `weights` of its config group)."""


def pack(weight: Tensor, name: str) -> dict[str, Tensor]:
    """(rows, columns) float16 or bfloat16 -> `weight_packed`, `weight_scale`..., rounded by compressed-tensors."""
    format_name, scheme = _scheme(name)
    size = scheme.weights.group_size or -1
    groups = weight.float().reshape(len(weight), -1, size if size > 0 else weight.shape[1])
    low, high = groups.amin(-1), groups.amax(-1)
    whole = generate_gparam(low.min(), high.max()) if name == "nvfp4" else None
    scale, zero = calculate_qparams(low, high, scheme.weights, global_scale=whole)
    state = {"weight": weight, "weight_scale": scale.to(weight.dtype) if scheme.weights.type == "int" else scale}
    if not scheme.weights.symmetric:
        state["weight_zero_point"] = zero
    if whole is not None:
        state["weight_global_scale"] = whole.reshape(1)
    packed = BaseCompressor.get_value_from_registry(format_name).compress(state, scheme)
    return {part: tensor.contiguous() for part, tensor in packed.items()}


def unpack(parts: Mapping[str, Tensor], name: str) -> Tensor:
    """The float32 weight that compressed-tensors reads from the parts; scales are taken as float32."""
    return _decompress(parts, *_scheme(name))


def _decompress(parts: Mapping[str, Tensor], format_name: str, scheme: QuantizationScheme) -> Tensor:
    state = dict(parts)
    if scheme.weights.type == "int":
        state["weight_scale"] = state["weight_scale"].float()
        return BaseCompressor.get_value_from_registry(format_name).decompress(state, scheme)["weight"]
    if format_name == "mxfp4-pack-quantized":
        return BaseCompressor.get_value_from_registry(format_name).decompress(state, scheme)["weight"].float()
    # Its decompressor rounds products to bfloat16; codes and scales by themselves are exact.
    unit = {"weight_packed": state["weight_packed"], "weight_scale": torch.ones_like(state["weight_scale"].float())}
    codes = BaseCompressor.get_value_from_registry(format_name).decompress(unit, scheme)["weight"].float()
    scale = state["weight_scale"].float() / state["weight_global_scale"]
    return (codes.reshape(*scale.shape, -1) * scale[:, :, None]).reshape(codes.shape)


def _scheme(name: str) -> tuple[str, QuantizationScheme]:
    format_name, weights = SCHEMES[name]
    return format_name, QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))


def compress(dense: Path, target: Path, choose: Callable[[str], str], *, dtype: torch.dtype = torch.float16) -> Path:
    """A copy of a dense checkpoint with weights packed as `choose(module)` says; "" leaves one as it is.

    Targets are full module names, one config group per scheme, all else is listed in `ignore` if it ends in lm_head.
    """
    shutil.copytree(dense, target)
    tensors: dict[str, Tensor] = {}
    targets: dict[str, list[str]] = defaultdict(list)
    for name, tensor in load_file(dense / "model.safetensors").items():
        module, _, last = name.rpartition(".")
        scheme = choose(module) if last == "weight" and tensor.ndim == 2 else ""
        value = tensor.to(dtype)
        if scheme:
            targets[scheme].append(module)
            tensors |= {f"{module}.{part}": t for part, t in pack(value, scheme).items()}
        else:
            tensors[name] = value
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((dense / "config.json").read_text())
    config["dtype"] = str(dtype).removeprefix("torch.")
    config["quantization_config"] = quantization_config(targets)
    (target / "config.json").write_text(json.dumps(config))
    return target


def decompress(packed: Path, target: Path) -> Path:
    """A float32 copy of a packed checkpoint without quantization_config, unpacked by compressed-tensors."""
    shutil.copytree(packed, target)
    config = json.loads((packed / "config.json").read_text())
    stated = config.pop("quantization_config")
    stated.pop("quant_method")
    config_groups = QuantizationConfig.model_validate(stated).config_groups
    tensors: dict[str, Tensor] = {}
    parts: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for file in packed.glob("*.safetensors"):
        for name, tensor in load_file(file).items():
            module, _, part = name.rpartition(".")
            if part.startswith("weight_"):
                parts[module][part] = tensor
            else:
                tensors[name] = tensor.float()
    for module, state in parts.items():
        scheme = next(g for g in config_groups.values() if any(match_name(module, target) for target in g.targets))
        tensors[f"{module}.weight"] = _decompress(state, scheme.format or stated["format"], scheme)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    config |= {"dtype": "float32", "torch_dtype": "float32"}
    (target / "config.json").write_text(json.dumps(config))
    return target


def quantization_config(targets: Mapping[str, list[str]]) -> dict[str, Any]:
    """quantization_config with one group for each scheme."""
    groups = {
        name: {"targets": modules, "weights": dict(SCHEMES[name][1]), "format": SCHEMES[name][0]}
        for name, modules in targets.items()
    }
    formats = {SCHEMES[name][0] for name in targets}
    return {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "config_groups": groups,
        "ignore": ["lm_head"],
    }


def groups(folder: Path) -> frozenset[str]:
    """Names of the config groups of a checkpoint."""
    return frozenset(json.loads((folder / "config.json").read_text())["quantization_config"]["config_groups"])


def relative_rmse(found: Tensor, expected: Tensor) -> float:
    """sqrt(sum of squared differences / sum of squares)."""
    return math.sqrt(float((found - expected).square().sum() / expected.square().sum()))


def projections(name: str) -> Callable[[str], str]:
    """For `compress`: every projection in one scheme."""
    return lambda module: name if module.endswith("_proj") else ""


def changed(source: Path, target: Path, change: Change) -> Path:
    """A copy of a checkpoint in `target`/changed, its tensors and configuration changed."""
    folder = Path(shutil.copytree(source, target / "changed"))
    tensors, config = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
    change(tensors, config)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def remove(pattern: str) -> Change:
    """Tensors whose names match."""

    def change(tensors: Tensors, config: Config) -> None:
        names = [name for name in tensors if re.fullmatch(pattern, name)]
        assert names
        for name in names:
            del tensors[name]

    return change


def replace(name: str, function: Callable[[Tensor], Tensor]) -> Change:
    """One tensor."""
    return lambda tensors, config: tensors.update({name: function(tensors[name]).contiguous()})
