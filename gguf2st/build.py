"""From header and arch map to the first form of the plan: names, ops and shapes. Reads no weights.

Nothing is raised for what a file lacks or has too much of: problems are collected in the plan, so that one run shows
them all. The only tensors whose values are read are the few hundred bytes of rope factors that become configuration.
"""

import sys
from array import array
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gguf2st import archmap, expr
from gguf2st.archmap import ArchMap, Equation
from gguf2st.errors import Gguf2stError, MapError
from gguf2st.fold import listing
from gguf2st.header import Header, Source
from gguf2st.ops import OPS
from gguf2st.plan import Entry, Plan
from gguf2st.quants.layout import DECODABLE
from gguf2st.scope import MapScope

MAX_INDEX = 100_000
"""Most layers or experts a plan is built for: ten times what any model has, and a guard against absurd headers."""


def read_small(header: Header) -> Callable[[Source], list[float]]:
    """A reader of small float32 tensors from the files on disk."""

    def read(source: Source) -> list[float]:
        with open(header.files[source.file], "rb") as f:
            f.seek(source.offset)
            values = array("f", f.read(source.nbytes or 0))
        if header.byteorder != sys.byteorder:
            values.byteswap()
        return values.tolist()

    return read


def build(
    header: Header,
    *,
    arch_map: Path | None = None,
    read: Callable[[Source], list[float]] | None = None,
) -> Plan:
    """Choose the map and instantiate its equations.

    Args:
        header: of all files of the model.
        arch_map: a map to use instead of choosing one.
        read: values of a small float32 tensor; from the files on disk by default.

    Raises:
        MapError: no map fits the file, or the given one is for another architecture.
    """
    read = read or read_small(header)
    if arch_map is None:
        amap = archmap.select_map(header.arch, lambda m: MapScope(header, m.names, read))
    else:
        amap = archmap.load_map(arch_map)
        if amap.arch != header.arch:
            raise MapError(f"{arch_map} is for architecture {amap.arch!r}; {header.files[0]} is {header.arch!r}")
    scope = MapScope(header, amap.names, read)
    problems: list[str] = []
    config = _config(amap, scope, problems)
    missing: dict[str, str] = {}
    used: set[str] = set()
    try:
        entries = tuple(_entries(amap, header, scope, problems, missing, used))
    except MapError as err:
        problems.append(err.message)
        entries = ()
    dropped = {
        name: reason
        for name in header.sources
        if name not in used
        and (reason := scope.configured.get(name) or archmap.match_template(name, amap.drop)) is not None
    }
    # A tensor behind a broken count or shape is not "unknown": say the cause once, not its consequences.
    unmapped = () if problems and not entries else tuple(n for n in header.sources if n not in used | dropped.keys())
    problems += _unread_keys(amap, header, scope.read_keys)
    problems += _undecodable(header, used)
    assumed = [f"{key} = {value!r} is assumed: {why}" for key, (value, why) in amap.assumed.items()]
    return Plan(
        arch=header.arch,
        map=amap.name,
        header=header,
        config=config,
        entries=entries,
        dropped=dropped,
        unmapped=unmapped,
        missing=missing,
        problems=tuple(dict.fromkeys(problems)),
        notes=tuple(scope.notes + assumed),
        float32=amap.float32,
        fused=amap.fused,
    )


def _config(amap: ArchMap, scope: MapScope, problems: list[str]) -> dict[str, Any]:
    """config.json from the map: constants, expressions, functions; what fails is a problem."""
    config: dict[str, Any] = dict(amap.constants) | {k: value for k, (value, _) in amap.assumed.items()}
    for key, expression in amap.config.items():
        try:
            value = expr.evaluate(expression, scope.at())
            config |= value if key.startswith("*") else {key: value}
        except Gguf2stError as err:
            problems.append(f"config.json {key.removeprefix('*')}: {err.message}")
    for message, expression in amap.require.items():
        try:
            held = expr.evaluate(expression, scope.at())
        except MapError as err:
            problems.append(err.message)
            continue
        if not held:
            values = ", ".join(f"{n} = {scope.lookup(n)!r}" for n in sorted(expression.names))
            problems.append(f"{message} ({values})")
    return config


def _entries(
    amap: ArchMap,
    header: Header,
    scope: MapScope,
    problems: list[str],
    missing: dict[str, str],
    used: set[str],
) -> Iterator[Entry]:
    layers, experts = (_count(x, what, scope) for x, what in ((amap.layers, "layers"), (amap.experts, "experts")))
    seen: set[str] = set()
    for group in amap.groups:
        for equation in group.equations:
            for i in range(layers) if equation.over_layers else [None]:
                index = {} if i is None else {"i": i}
                if not expr.evaluate(group.condition, scope.at(**index)):
                    continue
                for entry in _instances(equation, index, experts, header, scope, problems, missing, used):
                    if entry.name in seen:
                        problems.append(f"{entry.name} is filled by two equations of the map {amap.name}")
                    seen.add(entry.name)
                    yield entry


def _instances(
    equation: Equation,
    index: dict[str, int],
    experts: int,
    header: Header,
    scope: MapScope,
    problems: list[str],
    missing: dict[str, str],
    used: set[str],
) -> Iterator[Entry]:
    """The entries of one equation in one layer: one, or one per expert."""
    packed = all(OPS[op].packed for op, _ in equation.steps)
    for e in range(experts) if equation.over_experts else [None]:
        here = index if e is None else index | {"e": e}
        scope.at(**here)
        name = _fill(equation.name, here)
        sources = tuple(_fill(s, here) for s in equation.sources)
        if lost := [s for s in sources if s not in header.sources]:
            missing[name] = ", ".join(lost)
            continue
        used.update(sources)
        ops = tuple((op, *expr.evaluate(arguments, scope)) for op, arguments in equation.steps)
        promised = tuple(expr.evaluate(equation.shape, scope))
        try:
            shape = _shape([header.sources[s].shape for s in sources], ops)
        except (ValueError, TypeError, IndexError) as err:
            problems.append(f"{name}: {', '.join(sources)}: {err}")
            continue
        if shape != promised:
            problems.append(
                f"{name} has shape {list(shape)} in the file, but its metadata promise {list(promised)}"
                f" (from {', '.join(sources)})"
            )
            continue
        yield Entry(name, sources, ops, shape, packed)


def _shape(shapes: list[tuple[int, ...]], ops: tuple[tuple[Any, ...], ...]) -> tuple[int, ...]:
    for op, *arguments in ops:
        shapes = [OPS[op].shape(*shapes, *arguments)]
    return shapes[0]


def _count(expression: expr.Expression, what: str, scope: MapScope) -> int:
    n = expr.evaluate(expression, scope.at())
    if not isinstance(n, int) or isinstance(n, bool) or not 0 <= n <= MAX_INDEX:
        raise MapError(f"the number of {what}, {expression.text}, is {n!r}")
    return n


def _fill(template: str, index: Mapping[str, int]) -> str:
    for key, number in index.items():
        template = template.replace(f"{{{key}}}", str(number))
    return template


def _unread_keys(amap: ArchMap, header: Header, read: set[str]) -> list[str]:
    """Keys of the architecture that nothing read and the map does not ignore: what they say would be lost."""
    prefix = f"{header.arch}."
    unread = [
        f"{key} = {_brief(value)}"
        for key, value in header.metadata.items()
        if key.startswith(prefix) and key not in read and key.removeprefix(prefix) not in amap.ignore
    ]
    return [f"metadata that the map {amap.name} does not use: {', '.join(unread)}"] if unread else []


def _undecodable(header: Header, used: set[str]) -> list[str]:
    by_type: dict[str, list[str]] = {}
    for name, source in header.sources.items():
        if name in used and source.qtype not in DECODABLE:
            by_type.setdefault(source.qtype, []).append(name)
    return [f"no decoder for ggml {qtype}, used by {listing(names)}" for qtype, names in by_type.items()]


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
