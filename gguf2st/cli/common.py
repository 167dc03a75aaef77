"""What the commands share: options, how errors are printed, sizes, progress."""

import gc
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from itertools import pairwise
from pathlib import Path
from threading import Lock
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import click
from click.shell_completion import CompletionItem

from gguf2st.cli.lines import printable
from gguf2st.errors import INTERRUPTED, Gguf2stError, OutputError, UsageError
from gguf2st.quoting import source_word

if TYPE_CHECKING:
    from rich.progress import TaskID


class PathName(click.Path):
    """A path that is not empty: an unset variable of a script does not mean the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse "", which Python's paths take for "."; click turns a failure into a usage error."""
        if not os.fspath(value):
            self.fail("the name is empty", param, ctx)
        return super().convert(value, param, ctx)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
arch_map_option = click.option(
    "--arch-map",
    type=PathName(path_type=Path, exists=True, dir_okay=False),
    help="Use this arch map instead of choosing one.",
)
tokenizer_pre_option = click.option(
    "--tokenizer-pre", metavar="NAME", help="How words are split, as a tokenizer.ggml.pre name, whatever the file says."
)
dtype_option = click.option(
    "--dtype",
    type=click.Choice(["bfloat16", "float16", "float32"]),
    help="Of weights and scales that are numbers. By default bfloat16; with --repack float16, unless the model needs "
    "the range of bfloat16.",
)
repack_option = click.option(
    "--repack",
    type=click.Choice(["none", "exact", "near", "int4"]),
    default="none",
    show_default=True,
    help="Keep weights quantized, in formats that vLLM serves.",
)

json_file_option = click.option(
    "--json", "json_file", type=PathName(allow_dash=True), help="Write the results to this file; - is stdout."
)

_SELECT = "gguf2st.select"
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
          "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}  # fmt: skip


class Command(click.Command):
    """A command whose options take no other option for their value: `--json -o DIR` means two, and one lacks its file.

    A value that is spelled like an option of the command is given as `--name=VALUE`.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse an option that another one of the command follows where its value should be."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        names = {name for option in options for name in (*option.opts, *option.secondary_opts)}
        valued = {name for option in options if not option.is_flag and not option.count for name in option.opts}
        before_dashes = args[: args.index("--")] if "--" in args else args
        for name, value in pairwise(before_dashes):
            if name in valued and value in names:
                raise click.UsageError(f"option {name!r} needs a value, and {value!r} is another option", ctx)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as err:
            err.ctx = err.ctx or ctx  # click leaves out which command lacks an option's value
            raise


class SourceName(click.ParamType[str]):
    """SRC: a text, of which a shell can only complete the names of files."""

    name = "source"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Let the shell complete names of files."""
        return [CompletionItem(incomplete, type="file")]


SOURCE = SourceName()


def source_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """SRC, and --select, which is another way to write `SRC:TEXT`."""
    return click.argument("src", metavar="SRC", type=SOURCE, callback=_with_selection)(_select_option(command))


def optional_source_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a command that also does without: None then."""
    argument = click.argument("src", metavar="[SRC]", type=SOURCE, required=False, callback=_with_selection)
    return argument(_select_option(command))


def _select_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--select",
        metavar="TEXT",
        is_eager=True,  # known when SRC is read
        expose_value=False,
        callback=lambda ctx, _param, text: ctx.meta.__setitem__(_SELECT, text),
        help="Which of several models of a folder or repository: Q4_K_M, a file's name or any word of it.",
    )(command)


def _with_selection(ctx: click.Context, _param: click.Parameter, src: str | None) -> str | None:
    text = ctx.meta.get(_SELECT)
    return f"{src}:{text}" if text and src is not None else src


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
    # What a run reads stays until it ends: to look through half a million tokens for garbage again and again took a
    # fifth of a small conversion's time.
    gc.set_threshold(100_000, 50, 100)
    _open_closed_streams()
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that cannot show a name is no reason to fail
    try:
        _dispatch(command, args)
    except OSError as err:
        sys.exit(_cannot_print(err))


def _dispatch(command: click.Command, args: list[str] | None) -> NoReturn:
    try:
        command.main(args=args, standalone_mode=False, prog_name="gguf2st", color=_color())
    except click.exceptions.Exit as err:
        sys.exit(err.exit_code)
    except click.exceptions.NoArgsIsHelpError as err:
        with suppress(OSError):
            err.show()
        sys.exit(err.exit_code)
    except click.ClickException as err:
        _fail(_usage_error(err), args)
    except (click.Abort, KeyboardInterrupt) as err:
        interrupt = err.__cause__ if isinstance(err, click.Abort) else err
        if sys.stderr.isatty():
            _say("")  # ends the line on which the terminal shows ^C
        for text in interrupt.args if isinstance(interrupt, Interrupted) else ():
            _say(printable(text))
        _say(click.style("interrupted", fg="red", bold=True))
        sys.exit(INTERRUPTED)
    except Gguf2stError as err:
        _fail(err, args)
    except MemoryError:
        _fail(Gguf2stError("out of memory", hint="see `ulimit -v` and the limits of the container"), args)
    except OSError as err:
        if err.filename is None:
            raise  # of standard output, mostly
        hint = "check the path and its permissions, and run the command again"
        _fail(OutputError(f"{os.fsdecode(err.filename)}: {err.strerror or err}", hint=hint), args)
    sys.exit(0)


def _usage_error(err: click.ClickException) -> UsageError:
    """What click says of the command line, as we say it."""
    context = err.ctx if isinstance(err, click.UsageError) else None
    command = context.command_path if context else "gguf2st"
    hint = f"`{command} --help` has the options, and examples"
    if isinstance(err, click.exceptions.NoSuchCommand) and ("/" in (name := err.command_name) or Path(name).exists()):
        hint = f"a command goes first: gguf2st convert {source_word(name)}"
    return UsageError(usage_line(err), hint=hint)


def usage_line(err: click.ClickException) -> str:
    """What click says of the command line in one line, in the words and letters of every other message."""
    text = " ".join(err.format_message().split()).rstrip(".")
    for click_says, meant in (("a valid integer range", "a whole number"), ("a valid float range", "a number")):
        text = text.replace(click_says, meant)
    is_name = text[:2].isupper()  # SRC, DIR
    return text if is_name else text[:1].lower() + text[1:]


def _fail(err: Gguf2stError, args: list[str] | None) -> NoReturn:
    """Say what went wrong. Whoever reads JSON gets it in failure too; the message for people is on stderr as always."""
    if _wants_json(sys.argv[1:] if args is None else args):
        facts = {"error": err.message, "problems": err.problems, "hint": err.hint, "exit_code": err.exit_code}
        click.echo(json.dumps(facts))
    show_error(err)
    sys.exit(err.exit_code)


def _open_closed_streams() -> None:
    """Give standard streams that are closed to nobody: the next file opened would take a closed one's number, and what
    a library prints would end in it."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - until the end


def _cannot_print(err: OSError) -> int:
    """Say that standard output takes no more, unless its reader is just gone, and return the exit code."""
    # What is still buffered would fail again when the interpreter ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(err, BrokenPipeError):
        return 1
    hint = "free some space where it goes, or let it go elsewhere"
    show_error(OutputError(f"standard output takes no more: {err.strerror or err}", hint=hint))
    return OutputError.exit_code


def show_error(err: Gguf2stError) -> None:
    """`error: what`, one line per further problem, and the next step."""
    _say(f"{click.style('error', fg='red', bold=True)}: {printable(err.message)}")
    for line in err.problems:
        _say(f"  - {printable(line)}")
    if err.hint:
        _say(f"{click.style('hint', fg='cyan', bold=True)}: {printable(err.hint)}")


def _say(text: str) -> None:
    """One line on stderr, if it takes one."""
    with suppress(OSError):
        click.echo(text, err=True, color=_color())


def _color() -> bool | None:
    """False where colours are unwanted (no-color.org) or the terminal knows none; else click decides."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


def _wants_json(arguments: Sequence[str]) -> bool:
    """Whether the result was to be JSON on stdout: `--json`, or `--json -` of the commands that may write a file."""
    if "--json" not in arguments:
        return False
    after = arguments[arguments.index("--json") + 1 :]
    return arguments[0] not in ("convert", "finish", "batch") or after[:1] == ["-"]


class Advance(Protocol):
    """Moves a bar: bytes just done, bytes in all, and what they are if not what the bar was made for."""

    def __call__(self, done: int, total: int, label: str = "", /) -> None:
        """So much more is done."""


@contextmanager
def progress_bar(label: str, *, show: bool, unit_bytes: bool = True) -> Iterator[Advance]:
    """A bar on stderr from the first progress on; nothing unless stderr is a terminal and `show` holds.

    Work under another label, such as a download before the conversion, has a bar of its own.
    """
    if not show or not sys.stderr.isatty():
        yield lambda done, total, label="", /: None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.theme import Theme

    console = Console(stderr=True, theme=Theme({"progress.data.speed": "cyan"}))
    columns: list[Any] = [TextColumn("{task.description}"), BarColumn()]
    columns += [DownloadColumn(), TransferSpeedColumn()] if unit_bytes else [TextColumn("{task.percentage:>3.0f}%")]
    bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
    tasks: dict[str, TaskID] = {}
    lock = Lock()

    def advance(done: int, total: int, other: str = "", /) -> None:
        with lock:  # several threads report
            name = other or label
            if name not in tasks:
                for former in tasks.values():
                    bar.update(former, visible=False)
                tasks[name] = bar.add_task(escape(printable(name)), total=None)
                bar.start()  # does nothing once it runs
            task = tasks[name]
            bar.update(task, total=total, advance=done)
            if bar.tasks[task].finished:
                bar.update(task, description="checking" if other else "finishing")

    try:
        yield advance
    finally:
        bar.stop()


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, with lines that say what it leaves behind."""


@contextmanager
def when_interrupted(text: Callable[[], str]) -> Iterator[None]:
    """After Ctrl-C let `run` say what it leaves behind, and that it was that."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise Interrupted(*interrupt.args, text()) from None


def _terminate(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
