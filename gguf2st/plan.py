"""The plan: one row per HF tensor, from where and how. Everything else reads it.

Three pure steps, no weight read: `build.build` (names, ops, shapes), `choose` (output dtype and scheme, with a reason)
and `lay_out` (shards and byte offsets).
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gguf2st.errors import CoverageError, UsageError
from gguf2st.fold import fold, listing
from gguf2st.header import Header, Source
from gguf2st.quants.layout import TYPES

DTYPE_NBYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
"""Output dtypes and their size."""


@dataclass(frozen=True, slots=True)
class Output:
    """One tensor as it lies in a shard: bytes [start, stop) after the shard's header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    shard: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One HF tensor: `name = sources | ops`, every argument a number.

    Attributes:
        ops: (name, *arguments) in order.
        packed: whether every op moves whole rows only, so that they can run on quantized bytes.
        dtype: of the output; empty before `choose`.
        scheme: output format; empty before `choose`. `reason` says why this one.
        outputs: physical tensors; empty before `lay_out`.
    """

    name: str
    sources: tuple[str, ...]
    ops: tuple[tuple[Any, ...], ...]
    shape: tuple[int, ...]
    packed: bool
    dtype: str = ""
    scheme: str = ""
    reason: str = ""
    outputs: tuple[Output, ...] = ()

    @property
    def n_elements(self) -> int:
        """Number of weights."""
        return math.prod(self.shape)

    def equation(self) -> str:
        """The instantiated right-hand side: `blk.3.attn_q.weight | unpermute(9)`."""
        calls = [f"{op}({', '.join(map(str, args))})" for op, *args in self.ops]
        return " | ".join([", ".join(self.sources), *calls])


@dataclass(frozen=True, slots=True)
class Shard:
    """One safetensors file of the output."""

    file: str
    nbytes: int


@dataclass(frozen=True)
class Plan:
    """What a conversion will do.

    Attributes:
        arch, map: GGUF architecture and the map that was chosen.
        config: config.json without the output dtype.
        entries: in the order of the map.
        dropped: GGUF tensor -> why it is left behind.
        unmapped: GGUF tensors that no equation uses.
        missing: HF tensor -> what its equation lacks.
        problems: contradictions between metadata, tensors and map; keys nobody read; types nobody decodes.
        notes: what the reader of the result should know.
        float32: HF tensors pinned to float32.
        float16: why the model should not be run in float16; empty when it may.
        shards: empty before `lay_out`.
    """

    arch: str
    map: str
    header: Header
    config: Mapping[str, Any]
    entries: tuple[Entry, ...]
    dropped: Mapping[str, str] = field(default_factory=dict)
    unmapped: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    float32: frozenset[str] = frozenset()
    float16: str = ""
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    shards: tuple[Shard, ...] = ()

    @property
    def all_problems(self) -> tuple[str, ...]:
        """Every reason not to convert, one line each, names folded over layers and experts."""
        lines = list(self.problems)
        if self.missing:
            needs = sorted({s for text in self.missing.values() for s in text.split(", ")})
            lines.append(f"HF tensors that nothing fills: {listing(self.missing)} (the file lacks {listing(needs)})")
        if self.unmapped:
            lines.append(f"GGUF tensors without a place in the map {self.map}: {listing(self.unmapped)}")
        return tuple(lines)

    def require_complete(self) -> None:
        """Raise CoverageError unless every tensor, parameter and key is accounted for."""
        problems = self.all_problems
        if not problems:
            return
        more = f" (and {len(problems) - 1} more problems)" if len(problems) > 1 else ""
        raise CoverageError(
            f"{self.header.files[0]}: {problems[0]}{more}",
            problems=problems[1:],
            hint=f"`gguf2st check {self.header.files[0]}` lists everything; nothing was written",
        )


def choose(plan: Plan, dtype: str) -> Plan:
    """Step 2: the output dtype (a key of DTYPE_NBYTES) and scheme of every entry."""
    pinned = {_template(name) for name in plan.float32}
    entries = tuple(
        dataclasses.replace(
            e,
            dtype="float32" if pinned and _template(e.name) in pinned else dtype,
            scheme="dense",
            reason="dequantized" if any(TYPES[plan.header.sources[s].qtype].block > 1 for s in e.sources) else "cast",
        )
        for e in plan.entries
        if all(plan.header.sources[s].qtype in TYPES for s in e.sources)
    )
    notes = plan.notes
    if dtype == "float16" and plan.float16:
        notes += (f"float16: {plan.float16}; convert with --dtype bfloat16",)
    return dataclasses.replace(plan, entries=entries, notes=notes)


def lay_out(plan: Plan, shard_nbytes: int) -> Plan:
    """Step 3: which shard each tensor goes to, and its byte range there.

    Shards are filled in plan order; inside one, tensors lie as the safetensors library sorts them (wide dtypes first,
    then by name), so that our files equal the ones it writes. A tensor larger than `shard_nbytes` gets its own shard.
    """
    if shard_nbytes < 1:
        raise UsageError("the shard size must be positive")
    groups: list[list[Entry]] = []
    room = -1
    for e in plan.entries:
        nbytes = e.n_elements * DTYPE_NBYTES[e.dtype]
        if nbytes > room or not groups:
            groups.append([])
            room = shard_nbytes
        groups[-1].append(e)
        room -= nbytes
    placed: dict[str, Output] = {}
    shards: list[Shard] = []
    for index, group in enumerate(groups):
        at = 0
        for e in sorted(group, key=lambda e: (-DTYPE_NBYTES[e.dtype], e.name)):
            stop = at + e.n_elements * DTYPE_NBYTES[e.dtype]
            placed[e.name] = Output(e.name, e.dtype, e.shape, index, at, stop)
            at = stop
        name = f"model-{index + 1:05d}-of-{len(groups):05d}" if len(groups) > 1 else "model"
        shards.append(Shard(f"{name}.safetensors", at))
    entries = tuple(dataclasses.replace(e, outputs=(placed[e.name],)) for e in plan.entries)
    return dataclasses.replace(plan, entries=entries, shards=tuple(shards))


def folded_equations(plan: Plan) -> list[tuple[str, str, str]]:
    """(name, equation, shape) rows of the plan, folded over layers and experts where they agree."""
    groups: dict[tuple[str, str, tuple[int, ...]], list[Entry]] = {}
    for e in plan.entries:
        calls = " | ".join(op if op == "take" else f"{op}({', '.join(map(str, a))})" for op, *a in e.ops)
        groups.setdefault((_template(e.name), calls, e.shape), []).append(e)
    rows: list[tuple[str, str, str]] = []
    for (_, calls, shape), entries in groups.items():
        names = fold(e.name for e in entries)
        sources = fold(s for e in entries for s in e.sources)
        text = " | ".join([", ".join(sources), *([calls] if calls else [])])
        rows.extend((name, text, str(list(shape))) for name in names)
    return rows


def _template(name: str) -> str:
    """`model.layers.3.x` -> `model.layers.#.x`, and `model.layers.{i}.x` likewise."""
    return ".".join("#" if p.isdigit() or p in ("{i}", "{e}") else p for p in name.split("."))


def to_json(plan: Plan) -> str:
    """The plan as JSON text; the same plan always gives the same text."""
    header = plan.header
    table = _fields(plan)
    table["float32"] = sorted(plan.float32)
    table["header"] = {
        "files": header.files,
        "sizes": header.sizes,
        "version": header.version,
        "byteorder": header.byteorder,
        "sources": [[*_fields(s).values()] for s in header.sources.values()],
    }
    return json.dumps(table, separators=(",", ":"), default=_fields)


def _fields(row: Any) -> dict[str, Any]:
    """A dataclass as a dict, its values as they are: `dataclasses.asdict` copies them, which costs most of the time."""
    return {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}


def from_json(text: str) -> Plan:
    """The plan that `to_json` wrote, without the file's metadata (they have become configuration)."""
    table = json.loads(text)
    head = table["header"]
    sources = (
        Source(name, qtype, tuple(shape), file, offset, nbytes)
        for name, qtype, shape, file, offset, nbytes in head["sources"]
    )
    header = Header(
        tuple(head["files"]),
        tuple(head["sizes"]),
        head["version"],
        head["byteorder"],
        {"general.architecture": table["arch"]},
        {s.name: s for s in sources},
    )
    entries = tuple(
        Entry(
            **e
            | {
                "sources": tuple(e["sources"]),
                "ops": tuple(tuple(op) for op in e["ops"]),
                "shape": tuple(e["shape"]),
                "outputs": tuple(Output(**o | {"shape": tuple(o["shape"])}) for o in e["outputs"]),
            }
        )
        for e in table["entries"]
    )
    return Plan(
        **table
        | {
            "header": header,
            "entries": entries,
            "unmapped": tuple(table["unmapped"]),
            "problems": tuple(table["problems"]),
            "notes": tuple(table["notes"]),
            "float32": frozenset(table["float32"]),
            "fused": {k: tuple(v) for k, v in table["fused"].items()},
            "shards": tuple(Shard(**row) for row in table["shards"]),
        }
    )


def digest(plan: Plan) -> str:
    """SHA-256 of the plan's JSON text."""
    return hashlib.sha256(to_json(plan).encode()).hexdigest()
