"""Targets that convert, and that verify what somebody has changed afterwards."""

import json
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random

import gguf2st
from gguf2st.errors import Gguf2stError
from gguf2st.plan import DTYPES
from gguf2st.schemes import MODES
from tests.fuzz import ggufs, hostile, seeds, texts
from tests.fuzz.folders import STRAY, changed_shard, mutated_folder
from tests.fuzz.harness import Files, write_input
from tests.fuzz.promises import MODEL, SHARD_NBYTES, Refusals, quick_maps, require_message


class ConvertTarget:
    """A whole conversion of a tiny file."""

    name = "convert"
    describes = "`convert`, packed or not, and `verify --against` of what it wrote"

    def make(self, rng: Random) -> Files:
        """Mutations of meaning, and weights of any bits."""
        seed = rng.choice((*seeds.drafts()[:5], *seeds.packed_drafts()))
        draft = seed.copy() if rng.random() < 0.4 else ggufs.mutated(seed, rng, ggufs.MEANING)
        if rng.random() < 0.5 and draft.data:
            data = bytearray(draft.data)
            for _ in range(rng.choice((1, 1, 10, 300))):
                at = rng.randrange(len(data))
                data[at] = rng.choice((0, 0x7C, 0x7F, 0x80, 0xFC, 0xFF, rng.getrandbits(8)))
            draft.data = bytes(data)
        options = {"repack": rng.choice(("none", *MODES)), "dtype": rng.choice((None, None, *DTYPES))}
        return {MODEL: draft.encode(), "options.json": json.dumps(options).encode()}

    def run(self, files: Files, folder: Path) -> None:
        """Accepted: complete, equal to its source. Refused: no folder has the name. The source is never touched."""
        quick_maps()
        write_input({MODEL: files[MODEL]}, folder)
        out = folder / "out"
        options = json.loads(files["options.json"])
        try:
            with Refusals():
                gguf2st.convert(folder / MODEL, out, max_shard_size=SHARD_NBYTES, threads=1, **options)
            # What reading the header promised must be what came out.
            assert gguf2st.verify(out, against=folder / MODEL).problems == ()
        except Gguf2stError:
            assert not out.exists()
            raise
        finally:
            assert (folder / MODEL).read_bytes() == files[MODEL]
            assert {path.name for path in folder.iterdir()} <= {MODEL, "out", "out.partial"}


class DryRunTarget(ConvertTarget):
    """A dry run, which reads headers only."""

    name = "dry-run"
    describes = "`convert(dry_run=True)`"

    def run(self, files: Files, folder: Path) -> None:
        """Nothing is written."""
        quick_maps()
        write_input({MODEL: files[MODEL]}, folder)
        try:
            with Refusals():
                gguf2st.convert(folder / MODEL, folder / "out", dry_run=True, **json.loads(files["options.json"]))
        finally:
            assert [path.name for path in folder.iterdir()] == [MODEL]


class CheckpointTarget:
    """A checkpoint folder of a stranger."""

    name = "checkpoint"
    describes = "`verify`, with and without the source, of dense and packed checkpoints"

    def make(self, rng: Random) -> Files:
        """Shards, index, configuration or tokenizer changed."""
        kind = rng.choice(("dense", "dense", "int4", "int8", "asym", "mxfp4", "nvfp4"))
        source, files = _checkpoint(kind)
        return {MODEL: source, "kind.txt": kind.encode()} | {
            f"out/{name}": content for name, content in mutated_folder(files, rng).items()
        }

    def run(self, files: Files, folder: Path) -> None:
        """Accepted against its source, and equal to it: the same tensors as were written."""
        quick_maps()
        (folder / "out").mkdir()
        write_input({name: content for name, content in files.items() if name != "kind.txt"}, folder)
        out = folder / "out"
        for line in gguf2st.verify(out).problems:
            require_message(line)
        with Refusals():
            result = gguf2st.verify(out, against=folder / MODEL)
        for line in result.problems:
            require_message(line)
        exact = all(loss.equal == loss.weights for loss in result.losses)  # a lossy format is held to a bound
        if result.ok and exact:
            assert _tensors(out) == _written_tensors(files["kind.txt"].decode())


def _tensors(out: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """dtype, shape and bytes of each tensor."""
    import torch
    from safetensors import safe_open

    found = {}
    for path in out.glob("*.safetensors"):
        with safe_open(path, framework="pt") as shard:
            for name in shard.keys():  # noqa: SIM118 - it is no dict
                tensor = shard.get_tensor(name).contiguous()
                raw = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
                found[name] = (str(tensor.dtype), tuple(tensor.shape) or (1,), raw)  # a scale may be a scalar
    return found


@cache
def _written_tensors(kind: str) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        write_input(_checkpoint(kind)[1], Path(scratch))
        return _tensors(Path(scratch))


_PACKED = ("int4", "int8", "asym", "mxfp4", "nvfp4")


@cache
def _checkpoint(kind: str = "dense") -> tuple[bytes, dict[str, bytes]]:
    """A source, and the files of its conversion in several shards: dense, or packed in one of the formats."""
    import tempfile

    draft = seeds.drafts()[0] if kind == "dense" else seeds.packed_drafts()[_PACKED.index(kind)]
    with tempfile.TemporaryDirectory() as scratch:
        source, out = Path(scratch) / MODEL, Path(scratch) / "out"
        source.write_bytes(draft.encode())
        repack = "none" if kind == "dense" else "int4"
        gguf2st.convert(source, out, max_shard_size=SHARD_NBYTES, repack=repack)
        files = {p.relative_to(out).as_posix(): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()}
        return source.read_bytes(), files


class ResumeTarget:
    """A partial folder that somebody has changed."""

    name = "resume"
    describes = "`convert` into a partial folder whose plan, journal or shards were changed"

    def make(self, rng: Random) -> Files:
        """What is put into the partial folder before the conversion goes on."""
        journal = ['{"shard": "model-00001-of-00003.safetensors", "sums": {}}', '"model-00001-of-00003.safetensors"']
        pieces = (
            "../m.gguf",
            "model.safetensors",
            "{}",
            "null",
            "\0",
            "NaN",
            "[" * 2_000,
            "model-00002-of-00003.safetensors",
        )
        files: dict[str, bytes] = {MODEL: _checkpoint()[0]}
        for name in rng.sample(("journal", "plan.json", "shard", "stray"), rng.choice((1, 1, 2))):
            if name == "journal":
                lines = [texts.broken_text(rng.choice(journal), rng, pieces) for _ in range(rng.choice((0, 1, 3)))]
                raw = "\n".join([*lines, *journal[:1]]).encode("utf-8", "surrogatepass")
                files["out.partial/journal"] = raw + rng.choice((b"", b"\n", bytes(100), b"\xff\xfe"))
            elif name == "plan.json":
                files["out.partial/plan.json"] = rng.choice((b"", b"{}", hostile.text(rng), bytes(1_000)))
            elif name == "shard":
                shard = _checkpoint()[1]["model-00001-of-00003.safetensors"]
                changed = changed_shard(shard, rng) if rng.random() < 0.7 else shard[: rng.randrange(len(shard))]
                files["out.partial/model-00001-of-00003.safetensors"] = changed
            else:
                files[f"out.partial/{rng.choice(STRAY)}"] = hostile.text(rng)
        return files

    def run(self, files: Files, folder: Path) -> None:
        """Accepted: the same bytes as without an interruption. Refused: nothing of somebody else's is gone."""
        quick_maps()
        write_input({MODEL: files[MODEL]}, folder)
        done = 0

        def stop(nbytes: int, _total: int) -> None:
            nonlocal done
            done += nbytes
            if done > 20_000:
                raise KeyboardInterrupt

        with suppress(KeyboardInterrupt):
            gguf2st.convert(folder / MODEL, folder / "out", max_shard_size=SHARD_NBYTES, threads=1, progress=stop)
        assert (folder / "out.partial").is_dir()
        write_input({name: content for name, content in files.items() if name != MODEL}, folder)
        with Refusals():
            gguf2st.convert(folder / MODEL, folder / "out", max_shard_size=SHARD_NBYTES, threads=1)
        expected = {k: v for k, v in _checkpoint()[1].items() if k.endswith(".safetensors")}
        assert {p.name: p.read_bytes() for p in (folder / "out").glob("*.safetensors")} == expected
        written = {path.relative_to(folder / "out").as_posix() for path in (folder / "out").rglob("*")}
        assert written == _checkpoint()[1].keys(), written ^ _checkpoint()[1].keys()
