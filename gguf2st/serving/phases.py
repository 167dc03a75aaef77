"""Where a starting vLLM is, told from its log lines. Lines serve progress only: whether it is ready or dead is told by
its process and its /health.

The lines are those of vLLM 0.32.0: measured on its CPU build, read in its source for what only a GPU does.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Phase:
    """A stretch of the start-up.

    Attributes:
        key: short name, for machines.
        label: for people.
        lines: patterns of log lines that begin it.
        normal_s: seconds after which it is worth saying that it takes long.
        normal: what is usual, in words.
    """

    key: str
    label: str
    lines: tuple[str, ...]
    normal_s: float
    normal: str


PHASES = (
    Phase("starting", "importing vLLM", (), 90, "10 s to 1 min; the first import after an installation is slowest"),
    Phase("resolving", "resolving the architecture", (r"non-default args:",), 60, "a few seconds"),
    Phase("engine", "starting the engine and its workers", (r"Initializing a V1 LLM engine",), 90, "10 s to 1 min"),
    Phase(
        "loading",
        "loading shards",
        (r"Starting to load model", r"Loading safetensors checkpoint shards"),
        300,
        "1 to 10 s per GB from a local disk; minutes from a network disk",
    ),
    Phase(
        "profiling",
        "profiling memory",
        (r"Loading weights took", r"Model loading took"),
        120,
        "seconds to 1 min; the GPU may show 100%",
    ),
    Phase(
        "compiling",
        "compiling",
        (
            r"Warming up model for the compilation",
            r"Compiling a graph",
            r"Compiling model again",
            r"Dynamo bytecode transform",
        ),
        420,
        "1 to 5 min at a first start, much of it without any output; `-- --enforce-eager` skips it",
    ),
    Phase(
        "capturing",
        "reserving the KV cache, capturing graphs",
        (r"KV cache size:", r"Available KV cache memory", r"Capturing CUDA graphs"),
        180,
        "10 s to 1 min; the GPU shows 100%",
    ),
    Phase(
        "server",
        "starting the HTTP server",
        (r"init engine \(profile", r"Starting vLLM server on"),
        60,
        "a few seconds",
    ),
)
"""In order. The first begins with the process."""

_STARTS = [(i, re.compile("|".join(p.lines))) for i, p in enumerate(PHASES) if p.lines]
_PROGRESS = re.compile(
    r"(?:Loading safetensors checkpoint shards|Capturing CUDA graphs)\D*(?P<percent>\d+)%.*?\|\s*(?P<count>\d+/\d+)"
)


class PhaseReader:
    """Reads log lines and knows the phase; it never goes back, since every worker prints its own lines."""

    def __init__(self) -> None:
        self._at = 0
        self.progress = ""

    @property
    def phase(self) -> Phase:
        """The phase that the lines so far have reached."""
        return PHASES[self._at]

    def feed(self, line: str) -> bool:
        """Take one line; True when it began a later phase. `progress` holds `3/8` while a bar runs, else ""."""
        if match := _PROGRESS.search(line):
            self.progress = match["count"]
        for i, start in _STARTS:
            if i > self._at and start.search(line):
                self._at = i
                self.progress = match["count"] if match else ""
                return True
        return False
