"""GPT-2's generation of models, and the encoders that embed text.

Shapes are awkward on purpose: odd layer counts, widths that are no multiple of anything, tied and untied heads.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from tests.oracle.case import BIASES, CLASSIFIER, MOE, TIED, Case, pooled, with_bf16, yarn

NO_LLAMA: Mapping[str, Any] = {"intermediate_size": None, "num_key_value_heads": None}
"""Keys of BASE that these classes do not have."""
BLOOM: Mapping[str, Any] = {**NO_LLAMA, "max_position_embeddings": None, "seq_length": 128, **TIED}
MPT: Mapping[str, Any] = {**NO_LLAMA, "max_position_embeddings": None, "max_seq_len": 128, **TIED}
DBRX: Mapping[str, Any] = {
    "d_model": 64,
    "intermediate_size": None,
    "num_key_value_heads": 2,
    "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 20000.0},
    "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2},
    "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0},
}


WPM_ENDS: Mapping[str, tuple[Any, str]] = {
    "bos_token_id": (2, "[CLS], which the tokenizer names, and a published configuration does not"),
    "eos_token_id": (3, "[SEP], likewise"),
}
NOMIC: Mapping[str, Any] = {
    "activation_function": "swiglu",
    "causal": False,
    "max_trained_positions": 2048,
    "n_positions": 8192,
    "prenorm": False,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), False),
}
"""Keys of the published configuration that the converter insists on; transformers 5 keeps what it does not know."""


def gpt2(**options: Any) -> Case:
    return Case("GPT2Config", {**NO_LLAMA, **TIED, **options}, hparams={"n_ctx": 128}, tolerance=5e-3)


def gptneox(rotary: float = 0.25, **options: Any) -> Case:
    parameters = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": rotary}
    return Case(
        "GPTNeoXConfig",
        {"num_key_value_heads": None, "rope_parameters": parameters, **options},
        hparams={"rotary_pct": rotary},
        tolerance=5e-3,
    )


def encoder(config: str, tokenizer: Literal["bpe", "wpm", "unigram"] = "wpm", **options: Any) -> Case:
    """Without the pooling layer that transformers' classes have on top: the converter leaves it behind."""
    return Case(
        config,
        {"num_key_value_heads": None, **TIED, **options},
        tokenizer,
        auto="AutoModel",
        arguments={"add_pooling_layer": False},
        differs=WPM_ENDS if tokenizer == "wpm" else {},
        tolerance=5e-3,
    )


def padded(config: str, tokenizer: Literal["bpe", "unigram"], n_lost: int, **options: Any) -> Case:
    """RoBERTa numbers positions from the padding token's id + 1 on; the converter cuts off the rows before."""

    def zeros_first(weight: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(weight[:n_lost]), weight[n_lost:]])

    options = {"max_position_embeddings": 128 + n_lost, "pad_token_id": n_lost - 1, **options}
    return replace(encoder(config, tokenizer, **options), keeps={"*position_embeddings.weight": zeros_first})


def xlm_roberta(**options: Any) -> Case:
    absolute = (
        "absolute",
        "as published: vLLM 0.32 asks each model of the class for it, transformers 5 has no other kind",
    )
    case = padded("XLMRobertaConfig", "unigram", 2, **options)
    return replace(case, differs={**case.differs, "position_embedding_type": absolute})


def nomic(layers: int = 2, epsilon: float = 1e-12, theta: float = 1000.0, **options: Any) -> Case:
    """In both spellings, as we write it: that of published configurations, which vLLM reads, and transformers 5's."""
    published = {"n_embd": 64, "n_head": 4, "n_inner": 128, "n_layer": layers}
    published |= {"layer_norm_epsilon": epsilon, "rotary_emb_base": theta}
    ours = {"num_hidden_layers": layers, "layer_norm_eps": epsilon, "max_position_embeddings": 2048}
    ours |= {"rope_parameters": {"rope_type": "default", "rope_theta": theta}}
    case = encoder("NomicBertConfig", **{**NOMIC, **published, **ours, "tie_word_embeddings": None, **options})
    trained = {"n_positions": (2048, "the length that the model was trained for, which the converter writes")}
    return replace(case, differs={**case.differs, **trained})


def modern_bert(every: int = 3, **options: Any) -> Case:
    """With the keys of published configurations: the converter reads two of them, transformers 5 forgot them."""
    old = {"global_attn_every_n_layers": every, "layer_norm_eps": options.get("norm_eps", 1e-5)}
    options = {"num_hidden_layers": 4, "cls_token_id": 0, "sep_token_id": 1, **TIED, **old, **options}
    return Case(
        "ModernBertConfig", {"num_key_value_heads": None, **options}, hparams=old, auto="AutoModel", tolerance=5e-3
    )


def classifier(case: Case, *labels: str) -> Case:
    """The same with a head: what a reranker is."""
    names = {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
    return replace(
        case,
        options={**case.options, **names},
        auto=CLASSIFIER,
        arguments={},
        tolerance=5e-3,
    )


def mellum(full: Mapping[str, Any] | None = None, **options: Any) -> Case:
    """llama.cpp uses one rope base for all layers, whatever the file says: hence the same one here."""
    local = {"rope_type": "default", "rope_theta": 10000.0}
    given: dict[str, Any] = {
        "num_hidden_layers": 5,
        "head_dim": 32,
        "sliding_window": 64,
        "layer_types": [*["sliding_attention"] * 3, "full_attention", "sliding_attention"],
        "rope_parameters": {"full_attention": full or local, "sliding_attention": local},
    }
    return Case("MellumConfig", {**MOE, **given, **options})


_PLAIN: dict[str, Case] = {
    "gpt2": gpt2(),
    "gpt2_3_layers": gpt2(num_hidden_layers=3, num_attention_heads=2, layer_norm_epsilon=1e-6),
    "gptneox": gptneox(),
    "gptneox_half": gptneox(0.5, num_hidden_layers=3, use_parallel_residual=False, intermediate_size=176),
    "gptneox_whole": gptneox(1.0, num_attention_heads=2, layer_norm_eps=1e-6),
    "bloom": Case("BloomConfig", BLOOM, tolerance=5e-3),
    "bloom_3_layers": Case(
        "BloomConfig", {**BLOOM, "num_hidden_layers": 3, "num_attention_heads": 8, "hidden_size": 96}, tolerance=5e-3
    ),
    "mpt": Case("MptConfig", MPT, hparams={"architectures": ["MPTForCausalLM"]}, tolerance=5e-3),
    "dbrx": Case("DbrxConfig", DBRX),
    "bert": encoder("BertConfig"),
    "bert_types": encoder("BertConfig", type_vocab_size=1, num_hidden_layers=3, layer_norm_eps=1e-5),
    "bert_mean": replace(encoder("BertConfig"), files=pooled("mean_tokens")),
    "bert_fused_qkv": replace(encoder("BertConfig"), flags=("fuse_qkv",)),
    "roberta": padded("RobertaConfig", "bpe", 3),
    "xlm-roberta": xlm_roberta(num_hidden_layers=3),
    "xlm-roberta_cls": replace(xlm_roberta(), files=pooled("cls_token")),
    "xlm-roberta_types": xlm_roberta(type_vocab_size=1, num_attention_heads=8),
    "roberta_classifier": classifier(padded("RobertaConfig", "bpe", 3), "no", "perhaps", "yes"),
    "xlm-roberta_classifier": classifier(padded("XLMRobertaConfig", "unigram", 2), "LABEL_0"),
    "modern-bert_classifier": classifier(modern_bert(classifier_pooling="mean"), "LABEL_0"),
    "nomic-bert": nomic(),
    "nomic-bert_3_layers": nomic(3, 1e-6, 20000.0, type_vocab_size=1),
    "modern-bert": modern_bert(),
    "modern-bert_pattern_2": modern_bert(2, num_hidden_layers=5, local_attention=96, num_attention_heads=2),
    "modern-bert_silu": modern_bert(hidden_activation="silu", classifier_pooling="mean", norm_eps=1e-6),
    "mellum": mellum(),
    "mellum_yarn": mellum({**yarn(4.0, 32)["rope_parameters"], "rope_theta": 10000.0}, head_dim=16),
    "mellum_full": mellum(layer_types=["full_attention"] * 3, sliding_window=None, num_hidden_layers=3),
    "jais2": Case("Jais2Config", {**BIASES, "head_dim": 16}),
}
CASES = with_bf16(_PLAIN, "gpt2", "gptneox", "bloom", "bert")
