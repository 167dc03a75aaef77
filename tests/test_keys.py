"""The table of metadata keys, against what gguf-py's writer stores under each."""

import ast
from array import array
from pathlib import Path
from typing import Any

import gguf
import pytest

from gguf2st.errors import MapError
from gguf2st.header.keys import KEYS, LAYERWISE, MAX_INDEX, checked, require_key

SAMPLES: dict[str, Any] = {
    "add_uint32": 3,
    "add_float32": 0.5,
    "add_bool": True,
    "add_string": "text",
    "add_array": [1, 0],
}
"""Method of gguf-py's writer -> a value that it stores."""


def _constant(node: ast.expr) -> str | None:
    """The key behind `Keys.LLM.BLOCK_COUNT` or `Keys.LLM.BLOCK_COUNT.format(...)`, without its architecture."""
    names = ast.unparse(node).removeprefix("Keys.").split(".format")[0].split(".")
    value: Any = gguf.constants.Keys
    for name in names:
        value = getattr(value, name, None)
    return value.removeprefix("{arch}.") if isinstance(value, str) and value.startswith("{arch}.") else None


def _written() -> dict[str, list[str]]:
    """Key -> methods with which gguf-py's writer stores it."""
    tree = ast.parse(Path(gguf.gguf_writer.__file__).read_text())
    found: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr=method), args=[first, *_]) if method in SAMPLES:
                if key := _constant(first):
                    found.setdefault(key, []).append(method)
    return found


WRITTEN = {key: methods for key, methods in _written().items() if "{" not in key}


def test_the_writer_s_keys_are_known() -> None:
    assert len(WRITTEN) > 100
    assert sorted(WRITTEN.keys() - KEYS.keys()) == []


@pytest.mark.parametrize("key", sorted(WRITTEN))
def test_what_the_writer_stores_is_accepted(key: str) -> None:
    for method in WRITTEN[key]:
        value = 10000.0 if "freq_base" in key else SAMPLES[method]
        assert checked(f"llama.{key}", key, value) == value
    for method, value in SAMPLES.items():
        whole_as_float = method == "add_uint32" and "add_float32" in WRITTEN[key]  # 10000 is a good rope base
        per_layer = method == "add_array" and LAYERWISE in KEYS[key]  # newer writers store a list where it varies
        if method not in WRITTEN[key] and not whole_as_float and not per_layer:
            with pytest.raises(MapError, match=key):
                checked(f"llama.{key}", key, value)


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("block_count", [1, MAX_INDEX], [0, -1, MAX_INDEX + 1, 2**32 - 1, True, 2.0, "2", [2], None]),
        ("expert_count", [0, 8], [-1, MAX_INDEX + 1, 2**31]),
        ("embedding_length", [1, 2**31 - 1], [0, 2**31, 2**64 - 1]),
        ("attention.head_count_kv", [4, [4, 0, 4], array("i", [1, 2])], [0, [4, -1], array("f", [1.0]), ["4"]]),
        ("attention.sliding_window", [0, 512], [-1, 0.5]),
        ("attention.sliding_window_pattern", [0, 6, [True, False], array("B", [1, 0])], [-1, "6", 6.0, [6.0]]),
        ("ple.head_offsets", [[], [-(2**63), 2**63 - 1], array("Q", [3])], [3, [1.0], [True], [2**63], ["1"], "1"]),
        ("attention.layer_norm_rms_epsilon", [1e-6], [0, 0.0, 1, -1e-6, float("nan"), float("inf"), "1e-6", True]),
        ("rope.freq_base", [10000, 1e6], [0.0, 0.5, -1.0, 2**63, float("inf"), [1e4]]),
        ("rope.scaling.factor", [0.0, 8.0, 8], [-8.0, float("nan"), "8"]),
        ("rope.scaling.finetuned", [True, False], [1, 0, "true"]),
        ("rope.scaling.type", ["yarn", ""], [1, True, ["yarn"]]),
        ("rope.scaling.yarn_ext_factor", [-1.0, 0, 1.5], [float("nan"), "1", False]),
    ],
)
def test_range(key: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        assert checked(f"llama.{key}", key, value) == (list(value) if isinstance(value, array) else value)
    for value in bad:
        with pytest.raises(MapError, match=rf"llama\.{key} is .*; it must be"):
            checked(f"llama.{key}", key, value)


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(MapError) as caught:
        checked("llama.block_count", "block_count", list(range(100_000)))
    assert len(caught.value.message) < 200


def test_an_unknown_key_is_told_with_the_nearest() -> None:
    with pytest.raises(MapError, match=r"attention\.head_cont.*did you mean 'attention\.head_count'"):
        require_key("attention.head_cont")
    with pytest.raises(MapError, match=r"no metadata key 'zzz'$"):
        require_key("zzz")
