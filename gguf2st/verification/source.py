"""The checkpoint against its source: names, shapes, dtypes and configuration, but no weights."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from gguf2st.fold import listing
from gguf2st.plan import Plan
from gguf2st.plan.vllm_modules import never_quantized
from gguf2st.verification.checkpoint import DTYPES, Checkpoint, read_json
from gguf2st.verification.embedding import FILES as EMBEDDING_FILES
from gguf2st.verification.embedding import compare_pooling
from gguf2st.verification.packed import logical_tensors


def compare_names(ckpt: Checkpoint, plan: Plan) -> None:
    """Names, shapes and dtypes against what the source gives; any weight may be packed."""
    expected, tensors = {e.name: e for e in plan.entries}, logical_tensors(ckpt)
    theirs, ours = ckpt.config.get("architectures"), plan.config.get("architectures")
    if theirs and theirs != ours:
        ckpt.problems.insert(0, f"this is a checkpoint of {_joined(theirs)}, but the source gives {_joined(ours)}")
    if lost := [n for n in expected if n not in tensors]:
        ckpt.problems.append(f"tensors that the source has and the checkpoint lacks: {listing(lost)}")
    if extra := [n for n in tensors if n not in expected]:
        ckpt.problems.append(f"tensors that nothing in the source gives: {listing(extra)}")
    wrong: dict[str, list[str]] = {}
    for name, entry in expected.items():
        tensor = tensors.get(name)
        same_dtype = name in ckpt.packed or (tensor and DTYPES.get(tensor.dtype) == entry.dtype)
        if tensor and (tensor.shape != entry.shape or not same_dtype):
            dtype = DTYPES.get(tensor.dtype, tensor.dtype)
            what = f"{dtype} {list(tensor.shape)}, expected {entry.dtype} {list(entry.shape)}"
            wrong.setdefault(what, []).append(name)
    ckpt.problems += [f"{listing(names)} is {what}" for what, names in wrong.items()]
    unread: dict[str, list[str]] = {}
    for entry in (expected[name] for name in ckpt.packed if name in expected):
        if why := next(filter(None, (never_quantized(ckpt.hf_class, source) for source in entry.sources)), ""):
            unread.setdefault(why, []).append(entry.name)
    ckpt.problems += [f"{listing(names)}: vLLM cannot read it packed: {why}" for why, names in unread.items()]


def name_another_source(ckpt: Checkpoint, plan: Plan) -> None:
    """Where something is wrong, say first if gguf2st.json names other files than those compared with."""
    from gguf2st.hub.provenance import read_provenance  # which is about reports, and these about verifications

    stated = read_provenance(ckpt.folder) if ckpt.problems else None
    given = tuple(PurePath(file).name for file in plan.header.files)
    if stated is not None and stated.files and stated.files != given:
        line = f"this was made from {stated.files[0]}, as gguf2st.json says, and is compared with {given[0]}"
        ckpt.problems.insert(0, line)


def compare_places(ckpt: Checkpoint, plan: Plan) -> None:
    """Which source each matrix comes from, against llama.cpp's own table of names: the plan is not trusted alone.

    gguf-py keeps that table for its converter. What it says counts where the file has such a tensor; it knows no names
    of single experts, and norms and classifiers are called the same in models where they are different tensors.
    """
    import gguf

    arch = next((kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == plan.header.arch), None)
    numbers = [int(part) for e in plan.entries for part in e.name.split(".")[:4] if part.isdecimal()]
    if arch is None:
        return
    table = gguf.get_tensor_name_map(arch, max(numbers, default=0) + 1)
    stems = {_stem(name) for name in plan.header.sources}
    for entry in plan.entries:
        if len(entry.shape) < 2 or "norm" in entry.name:
            continue
        place = table.get_name(entry.name, try_suffixes=(".weight", ".bias"))
        if (
            place
            and place.startswith(("blk.", "token_embd.", "output."))
            and _stem(place) in stems
            and _stem(place) not in map(_stem, entry.sources)
        ):
            ckpt.problems.append(
                f"{entry.name} comes from {', '.join(entry.sources)}, but llama.cpp puts it into {place}"
            )


def _stem(name: str) -> str:
    return name.removesuffix(".weight").removesuffix(".bias")


def _joined(names: Any) -> str:
    return ", ".join(map(str, names)) if isinstance(names, list | tuple) else str(names)


def compare_configs(ckpt: Checkpoint, configs: Mapping[str, Mapping[str, Any]]) -> None:
    """Each key that the source decides, in config.json and generation_config.json; further keys are left alone."""
    compare_pooling(ckpt, configs)
    for file, expected in configs.items():
        if file in EMBEDDING_FILES:
            continue
        n_problems = len(ckpt.problems)
        found = ckpt.config if file == "config.json" else read_json(ckpt.folder / file, ckpt.problems)
        if len(ckpt.problems) > n_problems or (file == "config.json" and not found):
            continue  # it is missing or unreadable, which is a problem by itself
        editable = file == "generation_config.json"
        lines = ckpt.edits.setdefault("generation-config", []) if editable else ckpt.problems
        for key, value in expected.items():
            if key not in found:
                lines.append(f"{file} lacks {key}, which the source says is {value!r}")
            elif found[key] != value:
                lines.append(f"{file} says {key} = {found[key]!r}, the source {value!r}")
