"""Laguna, Hunyuan 3, MiniMax M3, MiMo V2 and others: rope by kind of layer, and which layers have experts."""

import math
from typing import Any

from gguf2st.config.attention import layer_types, window_of
from gguf2st.config.functions import FileScope, function, given
from gguf2st.config.rope import scaling_of, theta_of
from gguf2st.errors import MapError


@function("rope.")
def two_ropes(scope: FileScope, head_dim: int) -> dict[str, Any]:
    """Rotary embeddings of full layers, which alone are scaled, and of layers with a window.

    Each has a base and a share of the head of its own; where the file says nothing of the window's, they are shared.
    """
    theta = theta_of(scope, "rope.freq_base")
    local = theta_of(scope, "rope.freq_base_swa") if scope.get("rope.freq_base_swa") else theta
    share = share_of(scope, "rope.dimension_count", head_dim)
    full = {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": share} | scaling_of(scope)
    both = scope.get("rope.dimension_count_swa") is None
    windowed = {
        "rope_type": "default",
        "rope_theta": local,
        "partial_rotary_factor": share if both else share_of(scope, "rope.dimension_count_swa", head_dim),
    }
    return {"rope_parameters": {"full_attention": full, "sliding_attention": windowed}}


def share_of(scope: FileScope, key: str, head_dim: int) -> float:
    """The share of a head that rotates, such that `int(head_dim * share)` is the key's value again.

    Raises:
        MapError: more dimensions than a head has, or an odd number of them.
    """
    dims = given(scope, key, head_dim)
    if dims > head_dim or dims % 2:
        raise MapError(f"{key} is {dims}; an even number up to {head_dim}, a head's width, was expected")
    share = dims / head_dim
    return share if int(head_dim * share) == dims else math.nextafter(share, 1.0)


@function("attention.sliding_window", "attention.sliding_window_pattern")
def laguna_layers(scope: FileScope, layers: int) -> list[str]:
    """The kind of attention in each layer of Laguna: without a window in the file, all are full.

    The converter stores no pattern; llama.cpp takes layers 0, 4, 8, ... as full (load_swa_pattern with `dense_first`),
    as the published model with windows has them.
    """
    if not scope.get("attention.sliding_window"):
        return ["full_attention"] * layers
    if scope.get("attention.sliding_window_pattern") is not None:
        return layer_types(scope, layers, default_pattern=4, dense_first=True)
    scope.note("layers 0, 4, 8, ... see everything, the others a window; the file does not say, llama.cpp does it")
    return ["sliding_attention" if i % 4 else "full_attention" for i in range(layers)]


@function("attention.sliding_window_pattern")
def sliding_or_full(scope: FileScope, layers: int) -> list[str]:
    """The kind of attention in each layer, of a file that must say it.

    Raises:
        MapError: it does not.
    """
    if scope.get("attention.sliding_window_pattern") is None:
        raise MapError("attention.sliding_window_pattern, which says which layers have a window, is missing")
    return layer_types(scope, layers, default_pattern=1)


@function("attention.sliding_window_pattern", "rope.freq_base_swa", "swiglu_clamp_exp")
def maple_layers(scope: FileScope, layers: int) -> dict[str, list[str]]:
    """Maple: which layers have a window, and with it the rope.

    Raises:
        MapError: other clamps than 7 in each layer, or a rope base of its own for windows, which its class cannot have.
    """
    if scope.get("swiglu_clamp_exp") not in ([7.0], [7.0] * layers):
        raise MapError("swiglu_clamp_exp is not 7 in each layer, which Maple's class fixes")
    local = scope.get("rope.freq_base_swa")
    if local and local != theta_of(scope, "rope.freq_base"):
        raise MapError(f"rope.freq_base_swa is {local}, not rope.freq_base; Maple's class has one for all layers")
    return {"layer_types": sliding_or_full(scope, layers)}


@function("attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa")
def smallthinker_layers(scope: FileScope, layers: int) -> dict[str, Any]:
    """SmallThinker: which layers have a window and which rotate.

    The converter stores neither. With a window, llama.cpp has layers 0, 4, 8, ... see everything without a rotary
    embedding, and 4096 tokens in the windows, as the published 21B model.

    Raises:
        MapError: another window or pattern, which llama.cpp would not follow.
    """
    window = scope.get("attention.sliding_window")
    if not window:
        return {"sliding_window_layout": [0] * layers, "rope_layout": [1] * layers}
    local = scope.get("rope.freq_base_swa")
    if window != 4096 or scope.get("attention.sliding_window_pattern") not in (None, 4) or local:
        raise MapError("windows that are not those of SmallThinker 21B (4096 tokens, all layers but 0, 4, 8, ...)")
    scope.note("layers 0, 4, 8, ... have neither window nor rotary embedding; the file does not say, llama.cpp does it")
    windowed = [int(i % 4 != 0) for i in range(layers)]
    return {"sliding_window_size": window, "sliding_window_layout": windowed, "rope_layout": windowed}


@function()
def expert_layers(scope: FileScope, layers: int) -> list[str]:
    """ "sparse" for each layer whose tensors have a router, "dense" for the others."""
    return ["sparse" if scope.has(f"blk.{i}.ffn_gate_inp.weight") else "dense" for i in range(layers)]


@function()
def layers_with(scope: FileScope, layers: int, tensor: str) -> list[int]:
    """1 for each layer that has the tensor, such as `attn_norm_2.weight`, 0 for the others."""
    return [int(scope.has(f"blk.{i}.{tensor}")) for i in range(layers)]


@function(*(f"attention.indexer.{key}" for key in ("head_count", "key_length", "top_k", "block_size", "local_blocks")))
def minimax_sparse(scope: FileScope, layers: int) -> dict[str, Any]:
    """sparse_attention_config of MiniMax M3: the indexer, of the layers whose tensors have one.

    What no file says is as published: scores by their greatest, no first block that is always seen, and no values.
    """
    sparse = layers_with(scope, layers, "indexer.q_proj.weight")
    return {
        "use_sparse_attention": True,
        "sparse_num_index_heads": scope.get("attention.indexer.head_count"),
        "sparse_index_dim": scope.get("attention.indexer.key_length"),
        "sparse_topk_blocks": scope.get("attention.indexer.top_k"),
        "sparse_block_size": scope.get("attention.indexer.block_size"),
        "sparse_local_block": scope.get("attention.indexer.local_blocks"),
        "sparse_init_block": 0,
        "sparse_score_type": "max",
        "sparse_disable_index_value": sparse,
        "sparse_attention_freq": sparse,
    }


@function()
def leading_dense(scope: FileScope, layers: int) -> int:
    """How many layers come before the first with a router, after which all must have one.

    Raises:
        MapError: a layer without experts follows one with.
    """
    kinds = expert_layers(scope, layers)
    dense = kinds.index("sparse") if "sparse" in kinds else layers
    if "dense" in kinds[dense:]:
        raise MapError(f"layer {kinds.index('dense', dense)} has no experts, but layer {dense} has")
    return dense


@function("rope.", "attention.head_count_kv", "attention.sliding_window", "attention.sliding_window_pattern")
def mimo_attention(scope: FileScope, layers: int, head_dim: int) -> dict[str, Any]:
    """MiMo V2: kinds of layers, their key/value heads and ropes, each as published and as transformers 5 has it.

    The window of the published configuration, which the converter writes, counts the tokens before the query's own;
    transformers makes one more of sliding_window_size.

    Raises:
        MapError: lists that are too short, layers of one kind that differ, or windows without twice the heads, which
            transformers takes for granted.
    """
    windowed = [bool(x) for x in given(scope, "attention.sliding_window_pattern", ())][:layers]
    counts = given(scope, "attention.head_count_kv", [])[:layers]
    kinds = sorted(set(zip(windowed, counts, strict=False)))
    if len(windowed) != layers or len(counts) != layers:
        raise MapError(f"attention.head_count_kv and attention.sliding_window_pattern do not fit {layers} layers")
    if [kind for kind, _ in kinds] != [False, True] or kinds[1][1] != 2 * kinds[0][1]:
        raise MapError(
            "attention.head_count_kv is not the same in all full layers and twice that in all with a window:"
            f" {', '.join(f'{n} with' if kind else f'{n} without' for kind, n in kinds)} a window"
        )
    n, window = kinds[0][1], window_of(scope)
    ropes = two_ropes(scope, head_dim)
    full, local = (ropes["rope_parameters"][f"{kind}_attention"] for kind in ("full", "sliding"))
    if full["rope_type"] != "default":
        raise MapError("rope scaling, which no MiMo V2 has")
    return ropes | {
        "sliding_window": window,
        "sliding_window_size": window,
        "num_key_value_heads": n,
        "swa_num_key_value_heads": 2 * n,
        "layer_types": ["sliding_attention" if x else "full_attention" for x in windowed],
        "hybrid_layer_pattern": [int(x) for x in windowed],
        "moe_layer_freq": [int(kind == "sparse") for kind in expert_layers(scope, layers)],
        "rope_theta": full["rope_theta"],
        "swa_rope_theta": local["rope_theta"],
        "partial_rotary_factor": full["partial_rotary_factor"],
    }
