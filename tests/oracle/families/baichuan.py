"""Baichuan: a Llama whose q, k and v are one matrix; its second generation and its 13B have a class of their own."""

from dataclasses import replace

import torch
from torch import Tensor

from tests.oracle.case import Case, with_bf16
from tests.oracle.families.remote_code import HIDDEN, by_hand, ends, gated, linear, norms


def packed(llama: dict[str, Tensor]) -> dict[str, Tensor]:
    """The published names of a Llama's tensors."""
    parted = tuple(f"{x}_proj.weight" for x in "qkv")
    spelled = {name: tensor for name, tensor in llama.items() if not name.endswith(parted)}
    for i in range(sum("q_proj" in name for name in llama)):
        parts = [llama[f"model.layers.{i}.self_attn.{x}_proj.weight"] for x in "qkv"]
        spelled[f"model.layers.{i}.self_attn.W_pack.weight"] = torch.cat(parts)
    return spelled


def baichuan(n_layers: int) -> Case:
    """13B, which has 40 layers."""
    shapes = ends()
    for i in range(n_layers):
        layer = f"model.layers.{i}"
        shapes |= linear(f"{layer}.self_attn.W_pack", 3 * HIDDEN, HIDDEN)
        shapes |= linear(f"{layer}.self_attn.o_proj", HIDDEN, HIDDEN)
        shapes |= gated(f"{layer}.mlp") | norms(f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm")
    given = {"num_hidden_layers": n_layers, "num_key_value_heads": None, "model_max_length": 128}
    case = by_hand("BaichuanForCausalLM", "baichuan", shapes, **given)
    return replace(case, flags=(), tokenizer="spm")


LLAMA = {"num_key_value_heads": 4, "rms_norm_eps": 1e-6}
PUBLISHED = {"architectures": ["BaiChuanForCausalLM"], "model_type": "baichuan", "head_dim": None}
_PLAIN: dict[str, Case] = {
    "baichuan": baichuan(40),
    # llama.cpp rotates nothing unless there are 32 layers
    "baichuan-llama": Case(
        "LlamaConfig",
        {**LLAMA, "num_hidden_layers": 32, "intermediate_size": 32},
        tokenizer="spm",
        spelled=packed,
        hparams=PUBLISHED,
    ),
}
CASES = with_bf16(_PLAIN, "baichuan", "baichuan-llama")
