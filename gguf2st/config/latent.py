"""Latent attention whose rope or kinds of layers have a rule of their own: Mistral 4, Dots 3, Ling 3, GLM 5.3, HY 4."""

import math
from collections.abc import Mapping
from typing import Any

from gguf2st.config.attention import window_of
from gguf2st.config.functions import FileScope, function, given, nonzero
from gguf2st.config.hybrid import kv_counts
from gguf2st.config.layer_rules import one_swiglu_limit
from gguf2st.config.mla import expert_groups, mla_rope
from gguf2st.config.rope import rope, scaling_of, theta_of
from gguf2st.errors import MapError

MISTRAL4_BETA = 0.1
"""llama_4_scaling_beta of Mistral Small 4, the only published model of its class; transformers' Mistral4Config has its
values as defaults."""


@function("rope.", "attention.temperature_scale")
def mistral4_rope(scope: FileScope, dims: int, head_dim: int) -> dict[str, Any]:
    """Rotary embedding over the last `dims` dimensions of a head, and queries times 1 + beta * log(1 + position // n).

    llama.cpp's converter does not write beta, so that llama.cpp computes without it. It changes nothing before position
    n, the original context length. llama.cpp takes mscale as 1 (llama-context.cpp), as the published model has it.
    """
    out = mla_rope(scope, dims)
    beta = scope.get("attention.temperature_scale")
    if beta is None:
        beta = MISTRAL4_BETA
        scope.note(f"llama_4_scaling_beta = {beta} is assumed: the published model's; the file does not say")
    more: dict[str, Any] = {"llama_4_scaling_beta": beta, "partial_rotary_factor": dims / head_dim}
    more |= {"mscale": 1.0} if "mscale" in out["rope_parameters"] else {}
    both = ("rope_parameters", "rope_scaling")  # where transformers finds both, it takes the second
    return out | {key: out[key] | more for key in both if key in out}


@function()
def root(_: FileScope, square: float) -> float:
    """The square root, of a ratio that llama.cpp's converter scaled a norm by."""
    return math.sqrt(square)


@function(
    "rope.",
    "attention.head_count",
    "attention.indexer.types",
    "attention.key_length_mla_swa",
    "attention.kv_lora_rank_swa",
    "attention.q_lora_rank",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.value_length_mla_swa",
)
def dots3_layers(scope: FileScope, layers: int) -> dict[str, Any]:
    """Dots 3 Note: the kind of each layer in the words of its published configuration, and what each kind has.

    Raises:
        MapError: a list that is too short, layers of one kind with different numbers of heads, an indexer in a layer
            with a window, or none in one without.
    """
    windowed = [bool(x) for x in given(scope, "attention.sliding_window_pattern", ())][:layers]
    heads = given(scope, "attention.head_count", [])[:layers]
    if len(windowed) != layers or len(heads) != layers:
        raise MapError(f"attention.head_count and attention.sliding_window_pattern do not fit {layers} layers")
    counts = {kind: {n for n, x in zip(heads, windowed, strict=True) if x == kind} for kind in (False, True)}
    if any(len(found) != 1 for found in counts.values()):
        raise MapError(f"attention.head_count is not one number for full layers and one for the others: {heads}")
    full, local = (counts[kind].pop() for kind in (False, True))
    if [bool(x) for x in given(scope, "attention.indexer.types", ())][:layers] != [not x for x in windowed]:
        raise MapError("attention.indexer.types is not true in each layer without a window, and there only")
    if scaling_of(scope):
        raise MapError("rope scaling, which no Dots 3 Note has")
    rotary = scope.get("rope.dimension_count")
    return {
        "layer_types": ["sliding_attention" if x else "full_attention" for x in windowed],
        "num_attention_heads": full,
        "num_key_value_heads": full,
        "swa_num_attention_heads": local,
        "swa_num_key_value_heads": local,
        "sliding_window_size": window_of(scope),
        "swa_head_dim": scope.get("attention.key_length_mla_swa"),
        "swa_q_lora_rank": scope.get("attention.q_lora_rank"),
        "swa_kv_lora_rank": scope.get("attention.kv_lora_rank_swa"),
        "swa_qk_nope_head_dim": scope.get("attention.key_length_mla_swa") - rotary,
        "swa_qk_rope_head_dim": rotary,
        "swa_v_head_dim": scope.get("attention.value_length_mla_swa"),
        "rope_theta": theta_of(scope, "rope.freq_base"),
        "swa_rope_theta": theta_of(scope, "rope.freq_base_swa"),
    }


_WIDTHS = ("attention.key_length_mla", "attention.value_length_mla", "rope.dimension_count")


@function("attention.kv_lora_rank", "attention.q_lora_rank", *_WIDTHS)
def latent_widths(scope: FileScope) -> dict[str, Any]:
    """The widths of latent attention: of its two latents, of a key's part that rotates and the rest, and of a value.

    Raises:
        MapError: one of them is missing, or more of a key rotates than there is.
    """
    key, value, rotary = (scope.get(name) for name in _WIDTHS)
    rank = scope.get("attention.kv_lora_rank")
    if not key or not value or not rank or not rotary or rotary > key:
        raise MapError(
            f"attention.key_length_mla is {key}, value_length_mla {value}, kv_lora_rank {rank} and rope.dimension_count"
            f" {rotary}; a number for each was expected, the last at most the first"
        )
    return {
        "q_lora_rank": scope.get("attention.q_lora_rank"),
        "kv_lora_rank": rank,
        "qk_nope_head_dim": key - rotary,
        "qk_rope_head_dim": rotary,
        "v_head_dim": value,
    }


@function(
    "rope.",
    "attention.head_count_kv",
    "attention.kv_lora_rank",
    "attention.q_lora_rank",
    "expert_group_count",
    "expert_group_used_count",
    "kda.gate_lower_bound",
    "kda.safe_gate",
    "ssm.conv_kernel",
    "swiglu_clamp_exp",
    "swiglu_clamp_shexp",
    *_WIDTHS,
)
def ling3_layers(scope: FileScope, layers: int) -> dict[str, Any]:
    """Ling 3: every n-th layer, and those after the last whole group of n, have latent attention; and what is in them.

    Raises:
        MapError: the layers with key/value heads, which are those with latent attention, follow no such rule.
    """
    full = [n > 0 for n in kv_counts(scope, layers)]
    size = full.index(True) + 1 if True in full else layers + 1
    if full != [(i + 1) % size == 0 or i >= layers // size * size for i in range(layers)]:
        raise MapError(f"the layers {[i for i, x in enumerate(full) if x]} are not every n-th of {layers}")
    widths = latent_widths(scope)
    out = widths | rope(scope, widths["qk_rope_head_dim"]) | expert_groups(scope)
    out |= {
        "layer_group_size": size,
        "layer_types": ["full_attention" if x else "linear_attention" for x in full],
        "kda_lower_bound": scope.get("kda.gate_lower_bound"),
        "kda_safe_gate": scope.get("kda.safe_gate") is not False,
        "short_conv_kernel_size": scope.get("ssm.conv_kernel"),
    }
    limits = {"expert_swiglu_limit_list": "swiglu_clamp_exp", "share_expert_swiglu_limit_list": "swiglu_clamp_shexp"}
    return out | {name: scope.get(key)[:layers] for name, key in limits.items() if scope.get(key)}


@function(
    "expert_count",
    "expert_feed_forward_length",
    "expert_shared_count",
    "expert_shared_feed_forward_length",
    "expert_used_count",
    "expert_weights_norm",
    "expert_weights_scale",
    "leading_dense_block_count",
)
def ling_experts(scope: FileScope) -> dict[str, Any]:
    """How many experts of which width, and how they are weighted, in the words of Ling's configurations."""
    return {
        "moe_intermediate_size": scope.get("expert_feed_forward_length"),
        "moe_shared_expert_intermediate_size": scope.get("expert_shared_feed_forward_length"),
        "num_experts": scope.get("expert_count"),
        "num_shared_experts": scope.get("expert_shared_count"),
        "num_experts_per_tok": scope.get("expert_used_count"),
        "norm_topk_prob": given(scope, "expert_weights_norm", False),
        "routed_scaling_factor": nonzero(scope, "expert_weights_scale", 1.0),
        "first_k_dense_replace": scope.get("leading_dense_block_count"),
    }


@function(
    "expert_count",
    "expert_feed_forward_length",
    "expert_group_count",
    "expert_group_used_count",
    "expert_shared_count",
    "expert_used_count",
    "expert_weights_norm",
    "expert_weights_scale",
)
def deepseek_experts(scope: FileScope) -> dict[str, Any]:
    """How many experts of which width, how they are chosen and weighted, in the words of DeepSeek's configurations."""
    return ungrouped_experts(scope) | expert_groups(scope)


def ungrouped_experts(scope: FileScope) -> dict[str, Any]:
    """`deepseek_experts` of models whose experts form no groups."""
    return {
        "moe_intermediate_size": scope.get("expert_feed_forward_length"),
        "n_routed_experts": scope.get("expert_count"),
        "n_shared_experts": scope.get("expert_shared_count"),
        "num_experts_per_tok": scope.get("expert_used_count"),
        "norm_topk_prob": given(scope, "expert_weights_norm", False),
        "routed_scaling_factor": nonzero(scope, "expert_weights_scale", 1.0),
    }


@function("attention.indexer.head_count", "attention.indexer.key_length", "attention.indexer.top_k")
def indexer(scope: FileScope) -> dict[str, Any]:
    """The heads of the indexer, how wide they are, and how many keys it chooses."""
    return {
        "index_n_heads": scope.get("attention.indexer.head_count"),
        "index_head_dim": scope.get("attention.indexer.key_length"),
        "index_topk": scope.get("attention.indexer.top_k"),
    }


@function("attention.indexer.types", "hyper_connection.", "swiglu_clamp_exp")
def hy_v4_layers(scope: FileScope, layers: int) -> dict[str, Any]:
    """Hunyuan 4: which layers have an indexer of their own, hyper-connections, and how far activations may reach.

    Raises:
        MapError: no list of indexers for all layers, or limits that differ from layer to layer.
    """
    types = given(scope, "attention.indexer.types", [])
    limits = set(given(scope, "swiglu_clamp_exp", [0.0]))
    if len(types) != layers or len(limits) > 1:
        raise MapError(
            f"attention.indexer.types has {len(types)} items and swiglu_clamp_exp the values {sorted(limits)[:8]};"
            f" {layers} items, one for each layer, and one value were expected"
        )
    return {
        "layer_types": ["deepseek_sparse_attention"] * layers,
        "indexer_types": ["full" if own else "shared" for own in types],
        "hc_mult": scope.get("hyper_connection.count"),
        "hc_eps": scope.get("hyper_connection.epsilon"),
        "hc_magnitude": scope.get("hyper_connection.magnitude"),
        "swiglu_limit": limits.pop(),
    }


_GLM5_WIDTHS: Mapping[str, str] = {
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "attention.key_length_mla": "qk_nope_head_dim",
    "attention.value_length_mla": "v_head_dim",
    "attention.indexer.kpool": "index_kpool",
    "hyper_connection.count": "hc_mult",
    "hyper_connection.epsilon": "hc_eps",
    "hyper_connection.sinkhorn_iterations": "hc_sinkhorn_iters",
}


@function(
    *_GLM5_WIDTHS,
    "attention.head_count",
    "attention.head_count_kv",
    "attention.indexer.",
    "attention.key_length",
    "attention.layer_norm_epsilon",
    "attention.value_length",
    "expert_gating_func",
    "kda.",
    "leading_dense_block_count",
    "ssm.conv_kernel",
    "swiglu_clamp_exp",
    "swiglu_clamp_shexp",
)
def glm5_layers(scope: FileScope, layers: int) -> dict[str, Any]:
    """GLM 5.3 Flash: which layers have linear attention and which an indexer of their own, and what is in them.

    Raises:
        MapError: lists of another length, limits on activations that differ from layer to layer, or what llama.cpp and
            the classes fix otherwise: keys that rotate, experts by softmax, or an epsilon of the indexer's norm.
    """
    heads, dense = scope.get("attention.head_count"), given(scope, "leading_dense_block_count", 0)
    linear = [n == 0 for n in kv_counts(scope, layers)]
    own = scope.get("attention.indexer.types")
    own = [True] * layers if own is None else own[:layers]
    if len(own) != layers:
        raise MapError(f"attention.indexer.types has {len(own)} items; one for each of {layers} layers was expected")
    rank = scope.get("attention.kv_lora_rank")
    if any(scope.get(f"attention.{x}_length") not in (None, rank) for x in ("key", "value")):
        raise MapError(f"attention.key_length or value_length is not kv_lora_rank, {rank}: a part of the keys rotates")
    if scope.get("expert_gating_func") not in (None, 2):
        raise MapError("expert_gating_func is not 2, sigmoid")
    if scope.get("attention.layer_norm_epsilon") not in (None, 1e-6):
        raise MapError("attention.layer_norm_epsilon is not 1e-6, which classes fix for the indexer")
    shape = {
        "head_dim": scope.get("kda.head_dim"),
        "num_heads": heads,
        "short_conv_kernel_size": scope.get("ssm.conv_kernel"),
        "gate_lower_bound": scope.get("kda.gate_lower_bound"),
    }
    ours = ("linear_head_dim", "linear_num_heads", "linear_conv_kernel_dim", "linear_lower_bound")
    fixed = {"qk_rope_head_dim": 0, "mla_use_nope": True, "indexer_rope_interleave": True, "mhc": True}
    return {
        **fixed,  # vLLM reads how the indexer's keys rotate, which they do not
        **indexer(scope),
        **{name: scope.get(key) for key, name in _GLM5_WIDTHS.items()},
        **dict(zip(ours, shape.values(), strict=True)),
        "num_key_value_heads": heads,
        "linear_attn_config": shape,
        "layer_types": ["linear_attention" if x else "full_attention" for x in linear],
        "indexer_types": ["full" if x else "shared" for x in own],
        "index_kpool_always_select_tail": scope.get("attention.indexer.kpool_select_tail") is not False,
        "first_k_dense_replace": dense,
        "mlp_layer_types": ["sparse" if i >= dense else "dense" for i in range(layers)],
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "swiglu_limit": one_swiglu_limit(scope) or None,
    }
