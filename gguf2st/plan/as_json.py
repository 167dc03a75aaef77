"""The plan as JSON, both ways: what was read may be a stranger's, and is checked to be a plan that a builder made."""

import dataclasses
import hashlib
import json
import math
from typing import Any

from gguf2st.archmap import PINS
from gguf2st.errors import SourceError
from gguf2st.header import ByteOrder, Header, Source
from gguf2st.ops import ANY, OPS, VALUES, same_shape
from gguf2st.plan import DENSE, DTYPE_NBYTES, DTYPES, SHARD_NAME, Entry, Plan, nbytes_of
from gguf2st.quants.layout import INT64, INTEGERS, TYPES
from gguf2st.records import from_plain
from gguf2st.schemes import SCHEMES


def to_json(plan: Plan) -> str:
    """The plan as JSON text; the same plan always gives the same text."""
    header = plan.header
    table = _fields(plan)
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
        if source.neighbours and source.qtype != "MXFP4":
            raise ValueError(f"tensor {source.name[:60]!r} of {source.qtype[:20]} has no pairs of numbers to part")
    for shard in plan.shards:
        if not SHARD_NAME.fullmatch(shard.file) or shard.nbytes < 0:
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
    if entry.pin not in ("", *PINS) or (entry.scheme and entry.dtype not in (*DTYPES, INT64)):
        raise ValueError(f"{name!r}: {entry.pin or entry.dtype!r:.60} is no dtype of a tensor")
    if (entry.scheme and (entry.dtype == INT64) != entry.whole) or (entry.whole and entry.scheme not in ("", DENSE)):
        raise ValueError(f"{name!r}: {entry.scheme} {entry.dtype} is not what holds {entry.pin or 'weights'}")
    if wrong := [source for source in sources if (source.qtype in INTEGERS) != entry.whole and source.qtype in TYPES]:
        raise ValueError(f"{name!r}: {wrong[0].qtype} {wrong[0].name[:60]!r} becomes {entry.pin or 'weights'}")
    if entry.whole and not all(OPS[op].packed or op == VALUES for op, *_ in entry.ops):
        raise ValueError(f"{name!r} has whole numbers, and its ops compute")
    if packs and (not sources or not all(OPS[op].packed for op, *_ in entry.row_ops)):
        raise ValueError(f"{name!r} cannot be {entry.scheme}: its ops do more than move rows")
    for source in sources:
        scale = plan.scales.get(source.name)
        if scale is not None and (not scale or source.n_rows % len(scale) or entry.whole):
            raise ValueError(f"{source.name[:60]!r} has {source.n_rows} rows, and {len(scale)} scales")
    if entry.outputs:
        stated = [(o.name, o.dtype, o.shape, o.stop - o.start) for o in entry.outputs]
        if stated != [(*row, nbytes_of(*row[1:])) for row in entry.tensors()]:
            raise ValueError(f"{name!r} does not become what its outputs say")


def digest(plan: Plan) -> str:
    """SHA-256 of the plan's JSON text."""
    return hashlib.sha256(to_json(plan).encode()).hexdigest()
