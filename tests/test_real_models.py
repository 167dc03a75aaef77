"""SmolLM2-135M (Q4_1) and gemma3-270m (Q4_K_M), converted once: every value, loading, answers, and memory."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import transformers as transformers_module
from filelock import FileLock
from safetensors import safe_open

import gguf2st
from tests.make_gguf import tiny_llama
from tests.oracle.dequantized import hf_tensors
from tests.oracle.llamacpp import LlamaCpp, in_child

transformers: Any = transformers_module  # its constructors carry no types
pytestmark = pytest.mark.real

MIB = 1 << 20
FRANCE = "The capital of France is"


@dataclass(frozen=True)
class Converted:
    """A model, its checkpoint, and the greatest resident memory of the process that made it."""

    source: Path
    folder: Path
    peak_nbytes: int


MEASURE = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:])
_, status, usage = os.wait4(process.pid, 0)
print(usage.ru_maxrss * 1024)
sys.exit(os.waitstatus_to_exitcode(status))
"""
"""Run a command and print its peak. A process starts with the peak of the one that forks it: this one is small."""


def convert(source: Path, folder: Path) -> Converted:
    """Convert in a process of its own, with the command line's defaults."""
    command = [sys.executable, "-c", MEASURE, sys.executable, "-m", "gguf2st"]
    command += ["convert", str(source), "-o", str(folder), "--quiet", "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return Converted(source, folder, int(done.stdout))


@pytest.fixture(scope="session", params=["smollm2", "gemma3"])
def converted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Converted:
    """Once per session, whichever of the workers comes first."""
    source: Path = request.getfixturevalue(request.param)
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder, note = shared / f"real-{request.param}", shared / f"real-{request.param}.json"
    with FileLock(f"{note}.lock"):
        if not note.exists():
            note.write_text(json.dumps(convert(source, folder).peak_nbytes))
    return Converted(source, folder, json.loads(note.read_text()))


def shapes_on_disk(folder: Path) -> dict[str, tuple[int, ...]]:
    with safe_open(folder / "model.safetensors", framework="pt") as f:
        return {name: tuple(f.get_slice(name).get_shape()) for name in f.keys()}  # noqa: SIM118 - not a dict


def test_every_value_equals_gguf_py(converted: Converted) -> None:
    with safe_open(converted.folder / "model.safetensors", framework="pt") as f:
        left = set(f.keys())
        for name, expected in hf_tensors(converted.source, torch.bfloat16):
            found = f.get_tensor(name)
            assert found.dtype == torch.bfloat16
            assert torch.equal(found.view(torch.int16), expected.view(torch.int16)), name
            left.remove(name)
    assert not left


def test_names_and_shapes_are_those_of_the_model_class(converted: Converted) -> None:
    config = transformers.AutoConfig.from_pretrained(converted.folder)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    expected: Mapping[str, torch.Tensor] = model.state_dict()
    shapes = {name: tuple(t.shape) for name, t in expected.items()}
    assert config.tie_word_embeddings
    assert shapes.pop("lm_head.weight") == shapes["model.embed_tokens.weight"]
    assert shapes_on_disk(converted.folder) == shapes


def test_our_own_verification_agrees(converted: Converted) -> None:
    result = gguf2st.verify(converted.folder, converted.source, model=True)
    assert result.problems == ()
    assert result.compared == result.parameters == sum(map(np.prod, shapes_on_disk(converted.folder).values()))


def load(folder: Path) -> Any:
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not report[kind], report
    return model.eval()


def test_transformers_loads_it_and_it_speaks(converted: Converted) -> None:
    model = load(converted.folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(converted.folder)
    ids = tokenizer(FRANCE, return_tensors="pt")
    with torch.inference_mode():
        answer = model.generate(**ids, max_new_tokens=1, do_sample=False)[0, ids["input_ids"].shape[1] :]
    if "SmolLM2" in converted.source.name:
        assert tokenizer.decode(answer) == " Paris"
    # llama.cpp rounds activations to 8 bits for quantized weights, so that logits agree, but not to the last digit.
    expected = torch.from_numpy(in_child(_logits, converted.source, ids["input_ids"][0].tolist()))
    with torch.inference_mode():
        found = model(**ids).logits[0]
    assert torch.equal(found.argmax(-1), expected.argmax(-1))
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.corrcoef(torch.stack([ours, theirs]))[0, 1] > 0.99


def _logits(source: Path, ids: list[int]) -> npt.NDArray[np.float32]:
    # one thread: OpenMP, which torch has used by now, hangs in a forked child
    with LlamaCpp(source, n_ctx=64, n_threads=1) as model:
        return model.logits(ids)


def test_memory_stays_under_600_mib(converted: Converted) -> None:
    assert converted.peak_nbytes < 600 * MIB


def test_memory_does_not_grow_with_layers(tmp_path: Path) -> None:
    """Four times the layers add 125 MB of weights, half of what the smaller conversion needs in all."""
    peaks = []
    for layers in (8, 32):
        source = tiny_llama(
            tmp_path / f"{layers}.gguf", layers=layers, hidden=512, heads=8, kv_heads=8, ffn=1024, qtype="Q8_0"
        )
        peaks.append(convert(source, tmp_path / f"{layers}").peak_nbytes)
    few, many = peaks
    weights = [(tmp_path / f"{layers}/model.safetensors").stat().st_size for layers in (8, 32)]
    assert weights[1] - weights[0] > 0.4 * few, "enough to be seen"
    assert many < 1.1 * few
