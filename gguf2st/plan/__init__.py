"""The plan: one row per HF tensor, from where and how. Everything else reads it.

Three pure steps, no weight read: `build.build` (names, ops, shapes), `choice.choose` (output dtype and scheme, with a
reason) and `lay_out` (shards and byte offsets).
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gguf2st.errors import CoverageError, UsageError, short
from gguf2st.fold import PART_OF_A_TABLE, fold, listing
from gguf2st.header import Header
from gguf2st.ops import PART
from gguf2st.quants.layout import INT64
from gguf2st.quoting import source_word
from gguf2st.schemes import SCHEMES

SHARD_NAME = re.compile(r"model(?:-(\d{5,})-of-(\d{5,}))?\.safetensors")
"""Names of shards, counted from 1, as `lay_out` gives them and transformers' save_pretrained does."""

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
        pin: its dtype whatever that of the output is, of archmap.PINS; empty for most.
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
    pin: str = ""
    dtype: str = ""
    scheme: str = ""
    reason: str = ""
    scale: float = 1.0
    outputs: tuple[Output, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether this holds whole numbers, which are neither rounded nor packed."""
        return self.pin == INT64

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
        return " | ".join([*([", ".join(self.sources)] if self.sources else []), *calls])


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
        nbytes = sum(nbytes_of(dtype, shape) for _, dtype, shape in tensors[e.name])
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
            stop = at + nbytes_of(dtype, shape)
            placed[name] = Output(name, dtype, shape, index, at, stop)
            at = stop
        file = f"model-{index + 1:05d}-of-{len(groups):05d}" if len(groups) > 1 else "model"
        shards.append(Shard(f"{file}.safetensors", at))
    entries = tuple(
        dataclasses.replace(e, outputs=tuple(placed[name] for name, _, _ in tensors[e.name])) for e in plan.entries
    )
    return dataclasses.replace(plan, entries=entries, shards=tuple(shards))


def nbytes_of(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor."""
    return math.prod(shape) * DTYPE_NBYTES[dtype]


ONE_OF_MANY = ("take", PART)
"""Ops that differ from entry to entry alone, in the number that the name has too."""


def folded_equations(plan: Plan) -> list[tuple[str, str, str, str]]:
    """(name, shape, scheme or dtype, equation) rows of the plan, folded over layers and experts where they agree."""
    groups: dict[tuple[str, str, str, str, tuple[int, ...]], list[Entry]] = {}
    for e in plan.entries:
        calls = " | ".join(op if op in ONE_OF_MANY else f"{op}({', '.join(map(str, a))})" for op, *a in e.ops)
        scaled = " * scale" if any(s in plan.scales for s in e.sources) else ""
        become = e.dtype if e.scheme == DENSE else e.scheme
        groups.setdefault((template(e.name), calls, become, scaled, e.shape), []).append(e)
    rows: list[tuple[str, str, str, str]] = []
    for (_, calls, become, scaled, shape), entries in groups.items():
        names = fold(e.name for e in entries)
        sources = [f"{source}{scaled}" for source in fold(s for e in entries for s in e.sources)]
        text = " | ".join(filter(None, (", ".join(sources), calls)))
        rows.extend((name, str(list(shape)), become, text) for name in names)
    return rows


def template(name: str) -> str:
    """`model.layers.3.x` -> `model.layers.#.x`, and `model.layers.{i}.x` likewise; `x.shard_3` -> `x.shard_.#`."""
    parts = name.replace(PART_OF_A_TABLE, f"{PART_OF_A_TABLE}.").split(".")
    return ".".join("#" if p.isdigit() or p in ("{i}", "{e}") else p for p in parts)
