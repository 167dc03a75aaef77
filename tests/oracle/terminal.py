"""Run the command line as a user does: in a process of its own, with pipes or a terminal."""

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

GGUF2ST = (sys.executable, "-m", "gguf2st")
_SLOW = """
import pathlib, time
from gguf2st.cli import main
from gguf2st.kernels import cpu, device
once = pathlib.Path({once!r})
def decode(qtype, dtype, blocks, out):
    cpu.dequantize(qtype, dtype, blocks, out)
    time.sleep(2 if once.is_file() else 0.05)
device.decoder = lambda name: decode
main()
"""
SLOW = (sys.executable, "-c", _SLOW.format(once=""))
"""gguf2st with a decoder that leaves time to look."""

FULL_DISK = (
    sys.executable,
    "-c",
    """
import errno, os
from gguf2st.cli import main
def full(fd, offset, nbytes):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
os.posix_fallocate = full
main()
""",
)
"""gguf2st on a disk without a free byte."""


@dataclass(frozen=True)
class Done:
    """How a process ended."""

    code: int
    out: str
    err: str


def run(
    *arguments: object,
    program: Sequence[str] = GGUF2ST,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Done:
    """Run with pipes, until it ends."""
    command = [*program, *map(str, arguments)]
    env = {**os.environ, **(environment or {})}
    done = subprocess.run(command, capture_output=True, cwd=cwd, env=env, check=False, timeout=120)
    return Done(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))


def interrupted(*arguments: object, once: Path, sent: signal.Signals = signal.SIGINT) -> Done:
    """Run slowly, and send a signal once a file exists; so slowly from then on that it is in time on any machine."""
    command = [sys.executable, "-c", _SLOW.format(once=str(once)), *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not once.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.15)
    process.send_signal(sent)
    out, err = process.communicate(timeout=60)
    return Done(process.returncode, out.decode(), err.decode())


def on_terminal(*arguments: object, program: Sequence[str] = GGUF2ST) -> Done:
    """Run with standard output and error on a terminal of 100 columns; both are in `out`, as one stream."""
    leader, follower = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    for name in ("NO_COLOR", "FORCE_COLOR", "CI"):
        env.pop(name, None)
    process = subprocess.Popen(
        [*program, *map(str, arguments)], stdin=follower, stdout=follower, stderr=follower, env=env, close_fds=True
    )
    os.close(follower)
    received = b""
    while True:
        ready, _, _ = select.select([leader], [], [], 60)
        try:
            chunk = os.read(leader, 65536) if ready else b""
        except OSError:  # Linux's way to say that the other end is closed
            chunk = b""
        if not chunk:
            break
        received += chunk
    with contextlib.suppress(OSError):
        os.close(leader)
    return Done(process.wait(timeout=60), received.decode(), "")
