"""A manifest: models and the options to convert them with.

[defaults]                       options for all models; {name} is replaced by the model's name
output = "converted/{name}"
dtype = "float16"

[[model]]
src = "org/repo:Q4_K_M"          the one key a model must have
name = "small"                   by default from src
push = "me/{name}"               any option of `gguf2st convert`, spelled as there
"""

import difflib
import os
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf2st.errors import Gguf2stError, UsageError
from gguf2st.source import default_output, locate
from gguf2st.source.selection import split_name

PUSH_OPTIONS = ("push", "private", "revision", "create-pr", "message")
"""Options about uploading; a model that is kept is uploaded by `gguf2st push` after its conversion."""

PATH_OPTIONS = ("src", "output", "tokenizer-from", "arch-map")
"""Options in which `~/` is the home folder, as a shell would have it."""

NAMED_OPTIONS = ("output", "push", "revision")
"""Options in which a misspelled `{name}` would become part of a name."""

MAX_PROBLEMS = 20
_PLACEHOLDER = re.compile(r"\{\w*\}")
_NAME = re.compile(r"[\w][\w. +-]{0,199}")


@dataclass(frozen=True)
class BatchModel:
    """One model of a manifest.

    Attributes:
        name: unique in the manifest.
        src: as for `gguf2st convert`.
        output: folder of the checkpoint.
        options: of `gguf2st convert`, `output` among them, those about uploading apart.
        push: options about uploading; empty when it is not uploaded.
    """

    name: str
    src: str
    output: Path
    options: Mapping[str, Any]
    push: Mapping[str, Any]

    @property
    def streams(self) -> bool:
        """Whether shards are uploaded and deleted one by one."""
        return bool(self.options.get("no-keep"))

    @property
    def convert_arguments(self) -> list[str]:
        """Arguments of `gguf2st convert`."""
        return [*_arguments({**self.options, **(self.push if self.streams else {})}), "--", self.src]

    @property
    def push_arguments(self) -> list[str]:
        """Arguments of `gguf2st push`, for a checkpoint that is kept; empty when there is nothing to upload."""
        if not self.push or self.streams:
            return []
        rest = {name: value for name, value in self.push.items() if name != "push"}
        return [*_arguments(rest), "--", str(self.output), str(self.push["push"])]

    @property
    def key(self) -> str:
        """Equal as long as nothing about the model was changed in the manifest."""
        return repr((self.convert_arguments, self.push_arguments))


@dataclass(frozen=True)
class Manifest:
    """The models of a manifest in its order; `path` is the file."""

    path: Path
    models: tuple[BatchModel, ...]


def read_manifest(
    path: Path, options: Mapping[str, bool], check: Callable[[Sequence[str]], str] = lambda arguments: ""
) -> Manifest:
    """Read and check a manifest.

    Args:
        path: the file.
        options: names of the options of `gguf2st convert` -> whether it is a flag.
        check: the problem that `gguf2st convert` would have with arguments; "" for none.

    Raises:
        UsageError: the file cannot be read, or says something that cannot be meant; with every problem found.
    """
    path = Path(os.path.abspath(path))
    content = _load(path)
    known, tables = {*options, "src", "name"}, {"defaults", "model"}
    problems = [f"there is no table {key!r}{_like(key, tables)}" for key in sorted(content.keys() - tables)]
    defaults, rows = content.get("defaults", {}), content.get("model", [])
    if not isinstance(defaults, dict) or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UsageError(
            f"{path}: a manifest has a table [defaults] and tables [[model]]",
            hint="`gguf2st batch --help` has an example",
        )
    problems += _problems("[defaults]", defaults, known - {"src", "name"}, options)
    models, found = checked_models(path.parent, defaults, rows, options, check)
    problems += found
    if not rows and not problems:
        problems.append("there is no [[model]]")
    if problems:
        rest = len(problems) - MAX_PROBLEMS
        shown = problems[1:MAX_PROBLEMS] + ([f"... and {rest} more"] if rest > 0 else [])
        raise UsageError(f"{path}: {problems[0]}", problems=shown, hint="nothing was started: correct the manifest")
    return Manifest(path, models)


def checked_models(
    folder: Path,
    defaults: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    options: Mapping[str, bool],
    check: Callable[[Sequence[str]], str],
) -> tuple[tuple[BatchModel, ...], list[str]]:
    """The models of the tables [[model]], and what is wrong with them.

    Args:
        folder: in which relative paths start.
        defaults: the table [defaults].
        rows: the tables.
        options, check: as for `read_manifest`.
    """
    known, models, problems = {*options, "src", "name"}, [], []
    for number, row in enumerate(rows, 1):
        where = f"model {number}" + (f" ({row['name']!r})" if isinstance(row.get("name"), str) else "")
        found = _problems(where, row, known, options)
        if not found:
            model = _model(folder, defaults, row)
            found = _impossible(where, model, check)
            models.append(model)
        problems += found
    return tuple(models), problems + _taken_twice(models)


def _load(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as err:
        raise UsageError(
            f"{path}: {err.strerror}", hint="give a TOML file; `gguf2st batch --help` has an example"
        ) from err
    except (ValueError, RecursionError) as err:  # not UTF-8, not TOML, or a number of thousands of digits
        raise UsageError(f"{path} is not TOML: {err}", hint="`gguf2st batch --help` has an example") from err


def _problems(where: str, table: Mapping[str, Any], known: set[str], options: Mapping[str, bool]) -> list[str]:
    """Keys that do not exist and values of the wrong kind."""
    problems = []
    for key, value in table.items():
        if key not in known:
            problems.append(f"{where}: there is no option {key!r}" + _like(key, known))
        elif options.get(key):
            if not isinstance(value, bool):
                problems.append(f"{where}: {key} is true or false, not {value!r}")
        elif isinstance(value, bool) or not isinstance(value, str | int | float):
            problems.append(f"{where}: {key} is {value!r}; it must be a text or a number")
        elif key in NAMED_OPTIONS and (wrong := set(_PLACEHOLDER.findall(str(value))) - {"{name}"}):
            problems.append(f"{where}: {key} has {min(wrong)}; only {{name}} stands for something")
    if where != "[defaults]" and not (isinstance(table.get("src"), str) and table["src"]):
        problems.append(f"{where}: src is missing: a file, a folder or org/repo:QUANT")
    if "name" in table and not (isinstance(table["name"], str) and _NAME.fullmatch(table["name"])):
        problems.append(f"{where}: a name is made of letters, digits, spaces and . _ + -")
    return problems


def _model(folder: Path, defaults: Mapping[str, Any], row: Mapping[str, Any]) -> BatchModel:
    values = {**defaults, **row}
    if "push" not in values:  # how to push is only for those that are
        values = {key: value for key, value in values.items() if key in row or key not in PUSH_OPTIONS}
    src = values.pop("src")
    name = values.pop("name", None) or name_of(src)
    values = {k: v.replace("{name}", name) if isinstance(v, str) else v for k, v in values.items()}
    values = {k: v for k, v in values.items() if v is not False}
    src, values = _expanded("src", src), {k: _expanded(k, v) for k, v in values.items()}
    output = folder / str(values["output"]) if "output" in values else _default_output(folder, src, row.get("name"))
    values["output"] = str(output)
    push = {k: values.pop(k) for k in PUSH_OPTIONS if k in values}
    return BatchModel(name, src, output, values, push)


def _default_output(folder: Path, src: str, name: str | None) -> Path:
    """As `gguf2st convert` has it: beside a source that is here, and named like it unless the model has a name."""
    path, head = folder / src, src.rpartition(":")[0]
    beside = folder / f"{name_of(src)}-safetensors"
    if path.exists() or (head and (folder / head).is_dir()):
        with suppress(Gguf2stError):  # the model will fail with it
            beside = folder / locate(str(path)).output
    elif src.lower().endswith(".gguf") and "://" not in src:
        beside = default_output(path)
    return beside.with_name(f"{name}-safetensors") if name else beside


def _expanded(key: str, value: Any) -> Any:
    at_home = key in PATH_OPTIONS and isinstance(value, str) and value.startswith("~/")
    return os.path.expanduser(value) if at_home else value


def name_of(src: str) -> str:
    """The name of a model without one: `repo-Q4_K_M` of org/repo:Q4_K_M, `model` of folder/model.gguf or its shards."""
    last = re.split(r"[/\\]", src.rstrip("/\\"))[-1]
    split = split_name(last)
    last = split[0] if split else re.sub(r"\.gguf$", "", last, flags=re.IGNORECASE)
    return re.sub(r"[^\w.+-]+", "-", last).strip("-.") or "model"


def _impossible(where: str, model: BatchModel, check: Callable[[Sequence[str]], str]) -> list[str]:
    if model.push and "push" not in model.push:
        return [f"{where}: {', '.join(model.push)} without push"]
    if model.streams and not model.push:
        return [f"{where}: no-keep without push"]
    if model.push:
        from gguf2st.hub.push import PushOptions

        try:
            PushOptions(str(model.push["push"]))
        except UsageError as err:
            return [f"{where}: {err.message}; {err.hint}"]
    problem = check(model.convert_arguments)
    return [f"{where}: {problem}"] if problem else []


def _taken_twice(models: Sequence[BatchModel]) -> list[str]:
    """Names and targets of several models, and outputs inside others: each would write over what another wrote."""
    targets = (
        f"{m.push['push']}@{m.push.get('revision', 'main')}"
        for m in models
        if "push" in m.push and "create-pr" not in m.push
    )
    places = [Path(os.path.realpath(m.output)) for m in models]
    owners = {place: model.name for model, place in zip(models, places, strict=True)}
    inside = [
        f"the output of {model.name!r}, {place}, lies inside that of {owners[outer]!r}"
        for model, place in zip(models, places, strict=True)
        for outer in place.parents
        if outer in owners
    ]
    counts = (
        ("name", Counter(m.name for m in models), "give each a name of its own"),
        ("output", Counter(map(str, places)), "use {name} in it"),
        ("push", Counter(targets), "use {name} in it"),
    )
    return [
        f"{n} models have the {what} {value!r}: {advice}"
        for what, count, advice in counts
        for value, n in count.items()
        if n > 1
    ] + inside


def _arguments(options: Mapping[str, Any]) -> list[str]:
    """Command-line arguments; a value is joined to its option, so that one that starts with - is still a value."""
    return [f"--{name}" if value is True else f"--{name}={value}" for name, value in options.items()]


def _like(word: str, known: set[str]) -> str:
    close = difflib.get_close_matches(word.replace("_", "-").lower(), sorted(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(sorted(known))}"
