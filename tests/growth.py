"""Convert and verify again and again in one process, and look at what it holds afterwards."""

import gc
import os
import resource
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree

import gguf2st
from gguf2st.errors import Gguf2stError
from tests.make_gguf import tiny_llama

WARM = 20
"""Conversions until caches are full."""
GROWTH_NBYTES = 8 << 20
"""What memory may differ by: allocators keep what they had, and not always the same."""


@dataclass(frozen=True)
class Held:
    """What the process holds: open descriptors, threads, resident memory."""

    descriptors: int
    threads: int
    nbytes: int

    @classmethod
    def now(cls) -> "Held":
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return cls(len(os.listdir("/proc/self/fd")), threading.active_count(), pages * resource.getpagesize())


def once(folder: Path, source: Path, broken: Path, number: int) -> None:
    """A conversion of some kind, a verification, and one that fails."""
    repack = ("none", "exact", "near", "int4")[number % 4]
    gguf2st.convert(source, folder / "out", repack=repack, threads=2, max_shard_size=200_000)
    gguf2st.verify(folder / "out", source).require_ok()
    try:
        gguf2st.convert(broken, folder / "broken")
    except Gguf2stError:
        pass
    else:
        raise AssertionError("it was to fail")
    rmtree(folder / "out")


def grown(folder: Path, times: int, n_threads: int) -> tuple[Held, Held]:
    """What is held after WARM rounds, and after `times` more, shared by some threads at once."""
    source = tiny_llama(folder / "m.gguf", hidden=256, ffn=256, layers=1, qtype="Q4_K")
    broken = folder / "broken.gguf"
    broken.write_bytes(source.read_bytes())
    with open(broken, "r+b") as file:
        file.seek(-128, os.SEEK_END)
        file.write(b"\x00\x00\xc0\x7f")  # NaN in the last norm
    errors: list[BaseException] = []

    def rounds(place: Path, count: int) -> None:
        place.mkdir(exist_ok=True)
        try:
            for number in range(count):
                once(place, source, broken, number)
        except BaseException as err:
            errors.append(err)

    def all_rounds(count: int) -> None:
        workers: list[tuple[Callable[[Path, int], None], tuple[Path, int]]] = [
            (rounds, (folder / str(i), count // n_threads)) for i in range(n_threads)
        ]
        started = [threading.Thread(target=target, args=args) for target, args in workers]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
        if errors:
            raise errors[0]

    all_rounds(WARM)
    before = Held.now()
    all_rounds(times)
    return before, Held.now()


def main(folder: str, times: int) -> None:
    before, after = grown(Path(folder), times, 2)
    megabytes = (after.nbytes - before.nbytes) / 1e6
    print(
        f"{times} rounds in 2 threads: descriptors {before.descriptors} -> {after.descriptors}, threads "
        f"{before.threads} -> {after.threads}, memory {before.nbytes / 1e6:.1f} MB {megabytes:+.1f} MB"
    )
    if (after.descriptors, after.threads) != (before.descriptors, before.threads) or megabytes * 1e6 > GROWTH_NBYTES:
        sys.exit("something grew")
