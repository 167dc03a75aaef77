"""PLaMo 2 and 3: attention and windows by a count of layers, and rope keys that make rope_parameters later on."""

from typing import Any

from gguf2st.config.attention import layer_types
from gguf2st.config.functions import FileScope, function
from gguf2st.config.hybrid import layerwise
from gguf2st.config.rope import require_whole_heads, scaling_of, theta_of
from gguf2st.errors import MapError


@function("rope.", "attention.sliding_window", "attention.sliding_window_pattern")
def plamo3_attention(scope: FileScope, layers: int, head_dim: int) -> dict[str, Any]:
    """The window, every how many layers one is without, and the ropes of both kinds.

    layer_types and rope_parameters are properties of the published Plamo3Config, which refuses them in config.json. It
    fixes beta_fast and beta_slow of yarn, which full layers alone have.

    Raises:
        MapError: windows that follow no such count, or a scaling that the published class cannot have.
    """
    require_whole_heads(scope, head_dim)
    kinds = layer_types(scope, layers, default_pattern=8)
    count = scope.get("attention.sliding_window_pattern")
    pattern = count if isinstance(count, int) else (*kinds, "full_attention").index("full_attention") + 1
    if any((kind == "full_attention") != ((i + 1) % pattern == 0) for i, kind in enumerate(kinds)):
        raise MapError("attention.sliding_window_pattern is no count of layers, each last of which has no window")
    scaling = scaling_of(scope)
    if scaling and (
        scaling["rope_type"] != "yarn"
        or (scaling.get("beta_fast", 32.0), scaling.get("beta_slow", 1.0)) != (32.0, 1.0)
        or scaling.get("attention_factor", 1.0) != 1.0
        or scaling.get("extrapolation_factor", 1.0) != 1.0
    ):
        raise MapError("rope scaling that is not yarn with beta_fast 32 and beta_slow 1, which PLaMo 3's class fixes")
    return {
        "window_size": scope.get("attention.sliding_window"),
        "sliding_window_pattern": pattern,
        "rope_theta": theta_of(scope, "rope.freq_base"),
        "rope_local_theta": theta_of(scope, "rope.freq_base_swa"),
        "rope_scaling_factor": scaling.get("factor", 1),
        "initial_context_length": scaling.get("original_max_position_embeddings"),
    }


@function("attention.head_count", "attention.head_count_kv")
def plamo2_heads(scope: FileScope, layers: int) -> dict[str, Any]:
    """PLaMo 2: how many heads layers with attention have, and every how many layers one has it.

    Raises:
        MapError: layers with attention that differ, or that follow no such count.
    """
    queries, keys = (layerwise(scope, f"attention.{key}", layers) for key in ("head_count", "head_count_kv"))
    counts = sorted({(q, k) for q, k in zip(queries, keys, strict=True) if q or k})
    if len(counts) != 1:
        raise MapError(f"layers with attention have {counts or 'no'} heads; one number, and one of keys, was expected")
    with_attention = [bool(q) for q in queries]
    for step in range(1, 2 * layers + 1):
        if layers <= step // 2:
            found = [i == layers - 1 for i in range(layers)]
        else:
            found = [i % step == step // 2 for i in range(layers)]
        if found == with_attention:
            heads, kv_heads = counts[0]
            return {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "mamba_step": step}
    raise MapError(f"the layers with attention, {[i for i, x in enumerate(with_attention) if x]}, follow no step")
