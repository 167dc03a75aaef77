"""`gguf2st serve`."""

import json
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING

import click

from gguf2st.cli.common import SOURCE, Command, Interrupted, PathName, progress_bar, when_interrupted
from gguf2st.cli.lines import printable

if TYPE_CHECKING:
    from gguf2st.serving.watch import Event


@click.command("serve", cls=Command)
@click.argument("src", metavar="DIR_OR_GGUF", type=SOURCE)
@click.argument("vllm_arguments", metavar="[-- VLLM_ARGUMENTS]", nargs=-1, type=click.UNPROCESSED)
@click.option("--vllm-python", type=PathName(path_type=Path), help="Interpreter of vLLM's environment.")
@click.option("--port", type=click.IntRange(0, 65535), help="Where to listen: 8000 by default; 0 takes a free port.")
@click.option(
    "--smoke",
    is_flag=True,
    help="Ask for a completion and a chat, or scores or a vector; check the numbers; exit.",
)
@click.option("--restart", type=click.IntRange(0), default=0, metavar="N", help="Start a dead engine again, N times.")
@click.option("--proxy", is_flag=True, help="Answer 503 while the engine restarts (needs gguf2st[proxy]).")
@click.option("--no-verify", is_flag=True, help="Serve a checkpoint that is not whole, too.")
@click.option("--cache", type=PathName(path_type=Path), help="Where converted models are kept: ~/.cache/gguf2st.")
@click.option("--log", type=click.File("wb", lazy=False), help="Keep vLLM's whole output in this file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per event.")
def command(
    src: str,
    vllm_arguments: tuple[str, ...],
    vllm_python: Path | None,
    port: int | None,
    smoke: bool,
    restart: int,
    proxy: bool,
    no_verify: bool,
    cache: Path | None,
    log: IO[bytes] | None,
    as_json: bool,
) -> None:
    """Serve a checkpoint folder, or a GGUF converted once into a cache, with vLLM; watch it, and explain its death.

    A GGUF is what `gguf2st convert` takes: a file, a folder, a model on the Hub or one of ollama's.

    vLLM is the one on PATH, or of --vllm-python. What follows -- is passed on to `vllm serve`. Ctrl-C ends every
    process. Exit code 7: vLLM did not start, died, or answered wrongly.

    \b
    Examples:
      gguf2st serve model.Q4_K_M.gguf
      gguf2st serve org/repo:Q4_K_M
      gguf2st serve model --smoke --vllm-python ~/vllm/bin/python -- --enforce-eager --max-model-len 4096
      gguf2st serve model --proxy --restart 5 -- --tensor-parallel-size 2
    """
    from gguf2st.serving.session import ServeOptions, serve

    options = ServeOptions(
        src,
        vllm_arguments,
        vllm_python=vllm_python,
        port=port,
        smoke=smoke,
        restarts=restart,
        proxy=proxy,
        verify=not no_verify,
        cache=cache,
        log=log,
    )
    serving = False
    events = serve(
        options,
        progress=lambda done, total: advance(done, total),
        download_progress=lambda done, total: advance(done, total, "downloading"),
    )
    with _hang_up_interrupts(), closing(events):
        kept = when_interrupted(lambda: "finished shards of a conversion are kept: the same command goes on from there")
        with kept, progress_bar("converting", show=not as_json) as advance:
            first = next(events)
        with _live_line(show=not as_json) as update:
            try:
                for event in chain([first], events):
                    # Before it is shown: who reads "ready" may send a signal at once.
                    serving = serving or (event.kind == "ready" and not smoke)
                    if event.kind == "tick":
                        update(f"[{event.elapsed_s:6.1f} s] {event.text}")
                    elif as_json:
                        click.echo(json.dumps(_row(event)))
                    else:
                        _show(event)
            except KeyboardInterrupt as interrupt:
                events.close()
                stopped = "stopped: no process of vLLM is left"
                if not serving:
                    raise Interrupted(*interrupt.args, stopped) from None
                click.echo(stopped, err=True)


def _row(event: "Event") -> dict[str, object]:
    return {"event": event.kind, "elapsed_s": event.elapsed_s, "phase": event.phase, "text": event.text} | event.detail


def _show(event: "Event") -> None:
    """One event as text: answers on stdout, progress on stderr."""
    from gguf2st.serving.tasks import request_of

    if event.kind == "died":  # the error or the restart that follows says it
        return
    if event.kind in ("smoke", "done"):
        click.echo(printable(event.text))
        return
    when = f"[{event.elapsed_s:6.1f} s] " if event.phase else ""
    click.echo(when + printable(event.text), err=True)
    if event.kind == "ready":
        url, model = event.detail["url"], event.detail["model"]
        path, body = request_of(event.detail["task"], model)
        click.echo(f"{click.style('serving', fg='green', bold=True)} {printable(model)} at {url}/v1")
        click.echo(f"  curl {url}{path} -H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}")


@contextmanager
def _live_line(*, show: bool) -> Iterator[Callable[[str], None]]:
    """A line on a terminal that changes while time passes; nothing in a pipe."""
    if not show or not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status("") as status:
        yield lambda text: status.update(Text(text))


@contextmanager
def _hang_up_interrupts() -> Iterator[None]:
    """A closed terminal ends vLLM as well: it has a session of its own and would not notice."""

    def interrupt(_signum: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGHUP, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
