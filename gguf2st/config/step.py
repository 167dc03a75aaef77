"""Step 3.5: full layers among those with a window, which have heads, a rope base and a rotary share of their own."""

from typing import Any

from gguf2st.config.attention import window_of
from gguf2st.config.functions import FileScope, function, given
from gguf2st.config.rope import scaling_of, theta_of
from gguf2st.config.rope_fit import fit_llama3
from gguf2st.errors import MapError

_LISTS = ("attention.head_count", "attention.head_count_kv", "attention.sliding_window_pattern")


@function("rope.", "context_length", "attention.key_length", "attention.sliding_window", *_LISTS)
def step_attention(scope: FileScope, layers: int) -> dict[str, Any]:
    """Kinds of layers, in the words of the published configuration.

    Full layers rotate the first half of a head, the others all of it (llama.cpp: step35.cpp).

    Raises:
        MapError: lists that are too short, or layers of one kind that differ.
    """
    rows = [scope.get(key) for key in _LISTS]
    if not all(isinstance(row, list) and len(row) >= layers for row in rows):
        raise MapError(f"{', '.join(_LISTS)} are not lists for {layers} layers")
    counts: dict[bool, set[tuple[int, int]]] = {False: set(), True: set()}
    for heads, kv_heads, windowed in list(zip(*rows, strict=False))[:layers]:
        counts[bool(windowed)].add((heads, kv_heads))
    if not counts[False] or any(len(found) > 1 for found in counts.values()):
        raise MapError(f"no full layer, or layers of one kind have different numbers of heads: {counts}")
    local = [bool(x) for x in rows[2][:layers]]
    head_dim = scope.get("attention.key_length")
    theta, window_theta = theta_of(scope, "rope.freq_base"), theta_of(scope, "rope.freq_base_swa")
    ((heads, kv_heads),) = counts[False]
    ((more_heads, more_kv_heads),) = counts[True] or counts[False]
    if scaling_of(scope):
        raise MapError("rope scaling other than that of rope_freqs.weight, which no Step 3.5 has")
    out = {
        "num_attention_heads": heads,
        "num_attention_groups": kv_heads,
        "attention_other_setting": {
            "attention_type": "sliding_attention",
            "num_attention_heads": more_heads,
            "num_attention_groups": more_kv_heads,
            "head_dim": head_dim,
        },
        "sliding_window": window_of(scope),
        "layer_types": ["sliding_attention" if x else "full_attention" for x in local],
        "partial_rotary_factors": [1.0 if x else 0.5 for x in local],
        "rope_theta": [window_theta if x else theta for x in local],
    }
    scaling = _llama3(scope, theta, head_dim // 2)
    return out | ({"rope_scaling": scaling} if scaling else {})


def _llama3(scope: FileScope, theta: float, dims: int) -> dict[str, Any]:
    """llama3 scaling of full layers, whose divisors are followed by ones; {} where there is none.

    Raises:
        MapError: the tensor follows no such rule.
    """
    divisors = scope.tensor("rope_freqs.weight", "became rope parameters of type llama3")
    if divisors is None or all(d == 1.0 for d in divisors):
        return {}
    rest = divisors[dims // 2 :]
    found = fit_llama3(divisors[: dims // 2], theta, dims, given(scope, "context_length", 0))
    if found is None or any(d != 1.0 for d in rest) or len(rest) not in (0, dims // 2):
        raise MapError("rope_freqs.weight follows no known scaling rule (llama3 over half of a head was tried)")
    if not found.unique:
        scope.note("rope_freqs.weight fits several llama3 settings; the ones written give the same frequencies")
    return {
        "rope_type": "llama3",
        "factor": found.factor,
        "original_max_position_embeddings": found.original,
        "low_freq_factor": 1.0,
        "high_freq_factor": found.high,
    }


@function("leading_dense_block_count", "moe_every_n_layers")
def step_moe_layers(scope: FileScope, layers: int) -> str:
    """Which layers have experts: "3,4,5,...".

    Raises:
        MapError: experts in some of the layers after the first only, which llama.cpp does not run either.
    """
    if given(scope, "moe_every_n_layers", 1) != 1:
        raise MapError(f"moe_every_n_layers is {scope.get('moe_every_n_layers')}; 1 was expected")
    return ",".join(str(i) for i in range(given(scope, "leading_dense_block_count", 0), layers))


@function("swiglu_clamp_exp", "swiglu_clamp_shexp")
def step_limits(scope: FileScope, layers: int) -> dict[str, Any]:
    """How far the activations of experts may reach in each layer; 0 for as far as they like."""
    keys = {"swiglu_limits": "swiglu_clamp_exp", "swiglu_limits_shared": "swiglu_clamp_shexp"}
    return {name: given(scope, key, [0.0] * layers)[:layers] for name, key in keys.items()}
