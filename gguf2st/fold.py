"""Fold long lists of tensor names: `blk.{0..29}.attn_q.weight` instead of thirty lines."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from gguf2st.errors import short

MAX_PARTS = 30
"""Components of a name that is folded: three times as many as any has, and each number costs a level of recursion."""
MAX_NAME_LENGTH = 200
"""Characters of a name in a list; of the models known, the longest has 90."""

PART_OF_A_TABLE = ".shard_"
"""What stands before the number of a part of a table, in the same component of its name."""
_GLUE = "\0."
"""Parts components that are one."""


def fold(names: Iterable[str]) -> list[str]:
    """Names that differ only in whole numbers become one, in the order of first appearance.

    >>> fold(["blk.0.q", "blk.1.q", "norm", "blk.4.q"])
    ['blk.{0..1,4}.q', 'norm']

    A number is a component, or ends one that begins with `shard_`: parts of a table are called so.
    Two varying components are folded only when every combination is present; otherwise the first stays spelled out.
    """
    groups: dict[tuple[str | None, ...], list[tuple[int, ...]]] = defaultdict(list)
    for name in names:
        parts = name.replace(PART_OF_A_TABLE, f"{PART_OF_A_TABLE}{_GLUE}").split(".")
        if len(parts) > MAX_PARTS:
            parts = [name]
        pattern = tuple(None if _is_number(p) else p for p in parts)
        groups[pattern].append(tuple(int(p) for p in parts if _is_number(p)))
    folded: list[str] = []
    for pattern, numbers in groups.items():
        folded.extend(_fill(pattern, spans) for spans in _spans(numbers))
    return folded


def _is_number(part: str) -> bool:
    """Whether `int(part)` would give the same text back: `007` and other digits than 0-9 are names, not numbers."""
    return part.isascii() and part.isdigit() and len(part) < 10 and str(int(part)) == part


def _spans(numbers: list[tuple[int, ...]]) -> list[tuple[str, ...]]:
    """Index tuples of one pattern -> the few tuples of spans that cover exactly them."""
    if not numbers[0]:
        return [()]
    tails: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for first, *rest in dict.fromkeys(numbers):
        tails[first].append(tuple(rest))
    same: dict[tuple[tuple[int, ...], ...], list[int]] = defaultdict(list)
    for first, rests in tails.items():
        same[tuple(sorted(rests))].append(first)
    return [(_span(firsts), *spans) for rests, firsts in same.items() for spans in _spans(list(rests))]


def _span(numbers: list[int]) -> str:
    """[0, 1, 2, 5] -> `{0..2,5}`; a single number stays itself."""
    if len(numbers) == 1:
        return str(numbers[0])
    runs: list[list[int]] = []
    for n in sorted(numbers):
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return "{" + ",".join(str(a) if a == b else f"{a}..{b}" for a, b in runs) + "}"


def _fill(pattern: tuple[str | None, ...], spans: tuple[str, ...]) -> str:
    filled = iter(spans)
    return ".".join(next(filled) if part is None else part for part in pattern).replace(_GLUE, "")


def listing(names: Iterable[str], limit: int = 8) -> str:
    """Folded names in one line, cut after `limit` of them with a count of the rest."""
    return few(fold(names), limit)


def few(texts: Sequence[str], limit: int = 8) -> str:
    """Texts in one line, each of a length that can be read, cut after `limit` of them with a count of the rest."""
    more = f", and {len(texts) - limit} more" if len(texts) > limit else ""
    return ", ".join(short(text, MAX_NAME_LENGTH) for text in texts[:limit]) + more
