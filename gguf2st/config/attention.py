"""Attention patterns: which layers see a window and which everything."""

from typing import Any

from gguf2st.config.functions import FileScope, assumed, function, given, nonzero
from gguf2st.config.rope import by_kind, require_whole_heads, scaling_of, theta_of
from gguf2st.errors import MapError

QUERY_SCALE = ("query_pre_attn_scalar", "no file has it; llama.cpp tells the 27B model by its 62 layers")


@function("attention.sliding_window")
def window_of(scope: FileScope) -> int:
    """The window of a model that has some in every file.

    Raises:
        MapError: it is missing, or 0. With 0, llama.cpp (llama_hparams::is_masked_swa) lets no token see any, itself
            included, and computes no numbers.
    """
    if not (window := nonzero(scope, "attention.sliding_window")):
        raise MapError("attention.sliding_window is missing or 0, with which llama.cpp does not run the model")
    return int(window)


@function("rope.", "attention.sliding_window", "attention.sliding_window_pattern", "context_length")
def gemma3_attention(scope: FileScope, layers: int, heads: int, head_dim: int, hidden: int) -> dict[str, Any]:
    """Gemma 3: five sliding-window layers with their own rope base, then a full one; scaling on full layers only.

    query_pre_attn_scalar is in no metadata key. llama.cpp decides it by the number of layers (62: the 27B model,
    which uses hidden / heads), and so do we; every other published size uses head_dim. The report says so.

    Without a window, or with one of 0, every layer is full (gemma3.cpp). transformers wants a number all the same.
    """
    window = nonzero(scope, "attention.sliding_window")
    types = layer_types(scope, layers, default_pattern=6) if window else ["full_attention"] * layers
    theta, local = theta_of(scope, "rope.freq_base"), theta_of(scope, "rope.freq_base_swa")
    require_whole_heads(scope, head_dim)
    scaling = scaling_of(scope)
    out: dict[str, Any] = {
        "sliding_window": window or scope.get("context_length"),
        "layer_types": types,
        "query_pre_attn_scalar": assumed(scope, hidden // heads if layers == 62 else head_dim, *QUERY_SCALE),
        "rope_theta": theta,
        "rope_local_base_freq": local,
        "rope_parameters": by_kind(theta, local, scaling),
    }
    if "full_attention" in types:
        out["sliding_window_pattern"] = types.index("full_attention") + 1
    return out | ({"rope_scaling": scaling} if scaling else {})


def layer_types(scope: FileScope, layers: int, default_pattern: int, dense_first: bool = False) -> list[str]:
    """One attention type per layer: a pattern n makes every n-th layer full, 0 none; an array says it per layer.

    The last of each n layers is the full one, or with `dense_first` the first (llama_hparams::set_swa_pattern).
    """
    pattern = given(scope, "attention.sliding_window_pattern", default_pattern)
    if isinstance(pattern, int):
        sliding = [pattern == 0 or i % pattern != (0 if dense_first else pattern - 1) for i in range(layers)]
    else:
        sliding = [bool(x) for x in pattern]
        if len(sliding) != layers:
            raise MapError(f"attention.sliding_window_pattern has {len(sliding)} items for {layers} layers")
    return ["sliding_attention" if s else "full_attention" for s in sliding]


PREFIX = (
    "tokens of a prompt see each other in both directions in vLLM, in transformers where their token_type_ids are 1,"
    " and in llama.cpp never"
)
NO_PREFIX = "vLLM 0.32 lets tokens of a prompt see each other in both directions all the same; transformers does not"


@function("hrm.prefix_lm")
def prefix_lm(scope: FileScope) -> bool:
    """HRM-Text: whether the tokens of a prompt see each other in both directions, with what its readers make of that.

    vLLM's class (models/hrm_text.py) always lets them, llama.cpp (hrm-text.cpp) never does.
    """
    both = scope.get("hrm.prefix_lm") is True
    scope.note(f"prefix_lm = {str(both).lower()}: {PREFIX if both else NO_PREFIX}")
    return both
