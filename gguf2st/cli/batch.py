"""`gguf2st batch`."""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gguf2st.cli.common import Command, PathName, json_file_option, usage_line
from gguf2st.cli.lines import printable, table, terminal_width
from gguf2st.cli.summary import require_writable, write_json
from gguf2st.errors import INTERRUPTED, BatchError

if TYPE_CHECKING:
    from gguf2st.batch.manifest import Manifest
    from gguf2st.batch.runner import Event
    from gguf2st.batch.state import Result

_NOT_IN_MANIFESTS = ("src", "json", "quiet", "help", "dry-run", "plan", "shard")


@click.command("batch", cls=Command)
@click.argument("names", metavar="MANIFEST.toml|SRC...", nargs=-1, required=True, type=PathName())
@click.option("-j", "--jobs", type=click.IntRange(1, 256), default=1, show_default=True, help="Models at a time.")
@json_file_option
@click.option("--retry-failed", is_flag=True, help="Run models again that failed, though nothing about them changed.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
def command(names: tuple[str, ...], jobs: int, json_file: str | None, retry_failed: bool, quiet: bool) -> None:
    """Convert many models: SRC..., or as a TOML manifest says. One model's failure never stops the others.

    SRC is what `gguf2st convert` takes, or a folder for every model in it. Each gets the defaults, and its checkpoint
    lies where `convert` puts it. What is done is kept in gguf2st-batch.state.jsonl in the current folder.

    A manifest has a table [[model]] per model: `src`, and any option of `gguf2st convert`, spelled as there; [defaults]
    holds for all, and {name} stands for a model's name. Paths in it are relative to its folder. What is done is kept in
    MANIFEST.state.jsonl beside it: after an interruption the same command goes on.

    Exit code 9: at least one model failed, now or in an earlier run.

    \b
    A manifest:
      [defaults]
      output = "converted/{name}"
      [[model]]
      src = "org/repo:Q4_K_M"
      [[model]]
      name = "small"
      src = "model.Q8_0.gguf"
      repack = "exact"

    \b
    Examples:
      gguf2st batch *.gguf
      gguf2st batch models --jobs 2
      gguf2st batch models.toml
      gguf2st batch models.toml --jobs 4 --json results.json
      gguf2st batch models.toml --retry-failed
    """
    from gguf2st.batch.runner import run_batch
    from gguf2st.batch.state import StateFile

    require_writable(json_file, tuple(map(Path, names)))
    started = time.monotonic()
    manifest = _read(names)
    interrupted = False
    with StateFile(manifest.path) as state:
        events = run_batch(
            manifest, state, jobs=jobs, retry_failed=retry_failed, ticks=not quiet and sys.stderr.isatty()
        )
        try:
            with closing(events), _live(len(manifest.models), show=not quiet) as show:
                for event in events:
                    show(event)
        except KeyboardInterrupt:
            interrupted = True
        results = [state.results.get(model.name) for model in manifest.models]
    summary = _summary(manifest, results, time.monotonic() - started)
    write_json(json.dumps(summary, indent=2) + "\n", json_file)
    if not quiet and json_file != "-":
        click.echo(table(_rows(manifest, results), right=frozenset({2, 3}), width=terminal_width()))
        counts = ", ".join(f"{n} {status}" for status, n in summary["counts"].items() if n)
        click.echo(f"{counts}; {printable(str(state.path))} has the state")
    if interrupted:
        click.echo("interrupted: the same command goes on from here", err=True)
        sys.exit(INTERRUPTED)
    if failed := summary["counts"]["failed"]:
        error = BatchError(f"{failed} of {len(results)} models failed", hint="--retry-failed runs them again")
        said = printable(f"{error.message}; {error.hint}")
        click.echo(f"{click.style('error', fg='red', bold=True)}: {said}", err=True)
        sys.exit(error.exit_code)  # not raised on: the results have been printed


def _read(names: Sequence[str]) -> "Manifest":
    """The batch that the arguments mean."""
    from gguf2st.batch.manifest import read_manifest
    from gguf2st.batch.sources import is_manifest, read_sources

    if not is_manifest(names):
        return read_sources(names, _problem)
    path = Path(names[0]).absolute()  # before the folder changes, in which options with files are looked for
    with contextlib.chdir(path.parent) if path.is_file() else contextlib.nullcontext():
        return read_manifest(path, _options(), _problem)


def _options() -> dict[str, bool]:
    """The options of `gguf2st convert` that a manifest may hold -> whether it is a flag."""
    from gguf2st.cli.convert import command as convert

    options = {}
    for option in convert.params:
        if isinstance(option, click.Option):
            name = next(o for o in option.opts if o.startswith("--")).removeprefix("--")
            options[name] = option.is_flag
    return {name: flag for name, flag in options.items() if name not in _NOT_IN_MANIFESTS}


def _problem(arguments: Sequence[str]) -> str:
    """What `gguf2st convert` would say about its arguments before it does anything; "" when nothing is wrong."""
    from gguf2st.cli.convert import command as convert

    try:
        convert.make_context("convert", list(arguments))
    except click.ClickException as err:
        return usage_line(err)
    return ""


def _summary(manifest: "Manifest", results: "Sequence[Result | None]", seconds: float) -> dict[str, Any]:
    rows = []
    for model, result in zip(manifest.models, results, strict=True):
        row = {"name": model.name, "src": model.src, "output": None if model.streams else str(model.output)}
        facts = dict(vars(result)) if result else {"status": "waiting"}
        rows.append(row | {key: value for key, value in facts.items() if key not in ("name", "key", "existed")})
    statuses = [row["status"] for row in rows]
    counts = {status: statuses.count(status) for status in ("done", "failed", "stopped", "waiting")}
    path = str(manifest.path) if manifest.path.is_file() else None
    return {"manifest": path, "counts": counts, "seconds": round(seconds, 3), "models": rows}


def _rows(manifest: "Manifest", results: "Sequence[Result | None]") -> list[tuple[str, str, str, str, str]]:
    """Name, status, time, size, and what came of it."""
    from gguf2st.report import human_bytes

    colors = {"done": "green", "failed": "red"}
    width = max(len(result.status) if result else len("waiting") for result in results)
    rows = []
    for model, result in zip(manifest.models, results, strict=True):
        if result is None:
            rows.append((printable(model.name), "waiting", "", "", ""))
            continue
        nbytes = result.report.get("output_nbytes")
        size = human_bytes(nbytes) if isinstance(nbytes, int) else ""
        place = str(result.pushed.get("url") or model.output)
        what = place if result.status == "done" else result.error
        status = click.style(result.status.ljust(width), fg=colors.get(result.status, "yellow"))
        rows.append((printable(model.name), status, f"{result.seconds:.1f} s", size, printable(what)))
    return rows


@contextmanager
def _live(count: int, *, show: bool) -> "Iterator[Callable[[Event], None]]":
    """On a terminal: a bar for the batch, and a line per model at work. In a pipe nothing."""
    if not show or not sys.stderr.isatty():
        yield lambda event: None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, TaskID, TextColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[text]}"))
    bar = Progress(*columns, console=console, transient=True, auto_refresh=False)
    whole = bar.add_task("models", total=count, text=f"0 of {count}")
    lines: dict[str, TaskID] = {}

    def update(event: "Event") -> None:
        if event.kind in ("skipped", "done", "failed", "stopped"):
            bar.update(whole, advance=1)
            bar.update(whole, text=f"{bar.tasks[0].completed:.0f} of {count}")
            if event.kind == "failed" and event.result:
                console.print(
                    f"[red]failed[/] {escape(printable(f'{event.name}: {event.result.error}'))}", highlight=False
                )
        if event.kind == "tick":
            for name in lines.keys() - {running.name for running in event.running}:
                bar.remove_task(lines.pop(name))
            for running in event.running:
                if running.name not in lines:
                    lines[running.name] = bar.add_task(escape(printable(running.name)), total=None, text="")
                text = f"{running.phase} {running.seconds:.0f} s"
                bar.update(lines[running.name], total=running.total or None, completed=running.done, text=text)
        bar.refresh()

    with bar:
        yield update
