"""GPT-NeoX, MPT, DBRX and Mellum: rotary embeddings with a rule of their own, and configurations made of parts."""

from typing import Any

from gguf2st.config.attention import layer_types
from gguf2st.config.functions import FileScope, assumed, function, given, nonzero
from gguf2st.config.rope import by_kind, require_whole_heads, scaling_of, theta_of
from gguf2st.errors import MapError


@function("rope.")
def gptneox_rope(scope: FileScope, head_dim: int) -> dict[str, Any]:
    """GPT-NeoX: rotary embedding over the first `rope.dimension_count` dimensions of a head, as a share of it.

    transformers 4.x and older vLLM read the share as rotary_pct, and the base as rotary_emb_base.
    """
    theta, share = theta_of(scope, "rope.freq_base"), given(scope, "rope.dimension_count", head_dim) / head_dim
    if share > 1:
        raise MapError(f"rope.dimension_count is {share * head_dim:.0f}, but a head has {head_dim} dimensions")
    if scope.get("rope.freq_base") is None:
        scope.note(
            "rotary_emb_base = 10000 is assumed: llama.cpp's converter leaves it out, and its runtime takes 10000"
        )
    scaling = scaling_of(scope)
    out: dict[str, Any] = {
        "rotary_pct": share,
        "rotary_emb_base": theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": share} | scaling,
    }
    return out | ({"rope_scaling": scaling} if scaling else {})


NEOX_20B = (44, 6144)
"""Layers and width of EleutherAI/gpt-neox-20b, whose config.json has gelu_fast; those of other models have gelu."""


@function()
def gptneox_activation(scope: FileScope, layers: int, hidden: int) -> Any:
    """The activation of the published models of that shape, which no file says."""
    found = "gelu_fast" if (layers, hidden) == NEOX_20B else "gelu"
    why = "the file does not say; that of the published models of its shape. llama.cpp runs the tanh form for every one"
    return assumed(scope, found, "hidden_act", why)


@function("attention.clamp_kqv", "attention.max_alibi_bias")
def mpt_attention(scope: FileScope) -> dict[str, Any]:
    """MPT's attn_config: alibi, and how far queries, keys and values may reach.

    Raises:
        MapError: no alibi, without which no class of transformers or vLLM runs MPT.
    """
    alibi, clip = given(scope, "attention.max_alibi_bias", 0.0), nonzero(scope, "attention.clamp_kqv")
    if not alibi:
        raise MapError("attention.max_alibi_bias is 0: an MPT without alibi, which no Hugging Face class runs")
    if alibi != 8.0:
        scope.note(f"alibi_bias_max = {alibi:g}: vLLM follows it; transformers 5.24 always takes 8 (modeling_mpt.py)")
    alibi = int(alibi) if alibi == int(alibi) else alibi  # transformers refuses a float
    return {"attn_config": {"alibi": True, "alibi_bias_max": alibi, "clip_qkv": clip}}


@function("attention.clamp_kqv", "expert_count", "expert_used_count", "feed_forward_length", "rope.")
def dbrx_parts(scope: FileScope, hidden: int, heads: int, kv_heads: int) -> dict[str, Any]:
    """DBRX: attn_config and ffn_config; the rope base is in attn_config, and for transformers 5 in rope_parameters."""
    theta = theta_of(scope, "rope.freq_base")
    require_whole_heads(scope, hidden // heads)
    if scaling_of(scope):
        raise MapError("rope scaling, which DBRX's class does not read")
    if not (clip := nonzero(scope, "attention.clamp_kqv")):
        raise MapError("attention.clamp_kqv is missing or 0: DBRX's class clamps queries, keys and values in any case")
    return {
        "attn_config": {
            "clip_qkv": clip,
            "kv_n_heads": kv_heads,
            "rope_theta": theta,
        },
        "ffn_config": {
            "hidden_size": hidden,
            "ffn_hidden_size": scope.get("feed_forward_length"),
            "ffn_act_fn": {"name": "silu"},
            "moe_num_experts": scope.get("expert_count"),
            "moe_top_k": scope.get("expert_used_count"),
            "moe_normalize_expert_weights": 1.0,  # llama.cpp always normalises them
        },
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
    }


@function("rope.", "attention.sliding_window", "attention.sliding_window_pattern")
def mellum_attention(scope: FileScope, layers: int, head_dim: int) -> dict[str, Any]:
    """Mellum 2: layers with a window have a rope base of their own, and no scaling.

    A file without a pattern has every fourth layer full (llama.cpp: load_swa_pattern(4)).
    """
    window = nonzero(scope, "attention.sliding_window")
    theta = theta_of(scope, "rope.freq_base")
    local = theta_of(scope, "rope.freq_base_swa") if scope.get("rope.freq_base_swa") else theta
    require_whole_heads(scope, head_dim)
    return {
        "sliding_window": window,
        "layer_types": layer_types(scope, layers, default_pattern=4) if window else ["full_attention"] * layers,
        "rope_parameters": by_kind(theta, local, scaling_of(scope)),
    }
