"""OpenELM, whose class computes heads and widths of each layer from factors of the model's width."""

from typing import Any

from gguf2st.config.functions import FileScope, function
from gguf2st.config.hybrid import layerwise
from gguf2st.errors import MapError

DIVISOR, QKV = 256, (0.5, 1.0)
"""Of all published OpenELMs: what widths are rounded to a multiple of, and the factors of the first and last layer."""


def divisible(size: float, divisor: int) -> int:
    """The class's rounding: to the nearest multiple, but no more than a tenth down."""
    rounded = max(divisor, int(size + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * size else rounded


@function("attention.head_count", "attention.head_count_kv", "feed_forward_length")
def openelm_layers(scope: FileScope, layers: int, dim: int, head_dim: int) -> dict[str, Any]:
    """Heads and widths, and factors from which OpenELM's class computes them again.

    Raises:
        MapError: it would compute others.
    """
    queries, keys = (layerwise(scope, f"attention.{key}", layers) for key in ("head_count", "head_count_kv"))
    widths = layerwise(scope, "feed_forward_length", layers)
    groups = {q // k if k and q % k == 0 else 0 for q, k in zip(queries, keys, strict=True)}
    shared = groups.pop()
    first, last = QKV
    factors = [round(first + (last - first) * i / max(layers - 1, 1), 2) for i in range(layers)]
    if groups or not shared or queries != [divisible(dim * f, head_dim * shared) // head_dim for f in factors]:
        raise MapError(f"heads {queries} with keys {keys} do not grow from {first} to {last} of the model's width")
    if any(divisible(width / dim * dim, DIVISOR) != width for width in widths):
        raise MapError(f"feed_forward_length has widths that are no multiples of {DIVISOR}: {widths}")
    return {
        "num_query_heads": queries,
        "num_kv_heads": keys,
        "num_gqa_groups": shared,
        "qkv_multipliers": list(QKV),
        "ffn_multipliers": [width / dim for width in widths],
        "ffn_dim_divisor": DIVISOR,
    }
