"""Limits that somebody set for this process, looked at before a library dies of them without a word."""

from gguf2st.errors import Gguf2stError

MIN_ADDRESS_SPACE_NBYTES = 600_000_000
"""What numpy, numba's compiler and its libraries map before the first weight is decoded: 420 to 560 MB, measured."""


def require_address_space() -> None:
    """Raise Gguf2stError when `ulimit -v` leaves too little for decoding: LLVM would end the process (bad_alloc)."""
    try:
        import resource
    except ImportError:
        return  # the system has no such limits
    allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
    if allowed != resource.RLIM_INFINITY and allowed < MIN_ADDRESS_SPACE_NBYTES:
        raise Gguf2stError(
            f"this process may map {allowed / 1e6:.0f} MB of memory (`ulimit -v`); "
            f"a conversion needs {MIN_ADDRESS_SPACE_NBYTES / 1e6:.0f} MB",
            hint="raise the limit, or use `gguf2st check`, which needs less",
        )
