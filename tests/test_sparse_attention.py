"""MiniMax M3 chooses blocks of keys: what transformers makes of our checkpoint is what llama.cpp makes of the GGUF.

llama.cpp does that only with flash attention. Without it, as everywhere else in these tests, it attends to all keys and
says so in a warning (src/models/minimax-m3.cpp), which is the same up to as many tokens as the chosen blocks hold.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import transformers as transformers_module
from safetensors.torch import load_file
from torch import Tensor

import gguf2st
from tests.oracle.llamacpp import LlamaCpp, in_child
from tests.oracle.rewrite import Metadata, Tensors, rewritten

transformers: Any = transformers_module  # its constructors carry no types
pytestmark = pytest.mark.oracle

IDS = list(range(5, 45))
CHOSEN = 4 * 8
"""Tokens in the blocks that a query chooses: sparse_topk_blocks times sparse_block_size of the case."""


def calm(_metadata: Metadata, tensors: Tensors) -> None:
    """Matrices such that no sigmoid of the router is 1: which of two equal experts is taken is nobody's promise."""
    for name, values in tensors.items():
        if values.ndim > 1:
            tensors[name] = values * np.float32(0.6 / values.shape[-1] ** 0.5)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rewritten("minimax-m3", tmp_path_factory.mktemp("sparse") / "m3.gguf", calm)


@pytest.fixture(scope="module")
def expected(gguf: Path) -> Tensor:
    """Logits of transformers' text class, with what gguf2st makes of the file. (tokens, vocabulary)"""
    folder = gguf.parent / "converted"
    gguf2st.convert(gguf, folder, dtype="float32")
    config = transformers.AutoConfig.from_pretrained(folder).text_config
    model = transformers.MiniMaxM3VLForCausalLM(config).float().eval()
    model.load_state_dict(_as_transformers_has_them(load_file(folder / "model.safetensors"), config.num_local_experts))
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([IDS])).logits[0]
    return logits


def test_the_chosen_blocks_are_those_of_llama_cpp(gguf: Path, expected: Tensor) -> None:
    found = torch.from_numpy(in_child(_logits, gguf, True))
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-2)  # float16 in there; wrong blocks: 0.2


def test_without_its_kernel_llama_cpp_attends_to_all(gguf: Path, expected: Tensor) -> None:
    found = torch.from_numpy(in_child(_logits, gguf, False))
    torch.testing.assert_close(found[:CHOSEN], expected[:CHOSEN], rtol=0, atol=1e-5)
    assert (found - expected)[CHOSEN:].abs().amax(-1).min() > 0.1


def _logits(gguf: Path, flash: bool) -> npt.NDArray[np.float32]:
    with LlamaCpp(gguf, n_ctx=64, n_threads=1, flash=flash) as model:
        return model.logits(IDS)


def _as_transformers_has_them(published: dict[str, Tensor], experts: int) -> dict[str, Tensor]:
    """Names and stacks of transformers' class, which reads the published ones as part of the whole model only."""
    found = {}
    for name, tensor in published.items():
        name = name.replace("block_sparse_moe.e_score", "mlp.gate.e_score").replace("block_sparse_moe", "mlp")
        found[name.replace("self_attn.index_", "self_attn.indexer.")] = tensor
    for name in [n for n in found if n.endswith("experts.0.w1.weight")]:
        stack = name.removesuffix("0.w1.weight")
        w1, w3, w2 = ([found.pop(f"{stack}{e}.{w}.weight") for e in range(experts)] for w in ("w1", "w3", "w2"))
        found[f"{stack}gate_up_proj"] = torch.cat([torch.stack(w1), torch.stack(w3)], 1)
        found[f"{stack}down_proj"] = torch.stack(w2)
    for name in [n for n in found if n.endswith("gate_proj.weight")]:
        up = name.replace("gate_proj", "up_proj")
        found[name.replace("gate_proj", "gate_up_proj")] = torch.cat([found.pop(name), found.pop(up)])
    return found
