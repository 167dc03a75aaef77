"""Files of GPT-2's generation and of encoders that the converter of today does not write, or that maps must refuse."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as transformers_module
from safetensors.torch import load_file
from torch import Tensor

import gguf2st
from gguf2st.errors import MapError
from gguf2st.header import read_header
from gguf2st.plan.build import build
from tests.oracle.case import Case
from tests.oracle.rewrite import Metadata, Tensors, rewritten
from tests.oracle.tiny import original, run_converter, write_checkpoint

transformers: Any = transformers_module  # its constructors carry no types
pytestmark = pytest.mark.oracle

IDS = torch.arange(5, 45)[None]


def converted(path: Path, folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and config.json."""
    gguf2st.convert(path, folder, dtype="float32")
    return load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize(
    ("case", "embedding"),
    [("gpt2", "wte"), ("bloom", "word_embeddings"), ("mpt", "wte")],
)
def test_older_files_hold_the_embedding_twice(case: str, embedding: str, tmp_path: Path) -> None:
    def edit(_: Metadata, tensors: Tensors) -> None:
        tensors["output.weight"] = tensors["token_embd.weight"].copy()

    found, config = converted(rewritten(case, tmp_path / "twice.gguf", edit), tmp_path / "out")
    assert torch.equal(found["lm_head.weight"], found[f"transformer.{embedding}.weight"])
    assert config["tie_word_embeddings"] is False
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    before = transformers.AutoModelForCausalLM.from_pretrained(original(case)).eval()
    with torch.inference_mode():
        assert torch.equal(model(IDS).logits, before(IDS).logits)


def test_distilbert_becomes_a_bert_without_token_types(tmp_path: Path) -> None:
    options = {"hidden_dim": 128, "intermediate_size": 128, "num_hidden_layers": 3}
    absent = {"num_key_value_heads": None, "tie_word_embeddings": True}
    case = Case("DistilBertConfig", {**absent, **options}, tokenizer="wpm", auto="AutoModel")
    write_checkpoint(case, tmp_path / "distilbert")
    target = tmp_path / "distilbert.gguf"
    job = {"source": str(tmp_path / "distilbert"), "target": str(target), "flags": [], "hparams": {}}
    assert run_converter([job]) == {}
    found, config = converted(target, tmp_path / "out")
    assert config["architectures"] == ["BertModel"]
    assert not found["embeddings.token_type_embeddings.weight"].any()
    after = transformers.AutoModel.from_pretrained(tmp_path / "out", add_pooling_layer=False).eval()
    before = transformers.AutoModel.from_pretrained(tmp_path / "distilbert").eval()
    with torch.inference_mode():
        torch.testing.assert_close(after(IDS).last_hidden_state, before(IDS).last_hidden_state, rtol=0, atol=1e-5)


def test_jina_of_older_files_has_gate_and_up_apart(tmp_path: Path) -> None:
    def edit(_: Metadata, tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith("ffn_up.weight")]:
            gate, up = np.split(tensors[name], 2)
            tensors[name], tensors[name.replace("ffn_up", "ffn_gate")] = up.copy(), gate.copy()

    found, _ = converted(rewritten("jina-bert-v2", tmp_path / "apart.gguf", edit), tmp_path / "out")
    before = load_file(original("jina-bert-v2") / "model.safetensors")
    assert sorted(found) == sorted(before)
    assert all(torch.equal(found[name], tensor) for name, tensor in before.items())


def _causal(metadata: Metadata, _: Tensors) -> None:
    metadata["bert.attention.causal"] = True


def _without_causal(metadata: Metadata, _: Tensors) -> None:
    del metadata["bert.attention.causal"]


def _unknown_pooling(metadata: Metadata, _: Tensors) -> None:
    metadata["bert.pooling_type"] = 9


def _without_pad(metadata: Metadata, _: Tensors) -> None:
    del metadata["tokenizer.ggml.padding_token_id"]


def _grouped(metadata: Metadata, _: Tensors) -> None:
    metadata["bert.attention.head_count_kv"] = 2


@pytest.mark.parametrize(
    ("case", "edit", "message"),
    [
        ("bert", _causal, "no encoder"),
        ("bert", _without_causal, "no encoder"),
        ("bert", _unknown_pooling, "pooling_type is 9"),
        ("bert", _grouped, "as many key/value heads"),
        ("roberta", _without_pad, "numbers its positions"),
        ("xlm-roberta", _without_pad, "numbers its positions"),
    ],
)
def test_what_config_json_cannot_say_is_refused(case: str, edit: Any, message: str, tmp_path: Path) -> None:
    plan = build(read_header([rewritten(case, tmp_path / "odd.gguf", edit)]))
    assert message in "\n".join(plan.problems)


def test_a_bert_with_a_classifier_has_lost_its_pooling_layer(tmp_path: Path) -> None:
    def edit(_: Metadata, tensors: Tensors) -> None:
        tensors["cls.output.weight"] = np.zeros((1, 64), np.float32)

    with pytest.raises(MapError, match="none is for a file like this"):
        build(read_header([rewritten("bert", tmp_path / "classifier.gguf", edit)]))


def _other_labels(metadata: Metadata, _: Tensors) -> None:
    metadata["bert.classifier.output_labels"] = ["yes", "no"]


def test_labels_of_another_number_of_outputs_are_refused(tmp_path: Path) -> None:
    plan = build(read_header([rewritten("xlm-roberta_classifier", tmp_path / "labels.gguf", _other_labels)]))
    assert "2 names for 1 outputs" in "\n".join(plan.problems)
