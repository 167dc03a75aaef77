"""Prove a checkpoint whole, without trusting what wrote it.

1. structural: files, shard headers (read by the safetensors library), index and config.json agree with each other;
   digests, where the conversion kept those of the shards: nothing has changed since;
2. numerical: every value equals gguf-py's dequantization of the source, put through the plan's ops and cast;
3. model: transformers' class, built on the meta device from config.json, has exactly these tensors;
4. running: transformers loads it with nothing missing, NaN or Inf, and it reads a text as llama.cpp does.

Problems are collected, so that one run shows them all.
"""

import importlib.util
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gguf2st.errors import SourceError, UsageError, VerifyError, short
from gguf2st.plan import Plan
from gguf2st.quants.layout import INT64
from gguf2st.verification.checkpoint import DTYPES, EDITABLE, FLOATS
from gguf2st.verification.digests import compare_digests
from gguf2st.verification.further_keys import compare_further
from gguf2st.verification.further_quantization import compare_quantization
from gguf2st.verification.limits import transformers_limits
from gguf2st.verification.packed import is_part, logical_tensors, understood
from gguf2st.verification.source import compare_configs, compare_names, compare_places, name_another_source
from gguf2st.verification.structural import read_checkpoint
from gguf2st.verification.tokenizer_files import compare_tokenizer

if TYPE_CHECKING:
    from gguf2st.verification.losses import Loss

EXTRA = "pip install 'gguf2st[verify]'"


@dataclass(frozen=True)
class Verification:
    """What was checked, and what was wrong.

    Attributes:
        folder: the checkpoint.
        tensors, parameters, nbytes: what it holds.
        levels: which of "structural", "digests", "numerical", "model", "running" were run.
        compared: values compared with the source.
        problems: one line each; empty when everything held.
        notes: what running it showed, and what was not looked at.
        losses: how the weights of each packed format compare with the source.
        edited: the members of EDITABLE that differ from the source, where nothing else is wrong.
    """

    folder: str
    tensors: int
    parameters: int
    nbytes: int
    levels: tuple[str, ...]
    compared: int = 0
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    losses: tuple["Loss", ...] = ()
    edited: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing was wrong."""
        return not self.problems

    def require_ok(self) -> None:
        """Raise VerifyError with every problem unless nothing was wrong."""
        if self.problems:
            more = f" (and {len(self.problems) - 1} more problems)" if len(self.problems) > 1 else ""
            hint = "do not serve this checkpoint: `gguf2st convert` makes it again from its GGUF"
            if self.edited:
                accept = " ".join(f"--accept {what}" for what in self.edited)
                hint = f"if it was edited on purpose, verify with {accept}; if not, convert again with --overwrite"
            raise VerifyError(f"{self.folder}: {self.problems[0]}{more}", problems=self.problems[1:], hint=hint)


def verify_folder(
    folder: Path,
    *,
    plan: Plan | None = None,
    configs: Mapping[str, Mapping[str, Any]] | None = None,
    values: bool = True,
    sample: float = 1.0,
    max_rel_rmse: float | None = None,
    accept: Collection[str] = (),
    model: bool = False,
    run: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Verification:
    """Check a checkpoint folder, whoever wrote it, quantized or not.

    Args:
        folder: with config.json and safetensors files.
        plan: of the source to compare with, laid out for the checkpoint's dtype (`checkpoint_dtype`).
        configs: what config.json and generation_config.json must say, by file name.
        values: whether to compare every value and the vocabulary with the plan's source too, and the digests that
            the folder keeps, or only names, shapes and `configs`.
        sample: share of each tensor's rows whose values are compared.
        max_rel_rmse: allowed for packed weights whose format cannot hold the source's numbers; by default what the
            number of their bits can reach.
        accept: members of EDITABLE that may differ from the source: that gives a note.
        model: also compare with transformers' class (needs the extra `gguf2st[verify]`).
        run: also load it with transformers and run it, and compare with llama.cpp on the plan's source where xllamacpp
            is installed.
        progress: told about the number of values just compared.

    Raises:
        SourceError: the folder is not there.
        UsageError: `model` or `run` was asked for without transformers.
    """
    _require_folder(folder)
    if (model or run) and importlib.util.find_spec("transformers") is None:  # before hours of comparing values
        option = "--model" if model else "--run"
        raise UsageError(f"{option} needs transformers, which is not installed here", hint=EXTRA)
    levels = ["structural"]
    ckpt = read_checkpoint(folder)
    compared = 0
    losses: tuple[Loss, ...] = ()
    notes: tuple[str, ...] = ()
    if ckpt.rules is not None and not understood(ckpt.rules):
        method = ckpt.rules.method or "unknown"
        notes += (f"quantized by {method}, of which only names are checked: not the dtypes and shapes of its parts",)
    notes += tuple(transformers_limits(ckpt))
    compare_configs(ckpt, configs or {})
    notes += tuple(compare_further(ckpt, configs or {}))
    notes += tuple(compare_quantization(ckpt, against=bool(configs)))
    if values:
        hashed, changed = compare_digests(ckpt)
        levels += ["digests"] if hashed else []
        notes += tuple(changed)
    if plan is not None:
        compare_names(ckpt, plan)
    if plan is not None and values:
        from gguf2st.verification.numerical import compare_values

        levels.append("numerical")
        compare_places(ckpt, plan)
        notes += tuple(compare_tokenizer(ckpt, plan))
        result = compare_values(ckpt, plan, progress or (lambda n: None), sample, max_rel_rmse)
        compared, losses = result.compared, tuple(result.losses.values())
    if model:
        levels.append("model")
        from gguf2st.verification.model import compare_model

        compare_model(ckpt)
    if run:
        levels.append("running")
        from gguf2st.verification.running import check_running

        running = check_running(folder, None if plan is None else plan.header)
        ckpt.problems += running.problems
        notes += running.notes
    if plan is not None and values:
        name_another_source(ckpt, plan)
    edited = tuple(what for what in EDITABLE if ckpt.edits.get(what) and what not in accept)
    only_edited = bool(edited) and not ckpt.problems
    ckpt.problems += [f"{line}; no weight is affected" for what in edited for line in ckpt.edits[what]]
    notes += tuple(f"accepted: {line}" for what in EDITABLE if what in accept for line in ckpt.edits.get(what, ()))
    return Verification(
        folder=str(folder),
        tensors=len(ckpt.tensors),
        parameters=sum(prod(t.shape) for t in logical_tensors(ckpt).values()),
        nbytes=sum(t.nbytes for t in ckpt.tensors.values()),
        levels=tuple(levels),
        compared=compared,
        problems=tuple(map(short, dict.fromkeys(ckpt.problems))),
        notes=notes,
        losses=losses,
        edited=edited if only_edited else (),
    )


def checkpoint_dtype(folder: Path) -> str:
    """The dtype that most weights have, to plan the comparison for; config.json must say the same.

    Whole numbers are no weights. Packed weights are multiplied in 16 bits: float32 is no dtype of theirs.

    Raises:
        SourceError: the folder is not there.
        VerifyError: most weights are of another kind.
    """
    _require_folder(folder)
    sizes: Counter[str] = Counter()
    ckpt = read_checkpoint(folder)
    for name, tensor in logical_tensors(ckpt).items():
        if name not in ckpt.packed and not is_part(name) and DTYPES.get(tensor.dtype) != INT64:
            sizes[tensor.dtype] += tensor.nbytes
    if ckpt.packed and len(sizes) > 1:
        del sizes["F32"]  # what models keep in float32 may be more than what is neither packed nor that
    dtype = FLOATS.get(max(sizes, key=sizes.__getitem__, default=""))
    if dtype is None:
        found = ", ".join(sizes) or "no weights that are not packed"
        raise VerifyError(
            f"{folder} holds {found}; comparing with a GGUF needs {', '.join(FLOATS.values())}",
            problems=ckpt.problems,
            hint="`gguf2st verify DIR` without --against checks the rest",
        )
    return dtype


def _require_folder(folder: Path) -> None:
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "is not there"
        raise SourceError(f"{folder} {what}", hint="give the folder that `gguf2st convert` printed")
