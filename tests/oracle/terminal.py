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
from typing import Any

from tests.oracle import forked

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
    words = [*map(str, arguments)]
    env = {**os.environ, **(environment or {})}
    if program is GGUF2ST and (done := _run_forked(words, cwd, env)):
        return done
    ended = subprocess.run([*program, *words], capture_output=True, cwd=cwd, env=env, check=False, timeout=120)
    return Done(ended.returncode, ended.stdout.decode(errors="replace"), ended.stderr.decode(errors="replace"))


def _run_forked(arguments: list[str], cwd: Path | None, environment: Mapping[str, str]) -> Done | None:
    out, err = os.pipe(), os.pipe()
    fork = forked.start(arguments, (0, out[1], err[1]), cwd, environment)
    os.close(out[1])
    os.close(err[1])
    said = {out[0]: b"", err[0]: b""}
    left = [*said] if fork else []
    while left:
        ready, _, _ = select.select(left, [], [], 120)
        if fork and not ready:
            os.kill(fork.pid, signal.SIGKILL)
            raise TimeoutError(f"gguf2st {arguments} says nothing")
        for end in ready:
            chunk = os.read(end, 65536)
            said[end] += chunk
            if not chunk:
                left.remove(end)
    for end in said:
        os.close(end)
    return Done(fork.server.wait(), *(text.decode(errors="replace") for text in said.values())) if fork else None


def completed(*arguments: object, **options: Any) -> "subprocess.CompletedProcess[str]":
    """`run`, with its end as subprocess tells it."""
    done = run(*arguments, **options)
    return subprocess.CompletedProcess([*GGUF2ST, *map(str, arguments)], done.code, done.out, done.err)


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
    words, streams = [*map(str, arguments)], (follower, follower, follower)
    fork = forked.start(words, streams, None, env) if program is GGUF2ST else None
    process = (
        None
        if fork
        else subprocess.Popen([*program, *words], stdin=follower, stdout=follower, stderr=follower, env=env)
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
    return Done(fork.server.wait() if fork else process.wait(timeout=60), received.decode(), "")
