"""What repacking cost: how far the written numbers are from the source's."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from threading import Lock


def relative_rmse(error: float, power: float) -> float:
    """sqrt(sum of squared differences / sum of squared values); 0 for a weight of nothing but zeros."""
    return math.sqrt(error / power) if power else 0.0


class Losses:
    """Sums of squared differences and of squared values by entry, from any thread, whatever the order of the chunks."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._errors: dict[str, list[float]] = defaultdict(list)
        self._powers: dict[str, list[float]] = defaultdict(list)

    def add(self, entry: str, error: float, power: float) -> None:
        """Count some rows of an entry."""
        with self._lock:
            self._errors[entry].append(error)
            self._powers[entry].append(power)

    def sums(self, entries: Iterable[str]) -> Mapping[str, tuple[float, float]]:
        """Entry -> (error, power), for those of `entries` that were not packed exactly.

        The sums are rounded once, so that they do not depend on the order in which threads finish.
        """
        return {
            name: (math.fsum(self._errors[name]), power)
            for name in entries
            if name in self._powers and (power := math.fsum(self._powers[name]))
        }
