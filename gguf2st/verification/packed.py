"""Weights in several tensors: are all parts there, of the right shape, and where quantization_config says?

vLLM looks for none of this: a scale that is missing makes every answer NaN, a zero point that is missing or a
projection whose format is not that of its neighbours makes it garbage, and no message says so.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gguf2st.fold import listing
from gguf2st.verification.checkpoint import FLOATS, Checkpoint, Packed, Tensor
from gguf2st.verification.formats import FUSED, Format, Rules, read_rules

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
        ckpt.problems += _fused(ckpt.rules, [*dense, *(m for m in parts if m not in dense)])
        ckpt.problems += _experts(ckpt)
        ckpt.problems += _global_scales(ckpt)


def _read_modules(ckpt: Checkpoint, rules: Rules, parts: Mapping[str, Mapping[str, Tensor]]) -> Iterator[str]:
    """Every module against the format that targets it; `ckpt.packed` gets the good ones."""
    lists: dict[str, list[str]] = defaultdict(list)
    wrong: dict[str, list[str]] = defaultdict(list)
    for module, found in parts.items():
        wanted = rules.of(module)
        if wanted is None:
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
        if module != name and module not in parts and linear and (promised := rules.of(module)):
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
    data = _bytes(tensor)
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


def _fused(rules: Rules, modules: Sequence[str]) -> Iterator[str]:
    """Projections that vLLM loads as one parameter must have one format, and no pattern may mean only some of them."""
    children: dict[str, set[str]] = defaultdict(set)
    for module in modules:
        parent, _, name = module.rpartition(".")
        if not parent.rpartition(".")[0].endswith(".experts"):
            children[parent].add(name)
    mixed: dict[str, list[str]] = defaultdict(list)
    for parent, names in children.items():
        for together, members in FUSED:
            there = [m for m in members if m in names]
            if len(there) > 1 and (problem := _mixed(rules, parent, together, there)):
                mixed[problem].append(parent)
    yield from (f"{listing(parents)}: {problem}" for problem, parents in mixed.items())


def _mixed(rules: Rules, parent: str, together: str, members: Sequence[str]) -> str:
    """Why these members of `parent` cannot be one parameter; "" when they can."""
    prefix = f"{parent}." if parent else ""
    formats = {m: rules.of(prefix + m) for m in members}
    if len(set(formats.values())) > 1:
        each = ", ".join(f"{m} {f or '16-bit'}" for m, f in formats.items())
        return f"vLLM loads these as one parameter of one format and does not say that they differ: {each}"
    own = formats[members[0]]
    taken, pattern = rules.fused(prefix + together, [prefix + m for m in members])
    if taken != own:
        return (
            f"{pattern!r} matches {together}, vLLM's name for {', '.join(members)}, which are then "
            f"{taken or '16-bit'} instead of {own or '16-bit'}"
        )
    return ""


def _global_scales(ckpt: Checkpoint) -> Iterator[str]:
    """Members of one parameter in NVFP4 must share their global scale: vLLM takes the greatest for all of them."""
    scales: dict[tuple[str, str], dict[bytes, list[str]]] = defaultdict(lambda: defaultdict(list))
    together = {member: name for name, members in FUSED[::-1] for member in members}
    for weight, packed in ckpt.packed.items():
        parent, _, last = weight.removesuffix(".weight").rpartition(".")
        if packed.format.layout == "nvfp4" and last in together:
            scales[parent, together[last]][_bytes(packed.parts["weight_global_scale"])].append(last)
    for (parent, name), found in scales.items():
        if len(found) > 1:
            members = ", ".join(sorted(member for group in found.values() for member in group))
            yield f"{parent}: weight_global_scale of {members} differs; vLLM takes one for all of {name}"


def _bytes(tensor: Tensor) -> bytes:
    with open(tensor.file, "rb") as f:
        f.seek(tensor.start)
        return f.read(tensor.nbytes)


def transformers_limits(ckpt: Checkpoint) -> Iterator[str]:
    """What transformers 5.24 with compressed-tensors 0.20 makes of a checkpoint that vLLM reads as meant.

    Packed weights are unpacked by gguf2st wherever it runs them, so that this says nothing against the checkpoint.
    """
    if ckpt.rules is None or ckpt.rules.method != "compressed-tensors":
        return
    reader = "transformers 5.24 with compressed-tensors 0.20"
    experts = {n: p.format for n, p in ckpt.packed.items() if n.partition(".experts.")[2].split(".")[0].isdecimal()}
    read = ckpt.rules.experts()
    if odd := [name for name, kind in experts.items() if kind != read]:
        yield f"{reader} reads all experts as {read}, without a word: wrongly {listing(odd)}"
    if any(kind.layout == "nvfp4" for kind in experts.values()):
        yield f"{reader} cannot read experts in nvfp4: told to dequantize, it makes them NaN"
    if any(not p.format.symmetric for p in ckpt.packed.values()):
        yield f"{reader} cannot load zero points, unless it is told to dequantize and all is in one format"


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
