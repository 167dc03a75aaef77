"""What the commands share: options, how errors are printed, sizes, progress."""

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import Any

import click

from gguf2st.errors import INTERRUPTED, Gguf2stError

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
arch_map_option = click.option(
    "--arch-map",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Use this arch map instead of choosing one.",
)
tokenizer_pre_option = click.option(
    "--tokenizer-pre",
    metavar="NAME",
    help="How words are split, as a tokenizer.ggml.pre name, whatever the file says.",
)
source_argument = click.argument("src", metavar="SRC")

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
          "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}  # fmt: skip


class Size(click.ParamType[int]):
    """A size such as 5GB, 500MB or 2GiB, in bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse the text; click turns a failure into a usage error."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
        if not match or match[2].upper() not in _UNITS or not (n := int(float(match[1]) * _UNITS[match[2].upper()])):
            self.fail(f"{value!r} is not a size such as 5GB, 500MB or 2GiB", param, ctx)
        return n


def run(command: click.Command, args: list[str] | None) -> Any:
    """Run the command line and exit; every expected failure is one message and its code, never a traceback."""
    signal.signal(signal.SIGTERM, _terminate)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that cannot show a name is no reason to fail
    try:
        command.main(args=args, standalone_mode=False, prog_name="gguf2st", color=_color())
    except click.exceptions.Exit as err:
        sys.exit(err.exit_code)
    except click.ClickException as err:
        err.show()
        sys.exit(err.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _say(click.style("interrupted", fg="red", bold=True))
        sys.exit(INTERRUPTED)
    except Gguf2stError as err:
        if _wants_json(sys.argv[1:] if args is None else args):
            # Whoever reads JSON gets it in failure too; the message for people is on stderr as always.
            facts = {"error": err.message, "problems": err.problems, "hint": err.hint, "exit_code": err.exit_code}
            click.echo(json.dumps(facts))
        show_error(err)
        sys.exit(err.exit_code)
    except BrokenPipeError:
        # The reader of our output is gone; say nothing more, and keep the interpreter from flushing at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    sys.exit(0)


def show_error(err: Gguf2stError) -> None:
    """`error: what`, one line per further problem, and the next step."""
    _say(f"{click.style('error', fg='red', bold=True)}: {printable(err.message)}")
    for line in err.problems:
        _say(f"  - {printable(line)}")
    if err.hint:
        _say(f"{click.style('hint', fg='cyan', bold=True)}: {printable(err.hint)}")


def _say(text: str) -> None:
    """One line on stderr."""
    click.echo(text, err=True, color=_color())


def _color() -> bool | None:
    """False where colours are unwanted (no-color.org) or the terminal knows none; else click decides."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


def _wants_json(arguments: Sequence[str]) -> bool:
    """Whether the result was to be JSON on stdout: `--json`, or `--json -` of convert."""
    if "--json" not in arguments:
        return False
    after = arguments[arguments.index("--json") + 1 :]
    return arguments[0] != "convert" or after[:1] == ["-"]


def printable(text: str) -> str:
    """Text from a stranger's file, with control characters and broken Unicode escaped: never a terminal sequence."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def table(rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset(), indent: str = "  ") -> str:
    """Rows in aligned columns; `right` are the columns aligned to the right."""
    if not rows:
        return ""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append(indent + "  ".join(cells).rstrip())
    return "\n".join(lines)


@contextmanager
def progress_bar(label: str, *, show: bool, unit_bytes: bool = True) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr from the first progress on; nothing unless stderr is a terminal and `show` holds."""
    if not show or not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.theme import Theme

    console = Console(stderr=True, theme=Theme({"progress.data.speed": "cyan"}))
    columns: list[Any] = [TextColumn("{task.description}"), BarColumn()]
    columns += [DownloadColumn(), TransferSpeedColumn()] if unit_bytes else [TextColumn("{task.percentage:>3.0f}%")]
    bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
    task = bar.add_task(label, total=None)

    def advance(done: int, total: int) -> None:
        bar.start()  # does nothing once it runs
        bar.update(task, total=total, advance=done)
        if bar.tasks[task].finished:
            bar.update(task, description="finishing")

    try:
        yield advance
    finally:
        bar.stop()


def _terminate(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
