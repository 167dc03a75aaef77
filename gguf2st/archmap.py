"""Arch maps: one TOML per GGUF architecture and HF class, the only place that knows a model.

An equation says where one HF tensor comes from, what undoes llama.cpp's converter, and the shape the configuration
promises; names stand verbatim on both sides:

    "model.layers.{i}.self_attn.q_proj.weight" = "blk.{i}.attn_q.weight | unpermute(heads) -> [q, hidden]"

`{i}` runs over layers, `{e}` over experts. docs/arch-maps.md describes every table of a map.
"""

import difflib
import functools
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gguf2st import config, expr
from gguf2st.errors import MapError
from gguf2st.expr import Expression, Scope
from gguf2st.ops import OPS

PROBES = frozenset({"has", "rows", "cols"})
"""Functions that look at the file's tensors: whether one exists, and its last two dimensions."""

_REQUIRED = ("arch", "layers", "config", "tensors")
_OPTIONAL = ("when", "experts", "names", "constants", "assumed", "require", "fused", "drop", "ignore", "float32")
_INDEX = re.compile(r"\{(.*?)\}")


@dataclass(frozen=True, slots=True)
class Equation:
    """One line of a map: `name = sources | steps -> shape`, all still templates over {i} and {e}."""

    name: str
    sources: tuple[str, ...]
    steps: tuple[tuple[str, Expression], ...]
    shape: Expression

    @property
    def over_layers(self) -> bool:
        """Whether the equation is instantiated once per layer."""
        return "{i}" in self.name

    @property
    def over_experts(self) -> bool:
        """Whether the equation is instantiated once per expert."""
        return "{e}" in self.name


@dataclass(frozen=True, slots=True)
class Group:
    """Equations under one condition, evaluated per layer when it mentions `i`."""

    condition: Expression
    equations: tuple[Equation, ...]


@dataclass(frozen=True)
class ArchMap:
    """A parsed and statically checked map.

    Attributes:
        when: which files of the architecture the map is for; exactly one map of an architecture must hold.
        layers, experts: how far {i} and {e} run.
        names: shorthands, evaluated on demand.
        config: config.json keys; a key that starts with `*` gives a dict that is spread.
        assumed: config.json key -> (value, reason): what no file of the architecture says.
        require: message -> condition that must hold, else file and map contradict each other.
        fused: module that vLLM loads as one parameter -> its members.
        drop: GGUF tensor -> why it is left behind.
        ignore: metadata key below the architecture -> why it does not matter to the checkpoint.
        float32: HF tensors that stay float32 whatever the output dtype.
    """

    path: Path
    arch: str
    when: Expression
    layers: Expression
    experts: Expression
    names: Mapping[str, Expression]
    constants: Mapping[str, Any]
    assumed: Mapping[str, tuple[Any, str]]
    config: Mapping[str, Expression]
    require: Mapping[str, Expression]
    groups: tuple[Group, ...]
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    drop: Mapping[str, str] = field(default_factory=dict)
    ignore: Mapping[str, str] = field(default_factory=dict)
    float32: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """File name without the suffix; unique among the maps."""
        return self.path.stem


def maps_folder() -> Path:
    """Where the maps are: inside an installed package, beside it in a checkout."""
    package = Path(__file__).parent
    installed = package / "arch_maps"
    return installed if installed.is_dir() else package.parent / "arch_maps"


def load_map(path: Path) -> ArchMap:
    """Read and check one map.

    Raises:
        MapError: unreadable, not TOML, an unknown table, op, function or index, or a malformed equation.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as err:
        raise MapError(f"cannot read the arch map {path}: {err.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as err:
        raise MapError(f"{path} is not valid TOML: {err}") from None
    try:
        return _build(path, table)
    except MapError as err:
        raise MapError(f"{path}: {err.message}", hint=err.hint) from None
    except (AttributeError, TypeError, KeyError) as err:
        raise MapError(f"{path}: a table or value has the wrong type ({err})", hint="see docs/arch-maps.md") from None


def all_maps(folder: Path | None = None) -> list[ArchMap]:
    """Every map of the folder, sorted by name."""
    return [load_map(p) for p in sorted((folder or maps_folder()).glob("*.toml"))]


def select_map(arch: str, scope_for: Callable[["ArchMap"], Scope], *, folder: Path | None = None) -> ArchMap:
    """The one map that fits a file.

    Args:
        arch: the file's general.architecture.
        scope_for: map -> Scope over the file's metadata.
        folder: where the maps are; `maps_folder()` by default.

    Raises:
        MapError: no map for the architecture, none whose `when` holds, or more than one.
    """
    folder = folder or maps_folder()
    candidates = [load_map(p) for p in sorted(folder.glob("*.toml")) if f'"{arch}"' in p.read_text(encoding="utf-8")]
    candidates = [m for m in candidates if m.arch == arch]
    if not candidates:
        known = sorted({m.arch for m in all_maps(folder)})
        near = difflib.get_close_matches(arch, known, n=3, cutoff=0.5)
        raise MapError(
            f"no arch map for architecture {arch!r}; nearest: {', '.join(near) or 'none'}",
            hint="`gguf2st archs` lists what is supported; docs/arch-maps.md shows how to add one (--arch-map FILE)",
        )
    fitting = [m for m in candidates if expr.evaluate(m.when, scope_for(m))]
    if len(fitting) == 1:
        return fitting[0]
    conditions = [f"{m.name}: when {m.when.text}" for m in candidates]
    raise MapError(
        f"architecture {arch!r}: {len(fitting)} arch maps fit this file, exactly one must",
        problems=conditions,
        hint="pass the right one with --arch-map FILE",
    )


def _build(path: Path, table: Mapping[str, Any]) -> ArchMap:
    if unknown := sorted(table.keys() - {*_REQUIRED, *_OPTIONAL}):
        raise MapError(f"unknown table {', '.join(unknown)}; a map has {', '.join((*_REQUIRED, *_OPTIONAL))}")
    for key in _REQUIRED:
        if key not in table:
            raise MapError(f"the map lacks {key!r}")
    indices = frozenset({"i", "e"})
    names = _expressions(table.get("names", {}))
    if clash := sorted(names.keys() & indices):
        raise MapError(f"[names] must not define {', '.join(clash)}")
    groups = tuple(_group(g) for g in table["tensors"])
    known = {eq.name for g in groups for eq in g.equations}
    if lost := sorted(set(table.get("float32", [])) - known):
        raise MapError(f"float32 names {lost[0]!r}, which no equation has")
    for kind in ("drop", "ignore"):
        for name, reason in table.get(kind, {}).items():
            if not isinstance(reason, str) or not reason.strip():
                raise MapError(f"[{kind}] {name!r} needs a reason")
    return ArchMap(
        path=path,
        arch=_text(table["arch"], "arch"),
        when=_expression(table.get("when", "True")),
        layers=_expression(table["layers"]),
        experts=_expression(table.get("experts", "0")),
        names=names,
        constants=table.get("constants", {}),
        assumed={key: (row["value"], _text(row["why"], key)) for key, row in table.get("assumed", {}).items()},
        config=_expressions(table["config"]),
        require=_expressions(table.get("require", {})),
        groups=groups,
        fused={k: tuple(v) for k, v in table.get("fused", {}).items()},
        drop=table.get("drop", {}),
        ignore=table.get("ignore", {}),
        float32=frozenset(table.get("float32", [])),
    )


def _group(table: Mapping[str, str]) -> Group:
    equations = tuple(_equation(name, text) for name, text in table.items() if name != "if")
    return Group(_expression(table.get("if", "True")), equations)


def _equation(name: str, text: str) -> Equation:
    """`"a, b | op(x) -> [rows, cols]"` under its HF name."""
    body, arrow, shape = _text(text, name).rpartition("->")
    if not arrow:
        raise MapError(f"{name!r}: an equation ends in the shape it promises, `-> [rows, cols]`")
    head, *calls = (part.strip() for part in body.split("|"))
    sources = tuple(ref.strip() for ref in head.split(","))
    steps = tuple(_step(name, call) for call in calls)
    allowed = set(_INDEX.findall(name))
    if not allowed <= {"i", "e"} or ("e" in allowed and "i" not in allowed):
        raise MapError(f"{name!r}: the indices of a name are {{i}}, or {{i}} and {{e}}")
    for source in sources:
        if not source or not set(_INDEX.findall(source)) <= allowed:
            raise MapError(f"{name!r}: source {source!r} has an index that the name lacks")
    n = len(sources)
    for op, arguments in steps:
        expected = OPS[op].n_arrays
        if n != expected:
            raise MapError(f"{name!r}: op {op} takes {expected} tensors, here {n}")
        n = 1
        if extra := (arguments.names & {"i", "e"}) - allowed:
            raise MapError(f"{name!r}: {op} uses {sorted(extra)[0]!r}, which the name lacks")
    if n != 1:
        raise MapError(f"{name!r}: {n} sources need an op that joins them")
    return Equation(name, sources, steps, _expression(shape))


def _step(name: str, call: str) -> tuple[str, Expression]:
    """`"unpermute(heads)"` -> ("unpermute", [heads])."""
    op, paren, rest = call.partition("(")
    op = op.strip()
    if op not in OPS:
        near = difflib.get_close_matches(op, OPS, n=1)
        raise MapError(f"{name!r}: no op {op!r}{f', did you mean {near[0]}?' if near else ''}; "
                       f"there are {', '.join(sorted(OPS))}")  # fmt: skip
    if paren and not rest.rstrip().endswith(")"):
        raise MapError(f"{name!r}: {call!r} lacks its closing parenthesis")
    arguments = _expression(f"[{rest.rstrip().removesuffix(')')}]")
    n_args = len(getattr(arguments.node, "elts", ()))
    if n_args != OPS[op].n_args:
        raise MapError(f"{name!r}: op {op} takes {OPS[op].n_args} arguments, here {n_args}")
    return op, arguments


def _expressions(table: Mapping[str, Any]) -> dict[str, Expression]:
    return {key: _expression(value) for key, value in table.items()}


def _expression(text: Any) -> Expression:
    expression = expr.parse(_text(text, "expression"))
    if unknown := sorted(expression.calls - PROBES - config.FUNCTIONS.keys()):
        raise MapError(
            f"{text!r}: no function {unknown[0]!r}; there are {', '.join(sorted(PROBES | config.FUNCTIONS.keys()))}"
        )
    return expression


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise MapError(f"{what!r} must be a text in quotes, not {value!r}")
    return value


@functools.cache
def _pattern(template: str) -> re.Pattern[str]:
    parts = _INDEX.split(template)
    return re.compile("".join(re.escape(p) if n % 2 == 0 else r"\d+" for n, p in enumerate(parts)))


def match_template(name: str, templates: Mapping[str, str]) -> str | None:
    """The text that belongs to the first template (`blk.{i}.x`) a concrete name (`blk.7.x`) is an instance of."""
    return next((text for t, text in templates.items() if _pattern(t).fullmatch(name)), None)
