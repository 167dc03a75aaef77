"""Every written tensor equals gguf-py's dequantization, whatever the chunks, threads, shards, device or byte order."""

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import gguf2st
from gguf2st import api, execute
from gguf2st.errors import SchemeError, SourceError
from gguf2st.hub.provenance import PROVENANCE_FILE
from gguf2st.kernels import cpu, device
from gguf2st.output.shards import ShardFile
from tests.make_gguf import ARCHS, tiny_model
from tests.oracle import torch_decoder
from tests.oracle.dequantized import hf_tensors

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
QTYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K")


def small(path: Path, arch: str, qtype: str = "Q8_0", **options: Any) -> Path:
    """Three heads to the key, so that no head count is a power of two; a K type needs its 256 columns."""
    sizes: dict[str, Any] = {"hidden": 96, "heads": 6, "kv_heads": 3, "head_dim": 32, "ffn": 160, "expert_ffn": 32}
    if not ARCHS[arch].head_dim_keys:
        sizes["head_dim"] = 16
    if qtype.endswith("_K"):
        sizes = {"hidden": 256, "heads": 8, "kv_heads": 4, "head_dim": 32, "ffn": 256, "expert_ffn": 256}
    return tiny_model(path, arch, **{"layers": 2, "tied": False, "qtype": qtype, **sizes, **options})


def tensors_of(folder: Path) -> dict[str, Tensor]:
    return {name: t for file in sorted(folder.glob("*.safetensors")) for name, t in load_file(file).items()}


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != PROVENANCE_FILE}


def assert_equal(folder: Path, source: Path, dtype: str) -> None:
    found, expected = tensors_of(folder), dict(hf_tensors(source, DTYPES[dtype]))
    assert found.keys() == expected.keys()
    bits = torch.int32 if dtype == "float32" else torch.int16
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name].view(bits), tensor.view(bits)), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("qtype", QTYPES)
def test_every_tensor_equals_gguf_py(arch: str, qtype: str, dtype: str, tmp_path: Path) -> None:
    source = small(tmp_path / "m.gguf", arch, qtype)
    gguf2st.convert(source, tmp_path / "out", dtype=dtype, threads=1)
    assert_equal(tmp_path / "out", source, dtype)


@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_biases_equal_gguf_py(arch: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"bias": True}
    if arch == "llama":
        biases = np.random.default_rng(5).standard_normal((2, 96), np.float32)
        options["extra_tensors"] = {f"blk.{i}.attn_output.bias": biases[i] for i in range(2)}
    source = small(tmp_path / "m.gguf", arch, **options)
    gguf2st.convert(source, tmp_path / "out")
    assert any(name.endswith("q_proj.bias") for name in tensors_of(tmp_path / "out"))
    assert_equal(tmp_path / "out", source, "bfloat16")


@pytest.mark.parametrize("nbytes", [1, 200, 1000, 4097, 1 << 14])
@pytest.mark.parametrize("arch", ["llama", "gemma3", "qwen3moe"])
def test_chunks_may_end_anywhere(arch: str, nbytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of 96 bfloat16 has 192 bytes: one row, five and twenty-one, never a whole number of heads."""
    source = small(tmp_path / "m.gguf", arch, layers=1)
    monkeypatch.setattr(execute, "CHUNK_NBYTES", nbytes)
    seen: list[int] = []
    decode = counting(seen)
    monkeypatch.setattr(device, "decoder", lambda name: decode)
    gguf2st.convert(source, tmp_path / "out", threads=2)
    assert_equal(tmp_path / "out", source, "bfloat16")
    assert max(seen) <= max(nbytes, 192 * 2), "a chunk is one row, or no larger than asked for"


def counting(seen: list[int]) -> device.Decoder:
    def decode(qtype: str, dtype: str, blocks: Any, out: Any) -> None:
        if dtype == "bfloat16":
            seen.append(out.nbytes)
        cpu.dequantize(qtype, dtype, blocks, out)

    return decode


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_do_not_change_the_files(threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = small(tmp_path / "m.gguf", "qwen3moe", layers=3)
    gguf2st.convert(source, tmp_path / "one", threads=1)
    monkeypatch.setattr(execute, "CHUNK_NBYTES", 500)
    gguf2st.convert(source, tmp_path / "many", threads=threads)
    assert files_of(tmp_path / "many") == files_of(tmp_path / "one")


def test_work_is_shared_by_the_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three threads meet inside the decoder, which one thread alone would wait in for ever."""
    barrier, met = threading.Barrier(3), threading.Event()

    def decode(qtype: str, dtype: str, blocks: Any, out: Any) -> None:
        if not met.is_set():
            barrier.wait(timeout=30)
            met.set()
        cpu.dequantize(qtype, dtype, blocks, out)

    monkeypatch.setattr(device, "decoder", lambda name: decode)
    gguf2st.convert(small(tmp_path / "m.gguf", "llama", layers=4), tmp_path / "out", threads=3)
    assert met.is_set()


@pytest.mark.parametrize("qtype", QTYPES)
def test_big_endian_sources_give_the_same_bytes(qtype: str, tmp_path: Path) -> None:
    for byteorder in ("little", "big"):
        (tmp_path / byteorder).mkdir()
        source = small(tmp_path / byteorder / "m.gguf", "llama", qtype, byteorder=byteorder)
        gguf2st.convert(source, tmp_path / byteorder / "out")
    assert (tmp_path / "big/m.gguf").read_bytes() != (tmp_path / "little/m.gguf").read_bytes()
    assert files_of(tmp_path / "big/out") == files_of(tmp_path / "little/out")


def split(source: Path, folder: Path, tensors_per_shard: int) -> list[Path]:
    """The same model as a split, by gguf-py."""
    reader: Any = gguf.GGUFReader(source)
    writer: Any = gguf.GGUFWriter(folder / "m.gguf", "llama", split_max_tensors=tensors_per_shard)
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], sub_type)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.iterdir())


def test_split_sources_give_the_same_bytes(tmp_path: Path) -> None:
    source = small(tmp_path / "m.gguf", "llama")
    (tmp_path / "split").mkdir()
    shards = split(source, tmp_path / "split", 11)
    assert [path.name for path in shards] == ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]
    gguf2st.convert(source, tmp_path / "single")
    for i, named in enumerate([shards[1], tmp_path / "split"]):
        gguf2st.convert(named, tmp_path / f"out{i}")
        assert files_of(tmp_path / f"out{i}") == files_of(tmp_path / "single")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("qtype", QTYPES)
def test_torch_gives_the_same_files(qtype: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = small(tmp_path / "m.gguf", "gemma3", qtype, layers=1)
    gguf2st.convert(source, tmp_path / "numba", dtype=dtype)
    monkeypatch.setattr(device, "decoder", lambda name: torch_decoder.decode)
    gguf2st.convert(source, tmp_path / "torch", dtype=dtype, device="cpu")
    assert files_of(tmp_path / "torch") == files_of(tmp_path / "numba")


@pytest.mark.parametrize("nbytes", [1, 10_000, 60_000, 200_000, 10**9])
def test_shard_sizes(nbytes: int, tmp_path: Path) -> None:
    source = small(tmp_path / "m.gguf", "qwen3moe")
    report = gguf2st.convert(source, tmp_path / "out", max_shard_size=nbytes)
    assert_equal(tmp_path / "out", source, "bfloat16")
    tensors = tensors_of(tmp_path / "out")
    total = sum(t.nbytes for t in tensors.values())
    if nbytes > total:
        assert report.shards == ("model.safetensors",)
        assert not (tmp_path / "out/model.safetensors.index.json").exists()
        return
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == total
    for shard in report.shards:
        content = load_file(tmp_path / "out" / shard)
        assert sum(t.nbytes for t in content.values()) <= nbytes or len(content) == 1
        assert {index["weight_map"][name] for name in content} == {shard}
    if nbytes == 1:
        assert len(report.shards) == len(tensors), "a tensor larger than the limit has its own file"


def test_two_runs_give_equal_files(tmp_path: Path) -> None:
    source = small(tmp_path / "m.gguf", "gemma3")
    for name in ("a", "b"):
        gguf2st.convert(source, tmp_path / name, max_shard_size=50_000)
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")


def test_progress_counts_every_byte(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    report = gguf2st.convert(small(tmp_path / "m.gguf", "llama"), tmp_path / "out", progress=lambda *n: seen.append(n))
    assert sum(n for n, _ in seen) == report.output_nbytes
    assert {total for _, total in seen} == {report.output_nbytes}


def poison(path: Path, tensor: str, value: Any, at: int = 0) -> None:
    """Overwrite bytes of a tensor in place."""
    reader: Any = gguf.GGUFReader(path)
    offset = next(t.data_offset for t in reader.tensors if t.name == tensor)
    with open(path, "r+b") as f:
        f.seek(offset + at)
        f.write(np.asarray(value).tobytes())


NAN, INF = np.float16("nan"), np.float16("-inf")
BAD_SCALES: dict[str, tuple[str, Any, int]] = {
    "Q4_0 d nan": ("Q4_0", NAN, 0),
    "Q8_0 d inf": ("Q8_0", INF, 34),
    "Q4_K d nan": ("Q4_K", NAN, 0),
    "Q4_K dmin inf": ("Q4_K", INF, 2),
    "Q6_K d nan": ("Q6_K", NAN, 208),
    "F16 nan": ("F16", NAN, 6),
    "BF16 inf": ("BF16", np.uint16(0x7F80), 2),
    "F32 nan": ("F32", np.float32("nan"), 400),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", BAD_SCALES)
def test_values_that_are_no_numbers(case: str, dtype: str, tmp_path: Path) -> None:
    qtype, value, at = BAD_SCALES[case]
    source = small(tmp_path / "m.gguf", "llama", qtype)
    poison(source, "blk.1.ffn_up.weight", value, at)
    with pytest.raises(SourceError, match=r"m\.gguf: tensor blk\.1\.ffn_up\.weight .*NaN or infinite") as caught:
        gguf2st.convert(source, tmp_path / "out", dtype=dtype)
    assert caught.value.exit_code == 3
    assert os.listdir(tmp_path) == ["m.gguf"]


def test_norms_that_are_no_numbers(tmp_path: Path) -> None:
    """The path of entries that are decoded whole."""
    source = small(tmp_path / "m.gguf", "gemma3")
    poison(source, "blk.0.attn_norm.weight", np.float32("inf"))
    with pytest.raises(SourceError, match=r"blk\.0\.attn_norm\.weight"):
        gguf2st.convert(source, tmp_path / "out")


@pytest.mark.parametrize("tensor", ["blk.0.attn_norm.weight", "blk.1.ffn_down.weight"])
def test_values_beyond_float16(tensor: str, tmp_path: Path) -> None:
    source = small(tmp_path / "m.gguf", "gemma3", "F32")
    poison(source, tensor, np.float32(70000))
    with pytest.raises(SchemeError, match=f"{tensor}.*beyond the range of float16") as caught:
        gguf2st.convert(source, tmp_path / "out", dtype="float16")
    assert "--dtype" in caught.value.hint
    gguf2st.convert(source, tmp_path / "out", dtype="bfloat16")
    assert_equal(tmp_path / "out", source, "bfloat16")


def test_values_beyond_bfloat16(tmp_path: Path) -> None:
    """The largest float32 rounds up to infinity."""
    source = small(tmp_path / "m.gguf", "llama", "F32")
    poison(source, "blk.1.ffn_down.weight", np.finfo(np.float32).max)
    with pytest.raises(SchemeError, match="beyond the range of bfloat16") as caught:
        gguf2st.convert(source, tmp_path / "out")
    assert "float32" in caught.value.hint
    assert "bfloat16" not in caught.value.hint
    gguf2st.convert(source, tmp_path / "out", dtype="float32")


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1000)


def grow(path: Path) -> None:
    with open(path, "ab") as f:
        f.write(b"more")


CHANGES: dict[str, Callable[[Path], None]] = {"truncated": truncate, "grown": grow, "removed": Path.unlink}


@pytest.mark.parametrize("change", CHANGES)
def test_sources_that_change_after_planning(change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = small(tmp_path / "m.gguf", "llama")

    def decoder(name: str) -> device.Decoder:
        CHANGES[change](source)
        return cpu.dequantize

    monkeypatch.setattr(device, "decoder", decoder)
    with pytest.raises(SourceError, match=r"m\.gguf"):
        gguf2st.convert(source, tmp_path / "out")
    assert not [path for path in tmp_path.iterdir() if path != source]


def test_sources_truncated_while_being_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = small(tmp_path / "m.gguf", "llama")

    def decode(qtype: str, dtype: str, blocks: Any, out: Any) -> None:
        os.truncate(source, 9000)
        cpu.dequantize(qtype, dtype, blocks, out)

    monkeypatch.setattr(device, "decoder", lambda name: decode)
    with pytest.raises(SourceError, match=r"m\.gguf ended inside tensor"):
        gguf2st.convert(source, tmp_path / "out")
    assert os.listdir(tmp_path) == ["m.gguf"]


@pytest.mark.parametrize("threads", [1, 4])
def test_the_first_failure_stops_all_threads(threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def decode(qtype: str, dtype: str, blocks: Any, out: Any) -> None:
        calls.append(1)
        raise SourceError("broken here")

    monkeypatch.setattr(device, "decoder", lambda name: decode)
    before = threading.active_count()
    with pytest.raises(SourceError, match="broken here"):
        gguf2st.convert(small(tmp_path / "m.gguf", "llama", layers=6), tmp_path / "out", threads=threads)
    assert threading.active_count() == before
    assert len(calls) <= threads


def test_chunks_cover_each_entry_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = small(tmp_path / "m.gguf", "llama")
    monkeypatch.setattr(execute, "CHUNK_NBYTES", 700)
    plan = api.make_plan(source)

    class Spy(ShardFile):
        def write(self, start: int, data: memoryview) -> None:
            spans.append((start, start + len(data)))
            super().write(start, data)

    spans: list[tuple[int, int]] = []
    monkeypatch.setattr(execute, "ShardFile", Spy)
    gguf2st.convert(source, tmp_path / "out")
    assert list(_joined(sorted(spans))) == [(0, plan.shards[0].nbytes)]


def _joined(spans: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Spans that meet become one; an overlap or a hole stays visible."""
    start, stop = spans[0]
    for a, b in spans[1:]:
        if a != stop:
            yield start, stop
            start = a
        stop = b
    yield start, stop
