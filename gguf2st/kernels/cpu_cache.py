"""Compiling kernels with numba, each when it is first called, and keeping them in numba's disk cache."""

from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numba


def run(function: Callable[..., Any], *args: Any) -> Any:
    """Call a kernel, which releases the GIL.

    A cache folder that fills up meanwhile must not stop a conversion: go on without it.
    """
    try:
        return _on_disk(function)(*args)
    except OSError:  # only the cache does input and output, before the kernel runs
        return _in_memory(function)(*args)


@cache
def _source_digest() -> str:
    """Names the version of the kernels. numba's cache only watches the file of a kernel, not what it calls."""
    return sha256(b"".join(p.read_bytes() for p in sorted(Path(__file__).parent.glob("*.py")))).hexdigest()[:12]


@cache
def _in_memory(function: Callable[..., Any]) -> Any:
    """`function`, to be compiled at its first call."""
    return numba.njit(nogil=True, error_model="numpy")(function)


@cache
def _on_disk(function: Callable[..., Any]) -> Any:
    """`function`, to be loaded from the disk cache or compiled into it; without a writable folder, `_in_memory`."""
    function.__qualname__ = f"{function.__name__}_{_source_digest()}"  # becomes part of the name of the cache file
    try:
        return numba.njit(nogil=True, error_model="numpy", cache=True)(function)
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
        return _in_memory(function)
