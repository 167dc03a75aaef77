"""Kill, starve and disturb conversions at random points, and look at what is left: the table of docs/operations.md.

    python scripts/crash_test.py                    everything: 50 points for each way to fail and to convert
    python scripts/crash_test.py kill full-disk     some ways to fail
    python scripts/crash_test.py --points 5 --seed 7

A point is a call that changes the file system (or sends to the Hub) before which the run fails; a write is half done
then. `batch` is killed after a random time instead. What must hold afterwards is said in tests/crash_runs.py. Mounting
needs root; without it, the ways to fail that need it are skipped and named.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.crash_runs import HUB, LOCAL, SHARES, CrashTest, Files, Mode, can_mount, files_of  # noqa: E402
from tests.hub_server import HubServer  # noqa: E402

NEED_NBYTES = 2_600_000
"""What the sharded conversion writes."""
WAYS = ("kill", "shares", "batch", "SIGTERM", "SIGINT", "full-disk", "errors", "read-only", "limits", "source", "twice")


@dataclass
class Row:
    """The runs of one way to fail and one way to convert."""

    way: str
    mode: str
    ended: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        ends = ", ".join(f"{count} {end}" for end, count in sorted(self.ended.items()))
        return f"| {self.way} | {self.mode} | {self.ended.total()} | {ends} | {len(self.problems)} |"


@dataclass(frozen=True)
class Case:
    """A way to fail: fields of `Order` and `CrashTest.fail` for one run, made by chance."""

    way: str
    mode: Mode
    statuses: tuple[int, ...]
    fault: Any
    """Called with (random, number of steps) -> keywords of `CrashTest.fail`."""
    share: float = 1.0
    """Of the points."""


def cases(ways: set[str], mounts: bool) -> Iterator[Case]:
    """What to do, for those of WAYS that are forks of one process."""
    sharded, near, overwrite = LOCAL[1], LOCAL[3], LOCAL[5]
    for mode in (*LOCAL, *SHARES, *HUB) if "kill" in ways else ():
        yield Case("kill -9", mode, (-9, 0), lambda rng, n: {"at": rng.randrange(n)})
    for name in ("SIGTERM", "SIGINT"):
        number = int(getattr(signal, name))
        for mode in (sharded, overwrite) if name in ways else ():
            yield Case(name, mode, (130, 0), lambda rng, n, s=number: {"at": rng.randrange(n), "signal": s})
    for mode in (sharded, near, overwrite) if "full-disk" in ways and mounts else ():
        yield Case("full disk (tmpfs)", mode, (0, 6), lambda rng, n: {"room": rng.randrange(4096, NEED_NBYTES)})
    for errno in ("ENOSPC", "EIO", "EACCES", "EROFS") if "errors" in ways else ():
        way = f"{errno} from a call on"
        for mode in (sharded, overwrite, SHARES[0], SHARES[2]):
            yield Case(way, mode, (0, 6), lambda rng, n, e=errno: {"at": rng.randrange(n), "refuses": e})
    if "read-only" in ways and mounts:
        yield Case("read-only mount", sharded, (6,), lambda rng, n: {"read_only": True}, 0.1)
    if "limits" in ways:
        yield Case(
            "RLIMIT_FSIZE", near, (0, 6), lambda rng, n: {"limits": {"RLIMIT_FSIZE": rng.randrange(2000, 900_000)}}
        )
        yield Case("RLIMIT_AS", near, (0, 1), lambda rng, n: {"limits": {"RLIMIT_AS": rng.randrange(300 << 20)}})
        yield Case(
            "RLIMIT_AS, lowered while it runs",
            near,
            (0, 1, 6),
            lambda rng, n: {"at": rng.randrange(n), "leaves": rng.randrange(1 << 20, 32 << 20)},
        )
    for change in ("truncated", "grown", "overwritten", "replaced", "removed") if "source" in ways else ():
        yield Case(
            f"source {change}", sharded, (0, 3), lambda rng, n, c=change: {"at": rng.randrange(n), "changes": c}, 0.4
        )


BATCH = """
[defaults]
output = "converted/{name}"
[[model]]
name = "sharded"
src = "source.gguf"
max-shard-size = "700KB"
[[model]]
name = "repacked"
src = "source.gguf"
repack = "near"
[[model]]
name = "wide"
src = "source.gguf"
dtype = "float32"
"""


def batch(source: Path, folder: Path, points: int, rng: random.Random) -> Row:
    """Kill a batch of three models after a random time, with what it has started, and run it again."""
    row = Row("kill -9 at a random time", "batch of 3, 2 at a time")
    command = [sys.executable, "-m", "gguf2st", "batch", "models.toml", "--jobs", "2"]

    def prepare() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        shutil.copy(source, folder)
        (folder / "models.toml").write_text(BATCH)

    def result() -> dict[str, Files]:
        done = folder / "converted"
        return {p.name: files_of(p) for p in (done.iterdir() if done.exists() else ()) if p.suffix != ".partial"}

    prepare()
    started = time.monotonic()
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    whole_s, expected = time.monotonic() - started, result()
    for number in range(points):
        prepare()
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                process.wait(rng.random() * whole_s)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
        row.ended["killed" if process.returncode == -9 else f"exit {process.returncode}"] += 1
        while _working_in(folder):
            time.sleep(0.01)  # its conversions end with it, but not in the same instant
        row.problems += [
            f"{number}: {name} is incomplete" for name, files in result().items() if files != expected[name]
        ]
        again = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if again.returncode or result() != expected:
            row.problems.append(f"{number}: run again, it ended with {again.returncode}: {again.stderr[-500:]}")
        if left := [p.name for p in (folder / "converted").iterdir() if p.name not in expected]:
            row.problems.append(f"{number}: run again, it left {left}")
    return row


def shares(source: Path, folder: Path, points: int, expected: Files, rng: random.Random) -> Row:
    """Three processes with the shares of one plan, each killed after a random time; then the same once more."""
    row = Row("kill -9 at a random time", "3 shares at once")
    gguf2st = [sys.executable, "-m", "gguf2st"]
    plan = folder / "p.plan"

    def begin(number: int) -> "subprocess.Popen[str]":
        command = [*gguf2st, "convert", "--plan", plan, "--shard", f"{number}/3", "--threads", "1"]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def prepare() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        options = ["-o", folder / "out", "--max-shard-size", "200KB", "--write", plan]
        subprocess.run([*gguf2st, "plan", source, *options], check=True, stdout=subprocess.DEVNULL)

    prepare()
    started = time.monotonic()
    for process in [begin(share) for share in (1, 2, 3)]:
        process.communicate()
    whole_s = time.monotonic() - started
    for number in range(points):
        prepare()
        started = time.monotonic()
        ends = sorted(started + rng.random() * whole_s for _ in range(3))
        for process, end in zip([begin(share) for share in (1, 2, 3)], ends, strict=True):
            with process:
                try:
                    process.wait(max(0.0, end - time.monotonic()))
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGKILL)
            row.ended["killed" if process.returncode == -9 else f"exit {process.returncode}"] += 1
        if (folder / "out").exists():
            row.problems.append(f"{number}: a checkpoint although nobody finished it")
        for process in [begin(share) for share in (1, 2, 3)]:
            _, said = process.communicate()
            if process.returncode:
                row.problems.append(f"{number}: run again, it ended with {process.returncode}: {said[-500:]}")
        done = subprocess.run([*gguf2st, "finish", plan, "-q"], capture_output=True, text=True, check=False)
        if done.returncode or files_of(folder / "out") != expected:
            row.problems.append(f"{number}: no complete checkpoint: {done.returncode}: {done.stderr[-500:]}")
        if left := [p.name for p in folder.iterdir() if p.name not in ("out", "p.plan")]:
            row.problems.append(f"{number}: left {left}")
    return row


def _working_in(folder: Path) -> bool:
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and os.readlink(process / "cwd") == str(folder):
                return True
        except OSError:
            continue
    return False


def twice(source: Path, folder: Path, points: int, expected: Files) -> Row:
    """Three conversions into one target at once."""
    row = Row("at once", "3 conversions into one target")
    command = [sys.executable, "-m", "gguf2st", "convert", source, "-o", folder / "out", *LOCAL[1].options]
    for number in range(points):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        processes = [
            subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for _ in range(3)
        ]
        ends = []
        for process in processes:
            _, said = process.communicate()
            ends.append(process.returncode)
            if process.returncode and not ("another conversion" in said or "exists already" in said):
                row.problems.append(f"{number}: {said[-500:]}")
        row.ended[" + ".join(f"exit {end}" for end in sorted(ends))] += 1
        if 0 not in ends or files_of(folder / "out") != expected:
            row.problems.append(f"{number}: no complete checkpoint: {ends}")
        if left := [p.name for p in folder.iterdir() if p.name != "out"]:
            row.problems.append(f"{number}: left {left}")
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", nargs="*", metavar="WAY", help=f"of {', '.join(WAYS)}; all by default")
    parser.add_argument("--points", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if unknown := set(arguments.ways) - set(WAYS):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(WAYS)}")
    ways, points, rng = set(arguments.ways or WAYS), arguments.points, random.Random(arguments.seed)
    rows: list[Row] = []
    print("| failure | what failed | runs | ended | wrong afterwards |\n|---|---|---|---|---|", flush=True)

    def show(row: Row) -> None:
        rows.append(row)
        print(row, *row.problems[:5], sep="\n  ", flush=True)

    with tempfile.TemporaryDirectory(prefix="crash-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        folder = Path(name)
        mounts = can_mount(folder / "mount")
        (folder / "test").mkdir()
        with HubServer(folder / "hub") as hub, CrashTest(folder / "test", hub) as test:
            hub._server.handle_error = lambda *_: None  # it is its clients' fault
            for case in cases(ways, mounts):
                row = Row(case.way, case.mode.name)
                steps = test.expected(case.mode)[2]
                for _ in range(max(1, round(points * case.share))):
                    fault = case.fault(rng, steps)
                    outcome, problems = test.fail(case.mode, case.statuses, **fault)
                    row.ended["killed" if outcome.status == -9 else f"exit {outcome.status}"] += 1
                    row.problems += [f"{fault}: {problem}" for problem in problems]
                show(row)
            if "shares" in ways:
                options = ("--max-shard-size", "200KB", "--threads", "2")
                expected = test.expected(replace(LOCAL[1], options=options))[0]
                show(shares(test.source, folder / "shares", points, expected, rng))
            if "batch" in ways:
                show(batch(test.source, folder / "batch", points, rng))
            if "twice" in ways:
                show(twice(test.source, folder / "twice", max(1, points // 5), test.expected(LOCAL[1])[0]))
    wrong = sum(len(row.problems) for row in rows)
    print(f"\n{sum(row.ended.total() for row in rows)} runs that failed, {wrong} with something wrong afterwards")
    if not mounts and ways & {"full-disk", "read-only"}:
        print("not run, for this user may not mount: full disk (tmpfs), read-only mount")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
