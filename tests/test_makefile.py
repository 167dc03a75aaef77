"""The targets for users: what they hand to the command line, and what they say when something is missing."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make here")


def _make(*arguments: str, tool: Path | None = None) -> subprocess.CompletedProcess[str]:
    """With a program in gguf2st's place, and without making an environment for it."""
    ours = ("SRC", "OUT", "DIR", "REPO", "MANIFEST", "JOBS", "DTYPE", "REPACK", "ARGS", "MAKEFLAGS", "MAKELEVEL")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    return subprocess.run(
        ["make", "-s", "-o", ".venv/.installed", f"BIN={tool}", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def tool(tmp_path: Path) -> Path:
    program = tmp_path / "gguf2st"
    program.write_text("""#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n""")
    program.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["convert", "SRC=m.gguf"], ["convert", "m.gguf"]),
        (
            ["convert", 'SRC=my "model" `x` ; y.gguf', "OUT=o p", "DTYPE=float16", "REPACK=exact"],
            ["convert", 'my "model" `x` ; y.gguf', "-o", "o p", "--dtype", "float16", "--repack", "exact"],
        ),
        (["convert", "SRC=a", "ARGS=--overwrite -q"], ["convert", "a", "--overwrite", "-q"]),
        (["check", "SRC=it's"], ["check", "it's"]),
        (["batch", "MANIFEST=a b.toml"], ["batch", "a b.toml"]),
        (["batch", "MANIFEST=a.toml", "JOBS=3"], ["batch", "a.toml", "--jobs", "3"]),
        (["batch", "MANIFEST=a.toml", "-j4"], ["batch", "a.toml", "--jobs", "4"]),
        (["push", "DIR=d", "REPO=me/x", "ARGS=--private"], ["push", "d", "me/x", "--private"]),
        (["serve", "DIR=d", "ARGS=-- --enforce-eager"], ["serve", "d", "--", "--enforce-eager"]),
        (["verify", "DIR=d", "SRC=s"], ["verify", "d", "--against", "s"]),
    ],
)
def test_what_targets_run(arguments: list[str], words: list[str], tool: Path) -> None:
    done = _make(*arguments, tool=tool)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == words


@pytest.mark.parametrize(
    "arguments",
    [["convert"], ["check"], ["batch"], ["push"], ["push", "DIR=d"], ["push", "REPO=a/b"], ["serve"], ["verify"]],
)
def test_a_missing_value_is_one_line_and_exit_code_2(arguments: list[str], tool: Path) -> None:
    done = _make(*arguments, tool=tool)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert f"usage: make {arguments[0]} " in done.stderr


def test_help_lists_every_target() -> None:
    done = _make("help")
    text = (ROOT / "Makefile").read_text()
    phony = text.split(".PHONY:")[1].split("\n\n")[0].replace("\\", " ").split()
    assert len(phony) > 15
    listed = [line.split()[1] for line in done.stdout.splitlines()]
    assert listed == sorted(phony, key=lambda name: text.index(f"\n{name}:"))
