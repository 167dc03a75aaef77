"""Runs of the command line that fail at one of their steps, each in a fork of a process that has gguf2st loaded.

An order is an Order, with two open files: for what the run prints, and for the number of its steps, which stays empty
when it did not come to its end. `steps` of a run are its calls that change a file system below `folder`, or send to a
socket, in their order.
"""

import errno
import io
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from tests.oracle.fork_server import orders

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
ALLOCATES = ("open", "mkdir", "pwrite", "posix_fallocate", "fsync")
CHANGES = (*ALLOCATES, "rename", "remove", "rmdir")
REFUSED = {"ENOSPC": ALLOCATES, "EIO": (*ALLOCATES, "rename"), "EROFS": CHANGES, "EACCES": CHANGES}
"""What a file system refuses from some step on: when it is full, breaks, becomes read-only, or somebody else's."""
EVENTS = {f"os.{name}": name for name in ("rename", "remove", "mkdir", "rmdir", "truncate")}


@dataclass(frozen=True)
class Order:
    """A run, and what happens to it at one of its steps.

    Attributes:
        arguments: of gguf2st.
        folder: where its steps are counted.
        at: number of the step before which something happens; None for nothing. Of a write, half is done.
        signal: the run gets this signal,
        refuses: or from then on the file system refuses some calls: a key of REFUSED,
        leaves: or the run may map so many bytes of memory more,
        changes: or its source is truncated, grown, overwritten or replaced.
        limits: names of resource limits -> bytes, for the whole run; RLIMIT_AS is on top of what is mapped.
        environment: variables to set.
    """

    arguments: tuple[str, ...]
    folder: str
    at: int | None = None
    signal: int = signal.SIGKILL
    refuses: str = ""
    leaves: int | None = None
    changes: str = ""
    limits: Mapping[str, int] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


class Steps:
    """Counts the steps of this process, and makes something happen at one of them."""

    def __init__(self, order: Order) -> None:
        self.order, self.count = order, 0
        sock = socket.socket
        for place, name in ((os, "pwrite"), (os, "posix_fallocate"), (os, "fsync"), (sock, "send"), (sock, "sendall")):
            setattr(place, name, self._counted(name, getattr(place, name)))
        sys.addaudithook(self._audit)

    def _step(self, what: str, half: Callable[[], object] = lambda: None) -> None:
        order, number = self.order, self.count
        self.count += 1
        if order.at is None or number < order.at:
            return
        if order.refuses:
            if what in REFUSED[order.refuses]:
                code = getattr(errno, order.refuses)
                raise OSError(code, os.strerror(code))
        elif number > order.at:
            return
        elif order.leaves is not None:
            _limit("RLIMIT_AS", order.leaves)
        elif order.changes:
            change(Path(order.arguments[1]), order.changes)
        else:
            half()
            os.kill(os.getpid(), order.signal)

    def _counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            if name == "pwrite":
                fd, data, offset = arguments
                self._step(name, lambda: call(fd, data[: len(data) // 2], offset))
            elif name in ("send", "sendall"):
                sock, data = arguments[:2]
                self._step(name, lambda: call(sock, bytes(data)[: len(data) // 2]))
            else:
                self._step(name)
            return call(*arguments)

        return counted

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            if (flags & WRITES if isinstance(flags, int) else set(str(mode)) & set("wax+")) and self._is_ours(path):
                self._step("open")
        elif event in EVENTS and self._is_ours(arguments[0]):
            self._step(EVENTS[event])

    def _is_ours(self, path: Any) -> bool:
        # shutil.rmtree names what it removes below an open folder.
        return isinstance(path, str | os.PathLike) and (
            not os.path.isabs(path) or os.fspath(path).startswith(self.order.folder)
        )


def change(source: Path, how: str) -> None:
    """Do to a file what another program might."""
    content = source.read_bytes()
    if how == "truncated":
        os.truncate(source, len(content) // 2)
    elif how == "grown":
        source.write_bytes(content + b"more")
    elif how == "overwritten":
        source.write_bytes(content[:-5000] + bytes(5000))
    elif how == "replaced":
        other = source.with_suffix(".new")
        other.write_bytes(content[:-5000] + bytes(5000))
        os.utime(other, ns=(source.stat().st_atime_ns, source.stat().st_mtime_ns))
        other.replace(source)
    else:
        source.unlink()


def _limit(name: str, nbytes: int) -> None:
    if name == "RLIMIT_AS":
        nbytes += int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(getattr(resource, name), (nbytes, nbytes))


def _run(order: Order, said: int, report: int) -> NoReturn:
    code, steps = 99, None
    try:
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(said, number)
            raw = open(number, "wb", buffering=0, closefd=False)  # noqa: SIM115 - a run may end without closing it
            setattr(sys, name, io.TextIOWrapper(raw, write_through=True))
        os.environ.update(order.environment)
        for name, nbytes in order.limits.items():
            _limit(name, nbytes)
        from gguf2st.cli import main

        steps = Steps(order)
        main(list(order.arguments))
    except SystemExit as err:
        code = err.code if isinstance(err.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        if steps is not None:
            os.write(report, b"%d" % steps.count)
        os._exit(code)


def main() -> None:
    """Warm up with a conversion of each kind, and be a run in each fork."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads would not survive a fork
    import gguf2st
    import gguf2st.cli.convert
    import gguf2st.cli.finish
    import gguf2st.cli.plan
    import gguf2st.cli.push
    import gguf2st.verification.numerical

    source, scratch = sys.argv[2:]
    for repack in ("none", "exact", "near", "int4"):
        gguf2st.convert(source, Path(scratch, repack), repack=repack, threads=1)  # compiles the kernels
    order, (said, report) = orders()
    _run(Order(**order), said, report)


if __name__ == "__main__":
    main()
