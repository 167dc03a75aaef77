"""Folders by path or repository, through huggingface_hub itself: its cache offline, and its errors."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gguf2st.errors import UsageError
from gguf2st.hub import local_folder
from tests.make_gguf import tiny_llama
from tests.oracle.terminal import completed

CODE = "import sys; from gguf2st.hub import local_folder; print(local_folder(sys.argv[1], ['tokenizer*', '*.jinja']))"


def _run(name: str, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: huggingface_hub reads its settings when it is imported."""
    settings = {"HF_HOME": str(home), "HF_HUB_DISABLE_PROGRESS_BARS": "1", **environment}
    return subprocess.run(
        [sys.executable, "-c", CODE, name], env=os.environ | settings, capture_output=True, text=True, check=False
    )


def _cached(home: Path, repo: str) -> Path:
    """A repository in huggingface_hub's cache, as a download leaves it."""
    base = home / "hub" / f"models--{repo.replace('/', '--')}"
    snapshot = base / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (base / "refs").mkdir()
    (base / "refs" / "main").write_text("a" * 40)
    (snapshot / "tokenizer.json").write_text("{}")
    return snapshot


def test_a_folder_is_a_folder_even_if_it_looks_like_a_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert local_folder("org/name", ["*"]) == Path("org/name")


@pytest.mark.parametrize("name", ["missing", "a/b/c", "../x", "", "org/", "/no/such", "org /name"])
def test_what_is_neither_a_folder_nor_a_repository(name: str) -> None:
    with pytest.raises(UsageError, match="neither a folder nor a repository"):
        local_folder(name, ["*"])


def test_a_cached_repository_is_found_offline(tmp_path: Path) -> None:
    snapshot = _cached(tmp_path, "org/name")
    run = _run("org/name", tmp_path, HF_HUB_OFFLINE="1")
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == str(snapshot)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"HF_HUB_OFFLINE": "1"}, "org/absent is not in the local cache, and HF_HUB_OFFLINE forbids to ask the Hub"),
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "org/absent: the Hub at http://127.0.0.1:9 cannot be reached"),
    ],
)
def test_an_absent_repository_offline_or_without_a_server(tmp_path: Path, settings: dict[str, str], words: str) -> None:
    run = _run("org/absent", tmp_path, **settings)
    assert run.returncode != 0
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith(f"gguf2st.errors.HubError: {words}")


def test_convert_takes_a_tokenizer_from_a_cached_repository(tmp_path: Path) -> None:
    """The whole command: the repository's files end up in the checkpoint, byte for byte."""
    source = tiny_llama(tmp_path / "tiny.gguf")
    environment = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return completed("convert", source, *arguments, environment=environment)

    assert run("-o", tmp_path / "first", "--dtype", "float32").returncode == 0
    snapshot = _cached(tmp_path / "home", "org/name")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (snapshot / name).write_bytes((tmp_path / "first" / name).read_bytes() + b"\n")
    done = run("-o", tmp_path / "second", "--tokenizer-from", "org/name")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "second/tokenizer.json").read_bytes() == (snapshot / "tokenizer.json").read_bytes()
    nowhere = run("-o", tmp_path / "third", "--tokenizer-from", "gone")
    assert nowhere.returncode == 2
    assert nowhere.stderr.startswith("error: gone is neither a folder nor a repository")
    absent = run("-o", tmp_path / "third", "--tokenizer-from", "org/absent")
    assert absent.returncode == 8
    assert absent.stderr.startswith("error: org/absent is not in the local cache, and HF_HUB_OFFLINE")
    assert not (tmp_path / "third").exists()
