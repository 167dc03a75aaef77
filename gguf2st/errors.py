"""Everything that can go wrong, with the exit code the command line gives for it.

An error message says what, where, and what was expected or is available; `hint` says what to do next.
`problems` lists every offender when there are several, so that one run shows them all.
"""

import errno
import os
from collections.abc import Sequence

MAX_PROBLEMS = 200
"""Lines listed one by one; whoever needs more has them in the file itself."""


class Gguf2stError(Exception):
    """Base of all errors gguf2st raises on purpose.

    Attributes:
        message: one line: what is wrong, and where.
        hint: one line: the next step; empty when there is none.
        problems: one line per offender, already folded over layers and experts; MAX_PROBLEMS of them.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "", problems: Sequence[str] = ()) -> None:
        self.message = short(message)
        super().__init__(self.message)
        self.hint = short(hint)
        more = len(problems) - MAX_PROBLEMS
        self.problems = tuple(map(short, problems[:MAX_PROBLEMS])) + ((f"... and {more} more",) if more > 0 else ())


def short(text: str, limit: int = 2000) -> str:
    """A text that may quote a stranger's file, cut in its middle when it is longer than any of ours."""
    if len(text) <= limit:
        return text
    tail = limit // 5
    return f"{text[: limit - tail]} ... ({len(text):,} characters) ... {text[-tail:]}"


class UsageError(Gguf2stError):
    """An option has a value that does not exist here."""

    exit_code = 2


class SourceError(Gguf2stError):
    """The source cannot be found, read, or is damaged."""

    exit_code = 3


def unreadable(err: OSError, name: object = "") -> SourceError:
    """The SourceError that explains a failed system call on a file of a source.

    Args:
        err: of the system.
        name: of the file, where the error does not say it.
    """
    file = os.fsdecode(err.filename) if isinstance(err.filename, str | bytes | os.PathLike) else str(name)
    hint = _HINTS.get(err.errno or 0, "the disk or the network may be failing (see `dmesg`): run the command again")
    return SourceError(f"{file} cannot be read: {err.strerror or err}", hint=hint)


_PATH = "check the path, and the disk or share that it is on"
_HINTS = {
    errno.ENOENT: _PATH,
    errno.ENOTDIR: _PATH,
    errno.ENAMETOOLONG: _PATH,
    errno.ELOOP: _PATH,
    errno.EACCES: "ask for permission to read it: `ls -l` shows whose it is",
    errno.EPERM: "ask for permission to read it: `ls -l` shows whose it is",
    errno.EISDIR: "give the file, or the folder as SRC where it holds one model",
    errno.EMFILE: "let the process open more files (`ulimit -n`)",
}


class HeaderError(SourceError):
    """The GGUF header is malformed, truncated, or contradicts its file."""


class MapError(Gguf2stError):
    """No arch map fits, or a map cannot be read or evaluated on this file."""

    exit_code = 4


class CoverageError(Gguf2stError):
    """Tensors without a place, parameters without a source, keys nobody read, shapes that disagree."""

    exit_code = 4


class TokenizerError(Gguf2stError):
    """The tokenizer cannot be rebuilt faithfully."""

    exit_code = 4


class SchemeError(Gguf2stError):
    """A tensor's type or values do not fit the requested output."""

    exit_code = 4


class VerifyError(Gguf2stError):
    """A checkpoint is incomplete, inconsistent, or differs from its source."""

    exit_code = 5


class OutputError(Gguf2stError):
    """The output cannot be written: disk full, permission, or the target exists."""

    exit_code = 6


class ServeError(Gguf2stError):
    """vLLM cannot be found, does not start, dies, or answers wrongly."""

    exit_code = 7


class HubError(Gguf2stError):
    """The Hub cannot be reached, or does not give what was asked for."""

    exit_code = 8


class BatchError(Gguf2stError):
    """At least one model of a batch failed; the others are done."""

    exit_code = 9


class EngineError(Gguf2stError):
    """A cluster cannot be reached, or loses what it is given to do."""

    exit_code = 10


class DeviceError(Gguf2stError):
    """A CUDA device fails, or computes otherwise than the CPU."""

    exit_code = 10  # a machine's failure, as that of a cluster: the command is right, and may work the next time


INTERRUPTED = 130
"""Exit code after Ctrl-C or SIGTERM, as shells report SIGINT (128 + 2)."""
