"""Ops against torch and numpy, against llama.cpp's own converter, and packed bytes against gguf-py's dequantization."""

import contextlib
import itertools
import math
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

from gguf2st.ops import ANY, OPS, same_shape
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
    "interleave_halves": _one(
        st.tuples(SIZES, SIZES, st.integers(0, 3), st.lists(SIZES, max_size=1)).map(
            lambda t: ((t[0] * (2 * t[1] + t[2]), *t[3]), (t[0], 2 * t[1]))
        )
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
    "first_less_second": _one(SIZES.map(lambda n_cols: ((2, n_cols), ()))),
    "rows": _one(
        st.tuples(SIZES, SIZES, st.lists(SIZES, max_size=1)).map(lambda t: ((t[0] + t[1], *t[2]), (t[0] - 1, t[0])))
    ),
    "part": _one(
        st.tuples(SIZES, SIZES, st.lists(SIZES, max_size=1)).map(
            lambda t: ((t[0] + t[1], *t[2]), ((t[0] + t[1] - 1) // t[0], t[0]))
        )
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
    "concat": st.tuples(
        st.lists(SIZES, min_size=1, max_size=3),
        st.none() | st.tuples(st.lists(SIZES, max_size=2), SIZES),
    ).map(lambda t: ([(n,) if t[1] is None else (*t[1][0], n, t[1][1]) for n in t[0]], ())),
    "transpose": _one(st.tuples(st.lists(SIZES, min_size=2, max_size=3).map(tuple), st.just(()))),
    "unsqueeze": _one(st.tuples(MATRIX, st.integers(0, 2).map(lambda axis: (axis,)))),
    "flatten": _one(st.tuples(st.lists(SIZES, min_size=1, max_size=3).map(tuple), st.just(()))),
    "log_neg": _one(st.tuples(MATRIX, st.just(()))),
    "merge_kv_b": st.tuples(SIZES, SIZES, SIZES, SIZES).map(lambda t: ([(t[0], t[1], t[2]), (t[0], t[3], t[1])], ())),
    "interleave": MATRIX.map(lambda shape: ([shape, shape], ())),
    "interleave_rows": st.lists(SIZES, min_size=2, max_size=3).map(lambda shape: ([tuple(shape)] * 2, ())),
    "swap_columns": _one(
        st.tuples(SIZES, SIZES, SIZES, SIZES).map(lambda t: ((t[3], t[0] * t[1] * t[2]), (t[0], t[1])))
    ),
    "pad_rows": _one(st.tuples(MATRIX, st.integers(0, 3).map(lambda n: (n,)))),
    "fill": st.tuples(st.sampled_from([0, 1.5]), st.lists(SIZES, min_size=1, max_size=3)).map(
        lambda t: ([], (t[0], *t[1]))
    ),
    "values": st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4).map(lambda numbers: ([], tuple(numbers))),
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
        ("interleave_halves", (8, 4), (2, 3)),
        ("interleave_halves", (8, 4), (2, 6)),
        ("interleave_halves", (8, 4), (3, 2)),
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
        ("minus", (4,), ()),
        ("rows", (8, 4), (0, 2, 4)),
        ("part", (8, 4), (2, 4)),
        ("part", (8, 4), (-1, 4)),
        ("part", (8, 4), (0, 0)),
    ],
)
def test_what_does_not_fit_is_a_value_error(name: str, shape: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        OPS[name].result([shape], *arguments)


@pytest.mark.parametrize(
    ("found", "promised", "same"),
    [
        ((64,), [1, 64], True),
        ((1, 64), [64], True),
        ((1, 64, 1, 4), [64, 1, 4], True),
        ((4, 1), [1, 1, 4, 1], True),
        ((1,), [], True),
        ((64, 1), [64], False),
        ((64, 1), [1, 64], False),
        ((2, 3), [3, 2], False),
        ((2, 3), [2, 3.0], False),
        ((2, 3), [2, 6 / 2], False),
    ],
)
def test_shapes_are_the_same_but_for_leading_ones(found: tuple[int, ...], promised: list[Any], same: bool) -> None:
    assert same_shape(found, promised) == same


def test_unpermute_in_its_docstring() -> None:
    file_order = np.array(["r0", "r2", "r1", "r3"])
    assert OPS["unpermute"].fn(file_order, 1).tolist() == ["r0", "r1", "r2", "r3"]


def test_regroup_in_its_docstring() -> None:
    parts = np.array(["q0", "q1", "v0", "v0", "v0", "v1", "v1", "v1"])
    assert OPS["regroup"].fn(parts, 2, 1, 3).tolist() == ["q0", "v0", "v0", "v0", "q1", "v1", "v1", "v1"]


def test_part_in_its_docstring() -> None:
    table = np.array([["r0"], ["r1"], ["r2"], ["r3"], ["r4"]])
    assert [OPS["part"].fn(table, n, 2).ravel().tolist() for n in range(3)] == [["r0", "r1"], ["r2", "r3"], ["r4"]]


def test_first_less_second_in_its_docstring() -> None:
    rows = np.array([[3.0, 0.5], [1.0, 2.0]], np.float32)
    assert OPS["first_less_second"].fn(rows).tolist() == [[2.0, -1.5]]
    x = torch.randn(2, generator=torch.Generator().manual_seed(0))
    two = torch.softmax(torch.from_numpy(rows) @ x, 0)
    one = torch.sigmoid(torch.from_numpy(OPS["first_less_second"].fn(rows)) @ x)
    torch.testing.assert_close(two[:1], one)


@pytest.mark.parametrize("name", [name for name, op in OPS.items() if op.n_arrays])
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_ops_say_how_many_elements_they_merge(name: str, data: st.DataObject) -> None:
    """But for those that take a part, all elements of the sources are in the result."""
    shapes, arguments = data.draw(CASES[name])
    op = OPS[name]
    n_elements = sum(math.prod(shape) for shape in shapes)
    result = op.merges * math.prod(op.result(shapes, *arguments))
    assert result <= n_elements if name in ("take", "rows", "part") else result >= n_elements
    assert name == "pad_rows" or result <= n_elements


@pytest.mark.parametrize("numbers", [(2**63,), (1, -(2**63) - 1), (1.0,), (True,), ("1",), ([1],)])
def test_values_are_whole_numbers_of_64_bits(numbers: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match=r"beyond 64 bits|not a whole number"):
        OPS["values"].result([], *numbers)
    whole = OPS["values"].fn(-(2**63), 2**45 + 1, 2**63 - 1)
    assert (whole.dtype, whole.tolist()) == (np.int64, [-(2**63), 2**45 + 1, 2**63 - 1])


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


def test_concat_and_flatten_in_their_docstrings() -> None:
    stack = np.array([[["a0", "a1"]], [["b0", "b1"]]])  # two experts of one row
    more = np.array([[["c0", "c1"]], [["d0", "d1"]]])
    joined = OPS["concat"].fn(stack, more)
    assert joined.tolist() == [[["a0", "a1"], ["c0", "c1"]], [["b0", "b1"], ["d0", "d1"]]]
    assert OPS["flatten"].fn(joined).tolist() == [["a0", "a1"], ["c0", "c1"], ["b0", "b1"], ["d0", "d1"]]


def test_interleave_halves_in_its_docstring() -> None:
    head = np.array(["r0", "r2", "r1", "r3", "r4"])
    assert OPS["interleave_halves"].fn(head, 1, 4).tolist() == ["r0", "r1", "r2", "r3", "r4"]


SHAPES = [shape for n in range(4) for shape in itertools.product(range(1, 7), repeat=n) if math.prod(shape) <= 24]
ARGUMENTS: dict[str, list[tuple[Any, ...]]] = {
    "unpermute_first": [(1, 2), (2, 2), (1, 4)],
    "unpermute": [(1,), (2,)],
    "interleave_halves": [(1, 2), (2, 2), (1, 4)],
    "take": [(0,), (1,)],
    "minus": [(1,)],
    "times": [(2,)],
    "rows": [(0, 1), (1, 3)],
    "part": [(0, 2), (1, 2)],
    "swap": [(1, 2), (2, 2)],
    "swap_from": [(1, 1, 2), (2, 2, 1)],
    "regroup": [(2, 1), (1, 1, 2)],
    "unsqueeze": [(0,), (1,), (2,)],
    "swap_columns": [(1, 2), (2, 2)],
    "pad_rows": [(0,), (2,)],
}
"""Arguments for the ops that have any; all others are tried without."""


@pytest.mark.parametrize("name", [name for name, op in OPS.items() if op.n_arrays])
def test_ops_that_forget_their_sources_shapes_say_so(name: str) -> None:
    """Of all small shapes: whether two sets of them give the same result under the same arguments."""
    op = OPS[name]
    n_arrays = 2 if op.n_arrays == ANY else op.n_arrays
    shapes = SHAPES if n_arrays == 1 else [s for s in SHAPES if math.prod(s) <= 8]
    sources: dict[Any, set[Any]] = {}
    for inputs, arguments in itertools.product(itertools.product(shapes, repeat=n_arrays), ARGUMENTS.get(name, [()])):
        with contextlib.suppress(ValueError, IndexError):
            result = op.result(inputs, *arguments)
            known = [shape[1:] if name in ("take", "rows", "part") else shape for shape in inputs]
            sources.setdefault((arguments, result), set()).add(tuple(known))
    assert len(sources) > 5
    assert any(len(found) > 1 for found in sources.values()) == op.forgets


PACKED: dict[str, list[tuple[tuple[int, ...], tuple[int, ...]]]] = {
    "unpermute_first": [((16, 256), (2, 6)), ((9, 512), (2, 4))],
    "unpermute": [((16, 256), (2,)), ((24, 512), (3,)), ((4, 256), (2,)), ((8, 256), (1,))],
    "interleave_halves": [((16, 256), (2, 4)), ((12, 512), (3, 4))],
    "take": [((3, 4, 256), (0,)), ((3, 4, 256), (2,)), ((2, 1, 512), (1,))],
    "rows": [((12, 256), (0, 4)), ((12, 256), (4, 12)), ((2, 512), (1, 2))],
    "part": [((12, 256), (0, 5)), ((12, 256), (2, 5)), ((2, 512), (0, 2))],
    "swap": [((12, 256), (3, 2)), ((12, 256), (2, 6)), ((8, 512), (2, 2))],
    "swap_from": [((12, 256), (4, 2, 2)), ((14, 512), (2, 3, 2))],
    "regroup": [((12, 256), (2, 1, 1, 4)), ((6, 512), (3, 2))],
    "concat": [((3, 256), ()), ((2, 3, 512), ())],
    "interleave_rows": [((3, 256), ()), ((2, 3, 512), ())],
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
    fn, kind = OPS[name].fn, gguf.GGMLQuantizationType[qtype]
    random = np.random.default_rng(len(shape))
    n_arrays = 2 if OPS[name].n_arrays == ANY else OPS[name].n_arrays
    packed = [quantize(random.standard_normal(shape, np.float32), qtype) for _ in range(n_arrays)]
    rows_moved = gguf.dequantize(np.ascontiguousarray(fn(*packed, *arguments)), kind)
    values_moved = fn(*(gguf.dequantize(x, kind) for x in packed), *arguments)
    np.testing.assert_array_equal(rows_moved.view(np.uint32), np.ascontiguousarray(values_moved).view(np.uint32))
