"""Which of many GGUF files is meant: one word, such as Q4_K_M, selects one model of a folder or of a repository.

Names of files follow no rule, but a habit: `Qwen2.5-7B-Instruct-UD-Q4_K_XL-00001-of-00002.gguf`, in sub-folders or not.
"""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gguf2st.errors import SourceError

COMPANIONS = ("mmproj", "imatrix")
"""GGUF files that lie beside a model without being one: vision projectors and importance matrices."""

MAX_LISTED = 40
"""Files listed one by one before the rest is only counted: the largest repositories offer some thirty quants."""

# llama.cpp's llama_split_path: "%s-%05d-of-%05d.gguf", counted from 1.
_SHARD = re.compile(
    r"(?P<prefix>.*)-(?P<number>\d{5})(?P<of>-of-)(?P<count>\d{5})(?P<suffix>\.gguf)", re.DOTALL | re.IGNORECASE
)
# Files cut by `split` because hosts had size limits: none but the first is a GGUF.
CUT = re.compile(r"(?P<whole>.*\.gguf)[.-](?:split-\w+|part-?\w+)", re.DOTALL | re.IGNORECASE)
# What people call a quant: Q4_K_M, UD-IQ2_XXS, Q4_0_4_4, F16, MXFP4_MOE.
_QUANT = re.compile(
    r"(?<![A-Za-z0-9])(?:UD-)?(?:I?Q[1-9](?:_(?:K|NL|XXS|XS|XL|S|M|L|\d))+|TQ[12]_0|(?:B?F|FP)(?:16|32)|(?:MX|NV)FP4(?:_MOE)?)"
    r"(?![A-Za-z0-9])(?!_(?:K|NL|XXS|XS|XL|S|M|L|\d)(?![A-Za-z0-9]))",
    re.IGNORECASE,
)
# Behind Q4_K, `_M` names another quant; `_imat` does not.
_WORD_END = r"(?=$|[-./ ()]|_(?!(?:K|NL|XXS|XS|XL|S|M|L|\d)(?![A-Za-z0-9])))"
_WORD_START = r"(?:(?<=[-./ ()])|^)"
_QUANT_START = r"(?:(?<=[-./ ()_])|^)"


@dataclass(frozen=True)
class Candidate:
    """One model among the files.

    Attributes:
        names: its file, or those of its shards that are there, in order; with `/` below the folder or repository.
        missing: names of the shards that are not.
        nbytes: of all that is there.
    """

    names: tuple[str, ...]
    missing: tuple[str, ...]
    nbytes: int

    @property
    def stem(self) -> str:
        """The path without shard number and suffix."""
        return _stem(self.names[0])

    @property
    def size(self) -> str:
        """`4.9 GB`, and of how many shards."""
        from gguf2st.report import human_bytes

        shards = f", {len(self.names)} shards" if len(self.names) > 1 else ""
        return f"{human_bytes(self.nbytes)}{shards}"


def split_name(name: str) -> tuple[str, int] | None:
    """(name without the shard number, number of shards) of a shard's file name, else None."""
    match = _SHARD.fullmatch(name)
    if match and 1 <= int(match["number"]) <= int(match["count"]):
        return match["prefix"], int(match["count"])
    return None


def _stem(name: str) -> str:
    whole = re.sub(r"\.gguf$", "", name, flags=re.IGNORECASE)
    shard = split_name(f"{whole}.gguf")
    return shard[0] if shard else whole or name


def shard_names(name: str) -> tuple[str, ...]:
    """The names of all shards of the split that `name` is a shard of; of itself alone when it is none."""
    shard, match = split_name(name), _SHARD.fullmatch(name)
    if not shard or not match:
        return (name,)
    return tuple(f"{shard[0]}-{n:05}{match['of']}{shard[1]:05}{match['suffix']}" for n in range(1, shard[1] + 1))


def is_companion(name: str) -> bool:
    """Whether a file's name says that it is no model: `mmproj-F16.gguf`, `model.imatrix.gguf`.

    `model-imatrix-Q4_K_M.gguf` is one: it says how it was made.
    """
    base = name.rsplit("/", 1)[-1].lower()
    words = re.split(r"[-._ ]", base)
    return base.startswith(COMPANIONS) or "mmproj" in words or ("imatrix" in words and not _QUANT.search(base))


def group(files: Mapping[str, int]) -> list[Candidate]:
    """The models among the files of a folder or repository, by name -> bytes; companions are left out."""
    models: dict[tuple[str, int], list[str]] = {}
    for name in sorted(files):
        if not is_companion(name):
            models.setdefault(split_name(name) or (name, 0), []).append(name)
    candidates = []
    for names in models.values():
        lost = tuple(name for name in shard_names(names[0]) if name not in files)
        candidates.append(Candidate(tuple(names), lost, sum(files[name] for name in names)))
    return candidates


def matching(candidates: Sequence[Candidate], text: str) -> list[Candidate]:
    """The candidates that a text selects: a quant such as `q4_k_m`, a file's name, a folder, or any whole word.

    Small and capital letters are the same. Of several, those that are not Unsloth's dynamic kind (`UD-`) unless the
    text says so, then those whose name ends in the text.
    """
    wanted = _stem(text.strip().strip("/"))
    exact = [c for c in candidates if wanted.lower() in (c.stem.lower(), c.stem.rsplit("/", 1)[-1].lower())]
    if exact:
        return exact
    start = _QUANT_START if _QUANT.match(wanted) else _WORD_START
    pattern = start + re.escape(wanted) + _WORD_END
    found = [c for c in candidates if re.search(pattern, c.stem, re.IGNORECASE)]
    plain = rf"(?<!UD-){pattern}"
    for narrower in (plain, f"{pattern}$"):
        better = [c for c in found if re.search(narrower, c.stem, re.IGNORECASE)]
        found = better or found
    return found


def label(candidate: Candidate, candidates: Sequence[Candidate]) -> str:
    """The shortest text that selects this one: its quant if that will do, else its path."""
    quants = _QUANT.findall(candidate.stem)
    if quants and matching(candidates, quants[-1]) == [candidate]:
        return str(quants[-1])
    return candidate.stem.rsplit("/", 1)[-1] if not quants and "/" not in candidate.stem else candidate.stem


def choose(
    candidates: Sequence[Candidate],
    text: str,
    *,
    where: str,
    spell: Callable[[Candidate], str],
    listing: Callable[[Candidate], str],
) -> Candidate:
    """The one candidate that is meant.

    Args:
        candidates: at least one.
        text: what selects it; empty where there is one alone.
        where: the folder or repository, for messages.
        spell: how to name a candidate as SRC.
        listing: how to list one.

    Raises:
        SourceError: none or several are meant (all are listed, with sizes).
    """
    found = matching(candidates, text) if text else list(candidates)
    if len(found) == 1:
        return found[0]
    shown = sorted(found or candidates, key=lambda c: c.nbytes)
    usual = min(shown, key=lambda c: (not c.stem.upper().endswith("Q4_K_M"), not _QUANT.search(c.stem), c.nbytes))
    if found and text:
        message = f"{where}: {text!r} fits {len(found)} models"
    elif found:
        message = f"{where}: {len(found)} models are here; which one is meant?"
    else:
        message = f"{where} has no {text}"
        labels = {label(c, candidates).lower(): c for c in candidates}
        close = difflib.get_close_matches(text.lower(), labels, n=1, cutoff=0.6)
        usual = labels[close[0]] if close else usual
    raise SourceError(
        message,
        hint=f"name one, such as: {spell(usual)}",
        problems=shortened([f"{listing(c)} ({c.size})" for c in shown]),
    )


def missing_shards(where: str, candidate: Candidate, *, hint: str) -> SourceError:
    """The error for a split that is not complete: one missing shard in its line, several below it."""
    absent, count = candidate.missing, len(candidate.missing) + len(candidate.names)
    lack = f"shards is missing: {absent[0]}" if len(absent) == 1 else "shards are missing"
    return SourceError(
        f"{where}: {len(absent)} of {count} {lack}",
        hint=hint,
        problems=shortened(absent) if len(absent) > 1 else (),
    )


def shortened(lines: Sequence[str]) -> list[str]:
    """The first lines, and how many more there are."""
    rest = len(lines) - MAX_LISTED
    return list(lines) if rest <= 0 else [*lines[:MAX_LISTED], f"... and {rest} more"]
