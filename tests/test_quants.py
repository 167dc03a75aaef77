"""The torch reference against ggml's C decoders and gguf-py, bit for bit."""

import struct
import subprocess
import sys
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
import torch
from gguf.scripts import gguf_convert_endian

from gguf2st.errors import SchemeError
from gguf2st.kernels import cpu
from gguf2st.quants import reference
from gguf2st.quants.byteorder import to_native
from gguf2st.quants.layout import BY_ID, DECODABLE, TYPES, type_name
from tests.oracle import ggml
from tests.oracle.blocks import KINDS, make

QTYPES = sorted(DECODABLE)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
AFFINE = [t for t in QTYPES if TYPES[t].block > 1]
NOT_IN_GGUF_PY = {"F64", "I8", "I16", "I32", "I64", "Q1_0", "Q2_0", "Q8_1", "Q8_K"}

# One item per struct member of ggml-common.h: what a big-endian machine writes in the other order.
MEMBERS = {
    "F32": "f", "F16": "e", "BF16": "H", "F64": "d", "I8": "b", "I16": "h", "I32": "i", "I64": "q",
    "Q4_0": "H16s", "Q4_1": "HH16s", "Q5_0": "HI16s", "Q5_1": "HHI16s", "Q8_0": "H32s", "Q8_1": "HH32s",
    "Q2_K": "16s64sHH", "Q3_K": "32s64s12sH", "Q4_K": "HH12s128s", "Q5_K": "HH12s32s128s", "Q6_K": "128s64s16sH",
    "Q8_K": "f256s16h", "IQ2_XXS": "H16I", "IQ2_XS": "H32H8s", "IQ2_S": "H64s8s8s", "IQ3_XXS": "H64s8I",
    "IQ3_S": "H64s8s32s4s", "IQ1_S": "H32s8H", "IQ1_M": "32s16s4H", "IQ4_NL": "H16s", "IQ4_XS": "HH4s128s",
    "TQ1_0": "48s4sH", "TQ2_0": "64sH", "MXFP4": "B16s", "NVFP4": "4s32s", "Q1_0": "H16s", "Q2_0": "H16s",
}  # fmt: skip


def same(actual: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Equal bits, the sign of zero included; a NaN equals any NaN."""
    assert actual.dtype == wanted.dtype
    assert actual.shape == wanted.shape
    nan = wanted.isnan()
    bits = torch.int32 if wanted.dtype.itemsize == 4 else torch.int16
    equal = actual.view(bits) == wanted.view(bits)
    return bool(torch.where(nan, actual.isnan(), equal).all())


def wanted(qtype: str, blocks: np.ndarray, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.from_numpy(ggml.expected(qtype, TYPES[qtype].id, blocks)).to(dtype)


def test_every_path_decodes_the_same_types() -> None:
    assert DECODABLE == set(reference.QUANTS) == cpu.QTYPES


@pytest.mark.parametrize("qtype", list(TYPES))
def test_layout_agrees_with_ggml(qtype: str) -> None:
    traits = ggml.traits(TYPES[qtype].id)
    assert (traits.type_name.decode().upper(), traits.block, traits.nbytes) == (
        qtype,
        TYPES[qtype].block,
        TYPES[qtype].nbytes,
    )


def test_no_ggml_type_is_missing() -> None:
    known = {i for i in range(ggml.TYPE_COUNT) if ggml.traits(i).block}
    assert known == set(BY_ID)
    assert type_name(12) == "Q4_K"
    assert type_name(57) == "type 57"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("qtype", QTYPES)
def test_dequantize_matches_ggml(qtype: str, kind: str) -> None:
    blocks = make(qtype, kind)
    for dtype in DTYPES.values():
        assert same(reference.dequantize(qtype, torch.from_numpy(blocks), dtype), wanted(qtype, blocks, dtype))


@pytest.mark.parametrize("qtype", [t for t in QTYPES if t not in NOT_IN_GGUF_PY])
def test_dequantize_matches_gguf_py(qtype: str) -> None:
    blocks = np.concatenate([make(qtype, kind) for kind in KINDS])
    with np.errstate(all="ignore"):
        theirs = gguf.dequantize(blocks, gguf.GGMLQuantizationType[qtype])
    ours = reference.dequantize(qtype, torch.from_numpy(blocks))
    assert same(ours, torch.from_numpy(theirs.astype(np.float32)))


@pytest.mark.parametrize("qtype", AFFINE)
def test_codes_fill_their_stated_range(qtype: str) -> None:
    quant = reference.quant(qtype)
    assert issubclass(quant, reference.AffineQuant)
    q, scale, minimum = quant.decode(torch.from_numpy(make(qtype, "random")))
    groups = TYPES[qtype].block // quant.group
    assert q.dtype == torch.int8
    assert q.shape == (256, groups, quant.group)
    assert (int(q.min()), int(q.max())) == quant.codes
    for x in (scale, minimum):
        assert x is None or (x.dtype == torch.float32 and x.shape in {(256, groups, 1), (256, 1, 1)})


@pytest.mark.parametrize("qtype", QTYPES)
def test_dequantize_takes_any_view(qtype: str) -> None:
    blocks = make(qtype, "quantized")
    nbytes = TYPES[qtype].nbytes
    odd = torch.zeros(1 + blocks.size, dtype=torch.uint8)[1:].view(-1, nbytes)
    odd.copy_(torch.from_numpy(blocks))
    for view, rows in ((odd, blocks), (odd[::3], blocks[::3]), (odd[5:6], blocks[5:6]), (odd[:0], blocks[:0])):
        assert same(reference.dequantize(qtype, view), wanted(qtype, rows))


def test_unknown_type_names_the_known_ones() -> None:
    with pytest.raises(SchemeError, match=r"'Q4_0_4_4'.*Q4_K"):
        reference.quant("Q4_0_4_4")


def test_layout_modules_do_not_import_torch() -> None:
    code = "import sys, gguf2st.quants.layout, gguf2st.quants.byteorder; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("qtype", list(TYPES))
def test_to_native_reverses_every_member(qtype: str) -> None:
    rng = np.random.default_rng(TYPES[qtype].id)
    little = rng.integers(0, 256, (7, TYPES[qtype].nbytes), dtype=np.uint8)
    members = MEMBERS[qtype].replace("f", "I").replace("d", "Q").replace("e", "H")  # keep the bits of a NaN
    rows = [struct.pack(f">{members}", *struct.unpack(f"<{members}", row.tobytes())) for row in little]
    big = np.frombuffer(b"".join(rows), np.uint8).reshape(little.shape)
    np.testing.assert_array_equal(to_native(qtype, big), little)


@pytest.mark.parametrize("qtype", [t.name for t in gguf_convert_endian.byteswap_tensors])
def test_to_native_matches_gguf_py(qtype: str) -> None:
    swap = gguf_convert_endian.byteswap_tensors[gguf.GGMLQuantizationType[qtype]]
    nbytes = TYPES[qtype].nbytes
    big = np.random.default_rng(1).integers(0, 256, (9, nbytes), dtype=np.uint8)
    little = SimpleNamespace(data=big.reshape(-1).copy())
    for start in range(0, big.size, nbytes):
        swap(little, start)
    np.testing.assert_array_equal(to_native(qtype, big), little.data.reshape(big.shape))
