"""Processes that have something loaded, and fork for each order: what `forked`, `logits` and `tests.crash_steps` use.

A message is one packet; open files may come with it. The server answers twice: with the number of the fork, and once
it has ended with its exit code, or minus the signal that ended it.
"""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class Server:
    """A process that runs a module of the tests, with the end of a line to it as its first argument."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._busy = threading.Lock()
        self._line, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there:
            command = [sys.executable, "-m", module, str(there.fileno()), *arguments]
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[there.fileno()]
            )
        self._owner = os.getpid()
        atexit.register(self.close)

    def start(self, order: Any, files: Sequence[int]) -> int | None:
        """Number of a fork that has the order and the open files; None while another runs. `wait` must follow."""
        if not self._busy.acquire(blocking=False):
            return None
        socket.send_fds(self._line, [json.dumps(order).encode()], files)
        return self._number()

    def wait(self) -> int:
        """How the fork that was started ended."""
        try:
            return self._number()
        finally:
            self._busy.release()

    def _number(self) -> int:
        if answer := self._line.recv(64):
            return int(answer)
        raise RuntimeError(f"{self._process.args} ended with {self._process.wait()}")

    def close(self) -> None:
        """End the server; at the latest with the process that has it."""
        if os.getpid() == self._owner:  # and not in a fork of that one
            self._line.close()
            self._process.wait()


def orders() -> tuple[Any, list[int]]:
    """Fork for each order that comes. Returns in the forks only, with their order and files.

    Raises RuntimeError if there is a thread by now: it would not be in the forks.
    """
    if threading.active_count() > 1:
        raise RuntimeError(f"threads before a fork: {threading.enumerate()}")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever types Ctrl-C at pytest means pytest; the line ends with it
    line = socket.socket(fileno=int(sys.argv[1]))
    while True:
        message, files, _, _ = socket.recv_fds(line, 1 << 20, 3)
        if not message:
            os._exit(0)
        child = os.fork()
        if not child:
            line.close()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            return json.loads(message), files
        for file in files:
            os.close(file)
        line.send(b"%d" % child)
        line.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
