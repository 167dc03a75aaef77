"""Take the original tokenizer files from a folder, after comparing their vocabulary with the GGUF's."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gguf2st.errors import TokenizerError
from gguf2st.header.keys import brief
from gguf2st.links import leads_elsewhere
from gguf2st.tokenizer import wordpiece
from gguf2st.tokenizer.files import NAMED_ROLES, TokenizerFiles
from gguf2st.tokenizer.special import special_tokens
from gguf2st.tokenizer.templates import TEMPLATE_DIR, template_path, written_templates
from gguf2st.tokenizer.vocab import (
    CONTROL,
    COPY_HINT,
    PREFIX,
    SHOWN,
    SPACE,
    USER_DEFINED,
    Metadata,
    read_numbers,
    read_text,
    read_tokens,
)

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "tokenizer.model",
    "tekken.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
)
"""What makes up a tokenizer; whatever of it the folder has is taken."""
TOKENIZER_PATTERNS = [*TOKENIZER_FILES, f"{TEMPLATE_DIR}/*"]
"""The same as patterns of paths in a repository."""
_FILLER = re.compile(r"\[PAD\d+\]")
"""What llama.cpp's converter calls a token that only fills up the vocabulary. The number is that of the published
tokenizer, which is not always the token's: XLM-R's are one apart."""


def copy_tokenizer(folder: Path, metadata: Metadata) -> TokenizerFiles:
    """The tokenizer files of a Hugging Face folder, unchanged.

    Its tokenizer.json is compared with the GGUF token by token. Two things may differ, as llama.cpp's converter makes
    them differ: tokens `[PAD<number>]` that only fill up the vocabulary, and U+2581 written as a space in added tokens.

    Special tokens that have another role in the folder give a note. A folder without a chat template gets the GGUF's.

    Raises TokenizerError when the folder has no tokenizer.json, or when ids or strings differ.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        other = next((name for name in TOKENIZER_FILES[2:] if (folder / name).is_file()), None)
        raise TokenizerError(
            f"{folder} has no tokenizer.json, the file whose vocabulary can be compared"
            + (f", only {other}" if other else ""),
            hint="write one with transformers: AutoTokenizer.from_pretrained(...).save_pretrained(DIR)",
        )
    differences = list(_differences(_file_tokens(path), metadata))
    if differences:
        raise TokenizerError(
            f"{path} is the tokenizer of another model: {len(differences)} tokens differ from the GGUF's",
            hint="pass the folder or repository that the GGUF was converted from to --tokenizer-from",
            problems=differences[:SHOWN],
        )
    _require_loadable(path)
    files = {file.relative_to(folder).as_posix(): file.read_bytes() for file in _files(folder)}
    notes = [f"tokenizer files taken from {folder}: its {len(files)} files, vocabulary compared"]
    config = _read_config(folder)
    notes += _other_roles(config, metadata)
    if not config.get("chat_template") and not any("chat_template" in name for name in files):
        for name, template in written_templates(metadata).items():
            files[template_path(name)] = template.encode()
            notes.append(f"{template_path(name)} is the GGUF's: the folder has no chat template")
    return TokenizerFiles(files, tuple(notes))


def require_own_files(folder: Path) -> None:
    """Raise TokenizerError where a folder has links to files elsewhere: what they name would end in the checkpoint."""
    for file in _files(folder):
        if leads_elsewhere(file, folder):
            raise TokenizerError(
                f"{file} is a link to {file.resolve()}, outside of its folder: it was not copied",
                hint="put a copy in its place if it is of this tokenizer, or remove it",
            )


def _files(folder: Path) -> list[Path]:
    found = [folder / name for name in TOKENIZER_FILES] + sorted((folder / TEMPLATE_DIR).glob("*.jinja"))
    return [file for file in found if file.is_file()]


def _require_loadable(path: Path) -> None:
    """Raise TokenizerError unless the library that will read a tokenizer.json can."""
    from tokenizers import Tokenizer

    try:
        Tokenizer.from_buffer(path.read_bytes())  # it cannot open a name that is no text
    except BaseException as error:  # the library raises nothing narrower, and its panics are no Exception
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise TokenizerError(f"{path} cannot be loaded: {error}", hint=COPY_HINT) from error


def _read_config(folder: Path) -> dict[str, Any]:
    """special_tokens_map.json with tokenizer_config.json over it; empty where they are absent."""
    config: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        path = folder / name
        if not path.is_file():
            continue
        try:
            content = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise TokenizerError(f"{path} is no JSON object: {error}", hint=COPY_HINT) from None
        if not isinstance(content, dict):
            raise TokenizerError(f"{path} is no JSON object but {type(content).__name__}", hint=COPY_HINT)
        config |= content
    return config


def _other_roles(config: Mapping[str, Any], metadata: Metadata) -> Iterator[str]:
    """Notes on special tokens that are others in the folder than in the GGUF."""
    special, tokens = special_tokens(metadata), read_tokens(metadata)
    for role in NAMED_ROLES:
        token, i = config.get(f"{role}_token"), getattr(special, role)
        theirs = token.get("content") if isinstance(token, dict) else token
        ours = None if i is None else tokens[i]
        if theirs is not None and ours is not None and theirs != ours:
            yield f"{role}_token is {brief(theirs)} in the folder, {brief(ours)} in the GGUF: the folder's is taken"


def _file_tokens(path: Path) -> dict[int, str]:
    """Tokens by id of a tokenizer.json: its model's and the added ones."""
    try:
        content = json.loads(path.read_bytes())
        vocab = content["model"]["vocab"]
        added = {int(token["id"]): str(token["content"]) for token in content.get("added_tokens") or ()}
        if isinstance(vocab, dict):  # BPE, WordPiece, WordLevel: {token: id}
            tokens = {int(i): str(token) for token, i in vocab.items()}
        else:  # Unigram: [[token, score], ...]
            tokens = {i: str(token) for i, (token, _) in enumerate(vocab)}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise TokenizerError(
            f"{path} is no tokenizer.json of the tokenizers library: {type(error).__name__}: {error}", hint=COPY_HINT
        ) from None
    return tokens | added


def _differences(theirs: dict[int, str], metadata: Metadata) -> Iterator[str]:
    tokens = read_tokens(metadata)
    types = read_numbers(metadata, "token_type", len(tokens)) if PREFIX + "token_type" in metadata else None
    word_pieces = read_text(metadata, PREFIX + "model") == "bert"
    for i, ours in enumerate(tokens):
        kind = None if types is None else types[i]
        token = theirs.get(i)
        if token is None:
            if not _FILLER.fullmatch(ours.removeprefix(SPACE)):  # which begins each word of kind `bert`
                yield f"token {i}: {brief(ours)} in the GGUF, absent in the folder"
            continue
        if word_pieces:
            ours = wordpiece.spelled(ours, control=kind == CONTROL)
        if kind == USER_DEFINED:
            token, ours = token.replace(SPACE, " "), ours.replace(SPACE, " ")
        if token != ours:
            yield f"token {i}: {brief(tokens[i])} in the GGUF, {brief(theirs[i])} in the folder"
    for i in sorted(theirs.keys() - range(len(tokens))):
        yield f"token {i}: absent in the GGUF, {brief(theirs[i])} in the folder"
