"""What a source can be, and what the user is told when it is something else."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gguf2st.errors import SourceError
from gguf2st.source import Model, default_output, locate
from gguf2st.source.local import find_files

GGUF = b"GGUF\3\0\0\0" + bytes(16)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def put(folder: Path, *names: str, content: bytes = GGUF) -> list[Path]:
    paths = [folder / name for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return paths


def error(src: str | Path) -> SourceError:
    with pytest.raises(SourceError) as caught:
        locate(src)
    assert "\n" not in caught.value.message
    return caught.value


SHARDS = [f"big-0000{n}-of-00003.gguf" for n in (1, 2, 3)]


@pytest.mark.parametrize(
    "name",
    [
        "model.gguf",
        "MODEL.GGUF",
        "blob without suffix",
        "4d7a9b1c0e",
        "model.bin",
        "two words (1).gguf",
        r"C:\models\model.gguf",
        "模型.gguf",
        "-.gguf",
        "model-00004-of-00003.gguf",
        "model-1-of-3.gguf",
    ],
)
def test_a_file_under_any_name(folder: Path, name: str) -> None:
    (path,) = put(folder, name)
    assert find_files(path) == (path,)
    assert locate(path) == locate(str(path)) == Model((str(path),), default_output(path))


def test_relative_paths_and_links_keep_their_spelling(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(folder, "blobs/4d7a9b")
    (folder / "model.gguf").symlink_to(folder / "blobs" / "4d7a9b")
    monkeypatch.chdir(folder)
    assert find_files("model.gguf") == (Path("model.gguf"),)
    assert find_files("blobs") == (Path("blobs/4d7a9b"),)
    assert find_files(".") == (Path("model.gguf"),)


@pytest.mark.parametrize("beside", [[], ["mmproj-F16.gguf", "imatrix.gguf", ".hidden.gguf", "sub/x.gguf"]])
def test_a_folder_with_one_model(folder: Path, beside: list[str]) -> None:
    (model,) = put(folder, "model.gguf")
    put(folder, *beside)
    put(folder, "README.md", "model.safetensors", content=b"not a GGUF")
    assert find_files(folder) == (model,)
    assert find_files(f"{folder}{os.sep}") == (model,)


def test_a_companion_can_be_named(folder: Path) -> None:
    (companion,) = put(folder, "mmproj-F16.gguf")
    assert find_files(companion) == (companion,)
    assert "mmproj-F16.gguf" in error(folder).hint


@pytest.mark.parametrize("chosen", [*SHARDS, "."])
def test_any_shard_gives_the_whole_split(folder: Path, chosen: str) -> None:
    shards = put(folder, *reversed(SHARDS))
    put(folder, *([] if chosen == "." else ["big.gguf", "big-00001-of-00002.gguf", "other-00001-of-00003.gguf"]))
    assert find_files(folder / chosen) == tuple(reversed(shards))


@pytest.mark.parametrize("there", [["00001"], ["00002"], ["00003"], ["00001", "00003"]])
@pytest.mark.parametrize("by_folder", [True, False])
def test_missing_shards_are_named(folder: Path, there: list[str], by_folder: bool) -> None:
    names = [name for name in SHARDS if name[4:9] in there]
    paths = put(folder, *names)
    absent = [name for name in SHARDS if name not in names]
    caught = error(folder if by_folder else paths[0])
    one = f"1 of 3 shards is missing: {absent[0]}"
    assert caught.message.endswith(one if len(absent) == 1 else "2 of 3 shards are missing"), caught.message
    assert caught.problems == (() if len(absent) == 1 else tuple(absent)), "each is said once"
    assert caught.hint == f"download the missing shards into {folder}"


def test_very_many_missing_shards_are_counted(folder: Path) -> None:
    (path,) = put(folder, "m-00001-of-99999.gguf")
    caught = error(path)
    assert "99998 of 99999 shards" in caught.message
    assert len(caught.problems) < 50
    assert "more" in caught.problems[-1]


def test_several_models_are_listed_with_sizes(folder: Path) -> None:
    put(folder, "model.Q4_K_M.gguf", content=GGUF + bytes(2_500_000))
    put(folder, "model.Q8_0.gguf", *SHARDS)
    caught = error(folder)
    assert str(folder) in caught.message
    assert "3 models" in caught.message
    assert caught.problems == (
        "model.Q8_0.gguf (24 B)",
        "big-00001-of-00003.gguf (72 B, 3 shards)",
        "model.Q4_K_M.gguf (2.5 MB)",
    )
    assert caught.hint == f"name one, such as: {folder}:Q4_K_M", "for every command"


@pytest.mark.parametrize(
    ("select", "names"),
    [
        ("Q4_K_M", ["model.Q4_K_M.gguf"]),
        ("q8_0", ["model.Q8_0.gguf"]),
        ("big", SHARDS),
        ("model.Q8_0.gguf", ["model.Q8_0.gguf"]),
        ("Q6_K", ["two words/x (1).Q6_K.gguf"]),  # one level down, when asked for
        ("two words", ["two words/x (1).Q6_K.gguf"]),
    ],
)
@pytest.mark.parametrize("end", ["", os.sep])
def test_one_of_several_models_is_selected(folder: Path, select: str, names: list[str], end: str) -> None:
    put(folder, "model.Q4_K_M.gguf", "model.Q8_0.gguf", "mmproj-Q4_K_M.gguf", "two words/x (1).Q6_K.gguf", *SHARDS)
    assert locate(f"{folder}{end}:{select}").paths == tuple(folder / name for name in names)


@pytest.mark.parametrize("select", ["Q5_K_M", "model", "Q4"])
def test_a_selection_that_fits_none_or_several(folder: Path, select: str) -> None:
    put(folder, "model.Q4_K_M.gguf", "model.Q8_0.gguf")
    caught = error(f"{folder}:{select}")
    assert select in caught.message
    assert len(caught.problems) == 2
    assert caught.hint == f"name one, such as: {folder}:Q4_K_M"


def test_nothing_is_selected_from_one_file(folder: Path) -> None:
    (path,) = put(folder, "model.gguf")
    assert "one file" in error(f"{path}:Q4_K_M").message


def test_a_missing_shard_of_the_selected_model(folder: Path) -> None:
    put(folder, "a.Q8_0-00001-of-00002.gguf", "a.Q4_0.gguf")
    assert "a.Q8_0-00002-of-00002.gguf" in error(f"{folder}:Q8_0").message
    assert locate(f"{folder}:Q4_0").paths == (folder / "a.Q4_0.gguf",)


def test_a_folder_without_a_model(folder: Path) -> None:
    put(folder, "config.json", "model.safetensors", content=b"{}")
    assert "no GGUF model" in error(folder).message
    put(folder, "Q4_K_M/model.gguf")
    assert str(folder / "Q4_K_M") in error(folder).hint


FOREIGN = {
    "empty": b"",
    "Git LFS pointer": b"version https://git-lfs.github.com/spec/v1\n",
    "web page": b"<!doctype html><html></html>",
    "zip": b"PK\x03\x04",
    "safetensors": b"\x02\0\0\0\0\0\0\0{}",
    "text": b"Entry not found",
    "starts with": b"\x93NUMPY",
    "zeros": bytes(64),
}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("by_folder", [True, False])
def test_other_files_are_recognised(folder: Path, kind: str, by_folder: bool) -> None:
    (path,) = put(folder, "model.gguf", content=FOREIGN[kind])
    caught = error(folder if by_folder else path)
    assert caught.message.startswith(f"{path}: ")
    assert kind in caught.message
    assert caught.hint


def test_a_damaged_shard_is_named(folder: Path) -> None:
    shards = put(folder, *SHARDS)
    shards[1].write_bytes(b"")
    assert str(shards[1]) in error(shards[0]).message


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("modle.Q4_K_M.gguf", "model.Q4_K_M.gguf"),
        ("MODEL.q4_k_m.GGUF", "model.Q4_K_M.gguf"),
        ("model.Q4_K_M", "model.Q4_K_M.gguf"),
        ("foldr/inner.gguf", "folder"),
        ("folder/iner.gguf", "folder/inner.gguf"),
        (r"folder\inner.gguf", "folder/inner.gguf"),
    ],
)
def test_a_slip_in_a_name(folder: Path, monkeypatch: pytest.MonkeyPatch, typed: str, meant: str) -> None:
    put(folder, "model.Q4_K_M.gguf", "folder/inner.gguf", "unrelated.txt")
    monkeypatch.chdir(folder)
    caught = error(typed)
    assert caught.message == f"{typed}: no such file or folder"
    assert meant in caught.hint


@pytest.mark.parametrize(("typed", "others"), [("nope.gguf", ["lora.gguf"]), ("a.gguf", ["b.gguf", "c.gguf"])])
def test_a_suffix_alone_makes_no_name_near(folder: Path, typed: str, others: list[str]) -> None:
    put(folder, *others)
    assert error(folder / typed).hint == f"{folder} holds {', '.join(others)}"


def test_of_two_names_the_kind_that_was_meant(folder: Path) -> None:
    put(folder, "model.gguf", "model.bak/x.gguf", "model/x.gguf")
    assert error(folder / "modell.gguf").hint.startswith(f"did you mean {folder / 'model.gguf'}")


@pytest.mark.parametrize("typed", ["/no/such/place/x.gguf", "x", "a/b/c/d.gguf", "a/b/c", "nul\0byte", "x.gguf/y.gguf"])
def test_nothing_near(folder: Path, monkeypatch: pytest.MonkeyPatch, typed: str) -> None:
    monkeypatch.chdir(folder)
    caught = error(typed)
    assert caught.message == f"{typed}: no such file or folder"
    assert caught.hint


def test_a_name_too_long_for_the_system() -> None:
    assert "too long" in error("x" * 5000).message


def test_a_dangling_link(folder: Path) -> None:
    (folder / "model.gguf").symlink_to(folder / "blobs" / "4d7a9b")
    caught = error(folder / "model.gguf")
    assert "4d7a9b, which does not exist" in caught.message


def test_what_exists_here_goes_before_the_hub_and_ollama(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(folder, "unsloth/gemma/model.gguf", "llama3.2", "odd:name.gguf")
    monkeypatch.chdir(folder)
    assert locate("unsloth/gemma").paths == (Path("unsloth/gemma/model.gguf"),)
    assert locate("llama3.2").paths == (Path("llama3.2"),)
    assert locate("odd:name.gguf").paths == (Path("odd:name.gguf"),)
    # A folder of this name says that a path is meant; the Hub is not asked, but named.
    assert "did you mean unsloth/gemma?" in error("unsloth/gema").hint
    assert "hf://unsloth/quite-different" in error("unsloth/quite-different").hint
    assert "hf://a/b/c.gguf" in error("a/b/c.gguf").hint


@pytest.mark.parametrize(
    ("src", "words"),
    [
        ("s3://bucket/model.gguf", "s3:// is not read"),
        ("https://example.com/model.gguf?token=hf_secretsecret", "only addresses of the Hub"),
        ("file:///models/model.gguf", "an address, not a path"),
        ("hf://datasets/org/name/x.gguf", "datasets on the Hub are no models"),
        ("https://huggingface.co/spaces/org/name", "spaces on the Hub are no models"),
        ("https://huggingface.co/org/name/discussions/3", "this page holds no file"),
        ("https://user:hf_secretsecret@huggingface.co/org/name", "password or token"),
        ("hf://org", "not a name on the Hub"),
        ("ollama://a/b/c/d/e", "ollama"),
    ],
)
def test_addresses_that_are_no_source(folder: Path, monkeypatch: pytest.MonkeyPatch, src: str, words: str) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(folder))
    caught = error(src)
    assert words in caught.message
    assert caught.hint
    assert "secretsecret" not in caught.message + caught.hint


@pytest.mark.parametrize(("src", "words"), [("-", "standard input"), ("", "empty")])
def test_no_file_at_all(src: str, words: str) -> None:
    assert words in error(src).message


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_a_pipe(folder: Path) -> None:
    os.mkfifo(folder / "pipe.gguf")
    assert "not a regular file" in error(folder / "pipe.gguf").message


@pytest.mark.parametrize(
    "names", [["m.gguf-split-a", "m.gguf-split-b"], ["m.gguf.part1of2", "m.gguf.part2of2"], ["m.gguf.part-aa"]]
)
def test_pieces_of_a_cut_file(folder: Path, names: list[str]) -> None:
    paths = put(folder, *names, "n.gguf.part1")
    caught = error(paths[0])
    assert "cut" in caught.message
    assert f"cat {' '.join(names)} > m.gguf" in caught.hint


@pytest.mark.parametrize(
    ("names", "output"),
    [
        (["model.Q4_K_M.gguf"], "model.Q4_K_M-safetensors"),
        (["MODEL.GGUF"], "MODEL-safetensors"),
        (["4d7a9b"], "4d7a9b-safetensors"),
        ([".gguf"], ".gguf-safetensors"),
        (SHARDS, "big-safetensors"),
        (["model-00001-of-00001.gguf"], "model-safetensors"),
    ],
)
@pytest.mark.parametrize("make", [lambda name: Path("/data/models") / name, Path])
def test_default_output_lies_beside_the_source(names: list[str], output: str, make: Callable[[str], Path]) -> None:
    assert default_output(make(names[0])) == make(output)


def test_the_output_of_a_cached_file_is_not_in_the_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "0123456789" * 4
    (path,) = put(folder, f"models--org--my.repo/snapshots/{commit}/UD/m-Q4_0-00001-of-00001.gguf")
    found = locate(path)
    assert found.output == Path("m-Q4_0-safetensors")
    assert found.origin == f"hf://org/my.repo@{commit}/UD/m-Q4_0-00001-of-00001.gguf"
