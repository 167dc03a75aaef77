"""Names as words of a shell command that somebody may copy and run."""

import os
import shlex
from collections.abc import Iterable
from pathlib import Path


def shell_word(name: str | os.PathLike[str]) -> str:
    """A name as one word for a POSIX shell; one that cannot be shown as it is in bash's and zsh's form `$'a\\x1bb'`.

    A path that begins with a dash gets a folder in front: it would be an option.
    """
    text = os.fspath(name)
    if text.startswith("-") and not isinstance(name, str):
        text = f"./{text}"
    if text.isprintable():
        return shlex.quote(text)
    escaped = (_escaped(char) for char in text)
    return f"$'{''.join(escaped)}'"


def source_word(src: str) -> str:
    """The same of a SRC, which is a text: one that begins with a dash can only be a path."""
    return shell_word(Path(src) if src.startswith("-") else src)


def shell_line(words: Iterable[str | os.PathLike[str]]) -> str:
    """A command of these words."""
    return " ".join(map(shell_word, words))


def _escaped(char: str) -> str:
    if char in "\\'":
        return f"\\{char}"
    return char if char.isprintable() else "".join(f"\\x{byte:02x}" for byte in os.fsencode(char))
