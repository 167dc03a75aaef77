"""Hunyuan VL: the alpha that stretches its rope base."""

from typing import Any

from gguf2st.config.functions import FileScope, function, given, nonzero
from gguf2st.config.rope import require_whole_heads, theta_of
from gguf2st.errors import MapError


@function("rope.", "context_length")
def hunyuan_vl_rope(scope: FileScope, head_dim: int) -> dict[str, Any]:
    """Rope whose base is theta * alpha ** (d / (d - 2)); llama.cpp computes that when it loads the file.

    Raises:
        MapError: scaling of another kind.
    """
    require_whole_heads(scope, head_dim)
    kind = given(scope, "rope.scaling.type", "none")
    alpha, factor = nonzero(scope, "rope.scaling.alpha", 0.0), nonzero(scope, "rope.scaling.factor", 1.0)
    scope.get("rope.scaling.original_context_length")  # the converter repeats the context length
    if kind != "none" or factor != 1.0:
        raise MapError(f"rope.scaling.type is {kind!r} with factor {factor}; Hunyuan VL has an alpha only")
    theta = theta_of(scope, "rope.freq_base")
    out: dict[str, Any] = {"max_position_embeddings": scope.get("context_length"), "rope_theta": theta}
    if not alpha:
        return out | {"rope_parameters": {"rope_type": "default", "rope_theta": theta}}
    scaling = {"rope_type": "dynamic", "alpha": alpha, "factor": factor}
    return out | {"rope_scaling": scaling, "rope_parameters": scaling | {"rope_theta": theta}}
