"""DeciLM and Nemotron NAS: every layer has its own number of heads and width, or lacks a part."""

from typing import Any

from gguf2st.config.functions import FileScope, function
from gguf2st.errors import MapError

_PER_LAYER = ("attention.head_count", "attention.head_count_kv", "feed_forward_length")


@function(*_PER_LAYER)
def per_layer(scope: FileScope, key: str, layers: int) -> list[int]:
    """The value of a key in each layer, whether the file has one for all or a list.

    Raises:
        MapError: not one of the keys that Nemotron NAS varies, no value, or a list of another length.
    """
    value = scope.get(key) if key in _PER_LAYER else None
    if value is None:
        raise MapError(f"the file has no {key}")
    values = [int(x) for x in value] if isinstance(value, list) else [int(value)] * layers
    if len(values) != layers:
        raise MapError(f"{key} has {len(values)} items for {layers} layers")
    return values


@function(*_PER_LAYER)
def deci_blocks(scope: FileScope, layers: int, hidden: int) -> dict[str, Any]:
    """block_configs: what each layer is made of, and num_attention_heads, which all layers with attention share.

    llama.cpp's converter writes no heads for a layer without attention, heads but no key/value heads for one whose
    attention is a single matrix, and a width of 0 for one without an MLP.

    The width of an MLP is stored as a multiple m of hidden, from which the model takes int(2 * m * hidden / 3), rounded
    up to a multiple of 256: of the multiples that give this width, the one that hits it exactly is written.

    Raises:
        MapError: layers with different numbers of heads, or a width that is no multiple of 256.
    """
    heads, kv_heads, widths = (per_layer(scope, key, layers) for key in _PER_LAYER)
    if len(total := {n for n in heads if n}) != 1:
        raise MapError(f"attention.head_count is {sorted(total)} in different layers; one number can be said")
    if odd := [w for w in widths if w % 256]:
        raise MapError(f"feed_forward_length is {odd[0]} in some layer, not a multiple of 256 as in every DeciLM")
    scope.note("DeciLM's configuration class is remote code: copy configuration_decilm.py from the original model")
    return {
        "num_attention_heads": total.pop(),
        "block_configs": [_block(*counts, hidden) for counts in zip(heads, kv_heads, widths, strict=True)],
    }


def _block(heads: int, kv_heads: int, width: int, hidden: int) -> dict[str, Any]:
    attention = {
        "n_heads_in_group": heads // kv_heads if kv_heads else None,
        "no_op": heads == 0,
        "replace_with_linear": heads > 0 and kv_heads == 0,
    }
    multiple = 1.5 * width / hidden if width else None
    return {
        "attention": attention,
        "ffn": {"ffn_mult": multiple, "no_op": width == 0, "replace_with_linear": False},
    }
