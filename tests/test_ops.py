"""Ops against torch and numpy, against llama.cpp's own converter, and packed bytes against gguf-py's dequantization."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf2st.ops import OPS
from tests.make_gguf import quantize

SIZES = st.integers(1, 6)

MATRIX = st.tuples(SIZES, SIZES)


def _one(strategy: Any) -> Any:
    """A strategy of (shape, arguments) as one of ([shape], arguments)."""
    return strategy.map(lambda pair: ([pair[0]], pair[1]))


CASES: dict[str, Any] = {
    "unpermute_first": _one(
        st.tuples(SIZES, SIZES, SIZES).map(lambda t: ((t[0] * 2 * t[1] + t[2], t[2]), (t[0], 2 * t[1])))
    ),
    "unpermute": _one(
        st.tuples(SIZES, SIZES, st.lists(SIZES, max_size=2)).map(lambda t: ((t[0] * t[1] * 2, *t[2]), (t[0],)))
    ),
    "take": _one(
        st.tuples(SIZES, st.lists(SIZES, min_size=1, max_size=2)).flatmap(
            lambda t: st.integers(0, t[0] - 1).map(lambda index: ((t[0], *t[1]), (index,)))
        )
    ),
    "minus": _one(
        st.tuples(st.lists(SIZES, min_size=1, max_size=3), st.sampled_from([1, 1.0, -2.5])).map(
            lambda t: (tuple(t[0]), (t[1],))
        )
    ),
    "times": _one(st.tuples(MATRIX, st.sampled_from([2, 0.5]).map(lambda x: (x,)))),
    "rows": _one(
        st.tuples(SIZES, SIZES, st.lists(SIZES, max_size=1)).map(lambda t: ((t[0] + t[1], *t[2]), (t[0] - 1, t[0])))
    ),
    "swap": _one(
        st.tuples(SIZES, SIZES, SIZES, st.lists(SIZES, max_size=1)).map(
            lambda t: ((t[0] * t[1] * t[2], *t[3]), (t[0], t[1]))
        )
    ),
    "swap_from": _one(
        st.tuples(SIZES, SIZES, SIZES, st.integers(0, 3), st.lists(SIZES, max_size=1)).map(
            lambda t: ((t[3] + t[0] * t[1] * t[2], *t[4]), (t[3], t[0], t[1]))
        )
    ),
    "regroup": _one(
        st.tuples(SIZES, st.lists(SIZES, min_size=1, max_size=4), st.lists(SIZES, max_size=1)).map(
            lambda t: ((t[0] * sum(t[1]), *t[2]), (t[0], *t[1]))
        )
    ),
    "concat": st.tuples(st.lists(SIZES, min_size=1, max_size=4), SIZES).map(lambda t: ([(n, t[1]) for n in t[0]], ())),
    "concat_rows": st.tuples(st.lists(SIZES, min_size=1, max_size=3), st.lists(SIZES, max_size=2), SIZES).map(
        lambda t: ([(*t[1], n, t[2]) for n in t[0]], ())
    ),
    "transpose": _one(st.tuples(st.lists(SIZES, min_size=2, max_size=3).map(tuple), st.just(()))),
    "unsqueeze": _one(st.tuples(MATRIX, st.integers(0, 2).map(lambda axis: (axis,)))),
    "flatten": _one(st.tuples(MATRIX, st.just(()))),
    "log_neg": _one(st.tuples(MATRIX, st.just(()))),
    "merge_kv_b": st.tuples(SIZES, SIZES, SIZES, SIZES).map(lambda t: ([(t[0], t[1], t[2]), (t[0], t[3], t[1])], ())),
    "interleave": MATRIX.map(lambda shape: ([shape, shape], ())),
    "interleave_rows": st.lists(SIZES, min_size=2, max_size=3).map(lambda shape: ([tuple(shape)] * 2, ())),
    "swap_columns": _one(
        st.tuples(SIZES, SIZES, SIZES, SIZES).map(lambda t: ((t[3], t[0] * t[1] * t[2]), (t[0], t[1])))
    ),
    "pad_rows": _one(st.tuples(MATRIX, st.integers(0, 3).map(lambda n: (n,)))),
    "reshape": _one(st.tuples(SIZES, SIZES, SIZES).map(lambda t: ((t[0] * t[1], t[2]), (t[0], t[1], t[2])))),
    "fill": st.tuples(st.sampled_from([0, 1.5]), st.lists(SIZES, min_size=1, max_size=3)).map(
        lambda t: ([], (t[0], *t[1]))
    ),
}
"""Op -> strategy of (shapes, arguments) that fit."""


def test_every_op_has_cases() -> None:
    assert CASES.keys() == OPS.keys()


@pytest.mark.parametrize("name", OPS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_shape_rule_is_the_op_itself(name: str, data: st.DataObject) -> None:
    shapes, arguments = data.draw(CASES[name])
    op = OPS[name]
    found = op.result(shapes, *arguments)
    values = (np.full(s, -1, np.float32) for s in shapes)  # within the domain of every op
    if shapes:
        assert found == tuple(op.fn(*(torch.empty(s, device="meta") for s in shapes), *arguments).shape)
    assert found == np.asarray(op.fn(*values, *arguments)).shape


@pytest.mark.parametrize("name", [name for name, op in OPS.items() if op.n_arrays])
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_numpy_and_torch_give_the_same(name: str, data: st.DataObject) -> None:
    shapes, arguments = data.draw(CASES[name])
    rng = np.random.default_rng(0)
    arrays = [-rng.random(shape, np.float32) - 0.5 for shape in shapes]
    by_torch = OPS[name].fn(*(torch.from_numpy(a) for a in arrays), *arguments).numpy()
    ours = OPS[name].fn(*arrays, *arguments)
    if name == "log_neg":  # two libraries' logarithms
        np.testing.assert_allclose(ours, by_torch, rtol=1e-6, atol=1e-7)
    else:
        np.testing.assert_array_equal(ours, by_torch)


@pytest.mark.parametrize(
    ("name", "shape", "arguments"),
    [
        ("unpermute", (64, 8), (0,)),
        ("unpermute", (64, 8), (-4,)),
        ("unpermute", (64, 8), (3,)),
        ("unpermute", (6, 8), (2,)),  # heads of three rows hold no pairs
        ("unpermute", (64, 8), (128,)),
        ("unpermute", (), (1,)),
        ("unpermute", (64, 8), (4.0,)),
        ("unpermute", (64, 8), (True,)),
        ("unpermute", (64, 8), ("4",)),
        ("take", (4, 8, 8), (4,)),
        ("take", (4, 8, 8), (-1,)),
        ("take", (4,), (0,)),
        ("take", (), (0,)),
        ("take", (4, 8, 8), (1.0,)),
        ("take", (4, 8, 8), (False,)),
        ("swap_from", (8, 4), (8, 1, 1)),
        ("swap_from", (8, 4), (-1, 1, 1)),
        ("swap_from", (8, 4), (2, 4, 1)),
        ("regroup", (8, 4), (0, 4)),
        ("regroup", (8, 4), (2, 1, 2)),
        ("regroup", (8, 4), (2,)),
        ("regroup", (8, 4), (2, 5, -1)),
        ("minus", (4,), ("1",)),
        ("minus", (4,), (True,)),
        ("minus", (4,), ([1],)),
    ],
)
def test_what_does_not_fit_is_a_value_error(name: str, shape: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        OPS[name].result([shape], *arguments)


def test_unpermute_in_its_docstring() -> None:
    file_order = np.array(["r0", "r2", "r1", "r3"])
    assert OPS["unpermute"].fn(file_order, 1).tolist() == ["r0", "r1", "r2", "r3"]


def test_regroup_in_its_docstring() -> None:
    parts = np.array(["q0", "q1", "v0", "v0", "v0", "v1", "v1", "v1"])
    assert OPS["regroup"].fn(parts, 2, 1, 3).tolist() == ["q0", "v0", "v0", "v0", "q1", "v1", "v1", "v1"]


@pytest.mark.oracle
def test_unpermute_inverts_the_converter(llamacpp: Path, tmp_path: Path) -> None:
    """`LlamaModel.permute` itself, in a process of its own: it brings its own gguf package."""
    cases = [(4, 2, (64, 3)), (6, 3, (96, 5)), (4, None, (32, 2)), (9, 9, (576, 4)), (4, 1, (16, 2)), (2, 2, (8,))]
    code = (
        "import sys, torch\n"
        f"sys.path[:0] = [{str(llamacpp)!r}, {str(llamacpp / 'gguf-py')!r}]\n"
        "from conversion.llama import LlamaModel\n"
        f"for n, (heads, kv, shape) in enumerate({cases!r}):\n"
        "    x = torch.arange(torch.Size(shape).numel()).reshape(shape)\n"
        f"    torch.save(LlamaModel.permute(x, heads, kv), {str(tmp_path)!r} + f'/{{n}}.pt')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    for n, (heads, kv, shape) in enumerate(cases):
        original = torch.arange(torch.Size(shape).numel()).reshape(shape)
        permuted = torch.load(tmp_path / f"{n}.pt")
        # permute() reshapes by the key's heads when they differ from the query's
        found = OPS["unpermute"].fn(permuted, heads if kv is None else kv)
        assert torch.equal(found, original)
        assert kv == heads == 2 or not torch.equal(permuted, original)


PACKED: dict[str, list[tuple[tuple[int, ...], tuple[int, ...]]]] = {
    "unpermute_first": [((16, 256), (2, 6)), ((9, 512), (2, 4))],
    "unpermute": [((16, 256), (2,)), ((24, 512), (3,)), ((4, 256), (2,)), ((8, 256), (1,))],
    "take": [((3, 4, 256), (0,)), ((3, 4, 256), (2,)), ((2, 1, 512), (1,))],
    "rows": [((12, 256), (0, 4)), ((12, 256), (4, 12)), ((2, 512), (1, 2))],
    "swap": [((12, 256), (3, 2)), ((12, 256), (2, 6)), ((8, 512), (2, 2))],
    "swap_from": [((12, 256), (4, 2, 2)), ((14, 512), (2, 3, 2))],
    "regroup": [((12, 256), (2, 1, 1, 4)), ((6, 512), (3, 2))],
}


def test_every_packed_op_is_tested() -> None:
    assert PACKED.keys() == {name for name, op in OPS.items() if op.packed}


@pytest.mark.parametrize("qtype", ["Q4_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K", "IQ4_XS", "F16", "BF16", "F32"])
@pytest.mark.parametrize(
    ("name", "shape", "arguments"), [(name, *case) for name, cases in PACKED.items() for case in cases]
)
def test_packed_ops_commute_with_dequantization(
    name: str, shape: tuple[int, ...], arguments: tuple[int, ...], qtype: str
) -> None:
    fn = OPS[name].fn
    packed = quantize(np.random.default_rng(len(shape)).standard_normal(shape, np.float32), qtype)
    rows_moved = gguf.dequantize(np.ascontiguousarray(fn(packed, *arguments)), gguf.GGMLQuantizationType[qtype])
    values_moved = fn(gguf.dequantize(packed, gguf.GGMLQuantizationType[qtype]), *arguments)
    np.testing.assert_array_equal(rows_moved.view(np.uint32), np.ascontiguousarray(values_moved).view(np.uint32))
