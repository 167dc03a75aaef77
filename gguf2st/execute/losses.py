"""What repacking cost: how far the written numbers are from the source's. And what float16 is too coarse for."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from threading import Lock

from gguf2st.plan import DENSE

MOST_LOST = 0.01
"""Share of a tensor's values that float16 may lose before it is worth a note."""


def relative_rmse(error: float, power: float) -> float:
    """sqrt(sum of squared differences / sum of squared values); 0 for a weight of nothing but zeros."""
    return math.sqrt(error / power) if power else 0.0


def measure(scheme: str, sums: tuple[float, float]) -> float:
    """What a journal's two numbers about an entry say: its relative rmse; of a dense one the share of lost values."""
    return sums[0] / sums[1] if scheme == DENSE else relative_rmse(*sums)


class Losses:
    """Sums of squared differences and of squared values by entry, from any thread, whatever the order of the chunks."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._errors: dict[str, list[float]] = defaultdict(list)
        self._powers: dict[str, list[float]] = defaultdict(list)
        self._casts: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))

    def add(self, entry: str, error: float, power: float) -> None:
        """Count some rows of an entry."""
        with self._lock:
            self._errors[entry].append(error)
            self._powers[entry].append(power)

    def add_cast(self, entry: str, lost: int, nonzero: int) -> None:
        """Count values of a dense entry that float16 lost, and those that are not 0."""
        with self._lock:
            before = self._casts[entry]
            self._casts[entry] = before[0] + lost, before[1] + nonzero

    def sums(self, entries: Iterable[str]) -> Mapping[str, tuple[float, float]]:
        """Entry -> (error, power), for those of `entries` that were not packed exactly; and entry -> (lost, nonzero)
        for dense ones of which float16 lost more than `MOST_LOST`.

        The sums are rounded once, so that they do not depend on the order in which threads finish.
        """
        found: dict[str, tuple[float, float]] = {}
        for name in entries:
            if name in self._powers and (power := math.fsum(self._powers[name])):
                found[name] = math.fsum(self._errors[name]), power
            elif name in self._casts and self._casts[name][0] > MOST_LOST * self._casts[name][1]:
                found[name] = self._casts[name]
        return found
