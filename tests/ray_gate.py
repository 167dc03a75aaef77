"""Runs in every worker of the test's Ray cluster: stops tasks in the middle of a shard for as long as a test wants."""

import json
import os
import time
from pathlib import Path
from typing import Any

HOLD = "hold"
"""A file `{"partial": folder, "after": n}` in the gate's folder: tasks stop once n shards there are finished."""


def install() -> None:
    """Put the gate before the decoder."""
    from gguf2st.kernels import cpu, device

    folder = Path(os.environ["GGUF2ST_TEST_GATE"])

    def decode(qtype: str, dtype: str, blocks: Any, out: Any) -> None:
        cpu.dequantize(qtype, dtype, blocks, out)
        while _is_shut(folder):
            (folder / str(os.getpid())).touch()
            time.sleep(0.02)

    device.decoder = lambda name: decode


def finished(partial: Path) -> list[str]:
    """The shards whose journals say so."""
    return sorted(p.name for p in (partial / "journals").glob("*") if p.stat().st_size)


def _is_shut(folder: Path) -> bool:
    try:
        hold = json.loads((folder / HOLD).read_text())
    except (FileNotFoundError, ValueError):
        return False
    return len(finished(Path(hold["partial"]))) >= hold["after"]
