"""Which shards of a plan a share has: neighbours, so that a share reads neighbouring parts of the source.

shards of 5 5 5 5 5 2 GB:   1/2 -> 5 5 5   2/2 -> 5 5 2      1/6 .. 6/6 -> one each
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from gguf2st.errors import UsageError


@dataclass(frozen=True)
class Share:
    """Share `number`, counted from 1, of `of`."""

    number: int
    of: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.of:
            raise UsageError(
                f"there is no share {self.number} of {self.of}",
                hint=f"shares are counted from 1: 1/{max(self.of, 1)} to {max(self.of, 1)}/{max(self.of, 1)}",
            )

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def indices(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """The numbers, from 0, of its shards. Where there are more shares than shards, the last ones are empty.

        Args:
            sizes: bytes of each shard of the plan.
        """
        return tuple(index for index, number in enumerate(share_numbers(sizes, self.of)) if number == self.number)


def share_numbers(sizes: Sequence[int], of: int) -> list[int]:
    """For each shard of a plan, which of `of` shares it is in.

    A share ends where the shards so far come closest to its part of all bytes, but has one shard at least, as long as
    there are enough of them: no share has more than its part and one shard.
    """
    if of >= len(sizes):
        return list(range(1, len(sizes) + 1))
    stops = list(accumulate(sizes))
    numbers: list[int] = []
    for number in range(1, of + 1):
        start, last = len(numbers), len(sizes) - (of - number)
        end = start + 1
        while end < last and (2 * stops[end] - sizes[end]) * of <= 2 * stops[-1] * number:
            end += 1
        numbers += [number] * (end - start)
    return numbers


EVERYTHING = Share(1, 1)
"""The whole plan."""


def parse_share(text: str) -> Share:
    """`3/20` as a share.

    Raises:
        UsageError: the text is none, or there is no such share.
    """
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    if not match:
        raise UsageError(f"{text!r} is no share", hint="write it as 3/20: the third of twenty")
    return Share(int(match[1]), int(match[2]))
