"""transformers with compressed-tensors loads packed checkpoints as it loads the same weights unpacked.

What it cannot load, or loads wrongly, stands here too: the notes of `verify` say so to users.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import loguru
import numpy as np
import pytest
import torch
import transformers as transformers_module
from transformers.utils.quantization_config import CompressedTensorsConfig

import gguf2st
from gguf2st.quants.layout import TYPES
from tests.make_gguf import tiny_model
from tests.oracle import compressed, ggml
from tests.oracle.rewrite import requantized
from tests.oracle.tiny import oracle_gguf

transformers: Any = transformers_module  # its constructors carry no types

pytestmark = pytest.mark.filterwarnings("ignore:You passed `quantization_config`")

IDS = torch.arange(5, 45)[None]


@pytest.fixture(autouse=True)
def _quiet() -> None:
    loguru.logger.remove()
    logging.getLogger("compressed_tensors").setLevel(logging.ERROR)


def source(path: Path, arch: str, qtype: Callable[[str], str]) -> Path:
    return tiny_model(path, arch, qtype=qtype, tied=False)


def logits(folder: Path, *, dequantize: bool = False) -> torch.Tensor:
    more = {"quantization_config": CompressedTensorsConfig(dequantize=True)} if dequantize else {}
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype="auto", output_loading_info=True, **more
    )
    assert not any(info.values()), info
    with torch.inference_mode():
        return model(IDS).logits.float()  # type: ignore[no-any-return]


def converted(tmp_path: Path, arch: str, qtype: Callable[[str], str], repack: str) -> tuple[Path, Path]:
    """(packed, dense) checkpoints of one model, verified."""
    src = source(tmp_path / "m.gguf", arch, qtype)
    gguf2st.convert(src, tmp_path / "packed", repack=repack)
    gguf2st.verify(tmp_path / "packed", src, model=True).require_ok()
    dtype = str(transformers.AutoConfig.from_pretrained(tmp_path / "packed").dtype).removeprefix("torch.")
    gguf2st.convert(src, tmp_path / "dense", dtype=dtype)
    return tmp_path / "packed", tmp_path / "dense"


def all_in(qtype: str) -> Callable[[str], str]:
    return lambda name: qtype


def experts_in(first: str, other: str) -> Callable[[str], str]:
    return lambda name: first if "ffn" in name else other


@pytest.mark.parametrize("arch", ["llama", "qwen3moe"])
@pytest.mark.parametrize(
    ("qtype", "scheme"), [("Q4_0", "int4_g32"), ("Q8_0", "int8_g32"), ("Q5_0", "int8_g32"), ("IQ4_NL", "int8_g32")]
)
def test_exact_integers(arch: str, qtype: str, scheme: str, tmp_path: Path) -> None:
    """Code times scale, rounded to float16, is what the dense conversion writes: the same logits to the last bit."""
    packed, dense = converted(tmp_path, arch, all_in(qtype), "exact")
    assert compressed.groups(packed) == {scheme}
    assert torch.equal(logits(packed), logits(dense))
    assert torch.equal(logits(packed, dequantize=True), logits(dense))


@pytest.mark.parametrize("arch", ["llama", "qwen3moe"])
def test_requantized_to_8_bits(arch: str, tmp_path: Path) -> None:
    packed, dense = converted(tmp_path, arch, all_in("Q4_1"), "near")
    assert compressed.groups(packed) == {"int8_g32"}
    exact = logits(dense)
    assert 0 < compressed.relative_rmse(logits(packed), exact) < 0.02
    unpacked = compressed.decompress(packed, tmp_path / "unpacked")
    assert compressed.relative_rmse(logits(packed), logits(unpacked)) < 0.005


@pytest.mark.parametrize("first", ["Q4_0", "Q8_0"])
@pytest.mark.parametrize("arch", ["llama", "qwen3moe"])
def test_two_formats_in_one_checkpoint(arch: str, first: str, tmp_path: Path) -> None:
    """transformers reads all experts in the format of one config group: it must be theirs."""
    other = {"Q4_0": "Q8_0", "Q8_0": "Q4_0"}[first]
    packed, dense = converted(tmp_path, arch, experts_in(first, other), "exact")
    assert compressed.groups(packed) == {"int4_g32", "int8_g32"}
    assert torch.equal(logits(packed), logits(dense))


def test_zero_points_are_loaded_where_all_is_dequantized(tmp_path: Path) -> None:
    packed, _ = converted(tmp_path, "llama", all_in("Q4_1"), "int4")
    assert compressed.groups(packed) == {"int4_asym_g32"}
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        logits(packed)
    unpacked = compressed.decompress(packed, tmp_path / "unpacked")
    assert compressed.relative_rmse(logits(packed, dequantize=True), logits(unpacked)) < 0.005


def fp4_source(path: Path, arch: str, qtype: str) -> Path:
    """A model whose projections are in an FP4 type, by ggml's quantizer; NVFP4 scales stay clear of NaN."""
    plain = tiny_model(path.with_suffix(".plain"), arch, qtype="F32", tied=False, hidden=128, ffn=128, expert_ffn=64)
    tensors = {}
    for tensor in gguf.GGUFReader(plain).tensors:
        shape = tuple(int(n) for n in reversed(tensor.shape))
        if tensor.name.startswith("blk.") and len(shape) > 1 and "gate_inp" not in tensor.name:
            values = np.array(tensor.data, np.float32).reshape(-1, TYPES[qtype].block)
            tensors[tensor.name] = ggml.quantize(TYPES[qtype].id, values), qtype, shape
    return tiny_model(path, arch, qtype="F32", tied=False, hidden=128, ffn=128, expert_ffn=64, extra_tensors=tensors)


@pytest.mark.parametrize(
    ("arch", "qtype", "scheme"),
    [("llama", "MXFP4", "mxfp4"), ("qwen3moe", "MXFP4", "mxfp4"), ("llama", "NVFP4", "nvfp4")],
)
def test_fp4_is_loaded_where_all_is_dequantized(arch: str, qtype: str, scheme: str, tmp_path: Path) -> None:
    src = fp4_source(tmp_path / "m.gguf", arch, qtype)
    gguf2st.convert(src, tmp_path / "packed", repack="exact")
    result = gguf2st.verify(tmp_path / "packed", src, model=True)
    result.require_ok()
    assert compressed.groups(tmp_path / "packed") == {scheme}
    assert all(loss.equal == loss.weights for loss in result.losses)
    dtype = str(transformers.AutoConfig.from_pretrained(tmp_path / "packed").dtype).removeprefix("torch.")
    gguf2st.convert(src, tmp_path / "dense", dtype=dtype)
    found, expected = logits(tmp_path / "packed", dequantize=True), logits(tmp_path / "dense")
    assert compressed.relative_rmse(found, expected) < 0.005


@pytest.mark.oracle
def test_gpt_oss_in_its_own_layout(tmp_path: Path) -> None:
    src = requantized(
        oracle_gguf("gpt_oss"), tmp_path / "m.gguf", lambda n: "MXFP4" if n.endswith("exps.weight") else ""
    )
    gguf2st.convert(src, tmp_path / "packed", repack="exact")
    result = gguf2st.verify(tmp_path / "packed", src, model=True, run=True)
    result.require_ok()
    assert [(loss.format, loss.weights, loss.equal) for loss in result.losses] == [("gpt-oss", 4, 4)]
    gguf2st.convert(src, tmp_path / "dense", dtype="bfloat16")
    assert torch.equal(logits(tmp_path / "packed"), logits(tmp_path / "dense"))
