"""One metadata key of a file changed or taken out: logits as llama.cpp's, a note where they differ, or one clear line.

Above all a 0, which is none for some keys, a number for others, and nonsense for the rest.
"""

import ast
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as transformers_module

import gguf2st
from gguf2st import config
from gguf2st.errors import Gguf2stError
from gguf2st.header import read_header
from gguf2st.plan.build import build
from tests.oracle import logits
from tests.oracle.cases import CASES
from tests.oracle.rewrite import Metadata, Tensors, rewritten
from tests.oracle.tiny import prepare

transformers: Any = transformers_module  # its constructors carry no types
pytestmark = pytest.mark.oracle

IDS = list(range(5, 45))
GONE = None
ZERO, NONE = np.uint32(0), np.float32(0)


def keys(arch: str, **changes: Any) -> dict[str, Any]:
    """`a__b` for arch.a.b."""
    return {f"{arch}.{key.replace('__', '.')}": value for key, value in changes.items()}


SAME: dict[str, tuple[str, dict[str, Any]]] = {
    "no group is used": ("deepseek_v3", keys("deepseek2", expert_group_used_count=ZERO)),
    "no groups": ("deepseek_v3", keys("deepseek2", expert_group_count=ZERO)),
    "no group is used, GLM 4.7 Flash": ("glm4_moe_lite", keys("deepseek2", expert_group_used_count=ZERO)),
    "no group is used, GLM 4": ("glm4moe", keys("glm4moe", expert_group_used_count=ZERO)),
    "no groups, GLM 4": ("glm4moe", keys("glm4moe", expert_group_count=ZERO)),
    "no group is used, dots": ("dots1", keys("dots1", expert_group_used_count=ZERO)),
    "no group is used, Solar": ("solar_open", keys("glm4moe", expert_group_used_count=ZERO)),
    "no group is used, GLM 5": ("glm_dsa", keys("glm-dsa", expert_group_used_count=ZERO)),
    "MiniCPM's embeddings as they are": ("minicpm", keys("minicpm", embedding_scale=NONE)),
    "MiniCPM's residuals as they are": ("minicpm", keys("minicpm", residual_scale=NONE)),
    "Granite's embeddings as they are": ("granite", keys("granite", embedding_scale=NONE)),
    "Granite's residuals as they are": ("granite", keys("granite", residual_scale=NONE)),
    "Granite's usual scores": ("granite", keys("granite", attention__scale=NONE)),
    "Granite's usual scores, not in the file": ("granite", keys("granite", attention__scale=GONE)),
    "HRM's embeddings as they are": ("hrm_text", keys("hrm-text", embedding_scale=NONE)),
    "Laguna's experts as they are": ("laguna", keys("laguna", expert_weights_scale=NONE)),
    "Kimi's experts as they are": ("kimi_linear", keys("kimi-linear", expert_weights_scale=NONE)),
    "Nemotron's experts as they are": ("nemotron_h_moe", keys("nemotron_h_moe", expert_weights_scale=NONE)),
    "Cohere 2's logits as they are": ("cohere2", keys("cohere2", logit_scale=NONE)),
    "Command R's logits as they are": ("command_r", keys("command-r", logit_scale=NONE)),
    "Command R's logits, not in the file": ("command_r", keys("command-r", logit_scale=GONE)),
    "North's logits as they are": ("cohere2moe", keys("cohere2moe", logit_scale=NONE)),
    "a window in every layer": (
        "gemma3",
        keys("gemma3", attention__sliding_window=np.uint32(5), attention__sliding_window_pattern=ZERO),
    ),
    "a window of 0": ("gemma3", keys("gemma3", attention__sliding_window=ZERO)),
    "no window": ("gemma3", keys("gemma3", attention__sliding_window=GONE)),
    "North's first of four layers is full": (
        "cohere2moe",
        keys("cohere2moe", attention__sliding_window=np.uint32(5), attention__sliding_window_pattern=GONE),
    ),
    "yarn over the model's context": ("llama_yarn", keys("llama", rope__scaling__original_context_length=GONE)),
    "weights of experts are normalised": ("qwen3moe", keys("qwen3moe", expert_weights_norm=True)),
}
"""What it says -> case of the oracle and keys of its file, with which transformers must compute what llama.cpp does."""

REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "more groups than there are": (
        "deepseek_v3",
        keys("deepseek2", expert_group_count=np.uint32(2), expert_group_used_count=np.uint32(3)),
        "expert_group_used_count is 3; a number from 1 to 2",
    ),
    "none of two groups": (
        "deepseek_v3",
        keys("deepseek2", expert_group_count=np.uint32(2), expert_group_used_count=ZERO),
        "expert_group_used_count is 0; a number from 1 to 2",
    ),
    # inf * 0 in llama.cpp, which divides by it whatever it is: gemma2.cpp:167 and gemma3n.cpp:306
    "logits capped at 0": ("gemma2", keys("gemma2", final_logit_softcapping=NONE), "capped at 0"),
    "scores capped at 0": ("gemma2", keys("gemma2", attn_logit_softcapping=NONE), "capped at 0"),
    "logits capped at 0, Gemma 3n": ("gemma3n", keys("gemma3n", final_logit_softcapping=NONE), "capped at 0"),
    "logits divided by 0": ("granite", keys("granite", logit_scale=NONE), "logits are divided by 0"),
    "logits divided by 0, MiniCPM": ("minicpm", keys("minicpm", logit_scale=NONE), "logit_scale is 0"),
    # llama-hparams.h: is_masked_swa masks every token, itself included, where p1 - p0 >= n_swa
    "a window of 0, Gemma 2": ("gemma2", keys("gemma2", attention__sliding_window=ZERO), "missing or 0"),
    "a window of 0, Cohere 2": ("cohere2", keys("cohere2", attention__sliding_window=ZERO), "missing or 0"),
    "a window of 0, Gemma 4": ("gemma4", keys("gemma4", attention__sliding_window=ZERO), "missing or 0"),
    "a window of 0, gpt-oss": ("gpt_oss", keys("gpt-oss", attention__sliding_window=ZERO), "missing or 0"),
    "a window of 0, Granite": ("granite_swa", keys("granite_swa", attention__sliding_window=ZERO), "missing or 0"),
    "nothing clamped": ("dbrx", keys("dbrx", attention__clamp_kqv=NONE), "clamp_kqv is missing or 0"),
    "yarn from 0 turns": (
        "ministral3",
        keys("mistral3", rope__scaling__yarn_beta_fast=NONE),
        "yarn_beta_fast is 0.0; it must be a positive number",
    ),
    "yarn to 0 turns": (
        "ministral3",
        keys("mistral3", rope__scaling__yarn_beta_slow=NONE),
        "yarn_beta_slow is 0.0; it must be a positive number",
    ),
    "yarn over a base of 1": ("llama_yarn", keys("llama", rope__freq_base=np.float32(1)), "a number above 1"),
    "a share of all experts": (
        "cohere2moe",
        keys("cohere2moe", expert_gating_func=np.uint32(1), expert_weights_norm=False),
        "softmax of all experts, not of those chosen",
    ),
    "experts that add up to less": (
        "qwen3moe",
        keys("qwen3moe", expert_weights_norm=False),
        "weights of experts are not normalised",
    ),
    # llama-batch.cpp:129: a token of a text has the positions [p, p, p, 0]
    "a fourth axis": (
        "qwen35",
        keys("qwen35", rope__dimension_sections=[11, 11, 6, 4]),
        "a part of a head has no position in a text",
    ),
}
"""What it says -> case, keys, and words of the line that refuses it."""

NOTED: dict[str, tuple[str, dict[str, Any], str]] = {
    # minicpm.cpp:7 has 256 / n_embd, by which granite.cpp divides
    "MiniCPM without its last factor": (
        "minicpm",
        keys("minicpm", logit_scale=GONE),
        "logits_scaling = 0.25 is assumed: MiniCPM 1B and 2B have it; llama.cpp takes its reciprocal",
    ),
    # mpt's build_alibi_tensor is called without the maximum in transformers' modeling_mpt.py
    "slopes that only vLLM follows": ("mpt", keys("mpt", attention__max_alibi_bias=np.float32(16)), "always takes 8"),
    # llama.cpp's llama.cpp and deepseek2.cpp read none of these keys; grok.cpp and mistral3.cpp do
    "yarn's own factor": (
        "llama_yarn",
        keys("llama", rope__scaling__yarn_attn_factor=np.float32(1.3)),
        "attention_factor = 1.3 of yarn: the file says so; but for Grok and Mistral 3, llama.cpp runs it with "
        "attention_factor = 1",
    ),
    "yarn's own bounds": (
        "deepseek_v3_yarn",
        keys("deepseek2", rope__scaling__yarn_beta_fast=np.float32(16)),
        "llama.cpp runs it with beta_fast = 32",
    ),
    "yarn that DeepSeek's scores do not follow": (
        "deepseek_v3_yarn",
        keys("deepseek2", rope__scaling__yarn_log_multiplier=GONE),
        "llama.cpp scales the whole of each score",
    ),
    "longrope without its factor": (
        "phi_3_longrope",
        keys("phi3", rope__scaling__attn_factor=GONE),
        "llama.cpp takes 1",
    ),
}
"""What it says -> case, keys, and words of the note that says that llama.cpp computes something else."""


@pytest.fixture(scope="module", autouse=True)
def prepared() -> None:
    """All checkpoints at once: the start of the converter costs more than the conversions."""
    assert not prepare(sorted({case for case, *_ in (*SAME.values(), *REFUSED.values(), *NOTED.values())}))


def changed(case: str, changes: dict[str, Any], target: Path) -> Path:
    def edit(metadata: Metadata, tensors: Tensors) -> None:
        for key, value in changes.items():
            if value is GONE:
                del metadata[key]
            else:
                metadata[key] = value

    return rewritten(case, target, edit)


@pytest.mark.parametrize("what", SAME)
def test_llama_cpp_computes_the_same(tmp_path: Path, what: str) -> None:
    case, changes = SAME[what]
    path = changed(case, changes, tmp_path / "x.gguf")
    gguf2st.convert(path, tmp_path / "out", dtype="float32")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    with torch.inference_mode():
        found = model(input_ids=torch.tensor([IDS])).logits[0]
    expected = torch.from_numpy(logits.compute(path, IDS))
    torch.testing.assert_close(found, expected, rtol=0, atol=CASES[case].tolerance)


@pytest.mark.parametrize("what", REFUSED)
def test_nonsense_is_refused(tmp_path: Path, what: str) -> None:
    case, changes, words = REFUSED[what]
    with pytest.raises(Gguf2stError) as caught:
        gguf2st.convert(changed(case, changes, tmp_path / "x.gguf"), tmp_path / "out")
    assert words in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("what", NOTED)
def test_what_llama_cpp_computes_otherwise_is_said(tmp_path: Path, what: str) -> None:
    case, changes, words = NOTED[what]
    assert any(words in note for note in build(read_header([changed(case, changes, tmp_path / "x.gguf")])).notes)
    assert not any(words in note for note in build(read_header([changed(case, {}, tmp_path / "y.gguf")])).notes)


def test_biases_of_all_but_the_output_projection(tmp_path: Path) -> None:
    """Llama's class has all four or none: zeros are written for the one that is missing."""

    def edit(metadata: Metadata, tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith("attn_output.bias")]:
            del tensors[name]

    path = rewritten("llama_bias", tmp_path / "x.gguf", edit)
    gguf2st.convert(path, tmp_path / "out", dtype="float32")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    with torch.inference_mode():
        found = model(input_ids=torch.tensor([IDS])).logits[0]
    expected = torch.from_numpy(logits.compute(path, IDS))
    torch.testing.assert_close(found, expected, rtol=0, atol=CASES["llama_bias"].tolerance)


def functions() -> list[Callable[..., Any]]:
    return [function.fn for function in config.FUNCTIONS.values()]


def test_no_function_takes_a_number_of_the_file_for_absent() -> None:
    """`scope.get(key) or default` would take the default for 0: `given` and `nonzero` say which is meant."""
    modules = sorted({Path(inspect.getfile(fn)) for fn in functions()})
    assert len(modules) > 20
    found = [
        f"{module.name}:{node.lineno}"
        for module in modules
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or)
        if any(isinstance(x, ast.Call) and ast.unparse(x.func) == "scope.get" for x in node.values[:-1])
    ]
    assert found == []
