"""Values of config.json that are of the wrong type, such as "576" for 576: no server starts with them.

The table was read from transformers' configuration classes (`scripts/read_config_types.py`), which refuse such values
themselves since version 5. It holds the keys that several of their text models share.
"""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

_NAMES = {bool: "bool", int: "int", float: "float", str: "str", list: "list", dict: "dict", type(None): "null"}
_WORDS = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "a text"}
_PER_LAYER = {"hunyuan_v1_moe": frozenset({"moe_intermediate_size", "moe_topk", "num_shared_experts"})}
"""Keys that hold one value a layer in published checkpoints, and that transformers' class does not declare. Classes
outside transformers may do so with any key."""
_COUNTS = frozenset({"hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "num_key_value_heads"})
"""What no model has none of."""


def wrong_values(config: Mapping[str, Any], where: str = "") -> Iterator[str]:
    """One line for each value of a type that transformers refuses, nested configurations included."""
    model_type = config.get("model_type")
    known = isinstance(model_type, str) and model_type in _table()["models"]
    for key, value in config.items():
        if isinstance(value, dict) and key.endswith("_config") and key != "quantization_config":
            yield from wrong_values(value, f"{where}{key}.")
            continue
        found = _NAMES.get(type(value), "")
        allowed = _allowed(key, str(model_type) if known else "")
        if found == "list" and key not in _COUNTS and (not known or key in _PER_LAYER.get(str(model_type), ())):
            continue
        if allowed and found not in allowed:
            named = allowed - {"null"} - ({"int"} if "float" in allowed else set())
            text = " or ".join(_WORDS.get(kind, f"a {kind}") for kind in sorted(named))
            yield f"config.json says {where}{key} = {_short(value)}, not {text}"
        elif key in _COUNTS and found == "int" and value < 1:
            yield f"config.json says {where}{key} = {value}"


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _allowed(key: str, model_type: str) -> frozenset[str]:
    """Types that a key may have; none for a key that is not in the table.

    Of a model that transformers does not know, and of numbers that it may write in either way, less is certain.
    """
    if key == "architectures":  # transformers takes anything, vLLM a list
        return frozenset({"list", "null"})
    table = _table()
    kinds = table["types"].get(key, "")
    for narrower, models in table["narrower"].get(key, {}).items():
        if model_type in models:
            kinds = narrower
    allowed = frozenset(kinds.split("|")) if kinds else frozenset()
    if allowed and not model_type:
        allowed |= {"null"} | ({"int", "float"} if allowed & {"int", "float"} else set())
    return allowed


@cache
def _table() -> Mapping[str, Any]:
    text = files("gguf2st.verification").joinpath("config_types.json").read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table | {"models": frozenset(table["models"])}
