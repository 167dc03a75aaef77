"""`python -m gguf2st` in forks of a process that has it loaded: a process of its own each time, without the imports.

A fork has the streams, folder, environment and mask that it is given, and ends as Python ends: whoever looks at its
exit code, its output or what it left behind sees no difference. What is read when Python or a library starts is as it
was for the server: `start` says when that would matter, and tests of start-up use processes of `subprocess`.
"""

import atexit
import functools
import gc
import importlib
import os
import runpy
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.oracle.fork_server import Server, orders

_COMMANDS = ("archs", "batch", "check", "convert", "finish", "inspect", "plan", "verify")
LIGHT = (
    *("rich.console", "rich.progress", "numpy", "numba", "tokenizers", "safetensors", "asyncio", "ssl", "filelock"),
    *("tqdm.auto", "gguf2st.api", "gguf2st.execute", "gguf2st.tokenizer", "gguf2st.verification.numerical"),
    *("gguf2st.kernels.cpu", "gguf2st.kernels.device", "gguf2st.source.ollama", "gguf2st.serving.preflight"),
    *(f"gguf2st.cli.{name}" for name in _COMMANDS),
)
"""Not huggingface_hub, which reads its settings when it is imported: commands that need it import it in their fork."""
HEAVY = (
    *(*LIGHT, "torch", "transformers.models.llama.modeling_llama", "transformers.generation.utils"),
    *("gguf2st.verification.model", "gguf2st.verification.running"),
)
"""What `verify --model` and `verify --run` load too."""
AT_START = ("PYTHON", "LC_", "LANG", "LD_", "NUMBA_", "OMP_", "MKL_", "MALLOC_", "TOKENIZERS_", "RAYON_")
AT_IMPORT = ("HF_", "HUGGING", "TORCH", "TRANSFORMERS_", "PYTORCH_", "CUDA_", "XDG_", "HOME")
"""Beginnings of the variables that Python and the libraries of LIGHT look at once, and those of HEAVY."""


@dataclass(frozen=True)
class Fork:
    """A command that runs; `server.wait()` gives its exit code and must be called."""

    server: Server
    pid: int


def start(
    arguments: Sequence[str], streams: tuple[int, int, int], cwd: Path | None, environment: Mapping[str, str]
) -> Fork | None:
    """Start `gguf2st *arguments` with three open files for its streams; None where only a new process would do."""
    modules = HEAVY if {"--model", "--run"} & {*arguments} else LIGHT
    server, once = _server(modules)
    if once != _read_once(modules, environment):
        return None
    os.umask(mask := os.umask(0o22))
    order = {"arguments": list(arguments), "cwd": str(cwd or Path.cwd()), "mask": mask, "environment": {**environment}}
    pid = server.start(order, streams)
    return Fork(server, pid) if pid else None


@functools.cache
def _server(modules: tuple[str, ...]) -> tuple[Server, dict[str, str]]:
    return Server("tests.oracle.forked", *modules), _read_once(modules, os.environ)


def _read_once(modules: tuple[str, ...], environment: Mapping[str, str]) -> dict[str, str]:
    prefixes = AT_START if modules is LIGHT else (*AT_START, *AT_IMPORT)
    return {name: value for name, value in environment.items() if name.startswith(prefixes)}


def _use_kernels() -> None:
    """numba loads most of itself for its first kernel."""
    import numpy as np

    from gguf2st.kernels import cpu

    for qtype, nbytes, n in (("Q8_0", 34, 32), ("F32", 4, 1)):
        out = np.zeros((1, n), np.uint16)
        cpu.dequantize(qtype, "bfloat16", np.zeros((1, nbytes), np.uint8), out)
        cpu.count_nonfinite("bfloat16", out)


def _open_streams() -> None:
    """As Python does when it starts: what it opened then knows the kind of file that was there."""
    for number, (name, mode) in enumerate({"stdin": "r", "stdout": "w", "stderr": "w"}.items()):
        old: Any = getattr(sys, name)
        new: Any = open(number, mode, encoding=old.encoding, errors=old.errors, closefd=False)  # noqa: SIM115
        if name == "stderr":
            new.reconfigure(line_buffering=True)
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


def _flush() -> bool:
    """All that Python does at its end but to free every object, which would copy the memory of the server first.

    Returns: whether the streams took what was left; if not, Python has something to say.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return False
    return True


def main() -> None:
    """Load the modules, and be gguf2st in each fork."""
    for name in sys.argv[2:]:
        importlib.import_module(name)
    _use_kernels()
    if "huggingface_hub" in sys.modules and "transformers" not in sys.modules:
        raise RuntimeError("the Hub's settings of the server would be those of every fork")
    gc.collect()
    gc.freeze()
    order, files = orders()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(order["cwd"])
    os.umask(order["mask"])
    os.environ.clear()
    os.environ.update(order["environment"])
    _open_streams()
    sys.path[0] = order["cwd"]
    sys.argv = ["gguf2st", *order["arguments"]]
    try:
        runpy.run_module("gguf2st", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, int) and _flush():
            os._exit(end.code & 0xFF)
        raise


if __name__ == "__main__":
    main()
