"""The plan: one row per HF tensor, from where and how. Everything else reads it.

Three pure steps, no weight read: `build.build` (names, ops, shapes), `choice.choose` (output dtype and scheme, with a
reason) and `lay_out` (shards and byte offsets).
"""

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gguf2st.errors import CoverageError, SourceError, UsageError, short
from gguf2st.fold import fold, listing
from gguf2st.header import ByteOrder, Header, Source
from gguf2st.ops import ANY, OPS, same_shape
from gguf2st.quants.layout import TYPES
from gguf2st.quoting import source_word
from gguf2st.records import from_plain
from gguf2st.schemes import SCHEMES

DTYPES = ("bfloat16", "float16", "float32")
"""What weights may be dequantized to."""
DTYPE_NBYTES = {
    "int64": 8,
    "float32": 4,
    "int32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3": 1,
    "uint8": 1,
}
"""Dtypes of tensors in the output and their size, in the order in which the safetensors library sorts them."""
_SHARD_NAME = re.compile(r"model(-\d{5,}-of-\d{5,})?\.safetensors")
DENSE = "dense"
"""The scheme of weights that are not packed."""
GPT_OSS = "gpt_oss_mxfp4"
"""The scheme that keeps as rows what the last op of an entry, a transpose, makes columns."""


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
        dtype: of the output, or of the scales of a packed one; empty before `choose`.
        scheme: DENSE or a key of `schemes.SCHEMES`; empty before `choose`. `reason` says why this one.
        scale: what the file multiplies the packed weight by; 1 for a dense entry, whose values are multiplied already.
        outputs: physical tensors, in the order of the scheme's parts; empty before `lay_out`.
    """

    name: str
    sources: tuple[str, ...]
    ops: tuple[tuple[Any, ...], ...]
    shape: tuple[int, ...]
    packed: bool
    dtype: str = ""
    scheme: str = ""
    reason: str = ""
    scale: float = 1.0
    outputs: tuple[Output, ...] = ()

    @property
    def n_elements(self) -> int:
        """Number of weights."""
        return math.prod(self.shape)

    @property
    def row_ops(self) -> tuple[tuple[Any, ...], ...]:
        """The ops that a packed entry's rows go through."""
        return self.ops[:-1] if self.scheme == GPT_OSS else self.ops

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape whose last axis is a row as it is packed."""
        return (*self.shape[:-2], self.shape[-1], self.shape[-2]) if self.scheme == GPT_OSS else self.shape

    @property
    def module(self) -> str:
        """The module whose weight this is: `model.layers.3.mlp.up_proj`."""
        return self.name.rpartition(".")[0]

    @property
    def nbytes(self) -> int:
        """Of the outputs."""
        return sum(o.stop - o.start for o in self.outputs)

    def tensors(self) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
        """(name, dtype, shape) of each output, once the scheme is chosen."""
        if self.scheme == DENSE:
            return ((self.name, self.dtype, self.shape),)
        parts = SCHEMES[self.scheme].parts(self.row_shape, self.dtype)
        return tuple((part.name(self.name), part.dtype, part.shape) for part in parts)

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
        files: further JSON files of the checkpoint by name, such as those of an embedding model.
        fused: module that vLLM loads as one parameter -> its members.
        scales: GGUF tensor -> what the file multiplies it by, in a tensor of its own: one number, or one per member
            (expert). They are few, and read while planning.
        dtype: of dense weights; empty before `choose`.
        repack: the mode that was chosen with, a member of `schemes.MODES`.
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
    files: Mapping[str, Any] = field(default_factory=dict)
    scales: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    dtype: str = ""
    repack: str = "none"
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
        return tuple(map(short, lines))

    def require_complete(self) -> None:
        """Raise CoverageError unless every tensor, parameter and key is accounted for."""
        problems = self.all_problems
        if not problems:
            return
        more = f" (and {len(problems) - 1} more problems)" if len(problems) > 1 else ""
        raise CoverageError(
            f"{self.header.files[0]}: {problems[0]}{more}",
            problems=problems[1:],
            hint=f"`gguf2st check {source_word(self.header.files[0])}` lists everything; nothing was written",
        )


def lay_out(plan: Plan, shard_nbytes: int) -> Plan:
    """Step 3: which shard each tensor goes to, and its byte range there.

    Shards are filled in plan order; inside one, tensors lie as the safetensors library sorts them (by dtype, then by
    name), so that our files equal the ones it writes. The tensors of an entry stay together; an entry larger than
    `shard_nbytes` gets its own shard.
    """
    if shard_nbytes < 1:
        raise UsageError("the shard size must be positive")
    tensors = {e.name: e.tensors() for e in plan.entries}
    groups: list[list[Entry]] = []
    room = -1
    for e in plan.entries:
        nbytes = sum(_nbytes(dtype, shape) for _, dtype, shape in tensors[e.name])
        if nbytes > room or not groups:
            groups.append([])
            room = shard_nbytes
        groups[-1].append(e)
        room -= nbytes
    rank = {dtype: n for n, dtype in enumerate(DTYPE_NBYTES)}
    placed: dict[str, Output] = {}
    shards: list[Shard] = []
    for index, group in enumerate(groups):
        at = 0
        rows = [row for e in group for row in tensors[e.name]]
        for name, dtype, shape in sorted(rows, key=lambda row: (rank[row[1]], row[0])):
            stop = at + _nbytes(dtype, shape)
            placed[name] = Output(name, dtype, shape, index, at, stop)
            at = stop
        file = f"model-{index + 1:05d}-of-{len(groups):05d}" if len(groups) > 1 else "model"
        shards.append(Shard(f"{file}.safetensors", at))
    entries = tuple(
        dataclasses.replace(e, outputs=tuple(placed[name] for name, _, _ in tensors[e.name])) for e in plan.entries
    )
    return dataclasses.replace(plan, entries=entries, shards=tuple(shards))


def _nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * DTYPE_NBYTES[dtype]


def folded_equations(plan: Plan) -> list[tuple[str, str, str, str]]:
    """(name, shape, scheme or dtype, equation) rows of the plan, folded over layers and experts where they agree."""
    groups: dict[tuple[str, str, str, str, tuple[int, ...]], list[Entry]] = {}
    for e in plan.entries:
        calls = " | ".join(op if op == "take" else f"{op}({', '.join(map(str, a))})" for op, *a in e.ops)
        scaled = " * scale" if any(s in plan.scales for s in e.sources) else ""
        become = e.dtype if e.scheme == DENSE else e.scheme
        groups.setdefault((template(e.name), calls, become, scaled, e.shape), []).append(e)
    rows: list[tuple[str, str, str, str]] = []
    for (_, calls, become, scaled, shape), entries in groups.items():
        names = fold(e.name for e in entries)
        sources = [f"{source}{scaled}" for source in fold(s for e in entries for s in e.sources)]
        text = " | ".join([", ".join(sources), *([calls] if calls else [])])
        rows.extend((name, str(list(shape)), become, text) for name in names)
    return rows


def template(name: str) -> str:
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
    """The plan that `to_json` wrote, without the file's metadata (they have become configuration).

    Raises:
        SourceError: the text is no plan, or one that contradicts itself.
    """
    try:
        table = json.loads(text, parse_constant=_finite, parse_float=_finite)
        head = table["header"]
        columns = [field.name for field in dataclasses.fields(Source)]
        sources = [from_plain(Source, dict(zip(columns, row, strict=True))) for row in head["sources"]]
        table["header"] = Header(
            from_plain(tuple[str, ...], head["files"]),
            from_plain(tuple[int, ...], head["sizes"]),
            from_plain(int, head["version"]),
            from_plain(ByteOrder, head["byteorder"]),
            {"general.architecture": table["arch"]},
            {source.name: source for source in sources},
        )
        plan: Plan = from_plain(Plan, table)
        _require_sound(plan)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as err:
        raise SourceError(
            f"this is no plan: {str(err)[:200]}", hint="`gguf2st plan SRC --json` writes one of this version"
        ) from None
    return plan


def _finite(text: str) -> float:
    """A number of JSON; Python would also read NaN and Infinity, and 1e999 as the latter."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:60]} is no number")
    return number


def _require_sound(plan: Plan) -> None:
    """Raise ValueError where a plan names what it does not have: a stranger may have written it.

    Names of files become paths, and places become offsets, so that neither may lead elsewhere; ops run on arrays of
    the sources' shapes, and must fit them.
    """
    header = plan.header
    if not header.files or len(header.files) != len(header.sizes):
        raise ValueError(f"{len(header.files)} files with {len(header.sizes)} sizes")
    for source in header.sources.values():
        if not 0 <= source.file < len(header.files) or source.offset < 0 or (source.nbytes or 0) < 0:
            raise ValueError(f"tensor {source.name[:60]!r} lies nowhere")
        if source.offset + (source.nbytes or 0) > header.sizes[source.file] or source.nbytes != _source_nbytes(source):
            raise ValueError(f"tensor {source.name[:60]!r} is not {source.qtype[:20]} of {list(source.shape)}")
    for shard in plan.shards:
        if not _SHARD_NAME.fullmatch(shard.file) or shard.nbytes < 0:
            raise ValueError(f"{shard.file[:60]!r} is no name of a shard")
    for entry in plan.entries:
        if unknown := [name for name in entry.sources if name not in header.sources]:
            raise ValueError(f"there is no tensor {unknown[0][:60]!r}")
        if entry.dtype not in ("", *DTYPE_NBYTES) or entry.scheme not in ("", DENSE, *SCHEMES):
            raise ValueError(f"{entry.dtype[:60]!r} and {entry.scheme[:60]!r} are no output format")
        _require_fitting(plan, entry)
        for output in entry.outputs:
            if not 0 <= output.shard < len(plan.shards):
                raise ValueError(f"there is no shard {output.shard}")
            if not 0 <= output.start <= output.stop <= plan.shards[output.shard].nbytes:
                raise ValueError(f"{output.name[:60]!r} lies outside its shard")


def _source_nbytes(source: Source) -> int | None:
    """Bytes of a tensor of this type and shape; None for a type that is not known."""
    kind = TYPES.get(source.qtype)
    if kind is None:
        return None
    if any(n < 0 for n in source.shape) or math.prod(source.shape[-1:]) % kind.block:
        raise ValueError(f"tensor {source.name[:60]!r} of {source.qtype} cannot have the shape {list(source.shape)}")
    return source.n_elements // kind.block * kind.nbytes


def _require_fitting(plan: Plan, entry: Entry) -> None:
    """Raise ValueError unless an entry's ops fit its sources, give its shape, and its outputs hold that."""
    name, sources = entry.name[:60], [plan.header.sources[s] for s in entry.sources]
    shapes = [source.shape for source in sources]
    for op, *arguments in entry.ops:
        kind = OPS.get(op) if isinstance(op, str) else None
        if kind is None or not kind.accepts(len(arguments)) or kind.n_arrays not in (ANY, len(shapes)):
            raise ValueError(f"{name!r}: no op {op!r:.60} takes {len(shapes)} tensors and {len(arguments)} numbers")
        try:
            shapes = [kind.result(shapes, *arguments)]
        except (ValueError, IndexError) as err:
            raise ValueError(f"{name!r}: {op} does not fit: {err}") from None
    if len(shapes) != 1 or not same_shape(shapes[0], entry.shape):
        found = " and ".join(str(list(shape)) for shape in shapes) or "nothing"
        raise ValueError(f"{name!r} is {list(entry.shape)}, its equation gives {found}")
    packs = entry.scheme not in ("", DENSE)
    if entry.scheme and entry.dtype not in DTYPES:
        raise ValueError(f"{name!r}: {entry.dtype!r} is no dtype of weights")
    if packs and (not sources or not all(OPS[op].packed for op, *_ in entry.row_ops)):
        raise ValueError(f"{name!r} cannot be {entry.scheme}: its ops do more than move rows")
    for source in sources:
        scale = plan.scales.get(source.name)
        if scale is not None and (not scale or source.n_rows % len(scale)):
            raise ValueError(f"{source.name[:60]!r} has {source.n_rows} rows, and {len(scale)} scales")
    if entry.outputs:
        stated = [(o.name, o.dtype, o.shape, o.stop - o.start) for o in entry.outputs]
        if stated != [(*row, _nbytes(*row[1:])) for row in entry.tensors()]:
            raise ValueError(f"{name!r} does not become what its outputs say")


def digest(plan: Plan) -> str:
    """SHA-256 of the plan's JSON text."""
    return hashlib.sha256(to_json(plan).encode()).hexdigest()
