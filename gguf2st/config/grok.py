"""Grok 2: its rope scaling stands beside the other keys, under names of its own."""

from typing import Any

from gguf2st.config.functions import FileScope, function, given
from gguf2st.config.rope import require_whole_heads, theta_of
from gguf2st.errors import MapError

_YARN = {
    "factor": "scaling_factor",
    "original_context_length": "original_max_position_embeddings",
    "yarn_ext_factor": "extrapolation_factor",
    "yarn_attn_factor": "attn_factor",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}


@function("rope.")
def grok_rope(scope: FileScope, head_dim: int) -> dict[str, Any]:
    """Rotary embedding over whole heads, and yarn, which the published configuration calls "original".

    Raises:
        MapError: another scaling, or yarn without all of its keys.
    """
    require_whole_heads(scope, head_dim)
    out = {"rope_theta": theta_of(scope, "rope.freq_base")}
    kind = given(scope, "rope.scaling.type", "none")
    scope.get("rope.scaling.finetuned")  # says how the model was trained; changes no computation
    found = {ours: scope.get(f"rope.scaling.{key}") for key, ours in _YARN.items()}
    if kind == "none" and set(found.values()) == {None}:
        return out
    if kind != "yarn" or None in found.values():
        raise MapError(f"rope.scaling.type is {kind!r}; none, or yarn with all of its keys, was expected")
    return out | {"rope_type": "original"} | found
