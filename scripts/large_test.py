"""Long and large: models of any size, many tensors, many experts, many models, many conversions in one process.

    python scripts/large_test.py sparse               40 GB of source, streamed to a Hub that forgets: peak memory
    python scripts/large_test.py sparse --gb 4
    python scripts/large_test.py tensors experts      50,000 tensors; 512 experts
    python scripts/large_test.py batch --entries 1000
    python scripts/large_test.py repeat --times 200
    python scripts/large_test.py bits --bits 1000     flipped bits that `verify --against` must find
    python scripts/large_test.py plans                a plan file of 1 TB, and a shard of it
    python scripts/large_test.py shares               the work of one process shared by two

The figures of docs/operations.md and docs/scale-out.md are its lines. Peak memory is that of a process which a small
one started: Linux counts what a parent had in memory too.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests import hub_routes  # noqa: E402
from tests.hub_server import HubServer  # noqa: E402
from tests.large_models import sparse_model  # noqa: E402
from tests.make_gguf import tiny_llama  # noqa: E402

LAUNCHER = """
import json, os, sys, time
start = time.monotonic()
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, usage = os.wait4(pid, 0)
facts = [os.waitstatus_to_exitcode(status), time.monotonic() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss]
print(json.dumps(facts), file=sys.stderr)
"""


def measured(what: str, *arguments: object, environment: dict[str, str] | None = None) -> str:
    """Run gguf2st and print what it took; its standard output."""
    command = [sys.executable, "-I", "-S", "-c", LAUNCHER, sys.executable, "-m", "gguf2st", *map(str, arguments)]
    done = subprocess.run(
        command, env=os.environ | (environment or {}), cwd=ROOT, capture_output=True, text=True, check=True
    )
    code, wall_s, cpu_s, peak = json.loads(done.stderr.splitlines()[-1])
    print(f"| {what} | {wall_s:.1f} | {cpu_s:.1f} | {peak / 1024:.0f} |", flush=True)
    if code:
        sys.exit(f"{what}: exit {code}: {done.stderr}")
    return done.stdout


def header() -> None:
    print("| what | wall s | CPU s | peak MiB |\n|---|---|---|---|")


def forget(handler: Any, oid: str) -> None:
    """Take an uploaded file, and keep nothing of it but its name and size."""
    nbytes = 0

    def count(piece: bytes) -> None:
        nonlocal nbytes
        nbytes += len(piece)

    if handler.receive(count) != oid:
        raise hub_routes._error(400, "", "the content does not have the announced sha256")
    blob = handler.hub.store.blob(oid)
    blob.touch()
    os.truncate(blob, nbytes)
    handler.answer(b"", headers={"ETag": f'"{oid[:32]}"'})


def sparse(folder: Path, gb: float) -> None:
    """A model with the shapes of a 70B llama, as many layers as the size asks for, in three ways."""
    layers = max(1, round(gb / 0.909))
    shapes = {"hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 28672}
    source = sparse_model(folder / "sparse.gguf", layers=layers, **shapes)
    size = f"{source.stat().st_size / 1e9:.1f} GB of Q8_0"
    measured(f"{size}: plan (`--dry-run`)", "convert", source, "-o", folder / "out", "--dry-run", "-q")
    hub_routes.ROUTES[:] = [(m, p, forget if r is hub_routes.put_whole else r) for m, p, r in hub_routes.ROUTES]
    with HubServer(folder / "hub") as hub:
        environment = hub.environment(folder)
        for repack in ("none", "near"):
            repo = f"tester/{repack}"
            options = ["--max-shard-size", "2GB", "--repack", repack, "--push", repo, "--no-keep", "--json", "-"]
            text = measured(
                f"{size}: convert --repack {repack} --push --no-keep",
                *("convert", source, "-o", folder / "out", *options),
                environment=environment,
            )
            report = json.loads(text)
            files = hub.store.repos[repo].refs["main"].files.values()
            sent = sum(file.nbytes for file in files)
            written = report["output_nbytes"] / 1e9
            print(f"    {written:.1f} GB in {len(report['shards'])} shards, {sent / 1e9:.1f} GB sent", flush=True)


def tensors(folder: Path) -> None:
    """5,555 layers of 9 tensors."""
    source = sparse_model(folder / "many.gguf", layers=5555)
    _plan_convert_verify(folder, source, "49,997 tensors")


def experts(folder: Path) -> None:
    """512 experts in each of 32 layers: as many tensors in the checkpoint as 3 matrices of each expert make."""
    source = sparse_model(folder / "experts.gguf", arch="qwen3moe", layers=32, experts=512)
    _plan_convert_verify(folder, source, "512 experts in 32 layers")


def _plan_convert_verify(folder: Path, source: Path, what: str) -> None:
    out = folder / "out"
    measured(f"{what}: check", "check", source)
    measured(f"{what}: plan (`--dry-run`)", "convert", source, "-o", out, "--dry-run", "-q")
    report = json.loads(measured(f"{what}: convert", "convert", source, "-o", out, "--json", "-"))
    measured(f"{what}: verify", "verify", out)
    measured(f"{what}: verify --against", "verify", out, "--against", source)
    subprocess.run(["rm", "-r", out], check=True)
    packed = json.loads(
        measured(f"{what}: convert --repack near", "convert", source, "-o", out, "--repack", "near", "--json", "-")
    )
    measured(f"{what}: verify --against, packed", "verify", out, "--against", source)
    print(f"    {report['tensors']:,} tensors written, {packed['output_nbytes'] / 1e6:.0f} MB packed")


def plans(folder: Path) -> None:
    """A mixture of experts of 1 TB: its plan, and one of its shards."""
    shapes = {"hidden": 7168, "heads": 56, "kv_heads": 8, "ffn": 2048, "experts": 256}
    source, plan = sparse_model(folder / "moe.gguf", arch="qwen3moe", layers=83, **shapes), folder / "moe.plan"
    what = f"{source.stat().st_size / 1e12:.2f} TB of Q8_0 in experts"
    options = ["-o", folder / "moe", "--max-shard-size", "1GB", "--write", plan, "--json"]
    report = json.loads(measured(f"{what}: plan --write", "plan", source, *options))
    shards = len(report["shards"])
    measured(f"{what}: convert --plan --shard 7/{shards}", "convert", "--plan", plan, "--shard", f"7/{shards}")
    print(
        f"    {report['tensors']:,} tensors in {shards:,} shards; the plan file has {plan.stat().st_size / 1e6:.0f} MB"
    )
    subprocess.run(["rm", "-r", folder / "moe.partial", source, plan], check=True)


def shares(folder: Path) -> None:
    """1 GB by one process, and by two at once, each with one thread; the best of three, in turns."""
    shapes = {"hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336}
    source, plan = sparse_model(folder / "dense.gguf", qtype="Q4_K", layers=8, **shapes), folder / "dense.plan"
    options = ["-o", folder / "dense", "--repack", "near", "--max-shard-size", "100MB", "--write", plan, "--json"]
    command = [sys.executable, "-m", "gguf2st", "convert", "--plan", plan, "--threads", "1", "-q"]
    walls: dict[int, list[float]] = {1: [], 2: []}
    cpus: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(3):
        for workers in walls:
            subprocess.run([sys.executable, "-m", "gguf2st", "plan", source, *options], check=True, capture_output=True)
            started = time.monotonic()
            numbers = range(1, workers + 1)
            processes = [subprocess.Popen([*command, "--shard", f"{n}/{workers}"], cwd=ROOT) for n in numbers]
            ends = [os.wait4(process.pid, 0) for process in processes]
            walls[workers].append(time.monotonic() - started)
            cpus[workers].append(max(usage.ru_utime + usage.ru_stime for _, _, usage in ends))
            if any(status for _, status, _ in ends):
                sys.exit("a share failed")
            subprocess.run(["rm", "-r", folder / "dense.partial"], check=True)
    print(
        f"{source.stat().st_size / 1e9:.1f} GB of Q4_K, --repack near, one thread each; load {os.getloadavg()[0]:.1f}"
    )
    for what, found in (("wall", walls), ("CPU of the busiest process", cpus)):
        one, two = min(found[1]), min(found[2])
        print(f"  {what}: 1 process {one:.1f} s, 2 processes {two:.1f} s: {one / two:.2f} times as fast")


def batch(folder: Path, entries: int) -> None:
    """Models that differ in their weights; one of a hundred is cut off, and fails."""
    (folder / "models").mkdir()
    rows = []
    for number in range(entries):
        source = tiny_llama(folder / "models" / f"m{number}.gguf", layers=1, seed=number)
        if number % 100 == 50:
            os.truncate(source, 5000)
        rows.append(f'[[model]]\nsrc = "models/m{number}.gguf"\n')
    (folder / "models.toml").write_text('[defaults]\noutput = "out/{name}"\n' + "".join(rows))
    bad = len(range(50, entries, 100))
    started = time.monotonic()
    command = [sys.executable, "-I", "-S", "-c", LAUNCHER, sys.executable, "-m", "gguf2st", "batch"]
    done = subprocess.run(
        [*command, folder / "models.toml", "--jobs", "2", "--json", folder / "results.json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    code, wall_s, _, peak = json.loads(done.stderr.splitlines()[-1])
    counts = json.loads((folder / "results.json").read_text())["counts"]
    whole = sum((path / "config.json").is_file() for path in (folder / "out").iterdir())
    print(
        f"batch of {entries}: {wall_s:.0f} s, {wall_s / entries:.2f} s a model, peak {peak / 1024:.0f} MiB (largest "
        f"process), exit {code}, {counts}, {whole} checkpoints; {time.monotonic() - started:.0f} s"
    )
    if (code, whole) != (9 if bad else 0, entries - bad):
        sys.exit("not as expected")


def repeat(folder: Path, times: int) -> None:
    """Conversions in one process through the Python API, from two threads, with failures among them."""
    code = "import sys; from tests.growth import main; main(sys.argv[1], int(sys.argv[2]))"
    done = subprocess.run(
        [sys.executable, "-c", code, folder, str(times)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    print(done.stdout, done.stderr, end="")
    if done.returncode:
        sys.exit("something grew")


def bits(folder: Path, count: int) -> None:
    """Flip bits anywhere in the shards of converted models; all must be found."""
    import random

    import gguf2st
    from gguf2st.errors import VerifyError
    from tests.test_determinism import REPACKS, SHARD_NBYTES, small

    source = small(folder / "m.gguf")
    for repack in REPACKS:
        out = folder / repack
        gguf2st.convert(source, out, repack=repack, max_shard_size=SHARD_NBYTES)
        shards, rng, found = sorted(out.glob("*.safetensors")), random.Random(1), 0
        for _ in range(count):
            path = rng.choice(shards)
            bit = rng.randrange(8 * path.stat().st_size)
            whole = path.read_bytes()
            changed = bytearray(whole)
            changed[bit // 8] ^= 1 << bit % 8
            path.write_bytes(changed)
            try:
                found += not gguf2st.verify(out, source).ok
            except VerifyError:
                found += 1
            path.write_bytes(whole)
        print(f"--repack {repack}: {found} of {count} flipped bits found", flush=True)
        if found < count:
            sys.exit("bits changed unseen")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "what", nargs="+", choices=["sparse", "tensors", "experts", "plans", "shares", "batch", "repeat", "bits"]
    )
    parser.add_argument("--gb", type=float, default=40.0)
    parser.add_argument("--entries", type=int, default=1000)
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--bits", type=int, default=1000)
    parser.add_argument("--scratch", type=Path, help="a folder to work in; /dev/shm by default, where there is one")
    given = parser.parse_args()
    runs: dict[str, Callable[[Path], None]] = {
        "sparse": lambda folder: sparse(folder, given.gb),
        "tensors": tensors,
        "experts": experts,
        "plans": plans,
        "shares": shares,
        "batch": lambda folder: batch(folder, given.entries),
        "repeat": lambda folder: repeat(folder, given.times),
        "bits": lambda folder: bits(folder, given.bits),
    }
    scratch = given.scratch or (Path("/dev/shm") if Path("/dev/shm").is_dir() else None)
    if {"sparse", "tensors", "experts", "plans"} & set(given.what):
        header()
    for what in given.what:
        with tempfile.TemporaryDirectory(prefix="large-", dir=scratch) as name:
            runs[what](Path(name))


if __name__ == "__main__":
    main()
