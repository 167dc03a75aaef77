"""What a conversion did, as one object: for Python, for `--json`, and as text."""

import dataclasses
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gguf2st import __version__
from gguf2st.fold import fold, listing
from gguf2st.plan import DENSE, Entry, Plan
from gguf2st.plan.choice import decisions, is_exact_entry
from gguf2st.quants.layout import TYPES
from gguf2st.verification import Verification
from gguf2st.verification.limits import planned_limits

if TYPE_CHECKING:
    from gguf2st.hub.push import Pushed


@dataclass(frozen=True)
class TypeRow:
    """The tensors of one ggml type that became the same, and what that is.

    Attributes:
        nbytes, output_nbytes: before and after.
        dtype: of the values, or of the scales of a packed scheme.
        result: "cast", "dequantized", "exact" for packed numbers that equal the source's, "bounded" for others.
        worst_rel_rmse: the largest relative rmse of a bounded weight; None before it is known.
    """

    qtype: str
    tensors: int
    nbytes: int
    scheme: str
    dtype: str
    output_nbytes: int
    result: str
    worst_rel_rmse: float | None = None


@dataclass(frozen=True)
class Report:
    """The result of a conversion, or of a dry run.

    Attributes:
        files: of the source.
        origin: where they came from, `hf://org/repo@commit/path` or `ollama://model:tag`; empty for other files.
        source_nbytes, output_nbytes: tensor bytes before and after.
        output: folder of the checkpoint; None for a dry run.
        arch, map: GGUF architecture and the arch map used.
        hf_class: the class that loads the result.
        dtype: of dense weights.
        repack: the mode.
        bfloat16_nbytes: what all weights would take in bfloat16.
        types: one row per ggml type and what became of it.
        choices: module (folded) -> why it was packed otherwise than its type alone would have been, or not at all.
        rel_rmse: weight -> how far it is from the source, of those that were not packed exactly.
        dropped: GGUF tensor (folded) -> why it was left behind.
        notes: what the reader should know.
        shards: file names.
        digests: file -> its sha256; without the shards where they were not hashed (see gguf2st/output/digests.py).
        verification: None for a dry run.
        pushed: what the upload did, if there was one.
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
    repack: str
    bfloat16_nbytes: int
    types: tuple[TypeRow, ...]
    choices: dict[str, str]
    rel_rmse: dict[str, float]
    dropped: dict[str, str]
    notes: tuple[str, ...]
    shards: tuple[str, ...]
    verification: Verification | None
    seconds: float
    origin: str = ""
    digests: Mapping[str, str] = dataclasses.field(default_factory=dict)
    pushed: "Pushed | None" = None
    version: str = __version__

    def to_json(self) -> str:
        """The report as indented JSON with a final newline."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"


def make_report(
    plan: Plan,
    *,
    output: Path | None,
    notes: Iterable[str] = (),
    rmses: Mapping[str, float] | None = None,
    verification: Verification | None = None,
    seconds: float = 0.0,
    origin: str = "",
    digests: Mapping[str, str] | None = None,
) -> Report:
    """The report on a laid-out plan; `rmses` is what `execute` returned, None before it ran."""
    header = plan.header
    dense = {e.name for e in plan.entries if e.scheme == DENSE} if rmses else set()
    lost = {name: share for name, share in (rmses or {}).items() if name in dense}
    rmses = {name: rmse for name, rmse in rmses.items() if name not in lost} if rmses else rmses
    parameters = sum(e.n_elements for e in plan.entries)
    return Report(
        files=header.files,
        output=None if output is None else str(output),
        arch=plan.arch,
        map=plan.map,
        hf_class=", ".join(plan.config.get("architectures", [])),
        dtype=plan.dtype,
        tensors=len(plan.entries),
        parameters=parameters,
        source_nbytes=sum(s.nbytes or 0 for s in header.sources.values()),
        output_nbytes=sum(s.nbytes for s in plan.shards),
        repack=plan.repack,
        bfloat16_nbytes=2 * parameters,
        types=type_rows(plan, rmses),
        choices=decisions(plan),
        rel_rmse=dict(rmses or {}),
        dropped=_folded_reasons(plan),
        # Verification says the limits too.
        notes=(*plan.notes, *_underflow(lost), *notes, *(() if verification else planned_limits(plan))),
        shards=tuple(s.file for s in plan.shards),
        verification=verification,
        seconds=round(seconds, 3),
        origin=origin,
        digests=dict(sorted((digests or {}).items())),
    )


def type_rows(plan: Plan, rmses: Mapping[str, float] | None = None) -> tuple[TypeRow, ...]:
    """Source tensors by ggml type and what became of them, largest first. A stack of experts is one tensor."""
    tensors: dict[tuple[str, str, str, str], dict[str, int]] = defaultdict(dict)
    written: dict[tuple[str, str, str, str], int] = defaultdict(int)
    worst: dict[tuple[str, str, str, str], float] = {}
    for e in plan.entries:
        sources = [plan.header.sources[s] for s in e.sources]
        total = sum(s.n_elements for s in sources)
        for source in sources:
            key = (source.qtype, e.scheme, e.dtype, _result(plan, e, source.qtype))
            tensors[key][source.name] = source.nbytes or 0
            written[key] += e.nbytes * source.n_elements // total  # sources of several types share an entry
            if rmses and e.name in rmses:
                worst[key] = max(worst.get(key, 0.0), rmses[e.name])
    rows = [
        TypeRow(q, len(found), sum(found.values()), scheme, dtype, written[key], result, worst.get(key))
        for key, found in tensors.items()
        for q, scheme, dtype, result in [key]
    ]
    return tuple(sorted(rows, key=lambda r: -r.nbytes))


def _underflow(lost: Mapping[str, float]) -> Iterator[str]:
    """A note on dense tensors -> the share of their values that float16 lost."""
    if lost:
        share = f"{max(lost.values()):.0%}" if len(lost) == 1 else f"up to {max(lost.values()):.0%} each"
        yield (
            f"float16 is too coarse for small values of {listing(lost)}: {share} become 0, or change by more than 1%; "
            "bfloat16 and float32 keep them"
        )


def _result(plan: Plan, entry: Entry, qtype: str) -> str:
    if entry.scheme == DENSE:
        return "dequantized" if TYPES[qtype].block > 1 else "cast"
    return "exact" if is_exact_entry(plan, entry) else "bounded"


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
