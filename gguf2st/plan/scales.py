"""Scales of whole weights, which some files keep in tensors of their own: `blk.3.attn_q.scale` beside `.weight`.

llama.cpp's converter writes them for NVFP4 checkpoints (`_repack_nvfp4`), one number for a weight or one per expert,
and llama.cpp multiplies the product of the weight with it (`build_lora_mm`), whatever the weight's type and the
architecture. So no map names them: the weight is what its blocks say times the scale.
"""

import dataclasses
import math
from collections.abc import Callable

from gguf2st.header import Header, Source
from gguf2st.plan import Plan
from gguf2st.quants.layout import INTEGERS

WEIGHT, SCALE, INPUT_SCALE = ".weight", ".scale", ".input_scale"

ACTIVATIONS = "the scale of activations that are quantized at run time; weights alone are quantized here"
"""Why `blk.3.attn_q.input_scale` is left behind."""


def with_scales(plan: Plan, read: Callable[[Source], list[float]]) -> Plan:
    """The plan with the scales among its unmapped tensors put to use.

    Args:
        plan: from a map that names no scales. One that does keeps them.
        read: values of a small float32 tensor.
    """
    sources, unmapped = plan.header.sources, set(plan.unmapped)
    scales: dict[str, tuple[float, ...]] = {}
    dropped: dict[str, str] = {}
    used: set[str] = set()
    problems: list[str] = []
    for name in plan.unmapped:
        suffix = INPUT_SCALE if name.endswith(INPUT_SCALE) else SCALE
        stem = name.removesuffix(suffix)
        weight = sources.get(stem + WEIGHT)
        if stem == name or weight is None or weight.name in unmapped:
            continue
        if weight.name in plan.dropped:
            dropped[name] = plan.dropped[weight.name]
        elif suffix == INPUT_SCALE:
            dropped[name] = ACTIVATIONS
        elif problem := _problem(sources[name], weight, plan.header):
            problems.append(problem)
        else:
            values = tuple(read(sources[name]))
            if all(math.isfinite(v) for v in values):
                scales[weight.name] = values
                used.add(name)
            else:
                problems.append(f"{name} is not a finite number")
    return dataclasses.replace(
        plan,
        scales=scales,
        dropped={**plan.dropped, **dropped},
        unmapped=tuple(name for name in plan.unmapped if name not in used and name not in dropped),
        problems=(*plan.problems, *problems),
    )


def _problem(scale: Source, weight: Source, header: Header) -> str:
    """Why a tensor cannot be the scale of a weight; empty when it can."""
    members = math.prod(weight.shape[:-2])
    if scale.qtype != "F32" or scale.n_elements not in {1, members}:
        expected = "one float32 number" if members == 1 else f"one float32 number, or {members} of them"
        return f"{scale.name} is {scale.qtype} {list(scale.shape)}; the scale of {weight.name} is {expected}"
    if weight.qtype in INTEGERS:
        return f"{scale.name} stands beside {weight.name}, which is {weight.qtype}: whole numbers have no scale"
    bias = weight.name.removesuffix(WEIGHT) + ".bias"
    if ".ffn_" in bias and bias in header.sources:
        return f"{scale.name} stands beside {bias}, which llama.cpp would scale too, or refuse"
    return ""


def scale_of(plan: Plan, sources: tuple[str, ...], ops: tuple[tuple[object, ...], ...]) -> float | None:
    """The one number that all rows of an entry are multiplied by; None where there are several."""
    found: set[float] = set()
    for name in sources:
        values = plan.scales.get(name, (1.0,))
        if len(values) > 1 and ops and ops[0][0] == "take" and isinstance(ops[0][1], int):
            values = (values[ops[0][1]],)
        found.update(values)
    return found.pop() if len(found) == 1 else None
