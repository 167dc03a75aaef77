"""Folding of tensor names."""

import itertools
import random
import re

import pytest

from gguf2st.fold import fold, listing


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        ([], []),
        (["norm"], ["norm"]),
        (["blk.7.q"], ["blk.7.q"]),
        (["blk.0.q", "blk.1.q"], ["blk.{0..1}.q"]),
        (["blk.0.q", "blk.1.q", "norm", "blk.4.q"], ["blk.{0..1,4}.q", "norm"]),
        (["blk.10.q", "blk.9.q"], ["blk.{9..10}.q"]),
        (["blk.1.q", "blk.1.q"], ["blk.1.q"]),
        (["blk.0.q", "blk.0.k"], ["blk.0.q", "blk.0.k"]),
        (["l.0.e.0.w", "l.0.e.1.w", "l.1.e.0.w", "l.1.e.1.w"], ["l.{0..1}.e.{0..1}.w"]),
        (["l.0.e.0.w", "l.0.e.1.w", "l.1.e.0.w"], ["l.0.e.{0..1}.w", "l.1.e.0.w"]),
        (["a.007.w", "a.7.w"], ["a.007.w", "a.7.w"]),  # 007 is a name: 7 would not give it back
        (["a.٣.w"], ["a.٣.w"]),
        (["a.4294967295.w", "a.4294967296.w"], ["a.4294967295.w", "a.4294967296.w"]),
        (["v2.1", "v2.2"], ["v2.{1..2}"]),
        (["0", "1"], ["{0..1}"]),
        (["#.1", "0.1"], ["#.1", "0.1"]),
        ([f"t.{i}.shard_{n}.w" for i in (1, 2) for n in (0, 1, 10)], ["t.{1..2}.shard_{0..1,10}.w"]),
        (["t.shard_1.w", "t.shard_x.w", "t.shard_", "shard_2"], ["t.shard_1.w", "t.shard_x.w", "t.shard_", "shard_2"]),
        ([""], [""]),
    ],
)
def test_fold(names: list[str], folded: list[str]) -> None:
    assert fold(names) == folded


def _unfold(name: str) -> list[str]:
    """What a folded name stands for."""
    parts = re.split(r"\{([0-9.,]+)\}", name)
    options = []
    for n, part in enumerate(parts):
        if n % 2 == 0:
            options.append([part])
            continue
        runs = [run.split("..") for run in part.split(",")]
        options.append([str(x) for run in runs for x in range(int(run[0]), int(run[-1]) + 1)])
    return ["".join(choice) for choice in itertools.product(*options)]


@pytest.mark.parametrize("seed", range(30))
def test_folded_names_stand_for_exactly_the_names(seed: int) -> None:
    rng = random.Random(seed)
    names = {f"l.{rng.randrange(6)}.e.{rng.randrange(5)}.{rng.choice('wv')}" for _ in range(rng.randrange(1, 60))}
    names |= {f"{rng.choice(['norm', 'blk.3'])}.{rng.randrange(12)}" for _ in range(4)}
    unfolded = [name for line in fold(sorted(names)) for name in _unfold(line)]
    assert sorted(unfolded) == sorted(names)


def test_listing_counts_what_it_leaves_out() -> None:
    assert listing(["b.0.x", "a", "b.1.x"]) == "b.{0..1}.x, a"
    assert listing("abcdefghijk") == "a, b, c, d, e, f, g, h, and 3 more"
    assert listing(["x", "y", "z"], limit=2) == "x, y, and 1 more"
