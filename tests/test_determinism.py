"""The same input gives the same bytes, whatever the machine does meanwhile, and no bit of them changes unseen."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gguf2st
from gguf2st import execute
from gguf2st.errors import SourceError, VerifyError
from gguf2st.hub.provenance import PROVENANCE_FILE
from tests.crash_runs import QTYPES, files_of
from tests.hub_server import HubServer
from tests.make_gguf import tiny_model
from tests.oracle.terminal import completed

REPACKS = ("none", "exact", "near", "int4")
SHARD_NBYTES = 250_000


def small(path: Path, arch: str = "llama") -> Path:
    """A matrix of each kind that packing treats in its own way."""
    return tiny_model(
        path,
        arch,
        layers=1,
        hidden=256,
        ffn=256,
        expert_ffn=256,
        qtype=lambda name: next((qtype for part, qtype in QTYPES.items() if part in name), "Q4_0"),
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small(tmp_path_factory.mktemp("determinism") / "m.gguf")


def convert(source: Path, out: Path, **options: Any) -> dict[str, bytes]:
    gguf2st.convert(source, out, max_shard_size=SHARD_NBYTES, **options)
    return files_of(out)


@pytest.mark.parametrize("arch", ["llama", "qwen3moe"])
@pytest.mark.parametrize("repack", REPACKS)
def test_threads_and_chunks(repack: str, arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = small(tmp_path / "m.gguf", arch)
    expected = convert(source, tmp_path / "expected", repack=repack, threads=1)
    assert sum(name.endswith(".safetensors") for name in expected) > 1
    for threads, nbytes in ((2, 600), (8, 5000), (8, 1 << 30), (3, 70_001)):
        monkeypatch.setattr(execute, "CHUNK_NBYTES", nbytes)
        out = tmp_path / f"{threads}-{nbytes}"
        assert convert(source, out, repack=repack, threads=threads) == expected, (threads, nbytes)


@pytest.mark.parametrize("repack", REPACKS)
def test_a_resumed_run(repack: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted after each shard; what packed weights lost is remembered too."""
    expected = convert(source, tmp_path / "expected", repack=repack)
    report = gguf2st.convert(source, tmp_path / "report", max_shard_size=SHARD_NBYTES, repack=repack)
    write, left = execute._write_shard, 0

    def failing(*arguments: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise SourceError("interrupted")
        return write(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(execute, "_write_shard", failing)
        for finished in range(1, len(report.shards)):
            left = 1
            with pytest.raises(SourceError, match="interrupted"):
                convert(source, tmp_path / "out", repack=repack)
            assert len(list((tmp_path / "out.partial").glob("*.safetensors"))) == finished
    resumed = gguf2st.convert(source, tmp_path / "out", max_shard_size=SHARD_NBYTES, repack=repack)
    assert files_of(tmp_path / "out") == expected
    assert (resumed.digests, resumed.rel_rmse) == (report.digests, report.rel_rmse)


def test_other_processes_in_other_places(source: Path, tmp_path: Path) -> None:
    """The order of sets, the folder, the locale and the time zone of a process are in no file."""
    expected = convert(source, tmp_path / "expected", repack="near")
    for seed, locale, zone in (("1", "C", "UTC"), ("77", "C.UTF-8", "Asia/Tokyo")):
        folder = tmp_path / f"some where {seed}"
        folder.mkdir()
        (folder / source.name).write_bytes(source.read_bytes())
        command = [sys.executable, "-m", "gguf2st", "convert", source.name, "-o", "out", "--repack", "near"]
        environment = os.environ | {"PYTHONHASHSEED": seed, "LC_ALL": locale, "TZ": zone}
        options = ["--max-shard-size", str(SHARD_NBYTES)]
        subprocess.run([*command, *options], cwd=folder, env=environment, check=True, capture_output=True)
        assert files_of(folder / "out") == expected


def sums(folder: Path) -> dict[str, str]:
    """By coreutils."""
    names = sorted(p.name for p in folder.iterdir())
    done = subprocess.run(["sha256sum", *names], cwd=folder, check=True, capture_output=True, text=True)
    return {line.split()[1]: line.split()[0] for line in done.stdout.splitlines()}


@pytest.mark.parametrize(
    ("options", "hashed"),
    [
        ({}, False),
        ({"repack": "exact"}, True),
        ({"digests": True}, True),
        ({"repack": "near", "digests": False}, False),
    ],
    ids=["dense", "packed", "asked for", "not wanted"],
)
def test_the_report_carries_digests(options: dict[str, Any], hashed: bool, source: Path, tmp_path: Path) -> None:
    report = gguf2st.convert(source, tmp_path / "out", max_shard_size=SHARD_NBYTES, **options)
    expected = sums(tmp_path / "out")
    del expected[PROVENANCE_FILE]  # it holds them
    if not hashed:
        expected = {name: digest for name, digest in expected.items() if not name.endswith(".safetensors")}
    assert report.digests == expected
    assert json.loads((tmp_path / "out" / PROVENANCE_FILE).read_text())["digests"] == expected
    checked = gguf2st.verify(tmp_path / "out")
    notes = [note for note in checked.notes if not note.startswith("transformers ")]
    assert (checked.ok, notes, "digests" in checked.levels) == (True, [], hashed)


def test_digests_of_what_is_not_kept_are_those_of_the_hub(source: Path, hub: HubServer, tmp_path: Path) -> None:
    command = ["convert", source, "-o", "out", "--repack", "near"]
    options = ["--max-shard-size", SHARD_NBYTES, "--push", "tester/tiny", "--no-keep", "--json", "-"]
    done = completed(*command, *options, cwd=tmp_path, environment=hub.environment(tmp_path))
    digests = json.loads(done.stdout)["digests"]
    files = hub.store.repos["tester/tiny"].refs["main"].files
    assert digests == {name: files[name].sha256 for name in digests}
    assert sum(name.endswith(".safetensors") for name in digests) > 1


# --- One flipped bit


def regions(path: Path) -> dict[str, list[int]]:
    """Where the bytes of a file lie, by what they mean."""
    data = path.read_bytes()
    if path.suffix != ".safetensors":
        return {path.name: list(range(len(data)))}
    n = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + n]
    text = len(header.rstrip())
    found = {"length": list(range(8)), "header": list(range(8, 8 + text)), "padding": list(range(8 + text, 8 + n))}
    for name, row in json.loads(header).items():
        if name != "__metadata__":
            start, stop = row["data_offsets"]
            found.setdefault(name.rpartition(".")[2], []).extend(range(8 + n + start, 8 + n + stop))
    return {kind: places for kind, places in found.items() if places}


def flips(folder: Path, count: int) -> Iterator[tuple[Path, str, int]]:
    """(file, what is there, number of a bit): `count` of each kind in each file, by chance but always the same."""
    rng = random.Random(folder.name)
    for path in sorted(folder.iterdir()):
        if path.name != PROVENANCE_FILE:
            for kind, places in regions(path).items():
                for _ in range(count):
                    yield path, kind, 8 * rng.choice(places) + rng.randrange(8)


def unseen(folder: Path, source: Path, count: int) -> list[str]:
    """Flip bits one at a time; what `verify --against` did not find."""
    assert gguf2st.verify(folder, source).ok
    missed = []
    for path, kind, bit in flips(folder, count):
        whole = path.read_bytes()
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        try:
            result = gguf2st.verify(folder, source)
            is_shard = path.suffix == ".safetensors"
            if result.ok and (is_shard or not any(path.name in note for note in result.notes)):
                missed.append(f"{path.name}, {kind}: bit {bit}")
        except VerifyError:
            pass  # what cannot be read at all
        path.write_bytes(whole)
    return missed


@pytest.mark.parametrize("repack", REPACKS)
def test_no_bit_changes_unseen(repack: str, source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / repack, repack=repack)
    assert unseen(tmp_path / repack, source, 2) == []


@pytest.mark.slow
@pytest.mark.parametrize("repack", REPACKS)
def test_no_bit_changes_unseen_in_many_tries(repack: str, source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / repack, repack=repack)
    assert unseen(tmp_path / repack, source, 60) == []


@pytest.mark.parametrize("repack", REPACKS)
def test_the_source_finds_every_bit_too(repack: str, source: Path, tmp_path: Path) -> None:
    """All values are compared with it, and packed ones that lost something with what it is packed into again."""
    convert(source, tmp_path / repack, repack=repack, digests=False)
    missed = [text for text in unseen(tmp_path / repack, source, 2) if ".safetensors" in text]
    assert missed == []


def test_edited_texts_are_told_and_allowed(source: Path, tmp_path: Path) -> None:
    """A length is often corrected by hand; what makes ids or conversations is compared with the source."""
    convert(source, tmp_path / "out")
    path = tmp_path / "out/tokenizer_config.json"
    path.write_text(path.read_text().replace('"model_max_length": 256', '"model_max_length": 512'))
    (tmp_path / "out/special_tokens_map.json").unlink()
    result = gguf2st.verify(tmp_path / "out", source)
    assert result.ok
    assert {note.split()[0] for note in result.notes} == {"special_tokens_map.json", "tokenizer_config.json"}
    assert gguf2st.verify(tmp_path / "out").ok


@pytest.mark.parametrize("digests", ["x", ["a"], {"/etc/passwd": "0"}, {"../m.safetensors": "0"}, {"config.json": 3}])
def test_digests_of_a_stranger(digests: Any, source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "out")
    (tmp_path / "m.safetensors").write_text("mine")
    path = tmp_path / "out" / PROVENANCE_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | {"digests": digests}))
    result = gguf2st.verify(tmp_path / "out")
    assert result.ok == ("config.json" in digests), "gguf2st writes that one always"
    assert not any("passwd" in line or "m.safetensors" in line for line in (*result.notes, *result.problems))
