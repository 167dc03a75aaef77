"""Read what type transformers' configuration classes want of each key; write gguf2st/verification/config_types.json.

    python scripts/read_config_types.py

Since transformers 5 these classes are dataclasses that refuse a value of another type. The table holds the keys that at
least MIN_CLASSES text models share: every type that any of them takes, and the models that take less.
"""

import dataclasses
import json
import types
import typing
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

TARGET = Path(__file__).resolve().parent.parent / "gguf2st/verification/config_types.json"
MIN_CLASSES = 3
TASKS = ("CAUSAL_LM", "MASKED_LM", "SEQUENCE_CLASSIFICATION")
NAMES = {int: "int", float: "float", bool: "bool", str: "str", type(None): "null", None: "null"}


def json_types(hint: Any) -> Iterator[str]:
    """Names of the JSON types that a type hint takes; "other" for anything that JSON cannot tell."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in NAMES:
        yield NAMES[hint]
    elif origin in (typing.Union, types.UnionType):
        for argument in arguments:
            yield from json_types(argument)
    elif origin is typing.Literal:
        yield from (NAMES[type(argument)] for argument in arguments)
    elif origin is typing.Annotated:
        yield from json_types(arguments[0])
    elif isinstance(origin or hint, type) and issubclass(origin or hint, (list, tuple, set)):
        yield "list"
    elif isinstance(origin or hint, type) and issubclass(origin or hint, dict):
        yield "dict"
    else:
        yield "other"


def fields(model_type: str) -> dict[str, frozenset[str]]:
    """Key -> JSON types, of one configuration class."""
    kind = CONFIG_MAPPING[model_type]
    # Those of the base class are spelled out as text, and not looked at by transformers.
    own = [f for f in dataclasses.fields(kind) if not isinstance(f.type, str)] if dataclasses.is_dataclass(kind) else []
    return {f.name: frozenset(json_types(f.type)) for f in own}


def main() -> None:
    models = [getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES") for task in TASKS]
    rows = {name: fields(name) for name in dict.fromkeys(name for table in models for name in table)}
    counts = Counter(key for row in rows.values() for key in row)
    union: dict[str, frozenset[str]] = defaultdict(frozenset)
    for row in rows.values():
        for key, kinds in row.items():
            union[key] |= kinds
    kept = {key: kinds for key, kinds in union.items() if counts[key] >= MIN_CLASSES and "other" not in kinds}
    narrower: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, row in rows.items():
        for key in row.keys() & kept.keys():
            if row[key] != kept[key]:
                narrower[key]["|".join(sorted(row[key]))].append(name)
    table = {
        "transformers": transformers.__version__,
        "models": sorted(rows),
        "types": {key: "|".join(sorted(kinds)) for key, kinds in sorted(kept.items())},
        "narrower": {key: {k: sorted(v) for k, v in sorted(rest.items())} for key, rest in sorted(narrower.items())},
    }
    TARGET.write_text(json.dumps(table, separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"{TARGET.name}: {len(kept)} keys of {len(rows)} models")


if __name__ == "__main__":
    main()
