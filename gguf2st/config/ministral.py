"""Rotary embeddings and attention of Ministral 3 and Llama 4."""

from typing import Any

from gguf2st.config.functions import FileScope, function, given
from gguf2st.config.layer_rules import rope_layers
from gguf2st.config.rope import require_whole_heads, scaling_of, theta_of
from gguf2st.errors import MapError

LLAMA4_NO_NORM_EXPERTS = 128
"""llama.cpp tells Maverick, the one Llama 4 that does not normalise q and k, by its number of experts (llama4.cpp)."""


@function("rope.", "attention.temperature_scale")
def ministral3_rope(scope: FileScope, head_dim: int) -> dict[str, Any]:
    """Ministral 3: yarn, and queries times 1 + beta * log(1 + position // original context).

    llama.cpp takes mscale as 1, which published models have (transformers' Ministral3Config has theirs as defaults), so
    that only mscale_all_dim is in the file. Where it is 1 too, yarn leaves the size of queries and keys alone:
    transformers (modeling_rope_utils.py) and vLLM 0.32 (yarn_scaling_rope.py) see that in the two numbers; vLLMs that
    did not read these took apply_yarn_scaling. transformers reads beta as llama_4_scaling_beta, vLLM as
    llama_4_scaling (models/mistral.py).

    Raises:
        MapError: no yarn, or mscale_all_dim is neither 0 nor 1.
    """
    require_whole_heads(scope, head_dim)
    theta, scaling = theta_of(scope, "rope.freq_base"), scaling_of(scope)
    if scaling.get("rope_type") != "yarn":
        raise MapError("attention.temperature_scale without a yarn scaling: no model has that")
    beta, all_dim = scope.get("attention.temperature_scale"), given(scope, "rope.scaling.yarn_log_multiplier", 0.0)
    if all_dim not in (0.0, 1.0):
        raise MapError(f"rope.scaling.yarn_log_multiplier is {all_dim}; 0 and 1 are known")
    scaling |= {"mscale": 1.0, "mscale_all_dim": all_dim, "llama_4_scaling_beta": beta}
    if all_dim:
        scaling["apply_yarn_scaling"] = False
    original = scaling["original_max_position_embeddings"]
    return {
        "rope_theta": theta,
        "rope_scaling": scaling,
        "rope_parameters": {"rope_theta": theta} | scaling,
        "llama_4_scaling": {"beta": beta, "original_max_position_embeddings": original},
    }


@function("attention.sliding_window")
def llama4_attention(scope: FileScope, layers: int, experts: int) -> dict[str, Any]:
    """Llama 4: three layers with chunked attention and rotary embedding, then a full one without.

    No file holds the figures; those of llama.cpp, which has them in its code (llama4.cpp), are the published models',
    and transformers' defaults of Llama4TextConfig. A sliding_window of 0 marks a model whose layers are all full and
    all have a rotary embedding.
    """
    norm = experts != LLAMA4_NO_NORM_EXPERTS
    scope.note(f"use_qk_norm = {norm} is assumed: the file does not say, llama.cpp tells it by the number of experts")
    if scope.get("attention.sliding_window") == 0:
        return {
            "use_qk_norm": norm,
            "attn_temperature_tuning": False,
            "attention_chunk_size": None,
            "no_rope_layers": [1] * layers,
            "layer_types": ["full_attention"] * layers,
        }
    scope.note(
        "attention_chunk_size = 8192, attn_scale = 0.1 and floor_scale = 8192 are assumed, as llama.cpp has them"
    )
    rotary = rope_layers(scope, layers, 4)
    return {
        "use_qk_norm": norm,
        "attn_temperature_tuning": True,
        "attn_scale": 0.1,
        "floor_scale": 8192,
        "attention_chunk_size": 8192,
        "no_rope_layers": rotary,
        "layer_types": ["chunked_attention" if x else "full_attention" for x in rotary],
    }
