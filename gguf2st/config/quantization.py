r"""`quantization_config` of config.json: which module of the checkpoint is packed how.

    {"quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
     "config_groups": {"int8_g32": {"targets": ["re:(.*\.)?q_proj$", ...], "weights": {...}, ...}},
     "ignore": ["lm_head"]}

Transformers and vLLM look a module up by its name. vLLM looks what it has fused up by the names of the members, and
has prefixes of its own for some models (`model.layers.3.q_proj` in Falcon H1, `model.layers.3.mixer.in_proj` in
Granite). So a target is the shortest end of a name that no module of another scheme shares, from a dot on: `.*v_proj$`
would match `qkv_proj`. What no target matches stays as it is. Where the layers differ, a target begins with their
numbers.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from gguf2st.config.transformers_modules import renamed
from gguf2st.plan import DENSE, Plan, template
from gguf2st.plan.vllm_modules import layerless
from gguf2st.schemes import SCHEMES

HEAD = "lm_head"
"""A linear layer to transformers, so that it is named even where it stays dense."""

EXPERTS = "experts"
"""transformers 5.24 reads all experts as the first group whose patterns say that word, so theirs must say it."""

_Parts: TypeAlias = tuple[str, ...]


def quantization_config(plan: Plan) -> dict[str, Any]:
    """The `quantization_config` of a plan's checkpoint, once schemes are chosen; empty when nothing is packed."""
    experts = {e.scheme for e in plan.entries if ".experts." in e.name}
    used = sorted({e.scheme for e in plan.entries} - {DENSE}, key=lambda name: (name not in experts, name))
    if not used:
        return {}
    schemes = {e.module: e.scheme for e in plan.entries if e.name.endswith(".weight") and len(e.shape) > 1}
    dense = [module for module, scheme in schemes.items() if scheme == DENSE]
    configs = {name: SCHEMES[name].config() for name in used}
    if not all(configs.values()):  # the format of the published gpt-oss checkpoints
        names = dict.fromkeys(re.sub(r"\.\d+\.", ".*.", module) for module in dense)
        return {"quant_method": "mxfp4", "modules_to_not_convert": list(names)}
    targets = _targets(schemes | _experts_in_vllm(plan) | _in_transformers(plan, schemes))
    formats = sorted({str(config["format"]) for config in configs.values()})
    return {
        "quant_method": "compressed-tensors",
        "format": formats[0] if len(formats) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "config_groups": {name: {"targets": targets[name], **config} for name, config in configs.items()},
        "ignore": [module for module in dense if module.rpartition(".")[2] == HEAD],
    }


def _in_transformers(plan: Plan, schemes: Mapping[str, str]) -> dict[str, str]:
    """Scheme of each module by the name that transformers has for it, where that is another."""
    hf_class = next(iter(plan.config.get("architectures", ())), "")
    names = {module: renamed(hf_class, module) for module in schemes}
    return {names[module]: scheme for module, scheme in schemes.items() if names[module] != module}


def _experts_in_vllm(plan: Plan) -> dict[str, str]:
    """Names that vLLM 0.32 may look experts up by, whatever the checkpoint calls them -> scheme of the layer's experts.

    It asks for `gate_proj` where checkpoints say `w1` or have one tensor for all experts, and for `None` where experts
    have no gate. Of the experts of a layer it looks at the first.
    """
    stacks = {s: layerless(s) for e in plan.entries for s in e.sources if layerless(s).endswith("_exps")}
    gated = any("gate" in name for name in stacks.values())
    names = ("gate_proj", "up_proj", "down_proj") if gated else ("None",)
    found: dict[str, str] = {}
    for e in plan.entries:
        if len(e.shape) > 1 and not stacks.keys().isdisjoint(e.sources):
            parts = e.module.split(".")
            above = parts[: parts.index(EXPERTS)] if EXPERTS in parts else parts[:-1]
            found |= {".".join([*above, EXPERTS, "0", name]): e.scheme for name in names}
    return found


def _targets(schemes: Mapping[str, str]) -> dict[str, list[str]]:
    """Scheme -> targets that match all of its modules and none of another scheme."""
    everywhere: dict[_Parts, set[str]] = defaultdict(set)
    by_layer: dict[tuple[str, _Parts], set[str]] = defaultdict(set)
    below_layer: dict[tuple[str, _Parts], set[str]] = defaultdict(set)
    for module, scheme in schemes.items():
        layer, parts = _layer(module)
        if layer:
            below_layer[layer, parts[parts.index("#") + 1 :]].add(scheme)
        for end in _ends(parts, 1):
            everywhere[end].add(scheme)
            by_layer[layer, end].add(scheme)
    targets: dict[str, dict[str, None]] = defaultdict(dict)
    layers: dict[tuple[str, str, _Parts], dict[str, None]] = defaultdict(dict)
    for module, scheme in schemes.items():
        if scheme == DENSE:
            continue
        layer, parts = _layer(module)
        least = len(parts) - parts.index(EXPERTS) if EXPERTS in parts else 1
        if unique := next((end for end in _ends(parts, least) if len(everywhere[end]) == 1), None):
            targets[scheme][_pattern("", unique)] = None
            continue
        at = parts.index("#") if "#" in parts else len(parts)
        if len(below_layer[layer, parts[at + 1 :]]) != 1:  # in no layer, or in an encoder and a decoder that differ
            targets[scheme][module] = None
        else:
            below = parts[at + 1 :]
            rest = next((end for end in _ends(below, least) if len(by_layer[layer, end]) == 1), ("", *below))
            layers[scheme, parts[at - 1], rest][layer] = None
    for (scheme, name, end), numbers in layers.items():
        targets[scheme][_pattern(rf"{re.escape(name)}\.({'|'.join(numbers)})\.", end)] = None
    return {scheme: list(patterns) for scheme, patterns in targets.items()}


def _layer(module: str) -> tuple[str, _Parts]:
    """The number of the layer that a module is in, if any, and its name with # for numbers."""
    parts = tuple(template(module).split("."))
    return module.split(".")[parts.index("#")] if "#" in parts else "", parts


def _ends(parts: Sequence[str], least: int) -> list[_Parts]:
    """The ends of a name that have so many parts at least, the shortest first."""
    return [tuple(parts[-n:]) for n in range(least, len(parts) + 1)]


def _pattern(layers: str, end: _Parts) -> str:
    """A target for names that end so, in some layers or in all; nothing else stands between if `end` begins empty."""
    parts = [r"\d+" if part == "#" else re.escape(part) for part in end if part]
    start = r"(.*\.)?"
    return f"re:{start}{layers}{start if layers and end[0] else ''}" + r"\.".join(parts) + "$"
