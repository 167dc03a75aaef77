"""scripts/check_vllm_gpu.py from end to end, with a vLLM that only answers; the real one is for machines with GPUs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts/check_vllm_gpu.py"

FAKE = """
import json, pathlib, types
__version__ = "0.32.0"

class SamplingParams:
    def __init__(self, **options): self.options = options

class LLM:
    def __init__(self, folder, **options):
        self.says = json.loads((pathlib.Path(folder) / "config.json").read_text())["says"]
        if isinstance(self.says, str): raise ValueError(self.says)
        config = types.SimpleNamespace(dtype="torch.float16")
        self.llm_engine = types.SimpleNamespace(model_config=config)
    def get_tokenizer(self):
        return lambda text: {"input_ids": list(range(len(self.says) + 1))}
    def generate(self, prompts, sampling, use_tqdm):
        ids = prompts[0]["prompt_token_ids"]
        rows = [None] + [{i: types.SimpleNamespace(logprob=float(x))} for i, x in zip(ids[1:], self.says)]
        return [types.SimpleNamespace(prompt_logprobs=rows)]
    def apply_model(self, function):
        kernel = type("MarlinLinearKernel", (), {})()
        layer = types.SimpleNamespace(scheme=types.SimpleNamespace(kernel=kernel))
        return [function(types.SimpleNamespace(modules=lambda: [layer, types.SimpleNamespace()]))]
"""

NO_GPU = "import types\ncuda = types.SimpleNamespace(is_available=lambda: False)"
"""All of torch that the script asks, which is seconds to load."""


def checkpoint(folder: Path, says: object, groups: tuple[str, ...] = ()) -> Path:
    folder.mkdir()
    config = {"says": says} | ({"quantization_config": {"config_groups": dict.fromkeys(groups)}} if groups else {})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def run(tmp_path: Path, *arguments: object, fake: bool = True) -> "subprocess.CompletedProcess[str]":
    if fake:
        (tmp_path / "vllm.py").write_text(FAKE)
        (tmp_path / "torch.py").write_text(NO_GPU)
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": str(tmp_path)}, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_table_and_the_exit_code(tmp_path: Path) -> None:
    dense = checkpoint(tmp_path / "dense", [-1.0, -2.0])
    good = checkpoint(tmp_path / "good", [-1.01, -2.03], ("int4_g32", "int8_g32"))
    done = run(tmp_path, dense, good, "--output", tmp_path / "table.md")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].endswith("vLLM 0.32.0; 2 logprobs of dense")
    assert lines[-2].startswith("| dense | dense | float16 | MarlinLinearKernel | 0.0000 | 0.0000 |")
    assert lines[-2].endswith("| reference |")
    assert lines[-1].startswith("| good | int4_g32, int8_g32 | float16 | MarlinLinearKernel | 0.0200 | 0.0300 |")
    assert lines[-1].endswith("| ok |")
    assert (tmp_path / "table.md").read_text() == done.stdout


@pytest.mark.parametrize(
    ("says", "verdict"),
    [
        ([-1.0, -4.0], "WRONG: more than 0.5"),
        ([-1.0, float("nan")], "WRONG: more than 0.5"),
        ([-1.0], "another tokenizer"),
        ("no kernel | for this", "ValueError: no kernel / for this"),
    ],
)
def test_what_is_wrong_is_said(says: object, verdict: str, tmp_path: Path) -> None:
    dense, bad = checkpoint(tmp_path / "dense", [-1.0, -2.0]), checkpoint(tmp_path / "bad", says, ("int8_g32",))
    done = run(tmp_path, dense, bad)
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-1].startswith("| bad | int8_g32 |")
    assert done.stdout.splitlines()[-1].endswith(f"| {verdict} |")


def test_usage(tmp_path: Path) -> None:
    dense = checkpoint(tmp_path / "dense", [-1.0])
    for arguments, words in (
        ([dense], "packed"),
        ([dense, tmp_path], "no checkpoint folder"),
        ([dense, dense, "--limit", "0"], "--limit must be"),
    ):
        done = run(tmp_path, *arguments)
        assert done.returncode == 2
        assert words in done.stderr


def test_without_vllm(tmp_path: Path) -> None:
    dense = checkpoint(tmp_path / "dense", [-1.0])
    done = run(tmp_path, dense, dense, fake=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "has no vLLM" in done.stderr
