"""Arch map files: find the one for a file, read it, and refuse what can be known to be wrong without a file."""

import ast
import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from gguf2st import config
from gguf2st.archmap import INDEX, PINS, ArchMap, Equation, Group, Way
from gguf2st.archmap.expr import NONZERO, Expression, parse
from gguf2st.errors import MapError
from gguf2st.header import keys
from gguf2st.ops import ANY, OPS, VALUES
from gguf2st.quants.layout import INT64
from gguf2st.quoting import shell_word

PROBES = frozenset({"has", "rows", "cols"})
"""Functions that look at the file's tensors: whether one exists, and its last two dimensions."""
CALLABLE = PROBES | {NONZERO} | config.FUNCTIONS.keys()
"""What an expression of a map may call."""

_MAPS = "docs/arch-maps.md says what a map may hold"
_ARCH = re.compile(r"^\s*arch\s*=\s*[\"']+([^\"']+)[\"']", re.MULTILINE)
"""The line of a map that says its architecture, in any spelling of TOML's."""
_CALL = re.compile(r"\w+\(")
"""How an equation begins that no tensor is the source of."""
_REFERENCE = re.compile(r"([^\s\[\]]+)\s*(\[.*\])?", re.DOTALL)
"""A source, and the shape that an equation may state of it."""

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
    *PINS,
    "float16",
)


def maps_folder() -> Path:
    """Where the maps are: inside an installed package, beside it in a checkout."""
    package = Path(__file__).parent.parent
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
        raise MapError(
            f"cannot read the arch map {path}: {err.strerror}", hint="give a .toml file as in docs/arch-maps.md"
        ) from None
    except (ValueError, RecursionError) as err:  # not TOML, not UTF-8, or a number of thousands of digits
        raise MapError(f"{path} is not valid TOML: {err}", hint="correct it: docs/arch-maps.md has examples") from None
    try:
        return _build(path, table)
    except MapError as err:
        raise MapError(f"{path}: {err.message}", hint=err.hint or _MAPS) from None
    except (AttributeError, TypeError, KeyError, ValueError) as err:
        raise MapError(f"{path}: a table or value has the wrong type ({err})", hint=_MAPS) from None


def all_maps(folder: Path | None = None) -> list[ArchMap]:
    """Every map of the folder, sorted by name."""
    return [load_map(p) for p in sorted((folder or maps_folder()).glob("*.toml"), key=lambda p: p.stem)]


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
    texts = {path: path.read_text(encoding="utf-8", errors="replace") for path in sorted(folder.glob("*.toml"))}
    # Parsing all maps would cost more than reading the header of a file.
    candidates = [m for path, text in texts.items() if _names(text) == arch and (m := load_map(path)).arch == arch]
    if not candidates:
        raise MapError(
            f"no arch map for architecture {arch!r}{_nearest(arch, texts.values())}",
            hint="`gguf2st archs` lists what is supported, docs/architectures.md what is not and why; "
            "docs/adding-an-architecture.md shows how to add one (--arch-map FILE)",
        )
    fitting = [m for m in candidates if holds(m)]
    if len(fitting) == 1:
        return fitting[0]
    conditions = [f"{m.name}: when {m.when.text}" for m in candidates]
    if fitting:
        raise MapError(
            f"architecture {arch!r}: {len(fitting)} arch maps fit this file, exactly one must",
            problems=conditions,
            hint=f"pass the right one with --arch-map {shell_word(folder)}/NAME.toml",
        )
    raise MapError(
        f"architecture {arch!r}: {len(candidates)} arch map(s), and none is for a file like this"
        f"{_nearest(arch, texts.values())}",
        problems=conditions,
        hint="`gguf2st inspect SRC` shows the keys that they ask for; `gguf2st check SRC --arch-map "
        f"{shell_word(folder)}/NAME.toml` takes a map whatever its condition and lists what else does not fit; "
        "docs/adding-an-architecture.md shows how to write one",
    )


def _names(text: str) -> str:
    """The architecture of a map that is not parsed; "" where it has no such line."""
    match = _ARCH.search(text)
    return match[1] if match else ""


def _nearest(arch: str, texts: Iterable[str]) -> str:
    """Architectures of maps that are named much like this one, as the end of a message."""
    known = sorted({_names(text) for text in texts} - {arch, ""})
    near = difflib.get_close_matches(arch, known, n=3, cutoff=0.5)
    return f"; nearest: {', '.join(near)}" if near else ""


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
        pins={_text(name, dtype): dtype for dtype in PINS for name in table.get(dtype, [])},
        float16=_text(table.get("float16", ""), "float16"),
    )
    _check(amap, with_experts="experts" in table, n_pinned=sum(len(table.get(dtype, [])) for dtype in PINS))
    return amap


def _check(amap: ArchMap, *, with_experts: bool, n_pinned: int) -> None:
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
        if group.after and not equation.over_layers:
            raise MapError(f"{equation.name!r} is in a group with `after`, but has no {{i}} to count from there")
        for bound in filter(None, (group.experts, group.after)):
            _check_indices(amap, bound, frozenset(), f"in the number of experts or layers of {equation.name!r}")
        for expression in equation.expressions():
            _check_indices(amap, expression, allowed, f"in the equation of {equation.name!r}")
        if equation.over_experts and not with_experts and not group.experts:
            raise MapError(
                f"{equation.name!r} runs over experts, but the map does not say how many `experts` there are"
            )
    templates = {equation.name for _, equation in equations}
    if lost := sorted(amap.pins.keys() - templates):
        raise MapError(f"{amap.pins[lost[0]]} names {lost[0]!r}, which no equation has")
    if len(amap.pins) < n_pinned:
        raise MapError(f"a tensor is listed twice under {' and '.join(PINS)}")
    for _, equation in equations:
        _check_numbers(equation, whole=amap.pins.get(equation.name) == INT64)
    modules = tuple(name.rpartition(".")[0] for name in templates)
    for module, members in amap.fused.items():
        for member in members:
            if not any(f".{name}".endswith(f".{member}") for name in modules):
                raise MapError(f"[fused] {module!r} has the member {member!r}, which no equation fills")


def _check_numbers(equation: Equation, *, whole: bool) -> None:
    """Whole numbers are moved and not computed with; metadata become whole numbers alone."""
    for op in (op for way in equation.ways for op, _ in way.steps):
        if whole and not (OPS[op].packed or op == VALUES):
            raise MapError(f"{equation.name!r} has whole numbers, which {op} would compute with")
        if op == VALUES and not whole:
            raise MapError(f"{equation.name!r}: {op} makes whole numbers: the map must list the tensor under {INT64}")


def _check_indices(amap: ArchMap, expression: Expression, allowed: frozenset[str], where: str) -> None:
    if extra := [index for index in amap.use(expression).indices if index not in allowed]:
        raise MapError(f"{expression.text!r} depends on {extra[0]!r}, which has no meaning {where}")


def _group(table: Mapping[str, Any]) -> Group:
    equations = tuple(_equation(name, text) for name, text in table.items() if name not in ("if", "experts", "after"))
    experts, after = (_expression(table[key]) if key in table else None for key in ("experts", "after"))
    return Group(_expression(table.get("if", "True")), equations, experts, after)


def _equation(name: str, texts: str | list[str]) -> Equation:
    """One way under its HF name, or a list of them."""
    if not set(INDEX.findall(name)) <= {"i", "e"}:
        raise MapError(f"{name!r}: the indices of a name are {{i}} and {{e}}")
    ways = tuple(_way(name, text) for text in (texts if isinstance(texts, list) else [texts]))
    if not ways:
        raise MapError(f"{name!r}: an empty list says nothing")
    return Equation(name, ways)


def _way(name: str, text: str) -> Way:
    """`"a [n, m], b [n, m] | op(x) -> [rows, cols]"`, or `"fill(0, rows) -> [rows]"` where the file has no tensor."""
    body, arrow, shape = _text(text, name).rpartition("->")
    if not arrow:
        raise MapError(f"{name!r}: an equation ends in the shape it promises, `-> [rows, cols]`")
    head, *calls = (part.strip() for part in body.split("|"))
    if _CALL.match(head):
        head, calls = "", [head, *calls]
    sources = tuple(_source(name, ref) for ref in _references(head)) if head or not calls else ()
    steps = tuple(_step(name, call) for call in calls)
    n = len(sources)
    for op, _ in steps:
        expected = OPS[op].n_arrays
        if n != expected and not (expected == ANY and n):
            raise MapError(f"{name!r}: op {op} takes {'some' if expected == ANY else expected} tensors, here {n}")
        n = 1
    if n != 1:
        raise MapError(f"{name!r}: {n} sources need an op that joins them")
    forgetful = [op for op, _ in steps if OPS[op].forgets]
    if forgetful and (unstated := [source for source, stated in sources if stated is None]):
        raise MapError(
            f"{name!r}: {forgetful[0]} gives one shape of sources of several, so that dimensions in another order would"
            f" pass: state the source's own, `{unstated[0]} [rows, cols] | {forgetful[0]}`"
        )
    return Way(tuple(s for s, _ in sources), tuple(shape for _, shape in sources), steps, _shape(name, shape))


def _references(head: str) -> list[str]:
    """Split at the commas outside of brackets: `a [n, m], b` -> `a [n, m]` and `b`."""
    parts, depth = [""], 0
    for character in head:
        depth += (character == "[") - (character == "]")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _source(name: str, reference: str) -> tuple[str, Expression | None]:
    """`"blk.{i}.x [rows, cols]"` -> (tensor, the shape stated of it, None where there is none)."""
    match = _REFERENCE.fullmatch(reference)
    if not match:
        raise MapError(f"{name!r}: source {reference!r} is no tensor's name, or a name and its shape `[rows, cols]`")
    source, stated = match.groups()
    if not set(INDEX.findall(source)) <= set(INDEX.findall(name)):
        raise MapError(f"{name!r}: source {source!r} has an index that the name lacks")
    return source, _shape(name, stated) if stated else None


def _shape(name: str, text: str) -> Expression:
    shape = _expression(text)
    if not isinstance(shape.node, ast.List):
        raise MapError(f"{name!r}: a shape is a list, `[rows, cols]`, not {text.strip()!r}")
    return shape


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
    if unknown := sorted(expression.calls - CALLABLE):
        raise MapError(f"{text!r}: no function {unknown[0]!r}; there are {', '.join(sorted(CALLABLE))}")
    return expression


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise MapError(f"{what!r} must be a text in quotes, not {value!r}")
    return value
