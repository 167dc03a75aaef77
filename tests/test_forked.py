"""What the tests run instead of new processes is no different from them."""

import os
from pathlib import Path

import pytest

from tests.make_gguf import tiny_llama
from tests.oracle import forked
from tests.oracle.terminal import GGUF2ST, Done, on_terminal, run

NEW_PROCESS = [*GGUF2ST]
"""Equal to the default, but another object: no fork."""


@pytest.mark.parametrize("command", ["--help", "convert", "frobnicate", "inspect m.gguf --json", "check gone.gguf"])
def test_forks_say_and_end_as_processes_do(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_llama(tmp_path / "m.gguf")
    monkeypatch.chdir(tmp_path)
    words = command.split()
    assert run(*words) == run(*words, program=NEW_PROCESS)
    assert on_terminal(*words) == on_terminal(*words, program=NEW_PROCESS)


def test_forks_have_their_own_folder_environment_and_mask(tmp_path: Path) -> None:
    tiny_llama(tmp_path / "m.gguf")
    before = os.umask(0o077)
    try:
        assert run("convert", "m.gguf", "-o", "out", "-q", cwd=tmp_path) == Done(0, "", "")
    finally:
        os.umask(before)
    assert (tmp_path / "out/config.json").stat().st_mode & 0o777 == 0o600
    absent = run("check", "org/absent", cwd=tmp_path, environment={"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)})
    assert "HF_HUB_OFFLINE" in absent.out


def test_what_python_reads_at_its_start_needs_a_new_process() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    assert forked.start(["--help"], (0, 1, 2), None, environment) is None
