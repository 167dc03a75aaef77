"""Packed weights, as compressed-tensors and transformers read them, against ggml's own float32 values."""

import math
import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import torch
from compressed_tensors.compressors.pack_quantized import pack_to_int32, unpack_from_int32

from gguf2st.errors import SchemeError, UsageError
from gguf2st.kernels.cpu_scales import SCALES
from gguf2st.quants.layout import TYPES
from gguf2st.schemes import SCHEMES, Packed, is_exact, targets
from gguf2st.schemes.search import KEPT
from tests.oracle import ggml, packed, torch_packing
from tests.oracle.blocks import KINDS, make

PAIRS = [(qtype, scheme) for qtype in TYPES for scheme in targets("int4", qtype)]
"""Everything that any mode asks for."""
EXACT = [pair for pair in PAIRS if is_exact(*pair)]
LOSSY = [pair for pair in PAIRS if not is_exact(*pair)]


def values(qtype: str, blocks: np.ndarray) -> np.ndarray:
    """(n_blocks, block) float32."""
    return ggml.expected(qtype, TYPES[qtype].id, blocks)


def finite(qtype: str, kind: str) -> np.ndarray:
    """Blocks of a kind without NaN and infinities, and without the one NVFP4 scale that E4M3 lacks."""
    blocks = make(qtype, kind)
    good = np.isfinite(values(qtype, blocks)).all(1)
    if qtype == "NVFP4":
        good &= (blocks[:, :4] != 0xFF).all(1)
    return np.ascontiguousarray(blocks[good])


def tame(qtype: str, kind: str) -> np.ndarray:
    """As `finite`, with weights of a usual size, so that float16 scales hold them."""
    blocks = finite(qtype, kind)
    largest = np.abs(values(qtype, blocks)).max(1)
    return np.ascontiguousarray(blocks[(largest > 1e-3) & (largest < 1e3)])


def rows_of(scheme: str, qtype: str, blocks: np.ndarray, width: int = 2) -> tuple[np.ndarray, tuple[int, int]]:
    """As many rows of `width` times the fewest blocks as the blocks make, and the shape of that weight."""
    block = TYPES[qtype].block
    n_cols = width * math.lcm(block, SCHEMES[scheme].column_step)
    n_rows = len(blocks) * block // n_cols
    return blocks[: n_rows * n_cols // block], (n_rows, n_cols)


def same(a: Packed, b: Packed) -> None:
    assert a.parts.keys() == b.parts.keys()
    for suffix, part in a.parts.items():
        np.testing.assert_array_equal(part, b.parts[suffix], err_msg=suffix)
    assert a.bad == b.bad


def relative(read: np.ndarray, wanted: np.ndarray) -> float:
    left = read.astype(np.float64) - wanted
    return float(np.sqrt((left**2).sum() / (wanted.astype(np.float64) ** 2).sum()))


def claimed(p: Packed) -> float:
    return math.sqrt(p.error / p.power) if p.power else 0.0


def test_planning_needs_no_numerics() -> None:
    code = "import sys, gguf2st.schemes; print({'numpy', 'torch', 'numba'} & sys.modules.keys())"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("mode", "qtype", "schemes"),
    [
        ("none", "Q4_0", ()),
        ("exact", "Q4_0", ("int4_g32", "int8_g32")),
        ("exact", "Q5_0", ("int8_g32",)),
        ("exact", "Q8_0", ("int8_g32",)),
        ("exact", "IQ4_NL", ("int8_g32",)),
        ("exact", "Q3_K", ("int8_g32",)),
        ("exact", "TQ1_0", ("int4_g128", "int4_g32", "int8_g32")),
        ("exact", "TQ2_0", ("int4_g128", "int4_g32", "int8_g32")),
        ("exact", "MXFP4", ("mxfp4",)),
        ("exact", "NVFP4", ("nvfp4",)),
        ("exact", "Q4_K", ()),
        ("exact", "Q6_K", ()),
        ("near", "Q4_0", ("int4_g32", "int8_g32")),
        ("near", "Q4_K", ("int8_g32",)),
        ("near", "Q6_K", ("int8_g32",)),
        ("near", "IQ1_M", ("int8_g32",)),
        ("near", "MXFP4", ("mxfp4", "int8_g32")),
        ("int4", "Q4_0", ("int4_g32", "int4_asym_g32", "int8_g32")),
        ("int4", "Q4_K", ("int4_asym_g32", "int8_g32")),
        ("int4", "Q2_K", ("int4_asym_g32", "int8_g32")),
        ("int4", "Q6_K", ("int8_g32",)),
        ("int4", "Q8_0", ("int8_g32",)),
        ("int4", "BF16", ()),
        ("near", "F32", ()),
    ],
)
def test_targets(mode: str, qtype: str, schemes: tuple[str, ...]) -> None:
    assert targets(mode, qtype) == schemes


def test_every_quantized_type_has_a_common_target() -> None:
    """A fused group of any types can be packed in modes near and int4."""
    for mode in ("near", "int4"):
        assert all("int8_g32" in targets(mode, q) for q, t in TYPES.items() if t.block > 1)


def test_modes_are_named() -> None:
    with pytest.raises(UsageError, match="none, exact, near, int4"):
        targets("best", "Q4_0")


def test_rounded_scales_are_not_exact() -> None:
    assert not is_exact("Q4_0", "int4_g32", "bfloat16")
    assert is_exact("MXFP4", "mxfp4", "bfloat16")
    assert is_exact("MXFP4", "gpt_oss_mxfp4", "bfloat16")
    assert not is_exact("Q8_0", "int4_g32")
    assert not is_exact("Q4_K", "int8_g32")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("qtype", "scheme"), EXACT)
def test_exact_targets_hold_the_same_numbers(qtype: str, scheme: str, kind: str) -> None:
    blocks, shape = rows_of(scheme, qtype, finite(qtype, kind))
    p = SCHEMES[scheme].pack(qtype, blocks, shape[0], "float16")
    wanted = values(qtype, blocks).reshape(shape)
    np.testing.assert_array_equal(packed.weights(SCHEMES[scheme], shape, p), wanted)
    assert (p.error, p.power, p.bad) == (0, 0, 0)
    assert np.any(wanted)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("qtype", "scheme"), LOSSY)
def test_the_error_is_the_truth(qtype: str, scheme: str, dtype: str) -> None:
    for kind in ("random", "quantized"):
        blocks, shape = rows_of(scheme, qtype, tame(qtype, kind), 1)
        p = SCHEMES[scheme].pack(qtype, blocks, shape[0], dtype)
        wanted = values(qtype, blocks).reshape(shape)
        loss = relative(packed.weights(SCHEMES[scheme], shape, p, dtype), wanted)
        assert p.bad == 0
        assert claimed(p) == pytest.approx(loss, rel=1e-3, abs=1e-9)
        assert p.power == pytest.approx(np.square(wanted, dtype=np.float64).sum(), rel=1e-5)
        assert loss < (0.005 if scheme == "int8_g32" else 0.25)
        if dtype == "float16":  # the obvious way has float32 scales
            simple = rounded(wanted, *((255, -128) if scheme == "int8_g32" else (15, 0)))
            assert loss < relative(simple, wanted)


def rounded(weights: np.ndarray, steps: int, least: int) -> np.ndarray:
    """What the obvious way gives: the range of 32 weights divided evenly, float32 scales."""
    w = weights.reshape(-1, 32).astype(np.float64)
    if least:
        scale = np.abs(w).max(1, keepdims=True) / (steps // 2)
        zero = np.zeros_like(scale)
    else:
        low, high = np.minimum(w.min(1, keepdims=True), 0), np.maximum(w.max(1, keepdims=True), 0)
        scale = (high - low) / steps
        zero = np.rint(-low / np.where(scale, scale, 1))
    codes = np.clip(np.rint(w / np.where(scale, scale, 1)) + zero, least, least + steps)
    return ((codes - zero) * scale).reshape(weights.shape)


@pytest.mark.parametrize(
    ("qtype", "scheme", "bound"),
    [
        ("Q4_1", "int8_g32", 0.0040),
        ("Q4_K", "int8_g32", 0.0040),
        ("Q6_K", "int8_g32", 0.0042),
        ("IQ4_XS", "int8_g32", 0.0003),  # codes kept, scales rounded to float16
        ("MXFP4", "int8_g32", 0.0),  # codes kept, powers of two
        ("Q4_1", "int4_asym_g32", 0.070),
        ("Q4_K", "int4_asym_g32", 0.070),
        ("Q5_K", "int4_asym_g32", 0.080),
        ("Q2_K", "int4_asym_g32", 0.070),
    ],
)
def test_loss_on_normal_numbers(qtype: str, scheme: str, bound: float) -> None:
    layout = TYPES[qtype]
    x = np.random.default_rng(7).standard_normal((2**15 // layout.block, layout.block)).astype(np.float32) * 0.02
    p = SCHEMES[scheme].pack(qtype, ggml.quantize(layout.id, x), 8, "float16")
    assert bound * 0.5 <= claimed(p) <= bound


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(("qtype", "scheme"), [*PAIRS, ("MXFP4", "gpt_oss_mxfp4")])
def test_kernels_equal_the_torch_reference(qtype: str, scheme: str, dtype: str) -> None:
    for kind in KINDS:
        blocks, shape = rows_of(scheme, qtype, finite(qtype, kind), 1)
        blocks.flags.writeable = False  # as a memory map is
        ours = SCHEMES[scheme].pack(qtype, blocks, shape[0], dtype)
        reference = torch_packing.pack(SCHEMES[scheme], qtype, blocks, shape[0], dtype)
        same(ours, reference)
        assert ours.error == pytest.approx(reference.error, rel=1e-6)
        assert ours.power == pytest.approx(reference.power, rel=1e-6)


@pytest.mark.parametrize(("qtype", "scheme"), PAIRS)
def test_chunks_of_rows_make_the_whole(qtype: str, scheme: str) -> None:
    blocks, shape = rows_of(scheme, qtype, np.concatenate([tame(qtype, k) for k in ("random", "quantized")]), 1)
    target = SCHEMES[scheme]
    n_rows = min(shape[0], 21)
    per_row = len(blocks) // shape[0]
    whole = target.pack(qtype, blocks[: n_rows * per_row], n_rows, "float16")
    cuts = [0, 8, 16, n_rows] if target.row_step > 1 else [0, 1, n_rows]
    chunks = [
        target.pack(qtype, blocks[start * per_row : stop * per_row], stop - start, "float16")
        for start, stop in pairwise(cuts)
        if stop > start
    ]
    for suffix, part in whole.parts.items():
        np.testing.assert_array_equal(np.concatenate([c.parts[suffix] for c in chunks]), part, err_msg=suffix)
    assert sum(c.error for c in chunks) == pytest.approx(whole.error)


@pytest.mark.parametrize("n_rows", [9, 13, 16, 24])  # its reader fails on fewer than 9 rows with zero points
@pytest.mark.parametrize("qtype", ["Q4_0", "Q4_1"])
def test_words_are_those_of_compressed_tensors(qtype: str, n_rows: int) -> None:
    """Codes and zero points go through its own packer once more, which gives the same words, padding included."""
    scheme, shape = SCHEMES["int4_asym_g32"], (n_rows, 96)
    blocks = ggml.quantize(TYPES[qtype].id, np.random.default_rng(5).standard_normal((n_rows * 3, 32)))
    found = packed.tensors(scheme, shape, scheme.pack(qtype, blocks, n_rows, "float16"), "float16")
    codes = unpack_from_int32(found["weight_packed"], 4, torch.Size(shape))
    zeros = unpack_from_int32(found["weight_zero_point"], 4, torch.Size((n_rows, 3)), packed_dim=0)
    assert torch.equal(pack_to_int32(codes, 4), found["weight_packed"])
    assert torch.equal(pack_to_int32(zeros.contiguous(), 4, packed_dim=0), found["weight_zero_point"])
    assert found["weight_shape"].tolist() == list(shape)
    assert qtype == "Q4_1" or (zeros == 0).all()


def test_bfloat16_scales_cost_nothing_where_they_are_representable() -> None:
    blocks = finite("Q8_0", "random")[:64]
    blocks[:, :2] = np.array([0.375, -(2.0**-20)] * 32, "<f2").view(np.uint8).reshape(-1, 2)
    p = SCHEMES["int8_g32"].pack("Q8_0", blocks, 4, "bfloat16")
    wanted = values("Q8_0", blocks).reshape(4, -1)
    np.testing.assert_array_equal(packed.weights(SCHEMES["int8_g32"], wanted.shape, p, "bfloat16"), wanted)
    assert (p.error, p.bad) == (0, 0)


@pytest.mark.parametrize(("qtype", "scheme"), [pair for pair in EXACT if TYPES[pair[0]].block != 64])
def test_bfloat16_scales_are_rounded_and_the_error_says_so(qtype: str, scheme: str) -> None:
    blocks, shape = rows_of(scheme, qtype, tame(qtype, "random"), 1)
    p = SCHEMES[scheme].pack(qtype, blocks, shape[0], "bfloat16")
    wanted = values(qtype, blocks).reshape(shape)
    loss = relative(packed.weights(SCHEMES[scheme], shape, p, "bfloat16"), wanted)
    assert claimed(p) == pytest.approx(loss, rel=1e-6)
    if "mxfp4" not in scheme:
        assert 0.0005 < loss < 0.004


@pytest.mark.parametrize(("qtype", "scheme"), [p for p in PAIRS if p[0] not in ("MXFP4", "NVFP4", "IQ1_M", "Q8_K")])
@pytest.mark.parametrize("bits", [0x7C00, 0xFC00, 0x7E01])
def test_weights_that_are_no_numbers_are_counted(qtype: str, scheme: str, bits: int) -> None:
    blocks, shape = rows_of(scheme, qtype, tame(qtype, "random"), 1)
    at = 0
    for field in TYPES[qtype].fields:
        if field.name == "d":
            break
        at += field.nbytes
    blocks[1, at : at + 2] = np.array([bits], "<u2").view(np.uint8)
    broken = ~np.isfinite(values(qtype, blocks).reshape(-1, SCHEMES[scheme].column_step)).all(1)
    assert broken.any()
    assert SCHEMES[scheme].pack(qtype, blocks, shape[0], "float16").bad == broken.sum()


def test_scales_beyond_float16_are_counted() -> None:
    """65504 * 63 * 15 is 15 times what int8 codes and the largest float16 scale can say."""
    blocks = np.full((9, 144), 0xFF, np.uint8)
    blocks[:, :4] = np.array([65504, 0], "<f2").view(np.uint8)
    for scheme in ("int8_g32", "int4_asym_g32"):
        assert SCHEMES[scheme].pack("Q4_K", blocks, 9, "float16").bad == 72
        p = SCHEMES[scheme].pack("Q4_K", blocks, 9, "bfloat16")
        read = packed.weights(SCHEMES[scheme], (9, 256), p, "bfloat16")
        assert p.bad == 0
        assert relative(read, values("Q4_K", blocks)) < 0.005


@pytest.mark.parametrize("bits", [0x0001, 0x0002, 0x0010, 0x8003])
@pytest.mark.parametrize(("qtype", "scheme"), [("Q4_K", "int8_g32"), ("Q4_K", "int4_asym_g32"), ("IQ4_XS", "int8_g32")])
def test_tiny_scales(qtype: str, scheme: str, bits: int) -> None:
    """Subnormal float16 scales round coarsely: the loss is stated, and no larger than it has to be."""
    blocks, shape = rows_of(scheme, qtype, finite(qtype, "random")[:32], 1)
    blocks[:, :2] = np.array([bits], "<u2").view(np.uint8)
    if qtype == "Q4_K":
        blocks[:, 2:4] = blocks[:, :2]
    wanted = values(qtype, blocks).reshape(shape)
    p = SCHEMES[scheme].pack(qtype, blocks, shape[0], "float16")
    read = packed.weights(SCHEMES[scheme], shape, p)
    assert p.bad == 0
    assert claimed(p) == pytest.approx(relative(read, wanted), rel=1e-3)
    # Every scale there is finds the lattices of such weights more often than a few trials do.
    bits, slack = (8, 1.7) if scheme == "int8_g32" else (4, 1.1)
    assert p.error <= slack * least_error(wanted.reshape(-1, 32), bits)


def least_error(w: np.ndarray, bits: int) -> float:
    """Of all multiples of 2^-24, and of all zero points of 4 bits, the best for each group of small weights."""
    top = (1 << bits) - 1
    zeros = np.array([128.0]) if bits == 8 else np.arange(16.0)
    best = np.square(w, dtype=np.float64).sum(1)
    for steps in range(1, int(2**24 * np.abs(w).max() / (100 if bits == 8 else 7)) + 2):
        for scale in (steps * 2.0**-24, -steps * 2.0**-24):
            codes = np.rint(w / scale)[:, None] + zeros[:, None]
            left = w[:, None] - scale * (np.clip(codes, 0, top) - zeros[:, None])
            best = np.minimum(best, np.square(left, dtype=np.float64).sum(2).min(1))
    return float(best.sum())


def test_all_zeros() -> None:
    for qtype, scheme in PAIRS:
        blocks, shape = rows_of(scheme, qtype, np.zeros((64, TYPES[qtype].nbytes), np.uint8), 1)
        p = SCHEMES[scheme].pack(qtype, blocks, shape[0], "float16")
        if qtype != "MXFP4":  # its smallest scale is 2^-127
            assert not packed.weights(SCHEMES[scheme], shape, p).any()
        assert (p.error, p.bad) == (0, 0)


def test_mxfp4_scales_at_the_end_of_the_range() -> None:
    """The scale byte 255 is 2^128 to ggml and NaN to everybody else, who agree with it about zeros only."""
    blocks = np.zeros((5, 17), np.uint8)
    blocks[:, 0] = [255, 255, 254, 253, 252]
    blocks[0, 1:] = 0x80  # zeros, some negative
    blocks[1, 9] = 0x01  # 0.5
    blocks[2, 9] = 0x04  # 2.0 * 2^127
    blocks[3, 9] = 0x60  # 4.0 * 2^126
    blocks[4, 9] = 0x77  # 6.0 * 2^125 is still a float32
    scheme = SCHEMES["mxfp4"]
    assert [scheme.pack("MXFP4", b[None], 1, "float16").bad for b in blocks] == [0, 1, 1, 1, 0]
    good = blocks[[0, 4]]
    p = scheme.pack("MXFP4", good, 2, "float16")
    np.testing.assert_array_equal(packed.weights(scheme, (2, 32), p), values("MXFP4", good))
    same(p, torch_packing.pack(scheme, "MXFP4", good, 2, "float16"))
    for b in blocks:
        other = torch_packing.pack(scheme, "MXFP4", b[None], 1, "float16")
        assert other.bad == scheme.pack("MXFP4", b[None], 1, "float16").bad


def test_nvfp4_scales_that_e4m3_reads_otherwise() -> None:
    """ggml: 0x7F is 0, a sign is ignored, 0xFF is 480."""
    blocks = np.full((2, 36), 0x21, np.uint8)
    blocks[0, :4] = [0x7F, 0x80 | 0x38, 0x38, 0x00]
    blocks[1, :4] = [0xFF, 0xFF, 0x7E, 0x01]
    blocks[1, 4:12] = 0x80  # zeros: any scale will do
    scheme = SCHEMES["nvfp4"]
    first = scheme.pack("NVFP4", blocks[:1], 1, "float16")
    wanted = values("NVFP4", blocks[:1])
    np.testing.assert_array_equal(packed.weights(scheme, (1, 64), first), wanted)
    assert (wanted[0, 16:32] == wanted[0, 32:48]).all()
    assert first.bad == 0
    second = scheme.pack("NVFP4", blocks[1:], 1, "float16")
    assert second.bad == 1
    same(second, torch_packing.pack(scheme, "NVFP4", blocks[1:], 1, "float16"))


@pytest.mark.parametrize("scale", [1.0, 0.5, 4.0])
def test_nvfp4_scale_of_the_whole_weight(scale: float) -> None:
    scheme, blocks = SCHEMES["nvfp4"], tame("NVFP4", "quantized")
    shape = (len(blocks), 64)
    p = scheme.pack("NVFP4", blocks, len(blocks), "float16")
    wanted = values("NVFP4", blocks).reshape(shape) * np.float32(scale)
    np.testing.assert_array_equal(packed.weights(scheme, shape, p, scale=scale), wanted)


@pytest.mark.parametrize("scale", [1.0, 2.0**-9, 3.0, 5.0, 0.75, 0.1, 1 / 3, 0.0123, 1e-3, 448.0, 1.7])
def test_nvfp4_scales_that_are_exact(scale: float) -> None:
    """All codes under all scales, by torch's own float8: the numbers that gguf-py gives times the scale, or not.

    compressed-tensors itself computes in bfloat16.
    """
    scheme, scale = SCHEMES["nvfp4"], float(np.float32(scale))
    blocks = np.zeros((32, 36), np.uint8)
    blocks[:, :4] = np.arange(128).reshape(32, 4) % 127
    blocks[:, 4:] = np.tile(np.arange(8) << 4 | np.arange(8, 16), 4)
    p = scheme.pack("NVFP4", blocks, 32, "float16")
    wanted = values("NVFP4", blocks).reshape(32, 64) * np.float32(scale)
    fp4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    codes = torch.from_numpy(p.parts["_packed"]).reshape(32, 32)
    numbers = torch.cat([fp4, -fp4])[torch.stack([codes & 15, codes >> 4], -1).long()].reshape(32, 4, 16)
    divisor = torch.from_numpy(scheme.once((32, 64), scale)["_global_scale"]).view(torch.float32)
    groups = torch.from_numpy(p.parts["_scale"]).view(torch.float8_e4m3fn).float().reshape(32, 4, 1) / divisor
    found = (numbers * groups).reshape(32, 64).numpy()
    assert np.array_equal(found, wanted) == is_exact("NVFP4", "nvfp4", scale=scale)
    np.testing.assert_allclose(found, wanted, rtol=2.0**-22)


def test_some_scales_of_the_whole_weight_are_exact_and_some_are_not() -> None:
    assert {is_exact("NVFP4", "nvfp4", scale=scale) for scale in (2.0, 0.125)} == {True}
    assert {is_exact("NVFP4", "nvfp4", scale=scale) for scale in (0.1, 1.7, -2.0)} == {False}
    assert not is_exact("MXFP4", "mxfp4", scale=2.0)


@pytest.mark.parametrize("scale", [0.0, math.inf, math.nan, -1.0, 1e-40, 1e39])
def test_nvfp4_refuses_a_scale_without_an_inverse(scale: float) -> None:
    with pytest.raises(SchemeError, match="is no float32"):
        SCHEMES["nvfp4"].once((1, 64), scale)


def test_others_have_no_scale_of_the_whole_weight() -> None:
    for name in SCHEMES.keys() - {"nvfp4"}:
        with pytest.raises(ValueError, match="no tensor for a scale"):
            SCHEMES[name].once((8, 128), 0.5)


def test_experts_of_gpt_oss() -> None:
    scheme, blocks = SCHEMES["gpt_oss_mxfp4"], finite("MXFP4", "quantized")
    shape = (3, 4, 128)
    p = scheme.pack("MXFP4", blocks, 12, "bfloat16")
    assert [(part.name("gate_up_proj"), part.dtype, part.shape) for part in scheme.parts(shape, "bfloat16")] == [
        ("gate_up_proj_blocks", "uint8", (3, 4, 4, 16)),
        ("gate_up_proj_scales", "uint8", (3, 4, 4)),
    ]
    np.testing.assert_array_equal(packed.experts(scheme, shape, p), values("MXFP4", blocks).reshape(shape))


def test_parts_by_name() -> None:
    def listed(scheme: str, shape: tuple[int, ...]) -> list[tuple[object, ...]]:
        parts = SCHEMES[scheme].parts(shape, "float16")
        return [(p.name("up.weight"), p.dtype, p.shape, p.span) for p in parts]

    assert listed("int8_g32", (6, 64)) == [
        ("up.weight_packed", "int32", (6, 16), 1),
        ("up.weight_scale", "float16", (6, 2), 1),
        ("up.weight_shape", "int64", (2,), 0),
    ]
    assert listed("int4_asym_g32", (13, 64)) == [
        ("up.weight_packed", "int32", (13, 8), 1),
        ("up.weight_scale", "float16", (13, 2), 1),
        ("up.weight_shape", "int64", (2,), 0),
        ("up.weight_zero_point", "int32", (2, 2), 8),
    ]
    assert listed("mxfp4", (6, 64)) == [
        ("up.weight_packed", "uint8", (6, 32), 1),
        ("up.weight_scale", "uint8", (6, 2), 1),
    ]
    assert listed("nvfp4", (6, 64)) == [
        ("up.weight_global_scale", "float32", (1,), 0),
        ("up.weight_packed", "uint8", (6, 32), 1),
        ("up.weight_scale", "float8_e4m3", (6, 4), 1),
    ]


@pytest.mark.parametrize(
    ("scheme", "shape"), [("int4_g32", (4, 48)), ("int4_g128", (4, 64)), ("mxfp4", (2, 4, 64)), ("nvfp4", (4, 0))]
)
def test_shapes_that_do_not_divide(scheme: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=f"{scheme} holds"):
        SCHEMES[scheme].parts(shape, "float16")


@pytest.mark.parametrize(
    ("scheme", "qtype"),
    [
        ("int4_g32", "Q6_K"),
        ("int4_g32", "Q8_0"),
        ("int4_g128", "Q4_0"),
        ("int4_asym_g32", "IQ4_XS"),
        ("nvfp4", "MXFP4"),
    ],
)
def test_types_that_are_no_source(scheme: str, qtype: str) -> None:
    blocks, shape = rows_of(scheme, qtype, tame(qtype, "quantized"), 1)
    with pytest.raises(SchemeError, match=f"{qtype} cannot become {scheme}"):
        SCHEMES[scheme].pack(qtype, blocks, shape[0], "float16")


@pytest.mark.parametrize(
    ("blocks", "n_rows"),
    [
        (np.zeros((4, 17), np.uint8), 2),
        (np.zeros((4, 18), np.int8), 2),
        (np.zeros((4, 36), np.uint8)[:, ::2], 2),
        (np.zeros((4, 18), np.uint8), 3),
        (np.zeros((4, 18), np.uint8), 0),
    ],
)
def test_blocks_that_are_no_rows(blocks: np.ndarray, n_rows: int) -> None:
    with pytest.raises(ValueError, match="expected C-contiguous uint8"):
        SCHEMES["int4_g32"].pack("Q4_0", blocks, n_rows, "float16")


def test_known_scales_have_kernels() -> None:
    assert SCALES.keys() == KEPT


def test_memory_does_not_grow_with_float32_copies() -> None:
    blocks = np.resize(tame("Q4_K", "quantized"), (1 << 14, 144))  # 4 Mi weights: 16 MiB in float32
    SCHEMES["int8_g32"].pack("Q4_K", blocks[:16], 1, "float16")
    tracemalloc.start()
    try:
        p = SCHEMES["int8_g32"].pack("Q4_K", blocks, 64, "float16")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak - sum(len(part) for part in p.parts.values()) < 3 << 20


def test_threads_do_not_disturb_each_other() -> None:
    cases = [(q, s) for q, s in PAIRS if q in ("Q4_0", "Q4_K", "IQ4_XS", "MXFP4")]
    work = [(s, q, *rows_of(s, q, tame(q, "quantized"), 1)) for q, s in cases]

    def pack(case: tuple[str, str, np.ndarray, tuple[int, int]]) -> Packed:
        scheme, qtype, blocks, shape = case
        return SCHEMES[scheme].pack(qtype, blocks, shape[0], "float16")

    alone = [pack(case) for case in work]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            for one, other in zip(alone, pool.map(pack, work), strict=True):
                same(one, other)
