"""Conversions and uploads that are made to fail at any step, and what must hold afterwards.

After every failure: nothing has the final name but a complete checkpoint, the new one or the one to be overwritten; the
Hub shows nothing, or all of it; the source is as it was; nothing lies outside of OUT and OUT.partial; and the same
command again ends with the bytes of an undisturbed run.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.crash_steps import Order
from tests.hub_server import HubServer
from tests.make_gguf import tiny_llama
from tests.oracle.fork_server import Server

ROOT = Path(__file__).resolve().parent.parent
Files = dict[str, bytes]

QTYPES = {"ffn_up": "Q8_0", "ffn_down": "Q6_K", "attn_q": "Q4_K", "attn_k": "Q4_K", "attn_v": "Q4_K"}
REPO = "tester/model"


@dataclass(frozen=True)
class Mode:
    """What to do.

    Attributes:
        options: of `gguf2st convert`.
        overwrites: whether there is a checkpoint already.
        hub: "stream" uploads shards and deletes them; "push" uploads a checkpoint that is there.
        plan: "share" writes the shards of a plan file, "finish" makes the checkpoint of them; `options` are the plan's.
    """

    name: str
    options: tuple[str, ...] = ()
    overwrites: bool = False
    hub: str = ""
    plan: str = ""


SHARDED = ("--max-shard-size", "700KB", "--threads", "2")
LOCAL = (
    Mode("dequantize", ("--threads", "2")),
    Mode("dequantize, sharded", SHARDED),
    Mode("repack exact, sharded", (*SHARDED, "--repack", "exact")),
    Mode("repack near, sharded", (*SHARDED, "--repack", "near")),
    Mode("repack int4", ("--threads", "2", "--repack", "int4")),
    Mode("overwrite, sharded", (*SHARDED, "--overwrite"), overwrites=True),
)
SHARES = (
    Mode("convert --plan", ("--max-shard-size", "700KB"), plan="share"),
    Mode("convert --plan, repack near", ("--max-shard-size", "700KB", "--repack", "near"), plan="share"),
    Mode("finish", ("--max-shard-size", "700KB"), plan="finish"),
    Mode("finish, overwrite", ("--max-shard-size", "700KB", "--overwrite"), overwrites=True, plan="finish"),
)
HUB = (
    Mode("convert --push --no-keep", (*SHARDED, "--push", REPO, "--no-keep"), hub="stream"),
    Mode("push", hub="push"),
)


@dataclass(frozen=True)
class Outcome:
    """How a run ended: its exit code (or minus the signal), how many steps it took, and what it printed."""

    status: int
    steps: int | None
    said: str


class CrashTest:
    """A source, and a process that runs gguf2st on it and fails as told."""

    def __init__(self, folder: Path, hub: HubServer | None = None) -> None:
        """Write the source, and start the process.

        Args:
            folder: an empty one.
            hub: for the modes that need one.
        """
        self.folder = folder
        self.hub = hub
        self.place = folder / "work"
        self.source = tiny_llama(
            folder / "source.gguf",
            hidden=256,
            ffn=512,
            qtype=lambda name: next((qtype for part, qtype in QTYPES.items() if part in name), "Q4_0"),
        )
        self._content, self._time = self.source.read_bytes(), self.source.stat().st_mtime_ns
        self._expected: dict[Mode, tuple[Files, Files, int]] = {}
        self._server = Server("tests.crash_steps", str(self.source), str(folder / "warm"))

    def __enter__(self) -> "CrashTest":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self.unmount()

    def run(self, mode: Mode, **fault: Any) -> Outcome:
        """Do it in `place`."""
        out = str(self.place / "out")
        arguments: tuple[str, ...] = ("convert", str(self.source), "-o", out, *mode.options)
        if mode.hub == "push":
            arguments = ("push", out, REPO)
        elif mode.plan:
            arguments = {
                "share": ("convert", "--plan", str(self._plan(mode))),
                "finish": ("finish", str(self._plan(mode))),
            }[mode.plan]
        environment: Mapping[str, str] = self.hub.environment(self.folder) if self.hub else {}
        return self._order(arguments, environment, **fault)

    def _order(self, arguments: tuple[str, ...], environment: Mapping[str, str] | None = None, **fault: Any) -> Outcome:
        order = replace(Order(arguments, str(self.place), environment=environment or {}), **fault)
        reading, counted = os.pipe()
        with open(reading, "rb") as steps, open(self.folder / "said", "wb") as said:
            started = self._server.start(asdict(order), (said.fileno(), counted))
            os.close(counted)
            assert started, "one run at a time"
            status, count = self._server.wait(), steps.read()
        return Outcome(status, int(count) if count else None, (self.folder / "said").read_text(errors="replace"))

    def prepare(self, mode: Mode, *, room: int = 0, read_only: bool = False) -> None:
        """An empty `place`, or one with a checkpoint; a Hub that has never seen it."""
        self.unmount()
        shutil.rmtree(self.place, ignore_errors=True)
        if self.hub:
            self.hub.store.repos.pop(REPO, None)
            for blob in (self.hub.store.root / "blobs").iterdir():
                blob.unlink()
        old = self._old() if mode.overwrites or mode.hub == "push" else None
        self.place.mkdir()
        if room or read_only:
            _mount("-t", "tmpfs", "-o", "size=64m", "tmpfs", str(self.place))
        if old:
            shutil.copytree(old, self.place / "out")
        if room:
            _mount("-o", f"remount,size={shutil.disk_usage(self.place).used + room}", str(self.place))
        if mode.plan == "finish":
            shutil.copytree(self._shards(mode), self.place / "out.partial")
        if read_only:
            _mount("-o", "remount,ro", str(self.place))

    def unmount(self) -> None:
        """Take away the file system of `place`, if it has one of its own."""
        if self.place.is_mount():
            subprocess.run(["umount", self.place], check=True)

    def expected(self, mode: Mode) -> tuple[Files, Files, int]:
        """(what an undisturbed run ends with, what is there before, the number of its steps)."""
        if mode not in self._expected:
            self.prepare(mode)
            old = self._result(mode)
            outcome = self.run(mode)
            assert outcome.status == 0, outcome.said
            assert outcome.steps
            self._finish(mode)
            assert sorted(p.name for p in self.place.iterdir()) == ([] if mode.hub == "stream" else ["out"])
            new = self._result(mode)
            assert "config.json" in new
            self._expected[mode] = new, old, outcome.steps
        return self._expected[mode]

    def fail(
        self, mode: Mode, statuses: tuple[int, ...], *, room: int = 0, read_only: bool = False, **fault: Any
    ) -> tuple[Outcome, list[str]]:
        """Let a run fail, look at what it left, and run it again; (how it ended, what was wrong).

        Args:
            mode: what to do.
            statuses: how the failing run may end.
            room: bytes that are free in a file system of its own until the run has failed.
            read_only: whether it has one that is read-only until then.
            fault: fields of `Order`.
        """
        new, old, _ = self.expected(mode)
        self.prepare(mode, room=room, read_only=read_only)
        outcome = self.run(mode, **fault)
        problems = []
        if outcome.status not in statuses:
            problems.append(f"ended with {outcome.status}, not {statuses}: {outcome.said[-500:]}")
        if "Traceback" in outcome.said:
            problems.append(f"a traceback: {outcome.said[-500:]}")
        found = self._result(mode)
        if strange := sorted(p.name for p in self.place.iterdir() if p.name not in ("out", "out.partial")):
            problems.append(f"left {strange}")
        if found not in (new, old):
            problems.append(f"what is left is neither the old checkpoint nor the new one: {sorted(found)}")
        if fault.get("changes"):
            self.source.write_bytes(self._content)
            os.utime(self.source, ns=(self._time, self._time))
        if room or read_only:
            _mount("-o", "remount,rw,size=64m", str(self.place))
        again = self.run(mode)
        if again.status == 0:
            self._finish(mode)
        if found == new and not mode.hub and (mode.plan == "finish" or not mode.overwrites):
            if again.status != 6 or "already" not in again.said or "missing" in again.said:
                problems.append(f"complete, but run again it ended with {again.status}: {again.said[-500:]}")
            left = (name for name in files_of(self.place / "out.partial") if not name.startswith("journals/"))
            if surplus := {*left} - {"plan.json", "journal"}:
                problems.append(f"complete, but there is still {sorted(surplus)}")
        elif again.status != 0:
            problems.append(f"run again, it ended with {again.status}: {again.said[-500:]}")
        elif names := sorted(p.name for p in self.place.iterdir() if p.name != "out"):
            problems.append(f"run again, it left {names}")
        if self._result(mode) != new:
            problems.append("run again, it wrote other bytes")
        if self.source.read_bytes() != self._content or self.source.stat().st_mtime_ns != self._time:
            problems.append("the source has changed")
        return outcome, problems

    def _result(self, mode: Mode) -> Files:
        """What the world sees: the repository, or the checkpoint; an overwritten one may be aside for a moment."""
        if mode.hub:
            assert self.hub is not None
            return self.hub.files(REPO) if REPO in self.hub.store.repos else {}
        return files_of(self.place / "out") or files_of(self.place / "out.partial" / "replaced")

    def _finish(self, mode: Mode) -> None:
        """After shards were written: make the checkpoint, undisturbed."""
        if mode.plan == "share":
            outcome = self.run(replace(mode, plan="finish"))
            assert outcome.status == 0, outcome.said

    def _plan(self, mode: Mode) -> Path:
        """The plan file for the options of a mode."""
        path = self.folder / f"{abs(hash(mode.options))}.plan"
        if not path.exists():
            out = self.place / "nowhere"
            arguments = ("plan", str(self.source), "-o", str(out), "--write", str(path), *mode.options)
            outcome = self._order(arguments)
            assert outcome.status == 0, outcome.said
            path.write_text(path.read_text().replace(f'"output": "{out}"', f'"output": "{self.place / "out"}"'))
        return path

    def _shards(self, mode: Mode) -> Path:
        """OUT.partial with all shards of a plan file."""
        made = self._plan(mode).with_suffix(".partial")
        if not made.exists():
            there = self.place / "out"
            aside = there.rename(self.folder / "aside") if there.exists() else None
            outcome = self.run(replace(mode, plan="share"))
            assert outcome.status == 0, outcome.said
            (self.place / "out.partial").rename(made)
            if aside:
                aside.rename(there)
        return made

    def _old(self) -> Path:
        old = self.folder / "old"
        if not old.exists():
            self.place.mkdir(exist_ok=True)
            outcome = self.run(Mode("old", ("--dtype", "float16", "--max-shard-size", "500KB")))
            assert outcome.status == 0, outcome.said
            (self.place / "out").rename(old)
            self.place.rmdir()
        return old


def files_of(folder: Path) -> Files:
    """What is in a folder; nothing if it is not there."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def can_mount(folder: Path) -> bool:
    """Whether this process may mount a file system there."""
    folder.mkdir(exist_ok=True)
    tried = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], capture_output=True, check=False)
    if tried.returncode == 0:
        subprocess.run(["umount", folder], check=True)
    return tried.returncode == 0


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)
