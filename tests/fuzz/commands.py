"""The target that looks at what the command line shows."""

import io
import json
import re
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz import ggufs
from tests.fuzz.harness import Files, write_input
from tests.fuzz.metadata import change_value, rename_item
from tests.fuzz.promises import FILE_NAMES, mutated_gguf, quick_maps
from tests.fuzz.tensors import rename_row

COMMANDS = (
    *(("inspect",), ("inspect", "--json"), ("check",), ("check", "--json"), ("plan",), ("plan", "--json")),
    *(("convert", "--dry-run"), ("convert", "--dry-run", "--json", "-")),
)
_STYLE = re.compile(r"\x1b\[\d+(;\d+)*m")
"""What click writes for bold and colours."""


class _Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


class CommandTarget:
    """What the command line shows of a stranger's names and texts, on a terminal."""

    name = "command"
    describes = "`inspect`, `check`, `plan`, `convert --dry-run`, with and without `--json`"

    def make(self, rng: Random) -> Files:
        """A file with a strange name, and a command."""
        content = mutated_gguf(rng, (*ggufs.MEANING, rename_row, rename_item, change_value), 0.03)
        return {rng.choice(FILE_NAMES): content, "command.txt": " ".join(rng.choice(COMMANDS)).encode()}

    def run(self, files: Files, folder: Path) -> None:
        """No control character reaches the terminal, JSON is JSON, and an error is one of ours."""
        from gguf2st.cli import main

        quick_maps()
        command, *options = files["command.txt"].decode().split()
        (model,) = (name for name in files if name != "command.txt")
        write_input({model: files[model]}, folder)
        out, err = _Terminal(io.BytesIO(), "utf-8"), _Terminal(io.BytesIO(), "utf-8", "backslashreplace")
        with redirect_stdout(out), redirect_stderr(err):
            try:
                main([command, str(folder / model), *options])
            except SystemExit as end:
                code = end.code
        out.flush()
        err.flush()
        assert code in (0, 3, 4), code
        for stream in (out, err):
            shown = _STYLE.sub("", stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
            strange = {char for char in shown if not char.isprintable() and char != "\n"}
            assert not strange, strange
            assert "--json" in options or max(map(len, shown.split("\n"))) < 20_000
        if "--json" in options:
            json.loads(out.buffer.getvalue(), parse_constant=_no_constant)  # type: ignore[attr-defined]
        assert [path.name for path in folder.iterdir()] == [model]


def _no_constant(name: str) -> Any:
    raise AssertionError(f"{name} is no JSON")
