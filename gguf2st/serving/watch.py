"""The life of an engine as a stream of events: phases of the start-up, slow, ready, died, restarting.

Dead is what its process or its /health says, never a silence: a compiling vLLM prints nothing for minutes.
"""

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import IO, Any

from gguf2st.errors import ServeError
from gguf2st.serving.causes import Cause, CauseReader
from gguf2st.serving.http import request
from gguf2st.serving.launch import Launch
from gguf2st.serving.phases import PhaseReader
from gguf2st.serving.process import Server

POLL_S = 0.2
HEALTH_EVERY_S = 1.0
SICK_S = 15.0
"""How long /health may refuse, once the engine has been ready, before its process is given up: vLLM itself ends within
seconds of a dead engine."""

IDLE_CORES = 0.02
"""Below this CPU use all processes of an engine together do nothing."""


@dataclass(frozen=True)
class Event:
    """Something worth telling.

    Attributes:
        kind: "phase" (a phase began), "tick" (time passed, several a second), "slow" (a phase takes longer than is
            normal), "ready", "sick" (/health refuses or is silent), "well" (no longer), "died", "restart".
        elapsed_s: since the engine was started.
        phase: key of the phase.
        text: one line for people.
        detail: the same for machines.
    """

    kind: str
    elapsed_s: float
    phase: str
    text: str
    detail: dict[str, Any] = field(default_factory=dict)


def watch(
    launch: Launch,
    *,
    restarts: int = 0,
    log: IO[bytes] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Generator[Event, None, None]:
    """Start vLLM and tell what happens to it; closing the iterator ends every process of it.

    An engine that dies after it was ready is started again, `restarts` times in all. One that dies before would die
    again.

    Raises:
        ServeError: it died, with its cause, and is not started again.
    """
    while True:
        engine = _Engine(launch, log, clock)
        try:
            yield from engine.events()
        finally:
            engine.server.stop()
        if not engine.was_ready or restarts <= 0:
            raise engine.failure()
        restarts -= 1
        why = engine.cause.message if engine.cause else "no line of its output says why"
        again = "starting it again" + (f", {restarts} more tries left" if restarts else ", the last time")
        yield engine.event("restart", f"vLLM died: {why}; {again}", tries_left=restarts)


class _Health:
    """The answers of /health, one after the other."""

    def __init__(self) -> None:
        self.status = 0
        self.changed = False
        self._refusing_since: float | None = None

    @property
    def good(self) -> bool:
        return self.status == 200

    def take(self, status: int, now: float) -> None:
        self.changed = status != self.status
        self.status = status
        if status in (0, 200):  # silence is not a refusal: a busy server may be slow to answer
            self._refusing_since = None
        elif self._refusing_since is None:
            self._refusing_since = now

    def refusing_s(self, now: float) -> float:
        return 0.0 if self._refusing_since is None else now - self._refusing_since


class _Engine:
    """One start of vLLM, until its death."""

    def __init__(self, launch: Launch, log: IO[bytes] | None, clock: Callable[[], float]) -> None:
        self.launch = launch
        self.clock = clock
        self.server = Server(launch.command, log=log)
        self.log_name = str(getattr(log, "name", "the log")) if log else ""
        self.log_failed = False
        self.phases = PhaseReader()
        self.causes = CauseReader()
        self.was_ready = False
        self.started = self.phase_started = clock()
        self.cause: Cause | None = None
        self.exit_code: int | None = None

    def event(self, kind: str, text: str, **detail: Any) -> Event:
        key = "serving" if self.was_ready else self.phases.phase.key
        return Event(kind, round(self.clock() - self.started, 1), key, text, detail)

    def events(self) -> Iterator[Event]:
        """Everything from the start to the death."""
        yield self._phase_event()
        next_health, health = 0.0, _Health()
        warn_at, cpu = self.phases.phase.normal_s, self.server.cpu_seconds()
        while True:
            for line in self.server.lines():
                self.causes.feed(line)
                if not self.was_ready and self.phases.feed(line):
                    self.phase_started = self.clock()
                    warn_at, cpu = self.phases.phase.normal_s, self.server.cpu_seconds()
                    yield self._phase_event()
            if self.server.log_error and not self.log_failed:
                self.log_failed = True
                yield self.event("log", f"the log takes no more, vLLM goes on: {self.server.log_error.strerror}")
            now = self.clock()
            if self.server.exit_code is not None:
                break
            if now >= next_health:
                next_health = now + HEALTH_EVERY_S
                health.take(self._health(), now)
                if health.good and not self.was_ready:
                    self.was_ready = True
                    self.causes = CauseReader()  # what went wrong before did no harm
                    yield self._ready_event()
                elif self.was_ready and health.changed:
                    yield self._sick_event(health.status)
                if self.was_ready and health.refusing_s(now) > SICK_S:
                    break
            in_phase = now - self.phase_started
            if not self.was_ready and in_phase > warn_at:
                yield self._slow_event(in_phase, cpu)
                warn_at, cpu = 2 * in_phase, self.server.cpu_seconds()
            yield self._tick()
            time.sleep(POLL_S)
        self.exit_code = self.server.exit_code
        self.server.stop()
        for line in self.server.lines():
            self.causes.feed(line)
        self.cause = self.causes.cause(self.exit_code)
        yield self._died_event()

    def _log_hint(self) -> str:
        whole = self.log_name and not self.log_failed
        return f"{self.log_name} has its whole output" if whole else "--log FILE keeps its whole output"

    def failure(self) -> ServeError:
        """What to raise about the death."""
        when = "died while serving" if self.was_ready else f"did not start ({self.phases.phase.label})"
        code = "" if self.exit_code is None else f", exit code {self.exit_code}"
        if self.cause is None:
            return ServeError(
                f"vLLM {when}{code}, and no line of its output says why",
                problems=self.causes.tail(),
                hint=self._log_hint(),
            )
        where = f" [{self.cause.process}]" if self.cause.process else ""
        problems = [f"it means: {self.cause.meaning}"] if self.cause.meaning else list(self.cause.log)
        return ServeError(
            f"vLLM {when}{code}: {self.cause.message}{where}",
            problems=problems,
            hint=self.cause.action.replace("DIR", str(self.launch.folder)) or self._log_hint(),
        )

    def _health(self) -> int:
        """Status of /health, 0 for none; 200 only once the served name is listed as well."""
        status = request(f"{self.launch.url}/health", key=self.launch.api_key, timeout_s=5.0).status
        if status != 200 or self.was_ready:
            return status
        answer = request(f"{self.launch.url}/v1/models", key=self.launch.api_key, timeout_s=5.0)
        return 200 if answer.status == 200 and f'"{self.launch.served_name}"' in answer.text else 0

    def _sick_event(self, status: int) -> Event:
        if status == 200:
            return self.event("well", "/health answers again", status=status)
        if status == 0:
            text = "/health does not answer; not dead: its process lives, so it may be busy"
        else:
            text = f"/health answers {status}: the engine is dead or dying"
        return self.event("sick", text, status=status)

    def _phase_event(self) -> Event:
        phase = self.phases.phase
        return self.event(
            "phase", f"{phase.label} (normal: {phase.normal})", normal_s=phase.normal_s, pid=self.server.pid
        )

    def _tick(self) -> Event:
        if self.was_ready:
            return self.event("tick", "serving")
        phase = self.phases.phase
        progress = f" {self.phases.progress}" if self.phases.progress else ""
        in_phase = self.clock() - self.phase_started
        return self.event("tick", f"{phase.label}{progress}, {in_phase:.0f} s (normal: {phase.normal})")

    def _slow_event(self, in_phase: float, cpu: float | None) -> Event:
        phase = self.phases.phase
        now = self.server.cpu_seconds()
        cores = None if cpu is None or now is None else max(0.0, now - cpu) / in_phase
        if cores is None:
            state = "its process lives"
        elif cores < IDLE_CORES:
            state = "its processes use no CPU: they wait for a disk, the network, a GPU or each other"
        else:
            state = f"its processes are at work ({cores:.1f} cores)"
        text = f"{phase.label} for {in_phase:.0f} s, longer than normal ({phase.normal}); not dead: {state}"
        return self.event("slow", text, in_phase_s=round(in_phase, 1), cpu_cores=cores)

    def _ready_event(self) -> Event:
        launch = self.launch
        seconds = self.clock() - self.started
        return self.event("ready", f"ready after {seconds:.0f} s", url=launch.url, model=launch.served_name)

    def _died_event(self) -> Event:
        cause = self.cause
        text = f"vLLM died: {cause.message}" if cause else "vLLM died without a word"
        return self.event(
            "died",
            text,
            exit_code=self.exit_code,
            cause=cause.message if cause else None,
            process=cause.process if cause else None,
            meaning=cause.meaning if cause else None,
            action=cause.action if cause else None,
        )
