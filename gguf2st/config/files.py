"""What config.json and generation_config.json have for every architecture: dtype, token ids, sampling."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gguf2st.header.keys import is_number

if TYPE_CHECKING:
    from gguf2st.tokenizer import SpecialTokens


def with_dtype(config: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """config.json with its dtype under the name of transformers 5 (`dtype`) and of 4.x and vLLM (`torch_dtype`)."""
    return {**config, "dtype": dtype, "torch_dtype": dtype}


def nested(config: Mapping[str, Any]) -> dict[str, Any]:
    """config.json of keys with dots: {"text_config.head_dim": 64} -> {"text_config": {"head_dim": 64}}."""
    out: dict[str, Any] = {}
    for key, value in config.items():
        outer, _, inner = key.partition(".")
        out[outer] = {**out.get(outer, {}), inner: value} if inner else value
    return out


def token_ids(tokens: "SpecialTokens") -> dict[str, Any]:
    """The token ids that config.json and generation_config.json share."""
    ids = {"bos_token_id": tokens.bos, "eos_token_id": _one_or_list(tokens.end_ids), "pad_token_id": tokens.pad}
    return {key: value for key, value in ids.items() if value is not None}


def generation_config(tokens: "SpecialTokens", metadata: Mapping[str, Any]) -> dict[str, Any]:
    """generation_config.json: every token that ends a turn, and sampling settings where the file recommends some.

    llama.cpp stores recommendations as general.sampling.*; names below are transformers'.
    """
    always = token_ids(tokens) | ({"suppress_tokens": list(tokens.suppressed)} if tokens.suppressed else {})
    if metadata.get("general.sampling.temp") == 0:  # llama.cpp's way to say greedy
        return always | {"do_sample": False}
    sampling = {
        ours: value
        for theirs, ours, fits in _SAMPLING
        if is_number(value := metadata.get(f"general.sampling.{theirs}")) and fits(value)
    }
    return always | ({"do_sample": True} | sampling if sampling else {})


_SAMPLING: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("temp", "temperature", lambda v: v > 0),
    ("top_k", "top_k", lambda v: type(v) is int and v > 0),
    ("top_p", "top_p", lambda v: 0 < v <= 1),
    ("min_p", "min_p", lambda v: 0 <= v <= 1),
    ("penalty_repeat", "repetition_penalty", lambda v: v > 0),
)
"""llama.cpp's name, transformers' name, and the values that transformers takes; others are left out."""


def _one_or_list(ids: Sequence[int]) -> int | list[int] | None:
    if not ids:
        return None
    return ids[0] if len(ids) == 1 else list(ids)
