"""T5 and its kin, EuroBERT and Llama-Embed."""

from collections.abc import Mapping
from typing import Any

from tests.oracle.case import TIED, Case, llama3, with_bf16

T5: Mapping[str, Any] = {
    **dict.fromkeys(("intermediate_size", "num_key_value_heads", "max_position_embeddings", "tie_word_embeddings")),
    "num_hidden_layers": 3,
    "num_decoder_layers": 3,
    "head_dim": 16,
    "d_ff": 128,
    "relative_attention_num_buckets": 8,
    "n_positions": 128,
    "decoder_start_token_id": 2,
}


def t5(config: str = "T5Config", auto: str = "AutoModelForSeq2SeqLM", **options: Any) -> Case:
    return Case(
        config,
        {**T5, **options},
        flags=("gpt2_vocab",),
        auto=auto,
        tolerance=None,
        unrunnable="llama.cpp encodes one text and decodes another; its logits are of one",
    )


def t5_1_1(n_layers: int = 2, n_decoder_layers: int = 1) -> Case:
    """A head of its own, which transformers 5 ties whatever the configuration says: hence by hand."""
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("shared.weight", "lm_head.weight"), (512, 64))
    for side, n in (("encoder", n_layers), ("decoder", n_decoder_layers)):
        attentions = ["SelfAttention", *(["EncDecAttention"] if side == "decoder" else [])]
        shapes[f"{side}.final_layer_norm.weight"] = (64,)
        shapes[f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = (8, 4)
        for layer in (f"{side}.block.{i}.layer" for i in range(n)):
            for j, attention in enumerate(attentions):
                shapes |= {f"{layer}.{j}.{attention}.{x}.weight": (96, 64) for x in "qkv"}
                shapes |= {f"{layer}.{j}.{attention}.o.weight": (64, 96), f"{layer}.{j}.layer_norm.weight": (64,)}
            dense = f"{layer}.{len(attentions)}"
            shapes |= {f"{dense}.DenseReluDense.{x}.weight": (128, 64) for x in ("wi_0", "wi_1")}
            shapes |= {f"{dense}.DenseReluDense.wo.weight": (64, 128), f"{dense}.layer_norm.weight": (64,)}
    config = {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "d_model": 64,
        "d_kv": 24,
        "d_ff": 128,
        "num_layers": n_layers,
        "num_decoder_layers": n_decoder_layers,
        "num_heads": 4,
        "n_positions": 128,
        "layer_norm_epsilon": 1e-6,
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 128,
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
        "is_encoder_decoder": True,
        "decoder_start_token_id": 2,
        "vocab_size": 512,
    }
    return Case("", config, flags=("gpt2_vocab",), weights=shapes, tolerance=None, unrunnable="no class ties no head")


def eurobert(**options: Any) -> Case:
    return Case(
        "EuroBertConfig",
        {"mask_token_id": 3, "classifier_pooling": "mean", **options},
        auto="AutoModel",
        differs={
            "classifier_pooling": ("late", "transformers' default; it is for a head, and the file has none"),
            "mask_token_id": (128002, "transformers' default; the tokenizer names the token, and no layer reads it"),
        },
    )


def llama_embed(**options: Any) -> Case:
    architecture = ["LlamaBidirectionalModel"]
    return Case(
        "LlamaConfig",
        {"is_causal": False, "pooling": "avg", **options},
        hparams={"architectures": architecture},
        auto="AutoModel",
        differs={"architectures": (architecture, "the published name, which vLLM knows")},
    )


def jina_v3(**options: Any) -> Case:
    """Without adapters, which the converter writes into files of their own, and without the pooling layer."""
    case = Case(
        "JinaEmbeddingsV3Config",
        {"num_key_value_heads": None, "vocab_size": 512, **TIED, **options},
        "unigram",
        auto="AutoModel",
        arguments={"add_pooling_layer": False},
        hparams={"architectures": ["XLMRobertaModel"], "lora_adaptations": ["text-matching"]},
        tolerance=5e-3,
    )
    return case


_PLAIN: dict[str, Case] = {
    "jina-bert-v3": jina_v3(),
    "jina-bert-v3_theta": jina_v3(
        num_hidden_layers=3,
        num_attention_heads=2,
        type_vocab_size=2,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    ),
    "llama-embed": llama_embed(),
    "llama-embed_llama3": llama_embed(**llama3(8.0, 64), head_dim=32, num_hidden_layers=3),
    "t5": t5(),
    "t5_2_layers": t5(num_decoder_layers=2, num_hidden_layers=2, num_attention_heads=2, head_dim=24),
    "t5_1_1": t5_1_1(),
    "umt5": t5("UMT5Config", feed_forward_proj="gated-gelu"),
    "t5encoder": t5(auto="AutoModelForTextEncoding", decoder_start_token_id=None),
    "t5encoder_gated": t5(auto="AutoModelForTextEncoding", decoder_start_token_id=None, feed_forward_proj="gated-gelu"),
    "eurobert": eurobert(),
    "eurobert_mha": eurobert(num_hidden_layers=3, num_key_value_heads=4),
}
CASES = with_bf16(_PLAIN, "t5", "eurobert", "llama-embed")
