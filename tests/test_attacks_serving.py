"""Serving while the disk of its log is full: vLLM must never wait for somebody who reads no more."""

import errno
import io
import shutil
import sys
import time
from pathlib import Path

import pytest

from gguf2st.serving.process import Server
from tests.make_gguf import tiny_llama
from tests.oracle.terminal import run

LINES = 20_000  # more than a pipe holds


class _FullDisk(io.RawIOBase):
    """A log that takes 100 bytes."""

    def __init__(self) -> None:
        self.taken = b""

    def write(self, data: bytes) -> int:
        if len(self.taken) + len(data) > 100:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.taken += data
        return len(data)


def test_output_is_read_on_when_the_log_takes_no_more() -> None:
    program = f"for n in range({LINES}): print('line', n, flush=False)"
    log = _FullDisk()
    server = Server([sys.executable, "-c", program], log=log)
    until = time.monotonic() + 30
    lines: list[str] = []
    while server.exit_code is None and time.monotonic() < until:
        lines += server.lines()
        time.sleep(0.01)
    code = server.exit_code
    server.stop()
    lines += server.lines()
    assert code == 0, "it waits for ever"
    assert lines == [f"line {n}" for n in range(LINES)]
    assert server.log_error is not None
    assert server.log_error.errno == errno.ENOSPC


@pytest.mark.parametrize("name", ["nowhere/log", "."])
def test_a_log_that_cannot_be_written_is_known_before_anything_starts(name: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\ntouch started\necho words\n")
    program.chmod(0o755)
    options = ("--no-verify", "--port", "0", "--log", tmp_path / name, "--vllm-python", program)
    done = run("serve", tmp_path / "model", *options, cwd=tmp_path)
    assert done.code == 2, done.err
    assert "--log" in done.err
    assert not (tmp_path / "started").exists()


def test_a_damaged_conversion_of_the_cache_can_be_made_again(tmp_path: Path) -> None:
    """`--no-verify` would serve garbage, where the GGUF is at hand."""
    source = tiny_llama(tmp_path / "tiny.gguf")
    command = ("serve", source, "--port", "0", "--cache", tmp_path / "cache", "--vllm-python", "/bin/true")
    assert run(*command).code == 7  # /bin/true is no vLLM; the model is converted before that is known
    (folder,) = (tmp_path / "cache").iterdir()
    (folder / "model.safetensors").write_bytes(b"cut off")
    done = run(*command)
    assert done.code == 5
    hint = done.err.splitlines()[-1]
    assert f"rm -r {folder}" in hint
    assert "--no-verify" not in hint
    done = run("serve", folder, *command[2:])  # named as a folder it is somebody's checkpoint
    assert done.code == 5
    assert "--no-verify" in done.err
    shutil.rmtree(folder)
    assert run(*command).code == 7
    assert (folder / "model.safetensors").stat().st_size > 100_000
