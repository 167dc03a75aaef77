"""Qwen4-Exp: a table of n-grams in parts, hyper-connections, and full attention to blocks that an indexer chooses."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from tests.oracle.case import Case, with_bf16, yarn
from tests.oracle.families.mistral_qwen_next import log_exp, plus_one

SIZES: Mapping[str, Any] = {
    "num_hidden_layers": 5,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 96,
    "shared_expert_intermediate_size": 80,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
    "output_gate_type": "sigmoid",
    "hc_count": 3,
    "hc_lowrank": 24,
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 32,  # llama.cpp wants the published sections of its rotary embedding to fit
    "indexer_budget": 64,  # more tokens than there are: llama.cpp, which rounds, would choose others
    "indexer_compress_ratio": 4,
}
NGRAMS: Mapping[str, Any] = {
    "ple_layer_ids": [2],
    "ple_embed_dim": 64,
    "ngram_size": 3,
    "heads_per_ngram": 2,
    "ngram_vocab_size_base": 251,  # the first of four primes, 1040 together
    "split_ngram_parts": 384,  # of three rows each
}
KEEPS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "*.A_log": log_exp,
    "*.linear_attn.norm.weight": lambda weight: weight,
    "*norm.weight": plus_one,
    "*.ple.norm_*.weight": plus_one,
}


def qwen4(differs: Mapping[str, tuple[Any, str]] | None = None, *flags: str, **options: Any) -> Case:
    """The converter knows full attention by its published name."""
    given = {**SIZES, **options}
    kinds = given.get("layer_types") or [
        "linear_attention" if (i + 1) % 4 else "full_attention" for i in range(given["num_hidden_layers"])
    ]
    hparams = {"layer_types": kinds}
    return Case(
        "Qwen4ExpTextConfig",
        given,
        flags=("no_mtp", *flags),
        hparams=hparams,
        differs=differs or {},
        keeps=KEEPS,
        tolerance=3e-4,
    )


def with_head(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """A head of its own that is the embedding, which is what a tied one becomes."""
    return {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}


def tied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"}


def with_mtp(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """One more layer of full attention, with a mixer and projections of its own: Qwen 3.8 Flash Next."""
    layer = max(int(name.split(".")[2]) for name in tensors if "self_attn.q_proj" in name)
    more = {
        name.replace(f"model.layers.{layer}.", "mtp.layers.0."): tensor + 1
        for name, tensor in tensors.items()
        if name.startswith(f"model.layers.{layer}.")
    }
    more |= {
        name.replace("model.", "mtp."): tensor + 1
        for name, tensor in tensors.items()
        if name.startswith("model.hyper_connection_mixer.")
    }
    hidden = tensors["model.embed_tokens.weight"].shape[1]
    norm = tensors["model.hyper_connection_mixer.hc_norm.weight"]
    for own in ("fc_embedding", "fc_hidden"):
        more[f"mtp.{own}.weight"] = norm.new_ones(hidden, hidden)
    more["mtp.pre_fc_norm_embedding.weight"] = norm.new_ones(hidden)
    more["mtp.pre_fc_norm_hidden.weight"] = norm.new_ones(len(norm))
    return {**tensors, **more}


LATER = [f"{kind}_attention" for kind in ("full", "linear", "linear", "full", "full", "linear")]
UNEVEN: Mapping[str, Any] = {
    **NGRAMS,
    "ple_layer_ids": [3],
    "ngram_size": 2,
    "heads_per_ngram": 2,
    "ple_conv_kernel_size": 3,
    "ngram_vocab_size_base": 600,
    "make_ngram_vocab_size_divisible_by": 7,  # 1208 become 1211
    "split_ngram_parts": 404,  # of three rows, and one of two
    "seed": 7,
}
PRIME = {"ngram_vocab_size_base": (601, "the first prime from there, of which all sizes follow")}
SEED = {"seed": (1234, "the numbers that came of it are tensors, which the classes read")}

_PLAIN: dict[str, Case] = {
    "qwen4exp": qwen4(**NGRAMS),
    "qwen4exp_uneven": qwen4(
        {**PRIME, **SEED},
        **{**UNEVEN, "layer_types": LATER, "num_hidden_layers": 6, "num_key_value_heads": 1, "hc_count": 2},
    ),
    "qwen4exp_plain": qwen4(num_hidden_layers=4, linear_num_value_heads=2, num_key_value_heads=4),
    "qwen4exp_yarn": qwen4(
        **{**NGRAMS, "rope_parameters": {**SIZES["rope_parameters"], **yarn(4.0, 32, 10000.0)["rope_parameters"]}}
    ),
    "qwen4exp_few_blocks": qwen4(**{**NGRAMS, "indexer_budget": 8}),
    "qwen4exp_fused_experts": qwen4(None, "fuse_gate_up_exps", **NGRAMS),
    "qwen4exp_tied": replace(qwen4(**{**NGRAMS, "tie_word_embeddings": False}), remade=with_head, spelled=tied),
    "qwen4exp_mtp": replace(
        qwen4(**NGRAMS), spelled=with_mtp, flags=(), hparams={**qwen4(**NGRAMS).hparams, "mtp_num_hidden_layers": 1}
    ),
}
CASES = with_bf16(_PLAIN, "qwen4exp")
