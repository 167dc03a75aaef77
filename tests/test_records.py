"""JSON -> dataclasses, and a plan.json that a stranger wrote."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from gguf2st import api
from gguf2st.errors import SourceError
from gguf2st.plan.as_json import from_json, to_json
from gguf2st.records import MistypedError, from_plain
from tests.make_gguf import tiny_llama


@dataclass(frozen=True)
class Leaf:
    name: str
    size: int | None = None


@dataclass(frozen=True)
class Tree:
    leaves: tuple[Leaf, ...]
    pair: tuple[str, int]
    order: Literal["little", "big"]
    weights: dict[str, tuple[float, ...]] = field(default_factory=dict)
    names: frozenset[str] = frozenset()
    anything: Any = None


def test_values_become_what_the_annotations_say() -> None:
    plain = {
        "leaves": [{"name": "a", "size": 1}, {"name": "b"}],
        "pair": ["x", 2],
        "order": "big",
        "weights": {"w": [1, 2.5]},
        "names": ["n", "n"],
        "anything": {"k": [None]},
    }
    assert from_plain(Tree, json.loads(json.dumps(plain))) == Tree(
        (Leaf("a", 1), Leaf("b")), ("x", 2), "big", {"w": (1, 2.5)}, frozenset({"n"}), {"k": [None]}
    )
    leaf = Leaf("same")
    assert from_plain(Leaf, leaf) is leaf


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (Leaf, {"name": 1}, r"Leaf\.name: 1 is no str"),
        (Leaf, {}, "Leaf lacks name"),
        (Leaf, {"name": "a", "sise": 1}, "Leaf has no 'sise'"),
        (Leaf, [], "list"),
        (Leaf, {"name": "a", "size": True}, "True"),
        (tuple[str, ...], "ab", "'ab'"),
        (tuple[str, int], ["a"], "list"),
        (tuple[Leaf, ...], [{"name": None}], "None is no str"),
        (dict[str, int], [1], "list"),
        (dict[str, int], {"a": 1.0}, "1.0"),
        (float, "1", "'1'"),
        (float, True, "True"),
        (int, True, "True"),
        (bool, 1, "1 is no bool"),
        (Literal["little", "big"], "middle", "'middle'"),
        (Literal[1], True, "True"),
        (int | None, "x", "'x'"),
        (str, "long" * 100_000 and 5, "5 is no str"),
    ],
)
def test_anything_else_is_refused(kind: Any, value: Any, said: str) -> None:
    with pytest.raises(MistypedError, match=said):
        from_plain(kind, value)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    source = tiny_llama(tmp_path_factory.mktemp("plan") / "m.gguf")
    plain: dict[str, Any] = json.loads(to_json(api.make_plan(source, max_shard_size=50_000)))
    assert from_json(json.dumps(plain)).entries
    return plain


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("shards.0.file", "../../escaped.safetensors"),
        ("shards.0.file", "/etc/escaped.safetensors"),
        ("shards.0.file", "model.safetensors\n"),
        ("shards.0.nbytes", -1),
        ("entries.0.outputs.0.shard", 99),
        ("entries.0.outputs.0.shard", -1),
        ("entries.0.outputs.0.start", -4),
        ("entries.0.outputs.0.stop", 2**62),
        ("entries.0.sources.0", "not.there"),
        ("entries.0.dtype", "float128"),
        ("entries.0.scheme", "magic"),
        ("entries.0.shape", [1.5]),
        ("entries.0.shape", "12"),
        ("header.sources.0.3", 7),
        ("header.sources.0.4", -1),
        ("header.sources.0.2", [[1]]),
        ("header.sources.0.6", True),
        ("header.sizes", []),
        ("header.files", "m.gguf"),
        ("header.byteorder", "middle"),
        ("arch", None),
        ("missing", {"a": ["b"]}),
        ("problems", "text"),
        ("unknown", 1),
        ("entries", {}),
        ("header", 1),
    ],
)
def test_a_plan_of_a_stranger(table: dict[str, Any], path: str, value: Any) -> None:
    *way, last = path.split(".")
    changed = at = json.loads(json.dumps(table))
    for step in way:
        at = at[int(step) if step.isdigit() else step]
    at[int(last) if last.isdigit() else last] = value
    with pytest.raises(SourceError, match="this is no plan"):
        from_json(json.dumps(changed))


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", "[" * 100_000, '{"arch": NaN}', '{"arch": 1e999}', "9" * 5000]
)
def test_what_is_no_plan_at_all(text: str) -> None:
    with pytest.raises(SourceError, match="this is no plan") as caught:
        from_json(text)
    assert len(caught.value.message) < 300


def test_a_plan_is_read_whole(table: dict[str, Any], tmp_path: Path) -> None:
    assert json.loads(to_json(from_json(json.dumps(table)))) == table
