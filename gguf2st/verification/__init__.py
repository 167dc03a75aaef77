"""Prove a checkpoint whole, without trusting what wrote it.

1. structural: files, shard headers (read by the safetensors library), index and config.json agree with each other;
2. numerical: every value equals gguf-py's dequantization of the source, put through the plan's ops and cast;
3. model: transformers' class, built on the meta device from config.json, has exactly these tensors.

Problems are collected, so that one run shows them all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path

from gguf2st.errors import VerifyError
from gguf2st.plan import DTYPE_NBYTES, Plan
from gguf2st.verification.checkpoint import read_json
from gguf2st.verification.structural import compare_names, read_checkpoint


@dataclass(frozen=True)
class Verification:
    """What was checked, and what was wrong.

    Attributes:
        folder: the checkpoint.
        tensors, parameters, nbytes: what it holds.
        levels: which of "structural", "numerical", "model" were run.
        compared: values compared with the source.
        problems: one line each; empty when everything held.
    """

    folder: str
    tensors: int
    parameters: int
    nbytes: int
    levels: tuple[str, ...]
    compared: int = 0
    problems: tuple[str, ...] = ()

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
    values: bool = True,
    model: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Verification:
    """Check a checkpoint folder, whoever wrote it.

    Args:
        folder: with config.json and safetensors files.
        plan: of the source to compare with, laid out for the checkpoint's dtype (`checkpoint_dtype`).
        values: whether to compare every value with the plan's source, or names, shapes and configuration only.
        model: also compare with transformers' class (needs the extra `gguf2st[verify]`).
        progress: told about the number of values just compared.

    Raises:
        VerifyError: the folder is not there, or `model` was asked for without transformers.
    """
    if not folder.is_dir():
        raise VerifyError(f"{folder} is not a folder", hint="give the folder that `gguf2st convert` printed")
    levels = ["structural"]
    ckpt = read_checkpoint(folder)
    compared = 0
    if plan is not None:
        compare_names(ckpt, plan)
    if plan is not None and values:
        from gguf2st.verification.numerical import compare_values

        levels.append("numerical")
        compared = compare_values(ckpt, plan, progress or (lambda n: None))
    if model:
        levels.append("model")
        from gguf2st.verification.model import compare_model

        compare_model(ckpt)
    return Verification(
        folder=str(folder),
        tensors=len(ckpt.tensors),
        parameters=sum(prod(t.shape) for t in ckpt.tensors.values()),
        nbytes=sum(t.nbytes for t in ckpt.tensors.values()),
        levels=tuple(levels),
        compared=compared,
        problems=tuple(ckpt.problems),
    )


def checkpoint_dtype(folder: Path) -> str:
    """The dtype that config.json states, for planning the comparison.

    Raises:
        VerifyError: config.json is unreadable or states none that gguf2st writes.
    """
    problems: list[str] = []
    config = read_json(folder / "config.json", problems)
    if problems:
        raise VerifyError(f"{folder}: {problems[0]}")
    dtype = config.get("dtype") or config.get("torch_dtype")
    if dtype not in DTYPE_NBYTES:
        raise VerifyError(f"{folder}/config.json: dtype is {dtype!r}; comparing needs one of {', '.join(DTYPE_NBYTES)}")
    return str(dtype)
