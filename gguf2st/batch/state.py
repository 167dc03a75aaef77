"""The state of a batch: a journal of JSON lines beside the manifest. The last line about a model counts.

A line that a crash cut short counts for nothing. The file is locked while a batch runs.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from gguf2st.errors import OutputError
from gguf2st.output.locks import lock_file
from gguf2st.output.shards import output_error

STATE_SUFFIX = ".state.jsonl"


@dataclass(frozen=True)
class Result:
    """What became of a model.

    Attributes:
        name: of the model.
        status: started, converted (but not uploaded yet), done, failed, or stopped (by Ctrl-C; goes on next time).
        key: of the model when it was run.
        seconds: wall time of the last try.
        exit_code: of the process that failed; negative for a signal.
        error, hint: one line each.
        problems: further lines.
        report: of the conversion.
        pushed: of the upload.
        existed: whether the output was there already when the model was started.
    """

    name: str
    status: str
    key: str
    seconds: float = 0.0
    exit_code: int = 0
    error: str = ""
    hint: str = ""
    problems: tuple[str, ...] = ()
    report: Mapping[str, Any] = field(default_factory=dict)
    pushed: Mapping[str, Any] = field(default_factory=dict)
    existed: bool = False


class StateFile:
    """The journal, open and locked between entering and leaving. `results` holds the last line about each model."""

    def __init__(self, manifest: Path) -> None:
        self.path = manifest.with_name(manifest.stem + STATE_SUFFIX)
        self.results: dict[str, Result] = {}
        self._file: IO[str] | None = None

    def __enter__(self) -> "StateFile":
        """Read it, or make it.

        Raises:
            OutputError: it cannot be written, or another batch runs this manifest.
        """
        try:
            self._file = open(self.path, "a+", encoding="utf-8", errors="replace")
        except OSError as err:
            raise _not_writable(err, self.path) from err
        if not lock_file(self._file):
            self._file.close()
            raise OutputError(f"{self.path}: another batch is at work with it", hint="wait for it")
        self._file.seek(0)
        last = "\n"
        for last in self._file:
            try:
                row = json.loads(last)
                result = Result(**row | {"problems": tuple(row["problems"])})
            except (ValueError, TypeError, KeyError, RecursionError):
                continue
            self.results[result.name] = result
        if not last.endswith("\n"):
            self._file.write("\n")  # or the next line would join the one that was cut short
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, result: Result) -> None:
        """Record what became of a model, durably.

        Raises:
            OutputError: it cannot be written.
        """
        assert self._file is not None
        self.results[result.name] = result
        try:
            self._file.write(json.dumps(result.__dict__) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as err:
            raise _not_writable(err, self.path) from err


def _not_writable(err: OSError, path: Path) -> OutputError:
    return OutputError(
        output_error(err, path).message,
        hint=f"it lies in {path.parent}, which must be writable, with space left",
    )
