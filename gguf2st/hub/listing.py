"""Which files a repository holds at a revision, and which of them are the model that is meant."""

import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from gguf2st.errors import HubError, SourceError
from gguf2st.hub.download import cache_folder
from gguf2st.hub.errors import hub_errors, is_passing, no_hub
from gguf2st.hub.reference import Reference
from gguf2st.quoting import shell_line, shell_word, source_word
from gguf2st.source import Model, default_output
from gguf2st.source.selection import CUT, Candidate, choose, group, label, missing_shards, shard_names, shortened

_COMMIT = re.compile(r"[0-9a-f]{40}")
_INCOMPLETE = "get another copy: nothing there completes it"


@dataclass(frozen=True)
class Listing:
    """The files of a repository.

    Attributes:
        reference: as asked for, with the commit as its revision.
        sizes: path -> bytes.
        unreached: why the Hub did not answer; then only what the local cache has is known.
    """

    reference: Reference
    sizes: dict[str, int]
    unreached: HubError | None = None


def find_model(reference: Reference) -> Model:
    """The files that a reference means, as addresses with the commit in them.

    Raises:
        HubError: no such repository or revision, no access, or the Hub cannot be reached and the cache has nothing.
        SourceError: it holds no GGUF, or none or several are meant, or shards are missing.
    """
    listing = list_files(reference)
    try:
        names = _named(listing, reference) or _selected(listing, reference)
    except SourceError as err:
        if listing.unreached is None:
            raise
        here = _models(listing, reference)
        raise HubError(listing.unreached.message, hint=listing.unreached.hint, problems=here) from err
    files = tuple(replace(listing.reference, path=name, quant="").address for name in names)
    notes = ("the Hub was not reached: files of the local cache were taken",) if listing.unreached else ()
    output = Path(default_output(Path(names[0])).name)
    return Model(files, output, files[0], reference.revision or "main", notes)


def list_files(reference: Reference) -> Listing:
    """What the repository holds, from the Hub in one request; from the local cache where the Hub cannot be reached.

    Raises:
        HubError: no such repository or revision, no access, or the Hub cannot be reached and the cache has nothing.
    """
    from huggingface_hub import HfApi, constants

    try:
        with hub_errors(reference.repo, revision=reference.revision):
            info = HfApi(library_name="gguf2st").model_info(
                reference.repo,
                revision=reference.revision or None,
                files_metadata=True,
                timeout=constants.HF_HUB_ETAG_TIMEOUT,
            )
    except HubError as err:
        cached = _list_cached(reference, err) if is_passing(err.__cause__) else None
        if cached is None:
            raise
        return cached
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    commit = info.sha or reference.revision
    names = all(isinstance(name, str) and not {"", ".", ".."} & {*name.split("/")} for name in sizes)
    if not (names and all(isinstance(n, int) for n in sizes.values()) and isinstance(commit, str)):
        raise no_hub(constants.ENDPOINT)
    if info.sha and not _COMMIT.fullmatch(commit):
        raise no_hub(constants.ENDPOINT)
    return Listing(replace(reference, revision=commit), sizes)


def _list_cached(reference: Reference, unreached: HubError) -> Listing | None:
    """What huggingface_hub's cache has: refs/<revision> names the commit, snapshots/<commit>/ holds the files."""
    base = cache_folder(reference.repo)
    revision = reference.revision or "main"
    named = base / "refs" / revision
    commit = named.read_text().strip() if named.is_file() else revision
    snapshot = base / "snapshots" / commit
    if not _COMMIT.fullmatch(commit) or not snapshot.is_dir():
        return None
    files = [path for path in snapshot.rglob("*") if path.is_file()]
    sizes = {path.relative_to(snapshot).as_posix(): path.stat().st_size for path in files}
    return Listing(replace(reference, revision=commit), sizes, unreached)


def _named(listing: Listing, asked: Reference) -> tuple[str, ...]:
    """The file that the path names, with the other shards of its split; nothing when it names none."""
    if not asked.path:
        return ()
    lowered = {path.lower(): path for path in listing.sizes}
    path = asked.path if asked.path in listing.sizes else lowered.get(asked.path.lower(), "")
    if not path:
        return ()
    if cut := CUT.fullmatch(path):
        raise _cut(listing, asked.repo, cut["whole"])
    if not path.lower().endswith(".gguf"):
        raise SourceError(
            f"{asked.repo}: {path} is not a GGUF file", hint="name one that is", problems=_models(listing, asked)
        )
    names = shard_names(path)
    if lost := tuple(name for name in names if name not in listing.sizes):
        there = tuple(name for name in names if name in listing.sizes)
        raise missing_shards(asked.repo, Candidate(there, lost, 0), hint=_INCOMPLETE)
    return names


def _selected(listing: Listing, asked: Reference) -> tuple[str, ...]:
    """The one model, or the one that the quant selects, in the repository or the folder of it that the path names."""
    ggufs = {path: nbytes for path, nbytes in listing.sizes.items() if path.lower().endswith(".gguf")}
    below = {path: n for path, n in ggufs.items() if path.lower().startswith(f"{asked.path.lower()}/")}
    if asked.path and not below:
        raise SourceError(
            f"{asked.repo} has no file or folder {asked.path!r}{_at(asked)}",
            hint="name one that is there",
            problems=_models(listing, asked),
        )
    everything = group(ggufs)
    candidates = group(below) if asked.path else everything
    if not candidates:
        raise _no_model(listing, asked)
    chosen = choose(
        candidates,
        asked.quant,
        where=asked.repo + _at(asked) + (f"/{asked.path}" if asked.path else ""),
        spell=lambda c: source_word(_spell(asked, c, everything)),
        listing=lambda c: _spell(asked, c, everything),
    )
    if chosen.missing:
        raise missing_shards(asked.repo, chosen, hint=_INCOMPLETE)
    return chosen.names


def _spell(asked: Reference, candidate: Candidate, everything: list[Candidate]) -> str:
    """How to name a candidate: by its quant where that is enough, else by its path."""
    text = label(candidate, everything)
    whole = text == candidate.stem
    return asked.select(path=candidate.names[0]) if whole else asked.select(quant=text)


def _models(listing: Listing, asked: Reference) -> list[str]:
    candidates = group({path: n for path, n in listing.sizes.items() if path.lower().endswith(".gguf")})
    return shortened([f"{_spell(asked, c, candidates)} ({c.size})" for c in candidates])


def _at(asked: Reference) -> str:
    return f"@{asked.revision}" if asked.revision else ""


def _cut(listing: Listing, repo: str, whole: str) -> SourceError:
    pieces = sorted(path for path in listing.sizes if (piece := CUT.fullmatch(path)) and piece["whole"] == whole)
    words = shell_line(map(Path, pieces))
    return SourceError(
        f"{repo}: {whole} was cut into {len(pieces)} pieces for upload, which are no shards",
        hint=f"hf download {repo} {words} --local-dir . && cat {words} > {shell_word(Path(whole))}",
    )


def _no_model(listing: Listing, asked: Reference) -> SourceError:
    """The error for a repository without a GGUF model: what it has instead."""
    paths = [path for path in listing.sizes if not path.rsplit("/", 1)[-1].startswith(".git")]
    if ggufs := [path for path in paths if path.lower().endswith(".gguf")]:
        what = f"only companions of a model: {', '.join(sorted(ggufs))}"
    elif cut := next((match for path in paths if (match := CUT.fullmatch(path))), None):
        return _cut(listing, asked.repo, cut["whole"])
    else:
        kinds = Counter(Path(path).suffix.lower() or "other" for path in paths)
        what = ", ".join(f"{n} {kind}" for kind, n in kinds.most_common(6)) or "nothing"
    if "config.json" in paths and any(path.endswith(".safetensors") for path in paths):
        hint = f"it is a safetensors checkpoint already: vllm serve {asked.repo}"
    else:
        hint = "GGUF models are mostly in a repository of their own, whose name ends in -GGUF"
    return SourceError(f"{asked.repo}{_at(asked)} holds no GGUF model; it holds {what}", hint=hint)
