"""Targets that read headers: of a file, of shards, of a folder, of a published model."""

import io
import os
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from gguf2st import api
from gguf2st.errors import Gguf2stError
from gguf2st.header import parse_header, read_header
from tests.fuzz import ggufs, hostile, seeds
from tests.fuzz.draft import Item
from tests.fuzz.harness import Files, write_input
from tests.fuzz.promises import FILE_NAMES, MODEL, Refusals, mutated_gguf, quick_maps, require_message, require_sound


class HeaderTarget:
    """A header in memory."""

    name = "header"
    describes = "`parse_header`"

    def make(self, rng: Random) -> Files:
        """All mutations, and broken bytes."""
        return {MODEL: mutated_gguf(rng, ggufs.ANYTHING, 0.35)}

    def run(self, files: Files, folder: Path) -> None:
        """Accepted: every tensor lies inside the file, aligned and alone."""
        with Refusals():
            header = parse_header(io.BytesIO(files[MODEL]), MODEL)
        require_sound(header)


class PeerTarget:
    """A header, read by gguf-py as well."""

    name = "peer"
    describes = "`read_header` beside gguf-py's reader"

    def make(self, rng: Random) -> Files:
        """As for `header`."""
        return {MODEL: mutated_gguf(rng, ggufs.ANYTHING, 0.35)}

    def run(self, files: Files, folder: Path) -> None:
        """Accepted by both: the same keys, values and tensors."""
        import gguf

        write_input(files, folder)
        header = api.open_gguf(folder / MODEL)
        try:
            peer: Any = gguf.GGUFReader(folder / MODEL)
        except Exception:
            return  # it is stricter in places: a duplicate, an unknown type, text that is not UTF-8
        theirs = {t.name: t for t in peer.tensors}
        assert theirs.keys() == header.sources.keys()
        for name, source in header.sources.items():
            found = theirs[name]
            assert source.qtype == found.tensor_type.name
            assert source.shape == tuple(int(n) for n in reversed(found.shape))
            assert source.offset == found.data_offset, name
            # gguf-py counts 40 bytes for a block of Q8_1; ggml's block_q8_1 has 36.
            assert source.nbytes == found.n_bytes or source.qtype == "Q8_1", name
        for key, field in peer.fields.items():
            if key.startswith("GGUF.") or gguf.GGUFValueType.ARRAY in field.types[1:]:
                continue
            try:
                value = field.contents()
            except UnicodeDecodeError:
                continue
            require_equal(header.metadata[key], value, key)


def require_equal(ours: Any, theirs: Any, key: str) -> None:
    """A metadata value as two readers see it; ours is the shortest decimal of a float32."""
    if isinstance(theirs, list):
        assert len(ours) == len(theirs), key
        for a, b in zip(ours, theirs, strict=True):
            require_equal(a, b, key)
    elif isinstance(theirs, float):
        assert np.float64(ours) == theirs or np.array_equal(np.float32(ours), np.float32(theirs), equal_nan=True), key
    else:
        assert ours == theirs, (key, ours, theirs)


class SplitTarget:
    """Shards of one model, some of which belong to another."""

    name = "split"
    describes = "`read_header` of several shards"

    def make(self, rng: Random) -> Files:
        """Two or three shards whose split keys and tensors are mixed up."""
        count = rng.choice((2, 3))
        files = {}
        seed = rng.choice(seeds.drafts())
        for number in range(count):
            draft = ggufs.mutated(seed, rng, ggufs.MEANING) if rng.random() < 0.15 else seed.copy()
            draft.rows = draft.rows[number::count] if rng.random() < 0.9 else draft.rows
            draft.settle()
            total = len(seed.rows) if rng.random() < 0.8 else hostile.integer(rng)
            for key, value in ((b"split.no", number), (b"split.count", count), (b"split.tensors.count", total)):
                if rng.random() < 0.98:
                    lie = hostile.integer(rng) if rng.random() < 0.05 else value
                    kind = 2 if rng.random() < 0.95 else rng.choice((4, 5, 11, 6, 7, 8))
                    draft.put(Item(key, kind, lie))
            files[f"m-{number + 1:05}-of-{count:05}.gguf"] = draft.encode()
        return files

    def run(self, files: Files, folder: Path) -> None:
        """Accepted: as for one header."""
        write_input(files, folder)
        with Refusals():
            header = read_header(sorted(folder.iterdir()))
        require_sound(header)


PIPE, CIRCLE, NOWHERE = b"<pipe>", b"<circle>", b"<nowhere>"
"""What a name of a folder is, instead of a file: a pipe, a link to itself, a link to nothing."""


class FolderTarget:
    """A folder with files of any name and kind."""

    name = "folder"
    describes = "`open_gguf` of a folder and of each name in it"

    def make(self, rng: Random) -> Files:
        """Shards that are missing, pieces of uploads, companions, pipes, links, what is no GGUF."""
        names = (
            *(name for name in FILE_NAMES if not name.startswith("x" * 9)),
            *(
                "m-00001-of-00002.gguf",
                "m-00002-of-00002.gguf",
                "m-00001-of-99999.gguf",
                "m.gguf-split-a",
                "m.gguf.part2",
            ),
            *(
                "mmproj-m.gguf",
                "imatrix.gguf",
                "imatrix.dat",
                ".hidden.gguf",
                "M.GGUF",
                "Modelfile",
                "config.json",
                "x.bin",
            ),
        )
        sound = seeds.drafts()[0]
        makers = (
            lambda: sound.encode(),
            lambda: sound.encode(),
            lambda: mutated_gguf(rng, ggufs.ANYTHING, 0.3),
            lambda: rng.choice(
                (b"", b"GGUF", b"{}", b"PK\3\4", b"version https://git-lfs.github.com/spec/v1\n", bytes(9))
            ),
            lambda: rng.choice((PIPE, CIRCLE, NOWHERE)),
        )
        return {name: rng.choice(makers)() for name in rng.sample(names, rng.choice((0, 1, 1, 2, 3, 5)))}

    def run(self, files: Files, folder: Path) -> None:
        """Accepted: a sound header."""
        for name, content in files.items():
            if content == PIPE:
                os.mkfifo(folder / name)
            elif content in (CIRCLE, NOWHERE):
                (folder / name).symlink_to(name if content == CIRCLE else "nowhere")
            else:
                (folder / name).write_bytes(content)
        for name in files:
            with suppress(Gguf2stError), Refusals():
                require_sound(api.open_gguf(folder / name))
        with Refusals():
            require_sound(api.open_gguf(folder))


class RealTarget:
    """The header of a published model, with its weights as a hole in the file."""

    name = "real"
    describes = "`problems`, on the header of a published model"

    def make(self, rng: Random) -> Files:
        """All mutations; half of the files have the size that the header promises."""
        draft, nbytes = seeds.real_draft("smollm2")
        changed = ggufs.mutated(draft, rng, ggufs.ANYTHING if rng.random() < 0.4 else ggufs.MEANING)
        changed.settle(limit=0)
        content = changed.encode()
        content = ggufs.broken_bytes(content, rng) if rng.random() < 0.2 else content
        hole = nbytes if rng.random() < 0.9 else rng.randrange(nbytes)
        return {MODEL: content, "hole.txt": str(hole).encode()}

    def run(self, files: Files, folder: Path) -> None:
        """Lines that can be read, and a header that is sound."""
        quick_maps()
        write_input({MODEL: files[MODEL]}, folder)
        os.truncate(folder / MODEL, len(files[MODEL]) + int(files["hole.txt"]))
        for code, line in api.problems(folder / MODEL):
            assert code in (3, 4)
            require_message(line)
        with Refusals():
            require_sound(api.open_gguf(folder / MODEL))
