"""A folder by its path, or the files of a Hub repository as a folder."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gguf2st.errors import SourceError, UsageError
from gguf2st.hub.errors import hub_errors
from gguf2st.hub.reference import parse_reference
from gguf2st.links import leads_elsewhere


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


def files_to_upload(folder: Path) -> tuple[list[str], list[str]]:
    """(names of the files of a checkpoint to upload, in sub-folders too, names of hidden files and folders).

    A link is followed where it stays in the folder, or leads into the Hub's cache that the folder is of; weights may be
    anywhere, as they were read as such. Any other may show the world a file that nobody wanted to upload.

    Raises:
        SourceError: there is such a link.
    """
    names: list[str] = []
    hidden: list[str] = []
    for path, folders, files in os.walk(folder):
        hidden += (name for name in (*folders, *files) if name.startswith("."))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for file in (Path(path, name) for name in sorted(files) if not name.startswith(".")):
            if not file.is_file():
                continue
            if file.suffix != ".safetensors" and leads_elsewhere(file, folder):
                raise SourceError(
                    f"{file} is a link to {file.resolve()}, outside of the checkpoint: nothing was uploaded",
                    hint="put a copy in its place if it belongs to the checkpoint, or remove it",
                )
            names.append(file.relative_to(folder).as_posix())
    return names, sorted(hidden)


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
