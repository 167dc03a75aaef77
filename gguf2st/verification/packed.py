"""Weights in several tensors: are all parts there, of the right shape, and where quantization_config says?

vLLM looks for none of this: a scale that is missing makes every answer NaN, a zero point that is missing or a
projection whose format is not that of its neighbours makes it garbage, and no message says so.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gguf2st.fold import listing
from gguf2st.verification.checkpoint import FLOATS, Checkpoint, Packed, Tensor, content
from gguf2st.verification.formats import Format, Rules, read_rules
from gguf2st.verification.fused import fused_problems

PARTS = ("weight_packed", "weight_scale", "weight_shape", "weight_zero_point", "weight_global_scale", "weight_g_idx")
"""What compressed-tensors calls the tensors of a weight."""

BLOCKS, SCALES = "_blocks", "_scales"
"""How the names of gpt-oss' expert tensors end; `gate_up_proj_blocks` belongs to the weight `gate_up_proj`."""

ROUTERS = frozenset({"gate", "router", "shared_expert_gate"})
"""Choose experts. vLLM's classes are linear layers too; in transformers most are not."""

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """One part as its format promises it: safetensors' names of the dtypes it may have, and its shape."""

    dtypes: tuple[str, ...]
    shape: Shape


def read_packed(ckpt: Checkpoint) -> None:
    """Fill `ckpt.packed` and collect what is wrong with quantized weights."""
    parts: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for name, tensor in ckpt.tensors.items():
        module, _, suffix = name.rpartition(".")
        if suffix in PARTS:
            parts[module][suffix] = tensor
    dense = {n.removesuffix(".weight") for n in ckpt.tensors if n.endswith(".weight")}
    ckpt.rules = read_rules(ckpt.config, dense | parts.keys(), ckpt.problems)
    if ckpt.rules is None:
        if parts:
            ckpt.problems.append(f"config.json has no quantization_config, but these are packed: {listing(parts)}")
        return
    if ckpt.rules.method == "mxfp4":
        _read_gpt_oss(ckpt)
    elif ckpt.rules.method == "compressed-tensors":
        ckpt.problems += _read_modules(ckpt, ckpt.rules, parts)
        ckpt.problems += fused_problems(ckpt, ckpt.rules, [*dense, *(m for m in parts if m not in dense)])
        ckpt.problems += _experts(ckpt)


def _read_modules(ckpt: Checkpoint, rules: Rules, parts: Mapping[str, Mapping[str, Tensor]]) -> Iterator[str]:
    """Every module against the format that targets it; `ckpt.packed` gets the good ones."""
    lists: dict[str, list[str]] = defaultdict(list)
    wrong: dict[str, list[str]] = defaultdict(list)
    for module, found in parts.items():
        wanted = rules.of(module)
        if wanted is None and rules.exact_first(module) is not None:
            lists[
                'are packed, but only the class "Linear" targets them, which heads and embeddings are not in vLLM: it '
                "takes them for 16-bit"
            ].append(module)
        elif wanted is None:
            lists["are packed, but no config group targets them, or `ignore` does"].append(module)
        elif (other := rules.exact_first(module)) != wanted:
            lists[f"are {wanted} for vLLM and {other} for transformers: the order of targets matters"].append(module)
        elif wanted.layout == "scaled":
            if "weight_scale" not in found or f"{module}.weight" not in ckpt.tensors:
                lists[f"lack weight or weight_scale ({wanted})"].append(module)
        else:
            if f"{module}.weight" in ckpt.tensors:
                lists["have both packed parts and a weight"].append(module)
            shape = _shape(wanted, found)
            problems = list(_wrong_parts(wanted, shape, found))
            for problem in problems:
                wrong[problem].append(module)
            if not problems:
                ckpt.packed[f"{module}.weight"] = Packed(wanted, shape, dict(found))
    alike = {m.rpartition(".")[2] for m in parts}
    named = {t.pattern for t in rules.targets if "." in t.pattern and not t.pattern.startswith("re:")}
    for name, tensor in ckpt.tensors.items():
        module = name.removesuffix(".weight")
        linear = module in named or (len(tensor.shape) == 2 and _looks_linear(module, alike))
        if (
            module != name
            and module not in parts
            and linear
            and (promised := rules.of(module) or rules.exact_first(module))
        ):
            lists[f"are targeted as {promised}, but lie there as they were"].append(module)
    if gone := sorted(named - rules.modules):
        yield f"config_groups targets modules that have no tensors: {listing(gone)}"
    yield from (f"{listing(modules)} {what}" for what, modules in lists.items())
    yield from (problem.replace("*", listing(modules), 1) for problem, modules in wrong.items())


def _looks_linear(module: str, alike: set[str]) -> bool:
    """Whether a 16-bit matrix belongs to a linear layer for vLLM or transformers, as far as its name tells."""
    last = module.rpartition(".")[2]
    return last in alike or last == "lm_head" or last.endswith("_proj") or last in ROUTERS


def _shape(wanted: Format, parts: Mapping[str, Tensor]) -> Shape:
    """(rows, columns) of the weight by its largest parts; () where they do not tell."""
    packed, scale = parts.get("weight_packed"), parts.get("weight_scale")
    if packed is None or scale is None or len(packed.shape) != 2 or len(scale.shape) != 2:
        return ()
    if wanted.layout != "int":
        return packed.shape[0], packed.shape[1] * 2
    if wanted.group:
        return packed.shape[0], scale.shape[1] * wanted.group
    return _stored_shape(parts.get("weight_shape")) or (packed.shape[0], packed.shape[1] * 32 // wanted.bits)


def _stored_shape(tensor: Tensor | None) -> Shape:
    """The two numbers of `weight_shape`."""
    if tensor is None or tensor.dtype != "I64" or tensor.shape != (2,):
        return ()
    data = content(tensor)
    return tuple(int.from_bytes(data[at : at + 8], "little", signed=True) for at in (0, 8))


def _wrong_parts(wanted: Format, shape: Shape, found: Mapping[str, Tensor]) -> Iterator[str]:
    """What is wrong with a module's parts; "*" stands for the module's name."""
    needed = _needed(wanted, shape or (0, 0))
    if lost := [part for part in needed if part not in found]:
        yield f"*: {', '.join(lost)} missing ({wanted})"
    if extra := [part for part in found if part not in needed]:
        yield f"*: {', '.join(extra)} has no place in {wanted}"
    if lost or not shape:
        if not lost:
            yield f"*: weight_packed and weight_scale are not matrices ({wanted})"
        return
    for part, promise in needed.items():
        tensor = found[part]
        if tensor.dtype not in promise.dtypes:
            yield f"*: {part} is {tensor.dtype}, not {' or '.join(promise.dtypes)} ({wanted})"
        if tensor.shape != promise.shape and not (part == "weight_global_scale" and tensor.shape == ()):
            yield f"*: {part} is {list(tensor.shape)}, not {list(promise.shape)} as {wanted} of {list(shape)} needs"
    stored = _stored_shape(found.get("weight_shape"))
    if stored and stored != shape:
        yield f"*: weight_shape says {list(stored)}, the other parts {list(shape)}"
    step = {"mxfp4": 32, "nvfp4": 16}.get(wanted.layout, 1)
    if shape[1] % step:
        yield f"*: {shape[1]} columns do not divide into groups of {step} ({wanted})"


def _needed(wanted: Format, shape: Shape) -> dict[str, Wanted]:
    """The parts of a weight of (rows, columns)."""
    rows, columns = shape
    if wanted.layout == "mxfp4":
        return {
            "weight_packed": Wanted(("U8",), (rows, columns // 2)),
            "weight_scale": Wanted(("U8",), (rows, columns // 32)),
        }
    if wanted.layout == "nvfp4":
        return {
            "weight_packed": Wanted(("U8",), (rows, columns // 2)),
            "weight_scale": Wanted(("F8_E4M3",), (rows, columns // 16)),
            "weight_global_scale": Wanted(("F32",), (1,)),
        }
    groups = columns // wanted.group if wanted.group else 1
    parts = {
        "weight_packed": Wanted(("I32",), (rows, -(-columns * wanted.bits // 32))),
        "weight_scale": Wanted(tuple(FLOATS), (rows, groups)),
        "weight_shape": Wanted(("I64",), (2,)),
    }
    if not wanted.symmetric:
        parts["weight_zero_point"] = Wanted(("I32",), (-(-rows * wanted.bits // 32), groups))
    return parts


def _experts(ckpt: Checkpoint) -> Iterator[str]:
    """All projections of all experts of a layer are one parameter, and vLLM looks at the first expert only."""
    formats: dict[str, dict[Format | None, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in [*ckpt.packed, *(n for n in ckpt.tensors if n.endswith(".weight") and n not in ckpt.packed)]:
        before, _, after = name.rpartition(".experts.")
        if before and after.split(".")[0].isdecimal():
            packed = ckpt.packed.get(name)
            formats[f"{before}.experts"][packed.format if packed else None].append(name)
    for experts, kinds in formats.items():
        if len(kinds) > 1:
            counts = ", ".join(f"{len(names)} {kind or '16-bit'}" for kind, names in kinds.items())
            odd = min(kinds.values(), key=len)
            yield f"{experts}: all experts must have one format, but they are {counts} ({listing(odd)})"


def _read_gpt_oss(ckpt: Checkpoint) -> None:
    """Pairs of `_blocks` (experts, rows, groups, 16) and `_scales` (experts, rows, groups), both uint8."""
    problems = ckpt.problems
    names = {n.removesuffix(end) for n in ckpt.tensors for end in (BLOCKS, SCALES) if n.endswith(end)}
    if not names:
        problems.append("quant_method is mxfp4, but there are no tensors named *_blocks and *_scales")
    for name in sorted(names):
        blocks, scales = (ckpt.tensors.get(name + end) for end in (BLOCKS, SCALES))
        if blocks is None or scales is None:
            problems.append(f"{name}{BLOCKS if blocks is None else SCALES} is missing")
            continue
        if {blocks.dtype, scales.dtype} != {"U8"}:
            problems.append(f"{name}: blocks are {blocks.dtype} and scales {scales.dtype}, not U8")
        if len(blocks.shape) != 4 or blocks.shape[3] != 16 or blocks.shape[:3] != scales.shape:
            problems.append(f"{name}: blocks are {list(blocks.shape)} and scales {list(scales.shape)}: they do not fit")
        elif blocks.dtype == scales.dtype == "U8":
            experts, rows, groups, _ = blocks.shape
            # The model holds the transpose of what is packed along its columns.
            parts = {"blocks": blocks, "scales": scales}
            ckpt.packed[name] = Packed(Format("gpt-oss"), (experts, groups * 32, rows), parts)
        if name in ckpt.tensors:
            problems.append(f"{name} is there both packed and unpacked")


def is_part(name: str) -> bool:
    """Whether a tensor's name is that of a part of a packed weight."""
    return name.rpartition(".")[2] in PARTS or name.endswith((BLOCKS, SCALES))


def understood(rules: Rules | None) -> bool:
    """Whether `read_packed` knows every format of the checkpoint to the byte."""
    if rules is None or rules.method not in ("compressed-tensors", "mxfp4"):
        return False
    return all(target.format.layout != "scaled" for target in rules.targets)


def logical_tensors(ckpt: Checkpoint) -> dict[str, Tensor]:
    """The checkpoint's tensors with each packed weight as one, named and shaped as the model has it.

    Its dtype is the name of its format.
    """
    inside = {part.name for packed in ckpt.packed.values() for part in packed.parts.values()}
    found = {name: t for name, t in ckpt.tensors.items() if name not in inside}
    for name, packed in ckpt.packed.items():
        parts = list(packed.parts.values())
        nbytes = sum(part.nbytes for part in parts)
        found[name] = Tensor(name, parts[0].file, str(packed.format), packed.shape, 0, nbytes)
    return found
