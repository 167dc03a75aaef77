"""vLLM gives our rerankers the scores that llama.cpp gives their GGUFs, from query and document as text."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gguf2st
from gguf2st.serving.preflight import who_serves
from gguf2st.serving.tasks import DOCUMENTS, QUESTION
from tests.oracle import tiny
from tests.oracle.cases import CASES, Case
from tests.oracle.llamacpp import LlamaCpp, in_child
from tests.vllm.conftest import ENVIRONMENT, HERE, ROOT
from tests.vllm.test_logprobs import WIDER

PAIRS = [
    ("What boils?", "Water boils at one hundred degrees Celsius."),
    ("What boils?", "The capital of France is Paris."),
    ("no", "yes {query} {{ document }}"),
]
TOLERANCE: Mapping[str, float] = {"float32": 2e-5, "bfloat16": 0.005}
LONGER: Mapping[str, Any] = {**WIDER, "max_position_embeddings": 1024}
"""The prompt around a query has a hundred words, which the tiny tokenizer cuts into letters."""
MODELS: Mapping[str, Case] = {
    f"wide_{name}": replace(CASES[name], options={**CASES[name].options, **LONGER})
    for name in ("qwen3_reranker", "qwen3_reranker_tied", "qwen3vl_reranker")
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Case -> (GGUF, checkpoint)."""
    home = tmp_path_factory.mktemp("rerankers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny, "CASES", MODELS)
        assert tiny.prepare(MODELS) == {}
        found = {name: (tiny.oracle_gguf(name), home / name) for name in MODELS}
    for gguf, folder in found.values():
        gguf2st.convert(gguf, folder, dtype="float32")
    return found


@pytest.fixture(scope="module")
def scores(
    folders: dict[str, tuple[Path, Path]], vllm_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    jobs = [
        {
            "name": f"{name} {dtype}",
            "folder": str(folder),
            "template": str(folder / "additional_chat_templates/rerank.jinja"),
            "pairs": PAIRS,
            "dtype": dtype,
        }
        for name, (_, folder) in folders.items()
        for dtype in TOLERANCE
    ]
    run = subprocess.run(
        [vllm_python, HERE / "llm_probe.py"], input=json.dumps(jobs), env=os.environ | ENVIRONMENT,
        cwd=tmp_path_factory.mktemp("elsewhere"), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    results: dict[str, Any] = json.loads(run.stdout)
    return results


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", MODELS)
def test_vllm_gives_the_scores_of_llama_cpp(
    name: str, dtype: str, folders: dict[str, tuple[Path, Path]], scores: dict[str, Any]
) -> None:
    gguf, folder = folders[name]
    assert who_serves(json.loads((folder / "config.json").read_text())["architectures"][0])[0] == "native"
    expected = in_child(_by_llama_cpp, gguf)
    assert max(expected) - min(expected) > 0.02, "the pairs do not tell models apart"
    found = scores[f"{name} {dtype}"]
    print(f"{name} {dtype}: {found} of {expected}")
    assert isinstance(found, list), found
    assert found == pytest.approx(expected, abs=TOLERANCE[dtype])


def test_serve_asks_for_scores_and_passes_the_prompt_on(
    folders: dict[str, tuple[Path, Path]], vllm_python: Path, environment: dict[str, str]
) -> None:
    gguf, folder = folders["wide_qwen3_reranker"]
    command = [sys.executable, "-m", "gguf2st", "serve", str(folder), "--port", "0", "--json", "--smoke"]
    run = subprocess.run(
        [*command, "--vllm-python", str(vllm_python), "--", "--enforce-eager", "--max-model-len", "1024"],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    rows = [json.loads(line) for line in run.stdout.splitlines()]
    (answer,) = [row for row in rows if row["event"] == "smoke"]
    pairs = [(QUESTION, document) for document in DOCUMENTS]
    assert answer["values"] == pytest.approx(in_child(_by_llama_cpp, gguf, pairs), abs=TOLERANCE["float32"])


def _by_llama_cpp(gguf: Path, pairs: Sequence[tuple[str, str]] = PAIRS) -> list[float]:
    """As its server does (`format_prompt_rerank`): the texts stand for their places in the file's own prompt."""
    prompt = gguf2st.open_gguf(gguf).metadata["tokenizer.chat_template.rerank"]
    scores = []
    for query, document in pairs:
        before, rest = prompt.split("{query}")
        between, after = rest.split("{document}")
        with LlamaCpp(gguf, ranks=True, n_ctx=1024) as model:  # a context takes one text
            ids = model.tokenize(before + query + between + document + after, add_special=False)
            scores.append(float(model.scores(ids)[0, 0]))
    return scores
