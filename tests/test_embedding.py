"""Embedding models: what sentence-transformers and vLLM read beside config.json, and what verification says of it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguf2st
from gguf2st.api import make_plan
from tests.oracle.rewrite import Metadata, Tensors, rewritten

pytestmark = pytest.mark.oracle

CASES = {
    "bert": "bert",
    "roberta": "bert",
    "xlm-roberta": "bert",
    "nomic-bert": "nomic-bert",
    "jina-bert-v2": "jina-bert-v2",
    "modern-bert": "modern-bert",
    "gemma_embedding": "gemma-embedding",
    "qwen3": "qwen3",
    "qwen2": "qwen2",
    "llama": "llama",
}
"""Case -> GGUF architecture."""
MODES = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")


def _pooled(arch: str, number: int | None) -> Any:
    def edit(metadata: Metadata, _: Tensors) -> None:
        metadata.pop(f"{arch}.pooling_type", None)
        if number is not None:
            metadata[f"{arch}.pooling_type"] = np.uint32(number)

    return edit


@pytest.fixture(scope="module")
def mean(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A BERT that pools by the mean, and its checkpoint."""
    folder = tmp_path_factory.mktemp("embedding")
    source = rewritten("bert", folder / "bert.gguf", _pooled("bert", 1))
    gguf2st.convert(source, folder / "out", dtype="float32")
    return source, folder / "out"


@pytest.mark.parametrize(("case", "arch"), CASES.items())
@pytest.mark.parametrize(("number", "mode"), [(1, "mean_tokens"), (2, "cls_token"), (3, "lasttoken")])
def test_what_the_file_says_of_pooling_is_planned(case: str, arch: str, number: int, mode: str, tmp_path: Path) -> None:
    plan = make_plan(rewritten(case, tmp_path / "m.gguf", _pooled(arch, number)))
    assert plan.all_problems == ()
    assert plan.files == {
        "1_Pooling/config.json": {
            "word_embedding_dimension": plan.header.metadata[f"{arch}.embedding_length"],
            **{f"pooling_mode_{name}": name == mode for name in MODES},
            "include_prompt": True,
        },
        "modules.json": [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
        ],
    }
    (note,) = [note for note in plan.notes if "pooled by" in note]
    assert "assumed" in note  # that vectors are scaled


@pytest.mark.parametrize("number", [None, 0, 4])
def test_no_pooling_no_files(number: int | None, tmp_path: Path) -> None:
    plan = make_plan(rewritten("qwen3", tmp_path / "m.gguf", _pooled("qwen3", number)))
    assert plan.all_problems == ()
    assert plan.files == {}
    assert bool([note for note in plan.notes if "pooling_type" in note]) == (number is not None)


def test_an_unknown_way_to_pool_is_a_problem(tmp_path: Path) -> None:
    plan = make_plan(rewritten("qwen3", tmp_path / "m.gguf", _pooled("qwen3", 9)))
    assert [line for line in plan.all_problems if "pooling_type is 9" in line]


def test_the_files_are_written_and_verified(mean: tuple[Path, Path]) -> None:
    source, folder = mean
    plan = make_plan(source)
    assert {name: json.loads((folder / name).read_text()) for name in plan.files} == plan.files
    gguf2st.verify(folder, against=source).require_ok()


@pytest.mark.parametrize(
    ("modules", "pooling", "message"),
    [
        (None, {}, "there is no modules.json"),
        ({"a": 1}, {}, "is no list of modules"),
        ([{"type": "sentence_transformers.models.Transformer", "path": ""}], {}, "no Pooling module"),
        ("as it is", None, "there is no config.json"),
        ("as it is", {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "by cls, the source by mean"),
        ("as it is", {"pooling_mode": "lasttoken"}, "by lasttoken, the source by mean"),
        ("as it is", {"pooling_mode": ["mean", "cls"]}, "by cls, mean, the source by mean"),
        ("as it is", {"pooling_mode": 7}, "by nothing, the source by mean"),
        ("as it is", {"pooling_mode": "mean"}, ""),
        ("as it is", {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}, ""),
        ([{"type": "sentence_transformers.sentence_transformer.modules.pooling.Pooling", "path": "p"}],
         {"pooling_mode": "mean", "embedding_dimension": 64}, ""),
    ],
)  # fmt: skip
def test_how_another_s_checkpoint_pools(
    modules: Any, pooling: Any, message: str, mean: tuple[Path, Path], tmp_path: Path
) -> None:
    source, folder = mean
    for file in folder.iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    if modules is None:
        (tmp_path / "modules.json").unlink()
    elif modules != "as it is":
        (tmp_path / "modules.json").write_text(json.dumps(modules))
    for place in ("1_Pooling", "p"):
        (tmp_path / place).mkdir()
        if pooling is not None:
            (tmp_path / place / "config.json").write_text(json.dumps(pooling))
    problems = gguf2st.verify(tmp_path, against=source).problems
    assert [line for line in problems if message in line] == list(problems) if message else problems == ()
    assert bool(problems) == bool(message)
