"""Lines and tables on standard output: a stranger's text made harmless, long lists cut, long lines broken."""

import shutil
import sys
import textwrap
from collections.abc import Collection, Iterator, Sequence, Sized
from itertools import islice
from typing import TypeVar

import click

T = TypeVar("T")

MAX_LINES = 200
"""Of one kind that a command prints: more than any model has, and as many as somebody reads."""
_HOW = "--json has all of them"
MIN_WIDTH = 24
"""Columns below which breaking lines makes nothing easier to read."""


def printable(text: str) -> str:
    """Text from a stranger's file, with control characters and broken Unicode escaped: never a terminal sequence."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def first(items: Collection[T], what: str, how: str = _HOW) -> Iterator[T]:
    """The first MAX_LINES of what a loop prints, a line each; then it says how many `what` are left out."""
    yield from islice(items, MAX_LINES)
    _say_rest(items, what, how)


def _say_rest(items: Sized, what: str, how: str = _HOW) -> None:
    if (more := len(items) - MAX_LINES) > 0:
        click.echo(f"  ... and {more:,} more {what}: {how}")


def echo_line(text: str) -> None:
    """Print a line with its indent; on a terminal a long one goes on below, further in."""
    start = len(text) - len(text.lstrip())
    click.echo(" " * start + _wrapped(text.lstrip(), start, start + 2, terminal_width()))


def echo_table(rows: Sequence[Sequence[str]], what: str, *, right: frozenset[int] = frozenset()) -> None:
    """Print the `table` of the first MAX_LINES rows, and how many `what` are left out; nothing where there are none."""
    if rows:
        click.echo(table(rows[:MAX_LINES], right=right, width=terminal_width()))
    _say_rest(rows, what)


def table(
    rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset(), indent: str = "  ", width: int = 0
) -> str:
    """Rows in aligned columns.

    Args:
        rows: of as many cells each.
        right: the columns aligned to the right.
        indent: before each row.
        width: where the last column is broken into lines, if that leaves it MIN_WIDTH; 0 for never.
    """
    if not rows:
        return ""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    shown = [max(len(click.unstyle(row[i])) for row in rows) for i in range(len(rows[0]) - 1)]
    start = len(indent) + sum(shown) + 2 * len(shown)
    lines = []
    for row in rows:
        whole = (*row[:-1], _wrapped(row[-1], start, start, width))
        cells = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(whole, widths, strict=True))]
        lines.append(indent + "  ".join(cells).rstrip())
    return "\n".join(lines)


def _wrapped(text: str, start: int, further: int, width: int) -> str:
    """A text that begins at the column `start`, broken before the column `width` into lines that begin at `further`."""
    if start + len(text) <= width or width - further < MIN_WIDTH:
        return text
    lines = textwrap.TextWrapper(width, " " * start, " " * further, break_long_words=False, break_on_hyphens=False)
    return lines.fill(text)[start:]


def terminal_width() -> int:
    """Of the terminal that standard output is; 0 for a pipe, in which a line stays one."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
