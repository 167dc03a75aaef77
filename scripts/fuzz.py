"""Run hostile input through the package, by rule or guided by coverage.

    python scripts/fuzz.py header:100000 plan:20000     so many inputs of each target, in a child process each
    python scripts/fuzz.py all                          the numbers of docs/robustness.md
    python scripts/fuzz.py --seed 7 --first 500 tokenizer:100
    python scripts/fuzz.py --replay tokenizer:1:4711    make this input again, write it down, and show what happens
    python scripts/fuzz.py --coverage header --seconds 60   with atheris (pip install atheris), which is no dependency

An input is named by target, seed and index. A child that dies is named by the input it died of, and another goes on
behind it.
"""

import argparse
import json
import mmap
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

DEFAULT_COUNTS = {
    "header": 100_000,
    "expression": 30_000,
    "tokenizer": 25_000,
    "map": 12_000,
    "plan": 8_000,
    "plan-file": 8_000,
    "architectures": 4_000,
    "split": 4_000,
    "peer": 3_000,
    "checkpoint": 2_500,
    "dry-run": 2_000,
    "command": 2_000,
    "convert": 1_500,
    "resume": 600,
    "folder": 3_000,
    "real": 200,
}
SLICE = 20_000
"""Inputs of one child."""
ADDRESS_SPACE_NBYTES = 2 << 30
"""What a child may map on top of what its imports have."""
NEVER = 2**64 - 1
"""Number of the input before the first."""
WALL_LIMIT_S = 900
"""For a child: loops inside C code do not see the limit of CPU time."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help="TARGET or TARGET:COUNT; `all`")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--scratch", type=Path, help="where inputs are written; /dev/shm is quick")
    parser.add_argument("--replay", metavar="TARGET:SEED:INDEX")
    parser.add_argument("--coverage", metavar="TARGET")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return run_child(args.child[0], int(args.child[1]), int(args.child[2]), Path(args.child[3]), args.seed)
    if args.replay:
        return replay(args.replay)
    if args.coverage:
        from tests.fuzz.coverage import guided

        return guided(args.coverage, args.seconds)
    counts = dict(DEFAULT_COUNTS) if args.what == ["all"] else {}
    for word in args.what if not counts else ():
        name, _, number = word.partition(":")
        counts[name] = int(number or DEFAULT_COUNTS[name])
    faults = 0
    print("| target | inputs | accepted | refused | faults | inputs/s | slowest | memory |")
    print("|---|---|---|---|---|---|---|---|")
    for name, count in counts.items():
        faults += run_target(name, count, args.seed, args.first, args.scratch)
    return 1 if faults else 0


def run_target(name: str, count: int, seed: int, first: int, scratch: Path | None) -> int:
    """Run a target in children, print its row and its faults, and return their number."""
    outcomes: Counter[str] = Counter()
    places: dict[str, list[str]] = {}
    slowest = factor = 0.0
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        at, end = first, first + count
        while at < end:
            stop = min(at + SLICE, end)
            result, died_at, how = child(name, at, stop, seed, Path(folder))
            outcomes.update(result.get("outcomes", {}))
            slowest, factor = max(slowest, result.get("slowest_s", 0)), max(factor, result.get("largest_factor", 0))
            for fault in result.get("faults", []):
                places.setdefault(fault["place"], []).append(f"{name}:{seed}:{fault['index']}")
            if died_at is not None:
                outcomes["fault"] += 1
                places.setdefault(f"the process died: {how}", []).append(f"{name}:{seed}:{died_at}")
                stop = died_at + 1
            at = stop
    seconds = time.monotonic() - started
    total, bad = outcomes.total(), outcomes["fault"]
    refused = total - bad - outcomes["accepted"]
    print(
        f"| {name} | {total:,} | {outcomes['accepted']:,} | {refused:,} | {bad:,} | {total / seconds:,.0f} "
        f"| {slowest:.2f} s | {factor:.2f} |",
        flush=True,
    )
    for place, inputs in sorted(places.items(), key=lambda p: -len(p[1])):
        print(f"    {len(inputs):6} x {place}\n             {' '.join(inputs[:4])}", file=sys.stderr, flush=True)
    return bad


def child(name: str, first: int, stop: int, seed: int, folder: Path) -> tuple[dict[str, Any], int | None, str]:
    """(result, None, "") of a slice; or what is known of it, the input it died of, and how."""
    note = folder / "at"
    note.write_bytes(NEVER.to_bytes(8, "little"))
    command = [sys.executable, __file__, "--seed", str(seed), "--child", name, str(first), str(stop), str(folder)]
    try:
        # What a child that dies leaves of its temporary files goes with `folder`.
        environment = os.environ | {"TMPDIR": str(folder)}
        done = subprocess.run(command, capture_output=True, timeout=WALL_LIMIT_S, check=False, env=environment)
        how = f"exit code {done.returncode}: {done.stderr.decode(errors='replace')[-300:]!r}"
        code, out = done.returncode, done.stdout
    except subprocess.TimeoutExpired:
        how, code, out = f"more than {WALL_LIMIT_S} s", 1, b""
    if code == 0:
        return json.loads(out), None, ""
    died_at = int.from_bytes(note.read_bytes(), "little")
    if died_at == NEVER:
        raise SystemExit(f"{name} cannot be run at all: {done.stderr.decode(errors='replace') if code else how}")
    return {}, died_at, how


def run_child(name: str, first: int, stop: int, folder: Path, seed: int) -> int:
    """One slice in this process; the tally goes to standard output as JSON."""
    from tests.fuzz.harness import Tally, make_input, run_one, run_slice
    from tests.fuzz.targets import TARGETS

    target = TARGETS[name]
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    for index in range(3):  # imports and caches are nobody's fault
        run_one(target, make_input(target, 0, index), scratch, Tally())
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + ADDRESS_SPACE_NBYTES, resource.RLIM_INFINITY))
    with open(folder / "at", "r+b") as file, mmap.mmap(file.fileno(), 8) as at:

        def before(index: int) -> None:
            at[:] = index.to_bytes(8, "little")

        tally = run_slice(target, seed, range(first, stop), scratch, before=before)
    print(json.dumps(vars(tally) | {"faults": [asdict(fault) for fault in tally.faults]}))
    return 0


def replay(text: str) -> int:
    """Make one input again, keep its files, and run it without any net."""
    import faulthandler

    from tests.fuzz.harness import make_input, write_input
    from tests.fuzz.targets import TARGETS

    name, seed, index = text.split(":")
    files = make_input(TARGETS[name], int(seed), int(index))
    kept = Path(tempfile.mkdtemp(prefix="fuzz-"))
    write_input(files, kept)
    print(f"{sum(map(len, files.values())):,} bytes, written to {kept}")
    faulthandler.enable()
    with tempfile.TemporaryDirectory() as scratch:
        TARGETS[name].run(files, Path(scratch))
    print("accepted")
    return 0


if __name__ == "__main__":
    sys.exit(main())
