"""One vLLM with all its children: start, output, CPU use, and an end that leaves nobody behind.

vLLM is an API server, an engine core and a worker per GPU. They get a session of their own, so that a Ctrl-C in the
terminal reaches only us, and so that every one of them can be found by it.
"""

import contextlib
import os
import queue
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from gguf2st.errors import ServeError

GRACE_S = (20.0, 0.5, 3.0, 5.0)
"""Seconds for the server to end after SIGINT (it needs about one), for its children to follow it, and for whoever is
left after SIGTERM and after SIGKILL."""

_BREAK = re.compile(rb"[\r\n]+")
_PROC = Path("/proc")


class Server:
    """A running vLLM.

    Args:
        command: program and arguments.
        log: where its output is copied to, if anywhere.
        environment: added to ours.

    Attributes:
        log_error: why the log takes no more, once it does not; vLLM goes on without.

    Raises:
        ServeError: the program cannot be started.
    """

    def __init__(
        self, command: Sequence[str], *, log: IO[bytes] | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self.command = tuple(command)
        self._log = log
        self.log_error: OSError | None = None
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        try:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **environment} if environment else None,
            )
        except OSError as err:
            raise ServeError(
                f"{command[0]} cannot be started: {err.strerror or err}",
                hint="name the interpreter of vLLM's environment with --vllm-python",
            ) from err
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Of the API server; also the id of the session."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for the signal that ended it."""
        return self._process.poll()

    def lines(self) -> Iterator[str]:
        """The lines it has printed since the last call; progress bars give one line per update."""
        while True:
            try:
                yield self._lines.get_nowait()
            except queue.Empty:
                return

    def wait_for_output(self, timeout_s: float) -> None:
        """Wait until its output has been read to the end, as it can be once every process has gone."""
        self._reader.join(timeout_s)

    def cpu_seconds(self) -> float | None:
        """CPU time that its living processes have used; None where there is no /proc."""
        if not _PROC.joinpath("self", "stat").exists():
            return None
        ticks = sum(int(row[11]) + int(row[12]) for row in self._session().values())
        return ticks / os.sysconf("SC_CLK_TCK")

    def alive(self) -> list[int]:
        """Process ids of the session that still run; zombies do not."""
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-self.pid, os.WNOHANG)[0]:  # orphans come to us where we are process 1
                pass
        if _PROC.joinpath("self", "stat").exists():
            return sorted(self._session())
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return []
        return [self.pid]

    def stop(self) -> None:
        """End every process: politely, then firmly. A second Ctrl-C skips the polite part.

        Raises:
            ServeError: some process cannot be ended.
        """
        try:
            if self.exit_code is None:
                with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    self._process.send_signal(signal.SIGINT)
                    self._process.wait(GRACE_S[0])
            if not self._gone_within(GRACE_S[1]):
                self._signal_all(signal.SIGTERM)
                self._gone_within(GRACE_S[2])
        finally:
            self._signal_all(signal.SIGKILL)
            gone = self._gone_within(GRACE_S[3])
            self.wait_for_output(1.0)
        if not gone:
            raise ServeError(
                f"processes of vLLM do not end: {', '.join(map(str, self.alive()))}",
                hint="a process in uninterruptible sleep waits for a driver or a disk",
            )

    def _gone_within(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while self.exit_code is None or self.alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def _signal_all(self, signum: int) -> None:
        for pid in self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)

    def _session(self) -> dict[int, list[str]]:
        """pid -> the fields of /proc/PID/stat from the third on, for the living processes of our session."""
        rows = {}
        for entry in _PROC.iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    fields = entry.joinpath("stat").read_text().rpartition(")")[2].split()
                    if int(fields[3]) == self.pid and fields[0] not in "ZX":
                        rows[int(entry.name)] = fields
        return rows

    def _read(self) -> None:
        """Split the output at line ends and carriage returns, as progress bars use them."""
        stream = self._process.stdout
        assert stream is not None
        rest = b""
        while chunk := os.read(stream.fileno(), 1 << 16):
            self._keep(chunk)
            *whole, rest = _BREAK.split(rest + chunk)
            for line in whole:
                self._put(line)
        self._put(rest)
        stream.close()

    def _keep(self, chunk: bytes) -> None:
        """Copy output to the log. Whatever happens to that, somebody must go on reading, or vLLM waits for ever."""
        if self._log is None or self.log_error:
            return
        try:
            self._log.write(chunk)
            self._log.flush()
        except OSError as err:
            self.log_error = err

    def _put(self, line: bytes) -> None:
        if line.strip():
            self._lines.put(line.decode("utf-8", "replace"))
