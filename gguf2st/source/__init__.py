"""What SRC can be, told apart by its spelling: a path, a model on the Hub, or one of ollama's.

    model.gguf, model-00002-of-00003.gguf, folder, folder:Q4_K_M           local.py
    org/repo:Q4_K_M, hf://org/repo/file.gguf@revision, a web address       hub/
    ollama://llama3.2:1b, llama3.2:1b, a file of ollama's store            ollama.py

What exists here goes before what a name may mean elsewhere.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gguf2st.errors import HubError, SourceError, unreadable
from gguf2st.source.local import find_files, missing
from gguf2st.source.selection import split_name


@dataclass(frozen=True)
class Model:
    """The files of one model, nothing but their names looked at.

    Attributes:
        files: in shard order; paths, or addresses `hf://org/repo@commit/path` of files that are not here yet.
        output: folder for the checkpoint when the user names none.
        origin: where the files come from, if that is not just a path: `hf://org/repo@commit/path` of the first one, or
            `ollama://model:tag`.
        revision: branch or tag of a model on the Hub by which its commit was found.
        notes: what the user should know about the choice.
    """

    files: tuple[str, ...]
    output: Path
    origin: str = ""
    revision: str = ""
    notes: tuple[str, ...] = ()

    @property
    def remote(self) -> bool:
        """Whether the files must be downloaded before a weight can be read."""
        return any(is_address(file) for file in self.files)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files on this machine; none of a remote model."""
        return () if self.remote else tuple(Path(file) for file in self.files)


def locate(src: "str | Path | Model") -> Model:
    """Find the files of the model that `src` names. Of a model on the Hub, only the list of files is read.

    Raises:
        SourceError: nothing, several models, or something else than a GGUF is there, or shards are missing.
        HubError: the Hub does not answer, or refuses.
    """
    if isinstance(src, Model):
        return src
    text = str(src)
    if text in ("", "-"):
        what = "a GGUF cannot be read from standard input: its parts are read in another order than they lie in"
        raise SourceError(what if text else "the name of the source is empty", hint="give a file or a folder")
    if text.startswith("ollama:/"):
        from gguf2st.source import ollama

        return ollama.find_model(re.sub("ollama:/{1,2}", "", text))
    if _is_path(text):
        return _here(text)
    head, _, select = text.rpartition(":")
    if head and select and _is_path(head):
        return _here(head, select)
    from gguf2st.hub.reference import is_explicit, parse_reference

    if "/" in text and is_explicit(text):
        return _on_hub(text)
    if scheme := re.match(r"(\w[\w.+-]+)://", text):
        raise _other_scheme(text, scheme[1].lower())
    reference = parse_reference(text)
    # `folder/nmae` is a slip where the folder exists; a quant behind it says that it is none.
    slip = Path(text.split("/")[0]).is_dir() and not (reference and reference.quant)
    if reference and not slip and not text.lower().endswith(".gguf"):
        try:
            return _on_hub(text)
        except HubError as err:
            from gguf2st.source import ollama

            hint = f"ollama has it: ollama://{text}" if ollama.has_model(text) else err.hint
            message = f"{err.message}; no file or folder here has this name either"
            raise HubError(message, hint=hint, problems=err.problems) from err
    return _elsewhere(text)


def _is_path(text: str) -> bool:
    try:
        return Path(text).exists() or Path(text).is_symlink()
    except OSError as error:
        raise unreadable(error, text) from error


def _here(text: str, select: str = "") -> Model:
    from gguf2st.hub.reference import cached_reference
    from gguf2st.source import ollama

    files = find_files(text, select)
    names = tuple(map(str, files))
    if origin := ollama.origin_of(files[0]):
        return Model(names, ollama.default_output(origin), origin)
    if reference := cached_reference(files[0]):  # huggingface_hub's cache is no place for an output
        return Model(names, Path(default_output(Path(reference.path)).name), reference.address)
    return Model(names, default_output(files[0]))


def _on_hub(text: str) -> Model:
    from gguf2st.hub.listing import find_model
    from gguf2st.hub.reference import parse_reference

    reference = parse_reference(text)
    assert reference is not None, "only called with names of something on the Hub"
    return find_model(reference)


def _elsewhere(text: str) -> Model:
    """A model of ollama's store by its bare name, or the error for a name that means nothing."""
    from gguf2st.source import ollama

    if ollama.has_model(text):
        return ollama.find_model(text)
    hint = ""
    parts = text.split("/")
    if {".", ".."} & {*parts}:  # no name of anything on the Hub
        hint = ""
    elif len(parts) > 2 and text.lower().endswith(".gguf") and re.fullmatch(r"[\w.-]+(/[\w. -]+)+", text):
        hint = f"for a file on the Hub: hf://{text}"
    elif len(parts) == 2 and not text.lower().endswith(".gguf") and re.fullmatch(r"[\w.-]+/[\w.-]+", text):
        hint = f"for the repository on the Hub: hf://{text}"
    try:
        raise missing(text, Path(text), hint=hint)
    except OSError as error:
        raise unreadable(error, text) from error


def _other_scheme(text: str, scheme: str) -> SourceError:
    from gguf2st.hub.errors import mask

    text = re.sub("//[^/]*@", "//...@", text)  # a name and a password
    if scheme == "file":
        return SourceError(f"{mask(text)}: an address, not a path", hint=f"write {text[7:] or 'the path'} instead")
    if scheme in ("http", "https"):
        return SourceError(
            f"{mask(text.split('?')[0])}: only addresses of the Hub are read directly",
            hint="download it first: curl -L -O -C - ADDRESS, then give the file",
        )
    return SourceError(
        f"{mask(text)}: {scheme}:// is not read directly",
        hint="give a file, a folder, org/repo:QUANT, hf://org/repo/file.gguf or ollama://model:tag",
    )


def default_output(file: Path) -> Path:
    """Where the checkpoint goes when the user names no folder: beside the source, `model.Q4_K_M-safetensors`.

    The name is the file's without `.gguf` and without the shard number, so that every shard gives the same folder.
    """
    shard = split_name(file.name)
    stem = shard[0] if shard else re.sub(r"\.gguf$", "", file.name, flags=re.IGNORECASE)
    return file.with_name(f"{stem or file.name}-safetensors")


def is_address(name: str | Path) -> bool:
    """Whether this is the address of a file on the Hub rather than a path."""
    return str(name).startswith("hf:/")


def open_file(name: str | Path) -> BinaryIO:
    """A file of a `Model` for reading: from the disk, or by ranges from the Hub.

    Raises:
        OSError: as `open` does.
        HubError: the Hub does not answer, or refuses.
    """
    if is_address(name):
        from gguf2st.hub.remote import open_remote

        return open_remote(str(name))
    return open(name, "rb")
