"""`convert --repack` over the families: transformers finds every packed weight under the name it has for it, and loads
the same model as from the same weights unpacked.

What transformers 5.24 cannot load, whatever config.json says, stands here by name.
"""

import logging
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import loguru
import pytest
import torch
import transformers as transformers_module
from compressed_tensors.utils.match import match_name
from transformers.conversion_mapping import get_checkpoint_conversion_mapping
from transformers.core_model_loading import WeightRenaming

import gguf2st
from gguf2st import api
from gguf2st.config.quantization import quantization_config
from gguf2st.config.transformers_modules import renamed
from gguf2st.header import read_header
from gguf2st.plan import DENSE
from tests.oracle import compressed, repacked
from tests.oracle.cases import CASES
from tests.oracle.rewrite import requantized
from tests.oracle.tiny import oracle_gguf
from tests.test_choice import declared

transformers: Any = transformers_module  # its constructors carry no types
pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore:You passed `quantization_config`")]

IDS = torch.arange(5, 45)[None]
PLAIN = [name for name, case in CASES.items() if not case.weights and not name.endswith("_mtp")]
FAMILIES = list({CASES[name].config: name for name in sorted(PLAIN, key=lambda name: (-len(name), name))}.values())
"""One case for each class of transformers: that of the shortest name, wherever it stands."""

CONVERSION = "issues during automatic conversion of the weights"
FAILS: Mapping[str, tuple[type[Exception], str]] = {
    **dict.fromkeys(
        ("falcon_7b", "mamba2", "modern-bert", "starcoder", "t5", "umt5"), (AttributeError, "no attribute 'weight'")
    ),
    "bailingmoe3": (RuntimeError, CONVERSION),
    "hrm_text": (ValueError, "gate_up_proj.weight_packed"),
    "hy_v4": (RuntimeError, "expected m1 and m2 to have the same dtype"),
    "jina-bert-v3": (AssertionError, "missing_keys"),
    "kimi_linear": (RuntimeError, CONVERSION),
    "llama4": (AssertionError, "missing_keys"),
    "sarvam": (AssertionError, "missing_keys"),
}
"""Case -> how transformers fails to load it packed; gguf2st/verification/limits.py says why."""

OTHERWISE: Mapping[str, float] = {"jamba": 0.01}
"""Case -> relative rmse of its logits. Its code adds a bias in another place where a model is quantized."""

OTHER_NAMES = frozenset({"deepseek4", "hrm_text"})
"""transformers renames or splits their weights as it loads them, but not the parts of packed ones."""

FLOAT32_FAILS = frozenset({"deepseek4"})
"""transformers multiplies their float32 parameters with 16-bit ones, packed or not."""


@pytest.fixture(autouse=True)
def _quiet() -> None:
    loguru.logger.remove()
    logging.getLogger("compressed_tensors").setLevel(logging.ERROR)


def sampled(names: list[str], *quick: str) -> list[Any]:
    """All of `names`; those that are not `quick` only when slow tests are asked for."""
    assert set(quick) <= set(names)
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize(
    "name",
    sampled(FAMILIES, "bailingmoe3", "exaone", "hy_v3", "hy_v4", "laguna", "t5", "qwen3next", "gemma3n", "qwen35"),
)
def test_targets_hold_for_the_names_that_transformers_gives(name: str) -> None:
    """It renames weights of some models as it loads them, and fills what it then does not find with random numbers."""

    def qtype(tensor: str) -> str:
        return ("Q4_0", "Q8_0", "F32")[zlib.crc32(tensor.encode()) % 3]

    if name in OTHER_NAMES:
        pytest.skip("transformers does not load it packed, under whatever names")
    plan = api.make_plan(declared(read_header([oracle_gguf(name)]), qtype), repack="exact")
    table = quantization_config(plan)
    if "config_groups" not in table:
        pytest.skip("nothing can be packed here, or only as gpt-oss has it")
    mapping = get_checkpoint_conversion_mapping(plan.config["model_type"]) or []
    renamings = [step for step in mapping if isinstance(step, WeightRenaming)]
    for e in plan.entries:
        if e.name.endswith(".weight") and len(e.shape) > 1:
            weight = e.name
            for step in renamings:
                weight = step.rename_source_key(weight)[0]
            module = weight.removesuffix(".weight")
            groups = table["config_groups"].items()
            found = [group for group, row in groups if any(match_name(module, t) for t in row["targets"])]
            assert found == ([] if e.scheme == DENSE else [e.scheme]), f"{e.module}, in transformers {module}"


def test_modules_that_keep_their_names() -> None:
    assert renamed("ExaoneForCausalLM", "lm_head") == "lm_head"
    assert renamed("ExaoneForCausalLM", "transformer.h.3.attn.attention.q_proj") == "model.layers.3.self_attn.q_proj"
    assert renamed("LlamaForCausalLM", "transformer.h.3.mlp.c_fc_0") == "transformer.h.3.mlp.c_fc_0"


@pytest.mark.parametrize(
    "name",
    sampled(FAMILIES, "exaone", "hy_v3", "bert", "qwen3next", "gemma3n", "mamba2", "minicpm3", "bailingmoe3", "laguna"),
)
def test_transformers_loads_what_was_packed(name: str, tmp_path: Path) -> None:
    """Layers that differ, but in their experts, which transformers reads all alike."""
    shapes = {t.name: tuple(int(n) for n in reversed(t.shape)) for t in gguf.GGUFReader(oracle_gguf(name)).tensors}

    def qtype(tensor: str) -> str:
        if not tensor.endswith(".weight") or "conv" in tensor or shapes[tensor][-1] % 32:
            return ""
        return "Q8_0" if "blk.0." in tensor and ("attn_v" in tensor or "ffn_down." in tensor) else "Q4_0"

    source = requantized(oracle_gguf(name), tmp_path / "m.gguf", qtype)
    report = gguf2st.convert(source, tmp_path / "packed", repack="exact", threads=1)
    tensors = repacked.stored(tmp_path / "packed")
    modules = {n.removesuffix(".weight_packed") for n in tensors if n.endswith(".weight_packed")}
    if not modules:
        assert any("finds nothing to pack: dequantized: " in note for note in report.notes), report.notes
        return
    assert repacked.groups(tmp_path / "packed").keys() == modules
    assert repacked.untargeted(tmp_path / "packed") == set()
    verification = gguf2st.verify(tmp_path / "packed", source)
    verification.require_ok()
    if name in FLOAT32_FAILS:
        return
    limited = any("cannot" in note for note in verification.notes)
    gguf2st.convert(source, tmp_path / "dense", dtype=report.dtype, threads=1)
    dense_experts = any(re.search(r"\.experts\.\d+\.\w+\.weight$", n) for n in tensors)
    if name in FAILS or dense_experts:
        error, words = FAILS.get(name, (RuntimeError, CONVERSION))
        with pytest.raises(error, match=words):
            output(name, tmp_path / "packed")
        assert limited
        return
    assert not limited, verification.notes
    found, expected = output(name, tmp_path / "packed"), output(name, tmp_path / "dense")
    # Scales are exact in float16; in bfloat16 they are rounded by up to 0.4%.
    assert compressed.relative_rmse(found, expected) <= OTHERWISE.get(name, 0.0 if report.dtype == "float16" else 0.04)


@pytest.mark.parametrize("name", sampled(FAMILIES, "qwen3next", "gemma3n", "laguna", "t5"))
def test_what_loses_something_is_within_its_bound(name: str, tmp_path: Path) -> None:
    """Types of K-quants where rows are long enough, else with a minimum or five bits; by compressed-tensors."""
    shapes = {t.name: tuple(int(n) for n in reversed(t.shape)) for t in gguf.GGUFReader(oracle_gguf(name)).tensors}

    def qtype(tensor: str) -> str:
        if not tensor.endswith(".weight") or "conv" in tensor or shapes[tensor][-1] % 32:
            return ""
        some = zlib.crc32(tensor.encode()) % 4
        return (
            ("Q4_1", "Q5_1", "Q4_1", "Q8_0")[some]
            if shapes[tensor][-1] % 256
            else ("Q4_K", "Q6_K", "Q5_K", "Q3_K")[some]
        )

    source = requantized(oracle_gguf(name), tmp_path / "m.gguf", qtype)
    report = gguf2st.convert(source, tmp_path / "packed", repack="near", threads=1)
    gguf2st.verify(tmp_path / "packed", source).require_ok()
    if "quantization_config" not in repacked.config_of(tmp_path / "packed"):
        assert any("finds nothing to pack: dequantized: " in note for note in report.notes), report.notes
        return
    found = repacked.weights(tmp_path / "packed")
    assert found
    gguf2st.convert(source, tmp_path / "dense", dtype="float32", threads=1)
    expected = repacked.stored(tmp_path / "dense")
    for weight, values in found.items():
        assert compressed.relative_rmse(values, expected[weight]) <= 0.01, weight


def output(name: str, folder: Path) -> torch.Tensor:
    """Logits, or what an encoder makes of each token. (batch, tokens, width)"""
    case = CASES[name]
    model, info = getattr(transformers, case.auto).from_pretrained(
        folder, dtype="auto", output_loading_info=True, **case.arguments
    )
    assert not any(info.values()), info
    with torch.inference_mode():
        found = model(IDS, decoder_input_ids=IDS) if hasattr(model, "decoder") else model(IDS)
    return (found.logits if "logits" in found else found.last_hidden_state).float()  # type: ignore[no-any-return]
