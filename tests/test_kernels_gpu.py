"""The Triton kernels without a GPU: run in the interpreter, compiled for a GPU, and the choice of a device."""

import os
import re
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import gguf2st
from gguf2st import kernels
from gguf2st.cli import main
from gguf2st.errors import UsageError
from gguf2st.kernels import device
from gguf2st.quants.layout import DECODABLE
from tests.make_gguf import tiny_model

ROOT = Path(__file__).resolve().parent.parent
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is there for Linux only")
HOPPER = ("cuda", 90, 32)


@needs_triton
@pytest.mark.parametrize("file", ["test_device.py", "test_packing.py"])
def test_in_the_interpreter(file: str) -> None:
    """tests/gpu in a process of its own: Triton looks at TRITON_INTERPRET once, when it is loaded."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"tests/gpu/{file}"]
    run = subprocess.run(
        command, env=env | {"TRITON_INTERPRET": "1"}, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout
    assert re.search(r"^\d{3,} passed in", run.stdout, re.MULTILINE), run.stdout
    assert "skipped" not in run.stdout


def compiled(kernel: Any, types: list[str], constants: list[Any]) -> str:
    """PTX of a kernel whose pointers are 16-byte aligned and whose last arguments are `constants`. Runs ptxas too."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from gguf2st.kernels.gpu import OPTIONS

    types = types + ["constexpr"] * len(constants)
    first = len(types) - len(constants)
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(types) if kind.startswith("*")}
    source = ASTSource(
        kernel,
        dict(zip(kernel.arg_names, types, strict=True)),
        {(first + i,): value for i, value in enumerate(constants)},
        aligned,
    )
    result = triton.compile(source, target=GPUTarget(*HOPPER), options=OPTIONS)
    assert result.asm["cubin"]
    return str(result.asm["ptx"])


POINTERS = {"float32": "*fp32", "bfloat16": "*i16", "float16": "*fp16"}
"""To values, and to scales."""
BLOCK_TYPES = sorted(DECODABLE - {"F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64"})


def of_type(qtype: str, dtype: str) -> str:
    from gguf2st.kernels import gpu
    from gguf2st.quants.codebooks import table

    body = gpu.BODIES[qtype]
    tables = ["*i8" if table(name).dtype == "int8" else "*fp32" for name in body.tables]
    return compiled(body.kernel, ["*u8", POINTERS[dtype], "i32", *tables], [gpu.tile_blocks(qtype, dtype)])


@needs_triton
@pytest.mark.parametrize("dtype", POINTERS)
@pytest.mark.parametrize("qtype", BLOCK_TYPES)
def test_compiles_to_exact_and_wide_code(qtype: str, dtype: str) -> None:
    ptx = of_type(qtype, dtype)
    assert "fma." not in ptx, "a product and a sum would round once, where ggml rounds twice"
    assert ".ftz" not in ptx, "subnormals would become zeros"
    assert "approx" not in ptx
    assert ".shared" not in ptx, "threads pass values to each other: see gpu_access"
    narrow = qtype.startswith("IQ3") and dtype != "float32"  # entries of 4 weights
    assert re.findall(r"st\.global\S*", ptx) == ["st.global.v2.b32" if narrow else "st.global.v4.b32"]
    if dtype != "float32":
        n, cast = (4, 2) if narrow else (8, 4), "bf16x2" if dtype == "bfloat16" else "f16x2"
        assert len(re.findall(rf"cvt\.rn\.{cast}\.f32", ptx)) == n[1] or ptx.count("cvt.rn.f16.f32") == n[0]


@needs_triton
@pytest.mark.parametrize(
    ("qtype", "loads"),
    [
        # blocks of 144 bytes: codes of 8 weights in one load, two float16, three bytes of scales
        ("Q4_K", {"v2.b32": 1, "b16": 2, "b8": 3}),
        ("Q5_K", {"v2.b32": 2, "b16": 2, "b8": 3}),
        # 34, 18 and 210: by 2 bytes
        ("Q8_0", {"b16": 5}),
        ("Q4_0", {"b16": 5}),
        ("Q6_K", {"b16": 9, "b8": 1}),
        # an entry of a grid and one of signs, 8 bytes each
        ("IQ2_XXS", {"v2.b32": 2, "b16": 3, "b8": 1}),
    ],
)
def test_loads_are_as_wide_as_blocks_allow_and_not_repeated(qtype: str, loads: dict[str, int]) -> None:
    found = re.findall(r"ld\.global\.(\S+)", of_type(qtype, "bfloat16"))
    assert {width: found.count(width) for width in found} == loads


@needs_triton
@pytest.mark.parametrize("dtype", POINTERS)
@pytest.mark.parametrize("stored", ["*fp32", "*fp16", "*u16", "*fp64", "*i8", "*i16", "*i32", "*i64"])
def test_plain_numbers_compile(stored: str, dtype: str) -> None:
    from gguf2st.kernels import gpu, gpu_bodies

    ptx = compiled(gpu_bodies.plain, [stored, POINTERS[dtype], "i32"], [gpu.ELEMENTS])
    assert ".ftz" not in ptx
    assert "st.global.v4.b32" in ptx or stored == "*i8"


@needs_triton
@pytest.mark.parametrize("bits", ["*i16", "*i32"])
def test_count_nonfinite_compiles(bits: str) -> None:
    from gguf2st.kernels import gpu, gpu_bodies

    ptx = compiled(gpu_bodies.count_masked, [bits, "*i64", "i32"], [0x7F80, gpu.ELEMENTS])
    assert "atom.global" in ptx
    assert "ld.global.v4.b32" in ptx


def require_exact(ptx: str) -> None:
    """No contraction, no flush of subnormals, no division or conversion that is only nearly right."""
    assert not re.search(r"\bfma\.|\bmad\.\S*f(32|64)|\.ftz|approx|div\.full", ptx)


@needs_triton
@pytest.mark.parametrize("dtype", POINTERS)
@pytest.mark.parametrize(("symmetric", "bits", "keep"), [(True, 8, 0.0), (True, 8, 2.0**-20), (False, 4, 0.0)])
def test_searches_compile_to_exact_code_in_registers(symmetric: bool, bits: int, keep: float, dtype: str) -> None:
    from gguf2st.kernels import gpu_pack, gpu_pack_bodies

    floats, byte = ["*fp32"] * 3, "*u8"
    types = [*floats, "*i32", POINTERS[dtype], byte, "*fp32", "*fp32", byte, "i32"]
    ptx = compiled(gpu_pack_bodies.searched, types, [17, keep, symmetric, bits, gpu_pack.THREADS])
    require_exact(ptx)
    assert "div.rn.f32" in ptx
    assert not re.search(r"\.shared|\.local|shfl", ptx), "a group is a thread's own"
    assert len(re.findall(r"ld\.global\.v4\.b32", ptx)) == 8, "32 weights"
    assert len(re.findall(r"st\.global\.v4\.b32", ptx)) == bits // 4
    if dtype != "float32":
        assert f"cvt.rn.{'bf16' if dtype == 'bfloat16' else 'f16'}.f32" in ptx


@needs_triton
@pytest.mark.parametrize("dtype", POINTERS)
@pytest.mark.parametrize(("block", "bits", "group"), [(32, 4, 32), (32, 8, 32), (256, 4, 128), (256, 8, 32)])
def test_codes_and_scales_compile_to_exact_code(block: int, bits: int, group: int, dtype: str) -> None:
    from gguf2st.kernels import gpu_pack, gpu_pack_bodies

    scales, threads = POINTERS[dtype], gpu_pack.THREADS
    ptx = compiled(
        gpu_pack_bodies.take_scales, ["*u8", scales, "*fp32", "*u8", "i32"], [18, 0, -1, block // group, threads]
    )
    require_exact(ptx)
    ptx = compiled(gpu_pack_bodies.code_words, ["*i16", "*i32", "i32"], [bits, threads])
    require_exact(ptx)
    assert re.findall(r"(?:ld|st)\.global\S*", ptx) == ["ld.global.v4.b32", f"st.global.{'v2.' * (bits == 8)}b32"]
    types = ["*i16", "*fp32", scales, "*fp64", "*fp64", "i32"]
    ptx = compiled(gpu_pack_bodies.scale_errors, types, [block, 32 * threads // block])
    require_exact(ptx)
    assert "mul.rn.f64" in ptx


@needs_triton
@pytest.mark.parametrize(("nbytes", "groups", "half", "e8m0"), [(17, 1, 16, True), (36, 4, 8, False)])
def test_fp4_compiles(nbytes: int, groups: int, half: int, e8m0: bool) -> None:
    from gguf2st.kernels import gpu_pack, gpu_pack_bodies

    tile = 16 * gpu_pack.THREADS // (groups * half)
    ptx = compiled(gpu_pack_bodies.fp4, ["*u8"] * 4 + ["i32"], [nbytes, groups, half, e8m0, tile])
    assert re.findall(r"st\.global\.v\S*", ptx)[0] == "st.global.v4.b32", "16 bytes of codes a thread"


@needs_triton
def test_the_installed_triton_is_new_enough() -> None:
    assert version("triton").startswith(".".join(map(str, device._triton_version())))
    assert device._triton_version() >= device.OLDEST_TRITON


@needs_triton
def test_there_is_a_kernel_for_every_type() -> None:
    from gguf2st.kernels import cpu, gpu

    assert gpu.QTYPES == cpu.QTYPES == DECODABLE


@pytest.mark.parametrize("module", ["gpu", "gpu_pack", "gpu_stream"])
def test_without_triton_the_kernels_say_so(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("gguf2st.kernels.gpu") or name == "triton"]:
        monkeypatch.delitem(sys.modules, name)
        monkeypatch.delattr(kernels, name.rpartition(".")[2], raising=False)
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(UsageError, match="needs Triton") as error:
        __import__(f"gguf2st.kernels.{module}")
    assert "pip install triton" in error.value.hint


def machine(
    monkeypatch: pytest.MonkeyPatch,
    *,
    devices: int = 1,
    triton: bool = True,
    version: tuple[int, ...] = (3, 7, 1),
    built: bool = True,
    works: bool = True,
    runs: bool = True,
) -> None:
    """Pretend: devices that the driver offers, and whether Triton is there, torch built for CUDA, and it all works. Not
    `runs`: Triton's first launch fails, as it does for lack of a C compiler.
    """
    monkeypatch.setattr(device, "_failing", lambda: None if runs else "Failed to find C compiler.")
    monkeypatch.setattr(device, "_cuda_devices", lambda: devices)
    monkeypatch.setattr(device, "find_spec", lambda name: object() if triton else None)
    monkeypatch.setattr(device, "_triton_version", lambda: version)
    monkeypatch.setattr(torch.version, "cuda", "13.0" if built else None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: works)


LACKS = [
    ({"triton": False}, "Triton is not installed"),
    ({"version": (3, 5, 1)}, "Triton 3.5.1 is older than 3.6"),
    ({"built": False}, "is built without CUDA"),
    ({"works": False}, "cannot use it"),
    ({"runs": False}, "Failed to find C compiler"),
]


@pytest.mark.parametrize(("lack", "reason"), LACKS)
def test_auto_falls_back_with_one_note(lack: dict[str, bool], reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, **lack)
    chosen, notes = device.choose("auto")
    assert chosen == "cpu"
    assert len(notes) == 1
    assert reason in notes[0]


def test_the_note_is_in_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, triton=False)
    report = gguf2st.convert(tiny_model(tmp_path / "m.gguf"), tmp_path / "out")
    assert [note for note in report.notes if "although there is a CUDA device: Triton is not installed" in note]


@pytest.mark.parametrize(("lack", "reason"), [*LACKS, ({"devices": 0}, "the NVIDIA driver finds no device")])
def test_cuda_names_what_is_missing(
    lack: dict[str, Any],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    machine(monkeypatch, **lack)
    source = tiny_model(tmp_path / "m.gguf")
    with pytest.raises(SystemExit) as ended:
        main(["convert", str(source), "-o", str(tmp_path / "out"), "--device", "cuda"])
    assert ended.value.code == (10 if "runs" in lack else 2), "what is installed and fails may work the next time"
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith("error: device cuda: ")
    assert reason in error
    assert "--device cpu" in hint
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("devices", [0, 1])
def test_auto_without_anything_missing(devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, devices=devices)
    assert device.choose("auto") == ("cuda" if devices else "cpu", ())
    assert device.choose("cpu") == ("cpu", ())
    assert device.choose("cuda") == ("cuda", ())


@needs_triton
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device that works")
def test_auto_takes_no_device_that_fails_in_its_first_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch fails here: it finds no device, or is built without CUDA."""
    trial = device._failing
    machine(monkeypatch)
    monkeypatch.setattr(device, "_failing", trial)
    chosen, (note,) = device.choose("auto")
    assert chosen == "cpu"
    assert re.search(r"although there is a CUDA device: (?!device).*(CUDA|NVIDIA)", note)
    assert "\n" not in note


def test_without_a_device_auto_loads_neither_torch_nor_triton() -> None:
    program = """
import sys
from gguf2st.kernels import device
device._cuda_devices() or print(device.choose("auto"), "torch" in sys.modules, "triton" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.split("\n")[0] in ("('cpu', ()) False False", "")
