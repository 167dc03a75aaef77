"""What errors say: what is wrong and where, what was expected, and the next step; never a bare exception."""

import ast
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gguf2st import errors
from gguf2st.archmap.mapfile import load_map
from gguf2st.errors import Gguf2stError, HeaderError, MapError, unreadable
from gguf2st.header import read_header
from tests.make_gguf import tiny_llama

PACKAGE = Path(errors.__file__).parent
CLASSES = frozenset(name for name, kind in vars(errors).items() if isinstance(kind, type))
IN_MAPS = ("config/", "archmap/", "header/keys.py")
"""Where errors are about a map or become lines of `gguf2st check`: who reads a map adds the next step."""


def raised() -> Iterator[tuple[str, ast.Call]]:
    """Every error that is made: its place, and the call."""
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CLASSES:
                yield f"{place}:{node.lineno}", node


def test_every_error_says_the_next_step() -> None:
    """Those of usage say what is possible instead, which is the same."""
    calls = [(place, call) for place, call in raised() if not place.startswith(IN_MAPS)]
    assert len(calls) > 200
    lacking = [
        place
        for place, call in calls
        if isinstance(call.func, ast.Name)
        and call.func.id != "UsageError"
        and not any(keyword.arg == "hint" for keyword in call.keywords)
    ]
    assert lacking == []


def test_no_error_shows_an_exception_as_python_writes_it() -> None:
    bare = [
        place
        for place, call in raised()
        for value in ast.walk(call)
        if isinstance(value, ast.FormattedValue)
        and value.conversion == ord("r")
        and isinstance(value.value, ast.Name)
        and value.value.id in ("err", "error")
    ]
    assert bare == []


@pytest.mark.parametrize(
    ("err", "message", "hint"),
    [
        (OSError(errno.EIO, "Input/output error"), "m.gguf cannot be read: Input/output error", "dmesg"),
        (OSError(errno.ENOENT, "No such file", "/a/b"), "/a/b cannot be read: No such file", "check the path"),
        (OSError(errno.EACCES, "Permission denied", b"/a/b"), "/a/b cannot be read: Permission denied", "ls -l"),
        (OSError(errno.EMFILE, "Too many open files"), "m.gguf cannot be read: Too many open files", "ulimit -n"),
        (OSError("told in words alone"), "m.gguf cannot be read: told in words alone", "run the command again"),
    ],
)
def test_files_that_cannot_be_read(err: OSError, message: str, hint: str) -> None:
    told = unreadable(err, "m.gguf")
    assert (told.message, told.exit_code) == (message, 3)
    assert hint in told.hint


def test_a_shard_whose_number_is_none(tmp_path: Path) -> None:
    file = tiny_llama(tmp_path / "m.gguf", extra_metadata={"split.count": "two", "split.no": 0})
    with pytest.raises(HeaderError, match=r"split\.count is 'two'; a whole number was expected") as caught:
        read_header([file])
    assert "download it again" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arch = ", "is not valid TOML"),
        ('arch = "x"\nkinds = 1', "unknown table kinds"),
        (None, "cannot read the arch"),
    ],
)
def test_a_map_that_cannot_be_read_says_what_maps_may_hold(text: str | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(MapError, match=message) as caught:
        load_map(file)
    assert os.fspath(file) in caught.value.message
    assert "docs/arch-maps.md" in caught.value.hint


def test_every_class_of_errors_has_a_code_that_the_documentation_names() -> None:
    page = (PACKAGE.parent / "docs/operations.md").read_text(encoding="utf-8")
    codes = {
        kind.exit_code for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Gguf2stError)
    }
    assert codes == {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
    assert all(f"\n| {code} | " in page for code in codes)
