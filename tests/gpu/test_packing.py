"""The Triton kernels that pack, and the batches that go through them, against the numba kernels: the same bytes, losses
and complaints. tests/test_schemes.py compares those with ggml and compressed-tensors.

On a CUDA device, or in Triton's interpreter, as test_device.py.
"""

import math
import os
import re
import threading
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

import gguf2st
from gguf2st import execute
from gguf2st.errors import DeviceError, SchemeError, SourceError
from gguf2st.kernels import device, gpu_pack_bodies
from gguf2st.kernels.gpu_stream import LANES, Lanes
from gguf2st.quants.layout import TYPES
from gguf2st.schemes import SCHEMES, Packed, is_exact, targets
from tests.make_gguf import tiny_model
from tests.oracle.blocks import KINDS, make

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not INTERPRETED and not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:(invalid|overflow|divide by zero|All-NaN):RuntimeWarning"),  # the interpreter's
]
PAIRS = [(qtype, scheme) for qtype in TYPES for scheme in targets("int4", qtype)] + [("MXFP4", "gpt_oss_mxfp4")]
CASES = [(qtype, scheme, dtype) for qtype, scheme in PAIRS for dtype in ("float16", "bfloat16")]
CASES += [("Q8_0", "int8_g32", "float32"), ("Q4_K", "int8_g32", "float32"), ("Q4_K", "int4_asym_g32", "float32")]
"""`convert` writes no float32 scales; `verify` packs again with those that it finds."""


@pytest.fixture(scope="module")
def lanes() -> Lanes:
    return Lanes(DEVICE, device_nbytes=64 << 20)


def rows_of(qtype: str, scheme: str) -> np.ndarray:
    """(rows, blocks of a row, nbytes): random bytes, scales of every kind, and what ggml's quantizers write.

    In the interpreter, which is slow, some of them; the steps meet both columns of 22 scales in turn.
    """
    step = (23 if TYPES[qtype].block > 64 else 3) if INTERPRETED and "fp4" not in scheme else 1
    blocks = np.concatenate([make(qtype, kind)[::step] for kind in KINDS])
    per_row = math.lcm(TYPES[qtype].block, SCHEMES[scheme].column_step) // TYPES[qtype].block
    return blocks[: len(blocks) // per_row * per_row].reshape(-1, per_row, TYPES[qtype].nbytes)


def assert_same(found: Packed, wanted: Packed) -> None:
    """Equal to the last bit, and to the last digit of what is lost; of weights that cannot be packed only how many."""
    assert found.bad == wanted.bad
    assert found.parts.keys() == wanted.parts.keys()
    if not wanted.bad:
        for suffix, part in wanted.parts.items():
            np.testing.assert_array_equal(found.parts[suffix], part, err_msg=suffix)
        assert (found.error, found.power) == (wanted.error, wanted.power)


@pytest.mark.parametrize(("qtype", "scheme", "dtype"), CASES)
def test_a_device_packs_the_same_bytes(qtype: str, scheme: str, dtype: str, lanes: Lanes) -> None:
    """Two weights in a batch: one that can be packed, and one whose rows are NaN, infinite, or beyond the scales."""
    target = SCHEMES[scheme]
    rows = rows_of(qtype, scheme)
    broken = np.array([target.pack(qtype, row, 1, dtype).bad > 0 for row in rows])
    weights = [rows[~broken], rows[broken]] if broken.any() else [rows]
    batch = np.concatenate([w.reshape(-1, TYPES[qtype].nbytes) for w in weights])
    runs = [(w.shape[0] * w.shape[1], len(w)) for w in weights]
    before = batch.copy()
    found = lanes.pack(target, qtype, dtype, batch, runs)
    np.testing.assert_array_equal(batch, before)
    for weight, packed in zip(weights, found, strict=True):
        assert_same(packed, target.pack(qtype, weight.reshape(-1, TYPES[qtype].nbytes), len(weight), dtype))
    assert len(weights[0]) > 9
    assert found[0].bad == 0
    assert found[0].power > 0 or is_exact(qtype, scheme, dtype)


@pytest.mark.parametrize("parts", [1, 3])
def test_batches_of_any_size_from_many_threads(parts: int) -> None:
    """More threads than lanes, each with a type and scheme of its own, in lanes that hold a part of a batch."""
    lanes = Lanes(DEVICE, device_nbytes=LANES * (8 * 256 + (144 + 256 * 4 + 350) * -(-48 // parts)))
    failed: list[BaseException] = []

    def work(qtype: str, scheme: str, dtype: str) -> None:
        try:
            target = SCHEMES[scheme]
            blocks = lanes.empty(48 * TYPES[qtype].nbytes).reshape(48, -1)
            np.copyto(blocks, make(qtype, "quantized")[:48])
            found = lanes.pack(target, qtype, dtype, blocks, [(16, 8), (8, 1), (24, 24)])
            for packed, (at, n_blocks, n_rows) in zip(found, [(0, 16, 8), (16, 8, 1), (24, 24, 24)], strict=True):
                assert_same(packed, target.pack(qtype, blocks[at : at + n_blocks], n_rows, dtype))
        except BaseException as err:
            failed.append(err)

    cases = [
        ("Q4_0", "int4_g32", "float16"),
        ("Q8_0", "int8_g32", "bfloat16"),
        ("Q4_K", "int8_g32", "float16"),
        ("Q4_K", "int4_asym_g32", "float16"),
        ("Q4_0", "int4_asym_g32", "float16"),
        ("IQ4_XS", "int8_g32", "bfloat16"),
        ("TQ1_0", "int4_g128", "float16"),
        ("MXFP4", "mxfp4", "bfloat16"),
        ("NVFP4", "nvfp4", "float16"),
    ]
    threads = [threading.Thread(target=work, args=case) for case in cases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed[0]


def test_what_is_no_target_or_no_rows_is_refused(lanes: Lanes) -> None:
    with pytest.raises(SchemeError, match="Q6_K cannot become int4_g32"):
        lanes.pack(SCHEMES["int4_g32"], "Q6_K", "float16", np.zeros((4, 210), np.uint8), [(4, 2)])
    with pytest.raises(SchemeError, match="MXFP4 cannot become nvfp4"):
        lanes.pack(SCHEMES["nvfp4"], "MXFP4", "float16", np.zeros((4, 17), np.uint8), [(4, 2)])
    with pytest.raises(ValueError, match="expected C-contiguous uint8"):
        lanes.pack(SCHEMES["int4_g32"], "Q4_0", "float16", np.zeros((4, 18), np.uint8), [(4, 3)])


def test_a_kernel_that_is_wrong_is_noticed_in_its_first_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here: one that leaves what was in memory before."""
    lanes = Lanes(DEVICE, device_nbytes=1 << 20)
    monkeypatch.setattr(gpu_pack_bodies, "code_words", defaultdict(lambda: lambda *arguments, **options: None))
    scheme, blocks = SCHEMES["int8_g32"], make("Q5_0", "quantized")[:8]
    lanes.pack(scheme, "Q4_1", "float16", make("Q4_1", "quantized")[:8], [(8, 8)])  # another kernel writes its codes
    with pytest.raises(DeviceError, match=f"device {DEVICE}: Q5_0 -> int8_g32 -> float16 comes out otherwise"):
        lanes.pack(scheme, "Q5_0", "float16", blocks, [(8, 8)])


class Watched(Lanes):
    """Notes of how many weights, or pieces of them, each call packs rows."""

    def __init__(self, batch_nbytes: int) -> None:
        super().__init__(DEVICE, device_nbytes=16 << 20, batch_nbytes=batch_nbytes)
        self.packed: list[int] = []
        self.decoded: Counter[str] = Counter()

    def pack(self, scheme: Any, qtype: str, dtype: str, blocks: Any, runs: Any) -> list[Packed]:
        self.packed.append(len(runs))
        return super().pack(scheme, qtype, dtype, blocks, runs)

    def decode(self, qtype: str, dtype: str, blocks: Any, out: Any) -> int:
        self.decoded[qtype] += 1
        return super().decode(qtype, dtype, blocks, out)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


SMALL = {"layers": 1, "hidden": 64, "heads": 2, "kv_heads": 1, "ffn": 128, "expert_ffn": 64}


def mixed(name: str) -> str:
    """In one format nevertheless, since vLLM loads q, k and v as one."""
    return "Q5_0" if "attn_v" in name else "Q5_1"


@pytest.mark.parametrize(
    ("arch", "qtype", "mode"),
    [
        ("llama", "Q4_0", "exact"),  # q and k with their rows in another order
        ("gemma3", "Q8_0", "exact"),
        ("llama", mixed, "near"),
        ("llama", "Q4_1", "int4"),
        ("qwen3moe", "Q4_1", "near"),  # experts
        ("qwen3", "MXFP4", "exact"),
        ("qwen3", "NVFP4", "exact"),
    ],
)
def test_conversion_gives_the_same_files(
    arch: str, qtype: Any, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, and the losses in gguf2st.json: with many calls for a weight, and with many weights for a call."""
    source = tiny_model(tmp_path / "m.gguf", arch, qtype=qtype, **SMALL)
    monkeypatch.setattr(execute, "CHUNK_NBYTES", 6000)
    gguf2st.convert(source, tmp_path / "cpu", repack=mode, device="cpu")
    wanted = files_of(tmp_path / "cpu")
    calls = []
    for batch_nbytes in (1000, 1 << 20):
        backend = Watched(batch_nbytes)
        monkeypatch.setattr(device, "decoder", lambda name, chosen=backend: chosen)
        out = tmp_path / f"{batch_nbytes}"
        report = gguf2st.convert(source, out, repack=mode, device="cpu", threads=3)
        assert files_of(out) == wanted
        assert bool(report.rel_rmse) == (mode != "exact")
        calls.append(backend.packed)
    assert set(calls[0]) == {1}
    assert sum(calls[0]) == sum(calls[1]) > 3 * len(calls[1]) > 0


def test_damaged_weights_are_named_whatever_shares_their_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tiny_model(tmp_path / "m.gguf", "llama", qtype="Q4_1", **SMALL)
    damaged = gguf2st.open_gguf(source).sources["blk.0.ffn_up.weight"]
    with open(source, "r+b") as file:
        file.seek(damaged.offset + 20)
        file.write(b"\x00\x7e")  # the scale of the second block is NaN
    messages = []
    for backend in (device.decoder("cpu"), Watched(1 << 20)):
        monkeypatch.setattr(device, "decoder", lambda name, chosen=backend: chosen)
        with pytest.raises(SourceError, match=re.escape("blk.0.ffn_up.weight (Q4_1) has at least 1 weights")) as error:
            gguf2st.convert(source, tmp_path / "out", repack="near", device="cpu")
        messages.append(error.value.message)
    assert messages[0] == messages[1]


def test_a_loss_beyond_the_bound_is_refused_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tiny_model(tmp_path / "m.gguf", "llama", qtype="Q4_1", **SMALL)
    messages = []
    for backend in (device.decoder("cpu"), Watched(1 << 20)):
        monkeypatch.setattr(device, "decoder", lambda name, chosen=backend: chosen)
        with pytest.raises(SchemeError, match=r"differs by 0\.00\d+ \(relative rmse\)") as error:
            gguf2st.convert(source, tmp_path / "out", repack="near", max_rel_rmse=0.001, device="cpu")
        messages.append(error.value.message)
    assert messages[0] == messages[1]
