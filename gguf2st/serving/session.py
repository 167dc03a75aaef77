"""Serving from beginning to end: checkpoint, command, engine, proxy, smoke test, as one stream of events."""

import dataclasses
import shlex
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from gguf2st.errors import ServeError
from gguf2st.serving import arguments, launch
from gguf2st.serving.proxy import Upstream, running_proxy
from gguf2st.serving.smoke import smoke
from gguf2st.serving.tasks import GENERATE
from gguf2st.serving.watch import Event, watch

DEATH_S = 3.0
"""After a failed answer, how long to wait whether vLLM ends: it does so within a second of its engine."""


@dataclass(frozen=True)
class ServeOptions:
    """What to serve and how.

    Attributes:
        src: a checkpoint folder, or a GGUF (here, on the Hub or ollama's) that is converted once into `cache`.
        vllm_arguments: passed on to `vllm serve`.
        vllm_python: interpreter of vLLM's environment; `vllm` on PATH by default.
        port: where to listen; None: as vllm_arguments say, else 8000; 0: any free port.
        smoke: test the ready engine and end.
        restarts: how often a dead engine is started again.
        proxy: put a pass-through in front, which answers 503 while the engine restarts.
        verify: refuse a checkpoint that is not whole.
        cache: folder for converted models.
        log: where vLLM's output is copied to.
    """

    src: str
    vllm_arguments: tuple[str, ...] = ()
    vllm_python: Path | None = None
    port: int | None = None
    smoke: bool = False
    restarts: int = 0
    proxy: bool = False
    verify: bool = True
    cache: Path | None = None
    log: IO[bytes] | None = None


def serve(
    options: ServeOptions,
    *,
    progress: Callable[[int, int], None] | None = None,
    download_progress: Callable[[int, int], None] | None = None,
) -> Generator[Event, None, None]:
    """Serve a model; closing the generator ends every process. Besides the events of `watch` there are "checkpoint",
    "command", and with `smoke` "smoke" for each answer and "done".

    Args:
        options: what to serve and how.
        progress: of a conversion: bytes just written, bytes in all.
        download_progress: of a download before it: bytes just fetched, bytes in all.

    Raises:
        ServeError: no vLLM; it did not start, died, or answered wrongly.
        UsageError: options that cannot work together.
        VerifyError: the checkpoint is not whole.
        Gguf2stError: as `convert` does.
    """
    passed = arguments.parse(options.vllm_arguments)
    found = launch.find(options.src)
    launch.find_vllm(options.vllm_python)  # before a conversion that would be in vain
    host, port = passed.host or launch.LOCAL, launch.choose_port(options.port, passed.port)
    launch.require_free(host, port)
    folder, converted = launch.checkpoint(
        found, cache=options.cache, dtype=passed.dtype, progress=progress, download_progress=download_progress
    )
    if options.verify and not converted:
        launch.require_whole(folder, ours=not launch.is_checkpoint(options.src))
    done = "converted to" if converted else "serving"
    yield Event("checkpoint", 0.0, "", f"{done} {folder}", {"folder": str(folder), "converted": converted})
    plan = launch.plan_launch(
        folder,
        passed,
        python=options.vllm_python,
        host=launch.LOCAL if options.proxy else host,
        port=launch.free_port() if options.proxy else port,
        name=launch.model_name(options.src, folder),
    )
    yield Event("command", 0.0, "", shlex.join(plan.command), {"command": plan.command, "vllm": plan.vllm_version})
    url = launch.url(host, port)
    with ExitStack() as stack:
        upstream = Upstream(plan.url)
        if options.proxy:
            stack.enter_context(running_proxy(upstream, host, port))
        restarts = 0 if options.smoke else options.restarts
        events = stack.enter_context(closing(watch(plan, restarts=restarts, log=options.log)))
        for event in events:
            _tell(upstream, event)
            if event.kind != "ready":
                yield event
                continue
            yield dataclasses.replace(event, detail={**event.detail, "url": url, "task": plan.task})
            if options.smoke:
                try:
                    yield from _smoke(event, url, plan)
                except ServeError:
                    yield from _death(events)  # if it died, that is what to report, with its cause
                    raise
                return


def _death(events: Generator[Event, None, None]) -> Generator[Event, None, None]:
    """Events of the next seconds; raises the engine's failure if it died."""
    deadline = time.monotonic() + DEATH_S
    for event in events:
        yield event
        if time.monotonic() > deadline and event.kind != "died":
            return


def _tell(upstream: Upstream, event: Event) -> None:
    """Let the proxy know: requests pass from "ready" on, and not while the engine is dead."""
    if event.kind in ("ready", "well"):
        upstream.ready = True
    elif event.kind in ("died", "restart") or (event.kind == "sick" and event.detail["status"]):
        upstream.ready = False
        upstream.text = event.text
    elif event.kind in ("phase", "slow") and not upstream.text.startswith("vLLM died"):
        upstream.text = f"the engine is starting: {event.text}"


def _smoke(ready: Event, url: str, plan: launch.Launch) -> Generator[Event, None, None]:
    def event(kind: str, text: str, /, **detail: Any) -> Event:
        return Event(kind, ready.elapsed_s, ready.phase, text, detail)

    chat = launch.has_chat_template(plan.folder)
    for answer in smoke(url, plan.served_name, chat=chat, key=plan.api_key, task=plan.task):
        yield event("smoke", answer.summary, **dataclasses.asdict(answer))
    lacks = plan.task == GENERATE and not chat
    yield event("done", "the model answers" + ("; no chat was tried: it has no chat template" if lacks else ""))
