"""Arch maps: one TOML per GGUF architecture and HF class, the only place that knows a model.

An equation says where one HF tensor comes from, what undoes llama.cpp's converter, and the shape the configuration
promises; names stand verbatim on both sides:

    "model.layers.{i}.self_attn.q_proj.weight" = "blk.{i}.attn_q.weight | unpermute(heads) -> [q, hidden]"

`{i}` runs over layers, `{e}` over experts. docs/arch-maps.md describes every table of a map.
"""

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gguf2st import config
from gguf2st.archmap.expr import Expression
from gguf2st.errors import MapError
from gguf2st.ops import OPS, PART
from gguf2st.quants.layout import INT64

INDEX = re.compile(r"\{(.*?)\}")
"""An index of a template: {i} or {e}."""
PINS = ("float32", INT64)
"""Dtypes that a map may demand of tensors: numbers that 16 bits would spoil, and whole numbers."""


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
    """One way to derive a tensor: `sources | steps -> shape`, all still templates over {i} and {e}.

    Attributes:
        source_shapes: what the equation states of each source, None where the steps and `shape` leave one shape only.
    """

    sources: tuple[str, ...]
    source_shapes: tuple[Expression | None, ...]
    steps: tuple[tuple[str, Expression], ...]
    shape: Expression

    @property
    def packed(self) -> bool:
        """Whether every step moves whole rows only."""
        return all(OPS[op].packed for op, _ in self.steps)

    @property
    def cuts(self) -> bool:
        """Whether {e} numbers parts of a table, and not the members of a stack."""
        return any(op == PART for op, _ in self.steps)


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
        """Of each way, the shapes of its sources, the arguments of its ops, then its shape."""
        for way in self.ways:
            yield from (stated for stated in way.source_shapes if stated)
            yield from (arguments for _, arguments in way.steps)
            yield way.shape


@dataclass(frozen=True, slots=True)
class Group:
    """Equations under one condition, evaluated per layer when it mentions `i`.

    Attributes:
        experts: how far {e} runs in this group, where it is not the map's `experts`: over heads, for one.
        after: how many layers of the file stand before those that {i} numbers in the sources; None is none.
    """

    condition: Expression
    equations: tuple[Equation, ...]
    experts: Expression | None = None
    after: Expression | None = None


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
        pins: HF tensor -> its dtype, whatever that of the output is: a member of PINS.
        float16: why the model should not be run in float16; empty when it may.
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
    pins: Mapping[str, str] = field(default_factory=dict)
    float16: str = ""

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
            yield from (bound for bound in (group.experts, group.after) if bound)
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


@functools.cache
def _pattern(template: str) -> re.Pattern[str]:
    parts = INDEX.split(template)
    return re.compile("".join(re.escape(p) if n % 2 == 0 else r"\d+" for n, p in enumerate(parts)))


def match_template(name: str, templates: Mapping[str, str]) -> str | None:
    """The text that belongs to the first template (`blk.{i}.x`) a concrete name (`blk.7.x`) is an instance of."""
    return next((text for t, text in templates.items() if _pattern(t).fullmatch(name)), None)
