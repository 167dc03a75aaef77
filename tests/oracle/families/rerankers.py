"""Language models that score a text by how likely "yes" is as its next token: Qwen3-Reranker.

What comes back is the class of transformers whose head is the row of "yes" less that of "no". The published model, that
the converter reads, is the language model: its head has a row for each token, its own or the embedding's.
"""

import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tests.oracle.case import BASE, CLASSIFIER, TIED, Case, with_bf16, yarn

YES, NO = BASE["vocab_size"], BASE["vocab_size"] + 1
"""Tokens behind those of the tiny tokenizer, which has no such words."""
NAMES: Mapping[str, str] = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
TOKENIZER: Mapping[str, Any] = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    **NAMES,
    "added_tokens_decoder": {str(YES): {"content": "yes"}, str(NO): {"content": "no"}},
}
LABELS: Mapping[str, Any] = {"id2label": {0: "yes"}, "label2id": {"yes": 0}, "use_sep_token": False}


def apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The published model with a head of its own, in which the difference of both rows is that of the class."""
    score = tensors.pop("score.weight")
    rows = tensors["model.embed_tokens.weight"]
    generator = torch.Generator().manual_seed(zlib.crc32(b"lm_head"))
    head = torch.randn(rows.shape, generator=generator).to(rows.dtype)
    head[YES], head[NO] = 2 * score[0], score[0]  # the difference is exact
    return {**tensors, "lm_head.weight": head}


def of_the_embedding(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The class, of a published model whose head is its embedding."""
    rows = tensors["model.embed_tokens.weight"].float()
    return {**tensors, "score.weight": rows[YES : YES + 1] - rows[NO : NO + 1]}


def without_head(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """That published model."""
    return {name: tensor for name, tensor in tensors.items() if name != "score.weight"}


def yes_and_no(logits: Tensor) -> Tensor:
    """What llama.cpp gives: the softmax of both. (1, 1) -> (1, 2)"""
    return torch.cat([torch.sigmoid(logits), torch.sigmoid(-logits)], -1)


def reranker(*, tied: bool = False, **options: Any) -> Case:
    hparams = {"architectures": ["Qwen3ForCausalLM"], "_name_or_path": "Qwen3-Reranker-tiny"}
    untied = {"tie_word_embeddings": (False, "the class has no head that it could tie")} if tied else {}
    return Case(
        "Qwen3Config",
        {"vocab_size": NO + 1, "head_dim": 32, **LABELS, **(TIED if tied else {}), **options},
        hparams=hparams,
        files={"tokenizer_config.json": TOKENIZER},
        remade=of_the_embedding if tied else None,
        spelled=without_head if tied else apart,
        differs=untied,
        auto=CLASSIFIER,
        goes_on=yes_and_no,
    )


def vision(case: Case, sections: list[int]) -> Case:
    """The text part of Qwen3-VL-Reranker, whose rotary embedding has sections that make no difference to text."""
    rotary = {"rope_type": "default", "rope_theta": 1e6}
    hparams = {
        **case.hparams,
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "rope_parameters": {**rotary, "mrope_section": sections},
    }
    return replace(case, options={**case.options, "rope_parameters": rotary}, hparams=hparams)


_PLAIN: Mapping[str, Case] = {
    "qwen3_reranker": reranker(),
    "qwen3_reranker_tied": reranker(tied=True, num_hidden_layers=3),
    "qwen3_reranker_yarn": reranker(**yarn(4.0, 32)),
    "qwen3vl_reranker": vision(reranker(), [6, 5, 5]),
    "qwen3vl_reranker_tied": vision(reranker(tied=True, head_dim=16, num_hidden_layers=3), [3, 3, 2]),
}
CASES = with_bf16(_PLAIN, "qwen3_reranker_tied")
