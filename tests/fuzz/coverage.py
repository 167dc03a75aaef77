"""Let the coverage of the package choose the inputs: libFuzzer through atheris, which is no dependency.

    pip install atheris
    python scripts/fuzz.py --coverage header --seconds 60

Half of the mutations are libFuzzer's own, on bytes; the other half are those of ggufs.py and texts.py, so that the
search gets past lengths and offsets that must agree.
"""

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import atheris  # type: ignore[import-not-found]

with atheris.instrument_imports(include=["gguf2st"]):
    from tests.fuzz import ggufs, seeds, texts
    from tests.fuzz.draft import take_apart
    from tests.fuzz.harness import empty, make_input
    from tests.fuzz.targets import TARGETS

from gguf2st.errors import Gguf2stError

Change = Callable[[bytes, Random], bytes]


def _gguf(data: bytes, rng: Random) -> bytes:
    try:
        return ggufs.mutated(take_apart(data), rng, ggufs.ANYTHING).encode()
    except Exception:  # it was broken before
        return ggufs.mutated(rng.choice(seeds.drafts()), rng, ggufs.ANYTHING).encode()


def _text(pieces: tuple[str, ...]) -> Change:
    return lambda data, rng: texts.broken_text(data.decode("utf-8", "replace"), rng, pieces).encode("utf-8", "replace")


CHANGES: dict[str, Change] = {
    "header": _gguf,
    "tokenizer": _gguf,
    "plan": _gguf,
    "expression": _text((*texts.ATOMS, *texts.OPERATORS, *texts.PLAIN)),
    "map": _text((*texts.ATOMS, *texts.OPERATORS, " -> ", " | ", "[[tensors]]\n", '"')),
    "plan-file": _text(("{", "}", "[", "]", ",", ":", '"', "0", "-1", "null", "1e999")),
}
"""The targets of one file, and how to change it."""


def guided(name: str, seconds: int) -> int:
    """Search for so many seconds; a fault ends it, and its input is kept in the current folder.

    Returns: never: libFuzzer ends the process, with 0 when nothing was found.
    """
    target, change = TARGETS[name], CHANGES[name]
    corpus = Path(tempfile.mkdtemp(prefix="fuzz-corpus-"))
    scratch = Path(tempfile.mkdtemp(prefix="fuzz-scratch-"))
    (file,) = make_input(target, 0, 0)
    for index in range(200):
        (content,) = make_input(target, 0, index).values()
        (corpus / str(index)).write_bytes(content)

    def run(data: bytes) -> None:
        try:
            target.run({file: data}, scratch)
        except Gguf2stError:
            pass
        finally:
            empty(scratch)

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        rng = Random(seed)
        return (change(data, rng) if rng.random() < 0.5 else atheris.Mutate(data, max_size))[:max_size]

    limits = [f"-max_total_time={seconds}", "-timeout=10", "-rss_limit_mb=3000", "-max_len=200000", "-seed=1"]
    # What one input loses on the way is of no interest: leaks of the interpreter are not the package's.
    atheris.Setup([sys.argv[0], str(corpus), *limits, "-detect_leaks=0"], run, custom_mutator=mutate)
    os.chdir(tempfile.mkdtemp(prefix="fuzz-found-"))
    print(f"inputs that fail are kept in {Path.cwd()}", flush=True)
    atheris.Fuzz()
    return 0
