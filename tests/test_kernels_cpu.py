"""The numba kernels against ggml's C decoders, bit for bit, in every output dtype."""

import errno
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from llvmlite.binding import get_host_cpu_features
from numba.core.caching import IndexDataCacheFile

import gguf2st
from gguf2st.errors import SchemeError
from gguf2st.kernels import cpu, cpu_cache
from gguf2st.quants.layout import TYPES
from tests.oracle import ggml
from tests.oracle.blocks import KINDS, make

QTYPES = sorted(cpu.QTYPES)
NAN_HALVES = np.array([0x7C01, 0x7E00, 0x7FFF, 0xFC01, 0xFE00, 0xFFFF], "<u2")
NAN_SINGLES = np.array([0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFF800001, 0xFFC00000, 0xFFFFFFFF], "<u4")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def empty(qtype: str, dtype: str, n_blocks: int) -> np.ndarray:
    return np.full((n_blocks, TYPES[qtype].block), 77, np.float32 if dtype == "float32" else np.uint16)


def with_nan_scales(qtype: str) -> np.ndarray:
    """Random blocks whose scales, one field after the other, are NaNs with few, many and all bits of payload."""
    blocks = [make(qtype, "random")[:1]]
    start = 0
    for field in TYPES[qtype].fields:
        nans = {(2, 2): NAN_HALVES, (4, 4): NAN_SINGLES}.get((field.nbytes, field.itemsize))
        if nans is not None and field.name != "qh":
            changed = make(qtype, "random")[: len(nans)]
            changed[:, start : start + field.nbytes] = nans.view(np.uint8).reshape(len(nans), -1)
            blocks.append(changed)
        start += field.nbytes
    return np.concatenate(blocks)


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("qtype", QTYPES)
def test_dequantize_matches_ggml(qtype: str, dtype: str) -> None:
    for blocks in [*(make(qtype, kind) for kind in KINDS), with_nan_scales(qtype)]:
        wanted = torch.from_numpy(ggml.expected(qtype, TYPES[qtype].id, blocks)).to(DTYPES[dtype])
        out = empty(qtype, dtype, len(blocks))
        cpu.dequantize(qtype, dtype, blocks, out)
        nan = wanted.isnan().numpy()
        bits = wanted.view(torch.int32 if dtype == "float32" else torch.int16).numpy()
        np.testing.assert_array_equal(out.view(bits.dtype)[~nan], bits[~nan])
        assert torch.from_numpy(out.view(bits.dtype)).view(DTYPES[dtype])[torch.from_numpy(nan)].isnan().all()


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_every_rounding_of_float32(dtype: str) -> None:
    """All sign and exponent patterns with mantissas on, above and below the ties of both 16-bit dtypes."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    lower = np.array([0, 1, 0x0FFF, 0x1000, 0x1001, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xF000, 0xFFFF], np.uint32)
    x = (upper[:, None] | lower).reshape(-1, 1).view(np.float32)
    out = empty("F32", dtype, len(x))
    cpu.dequantize("F32", dtype, x.view(np.uint8), out)
    assert_rounded(dtype, x, out)


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_vectors_round_like_single_numbers(dtype: str) -> None:
    """A block of Q8_K whose codes are all 1 is its scale, a float32, many times over."""
    upper = np.arange(0, 1 << 16, 7, dtype=np.uint32) << 16
    lower = np.array([0, 1, 0x1000, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    x = (upper[:, None] | lower).reshape(-1, 1)
    blocks = np.ones((len(x), TYPES["Q8_K"].nbytes), np.uint8)
    blocks[:, :4] = x.view(np.uint8)
    out = empty("Q8_K", dtype, len(x))
    cpu.dequantize("Q8_K", dtype, blocks, out)
    assert (out == out[:, :1]).all() or dtype == "float32"  # NaNs of float32 differ from themselves
    assert_rounded(dtype, x.view(np.float32), np.ascontiguousarray(out[:, :1]))


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_vectors_in_which_only_some_values_are_subnormal(dtype: str) -> None:
    """A block of Q8_K with all codes and a scale about as small as float32 goes, or as large."""
    scales = (np.arange(1, 1 << 9, dtype=np.uint32) << 18 | 0x1FFFF).view(np.float32)
    codes = np.arange(-128, 128, dtype=np.int8)
    blocks = np.zeros((len(scales), TYPES["Q8_K"].nbytes), np.uint8)
    blocks[:, :4] = scales[:, None].view(np.uint8)
    blocks[:, 4:260] = codes.view(np.uint8)
    out = empty("Q8_K", dtype, len(scales))
    cpu.dequantize("Q8_K", dtype, blocks, out)
    products = scales[:, None] * codes.astype(np.float32)
    tiny = np.float32(2.0**-126)
    assert ((abs(products) < tiny) & (products != 0)).any(1).sum() > 10
    assert_rounded(dtype, products, out)


def assert_rounded(dtype: str, x: np.ndarray, out: np.ndarray) -> None:
    wanted = torch.from_numpy(x).to(DTYPES[dtype])
    got = torch.from_numpy(out.view(np.float32 if dtype == "float32" else np.int16)).view(DTYPES[dtype])
    bits = torch.int32 if dtype == "float32" else torch.int16
    assert torch.equal(got.isnan(), wanted.isnan())
    assert torch.equal(got.view(bits)[~wanted.isnan()], wanted.view(bits)[~wanted.isnan()])


V3 = "+avx,+avx2,+bmi,+bmi2,+cx16,+f16c,+fma,+lzcnt,+movbe,+popcnt,+sse3,+sse4.1,+sse4.2,+ssse3"
PROCESSORS = {
    "x86-64": "",
    "x86-64-v3": V3,
    "x86-64-v4": f"{V3},+avx512bw,+avx512cd,+avx512dq,+avx512f,+avx512vl",
}
"""Processors without byte shuffles and float16, without AVX-512, and without its bfloat16; LLVM's names for what they
have."""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="compiles for several x86-64 processors")
@pytest.mark.parametrize("processor", PROCESSORS)
def test_every_kernel_on_lesser_processors(processor: str) -> None:
    """Their code runs here, too: the comparison with ggml once more, in a process that compiles for them."""
    here = get_host_cpu_features()
    if missing := [f for f in PROCESSORS[processor].split(",") if f and not here[f.removeprefix("+")]]:
        pytest.skip(f"this processor lacks {', '.join(missing)}")
    chosen = "test_dequantize_matches_ggml and bfloat16 or test_vectors"
    command = [sys.executable, "-m", "pytest", __file__, "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", chosen]
    env = os.environ | {"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": PROCESSORS[processor]}
    run = subprocess.run(command, env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-2000:]
    assert f"{len(QTYPES) + 2 * len(DTYPES)} passed" in run.stdout


@pytest.mark.parametrize("n_blocks", [0, 1, 3])
def test_few_blocks_of_a_read_only_file(n_blocks: int) -> None:
    blocks = make("Q6_K", "quantized")[:n_blocks]
    blocks.flags.writeable = False  # as a memory map is
    out = empty("Q6_K", "float32", n_blocks)
    cpu.dequantize("Q6_K", "float32", blocks, out)
    np.testing.assert_array_equal(out, ggml.expected("Q6_K", TYPES["Q6_K"].id, blocks))


@pytest.mark.parametrize(
    ("dtype", "blocks", "out", "complaint"),
    [
        ("float64", (4, 18), np.empty((4, 32)), "no kernel writes 'float64'"),
        ("float32", (4, 20), np.empty((4, 32), np.float32), r"blocks is uint8 \(4, 20\)"),
        ("float32", (4, 18), np.empty((3, 32), np.float32), r"out is float32 \(3, 32\)"),
        ("float32", (4, 18), np.empty((4, 32), np.float64), "out is float64"),
        ("bfloat16", (4, 18), np.empty((4, 32), np.float32), "out is float32"),
        ("float32", (4, 18), np.empty((4, 64), np.float32)[:, ::2], "C-contiguous"),
    ],
)
def test_dequantize_refuses(dtype: str, blocks: tuple[int, int], out: np.ndarray, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        cpu.dequantize("Q4_0", dtype, np.zeros(blocks, np.uint8), out)


def test_unknown_type_names_the_known_ones() -> None:
    with pytest.raises(SchemeError, match=r"'Q9_Z'.*Q4_K"):
        cpu.dequantize("Q9_Z", "float32", np.zeros((1, 1), np.uint8), np.zeros((1, 1), np.float32))


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("size", [0, 1, 2047, 2048, 10_000])
def test_count_nonfinite(dtype: str, size: int) -> None:
    rng = np.random.default_rng(size)
    x = torch.from_numpy(rng.standard_normal(size).astype(np.float32))
    x[torch.from_numpy(rng.random(size) < 0.01)] = float("inf")
    x[torch.from_numpy(rng.random(size) < 0.01)] = float("-inf")
    x[torch.from_numpy(rng.random(size) < 0.01)] = float("nan")
    x = x.to(DTYPES[dtype])
    bits = x.numpy() if dtype == "float32" else x.view(torch.int16).numpy().view(np.uint16)
    assert cpu.count_nonfinite(dtype, bits) == int((~x.isfinite()).sum())
    assert cpu.count_nonfinite(dtype, np.zeros_like(bits)) == 0


def test_count_nonfinite_refuses_another_element_type() -> None:
    with pytest.raises(ValueError, match="out is float32"):
        cpu.count_nonfinite("bfloat16", np.zeros(4, np.float32))


CALL = """
import numpy as np
from pathlib import Path
import gguf2st
from gguf2st.kernels import cpu
out = np.zeros((2, 32), np.uint16)
cpu.dequantize("Q8_0", "bfloat16", np.full((2, 34), 60, np.uint8), out)
print(Path(gguf2st.__file__).parent, out.min(), out.max())
"""


@pytest.mark.parametrize("writable", [True, False])
def test_kernels_work_without_a_cache_folder(tmp_path: Path, writable: bool) -> None:
    package = shutil.copytree(
        Path(gguf2st.__file__).parent, tmp_path / "gguf2st", ignore=shutil.ignore_patterns("__pycache__")
    )
    kept = package / "kernels" / "__pycache__"
    if not writable:
        kept.touch()  # a file, so that no folder can be made there or below
    env = os.environ | {
        "PYTHONPATH": str(tmp_path),
        "HOME": str(kept),
        "XDG_CACHE_HOME": str(kept),
        "NUMBA_CACHE_DIR": "",
    }
    run = subprocess.run(
        [sys.executable, "-c", CALL], env=env, cwd=tmp_path, check=True, capture_output=True, text=True
    )
    # 60 * float16 0x3C3C = 63.52, whose nearest bfloat16 is 63.5 = 0x427E
    assert run.stdout.split() == [str(package), str(0x427E), str(0x427E)]
    assert kept.is_file() != writable
    assert bool(list(package.rglob("*.nbi"))) == writable


def test_a_full_cache_disk_does_not_stop_a_conversion(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(IndexDataCacheFile, "load", lambda *args: None)
    monkeypatch.setattr(IndexDataCacheFile, "save", full)
    cpu_cache._on_disk.cache_clear()
    blocks = make("Q5_1", "quantized")
    out = empty("Q5_1", "float32", len(blocks))
    cpu.dequantize("Q5_1", "float32", blocks, out)
    np.testing.assert_array_equal(out, ggml.expected("Q5_1", TYPES["Q5_1"].id, blocks))
