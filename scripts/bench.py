"""Measure conversion and decoding against peers in one run, and write the tables of BENCHMARKS.md.

    python scripts/bench.py                 everything
    python scripts/bench.py convert         whole processes: gguf2st beside transformers
    python scripts/bench.py large           a model of 1.1 billion weights: gguf2st beside `cp` of the output's bytes
    python scripts/bench.py kernels         decoders: numba and torch beside gguf-py, ggml's C code and a plain copy

CPU seconds and peak memory come from wait4 of each child; ratios within one run are what counts, since machines differ
and are shared.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
TABLES = ROOT / "BENCHMARKS.md"
MODELS = {
    "SmolLM2-135M Q4_1": ROOT / ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf",
    "gemma3-270m Q4_K_M": ROOT / ".cache/models/gemma-3-270m-q4_k_m.gguf",
}
PEER = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
folder, file, out = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(
    folder, gguf_file=file, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True))
model.save_pretrained(out)
AutoTokenizer.from_pretrained(folder, gguf_file=file).save_pretrained(out)
"""
BATCH = 1 << 20
"""Values that `gguf2st convert` decodes to bfloat16 at a time, in memory that it uses again for the next ones."""
BATCHES = 32
RUNS = 15
ROW_ELEMENTS = 4096
FASTER = 20
"""Aim: numba to gguf-py, one core each."""
SCALING = 1.7
"""Aim: two threads to one."""


@dataclass(frozen=True)
class Cost:
    """What one process used."""

    cpu_s: float
    wall_s: float
    rss_mib: float


def cost_of(command: list[str | Path], **environment: str) -> Cost:
    start = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=os.environ | environment)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"{command} ended with {child.returncode}")
    return Cost(usage.ru_utime + usage.ru_stime, time.monotonic() - start, usage.ru_maxrss / 1024)


def bench_convert(runs: int = 3) -> str:
    """gguf2st (first run ever, and with compiled kernels cached) beside transformers, and `cp` of the result."""
    lines = [
        "| model | tool | CPU s | wall s | peak RSS MiB | CPU ratio | RSS ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None) as temporary:
        out = Path(temporary) / "out"
        for name, path in MODELS.items():
            cache = Path(temporary) / "cache"
            shutil.rmtree(cache, ignore_errors=True)
            ours = [sys.executable, "-m", "gguf2st", "convert", path, "-o", out, "-q"]
            peer = [sys.executable, "-c", PEER, path.parent, path.name, out]

            def run(command: list[str | Path], **environment: str) -> Cost:
                shutil.rmtree(out, ignore_errors=True)
                return cost_of(command, **environment)

            first = run(ours, NUMBA_CACHE_DIR=str(cache))
            later = [run(ours, NUMBA_CACHE_DIR=str(cache)) for _ in range(runs)]
            copy = [cost_of(["cp", "-r", out, Path(temporary) / f"copy{n}"]) for n in range(runs)]
            for n in range(runs):
                shutil.rmtree(Path(temporary) / f"copy{n}")
            theirs = [run(peer, HF_HUB_OFFLINE="1") for _ in range(runs)]
            reference = _median(theirs)
            for tool, cost in (
                ("gguf2st, first run (compiles kernels)", first),
                ("gguf2st", _median(later)),
                ("transformers", reference),
                ("`cp -r` of the result", _median(copy)),
            ):
                ratios = (
                    f"1/{reference.cpu_s / cost.cpu_s:.1f} | 1/{reference.rss_mib / cost.rss_mib:.1f}"
                    if "gguf2st" in tool
                    else "1 | 1"
                    if tool == "transformers"
                    else " | "
                )
                lines.append(
                    f"| {name} | {tool} | {cost.cpu_s:.1f} | {cost.wall_s:.1f} | {cost.rss_mib:.0f} | {ratios} |"
                )
            shutil.rmtree(out, ignore_errors=True)
    return "\n".join(lines) + "\n"


def bench_large(runs: int = 3) -> str:
    """A model large enough for start-up to matter little, on tmpfs: wall time beside `cp` of the output's bytes."""
    lines = [
        "| source | output | gguf2st, wall s | of that start-up | `cp -r` of the result, wall s | ratio less start-up "
        "| peak RSS MiB |",
        "|---|---|---|---|---|---|---|",
    ]
    shm = Path("/dev/shm")
    for qtype in ("Q4_K", "Q8_0", "F16"):
        with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None) as temporary:
            source, out, copy = (Path(temporary) / name for name in ("large.gguf", "out", "copy"))

            def run(command: list[str | Path], target: Path) -> Cost:
                shutil.rmtree(target, ignore_errors=True)
                return cost_of(command)

            ours = [sys.executable, "-m", "gguf2st", "convert", source, "-o", out, "-q"]
            _make_llama(source, qtype, layers=1, hidden=256, ffn=256)
            start = min(run(ours, out).wall_s for _ in range(runs + 1))
            _make_llama(source, qtype, layers=16, hidden=2048, heads=32, kv_heads=8, ffn=8192, vocab=32000)
            cost = min((run(ours, out) for _ in range(runs)), key=lambda c: c.wall_s)
            plain = min(run(["cp", "-r", out, copy], copy).wall_s for _ in range(runs))
            nbytes = sum(f.stat().st_size for f in out.iterdir())
            lines.append(
                f"| {qtype}, {source.stat().st_size / 1e9:.2f} GB | {nbytes / 1e9:.2f} GB | {cost.wall_s:.2f} | "
                f"{start:.2f} | {plain:.2f} | {(cost.wall_s - start) / plain:.2f} | {cost.rss_mib:.0f} |"
            )
    return "\n".join(lines) + "\n"


def _make_llama(path: Path, qtype: str, **sizes: int) -> None:
    """A random model, made in a process of its own: a child's peak memory counts from that of its parent."""
    program = f"from tests.make_gguf import tiny_llama; tiny_llama({str(path)!r}, qtype={qtype!r}, **{sizes!r})"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def _median(costs: list[Cost]) -> Cost:
    return sorted(costs, key=lambda c: c.cpu_s)[len(costs) // 2]


def bench_kernels() -> str:
    """Melem/s to bfloat16 per ggml type, one thread and two, beside the peers."""
    import gguf
    import torch

    from gguf2st.execute import CHUNK_NBYTES
    from gguf2st.kernels import cpu
    from gguf2st.quants.layout import TYPES
    from gguf2st.quants.reference import QUANTS

    sys.path.insert(0, str(ROOT))
    from tests.oracle import ggml

    assert CHUNK_NBYTES == 2 * BATCH
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", RuntimeWarning)  # random scales are NaN or infinite here and there
    rng = np.random.default_rng(0)
    outs = [np.empty(BATCH, np.uint16) for _ in range(2)]
    floats = np.empty(BATCH, np.float32)
    copying = [partial(np.copyto, out, out.copy()) for out in outs]
    copy, copies = _rate(copying[0]), _rate(*copying)
    speeds = []
    lines = [
        "| type | numba | of copy | 2 threads | torch reference | gguf-py | ggml C (float32) | numba / gguf-py |",
        "|---|---|---|---|---|---|---|---|",
        f"| a plain copy of the output | {copy:,.0f} | 100% | {copies / copy:.2f}x | - | - | - | - |",
    ]
    for qtype in (t for t in TYPES if t in cpu.QTYPES and t not in ("I8", "I16", "I32", "I64")):
        kind = TYPES[qtype]
        blocks = rng.integers(0, 256, (BATCH // kind.block, kind.nbytes), dtype=np.uint8)
        decoding = [
            partial(cpu.dequantize, qtype, "bfloat16", each, out.reshape(-1, kind.block))
            for each, out in zip((blocks, blocks.copy()), outs, strict=True)
        ]
        numba, both = _rate(decoding[0]), _rate(*decoding)
        tensor = torch.from_numpy(blocks)
        reference = _rate(lambda q=qtype, t=tensor: QUANTS[q].dequantize(t).to(torch.bfloat16), batches=4)
        try:
            gguf_type = gguf.GGMLQuantizationType[qtype]
            rows = blocks.reshape(-1, ROW_ELEMENTS // kind.block * kind.nbytes)  # as tensors have them
            gguf.quants.dequantize(rows[:1], gguf_type)
            call = partial(gguf.quants.dequantize, rows, gguf_type)
            python = 0.0 if qtype == "F32" else _rate(call, batches=4)
        except (KeyError, NotImplementedError):  # gguf-py does not name the type, or does not decode it
            python = 0.0
        has_c = kind.block > 1 and qtype != "Q8_1"  # plain types are casts, and ggml has no decoder for Q8_1
        c = _rate(partial(ggml.to_float, kind.id, blocks, floats.reshape(-1, kind.block))) if has_c else 0.0
        speeds.append(Speed(qtype, numba, both / numba, python))
        lines.append(
            f"| {qtype} | {numba:,.0f} | {numba / copy:.0%} | {both / numba:.2f}x | {reference:,.0f} | "
            f"{_or_none(python)} | {_or_none(c)} | {f'{numba / python:.0f}x' if python else '-'} |"
        )
    return (
        f"2^{BATCH.bit_length() - 1} elements at a time, median of {RUNS}, Melem/s of one thread.\n\n"
        f"{aims(speeds, copy, copies)}\n" + "\n".join(lines) + "\n"
    )


@dataclass(frozen=True)
class Speed:
    """What was measured of a type."""

    qtype: str
    one: float
    """Melem/s of one thread."""
    gain: float
    """Two threads to one."""
    python: float
    """Melem/s of gguf-py, 0 where it does not decode the type."""


def aims(speeds: list[Speed], copy: float, copies: float) -> str:
    """Which types reach FASTER times gguf-py, and SCALING times one thread with two.

    Args:
        speeds: of every type.
        copy: Melem/s of a copy of the output by one thread.
        copies: the same by two threads.
    """
    known = [s for s in speeds if s.python]
    slow = [s for s in known if s.one < FASTER * s.python]
    flat = [s for s in speeds if s.gain < SCALING]
    ratios = [f"{s.qtype} {s.one / s.python:.1f}x ({copy / s.python:.1f}x)" for s in slow]
    gains = [f"{s.qtype} {s.gain:.2f}x" for s in flat]
    return (
        f"Aim: {FASTER} times gguf-py on one core. {len(known) - len(slow)} of {len(known)} types that it decodes "
        "reach it.\n"
        f"The others, in brackets what a plain copy of the output makes: {_list(ratios)}.\n\n"
        f"Aim: {SCALING} times one thread with two. {len(speeds) - len(flat)} of {len(speeds)} types reach it; a copy "
        f"makes {copies / copy:.2f}x.\n"
        f"The others: {_list(gains)}.\n"
    )


def _list(items: list[str]) -> str:
    return ", ".join(items) or "none"


def _rate(*calls: Callable[[], object], batches: int = BATCHES) -> float:
    """Melem/s of all `calls` together, each of BATCH elements and, but for the first, in a thread of its own.

    One alone is not: gguf-py, which allocates anew each time, takes four times as long outside the main thread.
    """

    def work(call: Callable[[], object]) -> float:
        ends = []
        for _ in range(RUNS + 1):
            for _ in range(batches):
                call()
            ends.append(time.perf_counter())
        return batches * BATCH / float(np.median(np.diff(ends)))

    first, *others = calls
    with ThreadPoolExecutor(len(calls)) as pool:
        rates = pool.map(work, others)
        return (work(first) + sum(rates)) / 1e6


def _or_none(rate: float) -> str:
    return f"{rate:,.0f}" if rate else "-"


def machine() -> str:
    model = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    name = model[1] if model else platform.processor()
    return (
        f"{time.strftime('%Y-%m-%d')}, {name}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}, "
        f"Python {platform.python_version()}.\n"
    )


SECTIONS = {"convert": bench_convert, "large": bench_large, "kernels": bench_kernels}


def main() -> None:
    wanted = sys.argv[1:] or list(SECTIONS)
    if unknown := set(wanted) - SECTIONS.keys():
        sys.exit(f"unknown section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    text = TABLES.read_text(encoding="utf-8")
    for section in wanted:
        table = f"{machine()}\n{SECTIONS[section]()}"
        print(table, flush=True)
        text = re.sub(
            rf"(<!-- measured: {section} -->\n).*?(<!-- end -->)",
            lambda m, table=table: m[1] + table + m[2],
            text,
            flags=re.DOTALL,
        )
    TABLES.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
