"""Kimi K3: what a checkpoint of its text model has from the published one, and which files are refused.

Names and dtypes are those in the headers of the published checkpoint, of a layer of each kind.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as transformers_module
from safetensors.torch import load_file

import gguf2st
from gguf2st.config import kimi
from gguf2st.errors import MapError
from tests.oracle.rewrite import rewritten
from tests.oracle.tiny import oracle_gguf
from tests.test_config import Scope

transformers: Any = transformers_module  # its constructors carry no types

FLOAT32 = {
    "self_attn.A_log",
    "self_attn.dt_bias",
    "self_attn.o_norm.weight",
    *(f"self_attn.{x}_conv1d.weight" for x in "qkv"),
    "block_sparse_moe.gate.e_score_correction_bias",
}
LINEAR = {f"self_attn.{x}.weight" for x in ("b_proj", "f_a_proj", "f_b_proj", "g_proj", "k_proj", "q_proj", "v_proj")}
LATENT = {
    f"self_attn.{x}.weight"
    for x in ("g_proj", "kv_a_layernorm", "kv_a_proj_with_mqa", "kv_b_proj", "q_a_layernorm", "q_a_proj", "q_b_proj")
}
EITHER = {
    "input_layernorm.weight",
    "mlp_res_norm.weight",
    "mlp_res_proj.weight",
    "post_attention_layernorm.weight",
    "self_attention_res_norm.weight",
    "self_attention_res_proj.weight",
    "self_attn.o_proj.weight",
}
SPARSE = {
    "gate.e_score_correction_bias",
    "gate.weight",
    *(f"routed_expert_{x}.weight" for x in ("down_proj", "norm", "up_proj")),
    *(f"shared_experts.{x}.weight" for x in ("down_proj", "gate_proj", "up_proj")),
}
KDA_ALONE = FLOAT32 - {"block_sparse_moe.gate.e_score_correction_bias"}
EXPERTS = {f"block_sparse_moe.experts.{e}.{x}.weight" for e in range(4) for x in ("w1", "w2", "w3")}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kimi") / "k3"
    gguf2st.convert(oracle_gguf("kimi-k3"), folder)
    return folder


@pytest.mark.oracle
@pytest.mark.parametrize(("layer", "own"), [(1, LINEAR | KDA_ALONE), (2, LATENT)])
def test_names_and_dtypes_of_a_layer_are_the_published_ones(layer: int, own: set[str], checkpoint: Path) -> None:
    prefix = f"model.layers.{layer}."
    found = {
        name.removeprefix(prefix): tensor
        for name, tensor in load_file(checkpoint / "model.safetensors").items()
        if name.startswith(prefix)
    }
    assert found.keys() == own | EITHER | {f"block_sparse_moe.{x}" for x in SPARSE} | EXPERTS
    assert {name for name, tensor in found.items() if tensor.dtype == torch.float32} == FLOAT32 & found.keys()
    assert found["self_attention_res_proj.weight"].shape == (1, 64)


@pytest.mark.oracle
def test_transformers_does_not_take_it_for_kimi_linear(checkpoint: Path) -> None:
    """Its class of that name would fill the gates with random numbers, and forget the blocks of layers."""
    with pytest.raises(KeyError, match="situ"):
        transformers.AutoModelForCausalLM.from_pretrained(checkpoint)


@pytest.mark.oracle
def test_the_report_says_what_it_is() -> None:
    (note,) = gguf2st.make_plan(oracle_gguf("kimi-k3")).notes
    assert "vision tower" in note
    assert "KimiLinearForCausalLM" in note


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("lacking", "said"),
    [
        ("attn_gate", "model.layers.{2,4}.self_attn.g_proj.weight"),
        ("ssm_g", "model.layers.{0..1,3}.self_attn.g_proj.weight"),
        ("ffn_routed_norm", "routed_expert_norm.weight"),
        ("attn_res_score", "self_attention_res_proj.weight"),
        ("output_res_score", "output_attn_res_proj.weight"),
    ],
)
def test_a_file_without_a_part_is_not_complete(lacking: str, said: str, tmp_path: Path) -> None:
    def without(_: dict[str, Any], tensors: dict[str, Any]) -> None:
        for name in [n for n in tensors if lacking in n]:
            del tensors[name]

    plan = gguf2st.make_plan(rewritten("kimi-k3", tmp_path / "less.gguf", without))
    assert any(said in problem for problem in plan.all_problems)


KEYS: dict[str, Any] = {
    "attention.head_count": 96,
    "attention.head_count_kv": [0, 0, 0, 1],
    "attention.q_lora_rank": 1536,
    "attention.kv_lora_rank": 512,
    "attention.key_length_mla": 192,
    "attention.value_length_mla": 128,
    "rope.dimension_count": 64,
    "attn_res.block_size": 12,
    "activation.situ_beta": 4.0,
    "activation.situ_linear_beta": 25.0,
    "kda.head_dim": 128,
    "kda.gate_lower_bound": -5.0,
    "ssm.conv_kernel": 4,
    "expert_count": 896,
    "expert_used_count": 16,
    "expert_shared_count": 2,
    "expert_feed_forward_length": 3072,
    "expert_latent_length": 3584,
    "expert_gating_func": 2,
    "expert_weights_norm": True,
    "expert_weights_scale": 1.0,
    "leading_dense_block_count": 1,
}
"""As llama.cpp's converter writes them of the published model, but for the number of layers."""


def _configuration(keys: dict[str, Any]) -> dict[str, Any]:
    return kimi.kimi_k3_attention(Scope(keys), 4) | kimi.kimi_k3_experts(Scope(keys))


def test_the_configuration_is_the_published_one() -> None:
    """The keys of text_config in config.json of moonshotai/Kimi-K3 that these functions are responsible for."""
    assert _configuration(KEYS) == {
        "activation_situ_beta": 4.0,
        "activation_situ_linear_beta": 25.0,
        "attn_res_block_size": 12,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 512,
        "latent_moe_use_norm": True,
        "linear_attn_config": {
            "full_attn_layers": [4],
            "gate_lower_bound": -5.0,
            "head_dim": 128,
            "kda_layers": [1, 2, 3],
            "num_heads": 96,
            "short_conv_kernel_size": 4,
            "use_full_rank_gate": True,
        },
        "mla_use_nope": True,
        "mla_use_output_gate": True,
        "moe_intermediate_size": 3072,
        "moe_layer_freq": 1,
        "moe_renormalize": True,
        "moe_router_activation_func": "sigmoid",
        "num_attention_heads": 96,
        "num_expert_group": 1,
        "num_experts": 896,
        "num_experts_per_token": 16,
        "num_key_value_heads": 96,
        "num_shared_experts": 2,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "routed_expert_hidden_size": 3584,
        "routed_scaling_factor": 1.0,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "use_grouped_topk": True,
        "v_head_dim": 128,
    }


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("kda.gate_lower_bound", -6.0, "from -5 to 0"),
        ("kda.gate_lower_bound", 0.0, "from -5 to 0"),
        ("attn_res.block_size", 0, "attn_res.block_size = 0"),
        ("attention.q_lora_rank", None, "attention.q_lora_rank = None"),
        ("activation.situ_linear_beta", -1.0, "activation.situ_linear_beta = -1.0"),
        ("expert_latent_length", None, "expert_latent_length = None"),
        ("expert_used_count", 897, "897 of 896 experts"),
        ("expert_gating_func", 1, "not 2, sigmoid"),
    ],
)
def test_what_no_class_can_be_told_is_refused(key: str, value: Any, message: str) -> None:
    with pytest.raises(MapError, match=message):
        _configuration({**KEYS, key: value})


@pytest.mark.oracle
def test_the_bound_of_the_forget_gate_may_be_absent(tmp_path: Path) -> None:
    def without(metadata: dict[str, Any], _: dict[str, Any]) -> None:
        del metadata["kimi-k3.kda.gate_lower_bound"]
        metadata["kimi-k3.rope.freq_base"] = np.float32(5e6)  # which means nothing where nothing rotates

    plan = gguf2st.make_plan(rewritten("kimi-k3", tmp_path / "free.gguf", without))
    assert plan.all_problems == ()
    assert "gate_lower_bound" not in plan.config["linear_attn_config"]
