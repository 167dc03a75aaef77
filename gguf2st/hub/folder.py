"""A folder by its path, or the files of a Hub repository as a folder."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gguf2st.errors import UsageError
from gguf2st.hub.errors import hub_errors
from gguf2st.hub.reference import parse_reference


def local_folder(name: str | Path, patterns: list[str]) -> Path:
    """A folder by its path, or the files of a Hub repository `org/name[@revision]` that match `patterns`.

    A folder that exists is taken as such. Otherwise the files come from huggingface_hub's cache, downloaded if need be.

    Raises:
        UsageError: neither a folder nor the name of a repository.
        HubError: no such repository, no access, or the Hub cannot be reached.
    """
    folder = Path(name)
    if str(name) and folder.is_dir():
        return folder
    reference = parse_reference(str(name))
    if reference is None or reference.quant or reference.path:
        raise UsageError(
            f"{name} is neither a folder nor a repository of the form org/name",
            hint="give a folder that exists, or a repository such as HuggingFaceTB/SmolLM2-135M-Instruct",
        )
    from huggingface_hub import snapshot_download

    with hub_errors(reference.repo, revision=reference.revision), _bars_on_terminals_only():
        return Path(snapshot_download(reference.repo, revision=reference.revision or None, allow_patterns=patterns))


@contextmanager
def _bars_on_terminals_only() -> Iterator[None]:
    """huggingface_hub draws its bars into pipes and log files, too."""
    from huggingface_hub import utils

    hides = not sys.stderr.isatty() and not utils.are_progress_bars_disabled()
    if hides:
        utils.disable_progress_bars()
    try:
        yield
    finally:
        if hides:
            utils.enable_progress_bars()
