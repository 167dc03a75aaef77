"""Cases by family of architectures: each module here has a table `CASES`, and this joins them."""

import importlib
import pkgutil
from collections.abc import Mapping

from tests.oracle.case import Case


def collect() -> Mapping[str, Case]:
    """The cases of all modules of this package. A name may occur once."""
    cases: dict[str, Case] = {}
    for info in pkgutil.iter_modules(__path__):
        table: Mapping[str, Case] = importlib.import_module(f"{__name__}.{info.name}").CASES
        assert not (twice := cases.keys() & table.keys()), twice
        cases |= table
    return cases
