"""All tiny models that make the round trip: `tests/oracle/families/` has a table for each family."""

from tests.oracle.case import BASE, Case
from tests.oracle.families import collect

CASES = collect()

__all__ = ["BASE", "CASES", "Case"]
