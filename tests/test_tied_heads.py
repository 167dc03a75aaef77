"""A file whose head is the embedding's, for a class of vLLM that looks for a head of its own and is silent without one.

Found by loading tied models with vLLM 0.32: these classes leave `lm_head.weight` as it was in memory.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import gguf2st
from tests.oracle.rewrite import rewritten

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("case", ["afmoe", "deepseek2-ocr", "deepseek_v32", "glm4_moe_lite", "jamba", "qwen3next"])
def test_the_embedding_is_written_as_the_head_too(case: str, tmp_path: Path) -> None:
    def without_head(_: dict[str, Any], tensors: dict[str, Any]) -> None:
        del tensors["output.weight"]

    tied = rewritten(case, tmp_path / "tied.gguf", without_head)
    gguf2st.convert(tied, tmp_path / "out")
    weights = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"])
    assert json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"] is False
    assert gguf2st.verify(tmp_path / "out", against=tied).problems == ()
