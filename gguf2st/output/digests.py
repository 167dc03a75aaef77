"""sha256 of the files of a checkpoint: what `sha256sum` prints, and what the Hub says of large files.

gguf2st.json keeps them, so that `verify` finds a bit that has changed since. Hashing costs half a CPU second for each
GB. Small files always are hashed; shards on request, and where weights are packed: what is not packed equals the source
bit by bit, but of a packed weight that lost something the source cannot tell the last bits.
"""

import hashlib
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from pathlib import Path

from gguf2st.output.shards import output_error


def sha256_of(path: Path) -> str:
    """The digest of a file, in hexadecimal digits.

    Raises:
        OutputError: it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as err:
        raise output_error(err, path) from err


class ShardDigests:
    """Hashes shards that are finished while others are written."""

    def __init__(self, pool: Executor) -> None:
        """`pool`: where; its threads are the caller's."""
        self._pool = pool
        self._pending: dict[str, Callable[[], str]] = {}

    def add(self, path: Path) -> None:
        """Begin with a shard, which stays as it is from now on."""
        from gguf2st.execute.threads import run_ahead  # its package loads numpy and numba

        self._pending[path.name] = run_ahead(self._pool, partial(sha256_of, path))

    def result(self) -> dict[str, str]:
        """Name -> digest, once all are hashed.

        Raises:
            OutputError: a shard cannot be read.
        """
        return {name: wait() for name, wait in self._pending.items()}
