"""What `verify` and the report say of transformers is what transformers does: it loads, fails or misreads as told."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as transformers_module
from transformers import CompressedTensorsConfig

import gguf2st
from gguf2st import api
from gguf2st.header import read_header
from gguf2st.verification.limits import planned_limits
from tests.make_gguf import tiny_model
from tests.oracle import compressed
from tests.oracle.compressed import changed
from tests.oracle.terminal import run
from tests.oracle.tiny import oracle_gguf
from tests.test_choice import declared

transformers: Any = transformers_module  # its constructors carry no types
pytestmark = pytest.mark.filterwarnings("ignore:You passed `quantization_config`")

IDS = torch.arange(5, 45)[None]
FINE, FAILS, WRONG = "fine", "fails", "wrong"


@dataclass(frozen=True)
class Case:
    """A packed model, and what becomes of it.

    Attributes:
        repack, arch, qtype: how it is made; the type by the name of a tensor.
        loaded, dequantized: what transformers does with it by default, and told to dequantize.
        notes: what is said of it, each beginning after the names of the libraries.
    """

    repack: str
    arch: str
    qtype: Callable[[str], str]
    loaded: str
    dequantized: str
    notes: tuple[str, ...]


def of(default: str, **by_part: str) -> Callable[[str], str]:
    """The type of a tensor by a part of its name."""
    return lambda name: next((q for part, q in by_part.items() if part in name), default)


CASES: Mapping[str, Case] = {
    "one format": Case("exact", "llama", of("Q4_0"), FINE, FINE, ()),
    "two formats": Case(
        "exact", "llama", of("Q4_0", ffn_down="Q8_0"), FINE, WRONG,
        ("told to dequantize, reads all weights in one format, mostly without a word: wrongly int4 sym g32 and int8",),
    ),
    "zero points": Case(
        "int4", "llama", of("Q4_1"), FAILS, FINE, ("cannot load zero points, unless it is told to dequantize",)
    ),
    "experts": Case("exact", "qwen3moe", of("Q4_0"), FINE, FINE, ()),
    "experts in 16 bits": Case(
        "exact", "qwen3moe", of("Q4_0", _exps="F16"), FAILS, FAILS,
        ("cannot load experts in 16 bits beside packed weights: model.layers.{0..1}.mlp.experts",),
    ),
    "experts with zero points": Case(
        "int4", "qwen3moe", of("Q4_1"), FAILS, FAILS,
        ("cannot load experts with zero points: model.layers.{0..1}.mlp.experts",),
    ),
    "experts of layers that differ": Case(
        "exact", "qwen3moe", lambda name: "Q8_0" if "blk.0." in name else "Q4_0", WRONG, WRONG,
        ("reads all experts as int4 sym g32, without a word: wrongly model.layers.0.mlp.experts",
         "told to dequantize, reads all weights in one format"),
    ),
    "mxfp4": Case("exact", "llama", of("MXFP4"), FAILS, FINE, ("cannot run mxfp4, unless it is told to dequantize",)),
    "nvfp4": Case("exact", "llama", of("NVFP4"), FAILS, FINE, ("cannot run nvfp4, unless it is told to dequantize",)),
    "experts in nvfp4": Case(
        "exact", "qwen3moe", of("NVFP4"), FAILS, FINE, ("cannot run nvfp4, unless it is told to dequantize",)
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _quiet() -> None:
    import logging

    import loguru

    loguru.logger.remove()
    logging.getLogger("compressed_tensors").setLevel(logging.ERROR)


def made(case: Case, folder: Path) -> tuple[Path, Path]:
    """(the source, its conversion)."""
    sizes: dict[str, Any] = {"hidden": 256, "heads": 8, "kv_heads": 4, "head_dim": 32, "ffn": 256, "expert_ffn": 256}
    source = tiny_model(folder / "m.gguf", case.arch, layers=2, tied=False, qtype=case.qtype, **sizes)
    gguf2st.convert(source, folder / "packed", repack=case.repack, threads=1)
    return source, folder / "packed"


def logits(folder: Path, **options: Any) -> torch.Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto", **options)
    with torch.inference_mode():
        return model(IDS).logits.float()  # type: ignore[no-any-return]


def outcome(folder: Path, expected: torch.Tensor, **options: Any) -> str:
    """What transformers does with a folder; float16 costs up to 0.7% here."""
    try:
        found = logits(folder, **options)
    except (RuntimeError, ValueError, AttributeError):
        return FAILS
    return FINE if compressed.relative_rmse(found, expected) < 0.02 else WRONG


def told(notes: tuple[str, ...]) -> list[str]:
    words = "transformers 5.24 with compressed-tensors 0.20 "
    return [note.removeprefix(words) for note in notes if note.startswith(words)]


@pytest.mark.parametrize("name", CASES)
def test_transformers_does_what_is_said_of_it(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    source, packed = made(case, tmp_path)
    planned = gguf2st.convert(source, tmp_path / "out", repack=case.repack, dry_run=True).notes
    for notes in (told(gguf2st.verify(packed).notes), told(planned)):
        assert len(notes) == len(case.notes), notes
        for note, words in zip(notes, case.notes, strict=True):
            assert note.startswith(words)
    compressed.decompress(packed, tmp_path / "dense")
    expected = logits(tmp_path / "dense")
    assert outcome(packed, expected) == case.loaded
    by_dequantizing = CompressedTensorsConfig(dequantize=True)
    assert outcome(packed, expected, quantization_config=by_dequantizing) == case.dequantized


def test_experts_in_nvfp4_with_a_scale(tmp_path: Path) -> None:
    _, packed = made(CASES["experts in nvfp4"], tmp_path)

    def scale(tensors: compressed.Tensors, config: compressed.Config) -> None:
        for name in tensors:
            if name.endswith("weight_global_scale"):
                tensors[name] = torch.tensor([4.0])

    packed = changed(packed, tmp_path, scale)
    assert told(gguf2st.verify(packed).notes)[-1].startswith(
        "told to dequantize, misreads experts whose weight_global_scale is not 1: model.layers.{0..1}.mlp.experts"
    )
    compressed.decompress(packed, tmp_path / "dense")
    expected = logits(tmp_path / "dense")
    assert outcome(packed, expected, quantization_config=CompressedTensorsConfig(dequantize=True)) == WRONG


@pytest.mark.oracle
def test_classes_that_it_does_not_load() -> None:
    """Of which tests/test_repack_families.py loads one each."""
    for case, words in (("t5", "cannot run T5ForConditionalGeneration packed"), ("kimi_linear", "cannot load Kimi")):
        header = declared(read_header([oracle_gguf(case)]), lambda name: "Q4_0")
        assert told(tuple(planned_limits(api.make_plan(header, repack="exact"))))[0].startswith(words)


def test_convert_prints_them(tmp_path: Path) -> None:
    """Experts whose layers differ load in transformers without a message, and answer garbage."""
    case = CASES["experts of layers that differ"]
    source, _ = made(case, tmp_path)
    done = run("convert", source, "-o", tmp_path / "out", "--repack", "exact")
    assert done.code == 0
    assert "note: transformers 5.24 with compressed-tensors 0.20 reads all experts as int4 sym g32" in done.out
