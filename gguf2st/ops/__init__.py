"""The tensor algebra of arch maps: what undoes llama.cpp's converter.

An op is a pure function over arrays. It uses only what numpy arrays and torch tensors share, so it runs on either,
on any device. Its shape rule stands beside it, so that planning needs neither library (a test holds the two
together on torch's meta device).

`packed=True`: the op only moves whole rows. On a matrix it never touches the last axis, so that it runs unchanged on
quantized bytes `(..., rows, bytes per row)` and commutes with dequantization, if all arrays have the same type. The
rows of a vector are its elements.

`forgets=True`: sources of several shapes give the same one: (a, b) and (b, a) are equal when flattened. An equation
with such an op states the shapes of its sources, or exchanged dimensions would pass for the right ones.

`merges=n`: each number of the result is made of n, so that fewer of them are not a part left behind.
"""

import importlib
import itertools
from collections.abc import Sequence
from typing import Any

from gguf2st.ops.op import ANY, OPS, Array, Op, Shape, op, run_ops

__all__ = ["ANY", "OPS", "PART", "SLICES", "VALUES", "Array", "Op", "Shape", "run_ops", "same_shape"]

PART = "part"
"""The op that takes one of the parts that a table is cut into."""
SLICES = ("rows", PART)
"""Ops that keep neighbouring rows, so that they can be applied to a `range` of the numbers of many."""
VALUES = "values"
"""The op that makes a tensor of metadata."""


def same_shape(found: Sequence[int], promised: Sequence[Any]) -> bool:
    """Whether the shapes are equal but for leading axes of length 1, of which ggml keeps no count.

    llama.cpp's converter writes one row as (1, n), its quantizer writes the same file again with (n,).
    """
    return all(type(n) is int for n in promised) and _without_leading_ones(found) == _without_leading_ones(promised)


def _without_leading_ones(shape: Sequence[int]) -> list[int]:
    return list(itertools.dropwhile(lambda n: n == 1, shape))


def _unpermute_shape(x: Shape, heads: int) -> Shape:
    if not x or heads < 1 or x[0] % (2 * heads):
        raise ValueError(f"{x[0] if x else 'no'} rows are not {heads} heads of an even width")
    return x


@op(packed=True, shape=_unpermute_shape)
def unpermute(x: Array, heads: int) -> Array:
    """Undo llama.cpp's interleave of rotary pairs: rows (heads, d/2, 2) -> (heads, 2, d/2).

    One head of four rows: [r0, r2, r1, r3] in the file, where the pairs that rotate together are neighbours
    -> [r0, r1, r2, r3].
    """
    return x.reshape(heads, -1, 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def _unpermute_first_shape(x: Shape, heads: int, width: int) -> Shape:
    if not x or heads < 1 or width < 1 or width % 2 or heads * width >= x[0]:
        raise ValueError(f"{x[0] if x else 'no'} rows are not {heads} heads of {width} and more")
    return x


@op(packed=True, shape=_unpermute_first_shape)
def unpermute_first(x: Array, heads: int, width: int) -> Array:
    """`unpermute` of the first `heads` heads of `width` rows: the queries and keys of a fused projection."""
    n = heads * width
    return _library(x).concatenate([unpermute(x[:n], heads), x[n:]])


def _interleave_halves_shape(x: Shape, heads: int, width: int) -> Shape:
    if not x or heads < 1 or x[0] % heads or width < 2 or width % 2 or width > x[0] // heads:
        raise ValueError(f"{x[0] if x else 'no'} rows are not {heads} heads of {width} or more")
    return x


@op(packed=True, shape=_interleave_halves_shape)
def interleave_halves(x: Array, heads: int, width: int) -> Array:
    """Undo llama.cpp's split of rotary pairs in the first `width` rows of each head: (2, width/2) -> (width/2, 2).

    One head of five rows, four of which rotate: [r0, r2, r1, r3, r4] in the file, where the first of all pairs come
    before the second -> [r0, r1, r2, r3, r4].
    """
    parts = x.reshape(heads, -1, *x.shape[1:])
    pairs = parts[:, :width].reshape(heads, 2, width // 2, *x.shape[1:]).swapaxes(1, 2)
    whole = pairs.reshape(heads, width, *x.shape[1:])
    return _library(x).concatenate([whole, parts[:, width:]], 1).reshape(x.shape)


def _take_shape(x: Shape, index: int) -> Shape:
    if len(x) < 2 or not 0 <= index < x[0]:
        raise ValueError(f"a tensor of shape {list(x)} has no element {index} along its first axis")
    return x[1:]


@op(packed=True, shape=_take_shape)
def take(x: Array, index: int) -> Array:
    """One expert of a stack: (experts, rows, cols) -> (rows, cols)."""
    return x[index]


@op(packed=False, shape=lambda x, value: x)
def minus(x: Array, value: float) -> Array:
    """Undo llama.cpp's `norm.weight + 1`: (n,) -> (n,), subtracted in float32."""
    return x - value


@op(packed=False, shape=lambda x, value: x)
def times(x: Array, value: float) -> Array:
    """Undo a factor that llama.cpp's converter divided by: (...) -> (...)."""
    return x * value


def _first_less_second_shape(x: Shape) -> Shape:
    if len(x) != 2 or x[0] != 2:
        raise ValueError(f"a tensor of shape {list(x)} is not two rows")
    return (1, x[1])


@op(packed=False, shape=_first_less_second_shape, merges=2)
def first_less_second(x: Array) -> Array:
    """The one row that tells two answers apart: (2, cols) -> (1, cols), subtracted in float32.

    A softmax over the two products with the rows is a sigmoid of the product with their difference.
    """
    return x[:1] - x[1:]


def _rows_shape(x: Shape, start: int, stop: int) -> Shape:
    if not 0 <= start < stop <= x[0]:
        raise ValueError(f"a tensor of shape {list(x)} has no rows {start} to {stop}")
    return (stop - start, *x[1:])


@op(packed=True, shape=_rows_shape)
def rows(x: Array, start: int, stop: int) -> Array:
    """Rows [start, stop) of a fused projection: (rows, cols) -> (stop - start, cols)."""
    return x[start:stop]


def _part_shape(x: Shape, index: int, n_rows: int) -> Shape:
    if index < 0 or n_rows < 1 or not x or index * n_rows >= x[0]:
        raise ValueError(f"a tensor of shape {list(x)} has no part {index} of {n_rows} rows")
    return (min(n_rows, x[0] - index * n_rows), *x[1:])


@op(packed=True, shape=_part_shape)
def part(x: Array, index: int, n_rows: int) -> Array:
    """One of the parts that a table is cut into, each of `n_rows` rows but the last, which has what is left."""
    return x[index * n_rows : (index + 1) * n_rows]


def _swap_shape(x: Shape, outer: int, inner: int) -> Shape:
    if outer < 1 or inner < 1 or x[0] % (outer * inner):
        raise ValueError(f"{x[0]} rows are not {outer} groups of {inner} parts")
    return x


@op(packed=True, shape=_swap_shape)
def swap(x: Array, outer: int, inner: int) -> Array:
    """Exchange two levels of grouping of the rows: rows (outer, inner, n) -> (inner, outer, n).

    `swap(3, heads)` turns [all q, all k, all v] into [q, k, v of head 0, q, k, v of head 1, ...].
    """
    return x.reshape(outer, inner, -1, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)


def _swap_from_shape(x: Shape, start: int, outer: int, inner: int) -> Shape:
    if not 0 <= start < x[0]:
        raise ValueError(f"a tensor of shape {list(x)} has no row {start}")
    _swap_shape((x[0] - start,), outer, inner)
    return x


@op(packed=True, shape=_swap_from_shape)
def swap_from(x: Array, start: int, outer: int, inner: int) -> Array:
    """`swap` of the rows from `start` on, such as the value heads below the queries and keys of a fused projection."""
    return _library(x).concatenate([x[:start], swap(x[start:], outer, inner)])


def _regroup_shape(x: Shape, heads: int, *widths: int) -> Shape:
    if heads < 1 or not widths or min(widths) < 1 or x[0] != heads * sum(widths):
        raise ValueError(f"{x[0]} rows are not {heads} heads of {' + '.join(map(str, widths))} rows")
    return x


@op(packed=True, shape=_regroup_shape)
def regroup(x: Array, heads: int, *widths: int) -> Array:
    """Parts that each hold all heads -> heads that each hold all parts, which may be of different widths.

    `regroup(2, 1, 3)` turns the rows [q0, q1, v0, v0, v0, v1, v1, v1] into [q0, v0, v0, v0, q1, v1, v1, v1].
    """
    starts = [heads * sum(widths[:n]) for n in range(len(widths))]
    parts = [x[s : s + heads * w].reshape(heads, w, *x.shape[1:]) for s, w in zip(starts, widths, strict=True)]
    return _library(x).concatenate(parts, 1).reshape(x.shape)


def _concat_shape(*xs: Shape) -> Shape:
    axis = _row_axis(xs[0])
    if any(len(x) != len(xs[0]) or (*x[:axis], *x[axis + 1 :]) != (*xs[0][:axis], *xs[0][axis + 1 :]) for x in xs):
        raise ValueError(f"tensors of shapes {', '.join(str(list(x)) for x in xs)} cannot stand on each other")
    return (*xs[0][:axis], sum(x[axis] for x in xs), *xs[0][axis + 1 :])


@op(packed=True, shape=_concat_shape, forgets=True)
def concat(*xs: Array) -> Array:
    """Rows on top of each other, of vectors, matrices or each matrix of stacks: (..., a, cols), (..., b, cols), ...
    -> (..., a + b + ..., cols).
    """
    return _library(xs[0]).concatenate(xs, _row_axis(xs[0].shape))


def _row_axis(shape: Shape) -> int:
    """The axis along which rows follow each other; the rows of a vector are its elements."""
    if not shape:
        raise ValueError("a single number has no rows")
    return max(len(shape) - 2, 0)


@op(packed=False, shape=lambda x: (*x[:-2], x[-1], x[-2]))
def transpose(x: Array) -> Array:
    """Exchange the last two axes: (..., rows, cols) -> (..., cols, rows)."""
    return x.swapaxes(-1, -2)


def _unsqueeze_shape(x: Shape, axis: int) -> Shape:
    if not 0 <= axis <= len(x):
        raise ValueError(f"a tensor of shape {list(x)} has no place for axis {axis}")
    return (*x[:axis], 1, *x[axis:])


@op(packed=False, shape=_unsqueeze_shape)
def unsqueeze(x: Array, axis: int) -> Array:
    """Insert an axis of length 1: conv1d (channels, width) | unsqueeze(1) -> (channels, 1, width)."""
    return x.reshape(*x.shape[:axis], 1, *x.shape[axis:])


def _flatten_shape(x: Shape) -> Shape:
    if not x:
        raise ValueError("a single number has no axes to join")
    return x if len(x) == 1 else (x[0] * x[1], *x[2:])


@op(packed=False, shape=_flatten_shape, forgets=True)
def flatten(x: Array) -> Array:
    """The first two axes in one: (experts, rows, cols) -> (experts * rows, cols), (heads, 1) -> (heads,).

    A vector stays as it is: files without leading axes of length 1 have (n,) where others have (1, n).
    """
    return x.reshape(-1, *x.shape[2:])


@op(packed=False, shape=lambda x: x)
def log_neg(x: Array) -> Array:
    """Undo `ssm_a = -exp(A_log)`: (...) -> (...), the logarithm nearest to what the file has.

    Computed in float64: the float32 logarithms of numpy, torch and each GPU differ in their last bit.
    """
    library = _library(x)
    return library.asarray(library.log(-library.asarray(x, dtype=library.float64)), dtype=x.dtype)


def _merge_kv_b_shape(k_b: Shape, v_b: Shape) -> Shape:
    if len(k_b) != 3 or len(v_b) != 3 or k_b[0] != v_b[0] or k_b[1] != v_b[2]:
        raise ValueError(f"attn_k_b {list(k_b)} and attn_v_b {list(v_b)} do not belong together")
    return (k_b[0] * (k_b[2] + v_b[1]), k_b[1])


@op(packed=False, shape=_merge_kv_b_shape, forgets=True)
def merge_kv_b(k_b: Array, v_b: Array) -> Array:
    """Rebuild MLA's kv_b_proj, of which llama.cpp transposes the key half of each head.

    k_b (heads, rank, nope), v_b (heads, value, rank) -> (heads * (nope + value), rank).
    """
    both = _library(k_b).concatenate([k_b.swapaxes(1, 2), v_b], 1)
    return both.reshape(-1, both.shape[-1])


def _interleave_shape(a: Shape, b: Shape) -> Shape:
    if a != b or len(a) < 1:
        raise ValueError(f"tensors of shapes {list(a)} and {list(b)} cannot alternate")
    return (*a[:-1], 2 * a[-1])


@op(packed=False, shape=_interleave_shape)
def interleave(a: Array, b: Array) -> Array:
    """Alternate two tensors along the last axis: (..., n), (..., n) -> (..., 2n) = a0 b0 a1 b1 ..."""
    return _library(a).stack([a, b], -1).reshape(*a.shape[:-1], -1)


def _interleave_rows_shape(a: Shape, b: Shape) -> Shape:
    if a != b or len(a) < 2:
        raise ValueError(f"the rows of tensors of shapes {list(a)} and {list(b)} cannot alternate")
    return (*a[:-2], 2 * a[-2], a[-1])


@op(packed=True, shape=_interleave_rows_shape)
def interleave_rows(a: Array, b: Array) -> Array:
    """Alternate the rows of two stacks of matrices: (..., n, cols), (..., n, cols) -> (..., 2n, cols) = a0 b0 a1 ..."""
    return _library(a).stack([a, b], -2).reshape(*a.shape[:-2], -1, a.shape[-1])


def _regroup_columns_shape(x: Shape, outer: int, inner: int) -> Shape:
    if outer < 1 or inner < 1 or x[-1] % (outer * inner):
        raise ValueError(f"{x[-1]} columns are not {outer} groups of {inner} parts")
    return x


@op(packed=False, shape=_regroup_columns_shape)
def swap_columns(x: Array, outer: int, inner: int) -> Array:
    """`swap` along the last axis: columns (outer, inner, n) -> (inner, outer, n)."""
    return x.reshape(*x.shape[:-1], outer, inner, -1).swapaxes(-3, -2).reshape(x.shape)


def _pad_rows_shape(x: Shape, n: int) -> Shape:
    if n < 0:
        raise ValueError(f"{n} rows cannot be put before a tensor")
    return (x[0] + n, *x[1:])


@op(packed=False, shape=_pad_rows_shape)
def pad_rows(x: Array, n: int) -> Array:
    """Zeros before the first row, for rows that llama.cpp's converter cut off: (rows, cols) -> (n + rows, cols)."""
    zeros = x[:1] * 0
    return _library(x).concatenate([*[zeros] * n, x])


def _fill_shape(value: float, *dims: int) -> Shape:
    if any(d < 1 for d in dims):
        raise ValueError(f"a tensor cannot have the shape {list(dims)}")
    return dims


@op(packed=False, shape=_fill_shape)
def fill(value: float, *dims: int) -> Array:
    """A tensor that no GGUF tensor holds, such as one that llama.cpp keeps as metadata: -> dims."""
    import numpy as np

    return np.full(dims, value, np.float32)


def _values_shape(*numbers: int) -> Shape:
    if not all(-(2**63) <= n < 2**63 for n in numbers):
        raise ValueError("a number is beyond 64 bits")
    return (len(numbers),)


@op(packed=False, shape=_values_shape)
def values(*numbers: int) -> Array:
    """Whole numbers that llama.cpp keeps as metadata, and the checkpoint as a tensor: -> (n,) int64."""
    import numpy as np

    return np.array(numbers, np.int64)


def _library(x: Array) -> Any:
    """numpy or torch, whichever `x` belongs to: both have concatenate, stack and log."""
    return importlib.import_module(type(x).__module__.partition(".")[0])
