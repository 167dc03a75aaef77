"""Mutations of a header's tensors: names, shapes, types, places."""

from dataclasses import replace
from random import Random

from tests.fuzz import hostile
from tests.fuzz.draft import Draft, Row
from tests.fuzz.metadata import Mutation, near

TENSOR_TYPES = (*range(46), 57, 255, 65_536, 2**31, 2**32 - 1)
PIECES = (
    *(b"blk", b"0", b"1", b"2", b"7", b"-1", b"00", b"9" * 30, b"attn_q", b"attn_k", b"ffn_down", b"weight", b"bias"),
    *(
        b"token_embd",
        b"output",
        b"rope_freqs",
        b"enc",
        b"dec",
        b"v",
        b"mm",
        b"",
        "\u0663".encode(),
        b"{i}",
        b"attn_q_norm",
    ),
)


def drop_row(draft: Draft, rng: Random) -> None:
    """A tensor is absent."""
    if draft.rows:
        del draft.rows[rng.randrange(len(draft.rows))]


def repeat_row(draft: Draft, rng: Random) -> None:
    """A tensor twice, under its name or another."""
    if draft.rows:
        row = rng.choice(draft.rows)
        name = row.name if rng.random() < 0.3 else hostile_name(rng)
        draft.rows.insert(rng.randrange(len(draft.rows) + 1), replace(row, name=name))
        _maybe_settle(draft, rng)


def rename_row(draft: Draft, rng: Random) -> None:
    """A tensor with another name; the lengths of names may lie."""
    if draft.rows:
        at = rng.randrange(len(draft.rows))
        row = draft.rows[at]
        if rng.random() < 0.2:
            draft.rows[at] = replace(row, name_nbytes=near(len(row.name), rng))
        else:
            draft.rows[at] = replace(row, name=hostile_name(rng))


def hostile_name(rng: Random) -> bytes:
    """A name put together from the pieces of names, or anything."""
    if rng.random() < 0.6:
        return b".".join(rng.choice(PIECES) for _ in range(rng.choice((1, 2, 3, 4, 4, 5))))
    return hostile.text(rng)


def change_shape(draft: Draft, rng: Random) -> None:
    """Dimensions: one changed, added, taken away, turned round; or their number lies."""
    if not draft.rows:
        return
    at = rng.randrange(len(draft.rows))
    row, dims = draft.rows[at], list(draft.rows[at].dims)
    pick = rng.randrange(6)
    if pick == 0 and dims:
        dims[rng.randrange(len(dims))] = hostile.integer(rng) & (2**64 - 1)
    elif pick == 1:
        dims.insert(rng.randrange(len(dims) + 1), rng.choice((1, 1, 2, 3, 32, 0)))
    elif pick == 2 and dims:
        del dims[rng.randrange(len(dims))]
    elif pick == 3:
        dims.reverse()
    elif pick == 4 and dims:
        i = rng.randrange(len(dims))
        dims[i] = rng.choice((dims[i] + 1, dims[i] * 2, dims[i] // 2, dims[i] + 32, 32, 1))
    else:
        draft.rows[at] = replace(row, n_dims=rng.choice((0, 1, 2, 3, 4, 5, 77, 2**31, 2**32 - 1)))
        return
    draft.rows[at] = replace(row, dims=tuple(dims))
    _maybe_settle(draft, rng)


def change_tensor_type(draft: Draft, rng: Random) -> None:
    """Another ggml type, known or not."""
    if draft.rows:
        at = rng.randrange(len(draft.rows))
        draft.rows[at] = replace(draft.rows[at], kind=rng.choice(TENSOR_TYPES))
        _maybe_settle(draft, rng)


def change_offset(draft: Draft, rng: Random) -> None:
    """Overlapping, misaligned, out of range, in another order."""
    if len(draft.rows) < 2:
        return
    at, other = rng.sample(range(len(draft.rows)), 2)
    pick = rng.randrange(4)
    if pick == 0:
        offset = hostile.integer(rng) & (2**64 - 1)
    elif pick == 1:
        offset = draft.rows[other].offset
    elif pick == 2:
        offset = draft.rows[at].offset + rng.choice((1, -1, 32, 64, 4096))
    else:
        draft.rows[at], draft.rows[other] = draft.rows[other], draft.rows[at]
        return
    draft.rows[at] = replace(draft.rows[at], offset=offset & (2**64 - 1))


def add_rows(draft: Draft, rng: Random) -> None:
    """Further tensors: factors that become configuration, layers beyond the last, anything."""
    names = (b"rope_freqs.weight", b"rope_factors_long.weight", b"rope_factors_short.weight", b"output.weight")
    layers = [b"blk.%d.%s" % (rng.randrange(4), suffix) for suffix in (b"attn_q.bias", b"rope_freqs.weight", b"x")]
    name = rng.choice((*names, *layers, hostile_name(rng)))
    dims = tuple(rng.choice((1, 2, 4, 8, 16, 32, 64, 20_000)) for _ in range(rng.choice((0, 1, 1, 2))))
    draft.rows.append(Row(name, dims, rng.choice((0, 0, 0, 1, 2, 8, 28)), 0))
    draft.settle()


def _maybe_settle(draft: Draft, rng: Random) -> None:
    if rng.random() < 0.7:
        draft.settle()


TENSORS: tuple[Mutation, ...] = (
    *(drop_row, repeat_row, rename_row, change_shape, change_tensor_type, change_offset, add_rows),
)
