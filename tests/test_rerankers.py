"""Qwen3-Reranker beside its round trip: quantized heads, what is refused, and the prompt that it judges."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers as transformers_module
from safetensors.torch import load_file

import gguf2st
from gguf2st.header import read_header
from gguf2st.plan.build import build
from gguf2st.serving.preflight import who_serves
from gguf2st.tokenizer import build_tokenizer
from gguf2st.tokenizer.templates import written_templates
from tests.oracle.repacked import untargeted
from tests.oracle.rewrite import Metadata, Tensors, requantized, rewritten
from tests.oracle.tiny import oracle_gguf
from tests.vocabularies import byte_level

transformers: Any = transformers_module  # its constructors carry no types
CASE = "qwen3_reranker"


@pytest.mark.oracle
@pytest.mark.parametrize(("qtype", "repack"), [("Q8_0", "none"), ("Q4_0", "exact")])
def test_the_head_of_a_quantized_file_is_the_difference_in_float32(qtype: str, repack: str, tmp_path: Path) -> None:
    path = requantized(oracle_gguf(CASE), tmp_path / "q.gguf", lambda _: qtype)
    gguf2st.convert(path, tmp_path / "out", repack=repack)
    head = next(t for t in gguf.GGUFReader(path).tensors if t.name == "cls.output.weight")
    yes, no = gguf.quants.dequantize(head.data, head.tensor_type).astype(np.float32)
    found = load_file(tmp_path / "out/model.safetensors")["score.weight"]
    assert (found.dtype, tuple(found.shape)) == (torch.float32, (1, 64))
    assert np.array_equal(found[0].numpy(), yes - no)
    if repack != "none":
        assert untargeted(tmp_path / "out") == set()
    assert gguf2st.verify(tmp_path / "out", against=path, model=True).problems == ()


def _other_tokens(metadata: Metadata, _: Tensors) -> None:
    metadata["qwen3.classifier.output_labels"] = ["no", "yes"]


def _unnamed(metadata: Metadata, _: Tensors) -> None:
    del metadata["qwen3.classifier.output_labels"]


def _embeds(metadata: Metadata, _: Tensors) -> None:
    metadata["qwen3.pooling_type"] = np.uint32(3)


def _one_row(_: Metadata, tensors: Tensors) -> None:
    tensors["cls.output.weight"] = tensors["cls.output.weight"][:1]


def _with_a_head(_: Metadata, tensors: Tensors) -> None:
    tensors["output.weight"] = tensors["token_embd.weight"].copy()


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (_other_tokens, "classifier.output_labels is ['no', 'yes']"),
        (_unnamed, "classifier.output_labels is missing"),
        (_embeds, "does not rank"),
        (_one_row, "is not two rows"),
        (_with_a_head, "output.weight"),
    ],
)
def test_another_head_is_refused(edit: Callable[[Metadata, Tensors], None], message: str, tmp_path: Path) -> None:
    plan = build(read_header([rewritten(CASE, tmp_path / "odd.gguf", edit)]))
    with pytest.raises(gguf2st.errors.Gguf2stError) as caught:
        plan.require_complete()
    problems = "\n".join([str(caught.value), *plan.all_problems])
    assert message in problems


@pytest.mark.oracle
def test_the_prompt_is_the_one_of_llama_cpp(tmp_path: Path) -> None:
    """Of the file that its converter writes, with the texts in place of their names."""
    metadata = gguf2st.open_gguf(oracle_gguf(CASE)).metadata
    gguf2st.convert(oracle_gguf(CASE), tmp_path / "out")
    query, document = "What {document} boils?", "  Water {{ boils }}.\n"
    expected = metadata["tokenizer.chat_template.rerank"].replace("{document}", document).replace("{query}", query)
    assert expected.endswith("</think>\n\n")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    messages = [{"role": "query", "content": query}, {"role": "document", "content": document}]
    text = (tmp_path / "out/additional_chat_templates/rerank.jinja").read_text()
    for template in ("rerank", text):  # by name, and as vLLM is given it
        assert tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False) == expected
    assert gguf2st.verify(tmp_path / "out", against=oracle_gguf(CASE)).problems == ()


@pytest.mark.parametrize(
    "text", ["{{ query }} {query} {document}", "{query} alone", "{% if x %}{query}{document}{% endif %}"]
)
def test_other_templates_of_that_name_stay_as_they_are(text: str, tmp_path: Path) -> None:
    metadata = byte_level() | {"tokenizer.chat_template.rerank": text}
    assert written_templates(metadata) == {"rerank": text}
    assert build_tokenizer(metadata).files["additional_chat_templates/rerank.jinja"] == text.encode()


def test_vllm_makes_classifiers_of_its_language_models() -> None:
    assert who_serves("Qwen3ForSequenceClassification")[0] == "native"
    assert who_serves("NoSuchForSequenceClassification")[0] == "not served"
