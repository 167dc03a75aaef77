"""Upload a checkpoint: everything is sent first, and becomes visible in one commit.

huggingface_hub does the sending. What is at the Hub already (by sha256, or by chunks where xet is used) is not sent
again, so that the same command after an interruption goes on where it stopped.
"""

import fnmatch
import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gguf2st import __version__
from gguf2st.errors import HubError, UsageError
from gguf2st.hub.card import CARD_FILE, is_own, make_card
from gguf2st.hub.errors import LOG_IN, hub_errors, mask
from gguf2st.hub.folder import files_to_upload
from gguf2st.hub.provenance import PROVENANCE_FILE, read_provenance
from gguf2st.output.replaceable import is_known
from gguf2st.verification import Verification, verify_folder

if TYPE_CHECKING:
    from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi

MAIN = "main"
_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
_REPO = re.compile(rf"(?!.*(?:--|\.\.|\.git$)){_PART}/{_PART}")
"""What huggingface_hub takes (`validate_repo_id`); anything else would fail after the conversion."""
_READ_ALL = ("*.safetensors", "*.safetensors.index.json", "chat_template*", "tokenizer*", "vocab.*")
"""Names that loaders look for at the top of a repository, whatever comes after the dot or the star."""


@dataclass(frozen=True)
class PushOptions:
    """Where a checkpoint goes.

    Attributes:
        repo: `org/name`; made if it does not exist.
        private: make it private. An existing repository that is public is refused then.
        revision: branch to commit to, made if it does not exist; empty for the main branch.
        create_pr: open a pull request instead.
        message: of the commit.
    """

    repo: str
    private: bool = False
    revision: str = ""
    create_pr: bool = False
    message: str = ""

    def __post_init__(self) -> None:
        if not _REPO.fullmatch(self.repo):
            raise UsageError(
                f"{mask(self.repo)!r} is not the name of a repository to push to",
                hint="give it as org/name, such as me/my-model",
            )
        if self.create_pr and self.revision not in ("", MAIN):
            raise UsageError("a pull request goes to the main branch", hint="leave out --revision or --create-pr")


@dataclass(frozen=True)
class Pushed:
    """What an upload did.

    Attributes:
        repo: `org/name`.
        url: of the commit, or of the pull request.
        commit: its id.
        changed: whether there was anything to commit.
        files: names of what was uploaded.
        nbytes: of these files.
        removed: names of files of an earlier upload that the new one does not have.
        notes: what the owner should know.
        verification: of the checkpoint before it went.
    """

    repo: str
    url: str
    commit: str
    changed: bool
    files: tuple[str, ...]
    nbytes: int
    removed: tuple[str, ...]
    notes: tuple[str, ...]
    verification: Verification


def push_folder(folder: Path, options: PushOptions, *, quiet: bool = True) -> Pushed:
    """Verify a checkpoint folder and upload it, with a model card if it has none.

    Args:
        folder: to upload, but for hidden files and folders.
        options: where to.
        quiet: show no progress of the upload.

    Raises:
        SourceError: the folder is not there, or holds a link to a file elsewhere.
        VerifyError: it is damaged; nothing is uploaded.
        HubError: no access, the Hub cannot be reached, or holds something else than what was sent.
    """
    verification = verify_folder(folder)
    verification.require_ok()
    names, hidden = files_to_upload(folder)
    with Upload(options, quiet=quiet) as upload:
        if CARD_FILE in names and is_own((folder / CARD_FILE).read_text(encoding="utf-8", errors="replace")):
            names.remove(CARD_FILE)  # downloaded with the checkpoint: it is written anew, for this repository
        upload.send({name: folder / name for name in names})
        if hidden:
            upload.note(f"hidden files are not uploaded: {', '.join(hidden[:5])}{', ...' if len(hidden) > 5 else ''}")
        return upload.finish(folder, verification)


class Upload:
    """Files on their way to a repository. Nothing is visible there before `finish`.

    Entering makes the repository and the branch; leaving does nothing to what was sent.
    """

    def __init__(self, options: PushOptions, *, quiet: bool = True) -> None:
        self.options = options
        self._quiet = quiet
        self._operations: dict[str, CommitOperationAdd] = {}
        self._notes: list[str] = []
        self._head = ""
        self._there: tuple[str, ...] = ()

    def __enter__(self) -> "Upload":
        """Make the repository and the branch if need be.

        Raises:
            HubError: no token, no access, or the repository is public and must not be.
        """
        repo = self.options.repo
        with self._hub():
            api = require_access(self.options)
            api.create_repo(repo, private=self.options.private or None, exist_ok=True)
            if self.options.revision and not self.options.revision.startswith("refs/"):
                api.create_branch(repo, branch=self.options.revision, exist_ok=True)
            info = api.model_info(repo, revision=self._revision)
            self._require_private(info.private)
            self._head, self._there = info.sha or "", tuple(file.rfilename for file in info.siblings or ())
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is to be undone: what was sent without a commit is not visible, and the Hub forgets it in time."""

    def note(self, text: str) -> None:
        """Something that the owner should know."""
        self._notes.append(text)

    def send(self, files: Mapping[str, Path | bytes]) -> None:
        """Upload content by its name in the repository; afterwards large files may be deleted here.

        Raises:
            HubError: it did not arrive; the same call again goes on where this one stopped.
        """
        from huggingface_hub import CommitOperationAdd

        added = [
            CommitOperationAdd(name, content if isinstance(content, bytes) else str(content))
            for name, content in files.items()
        ]
        with self._hub():
            self._api().preupload_lfs_files(
                self.options.repo, added, revision=self._revision, create_pr=self.options.create_pr, free_memory=True
            )
        self._operations |= {operation.path_in_repo: operation for operation in added}

    def finish(self, folder: Path, verification: Verification) -> Pushed:
        """Add the card, commit everything at once, and compare what the repository holds then.

        Args:
            folder: with config.json, and with README.md and gguf2st.json if there are any.
            verification: what the card says about the checkpoint.

        Raises:
            HubError: the repository has changed meanwhile, refuses the commit, or holds something else afterwards.
        """
        if CARD_FILE not in self._operations:
            self._add_card(folder, verification)
        removed = self._removed()
        with self._hub():
            info = self._commit(removed)
            self._compare(info)
        return Pushed(
            repo=self.options.repo,
            url=info.pr_url or info.commit_url,
            commit=info.oid,
            changed=info.oid != self._head,
            files=tuple(self._operations),
            nbytes=sum(operation.upload_info.size for operation in self._operations.values()),
            removed=tuple(operation.path_in_repo for operation in removed),
            notes=tuple(self._notes),
            verification=verification,
        )

    @property
    def digests(self) -> dict[str, str]:
        """Name -> sha256 of what was sent."""
        return {name: operation.upload_info.sha256.hex() for name, operation in self._operations.items()}

    @property
    def _revision(self) -> str:
        return self.options.revision or MAIN

    def _api(self) -> "HfApi":
        return _api()

    @contextmanager
    def _hub(self) -> Iterator[None]:
        """What goes wrong becomes a HubError; warnings of the Hub become notes; progress shows only when wanted."""
        from huggingface_hub import utils

        shown = not utils.are_progress_bars_disabled()
        with (
            warnings.catch_warnings(record=True) as caught,
            hub_errors(self.options.repo, revision=self.options.revision, uploading=True),
        ):
            warnings.simplefilter("always", UserWarning)
            try:
                if self._quiet and shown:
                    utils.disable_progress_bars()
                yield
            except RuntimeError as err:
                if err.__cause__ is None:
                    raise HubError(f"{self.options.repo}: {_said(err)}", hint="run the same command again") from err
                raise err.__cause__ from None  # huggingface_hub's "Error while uploading": the cause says more
            except ValueError as err:
                if CARD_FILE not in str(err):
                    raise
                found = " ".join(str(err).removeprefix("Invalid metadata in README.md.").split())
                raise HubError(
                    f"the Hub refuses {CARD_FILE}: {mask(found)}",
                    hint=f"correct its metadata, or remove {CARD_FILE} to get one written",
                ) from err
            finally:
                if self._quiet and shown:
                    utils.enable_progress_bars()
        self._notes += [mask(" ".join(str(w.message).split())) for w in caught if w.category is UserWarning]

    def _require_private(self, private: bool | None) -> None:
        if self.options.private and not private:
            raise HubError(
                f"{self.options.repo} exists already and is public",
                hint="make it private in its settings, choose another name, or leave out --private",
            )

    def _add_card(self, folder: Path, verification: Verification) -> None:
        if CARD_FILE in self._there and not self._has_own_card():
            self.note(f"the repository's own {CARD_FILE} is kept")
            return
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        provenance = read_provenance(folder)
        if provenance and provenance.output_nbytes != verification.nbytes:
            self.note(f"{PROVENANCE_FILE} is about other weights than these: the card does not use it")
            provenance = None
        card = make_card(self.options.repo, config, verification, provenance)
        self._notes += card.notes
        self.send({CARD_FILE: card.text.encode()})

    def _has_own_card(self) -> bool:
        with self._hub():
            path = self._api().hf_hub_download(self.options.repo, CARD_FILE, revision=self._head)
        return is_own(Path(path).read_text(encoding="utf-8", errors="replace"))

    def _removed(self) -> "list[CommitOperationDelete]":
        from huggingface_hub import CommitOperationDelete

        stale = [name for name in self._there if name not in self._operations and _is_read(name)]
        return [CommitOperationDelete(name, is_folder=False) for name in stale]

    def _commit(self, removed: "Iterable[CommitOperationDelete]") -> "CommitInfo":
        return self._api().create_commit(
            self.options.repo,
            [*self._operations.values(), *removed],
            commit_message=self.options.message or f"Upload a checkpoint converted by gguf2st {__version__}",
            revision=self._revision,
            create_pr=self.options.create_pr,
            parent_commit=self._head,  # what is removed and kept was decided on that commit
        )

    def _compare(self, info: "CommitInfo") -> None:
        """Raise HubError unless the repository holds the sizes, and for large files the sha256, of what was sent."""
        names = list(self._operations)
        for at in range(0, len(names), 100):
            found: dict[str, Any] = {
                file.path: file
                for file in self._api().get_paths_info(
                    self.options.repo, names[at : at + 100], revision=info.pr_revision or info.oid
                )
            }
            for name in names[at : at + 100]:
                sent, there = self._operations[name].upload_info, found.get(name)
                digest = there.lfs.sha256 if there and there.lfs else None
                if there is None or there.size != sent.size or digest not in (None, sent.sha256.hex()):
                    raise HubError(f"{self.options.repo} holds another {name} than was sent", hint="push it again")


def _is_read(name: str) -> bool:
    """Whether a loader would read it: such a file of an earlier upload must not stay beside the new ones."""
    return is_known(name) or ("/" not in name and any(fnmatch.fnmatchcase(name, pattern) for pattern in _READ_ALL))


def require_access(options: PushOptions) -> "HfApi":
    """Check what can be checked without changing anything: a token, and access to the repository or its namespace.

    Raises:
        HubError: there is no token, or it does not do.
    """
    from huggingface_hub import constants, errors, get_token

    if constants.HF_HUB_OFFLINE:
        raise HubError(f"{options.repo} cannot be pushed to: HF_HUB_OFFLINE is set", hint="unset HF_HUB_OFFLINE")
    if get_token() is None:
        raise HubError(f"pushing to {options.repo} needs a token, and there is none", hint=LOG_IN)
    api = _api()
    with hub_errors(options.repo, uploading=True):
        try:
            api.auth_check(options.repo, write=not options.create_pr)
            return api
        except errors.GatedRepoError:
            raise
        except errors.RepositoryNotFoundError:
            user = api.whoami()
    owner = options.repo.split("/")[0]
    owners = [user["name"], *(org["name"] for org in user.get("orgs", ()))]
    if owner.lower() not in (name.lower() for name in owners):
        raise HubError(
            f"there is no repository {options.repo}, and this token makes none for {owner!r}",
            hint=f"it makes them for {', '.join(owners)}",
        )
    return api


def _said(err: Exception) -> str:
    """The first line of what a library says, without tokens and signed parts of addresses."""
    line = next(iter(str(err).splitlines()), "") or type(err).__name__
    return re.sub(r"\?\S+", "", mask(line))[:200]


def _api() -> "HfApi":
    from huggingface_hub import HfApi

    return HfApi(library_name="gguf2st", library_version=__version__)
