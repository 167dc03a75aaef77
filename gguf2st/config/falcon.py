"""Falcon: a rope base that no file holds. Falcon H1: multipliers that became part of the weights."""

from typing import Any

from gguf2st.config.functions import FileScope, function
from gguf2st.config.rope import rope

FALCON_2_THETA = 500042.0
"""rope_theta of tiiuae/falcon-11B (config.json there: 60 layers, 32 heads, 8 key/value heads, rope_theta 500042.0), the
only published model with one norm and several key/value heads; falcon-7b and falcon-40b have no such key, so 10000."""

MULTIPLIERS = (
    "attention_in_multiplier",
    "attention_out_multiplier",
    "embedding_multiplier",
    "key_multiplier",
    "lm_head_multiplier",
    "ssm_in_multiplier",
    "ssm_out_multiplier",
)


@function("rope.")
def falcon_rope(scope: FileScope, head_dim: int, several_kv_heads: bool, two_norms: bool) -> dict[str, Any]:
    """Rotary embedding of Falcon, whose base llama.cpp's converter leaves out: 10000 but for Falcon2-11B."""
    out = rope(scope, head_dim)
    if scope.get("rope.freq_base") is not None:
        return out
    theta = FALCON_2_THETA if several_kv_heads and not two_norms else out["rope_theta"]
    scope.note(f"rope_theta = {theta} is assumed: the published models' of this shape, not in the file")
    return out | {"rope_theta": theta, "rope_parameters": out["rope_parameters"] | {"rope_theta": theta}}


@function()
def folded_multipliers(scope: FileScope, tied: bool) -> dict[str, Any]:
    """All multipliers of Falcon H1 as 1: llama.cpp's converter has multiplied them into the weights.

    With one matrix for embedding and head only the embedding's multiplier is in it, and the head's is lost.
    """
    if tied:
        scope.note("lm_head_multiplier is lost: the head shares the embedding's weights, so that logits may be scaled")
    ones = dict.fromkeys(MULTIPLIERS, 1.0)
    return {**ones, "mlp_multipliers": [1.0] * 2, "ssm_multipliers": [1.0] * 5}
