"""Configuration values of a wrong type are refused by name: as transformers' own classes refuse them, without them."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers as transformers_module
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import gguf2st
from gguf2st.verification.config_types import wrong_values
from tests.make_gguf import tiny_model

transformers: Any = transformers_module  # its constructors carry no types

ROOT = Path(__file__).resolve().parent.parent
VALUES = (None, True, 3, 2.5, "576", [4], {"a": 1})
CLASSES = (
    "LlamaConfig",
    "Qwen3MoeConfig",
    "Gemma3TextConfig",
    "GPT2Config",
    "DeepseekV3Config",
    "MambaConfig",
    "BertConfig",
)


def defaults(config: Any) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    return values


@pytest.mark.parametrize("name", CLASSES)
def test_the_verdict_is_transformers_own(name: str) -> None:
    """Every value of VALUES for every key that a class shares with others."""
    kind = getattr(transformers, name)
    config = defaults(kind())
    table = json.loads((ROOT / "gguf2st/verification/config_types.json").read_text())["types"]
    seen = 0
    own = {f.name for f in dataclasses.fields(kind) if not isinstance(f.type, str)}  # what it looks at
    for key in own & config.keys() & table.keys():
        for value in VALUES:
            try:
                kind(**{key: value})
                refused = False
            except Exception as err:
                refused = "TypeError" in str(err) and f"'{key}'" in str(err)
                if not refused:
                    continue  # right in type, wrong in another way
            if "list" in table[key] and value in (True, [4]):
                continue  # where a list may stand, they take true for the number 1, and look into the list
            found = list(wrong_values(config | {key: value}))
            assert bool(found) == refused, (key, value, found)
            assert all(key in line for line in found)
            seen += refused
    assert seen > 50


def test_no_class_of_transformers_refuses_its_own_defaults() -> None:
    seen = 0
    for model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        try:
            config = transformers.models.auto.configuration_auto.CONFIG_MAPPING[model_type]()
        except Exception:  # some cannot be built without arguments
            continue
        seen += 1
        assert list(wrong_values(defaults(config))) == [], model_type
    assert seen > 150


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("hidden_size", "576", 'hidden_size = "576", not a whole number'),
        ("hidden_size", True, "hidden_size = true, not a whole number"),
        ("hidden_size", None, "hidden_size = null, not a whole number"),
        ("hidden_size", 64.0, "hidden_size = 64.0, not a whole number"),
        ("hidden_size", -1, "hidden_size = -1"),
        ("num_hidden_layers", [2], r"num_hidden_layers = [2], not a whole number"),
        ("rms_norm_eps", "1e-6", 'rms_norm_eps = "1e-6", not a number'),
        ("tie_word_embeddings", "false", 'tie_word_embeddings = "false", not true or false'),
        ("hidden_act", None, "hidden_act = null, not a text"),
        ("architectures", "LlamaForCausalLM", 'architectures = "LlamaForCausalLM", not a list'),
    ],
)
def test_verify_needs_no_source_to_refuse_them(key: str, value: Any, words: str, tmp_path: Path) -> None:
    gguf2st.convert(tiny_model(tmp_path / "m.gguf"), tmp_path / "out")
    file = tmp_path / "out/config.json"
    config = json.loads(file.read_text())
    assert gguf2st.verify(tmp_path / "out").ok
    file.write_text(json.dumps(config | {key: value}))
    assert any(words in problem for problem in gguf2st.verify(tmp_path / "out").problems), words


def test_models_that_transformers_does_not_know_and_nested_ones() -> None:
    assert list(wrong_values({"model_type": "nemotron-nas", "hidden_size": 8192, "num_key_value_heads": None})) == []
    assert list(wrong_values({"model_type": "nemotron-nas", "hidden_size": "8192"})) == [
        'config.json says hidden_size = "8192", not a number'
    ]
    nested = {"model_type": "x", "text_config": {"model_type": "llama", "vocab_size": "1"}}
    assert list(wrong_values(nested)) == ['config.json says text_config.vocab_size = "1", not a whole number']


def test_the_table_is_what_its_script_reads(tmp_path: Path) -> None:
    code = "import runpy, pathlib, sys; m = runpy.run_path('scripts/read_config_types.py'); "
    code += "m['main'].__globals__['TARGET'] = pathlib.Path(sys.argv[1]); m['main']()"
    target = tmp_path / "table.json"
    run = subprocess.run(
        [sys.executable, "-c", code, str(target)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    here = json.loads((ROOT / "gguf2st/verification/config_types.json").read_text())
    if here["transformers"] == transformers.__version__:
        assert json.loads(target.read_text()) == here
