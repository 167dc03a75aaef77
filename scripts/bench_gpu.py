"""Check and measure the GPU path on a CUDA device, in one run of a few minutes.

    python scripts/bench_gpu.py [FILE]

1. Every kernel that decodes against the torch reference on the CPU, and every one that packs against the CPU's, bit for
   bit, in every dtype.
2. Every decoder's time by CUDA events, and its bytes read and written per second beside a device-to-device copy; the
   time of packing in each format.
3. Whole conversions on tmpfs, dense and packed, on the CPU and on the device, beside `cp` of the result.

Prints Markdown for BENCHMARKS.md, and writes it to FILE as well. Exit codes: 0 done, 1 a kernel is wrong, 2 no device.
"""

import math
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
CHECKED_BLOCKS = 5000
TIMED_ELEMENTS = 1 << 28
"""0.5 GB of bfloat16: ten times the cache of an H100."""
MODEL = {"layers": 12, "hidden": 2048, "heads": 16, "kv_heads": 8, "ffn": 6144}
"""About 0.6 G parameters."""
CONVERTED = [("Q8_0", "none"), ("Q8_0", "exact"), ("Q4_1", "near")]
"""Type and mode of the models that are converted whole."""


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


def check_packing(device: str, n_blocks: int = CHECKED_BLOCKS // 5) -> list[str]:
    """Which types and formats come out otherwise than on the CPU; of random bytes, the rows that can be packed."""
    from gguf2st.kernels.gpu_stream import Lanes
    from gguf2st.quants.layout import TYPES
    from gguf2st.schemes import SCHEMES, targets

    wrong, lanes, rng = [], Lanes(device), np.random.default_rng(0)
    pairs = [(qtype, name) for qtype in TYPES for name in targets("int4", qtype)] + [("MXFP4", "gpt_oss_mxfp4")]
    for (qtype, name), dtype in product(pairs, DTYPES):
        kind, scheme = TYPES[qtype], SCHEMES[name]
        per_row = math.lcm(kind.block, scheme.column_step) // kind.block
        rows = rng.integers(0, 256, (n_blocks // per_row, per_row, kind.nbytes), dtype=np.uint8)
        rows = rows[[not scheme.pack(qtype, row, 1, dtype).bad for row in rows]]
        blocks = rows.reshape(-1, kind.nbytes)
        (found,) = lanes.pack(scheme, qtype, dtype, blocks, [(len(blocks), len(rows))])
        wanted = scheme.pack(qtype, blocks, len(rows), dtype)
        unequal = [s for s, part in wanted.parts.items() if not np.array_equal(found.parts[s], part)]
        if unequal or (found.error, found.power, found.bad) != (wanted.error, wanted.power, wanted.bad):
            parts = ", ".join(unequal) or "the loss"
            wrong.append(f"{qtype} -> {name} with {dtype} scales: not the CPU's {parts}")
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


PACKED = [
    ("Q4_0", "int4_g32"),
    ("TQ2_0", "int4_g128"),
    ("Q8_0", "int8_g32"),
    ("Q4_K", "int8_g32"),
    ("IQ4_XS", "int8_g32"),
    ("Q4_K", "int4_asym_g32"),
    ("MXFP4", "mxfp4"),
    ("NVFP4", "nvfp4"),
]
"""Every way to pack: exact ones, searches, with and without scales that are known, and FP4."""


def measure_packing(device: str, elements: int = TIMED_ELEMENTS) -> str:
    """A row per way to pack, of blocks that are on the device, with float16 scales."""
    from gguf2st.kernels import gpu_pack
    from gguf2st.quants.layout import TYPES
    from gguf2st.schemes import SCHEMES

    lines = [
        f"Decoding and packing {elements:,} weights on the device, median of 20.",
        "",
        "| type | format | Gweights/s |",
        "|---|---|---|",
    ]
    for qtype, name in PACKED:
        kind, packer = TYPES[qtype], gpu_pack.packer(SCHEMES[name], qtype, "float16")
        n_blocks = elements // kind.block
        buffers = {n: torch.zeros(n_blocks, e, dtype=t, device=device) for n, (t, e) in packer.memory.items()}
        buffers["blocks"] = torch.randint(0, 256, (n_blocks, kind.nbytes), dtype=torch.uint8, device=device)
        took = milliseconds(lambda p=packer, b=buffers: p.launch(b))
        lines.append(f"| {qtype} | {name} | {elements / took / 1e6:,.1f} |")
        del buffers
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
    """Whole conversions of made-up models beside `cp -r` of the result, all in memory."""
    lines = ["| | s | of `cp` | output GB/s |", "|---|---|---|---|"]
    for qtype, repack in CONVERTED:
        lines += conversion_rows(devices, qtype, repack)
    return "\n".join(lines)


def conversion_rows(devices: tuple[str, ...], qtype: str, repack: str) -> list[str]:
    """A row for `cp`, and one for each device."""
    import gguf2st
    from tests.make_gguf import tiny_model

    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None) as temporary:
        folder = Path(temporary)
        source, out, copy = tiny_model(folder / "m.gguf", qtype=qtype, **MODEL), folder / "out", folder / "copy"
        gguf2st.convert(source, out, device="cpu", repack=repack)
        nbytes = sum(path.stat().st_size for path in out.iterdir())
        reference = {path.name: path.read_bytes() for path in out.iterdir()}

        def copied() -> None:
            shutil.rmtree(copy, ignore_errors=True)
            subprocess.run(["cp", "-r", out, copy], check=True)

        plain = seconds(copied)
        what = f"{qtype}, --repack {repack}"
        lines = [f"| {what}: `cp -r` of the result | {plain:.2f} | 1.0 | {nbytes / plain / 1e9:.1f} |"]
        for device in devices:
            took = seconds(lambda d=device: gguf2st.convert(source, out, device=d, repack=repack, overwrite=True))
            if {path.name: path.read_bytes() for path in out.iterdir()} != reference:
                sys.exit(f"{what}: convert --device {device} wrote other bytes than --device cpu")
            rates = f"{took:.2f} | {took / plain:.1f} | {nbytes / took / 1e9:.1f}"
            lines.append(f"| {what}: convert --device {device} | {rates} |")
        return lines


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
    wrong = check("cuda") + check_packing("cuda")
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        sys.exit(1)
    parts.append("All kernels give the bits of the torch reference, or the CPU's, in bfloat16, float16 and float32.")
    parts.append(measure_kernels("cuda"))
    parts.append(measure_packing("cuda"))
    parts.append(measure_conversion(("cpu", "cuda")))
    text = "\n\n".join(parts) + "\n"
    print(text)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
