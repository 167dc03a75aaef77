"""The Triton kernels and the batches that go through them, against ggml's C decoders and the CPU path, bit for bit.

On a CUDA device, or in Triton's interpreter where TRITON_INTERPRET=1 is set before Triton is loaded:
tests/test_kernels_gpu.py runs this file that way.
"""

import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

import gguf2st
from gguf2st.errors import DeviceError, SchemeError, SourceError
from gguf2st.kernels import device, gpu
from gguf2st.kernels.gpu_stream import LANES, Lanes
from gguf2st.quants.layout import TYPES
from tests.make_gguf import tiny_model
from tests.oracle import ggml
from tests.oracle.blocks import KINDS, make

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not INTERPRETED and not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:(invalid value|overflow):RuntimeWarning"),  # numpy's, from the interpreter
]
QTYPES = sorted(gpu.QTYPES)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def bits_of(dtype: str) -> torch.dtype:
    return torch.float32 if dtype == "float32" else torch.int16


def sample(qtype: str, kind: str, dtype: str) -> np.ndarray:
    """In the interpreter, which is slow, some blocks: fewer of the large types, and of dtypes that only round more.

    The steps meet both columns of 22 scales in turn; what rounding does is `test_every_rounding_of_float32`'s.
    """
    large = TYPES[qtype].block > 64
    step = (3 if large else 1) if dtype == "float32" else (13 if large else 5)
    return make(qtype, kind)[:: step if INTERPRETED else 1]


def on_device(blocks: np.ndarray) -> Tensor:
    return torch.from_numpy(blocks.copy()).to(DEVICE)


def assert_same(got: Tensor, wanted: Tensor) -> None:
    """Equal bits, signs of zeros included; NaN where NaN."""
    bits = torch.int32 if wanted.dtype == torch.float32 else torch.int16
    nan = wanted.isnan()
    assert torch.equal(got.isnan(), nan)
    assert torch.equal(got.view(bits)[~nan], wanted.view(bits)[~nan])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("qtype", QTYPES)
def test_dequantize_matches_ggml(qtype: str, dtype: str) -> None:
    for kind in KINDS:
        blocks = sample(qtype, kind, dtype)
        wanted = torch.from_numpy(ggml.expected(qtype, TYPES[qtype].id, blocks)).to(DTYPES[dtype])
        out = torch.full(wanted.shape, 77, dtype=bits_of(dtype), device=DEVICE)
        gpu.dequantize(qtype, dtype, on_device(blocks), out)
        assert_same(out.cpu().view(DTYPES[dtype]), wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_rounding_of_float32(dtype: str) -> None:
    """All sign and exponent patterns with mantissas on, above and below the ties of both 16-bit dtypes.

    As float64, since float32 to float32 is a copy.
    """
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    lower = np.array([0, 1, 0x0FFF, 0x1000, 0x1001, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xF000, 0xFFFF], np.uint32)
    x = (upper[:, None] | lower).reshape(-1, 1).view(np.float32)
    out = torch.empty(x.shape, dtype=bits_of(dtype), device=DEVICE)
    gpu.dequantize("F64", dtype, on_device(x.astype(np.float64).view(np.uint8)), out)
    assert_same(out.cpu().view(DTYPES[dtype]), torch.from_numpy(x).to(DTYPES[dtype]))


@pytest.mark.parametrize("qtype", ["F16", "Q8_0", "Q6_K", "IQ3_S"])
@pytest.mark.parametrize("n_blocks", [0, 1, 3, 65])
def test_odd_numbers_of_blocks_write_nothing_past_the_end(qtype: str, n_blocks: int) -> None:
    blocks, block = make(qtype, "quantized"), TYPES[qtype].block
    blocks = np.concatenate([blocks, blocks])[:n_blocks]
    memory = torch.full((n_blocks + 100, block), 77.0, device=DEVICE)
    gpu.dequantize(qtype, "float32", on_device(blocks), memory[:n_blocks])
    assert_same(memory[:n_blocks].cpu(), torch.from_numpy(ggml.expected(qtype, TYPES[qtype].id, blocks)))
    assert (memory[n_blocks:] == 77).all()


@pytest.mark.parametrize(
    ("dtype", "blocks", "out", "complaint"),
    [
        ("float64", torch.zeros(4, 18, dtype=torch.uint8), torch.zeros(4, 32), "no kernel writes 'float64'"),
        ("float32", torch.zeros(4, 20, dtype=torch.uint8), torch.zeros(4, 32), r"blocks is torch.uint8 \(4, 20\)"),
        ("float32", torch.zeros(4, 18, dtype=torch.int8), torch.zeros(4, 32), r"blocks is torch.int8"),
        ("float32", torch.zeros(73, dtype=torch.uint8)[1:].view(4, 18), torch.zeros(4, 32), "16-byte aligned"),
        ("float32", torch.zeros(4, 18, dtype=torch.uint8), torch.zeros(3, 32), r"out is torch.float32 \(3, 32\)"),
        ("bfloat16", torch.zeros(4, 18, dtype=torch.uint8), torch.zeros(4, 32), "out is torch.float32"),
        ("float32", torch.zeros(4, 18, dtype=torch.uint8), torch.zeros(4, 64)[:, ::2], "contiguous"),
    ],
)
def test_dequantize_refuses(dtype: str, blocks: Tensor, out: Tensor, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        gpu.dequantize("Q4_0", dtype, blocks, out)


def test_unknown_type_names_the_known_ones() -> None:
    with pytest.raises(SchemeError, match=r"'Q9_Z'.*Q4_K"):
        gpu.dequantize("Q9_Z", "float32", torch.zeros(1, 1, dtype=torch.uint8), torch.zeros(1, 1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [0, 1, 2047, 2048, 10_000])
def test_count_nonfinite(dtype: str, size: int) -> None:
    rng = np.random.default_rng(size)
    x = torch.from_numpy(rng.standard_normal(size).astype(np.float32))
    for value in (float("inf"), float("-inf"), float("nan")):
        x[torch.from_numpy(rng.random(size) < 0.01)] = value
    x = x.to(DTYPES[dtype])
    bits = x.view(bits_of(dtype)).to(DEVICE)
    assert int(gpu.count_nonfinite(dtype, bits)) == int((~x.isfinite()).sum())
    assert int(gpu.count_nonfinite(dtype, torch.zeros_like(bits))) == 0


def test_count_nonfinite_refuses_another_element_type() -> None:
    with pytest.raises(ValueError, match=r"out is torch\.float32"):
        gpu.count_nonfinite("bfloat16", torch.zeros(4))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("parts", [1, 3])
def test_lanes_decode_batches_of_any_size_from_many_threads(dtype: str, parts: int) -> None:
    """Twice as many threads as lanes, each with batches of its own types, in lanes that hold a part of a batch."""
    lanes = Lanes(DEVICE, device_nbytes=LANES * (256 + (144 + 256 * 4) * -(-48 // parts)))
    failed: list[BaseException] = []

    def work(qtype: str) -> None:
        try:
            blocks = lanes.empty(48 * TYPES[qtype].nbytes).reshape(48, -1)
            np.copyto(blocks, make(qtype, "quantized")[:48])
            wanted = torch.from_numpy(ggml.expected(qtype, TYPES[qtype].id, blocks)).to(DTYPES[dtype])
            out = np.full(wanted.shape, 77, np.float32 if dtype == "float32" else np.uint16)
            bad = lanes.decode(qtype, dtype, blocks, out)
            assert bad == int((~wanted.isfinite()).sum())
            assert_same(
                torch.from_numpy(out.view(np.float32 if dtype == "float32" else np.int16)).view(wanted.dtype), wanted
            )
        except BaseException as err:
            failed.append(err)

    threads = [threading.Thread(target=work, args=(t,)) for t in ("F16", "Q8_0", "Q4_0", "Q4_K", "MXFP4", "Q5_1")]
    for thread in [*threads]:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed[0]
    assert lanes.decode("Q4_K", dtype, lanes.empty(0).reshape(0, 144), np.empty((0, 256), np.uint16)) == 0


def test_a_kernel_that_is_wrong_is_noticed_in_its_first_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever compiled it; the kernels beside it still work, and it is not trusted later."""
    lanes, right = Lanes(DEVICE, device_nbytes=1 << 20), gpu.dequantize
    blocks = make("Q8_0", "quantized")[:48]
    out = np.empty((48, 32), np.uint16)

    def wrong(qtype: str, dtype: str, blocks: Tensor, out: Tensor) -> None:
        right(qtype, dtype, blocks, out)
        if qtype == "Q8_0":
            out[47, 31] ^= 1

    monkeypatch.setattr(gpu, "dequantize", wrong)
    for _ in range(2):
        with pytest.raises(DeviceError, match=f"device {DEVICE}: Q8_0 -> bfloat16 comes out otherwise than on the CPU"):
            lanes.decode("Q8_0", "bfloat16", blocks, out)
    lanes.decode("Q4_0", "bfloat16", make("Q4_0", "quantized")[:48], out)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            RuntimeError("CUDA error: unspecified launch failure\nCUDA kernel errors might be"),
            "unspecified launch failure$",
        ),
        (PermissionError(13, "Permission denied", "/home/x/.triton"), r"/home/x/\.triton: Permission denied \(Triton"),
        (
            subprocess.CalledProcessError(1, ["gcc", "x.c"]),
            r"the C compiler that Triton calls failed \(Python's headers",
        ),
        (AssertionError(), "AssertionError$"),
    ],
)
def test_a_device_that_fails_is_one_line_and_holds_nobody_up(
    error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes, blocks, out = Lanes(DEVICE, device_nbytes=1 << 20), make("Q8_0", "quantized")[:48], np.empty((48, 32))

    def fail(*arguments: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(gpu, "dequantize", fail)
        for _ in range(LANES + 1):
            with pytest.raises(DeviceError, match=reason) as failed:
                lanes.decode("Q8_0", "float32", blocks, out.astype(np.float32))
            assert "--device cpu" in failed.value.hint
            assert failed.value.exit_code == 10
    lanes.decode("Q8_0", "float32", blocks, out.astype(np.float32))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_lanes_say_so_in_a_line() -> None:
    with pytest.raises(DeviceError, match=r"^device cuda: .*(CUDA|NVIDIA)") as error:
        Lanes("cuda")
    assert "\n" not in error.value.message


class Watched(Lanes):
    """Notes how many blocks each call gets."""

    def __init__(self, batch_nbytes: int) -> None:
        super().__init__(DEVICE, device_nbytes=16 << 20, batch_nbytes=batch_nbytes)
        self.calls: list[int] = []

    def decode(self, qtype: str, dtype: str, blocks: Any, out: Any) -> int:
        self.calls.append(len(blocks))
        return super().decode(qtype, dtype, blocks, out)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize(
    ("qtype", "dtype"), [("Q8_0", "bfloat16"), ("Q8_0", "float16"), ("Q8_0", "float32"), ("F16", "bfloat16")]
)
def test_conversion_gives_the_same_files(
    qtype: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries with reordered rows, experts, norms and biases; many calls for a tensor, and many tensors for a call."""
    source = tiny_model(tmp_path / "m.gguf", "qwen3moe", layers=1, qtype=qtype)
    gguf2st.convert(source, tmp_path / "cpu", dtype=dtype, device="cpu")
    calls = []
    for batch_nbytes in (3000, 1 << 20):
        backend = Watched(batch_nbytes)
        monkeypatch.setattr(device, "decoder", lambda name, chosen=backend: chosen)
        out = tmp_path / f"{batch_nbytes}"
        gguf2st.convert(source, out, dtype=dtype, device="cpu", threads=3)
        assert files_of(out) == files_of(tmp_path / "cpu")
        calls.append(len(backend.calls))
    n_tensors = len(gguf2st.make_plan(source).entries)
    assert calls[1] < n_tensors / 2 < calls[0]


def test_a_device_that_dies_in_mid_run_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit code is a machine's failure, and the same command goes on with the shards that are missing."""
    source = tiny_model(tmp_path / "m.gguf", "llama", layers=3, qtype="Q8_0")
    how = {"device": "cpu", "threads": 1, "max_shard_size": 20_000}
    gguf2st.convert(source, tmp_path / "cpu", **how)
    alive, calls = gpu.dequantize, []

    def dying(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) > 40:
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be")
        alive(*arguments)

    monkeypatch.setattr(device, "decoder", lambda name: Lanes(DEVICE, device_nbytes=16 << 20, batch_nbytes=3000))
    with monkeypatch.context() as patch:
        patch.setattr(gpu, "dequantize", dying)
        with pytest.raises(DeviceError, match=r"CUDA error: an illegal memory access was encountered$") as failed:
            gguf2st.convert(source, tmp_path / "out", **how)
    assert failed.value.exit_code == 10
    assert not (tmp_path / "out").exists()
    kept = list((tmp_path / "out.partial").glob("*.safetensors"))
    assert 0 < len(kept) < len(list((tmp_path / "cpu").glob("*.safetensors")))
    gguf2st.convert(source, tmp_path / "out", **how)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "cpu")


def test_damaged_weights_are_named_whatever_shares_their_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tiny_model(tmp_path / "m.gguf", "llama", layers=3, qtype="Q8_0")
    damaged = gguf2st.open_gguf(source).sources["blk.1.ffn_up.weight"]
    with open(source, "r+b") as file:
        file.seek(damaged.offset)
        file.write(b"\x00\x7e")  # the first scale is NaN
    messages = []
    for backend in (device.decoder("cpu"), Watched(1 << 20)):
        monkeypatch.setattr(device, "decoder", lambda name, chosen=backend: chosen)
        with pytest.raises(SourceError, match=r"blk\.1\.ffn_up\.weight \(Q8_0\) has at least 32 weights") as error:
            gguf2st.convert(source, tmp_path / "out", device="cpu")
        messages.append(error.value.message)
    assert messages[0] == messages[1]
