"""Arch maps: one TOML per GGUF architecture and HF class, the only place that knows a model.

An equation says where one HF tensor comes from, what undoes llama.cpp's converter, and the shape the configuration
promises; names stand verbatim on both sides:

    "model.layers.{i}.self_attn.q_proj.weight" = "blk.{i}.attn_q.weight | unpermute(heads) -> [q, hidden]"

`{i}` runs over layers, `{e}` over experts. docs/arch-maps.md describes every table of a map.
"""

import ast
import difflib
import functools
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gguf2st import config, keys
from gguf2st.errors import MapError
from gguf2st.expr import Expression, parse
from gguf2st.ops import ANY, OPS

PROBES = frozenset({"has", "rows", "cols"})
"""Functions that look at the file's tensors: whether one exists, and its last two dimensions."""

_REQUIRED = ("arch", "layers", "config", "tensors")
_OPTIONAL = (
    "when",
    "experts",
    "names",
    "constants",
    "assumed",
    "require",
    "fused",
    "drop",
    "beyond",
    "ignore",
    "float32",
)
_INDEX = re.compile(r"\{(.*?)\}")


@dataclass(frozen=True, slots=True)
class Use:
    """What an expression depends on, through [names] as well.

    Attributes:
        indices: i, e, both or neither.
        keys: metadata keys it may read; one that ends in a dot stands for all that begin so.
    """

    indices: tuple[str, ...]
    keys: frozenset[str]


@dataclass(frozen=True, slots=True)
class Way:
    """One way to derive a tensor: `sources | steps -> shape`, all still templates over {i} and {e}."""

    sources: tuple[str, ...]
    steps: tuple[tuple[str, Expression], ...]
    shape: Expression

    @property
    def packed(self) -> bool:
        """Whether every step moves whole rows only."""
        return all(OPS[op].packed for op, _ in self.steps)


@dataclass(frozen=True, slots=True)
class Equation:
    """One HF tensor, and the ways to derive it: the first whose sources the file has is taken."""

    name: str
    ways: tuple[Way, ...]

    @property
    def over_layers(self) -> bool:
        """Whether the equation is instantiated once per layer."""
        return "{i}" in self.name

    @property
    def over_experts(self) -> bool:
        """Whether the equation is instantiated once per expert."""
        return "{e}" in self.name

    def expressions(self) -> Iterator[Expression]:
        """Of each way, the arguments of its ops, then its shape."""
        for way in self.ways:
            yield from (arguments for _, arguments in way.steps)
            yield way.shape


@dataclass(frozen=True, slots=True)
class Group:
    """Equations under one condition, evaluated per layer when it mentions `i`.

    Attributes:
        experts: how far {e} runs in this group, where it is not the map's `experts`: over heads, for one.
    """

    condition: Expression
    equations: tuple[Equation, ...]
    experts: Expression | None = None


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
        beyond: why tensors of layers past `layers`, but within block_count, are left behind; empty when none may be.
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
    beyond: str = ""
    ignore: Mapping[str, str] = field(default_factory=dict)
    float32: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """File name without the suffix; unique among the maps."""
        return self.path.stem

    def use(self, expression: Expression) -> Use:
        """What an expression of this map depends on. Raises MapError when [names] refer to themselves."""
        if expression.text not in self._uses:
            self._uses[expression.text] = self._trace(expression, ())
        return self._uses[expression.text]

    def expressions(self) -> Iterator[Expression]:
        """Every expression of the map but those of [names]."""
        yield from (self.when, self.layers, self.experts, *self.config.values(), *self.require.values())
        for group in self.groups:
            yield group.condition
            if group.experts:
                yield group.experts
            for equation in group.equations:
                yield from equation.expressions()

    @functools.cached_property
    def keys(self) -> frozenset[str]:
        """Every metadata key that the map may read, as in `Use.keys`."""
        return frozenset[str]().union(*(self.use(x).keys for x in self.expressions()))

    @functools.cached_property
    def per_layer(self) -> frozenset[str]:
        """Metadata keys that the map takes one item of, so that they may hold one value per layer."""
        return frozenset[str]().union(*(x.subscripted for x in (*self.names.values(), *self.expressions())))

    @functools.cached_property
    def _uses(self) -> dict[str, Use]:
        return {}

    def _trace(self, expression: Expression, path: tuple[str, ...]) -> Use:
        indices = set(expression.indices)
        read = {key for call in expression.calls & config.FUNCTIONS.keys() for key in config.FUNCTIONS[call].reads}
        for name in expression.names:
            if name in path:
                raise MapError(f"[names] {' -> '.join([*path, name])} refers to itself")
            if name in self.names:
                inner = self._trace(self.names[name], (*path, name))
                indices |= set(inner.indices)
                read |= inner.keys
            elif name not in ("i", "e"):
                read.add(name)
        return Use(tuple(sorted(indices)), frozenset(read))


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
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as err:
        raise MapError(f"{path} is not valid TOML: {err}") from None
    try:
        return _build(path, table)
    except MapError as err:
        raise MapError(f"{path}: {err.message}", hint=err.hint) from None
    except (AttributeError, TypeError, KeyError, ValueError) as err:
        raise MapError(f"{path}: a table or value has the wrong type ({err})", hint="see docs/arch-maps.md") from None


def all_maps(folder: Path | None = None) -> list[ArchMap]:
    """Every map of the folder, sorted by name."""
    return [load_map(p) for p in sorted((folder or maps_folder()).glob("*.toml"))]


def select_map(arch: str, holds: Callable[[ArchMap], bool], *, folder: Path | None = None) -> ArchMap:
    """The one map that fits a file.

    Args:
        arch: the file's general.architecture.
        holds: whether a map's `when` holds for the file.
        folder: where the maps are; `maps_folder()` by default.

    Raises:
        MapError: no map for the architecture, none whose `when` holds, or more than one.
    """
    folder = folder or maps_folder()
    line = re.compile(rf"^\s*arch\s*=\s*[\"']+{re.escape(arch)}[\"']", re.MULTILINE)
    texts = {path: path.read_text(encoding="utf-8", errors="replace") for path in sorted(folder.glob("*.toml"))}
    # Parsing all maps would cost more than reading the header of a file.
    candidates = [m for path, text in texts.items() if line.search(text) and (m := load_map(path)).arch == arch]
    if not candidates:
        known = sorted({m.arch for m in all_maps(folder)})
        near = difflib.get_close_matches(arch, known, n=3, cutoff=0.5)
        raise MapError(
            f"no arch map for architecture {arch!r}; nearest: {', '.join(near) or 'none'}",
            hint="`gguf2st archs` lists what is supported; docs/arch-maps.md shows how to add one (--arch-map FILE)",
        )
    fitting = [m for m in candidates if holds(m)]
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
    for kind in ("drop", "ignore"):
        for name, reason in table.get(kind, {}).items():
            if not isinstance(reason, str) or not reason.strip():
                raise MapError(f"[{kind}] {name!r} needs a reason")
    amap = ArchMap(
        path=path,
        arch=_text(table["arch"], "arch"),
        when=_expression(table.get("when", "True")),
        layers=_expression(table["layers"]),
        experts=_expression(table.get("experts", "0")),
        names=_expressions(table.get("names", {})),
        constants=dict(table.get("constants", {})),
        assumed={key: (row["value"], _text(row["why"], key)) for key, row in table.get("assumed", {}).items()},
        config=_expressions(table["config"]),
        require=_expressions(table.get("require", {})),
        groups=tuple(_group(g) for g in table["tensors"]),
        fused={k: tuple(_text(member, k) for member in v) for k, v in table.get("fused", {}).items()},
        drop=table.get("drop", {}),
        beyond=_text(table.get("beyond", ""), "beyond"),
        ignore=table.get("ignore", {}),
        float32=frozenset(table.get("float32", [])),
    )
    _check(amap, with_experts="experts" in table)
    return amap


def _check(amap: ArchMap, *, with_experts: bool) -> None:
    """What can be known to be wrong without a file: unknown keys, indices out of place, names of no equation."""
    if clash := sorted(amap.names.keys() & {"i", "e"}):
        raise MapError(f"[names] must not define {', '.join(clash)}")
    for expression in (*amap.names.values(), *amap.expressions()):
        for name in expression.names:
            if name not in amap.names and name not in ("i", "e"):
                keys.require_key(name)
    for expression in (amap.when, amap.layers, amap.experts, *amap.config.values(), *amap.require.values()):
        _check_indices(amap, expression, frozenset(), "outside the equations")
    equations = [(group, equation) for group in amap.groups for equation in group.equations]
    for group, equation in equations:
        allowed = frozenset(index for index in ("i", "e") if f"{{{index}}}" in equation.name)
        _check_indices(amap, group.condition, allowed & {"i"}, f"in the condition on {equation.name!r}")
        if group.experts:
            _check_indices(amap, group.experts, frozenset(), f"in the number of experts of {equation.name!r}")
        for expression in equation.expressions():
            _check_indices(amap, expression, allowed, f"in the equation of {equation.name!r}")
        if equation.over_experts and not with_experts and not group.experts:
            raise MapError(
                f"{equation.name!r} runs over experts, but the map does not say how many `experts` there are"
            )
    templates = {equation.name for _, equation in equations}
    if lost := sorted(amap.float32 - templates):
        raise MapError(f"float32 names {lost[0]!r}, which no equation has")
    modules = tuple(name.rpartition(".")[0] for name in templates)
    for module, members in amap.fused.items():
        for member in members:
            if not any(f".{name}".endswith(f".{member}") for name in modules):
                raise MapError(f"[fused] {module!r} has the member {member!r}, which no equation fills")


def _check_indices(amap: ArchMap, expression: Expression, allowed: frozenset[str], where: str) -> None:
    if extra := [index for index in amap.use(expression).indices if index not in allowed]:
        raise MapError(f"{expression.text!r} depends on {extra[0]!r}, which has no meaning {where}")


def _group(table: Mapping[str, Any]) -> Group:
    equations = tuple(_equation(name, text) for name, text in table.items() if name not in ("if", "experts"))
    experts = _expression(table["experts"]) if "experts" in table else None
    return Group(_expression(table.get("if", "True")), equations, experts)


def _equation(name: str, texts: str | list[str]) -> Equation:
    """One way under its HF name, or a list of them."""
    if not set(_INDEX.findall(name)) <= {"i", "e"}:
        raise MapError(f"{name!r}: the indices of a name are {{i}} and {{e}}")
    ways = tuple(_way(name, text) for text in (texts if isinstance(texts, list) else [texts]))
    if not ways:
        raise MapError(f"{name!r}: an empty list says nothing")
    return Equation(name, ways)


def _way(name: str, text: str) -> Way:
    """`"a, b | op(x) -> [rows, cols]"`, or `"fill(0, rows) -> [rows]"` where the file has no tensor for it."""
    body, arrow, shape = _text(text, name).rpartition("->")
    if not arrow:
        raise MapError(f"{name!r}: an equation ends in the shape it promises, `-> [rows, cols]`")
    head, *calls = (part.strip() for part in body.split("|"))
    if "(" in head:
        head, calls = "", [head, *calls]
    sources = tuple(ref.strip() for ref in head.split(",")) if head or not calls else ()
    steps = tuple(_step(name, call) for call in calls)
    allowed = set(_INDEX.findall(name))
    for source in sources:
        if not source or not set(_INDEX.findall(source)) <= allowed:
            raise MapError(f"{name!r}: source {source!r} has an index that the name lacks")
    n = len(sources)
    for op, _ in steps:
        expected = OPS[op].n_arrays
        if n != expected and not (expected == ANY and n):
            raise MapError(f"{name!r}: op {op} takes {'some' if expected == ANY else expected} tensors, here {n}")
        n = 1
    if n != 1:
        raise MapError(f"{name!r}: {n} sources need an op that joins them")
    promised = _expression(shape)
    if not isinstance(promised.node, ast.List):
        raise MapError(f"{name!r}: a shape is a list, `-> [rows, cols]`, not {shape.strip()!r}")
    return Way(sources, steps, promised)


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
    n_args = len(arguments.node.elts) if isinstance(arguments.node, ast.List) else -1
    if not OPS[op].accepts(n_args):
        raise MapError(f"{name!r}: op {op} takes {len(OPS[op].arguments)} arguments, unlike {call!r}")
    return op, arguments


def _expressions(table: Mapping[str, Any]) -> dict[str, Expression]:
    return {key: _expression(value) for key, value in table.items()}


def _expression(text: Any) -> Expression:
    expression = parse(_text(text, "expression"))
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
