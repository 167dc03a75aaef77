"""What the targets share: how an input is made of a draft, and what must hold when it is accepted or refused."""

from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from gguf2st.archmap import mapfile
from gguf2st.errors import Gguf2stError
from gguf2st.header import Header
from tests.fuzz import ggufs, seeds
from tests.fuzz.draft import Draft
from tests.fuzz.metadata import Mutation

MODEL = "m.gguf"
SHARD_NBYTES = 10_000
MAX_LINE = 5_000
"""Characters of a message: it is read by people, and may be logged."""
FILE_NAMES = (
    *(
        "m.gguf",
        "a b.gguf",
        "$(touch pwned).gguf",
        "a;b&c.gguf",
        "-o.gguf",
        "x\x1b]0;t\x07.gguf",
        "b\udcffd.gguf",
        "n\nl.gguf",
    ),
    *("\u202egnp.gguf", "'q\".gguf", "[red]x[b].gguf", "model", "é한.gguf", "x" * 200 + ".gguf"),
)


def mutated_gguf(rng: Random, mutations: tuple[Mutation, ...], broken: float) -> bytes:
    """A tiny model changed by rule; with the probability `broken` its bytes as well."""
    return encoded(rng.choice(seeds.drafts()), rng, mutations, broken)


def encoded(seed: Draft, rng: Random, mutations: tuple[Mutation, ...], broken: float) -> bytes:
    """A draft, changed and put together."""
    if rng.random() < broken:
        draft = seed if rng.random() < 0.7 else ggufs.mutated(seed, rng, mutations)
        content = draft.encode()
        return ggufs.broken_bytes(content, rng, len(content) - len(draft.data))
    return ggufs.mutated(seed, rng, mutations).encode()


def require_message(text: str) -> None:
    """A message that somebody can read."""
    assert text, "an empty message"
    assert len(text) <= MAX_LINE, f"a message of {len(text)} characters: {text[:200]}"


class Refusals:
    """Checks the message of a refusal on its way out."""

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Gguf2stError):
            for line in (error.message, *error.problems):
                require_message(line)
            assert len(error.hint) <= MAX_LINE
            assert len(error.problems) <= 1_000, f"{len(error.problems)} problems"


def require_sound(header: Header) -> None:
    """Tensors lie inside the file and do not overlap."""
    stops: dict[int, int] = {}
    for source in sorted(header.sources.values(), key=lambda s: (s.file, s.offset)):
        assert source.offset >= stops.get(source.file, 24), f"{source} overlaps"
        stops[source.file] = source.offset + (source.nbytes or 1)
        assert stops[source.file] <= header.sizes[source.file], f"{source} ends beyond the file"
        assert all(n > 0 for n in source.shape)


@cache
def quick_maps() -> None:
    """Read each arch map once and not for every input: 10 ms of files that never change."""
    load = cache(mapfile.load_map)
    mapfile.load_map = load
    texts_by_path: dict[Path, str] = {}

    class KeptPath(type(Path())):  # type: ignore[misc]
        def read_text(self, *args: Any, **options: Any) -> str:
            if self not in texts_by_path:
                texts_by_path[self] = super().read_text(*args, **options)
            return texts_by_path[self]

    folder = KeptPath(mapfile.maps_folder())
    paths = sorted(folder.glob("*.toml"))

    class KeptFolder(KeptPath):
        def glob(self, *_: Any, **__: Any) -> Any:
            return paths

    kept = KeptFolder(mapfile.maps_folder())
    mapfile.maps_folder = lambda: kept
