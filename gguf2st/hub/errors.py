"""What huggingface_hub raises, as one HubError: what is wrong with which repository, and the next step.

The table is by exception first, then by HTTP status; the same for reading and writing. Texts of the server and of
exceptions may hold signed addresses or a token, so that only the server's own message is passed on, tokens masked.
"""

import errno
import os
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from gguf2st.errors import Gguf2stError, HubError, OutputError

LOG_IN = "hf auth login, or set HF_TOKEN"

_NO_HUB = (
    "{endpoint} does not answer as a Hub does",
    "check HF_ENDPOINT, and whether a proxy or a login page stands in between",
)
_BY_CLASS: tuple[tuple[str, str, str], ...] = (
    (
        "GatedRepoError",
        "{repo} is gated",
        "accept its terms at {endpoint}/{repo}, then log in as the same user: " + LOG_IN,
    ),
    (
        "RepositoryNotFoundError",
        "there is no repository {repo}, or no access to it",
        "check its name; for a private one log in with a token that may read it: " + LOG_IN,
    ),
    ("DisabledRepoError", "{repo} was disabled by the Hub", "its page says why: {endpoint}/{repo}"),
    (
        "RevisionNotFoundError",
        "{repo} has no revision {revision!r}",
        "leave out the revision for the newest; {endpoint}/{repo}/commits/main lists them",
    ),
    ("EntryNotFoundError", "{repo} has no file {file!r}", "{endpoint}/{repo}/tree/main shows what there is"),
    ("HFValidationError", "{repo!r} is not the name of a repository", "a name has the form org/repo"),
    ("LocalTokenNotFoundError", "{repo} needs a token, and there is none", LOG_IN),
    (
        "OfflineModeIsEnabled",
        "{repo} is not in the local cache, and HF_HUB_OFFLINE forbids to ask the Hub",
        "unset HF_HUB_OFFLINE, or give a file or folder",
    ),
    ("FileMetadataError", *_NO_HUB),
)
"""Name of the exception -> message, hint. A class stands before its bases."""

_BY_STATUS: dict[int, tuple[str, str]] = {
    401: ("the Hub does not know the token that was sent for {repo}", "log in again: " + LOG_IN),
    403: ("access to {repo} is forbidden", "the token lacks the permission: " + LOG_IN + " with one that has it"),
    404: ("{repo} is not there", "check the name; for a private one: " + LOG_IN),
    409: ("{repo} exists already, or something else is being written to it", "try again, or choose another name"),
    412: ("{repo} has changed meanwhile", "run the command again"),
    413: ("{repo}: the Hub refuses something so large", "see the Hub's storage limits"),
    429: ("the Hub answers no more requests for now", "wait a few minutes; logged-in users may ask more: " + LOG_IN),
}
"""HTTP status -> message, hint; for what no exception class tells."""

_TOKEN = re.compile(r"(hf|api)_[A-Za-z0-9]{6,}")


def mask(text: str) -> str:
    """The text without anything that looks like a token."""
    return _TOKEN.sub(r"\1_...", text)


@contextmanager
def hub_errors(repo: str, *, revision: str = "", file: str = "", uploading: bool = False) -> Iterator[None]:
    """Turn what huggingface_hub raises inside into a HubError.

    Its log is kept quiet from here on, unless HF_HUB_VERBOSITY asks for it: it holds signed addresses, and repeats what
    the error says.

    Args:
        repo: what was asked for, for the message.
        revision, file: the same.
        uploading: whether it was to be written; a local cache cannot help then.

    Raises:
        HubError: as `explain` says.
        OutputError: huggingface_hub's cache cannot be written.
    """
    from huggingface_hub.utils import logging

    if "HF_HUB_VERBOSITY" not in os.environ:
        logging.set_verbosity(logging.ERROR)
    try:
        yield
    except Gguf2stError:
        raise
    except Exception as err:
        known = explain(err, repo, revision=revision, file=file, uploading=uploading)
        if known is None:
            raise
        raise known from err


def explain(
    err: BaseException, repo: str, *, revision: str = "", file: str = "", uploading: bool = False
) -> Gguf2stError | None:
    """What went wrong, or None when it is nothing that the Hub, the network or the disk does."""
    from huggingface_hub import constants, errors
    from huggingface_hub.utils import httpx

    facts = {"repo": repo, "revision": revision or "main", "file": file, "endpoint": constants.ENDPOINT}
    if isinstance(err, errors.LocalEntryNotFoundError) and err.__cause__ is not None:
        return explain(err.__cause__, repo, revision=revision, file=file)  # it only says that nothing is cached either
    if isinstance(err, errors.LocalEntryNotFoundError):
        return _unreachable(facts, "")
    for name, message, hint in _BY_CLASS:
        if isinstance(err, getattr(errors, name)):
            return HubError(message.format(**facts), hint=hint.format(**facts))
    if isinstance(err, errors.HfHubHTTPError | httpx.HTTPStatusError):
        return _by_status(err.response.status_code, str(getattr(err, "server_message", None) or ""), facts)
    if isinstance(err, httpx.HTTPError | ConnectionError | TimeoutError):
        return _cut_off(facts, _network_cause(err)) if uploading else _unreachable(facts, _network_cause(err))
    if isinstance(err, OSError):
        return _disk(err, facts)
    if isinstance(err, ValueError | LookupError | TypeError | AttributeError | RecursionError) and _is_of_an_answer(
        err
    ):
        return no_hub(facts["endpoint"])
    if type(err).__module__.startswith(("hf_xet", "huggingface_hub")):
        said = mask(next(iter(str(err).strip().splitlines()), "") or f"{type(err).__name__} of {type(err).__module__}")
        return HubError(f"{repo}: {said}", hint="run the same command again: what has arrived is kept")
    return None


def no_hub(endpoint: str) -> HubError:
    """The error for an answer that no Hub gives, such as the login page of a network."""
    return HubError(_NO_HUB[0].format(endpoint=endpoint), hint=_NO_HUB[1])


def _is_of_an_answer(err: BaseException) -> bool:
    """Whether huggingface_hub raised it while it read something: it takes answers to be as a Hub writes them."""
    frames = traceback.walk_tb(err.__traceback__)
    return any(str(frame.f_globals.get("__name__")).startswith("huggingface_hub.") for frame, _ in frames)


def is_passing(err: BaseException | None) -> bool:
    """Whether a cause says that trying again may help: no answer, trouble of the server's own, too many requests."""
    from huggingface_hub import errors
    from huggingface_hub.utils import httpx

    if isinstance(err, errors.HfHubHTTPError | httpx.HTTPStatusError):
        return err.response.status_code >= 500 or err.response.status_code in (408, 429)
    return isinstance(err, httpx.HTTPError | ConnectionError | TimeoutError)


def _by_status(status: int, server: str, facts: dict[str, str]) -> HubError:
    message, hint = _BY_STATUS.get(status, ("{repo}: the Hub answered with an error", "try again later"))
    if status >= 500:
        message, hint = "{repo}: the Hub has trouble of its own", "try again later; nothing was lost"
    said = f": {mask(server.splitlines()[0])[:200]}" if server.strip() else ""
    return HubError(f"{message.format(**facts)} (HTTP {status}{said})", hint=hint.format(**facts))


def _unreachable(facts: dict[str, str], cause: str) -> HubError:
    return HubError(
        f"{facts['repo']}: the Hub at {facts['endpoint']} cannot be reached{f' ({cause})' if cause else ''}, and the "
        "local cache does not have it",
        hint="check the connection, HF_ENDPOINT and proxy settings, or give a file or folder",
    )


def _cut_off(facts: dict[str, str], cause: str) -> HubError:
    return HubError(
        f"{facts['repo']}: the Hub at {facts['endpoint']} cannot be reached ({cause})",
        hint="check the connection, HF_ENDPOINT and proxy settings; the same command again sends nothing twice",
    )


def _network_cause(err: BaseException) -> str:
    """In a few words; texts of exceptions may hold addresses."""
    from huggingface_hub.utils import httpx

    text = str(err)
    if "CERTIFICATE" in text.upper():
        return "its certificate is not trusted: set SSL_CERT_FILE to the certificates of your network"
    if isinstance(err, httpx.ProxyError):
        return "the proxy refuses"
    if isinstance(err, httpx.TimeoutException | TimeoutError):
        return "no answer in time"
    if isinstance(err, httpx.TooManyRedirects):
        return "its answers lead in a circle"
    if isinstance(err, httpx.ConnectError):
        unknown = "name" in text.lower() or "address" in text.lower()
        return "its name is not known here" if unknown else "no connection"
    return "the connection was cut"


def _disk(err: OSError, facts: dict[str, str]) -> Gguf2stError:
    if err.errno in (errno.ENOSPC, errno.EDQUOT):
        return OutputError(
            f"{facts['repo']}: the disk of the download cache is full",
            hint="free space, or set HF_HOME to a folder on another disk",
        )
    if err.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return OutputError(
            f"{facts['repo']}: the download cache cannot be written: {err.filename or err.strerror}",
            hint="set HF_HOME to a folder that you may write to",
        )
    if "Consistency check failed" in str(err):
        return HubError(f"{facts['repo']}: a download has the wrong size", hint="run the command again")
    return HubError(f"{facts['repo']}: {mask(str(err.strerror or type(err).__name__))}", hint="run the command again")
