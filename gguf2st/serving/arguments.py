"""The arguments a user passes on to vLLM: the few that we must know, taken out; the rest untouched."""

from collections.abc import Sequence
from dataclasses import dataclass

from gguf2st.errors import UsageError

_REFUSED = {
    "--model": "the folder is given as the first argument",
    "--headless": "without an HTTP server there is nothing to watch",
    "--uds": "the server is watched over a port",
    "--ssl-certfile": "let a reverse proxy speak TLS",
    "--ssl-keyfile": "let a reverse proxy speak TLS",
    "--root-path": "let a reverse proxy add a path",
}
"""Options that would hide the server from us, and why not."""
_HINT = "what follows -- goes to `vllm serve`, whose --help lists its options"


@dataclass(frozen=True)
class VllmArguments:
    """What was found among vLLM's arguments.

    Attributes:
        host, port, served_name, dtype, api_key: as given, else None; of several names or keys the first.
        rest: all other arguments, and those of these that may hold several values (`--served-model-name A B`).
    """

    host: str | None
    port: int | None
    served_name: str | None
    dtype: str | None
    api_key: str | None
    rest: tuple[str, ...]


def parse(arguments: Sequence[str]) -> VllmArguments:
    """Sort vLLM's arguments, in any of its spellings: `--a-b v`, `--a_b v`, `--a-b=v`.

    Raises:
        UsageError: an option that cannot work here.
    """
    found: dict[str, list[str]] = {}
    rest: list[str] = []
    taken = {"--host", "--port", "--served-model-name", "--dtype", "--api-key"}
    at = 0
    while at < len(arguments):
        word = arguments[at]
        name, equals, value = word.partition("=")
        name = name.replace("_", "-")
        at += 1
        if name in _REFUSED:
            raise UsageError(f"{name} cannot be passed on to vLLM: {_REFUSED[name]}", hint=_HINT)
        if name not in taken:
            rest.append(word)
            continue
        values = [value] if equals else []
        while not equals and at < len(arguments) and not arguments[at].startswith("-"):
            values.append(arguments[at])
            at += 1
        if not values:
            raise UsageError(f"{name} needs a value", hint=_HINT)
        found[name] = values
        if name in ("--served-model-name", "--api-key"):
            rest += [name, *values]

    def first(name: str) -> str | None:
        return found[name][0] if name in found else None

    port = first("--port")
    if port is not None and not (port.isdecimal() and int(port) < 65536):
        raise UsageError(f"--port {port} is not a port number, 0 to 65535", hint=_HINT)
    return VllmArguments(
        host=first("--host"),
        port=None if port is None else int(port),
        served_name=first("--served-model-name"),
        dtype=first("--dtype"),
        api_key=first("--api-key"),
        rest=tuple(rest),
    )
