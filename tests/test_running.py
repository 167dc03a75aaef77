"""`verify --run`: a checkpoint that runs right passes, and each kind of damage is found by running it."""

import importlib.util
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import gguf2st
from gguf2st.errors import UsageError
from gguf2st.verification.running import check_running
from tests.oracle.tiny import oracle_gguf

Tensors = dict[str, Tensor]
LAYER = "model.layers.1"


def make(case: str, folder: Path, dtype: str) -> Path:
    gguf2st.convert(oracle_gguf(case), folder, dtype=dtype)
    return folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("llama", tmp_path_factory.mktemp("running") / "llama", "float32")


@pytest.fixture
def copy(llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(llama, tmp_path / "copy"))


def change(folder: Path, damage: Callable[[Tensors], None]) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    damage(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


@pytest.mark.oracle
@pytest.mark.parametrize("case", ["llama", "qwen3", "qwen3moe", "gemma3"])
@pytest.mark.parametrize(("dtype", "limit"), [("float32", 1e-3), ("bfloat16", 0.05)])
def test_whole_models_run_and_agree_with_llama_cpp(case: str, dtype: str, limit: float, tmp_path: Path) -> None:
    result = check_running(make(case, tmp_path / case, dtype), gguf2st.open_gguf(oracle_gguf(case)))
    assert result.problems == ()
    assert result.loss is not None
    assert result.difference is not None
    assert 0 <= result.difference < limit


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("case", "kind"),
    [
        ("bert", "BertModel"),
        ("roberta", "RobertaModel"),
        ("modern-bert", "ModernBertModel"),
        ("llama-embed", "LlamaModel"),
        ("t5", "T5ForConditionalGeneration"),
        ("xlm-roberta_classifier", "XLMRobertaForSequenceClassification"),
        ("qwen3_reranker", "Qwen3ForSequenceClassification"),
    ],
)
def test_models_that_write_no_text_are_compared_with_their_own_class(case: str, kind: str, tmp_path: Path) -> None:
    folder = make(case, tmp_path / case, "bfloat16")
    found = gguf2st.verify(folder, model=True, run=True)
    assert found.problems == ()
    assert any(note.startswith(f"{kind} reads a text of ") for note in found.notes)
    change(folder, lambda tensors: tensors[sorted(tensors)[0]].fill_(float("nan")))
    assert check_running(folder).problems != ()
    change(folder, lambda tensors: tensors.pop(sorted(tensors)[0]))
    assert any("nothing fills" in line for line in gguf2st.verify(folder, model=True).problems)


@pytest.mark.real
@pytest.mark.oracle
def test_a_real_model_predicts_english(smollm2: Path, tmp_path: Path) -> None:
    gguf2st.convert(smollm2, tmp_path / "m")
    result = check_running(tmp_path / "m", gguf2st.open_gguf(smollm2))
    assert result.problems == ()
    assert result.loss is not None
    assert result.loss < 3.5
    assert result.difference is not None
    assert 0.01 < result.difference < 0.2, "llama.cpp's 8-bit activations are seen, and nothing more"
    assert "8 bits" in result.notes[-1]


def drop(*names: str) -> Callable[[Tensors], None]:
    def damage(tensors: Tensors) -> None:
        for name in names:
            del tensors[name]

    return damage


def nan(tensors: Tensors) -> None:
    tensors[f"{LAYER}.mlp.up_proj.weight"][3, 5] = torch.nan


def inf(tensors: Tensors) -> None:
    tensors["model.norm.weight"][7] = -torch.inf


def extra(tensors: Tensors) -> None:
    tensors[f"{LAYER}.self_attn.stray.weight"] = torch.ones(2)


def overflow(tensors: Tensors) -> None:
    tensors["lm_head.weight"].fill_(3e38)


def sure_of_nonsense(tensors: Tensors) -> None:
    tensors["lm_head.weight"].mul_(200.0)


DAMAGES = {
    "norm": (drop(f"{LAYER}.input_layernorm.weight"), "lacks.*layers.1.input_layernorm.weight"),
    "k_proj": (drop(f"{LAYER}.self_attn.k_proj.weight"), "lacks.*layers.1.self_attn.k_proj.weight"),
    "lm_head": (drop("lm_head.weight"), "lacks.*lm_head.weight"),
    "embeddings": (drop("model.embed_tokens.weight"), "lacks.*embed_tokens.weight"),
    "NaN": (nan, "NaN in model.layers.1.mlp.up_proj.weight"),
    "Inf": (inf, "Inf in model.norm.weight"),
    "stray tensor": (extra, "does not have.*stray"),
    "overflow": (overflow, "not finite"),
    "sure of nonsense": (sure_of_nonsense, "worse than guessing"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES.keys())
def test_damage_is_found(copy: Path, damage: Callable[[Tensors], None], message: str) -> None:
    change(copy, damage)
    (problem, *_) = check_running(copy).problems
    assert re.search(message, problem), problem


def swap_halves(tensors: Tensors) -> None:
    """What a forgotten un-permutation leaves: the right rows in another order."""
    for layer in range(2):
        q = tensors[f"model.layers.{layer}.self_attn.q_proj.weight"]
        q.copy_(q.unflatten(0, (4, 2, 8)).transpose(1, 2).reshape(q.shape))


def other_activation(folder: Path) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"hidden_act": "gelu"}))


@pytest.mark.oracle
@pytest.mark.parametrize("damage", ["rows", "configuration"])
def test_what_runs_well_but_wrong_differs_from_llama_cpp(copy: Path, damage: str) -> None:
    change(copy, swap_halves) if damage == "rows" else other_activation(copy)
    assert check_running(copy).problems == (), "by itself it looks fine"
    (problem,) = check_running(copy, gguf2st.open_gguf(oracle_gguf("llama"))).problems
    assert "differ from llama.cpp's" in problem


def test_a_folder_that_transformers_cannot_load(copy: Path) -> None:
    (copy / "config.json").write_text('{"model_type": "nothing known"}')
    (problem,) = check_running(copy).problems
    assert "transformers cannot load it" in problem


def test_memory_that_nobody_filled_is_seen(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader that forgets a tensor leaves memory with whatever was there; torch is told to leave NaN there."""
    import transformers

    load = transformers.LlamaForCausalLM.from_pretrained

    def forgetful(*arguments: object, **options: object) -> object:
        model, info = load(*arguments, **options)
        model.lm_head.weight = torch.nn.Parameter(torch.empty(model.lm_head.weight.shape))
        return model, info

    monkeypatch.setattr(transformers.LlamaForCausalLM, "from_pretrained", forgetful)
    assert check_running(copy).problems == ("NaN in lm_head.weight",)
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("option", ["model", "run"])
def test_without_transformers_nothing_is_called_wrong(option: str, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "transformers" else find(name))
    with pytest.raises(UsageError, match=f"--{option} needs transformers") as caught:
        gguf2st.verify(copy, **{option: True})  # type: ignore[arg-type]
    assert "pip install" in caught.value.hint
