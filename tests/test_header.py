"""The header reader against gguf-py's reader and writer, and against headers that lie."""

import io
import os
import random
import struct
import tracemalloc
from array import array
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from gguf2st.errors import HeaderError, SourceError
from gguf2st.header import Header, parse_header, read_header, shortest_float32
from tests.make_gguf import quantize, tiny_llama, write_gguf

NAME = "model.gguf"

EVERYTHING: dict[str, Any] = {
    "a.u8": np.uint8(255),
    "a.i8": np.int8(-128),
    "a.u16": np.uint16(65535),
    "a.i16": np.int16(-32768),
    "a.u32": np.uint32(2**32 - 1),
    "a.i32": np.int32(-(2**31)),
    "a.u64": np.uint64(2**64 - 1),
    "a.i64": np.int64(-(2**63)),
    "a.f32": np.float32(1e-6),
    "a.f64": np.float64(1e-300),
    "a.true": True,
    "a.false": False,
    "a.text": "zażółć 🦙\n",
    "a.empty": "",
    "a.texts": ["", "a", "é", "🦙" * 1000],
    "a.bools": np.array([True, False, True]),
    "a.nested": [["x"], ["y", "z"]],
    **{
        f"a.{kind}s": np.array([0, 1, 2, 100], kind)
        for kind in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64")
    },
}


def plain(value: Any) -> Any:
    """Arrays as lists, numpy scalars as Python's; float32 scalars as the shortest decimal, as numpy prints them."""
    if isinstance(value, np.float32):
        return float(str(value))
    if isinstance(value, np.ndarray | np.generic | array):
        return value.tolist()
    return value


def write_everything(path: Path, **options: Any) -> Path:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((6, 256), np.float32)
    tensors = {
        "vector": values[0],
        "cube": values.reshape(2, 3, 256).astype(np.float16),
        "four": values.reshape(2, 3, 4, 64),
        "q4_k": (quantize(values, "Q4_K"), "Q4_K", (6, 256)),
        "q6_k": (quantize(values.reshape(2, 3, 256), "Q6_K"), "Q6_K", (2, 3, 256)),
        "integers": np.arange(7, dtype=np.int64),
    }
    return write_gguf(path, EVERYTHING, tensors, "some-arch", **options)


def assert_equals_gguf_py(header: Header, path: Path) -> None:
    reader = gguf.GGUFReader(path)
    expected = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert list(header.metadata) == list(expected)
    for key, field in expected.items():
        if field.types[:2] == [gguf.GGUFValueType.ARRAY] * 2:
            continue  # GGUFReader flattens nested arrays
        value = field.contents()
        if field.types == [gguf.GGUFValueType.FLOAT32]:
            value = float(str(np.float32(value)))
        assert plain(header.metadata[key]) == value, key
    rows = [
        (t.name, t.tensor_type.name, tuple(int(n) for n in reversed(t.shape)), int(t.data_offset), int(t.n_bytes))
        for t in reader.tensors
    ]
    assert [(s.name, s.qtype, s.shape, s.offset, s.nbytes) for s in header.sources.values()] == rows
    assert [s.n_elements for s in header.sources.values()] == [int(t.n_elements) for t in reader.tensors]


@pytest.mark.real
def test_smollm2_equals_gguf_py(smollm2: Path) -> None:
    header = read_header([smollm2])
    assert (header.arch, header.version, header.byteorder) == ("llama", 3, "little")
    assert header.sizes == (smollm2.stat().st_size,)
    assert_equals_gguf_py(header, smollm2)


@pytest.mark.real
def test_gemma3_vocabulary_is_compact(gemma3: Path) -> None:
    header = read_header([gemma3])
    assert header.arch == "gemma3"
    scores, types = header.metadata["tokenizer.ggml.scores"], header.metadata["tokenizer.ggml.token_type"]
    assert isinstance(scores, array)
    assert isinstance(types, array)
    assert (scores.typecode, len(scores), types.typecode, len(types)) == ("f", 262144, "i", 262144)
    tokens = header.metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    assert [tokens[i] for i in (0, 2, 238, 262143)] == ["<pad>", "<bos>", "<0x00>", "<unused6241>"]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("byteorder", ["little", "big"])
def test_every_metadata_type_in_both_byte_orders(tmp_path: Path, byteorder: str, version: int) -> None:
    path = write_everything(tmp_path / NAME, byteorder=byteorder)
    raw = bytearray(path.read_bytes())
    raw[4:8] = version.to_bytes(4, "little" if byteorder == "little" else "big")
    path.write_bytes(raw)
    header = read_header([path])
    assert (header.version, header.byteorder, header.arch) == (version, byteorder, "some-arch")
    expected = {key: plain(value) for key, value in EVERYTHING.items()}
    found = {key: plain(value) for key, value in header.metadata.items() if key != "general.architecture"}
    assert found == expected
    assert {key: type(value) for key, value in found.items()} == {key: type(value) for key, value in expected.items()}
    assert_equals_gguf_py(header, path)


@pytest.mark.parametrize("alignment", [1, 8, 64, 4096])
def test_alignment(tmp_path: Path, alignment: int) -> None:
    path = write_gguf(
        tmp_path / NAME, {"general.alignment": alignment}, {"a": np.zeros(3, np.int8), "b": np.ones(5, np.float32)}
    )
    header = read_header([path])
    assert_equals_gguf_py(header, path)
    source = header.sources["b"]
    assert path.read_bytes()[source.offset :][: source.nbytes] == np.ones(5, np.float32).tobytes()


@pytest.mark.parametrize("bits", [0x358637BD, 0x00000001, 0x7F7FFFFF, 0x7F800000, 0x80000000, 0x3F800001, 0x49742400])
def test_shortest_float32_names_the_same_float32_as_numpy_does(bits: int) -> None:
    value = struct.unpack("<f", struct.pack("<I", bits))[0]
    assert shortest_float32(value) == float(str(np.float32(value)))


def test_shortest_float32_on_random_bits() -> None:
    values = np.random.default_rng(0).integers(0, 2**32, 2000, np.uint32).view(np.float32)
    for value in values[np.isfinite(values)]:
        short = shortest_float32(float(value))
        assert np.float32(short) == value
        assert len(repr(short)) <= len(repr(float(str(value))))


class Remote(io.RawIOBase):
    """Gives at most `most` bytes per read, as sockets do, and records how far it was read."""

    def __init__(self, path: Path, most: int) -> None:
        self.inner, self.most, self.end = path.open("rb"), most, 0

    def read(self, size: int = -1) -> bytes:
        data = self.inner.read(min(size, self.most) if size >= 0 else self.most)
        self.end = max(self.end, self.inner.tell())
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        return self.inner.seek(offset, whence)

    def tell(self) -> int:
        return self.inner.tell()


@pytest.mark.real
@pytest.mark.parametrize("most", [1 << 30, 4097])
def test_a_remote_file_is_read_no_further_than_one_chunk_past_its_header(smollm2: Path, most: int) -> None:
    remote = Remote(smollm2, most)
    header = parse_header(remote, "remote")  # type: ignore[arg-type]
    local = read_header([smollm2])
    assert (header.metadata, header.sources) == (local.metadata, local.sources)
    header_nbytes = min(source.offset for source in header.sources.values())
    assert remote.end <= header_nbytes + (2 << 20)


@pytest.mark.parametrize("size", [3, 2**20 - 3, 2**20, 2**20 + 5])
def test_strings_that_cross_chunks(tmp_path: Path, size: int) -> None:
    texts = ["x" * size, "y" * (2**20 - 9), "z", "é" * 2**20, ""]
    path = write_gguf(tmp_path / NAME, {"a.texts": texts, "a.after": 7}, {})
    metadata = read_header([path]).metadata
    assert metadata["a.texts"] == texts
    assert metadata["a.after"] == 7


# Headers written byte by byte, so that each field can lie.


def string(text: str | bytes, length: int | None = None) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw) if length is None else length) + raw


def key(name: str | bytes, type_id: int, value: bytes, length: int | None = None) -> bytes:
    return string(name, length) + struct.pack("<I", type_id) + value


def numbers(item_type: int, count: int, payload: bytes = b"") -> bytes:
    return struct.pack("<IQ", item_type, count) + payload


def row(
    name: str | bytes,
    dims: Iterable[int] = (32, 2),
    type_id: int = 0,
    offset: int = 0,
    n_dims: int | None = None,
    length: int | None = None,
) -> bytes:
    dims = list(dims)
    head = string(name, length) + struct.pack("<I", len(dims) if n_dims is None else n_dims)
    return head + struct.pack(f"<{len(dims)}QIQ", *dims, type_id, offset)


def outcome(raw: bytes) -> Header | str:
    """The header, or the message of the one kind of error that may come instead."""
    try:
        return parse(raw)
    except HeaderError as error:
        return error.message


def build(
    keys: Iterable[bytes] = (),
    rows: Iterable[bytes] = (),
    *,
    data: int = 1024,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_kv: int | None = None,
    n_tensors: int | None = None,
    alignment: int = 32,
) -> bytes:
    keys, rows = [key("general.architecture", 8, string("llama")), *keys], list(rows)
    counts = (len(rows) if n_tensors is None else n_tensors, len(keys) if n_kv is None else n_kv)
    head = magic + struct.pack("<IQQ", version, *counts) + b"".join(keys) + b"".join(rows)
    return head + bytes(-len(head) % alignment) + bytes(data)


def parse(raw: bytes) -> Header:
    return parse_header(io.BytesIO(raw), NAME)


def refused(raw: bytes, *words: str) -> HeaderError:
    """The error for `raw`: it names the file and says `words`, and took memory of a small multiple of the input."""
    tracemalloc.start()
    try:
        with pytest.raises(HeaderError) as caught:
            parse(raw)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.message.startswith(f"{NAME}: ")
    assert "\n" not in caught.value.message
    assert caught.value.hint
    for word in words:
        assert word in caught.value.message
    assert peak < 16 * len(raw) + (1 << 20)
    return caught.value


LIES = [0, 1, 2, 2**31, 2**32 - 1, 2**63, 2**63 - 1, 2**64 - 1]


def test_the_builder_writes_what_it_should() -> None:
    header = parse(build([key("a.b", 4, struct.pack("<I", 7))], [row("w"), row("v", offset=256)]))
    assert header.metadata == {"general.architecture": "llama", "a.b": 7}
    assert [(s.shape, s.qtype, s.nbytes) for s in header.sources.values()] == [((2, 32), "F32", 256)] * 2


@pytest.mark.parametrize("lie", [n for n in LIES if n > 2])
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda n: build(n_kv=n), id="n_kv"),
        pytest.param(lambda n: build(rows=[row("w")], n_tensors=n), id="n_tensors"),
        pytest.param(lambda n: build([key("a", 4, b"1234", length=n)]), id="length of a key"),
        pytest.param(lambda n: build([key("a", 8, string("b", n))]), id="length of a string"),
        pytest.param(lambda n: build(rows=[row("w", length=n)]), id="length of a tensor name"),
        pytest.param(lambda n: build([key("a", 9, numbers(9, 1, numbers(4, n)))]), id="count of a nested array"),
        pytest.param(lambda n: build(rows=[row("w", (n, 2))]), id="columns"),
        pytest.param(lambda n: build(rows=[row("w", (32, n))]), id="rows"),
        pytest.param(lambda n: build(rows=[row("w", (2, 2, 2, n))]), id="fourth dimension"),
        pytest.param(lambda n: build(rows=[row("w", offset=n)]), id="offset"),
        *(
            pytest.param(lambda n, t=t: build([key("a", 9, numbers(t, n, bytes(8)))]), id=f"array of type {t}")
            for t in range(13)
        ),
    ],
)
def test_sizes_beyond_the_file(make: Callable[[int], bytes], lie: int) -> None:
    refused(make(lie))


@pytest.mark.parametrize("lie", [10**4, 2**63])
def test_counts_are_refused_before_anything_is_read(lie: int) -> None:
    refused(build(n_kv=lie), f"promises {lie} metadata keys")
    refused(build(n_tensors=lie), f"promises {lie} tensors")
    refused(build([key("a.b", 9, numbers(8, lie))]), f"promises {lie} items in the value of 'a.b'")


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda n: build([key("a", 4, b"1234")], [row("w")], n_kv=n), id="n_kv"),
        pytest.param(lambda n: build([key("a", 4, b"1234")], [row("w")], n_tensors=n), id="n_tensors"),
        pytest.param(lambda n: build([key("a", 9, numbers(8, n, string("b") * 2))]), id="count of strings"),
        pytest.param(lambda n: build(rows=[row("w", n_dims=min(n, 2**32 - 1))]), id="n_dims"),
        pytest.param(lambda n: build(rows=[row("w", type_id=min(n, 2**32 - 1))]), id="type"),
        pytest.param(lambda n: build([key("a", min(n, 2**32 - 1), b"1234")]), id="value type"),
    ],
)
def test_any_lie_is_read_or_refused_by_name(make: Callable[[int], bytes], lie: int) -> None:
    raw = make(lie)
    if isinstance(outcome(raw), str):
        refused(raw)


MALFORMED = {
    "empty key": (build([key("", 4, b"1234")]), "empty"),
    "duplicate key": (build([key("a.b", 4, b"1234")] * 2), "'a.b' occurs twice"),
    "key is not UTF-8": (build([key(b"a\xff", 4, b"1234")]), "not UTF-8"),
    "tensor name is not UTF-8": (build(rows=[row(b"w\xc3\x28")]), "not UTF-8"),
    "duplicate tensor": (build(rows=[row("w.q"), row("w.q", offset=256)]), "'w.q' occurs twice"),
    "overlapping tensors": (build(rows=[row("w"), row("v", offset=224)]), "'w' and 'v' overlap"),
    "same place": (build(rows=[row("w"), row("v")]), "overlap"),
    "same place, unknown types": (build(rows=[row("w", type_id=57), row("v", type_id=57)]), "overlap"),
    "offset not aligned": (build(rows=[row("w", offset=16)]), "multiple of the alignment 32"),
    "five dimensions": (build(rows=[row("w", (2, 2, 2, 2, 2))]), "5 dimensions"),
    "row is not whole blocks": (build(rows=[row("w", (48, 2), 2)]), "multiple of 32"),
    "scalar of a block type": (build(rows=[row("w", (), 2)]), "multiple of 32"),
    "elements overflow": (build(rows=[row("w", (2**32, 2**32), 57)]), "impossible shape"),
    "no elements": (build(rows=[row("w", (32, 0))]), "impossible shape"),
    "bool is 2": (build([key("a.b", 7, b"\2")]), "neither 0 nor 1"),
    "bool in an array is 255": (build([key("a.b", 9, numbers(7, 3, b"\0\1\xff"))]), "neither 0 nor 1"),
    "value type 13": (build([key("a.b", 13, b"1234")]), "value type 13"),
    "array of type 13": (build([key("a.b", 9, numbers(13, 1, b"1234"))]), "value type 13"),
    "arrays nested too deep": (build([key("a.b", 9, numbers(9, 1) * 9 + numbers(4, 0))]), "nested"),
    **{
        f"alignment {n}": (build([key("general.alignment", 4, struct.pack("<I", n))], [row("w")]), "general.alignment")
        for n in (0, 3, 33)
    },
    "alignment 2**31": (
        build([key("general.alignment", 4, struct.pack("<I", 2**31))], [row("w")]),
        "ends before tensor 'w'",
    ),
    "alignment is a uint64": (build([key("general.alignment", 10, struct.pack("<Q", 32))]), "general.alignment"),
    "alignment is a bool": (build([key("general.alignment", 7, b"\1")]), "general.alignment"),
    "version 0": (build(version=0), "version 0"),
    "version 1": (build(version=1), "version 1"),
    "version 4": (build(version=4), "version 4"),
    "version is garbage": (build(version=0xDEADBEEF), "version"),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_malformed(kind: str) -> None:
    raw, words = MALFORMED[kind]
    refused(raw, words)


@pytest.mark.parametrize(
    "item",
    [
        pytest.param(numbers(8, 100_000, string("") * 100_000), id="empty strings"),
        pytest.param(numbers(8, 100_000, string(b"\xff") * 100_000), id="short strings"),
        pytest.param(numbers(8, 100_000, string("🦙") * 100_000), id="wide strings"),
        pytest.param(numbers(7, 500_000, bytes(500_000)), id="bools"),
        pytest.param(numbers(0, 500_000, bytes(500_000)), id="bytes"),
        pytest.param(numbers(9, 100_000, numbers(0, 0) * 100_000), id="empty arrays"),
    ],
)
def test_many_small_items_take_little_memory_before_the_error(item: bytes) -> None:
    refused(build([key("a.b", 9, item), key("a.c", 13, b"")]), "value type 13")


FOREIGN = {
    "empty": (b"", "empty"),
    "Git LFS pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 98362432\n", "Git LFS"),
    "HTML": (b"\n<!DOCTYPE html>\n<html><body>Not found</body></html>", "web page"),
    "safetensors": (struct.pack("<Q", 40) + b'{"w":{"dtype":"F32","shape":[1]}}'.ljust(40) + bytes(4), "safetensors"),
    "zip": (b"PK\x03\x04" + bytes(100), "zip archive or a PyTorch checkpoint"),
    "gzip": (b"\x1f\x8b\x08" + bytes(100), "compressed"),
    "old GGML": (b"tjgg" + bytes(100), "before GGUF"),
    "zeros": (bytes(4096), "zeros"),
    "text": (b"Invalid username or password.", "Invalid username"),
    "flipped magic": (build(magic=b"GGUf"), "b'GGUf'"),
    "reversed magic": (build(magic=b"FUGG"), "b'FUGG'"),
    "three bytes": (b"\x00\x01\x02", "starts with"),
    "magic only": (b"GGUF", "version"),
    "nothing after the version": (b"GGUF\3\0\0\0", "number of tensors"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_other_files_are_recognised(kind: str) -> None:
    raw, words = FOREIGN[kind]
    refused(raw, words)


def test_unknown_types_survive() -> None:
    sources = parse(build(rows=[row("w", (48, 3), 57), row("v", offset=256)])).sources
    assert (sources["w"].qtype, sources["w"].nbytes, sources["w"].shape) == ("type 57", None, (3, 48))
    assert sources["v"].nbytes == 256


def test_scalar_tensor() -> None:
    source = parse(build(rows=[row("w", ())])).sources["w"]
    assert (source.shape, source.n_elements, source.n_rows, source.nbytes) == ((), 1, 1, 4)


def test_invalid_utf8_in_a_value_survives() -> None:
    value = parse(build([key("a.b", 9, numbers(8, 2, string(b"a\xff\xfe") + string("ok")))])).metadata["a.b"]
    assert isinstance(value, list)
    assert [text.encode("utf-8", "surrogateescape") for text in value] == [b"a\xff\xfe", b"ok"]


@pytest.mark.parametrize(
    "value", [b"", key("general.architecture", 4, b"1234"), key("general.architecture", 8, string(""))]
)
def test_architecture_must_be_a_name(value: bytes) -> None:
    raw = b"GGUF" + struct.pack("<IQQ", 3, 0, 1 if value else 0) + value
    with pytest.raises(HeaderError, match=r"model.gguf: general.architecture"):
        _ = parse(raw).arch


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("tiny") / NAME
    return tiny_llama(path, layers=1, qtype="Q8_0").read_bytes()


@pytest.mark.parametrize("part", range(64))
def test_truncated(tiny: bytes, part: int) -> None:
    refused(tiny[: len(tiny) * part // 64])


def test_truncated_in_the_tensors_says_which_and_how_much(tiny: bytes) -> None:
    whole = parse(tiny)
    ends = sorted(source.offset + (source.nbytes or 0) for source in whole.sources.values())
    by_offset = sorted(whole.sources.values(), key=lambda source: source.offset)
    for source, (before, end) in zip(by_offset[1:], pairwise(ends), strict=True):
        for cut in (before, source.offset, end - 1):
            error = refused(tiny[:cut], repr(source.name), f"{ends[-1] - cut} of {ends[-1]} bytes are missing")
            assert "download it again" in error.hint


@pytest.mark.parametrize("seed", range(8))
def test_flipped_bytes_are_read_or_refused(tiny: bytes, seed: int) -> None:
    rng = random.Random(seed)
    start = parse(tiny).sources["token_embd.weight"].offset
    read = refused = 0
    for _ in range(400):
        raw = bytearray(tiny)
        for _ in range(rng.choice((1, 1, 1, 4, 16))):
            raw[rng.randrange(start)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        found = outcome(bytes(raw))
        read += isinstance(found, Header)
        refused += isinstance(found, str) and found.startswith(NAME)
    assert read + refused == 400
    assert read > 0
    assert refused > 0


@pytest.mark.parametrize("seed", range(4))
def test_flipped_bytes_between_the_strings(seed: int) -> None:
    """A header without a vocabulary, so that nearly every byte is a count, a type, a length or an offset."""
    rng = random.Random(seed)
    keys = [
        key("general.alignment", 4, struct.pack("<I", 32)),
        key("a", 9, numbers(9, 2, numbers(8, 1, string("b")) + numbers(7, 1, b"\1"))),
        key("c", 9, numbers(6, 2, bytes(8))),
    ]
    whole = build(keys, [row("w"), row("v", (32, 4), 2, 256), row("u", (), 30, 352)], data=384)
    end = len(whole) - 384
    for _ in range(1000):
        raw = bytearray(whole)
        for _ in range(rng.choice((1, 1, 2, 8))):
            raw[rng.randrange(end)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        found = outcome(bytes(raw))
        if isinstance(found, str):
            assert found.startswith(NAME)
            continue
        placed = sorted((s.offset, s.offset + (s.nbytes or 1)) for s in found.sources.values())
        assert all(end <= start for (_, end), (start, _) in pairwise(placed))
        assert all(end <= len(raw) for _, end in placed)


# Splits


def write_split(folder: Path, count: int = 3, tensors_count: int | None = None) -> list[Path]:
    paths = []
    for number in range(count):
        metadata: dict[str, Any] = {"a.first": number} if number == 0 else {}
        metadata |= {"split.no": np.uint16(number), "split.count": np.uint16(count)}
        metadata["split.tensors.count"] = np.int32(count * 2 if tensors_count is None else tensors_count)
        tensors = {f"t{number}.{i}": np.full(8, number, np.float32) for i in range(2)}
        paths.append(write_gguf(folder / f"m-{number + 1:05}-of-{count:05}.gguf", metadata, tensors))
    return paths


def test_split(tmp_path: Path) -> None:
    paths = write_split(tmp_path)
    header = read_header(paths)
    assert header.files == tuple(str(path) for path in paths)
    assert header.sizes == tuple(path.stat().st_size for path in paths)
    assert header.metadata["a.first"] == 0
    assert [(s.name, s.file) for s in header.sources.values()] == [(f"t{n}.{i}", n) for n in range(3) for i in range(2)]
    for source in header.sources.values():
        raw = paths[source.file].read_bytes()[source.offset :][: source.nbytes]
        assert raw == np.full(8, source.file, np.float32).tobytes()


@pytest.mark.parametrize(
    ("choose", "words"),
    [
        (lambda p: p[:1], "missing: 2, 3"),
        (lambda p: p[1:2], "missing: 1, 3"),
        (lambda p: [p[0], p[2]], "missing: 2"),
        (lambda p: [p[0], p[2], p[1]], "expected shard 2 of 3"),
        (lambda p: [p[0], p[1], p[1]], "expected shard 3 of 3"),
    ],
)
def test_wrong_set_of_shards(tmp_path: Path, choose: Callable[[list[Path]], list[Path]], words: str) -> None:
    paths = choose(write_split(tmp_path))
    with pytest.raises(HeaderError, match=words) as caught:
        read_header(paths)
    assert str(tmp_path) in caught.value.message


def test_shard_of_another_model(tmp_path: Path) -> None:
    paths = write_split(tmp_path)
    write_gguf(paths[1], {}, {"x": np.zeros(4, np.float32)})
    with pytest.raises(HeaderError, match="it is no shard"):
        read_header(paths)
    with pytest.raises(HeaderError, match="no shard of a split"):
        read_header([paths[1], paths[0]])


def test_split_lacks_tensors(tmp_path: Path) -> None:
    with pytest.raises(HeaderError, match="is 7, but the shards hold 6"):
        read_header(write_split(tmp_path, tensors_count=7))


def test_tensor_in_two_shards(tmp_path: Path) -> None:
    paths = write_split(tmp_path)
    metadata = {"split.no": np.uint16(1), "split.count": np.uint16(3)}
    write_gguf(paths[1], metadata, {"t0.0": np.zeros(4, np.float32), "t": np.zeros(4, np.float32)})
    with pytest.raises(HeaderError, match=r"00002-of-00003.*another shard too.*'t0.0'"):
        read_header(paths)


def test_merged_split_is_a_plain_file(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / NAME, {"split.count": np.uint16(0)}, {"w": np.zeros(4, np.float32)})
    assert list(read_header([path]).sources) == ["w"]


@pytest.mark.parametrize("value", ["3", np.float32(3), True])
def test_split_count_must_be_a_number(tmp_path: Path, value: Any) -> None:
    path = write_gguf(tmp_path / NAME, {"split.count": value}, {})
    with pytest.raises(HeaderError, match=r"split\.count"):
        read_header([path])


@pytest.mark.parametrize("kind", ["missing", "folder", "none"])
def test_unreadable(tmp_path: Path, kind: str) -> None:
    path = tmp_path / ("absent.gguf" if kind == "missing" else ".")
    with pytest.raises(SourceError, match="no GGUF file" if kind == "none" else str(tmp_path)):
        read_header([] if kind == "none" else [path])


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read everything")
def test_permission(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / NAME, layers=1)
    path.chmod(0)
    with pytest.raises(SourceError, match="Permission denied"):
        read_header([path])
