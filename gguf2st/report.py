"""What a conversion did, as one object: for Python, for `--json`, and as text."""

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gguf2st import __version__
from gguf2st.fold import fold
from gguf2st.plan import Plan
from gguf2st.verification import Verification


@dataclass(frozen=True)
class TypeRow:
    """The tensors of one ggml type, and what became of them."""

    qtype: str
    tensors: int
    nbytes: int
    scheme: str
    dtype: str


@dataclass(frozen=True)
class Report:
    """The result of a conversion, or of a dry run.

    Attributes:
        files: of the source.
        source_nbytes, output_nbytes: tensor bytes before and after.
        output: folder of the checkpoint; None for a dry run.
        arch, map: GGUF architecture and the arch map used.
        hf_class: the class that loads the result.
        types: one row per ggml type and output dtype.
        dropped: GGUF tensor (folded) -> why it was left behind.
        notes: what the reader should know.
        shards: file names.
        verification: None for a dry run.
        seconds: wall time.
    """

    files: tuple[str, ...]
    output: str | None
    arch: str
    map: str
    hf_class: str
    dtype: str
    tensors: int
    parameters: int
    source_nbytes: int
    output_nbytes: int
    types: tuple[TypeRow, ...]
    dropped: dict[str, str]
    notes: tuple[str, ...]
    shards: tuple[str, ...]
    verification: Verification | None
    seconds: float
    version: str = __version__

    def to_json(self) -> str:
        """The report as indented JSON with a final newline."""
        return json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False) + "\n"


def make_report(
    plan: Plan,
    *,
    output: Path | None,
    dtype: str,
    notes: Iterable[str] = (),
    verification: Verification | None = None,
    seconds: float = 0.0,
) -> Report:
    """The report on a laid-out plan."""
    header = plan.header
    return Report(
        files=header.files,
        output=None if output is None else str(output),
        arch=plan.arch,
        map=plan.map,
        hf_class=", ".join(plan.config.get("architectures", [])),
        dtype=dtype,
        tensors=len(plan.entries),
        parameters=sum(e.n_elements for e in plan.entries),
        source_nbytes=sum(s.nbytes or 0 for s in header.sources.values()),
        output_nbytes=sum(s.nbytes for s in plan.shards),
        types=type_rows(plan),
        dropped=_folded_reasons(plan),
        notes=(*plan.notes, *notes),
        shards=tuple(s.file for s in plan.shards),
        verification=verification,
        seconds=round(seconds, 3),
    )


def type_rows(plan: Plan) -> tuple[TypeRow, ...]:
    """Source tensors by ggml type and output, largest first. A stack of experts is one tensor."""
    seen: dict[tuple[str, str, str], dict[str, int]] = {}
    for e in plan.entries:
        for name in e.sources:
            source = plan.header.sources[name]
            seen.setdefault((source.qtype, e.scheme, e.dtype), {})[name] = source.nbytes or 0
    rows = (TypeRow(q, len(t), sum(t.values()), scheme, dtype) for (q, scheme, dtype), t in seen.items())
    return tuple(sorted(rows, key=lambda r: -r.nbytes))


def _folded_reasons(plan: Plan) -> dict[str, str]:
    by_reason: dict[str, list[str]] = {}
    for name, reason in plan.dropped.items():
        by_reason.setdefault(reason, []).append(name)
    return {name: reason for reason, names in by_reason.items() for name in fold(names)}


def human_bytes(n: float) -> str:
    """`98.4 MB`, in powers of 1000 as disks and the Hub count."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(n) < 1000:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    return f"{n:.2f} TB"


def human_count(n: int) -> str:
    """`134.5M`."""
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if n >= size:
            return f"{n / size:.1f}{unit}"
    return str(n)
