"""From header and arch map to the first form of the plan: names, ops and shapes. Reads no weights.

Nothing is raised for what a file lacks or has too much of: problems are collected in the plan, so that one run shows
them all. The only tensors whose values are read are the few hundred bytes of rope factors that become configuration.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gguf2st.archmap import ArchMap, Equation, Way, mapfile, match_template
from gguf2st.archmap.expr import Expression
from gguf2st.archmap.scope import MapScope, NoTensorError, read_small
from gguf2st.config import embedding_files, nested
from gguf2st.errors import Gguf2stError, MapError, short
from gguf2st.fold import listing
from gguf2st.header import Header, Source
from gguf2st.header.keys import KEYS, MAX_INDEX, brief, checked
from gguf2st.ops import OPS, same_shape
from gguf2st.plan import Entry, Plan, coverage
from gguf2st.plan.other_kinds import require_model
from gguf2st.plan.scales import with_scales

MAX_INSTANCES_PER_TENSOR = 1_000
"""Most layers times experts for each tensor of the file: models have 20. A small file costs little whatever it says."""
MAX_BARE_LAYERS = 500
"""Most layers of a file that has fewer tensors than layers, which is damaged anyhow."""


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
        read: values of a small float32 tensor; from the files themselves by default.

    Raises:
        CoverageError: the file is no model by itself.
        MapError: no map fits the file, or the given one is for another architecture.
    """
    require_model(header)
    read = read or read_small(header)
    if arch_map is None:
        amap = mapfile.select_map(header.arch, lambda m: bool(MapScope(header, m, read).evaluate(m.when)))
    else:
        amap = mapfile.load_map(arch_map)
        if amap.arch != header.arch:
            raise MapError(
                f"{arch_map} is for architecture {amap.arch!r}; {header.files[0]} is {header.arch!r}",
                hint="leave out --arch-map for the map of that architecture, if `gguf2st archs` has one",
            )
    return with_scales(_Builder(amap, header, MapScope(header, amap, read)).plan(), read)


@dataclass
class _Builder:
    """One map meets one header. Collects what does not fit, a cause once and not with each of its consequences.

    Attributes:
        problems: one line each, in order, without repetition.
        lost_tensors: problem -> the tensor that a map asked the size of; not said again when `missing` says it.
        missing: HF tensor -> the sources that its equation lacks.
        used: GGUF tensors with a place.
        blocked: source templates of the equations that could not be instantiated, for a reason among the problems.
        misshapen: what is wrong with a shape -> the GGUF tensors that have it.
        misread: metadata keys that the wrong shapes were computed from.
    """

    amap: ArchMap
    header: Header
    scope: MapScope
    problems: dict[str, None] = field(default_factory=dict)
    lost_tensors: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    blocked: dict[str, str] = field(default_factory=dict)
    misshapen: dict[str, dict[str, None]] = field(default_factory=dict)
    misread: set[str] = field(default_factory=set)

    def plan(self) -> Plan:
        """Everything, in one go."""
        self._check_keys()
        config = self._config()
        files = self._files()
        self._require()
        entries = tuple(self._entries())
        failed = bool(self.problems or self.lost_tensors)
        dropped = self._dropped()
        unmapped = tuple(
            name
            for name in self.header.sources
            if name not in self.used
            and name not in dropped
            and not (self.blocked and match_template(name, self.blocked))
        )
        lacking = {source for text in self.missing.values() for source in text.split(", ")}
        lost = [message for message, tensor in self.lost_tensors.items() if tensor not in lacking]
        problems = [
            *self.problems,
            *lost,
            *self._shape_problems(),
            *coverage.unread_keys(self.amap, self.header, self.scope.read_keys, failed=failed),
            *coverage.undecodable(self.header, self.used),
            *coverage.misplaced_numbers(self.header, entries),
            *([] if failed or self.missing or self.misshapen else coverage.partly_used(self.header, entries)),
            *([] if failed or self.missing or self.misshapen else coverage.uneven_heads(config)),
        ]
        assumed = [f"{key} = {value!r} is assumed: {why}" for key, (value, why) in self.amap.assumed.items()]
        return Plan(
            arch=self.header.arch,
            map=self.amap.name,
            header=self.header,
            config=config,
            entries=entries,
            dropped=dropped,
            unmapped=unmapped,
            missing=self.missing,
            problems=tuple(problems),
            notes=tuple(map(short, [*self.header.notes, *self.scope.notes, *assumed])),
            float16=self.amap.float16,
            fused=self.amap.fused,
            files=files,
        )

    def _check_keys(self) -> None:
        """Types and ranges of all that the map may read: an expression that fails would hide the keys behind it."""
        prefix = f"{self.header.arch}."
        for full, value in self.header.metadata.items():
            key = full.removeprefix(prefix)
            if full.startswith(prefix) and key in KEYS and coverage.is_among(key, self.amap.keys):
                try:
                    checked(full, key, value)
                except MapError as err:
                    self._problem(err.message)

    def _config(self) -> dict[str, Any]:
        """config.json from the map: constants, expressions, functions."""
        config: dict[str, Any] = dict(self.amap.constants) | {k: value for k, (value, _) in self.amap.assumed.items()}
        for key, expression in self.amap.config.items():
            value = self._value(expression)
            if key.startswith("*") and value is not _FAILED and not isinstance(value, dict):
                self._problem(f"[config] {key} is to give keys and values; {expression.text} is {brief(value)}")
            elif value is not _FAILED:
                config |= value if key.startswith("*") else {key: value}
        return nested(config)

    def _files(self) -> dict[str, Any]:
        try:
            return embedding_files(self.scope.at())
        except Gguf2stError as err:
            self._problem(err.message)
            return {}

    def _require(self) -> None:
        for message, expression in self.amap.require.items():
            if not self._value(expression):
                self._problem(f"{message}{self._values(self.amap.use(expression).keys)}")

    def _entries(self) -> Iterator[Entry]:
        seen: set[str] = set()
        layers = self._count(self.amap.layers, "layers", 1)
        for group in self.amap.groups:
            counted_by = group.experts or self.amap.experts
            experts = self._experts(counted_by, layers)
            first = (self._count(group.after, "layers before others", 0) if group.after else None) or 0
            for equation in group.equations:
                if (equation.over_layers and layers is None) or (equation.over_experts and experts is None):
                    self._block(equation)
                    continue
                for i in range(layers or 0) if equation.over_layers else [None]:
                    index = {} if i is None else {"i": i}
                    holds = self._value(group.condition, **index)
                    if holds is _FAILED:
                        self._block(equation)
                    elif holds:
                        for entry in self._instances(equation, index, experts or 0, counted_by, first):
                            if entry.name in seen:
                                self._problem(f"{entry.name} is filled by two equations of the map {self.amap.name}")
                            seen.add(entry.name)
                            yield entry

    def _experts(self, expression: Expression, layers: int | None) -> int | None:
        """How far {e} runs; None for a number that is not there, or absurd."""
        experts = self._count(expression, "experts", 0)
        if layers and experts and layers * experts > MAX_INSTANCES_PER_TENSOR * len(self.header.sources):
            self._problem(f"{layers} layers of {experts} experts: no model has so many")
            return None
        return experts

    def _count(self, expression: Expression, what: str, low: int) -> int | None:
        """The value of `layers` or `experts`; None for a number that is not there, or absurd."""
        n = self._value(expression)
        if n is _FAILED:
            return None
        if type(n) is not int or not low <= n <= MAX_INDEX:
            self._problem(f"the number of {what}, {expression.text}, is {brief(n)}")
            return None
        if what == "layers" and n > max(MAX_BARE_LAYERS, len(self.header.sources)):
            self._problem(f"the number of {what}, {expression.text}, is {n}; the file has fewer tensors")
            return None
        return n

    def _instances(
        self, equation: Equation, index: dict[str, int], experts: int, counted_by: Expression, first: int
    ) -> Iterator[Entry]:
        """The entries of one equation in one layer, whose sources {i} counts from `first`: one, or one per expert."""
        for e in range(experts) if equation.over_experts else [None]:
            here = index if e is None else index | {"e": e}
            name = _fill(equation.name, here)
            way, sources = self._first_way(equation, here | {"i": here["i"] + first} if first else here)
            if lost := [s for s in sources if s not in self.header.sources]:
                self.missing[name] = ", ".join(lost)
                continue
            self.used.update(sources)
            stacks = [s for s, template in zip(sources, way.sources, strict=True) if "{e}" not in template]
            if e == 0 and not way.cuts and not self._whole_stacks(stacks, experts, counted_by):
                return
            arguments = [self._value(x, **here) for _, x in way.steps]
            promised = self._value(way.shape, **here)
            stated = [self._value(x, **here) if x else None for x in way.source_shapes]
            if promised is _FAILED or _FAILED in (*arguments, *stated):
                continue
            ops = tuple((op, *_numbers(op, args)) for (op, _), args in zip(way.steps, arguments, strict=True))
            shape = self._shape(name, way, sources, ops, promised, stated)
            if shape is not None:
                yield Entry(name, sources, ops, shape, way.packed, self.amap.pins.get(equation.name, ""))

    def _first_way(self, equation: Equation, index: dict[str, int]) -> tuple[Way, tuple[str, ...]]:
        """The first way whose sources the file has all of, else the first with any, else the first."""
        filled = [(way, tuple(_fill(s, index) for s in way.sources)) for way in equation.ways]
        for quantifier in (all, any):
            for way, sources in filled:
                if quantifier(s in self.header.sources for s in sources):
                    return way, sources
        return filled[0]

    def _whole_stacks(self, stacks: list[str], experts: int, counted_by: Expression) -> bool:
        """Whether tensors that hold all experts of a layer hold exactly as many as the metadata say."""
        wrong = [s for s in stacks if self.header.sources[s].shape[:1] != (experts,)]
        for name in wrong:
            shape = list(self.header.sources[name].shape)
            self._misshapen(name, f"is {shape}, not one matrix for each of {experts} experts", counted_by)
        return not wrong

    def _shape(
        self,
        entry: str,
        way: Way,
        sources: Sequence[str],
        ops: Sequence[tuple[Any, ...]],
        promised: list[Any],
        stated: list[Any],
    ) -> tuple[int, ...] | None:
        """The shape of an entry, or None when its sources are not as stated, or do not give what is promised."""
        shapes = [self.header.sources[s].shape for s in sources]
        for name, text, shape, dims in zip(sources, way.source_shapes, shapes, stated, strict=True):
            if text and not same_shape(shape, dims):
                self._misshapen(name, f"is {list(shape)}, not {text.text} = {dims}", text)
                return None
        found = f"is {' and '.join(str(list(shape)) for shape in shapes)}" if shapes else "is made of metadata"
        joined = ", ".join(sources) or entry
        try:
            for op, *arguments in ops:
                shapes = [OPS[op].result(shapes, *arguments)]
        except (ValueError, IndexError) as err:
            self._misshapen(joined, f"{found}: {err}", *(x for _, x in way.steps))
            return None
        (shape,) = shapes
        if not same_shape(shape, promised):
            if shape not in (self.header.sources[s].shape for s in sources):
                found += f" and gives {list(shape)}"
            computed_from = [way.shape] if sources else [way.shape, *(x for _, x in way.steps)]
            self._misshapen(joined, f"{found}, not {way.shape.text} = {promised}", *computed_from)
            return None
        return tuple(promised)

    def _dropped(self) -> dict[str, str]:
        dropped: dict[str, str] = {}
        for name in self.header.sources.keys() - self.used:
            reason = self.scope.configured.get(name) or match_template(name, self.amap.drop) or self._beyond(name)
            if reason := reason or self.header.beside.get(name, ""):
                dropped[name] = reason
        return {name: dropped[name] for name in self.header.sources if name in dropped}

    def _beyond(self, name: str) -> str:
        """Why a tensor of a layer past the map's last one is left behind; "" when the map has no reason."""
        kind, _, rest = name.partition(".")
        number = rest.partition(".")[0]
        if not self.amap.beyond or kind != "blk" or not number.isdecimal() or len(number) > 9:
            return ""
        layers, n_blocks = self._value(self.amap.layers), self.scope.at().get("block_count")
        if layers is _FAILED or type(n_blocks) is not int or not layers <= int(number) < n_blocks:
            return ""
        return self.amap.beyond

    def _value(self, expression: Expression, **index: int) -> Any:
        """Value of an expression, or _FAILED with the reason among the problems."""
        try:
            return self.scope.at(**index).evaluate(expression)
        except NoTensorError as err:
            self.lost_tensors[err.message] = err.tensor
        except Gguf2stError as err:
            self._problem(err.message)
        return _FAILED

    def _problem(self, line: str) -> None:
        self.problems[line] = None

    def _block(self, equation: Equation) -> None:
        for way in equation.ways:
            self.blocked.update(dict.fromkeys(way.sources, "blocked"))

    def _misshapen(self, tensor: str, what: str, *computed_from: Expression) -> None:
        self.misshapen.setdefault(what, {})[tensor] = None
        for expression in computed_from:
            self.misread |= self.amap.use(expression).keys

    def _shape_problems(self) -> list[str]:
        """All wrong shapes in one line: a single wrong number in the metadata makes several of them."""
        if not self.misshapen:
            return []
        rows = [f"{listing(names)} {what}" for what, names in self.misshapen.items()]
        more = f"; and {len(rows) - 8} more" if len(rows) > 8 else ""
        return [f"shapes that contradict the metadata: {'; '.join(rows[:8])}{more}{self._values(self.misread)}"]

    def _values(self, keys: set[str] | frozenset[str]) -> str:
        """` (llama.block_count = 2, ...)` for those of the keys that the file has."""
        metadata, prefix = self.header.metadata, f"{self.header.arch}."
        values = [
            f"{prefix}{key} = {brief(metadata[prefix + key])}" for key in sorted(keys) if prefix + key in metadata
        ]
        return f" ({', '.join(values)})" if values else ""


class _Failed:
    """What an expression gives whose evaluation failed."""

    def __bool__(self) -> bool:
        return True  # a condition or requirement that cannot be evaluated is one problem, not two


_FAILED = _Failed()


def _numbers(op: str, arguments: list[Any]) -> list[Any]:
    """The arguments of an op; of one that takes any number of them, a list stands for its items."""
    if not OPS[op].more:
        return arguments
    return [x for argument in arguments for x in (argument if isinstance(argument, list) else [argument])]


def _fill(template: str, index: dict[str, int]) -> str:
    for key, number in index.items():
        template = template.replace(f"{{{key}}}", str(number))
    return template
