"""The Hugging Face Hub, through huggingface_hub: its cache, its settings, its errors in one line each."""

import re
from pathlib import Path

from gguf2st.errors import HubError, UsageError

_REPO = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")


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
    repo, _, revision = str(name).partition("@")
    if not _REPO.fullmatch(repo):
        raise UsageError(
            f"{name} is neither a folder nor a repository of the form org/name",
            hint="give a folder that exists, or a repository such as HuggingFaceTB/SmolLM2-135M-Instruct",
        )
    from huggingface_hub import errors, snapshot_download

    try:
        return Path(snapshot_download(repo, revision=revision or None, allow_patterns=patterns))
    except errors.GatedRepoError as err:
        raise HubError(f"{repo} is gated", hint="accept its terms on its page, then log in: hf auth login") from err
    except errors.RepositoryNotFoundError as err:
        raise HubError(
            f"there is no repository {repo}, or no access to it",
            hint="check its name; for a private one log in: hf auth login",
        ) from err
    except errors.RevisionNotFoundError as err:
        raise HubError(f"{repo} has no revision {revision!r}", hint="leave out @revision for the newest") from err
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, errors.HfHubHTTPError, OSError) as err:
        raise HubError(
            f"{repo} cannot be downloaded ({type(err).__name__}), and is not in the local cache",
            hint="check the connection and HF_HUB_OFFLINE, or give a folder",
        ) from err
