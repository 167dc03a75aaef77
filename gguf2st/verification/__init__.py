"""Prove a checkpoint whole, without trusting what wrote it.

1. structural: files, shard headers (read by the safetensors library), index and config.json agree with each other;
2. numerical: every value equals gguf-py's dequantization of the source, put through the plan's ops and cast;
3. model: transformers' class, built on the meta device from config.json, has exactly these tensors;
4. running: transformers loads it with nothing missing, NaN or Inf, and it reads a text as llama.cpp does.

Problems are collected, so that one run shows them all.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from gguf2st.errors import VerifyError
from gguf2st.plan import DTYPE_NBYTES, Plan
from gguf2st.verification.checkpoint import FLOATS
from gguf2st.verification.source import compare_configs, compare_names, compare_vocabulary
from gguf2st.verification.structural import read_checkpoint


@dataclass(frozen=True)
class Verification:
    """What was checked, and what was wrong.

    Attributes:
        folder: the checkpoint.
        tensors, parameters, nbytes: what it holds.
        levels: which of "structural", "numerical", "model", "running" were run.
        compared: values compared with the source.
        problems: one line each; empty when everything held.
        notes: what running it showed.
    """

    folder: str
    tensors: int
    parameters: int
    nbytes: int
    levels: tuple[str, ...]
    compared: int = 0
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing was wrong."""
        return not self.problems

    def require_ok(self) -> None:
        """Raise VerifyError with every problem unless nothing was wrong."""
        if self.problems:
            more = f" (and {len(self.problems) - 1} more problems)" if len(self.problems) > 1 else ""
            raise VerifyError(
                f"{self.folder}: {self.problems[0]}{more}",
                problems=self.problems[1:],
                hint="do not serve this checkpoint: convert it again, or see docs/verification.md",
            )


def verify_folder(
    folder: Path,
    *,
    plan: Plan | None = None,
    configs: Mapping[str, Mapping[str, Any]] | None = None,
    values: bool = True,
    sample: float = 1.0,
    model: bool = False,
    run: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Verification:
    """Check a checkpoint folder, whoever wrote it.

    Args:
        folder: with config.json and safetensors files.
        plan: of the source to compare with, laid out for the checkpoint's dtype (`checkpoint_dtype`).
        configs: what config.json and generation_config.json must say, by file name.
        values: whether to compare every value and the vocabulary with the plan's source too, or only names, shapes and
            `configs`.
        sample: share of each tensor's rows whose values are compared.
        model: also compare with transformers' class (needs the extra `gguf2st[verify]`).
        run: also load it with transformers and run it, and compare with llama.cpp on the plan's source where xllamacpp
            is installed.
        progress: told about the number of values just compared.

    Raises:
        VerifyError: the folder is not there, or `model` was asked for without transformers.
    """
    _require_folder(folder)
    levels = ["structural"]
    ckpt = read_checkpoint(folder)
    compared = 0
    compare_configs(ckpt, configs or {})
    if plan is not None:
        compare_names(ckpt, plan)
    if plan is not None and values:
        from gguf2st.verification.numerical import compare_values

        levels.append("numerical")
        compare_vocabulary(ckpt, plan)
        compared = compare_values(ckpt, plan, progress or (lambda n: None), sample)
    if model:
        levels.append("model")
        from gguf2st.verification.model import compare_model

        compare_model(ckpt)
    notes: tuple[str, ...] = ()
    if run:
        levels.append("running")
        from gguf2st.verification.running import check_running

        running = check_running(folder, None if plan is None else plan.header)
        ckpt.problems += running.problems
        notes = running.notes
    return Verification(
        folder=str(folder),
        tensors=len(ckpt.tensors),
        parameters=sum(prod(t.shape) for t in ckpt.tensors.values()),
        nbytes=sum(t.nbytes for t in ckpt.tensors.values()),
        levels=tuple(levels),
        compared=compared,
        problems=tuple(dict.fromkeys(ckpt.problems)),
        notes=notes,
    )


def checkpoint_dtype(folder: Path) -> str:
    """The dtype that most weights have, for planning the comparison; what config.json says is compared with it.

    Raises:
        VerifyError: the folder is not there, or most weights are of another kind.
    """
    _require_folder(folder)
    sizes: Counter[str] = Counter()
    ckpt = read_checkpoint(folder)
    for tensor in ckpt.tensors.values():
        sizes[tensor.dtype] += tensor.nbytes
    dtype = FLOATS.get(max(sizes, key=sizes.__getitem__, default=""))
    if dtype is None:
        found = ", ".join(sizes) or "no weights"
        raise VerifyError(
            f"{folder} holds {found}; comparing with a GGUF needs {', '.join(DTYPE_NBYTES)}", problems=ckpt.problems
        )
    return dtype


def _require_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise VerifyError(f"{folder} is not a folder", hint="give the folder that `gguf2st convert` printed")
