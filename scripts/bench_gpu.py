"""Check and measure the GPU path on a CUDA device, in one run of a few minutes.

    python scripts/bench_gpu.py [FILE]

1. Every kernel against the torch reference decoders on the CPU, bit for bit, in every dtype.
2. Every kernel's time by CUDA events, and its bytes read and written per second beside a device-to-device copy.
3. A whole conversion on tmpfs, on the CPU and on the device, beside `cp` of the result.

Prints Markdown for BENCHMARKS.md, and writes it to FILE as well. Exit codes: 0 done, 1 a kernel is wrong, 2 no device.
"""

import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
CHECKED_BLOCKS = 5000
TIMED_ELEMENTS = 1 << 28
"""0.5 GB of bfloat16: ten times the cache of an H100."""
MODEL = {"layers": 12, "hidden": 2048, "heads": 16, "kv_heads": 8, "ffn": 6144, "qtype": "Q8_0"}
"""About 0.6 G parameters."""


def check(device: str, n_blocks: int = CHECKED_BLOCKS) -> list[str]:
    """What every kernel gets wrong; random bytes hold every code, and scales of every kind."""
    from gguf2st.kernels import gpu
    from gguf2st.quants.layout import TYPES
    from gguf2st.quants.reference import QUANTS

    wrong = []
    generator = torch.Generator().manual_seed(0)
    for qtype in sorted(gpu.QTYPES):
        kind = TYPES[qtype]
        blocks = torch.randint(0, 256, (n_blocks, kind.nbytes), generator=generator, dtype=torch.uint8)
        exact = QUANTS[qtype].dequantize(blocks)
        for name, dtype in DTYPES.items():
            bits = torch.int32 if name == "float32" else torch.int16
            out = torch.zeros(n_blocks, kind.block, dtype=bits, device=device)
            gpu.dequantize(qtype, name, blocks.to(device), out.view(torch.float32) if name == "float32" else out)
            got, wanted = out.cpu().view(dtype), exact.to(dtype)
            differ = (got.view(bits) != wanted.view(bits)) & ~(got.isnan() & wanted.isnan())
            if n := int(differ.sum()):
                wrong.append(f"{qtype} -> {name}: {n} of {differ.numel()} values differ from the torch reference")
            elements = out.view(torch.float32) if name == "float32" else out
            if int(gpu.count_nonfinite(name, elements)) != int((~wanted.isfinite()).sum()):
                wrong.append(f"{qtype} -> {name}: count_nonfinite is wrong")
    return wrong


def milliseconds(run: Callable[[], object], repeats: int = 20) -> float:
    """Median time of `run` on the device."""
    for _ in range(3):
        run()
    times = []
    for _ in range(repeats):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
    return statistics.median(times)


def copy_bandwidth(device: str, nbytes: int) -> float:
    """GB/s of a device-to-device copy, bytes read and bytes written both counted."""
    source, target = (torch.zeros(nbytes, dtype=torch.uint8, device=device) for _ in range(2))
    return 2 * nbytes / milliseconds(lambda: target.copy_(source)) / 1e6


def measure_kernels(device: str, elements: int = TIMED_ELEMENTS) -> str:
    """A row per type, to bfloat16."""
    from gguf2st.kernels import gpu
    from gguf2st.quants.layout import TYPES

    copy = copy_bandwidth(device, 4 * elements)
    lines = [
        f"Device-to-device copy: {copy:,.0f} GB/s, read and written. Output bfloat16, {elements:,} elements, "
        "median of 20.",
        "",
        "| type | Gelem/s | GB/s | of copy |",
        "|---|---|---|---|",
    ]
    out = torch.empty(elements, dtype=torch.int16, device=device)
    for qtype in (t for t in TYPES if t in gpu.QTYPES):
        kind = TYPES[qtype]
        n_blocks = elements // kind.block
        blocks = torch.randint(0, 256, (n_blocks, kind.nbytes), dtype=torch.uint8, device=device)
        values = out.view(n_blocks, kind.block)
        took = milliseconds(lambda q=qtype, b=blocks, v=values: gpu.dequantize(q, "bfloat16", b, v))
        rate = (blocks.nbytes + values.nbytes) / took / 1e6
        lines.append(f"| {qtype} | {elements / took / 1e6:,.0f} | {rate:,.0f} | {rate / copy:.0%} |")
        del blocks
    took = milliseconds(lambda: gpu.count_nonfinite("bfloat16", out))
    lines.append(f"| (count_nonfinite) | {elements / took / 1e6:,.0f} | {out.nbytes / took / 1e6:,.0f} | |")
    return "\n".join(lines)


def seconds(run: Callable[[], object], repeats: int = 3) -> float:
    """Median wall time of `run`, after one call that compiles what it needs."""
    run()
    times = []
    for _ in range(repeats):
        start = time.monotonic()
        run()
        times.append(time.monotonic() - start)
    return statistics.median(times)


def measure_conversion(devices: tuple[str, ...]) -> str:
    """Whole conversions of a made-up model beside `cp -r` of the result, all in memory."""
    import gguf2st
    from tests.make_gguf import tiny_model

    lines = ["| | s | of `cp` | output GB/s |", "|---|---|---|---|"]
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None) as temporary:
        folder = Path(temporary)
        source, out, copy = tiny_model(folder / "m.gguf", **MODEL), folder / "out", folder / "copy"
        gguf2st.convert(source, out, device="cpu")
        nbytes = sum(path.stat().st_size for path in out.iterdir())
        reference = {path.name: path.read_bytes() for path in out.glob("*.safetensors")}

        def copied() -> None:
            shutil.rmtree(copy, ignore_errors=True)
            subprocess.run(["cp", "-r", out, copy], check=True)

        plain = seconds(copied)
        lines.append(f"| `cp -r` of the result | {plain:.2f} | 1.0 | {nbytes / plain / 1e9:.1f} |")
        for device in devices:
            took = seconds(lambda d=device: gguf2st.convert(source, out, device=d, overwrite=True))
            if {path.name: path.read_bytes() for path in out.glob("*.safetensors")} != reference:
                sys.exit(f"convert --device {device} wrote other bytes than --device cpu")
            lines.append(f"| convert --device {device} | {took:.2f} | {took / plain:.1f} | {nbytes / took / 1e9:.1f} |")
    return "\n".join(lines)


def main() -> None:
    if not torch.cuda.is_available():
        print(f"bench_gpu needs a CUDA device, and torch {torch.__version__} finds none", file=sys.stderr)
        sys.exit(2)
    import triton

    properties = torch.cuda.get_device_properties(0)
    parts = [
        f"{properties.name} ({properties.total_memory / 2**30:.0f} GiB, {properties.multi_processor_count} SMs), "
        f"torch {torch.__version__}, Triton {triton.__version__}, Python {platform.python_version()}."
    ]
    wrong = check("cuda")
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        sys.exit(1)
    parts.append("All kernels give the bits of the torch reference in bfloat16, float16 and float32.")
    parts.append(measure_kernels("cuda"))
    parts.append(measure_conversion(("cpu", "cuda")))
    text = "\n\n".join(parts) + "\n"
    print(text)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
