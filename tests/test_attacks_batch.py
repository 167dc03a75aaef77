"""Manifests of hurried or hostile people: nothing is written over what another model of the batch wrote."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gguf2st.batch.manifest import Manifest, read_manifest
from gguf2st.batch.runner import run_batch
from gguf2st.batch.state import StateFile
from gguf2st.cli.batch import _options, _problem
from gguf2st.errors import UsageError
from tests.make_gguf import tiny_llama


def _read(folder: Path, text: str) -> Manifest:
    path = folder / "models.toml"
    path.write_text(text)
    return read_manifest(path, _options(), _problem)


def _models(*outputs: str) -> str:
    return "\n".join(f'[[model]]\nsrc = "{n}.gguf"\noutput = "{output}"' for n, output in enumerate(outputs))


def test_a_manifest_in_another_folder(tmp_path: Path) -> None:
    """As `gguf2st batch docs/batch.toml` names it: relative to where the command runs, not to itself."""
    inner = tmp_path / "inner"
    inner.mkdir()
    tiny_llama(inner / "tiny.gguf")
    (inner / "models.toml").write_text('[[model]]\nsrc = "tiny.gguf"\n')
    command = [sys.executable, "-m", "gguf2st", "batch", "inner/models.toml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (inner / "tiny-safetensors" / "config.json").is_file()


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("a", "b/../a", "2 models have the output"),
        ("a", "link", "2 models have the output"),
        ("a", "a/b", "the output of '1', {folder}/a/b, lies inside that of '0'"),
        ("link/b/c", "a", "the output of '0', {folder}/a/b/c, lies inside that of '1'"),
    ],
)
def test_one_place_spelled_in_two_ways(first: str, second: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("a")
    with pytest.raises(UsageError) as caught:
        _read(tmp_path, _models(first, second))
    assert said.format(folder=os.path.realpath(tmp_path)) in caught.value.message


def test_neighbours_are_no_one_place(tmp_path: Path) -> None:
    names = ("a", "ab", "a.b", "b/a")
    assert [m.output.relative_to(tmp_path).as_posix() for m in _read(tmp_path, _models(*names)).models] == list(names)


@pytest.mark.parametrize(("key", "value"), [("output", "out/{nam}"), ("push", "me/{}"), ("revision", "{quant}")])
@pytest.mark.parametrize("where", ["[defaults]", "model 1"])
def test_a_placeholder_that_stands_for_nothing(where: str, key: str, value: str, tmp_path: Path) -> None:
    push = 'push = "me/x"\n' if key == "revision" else ""
    line = f'{key} = "{value}"\n'
    table = f'[defaults]\n{line}[[model]]\nsrc = "x"\n' if where == "[defaults]" else f'[[model]]\nsrc = "x"\n{line}'
    with pytest.raises(UsageError) as caught:
        _read(tmp_path, table + push)
    wrong = value[value.index("{") :]
    assert f"{where}: {key} has {wrong}; only {{name}} stands for something" in caught.value.message


def test_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No shell reads a manifest: without this, `~/models/x` would be a folder of the name `~` beside it."""
    monkeypatch.setenv("HOME", "/home/somebody")
    (model,) = _read(
        tmp_path, '[[model]]\nsrc = "~/x.gguf"\noutput = "~/out/{name}"\nmessage = "~/x"\npush = "a/b"'
    ).models
    assert (model.src, model.output) == ("/home/somebody/x.gguf", Path("/home/somebody/out/x"))
    assert model.push["message"] == "~/x"


@pytest.mark.parametrize(
    ("left", "status"), [("nothing", "done"), ("an empty folder", "done"), ("somebody's files", "failed")]
)
def test_done_is_what_is_still_there(left: str, status: str, tmp_path: Path) -> None:
    """A folder of the output's name is no checkpoint: the model is converted again where that harms nobody."""
    tiny_llama(tmp_path / "tiny.gguf")
    manifest = _read(tmp_path, '[[model]]\nsrc = "tiny.gguf"\noutput = "out"\n')
    (model,) = manifest.models
    with StateFile(manifest.path) as state:
        assert [event.kind for event in run_batch(manifest, state)] == ["started", "done"]
        assert [event.kind for event in run_batch(manifest, state)] == ["skipped"]
        shutil.rmtree(model.output)
        if left != "nothing":
            model.output.mkdir()
        if left == "somebody's files":
            (model.output / "notes.txt").write_text("mine")
        assert [event.kind for event in run_batch(manifest, state)] == ["started", status]
    assert (model.output / "config.json").is_file() == (status == "done")


def test_a_repository_that_cannot_be_made_is_known_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        _read(tmp_path, '[defaults]\npush = "me/{name}"\n[[model]]\nname = "a--b"\nsrc = "x.gguf"\n')
    assert "model 1 ('a--b'): 'me/a--b' is not the name of a repository to push to" in caught.value.message
