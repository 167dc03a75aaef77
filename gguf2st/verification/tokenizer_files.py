"""The tokenizer of a checkpoint against the one that its source gives.

Files that this version of gguf2st wrote must say the same as those rebuilt from the source; one that was published with
the model may say it in other words, as long as texts get the same ids.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from gguf2st.errors import Gguf2stError, TokenizerError
from gguf2st.fold import listing
from gguf2st.header.keys import brief
from gguf2st.output.small_files import tokenizer_metadata
from gguf2st.plan import Plan
from gguf2st.tokenizer import TokenizerFiles, build_tokenizer, copy_tokenizer
from gguf2st.tokenizer.templates import DEFAULT, TEMPLATE_DIR, TEMPLATE_FILE
from gguf2st.verification.checkpoint import Checkpoint, read_json
from gguf2st.verification.tokenizer_ids import differences, parts_that_differ

CONFIG_FILE = "tokenizer_config.json"
MAP_FILE = "special_tokens_map.json"
"""What transformers reads over it."""
_NO_CLASS = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes of transformers that read tokenizer.json as it is; others have special tokens of their own, and add them."""
_ROLES = tuple(f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_LISTS = ("additional_special_tokens", "extra_special_tokens")
"""Keys by which transformers adds tokens that the vocabulary lacks."""
_ADDING = ("add_bos_token", "add_eos_token")
"""Keys that transformers 5 rebuilds the post-processor from."""
_LINE_END = re.compile(r"\r\n|\r|\n")


def compare_tokenizer(ckpt: Checkpoint, plan: Plan) -> list[str]:
    """Everything that makes ids of a text, and a text of a conversation.

    Returns: notes on what was compared, and how far.
    """
    if (ckpt.folder / "tokenizer.json").is_fifo():
        return []  # said already
    try:
        copy_tokenizer(ckpt.folder, plan.header.metadata)
    except TokenizerError as err:
        ckpt.problems += [err.message, *err.problems]
        return []
    given, own = _options(ckpt)
    if "tokenizer-from" in given:
        return [
            f"the tokenizer was taken from elsewhere (--tokenizer-from {given['tokenizer-from']}): its vocabulary was "
            "compared token by token, the rest of it not"
        ]
    try:
        rebuilt = build_tokenizer(tokenizer_metadata(plan.header, given.get("tokenizer-pre")))
    except Gguf2stError as err:
        return [f"of the tokenizer only the vocabulary was compared, token by token: {err.message}"]
    config = read_json(ckpt.folder / CONFIG_FILE, ckpt.problems)
    by_class = not own and config.get("tokenizer_class", _NO_CLASS[0]) not in _NO_CLASS
    notes = list(_compare_json(ckpt, rebuilt, own=own, adding=not by_class))
    if own:
        notes += _compare_keys(ckpt, rebuilt, CONFIG_FILE, config)
        if (ckpt.folder / MAP_FILE).exists():
            notes += _compare_keys(ckpt, rebuilt, MAP_FILE, read_json(ckpt.folder / MAP_FILE, ckpt.problems))
    else:
        _compare_roles(ckpt, rebuilt, config)
    _compare_added(ckpt, config)
    return notes + list(_compare_templates(ckpt, rebuilt, config, needed=not by_class))


def _options(ckpt: Checkpoint) -> tuple[Mapping[str, str], bool]:
    """Options of the command that gguf2st.json says the checkpoint was made by, and whether by this version."""
    from gguf2st import __version__
    from gguf2st.hub.provenance import PROVENANCE_FILE  # which is about reports, and these about verifications

    stated = read_json(ckpt.folder / PROVENANCE_FILE, [])
    try:
        words = shlex.split(str(stated.get("command", "")))
    except ValueError:
        words = []
    options = {word.removeprefix("--"): words[i] for i, word in enumerate(words[:-1], 1) if word.startswith("--")}
    return options, stated.get("version") == __version__


def _compare_json(ckpt: Checkpoint, rebuilt: TokenizerFiles, *, own: bool, adding: bool) -> Iterator[str]:
    """tokenizer.json: by its bytes, by its parts, and by what it makes of texts.

    `own`: this version of gguf2st wrote it. `adding`: no class of transformers decides what is added to a text.
    """
    found = (ckpt.folder / "tokenizer.json").read_bytes()
    if found == rebuilt.files["tokenizer.json"]:
        return
    ours, theirs = json.loads(rebuilt.files["tokenizer.json"]), json.loads(found)
    parts = parts_that_differ(ours, theirs)
    if not parts:
        return
    try:
        wrong = list(differences(ours, theirs, adding=adding))
    except ValueError as err:
        yield f"of the tokenizer only the vocabulary was compared, token by token: {err}"
        return
    if own:
        wrong = wrong or ["every text that was tried has its ids, but gguf2st wrote another"]
    ckpt.problems += [f"tokenizer.json is not the source's ({', '.join(parts)}): {line}" for line in wrong]
    if not wrong:
        yield f"tokenizer.json differs from the source's in {', '.join(parts)}; every text that was tried has its ids"


def _compare_keys(ckpt: Checkpoint, rebuilt: TokenizerFiles, file: str, stated: Mapping[str, Any]) -> Iterator[str]:
    """A configuration key by key, as gguf2st wrote it; templates are compared by themselves.

    How long a text may be changes no ids: another length gives a note.
    """
    wanted: dict[str, Any] = json.loads(rebuilt.files[file])
    keys = dict.fromkeys((*wanted, *stated)) if stated else {}
    for key in (k for k in keys if k != "chat_template"):
        value, said = wanted.get(key), stated.get(key)
        line = f"{file} says {key} = {brief(said)}, the source {brief(value)}"
        if said != value and key == "model_max_length":
            yield line
        elif said != value:
            ckpt.problems.append(line)


def _compare_roles(ckpt: Checkpoint, rebuilt: TokenizerFiles, stated: Mapping[str, Any]) -> None:
    """Special tokens by their roles, and whether they are added to a text."""
    wanted: dict[str, Any] = json.loads(rebuilt.files[CONFIG_FILE])
    path = ckpt.folder / MAP_FILE
    beside = read_json(path, ckpt.problems) if path.exists() else {}
    silent = stated.get("tokenizer_class", _NO_CLASS[0]) in _NO_CLASS
    for key in (*_ROLES, *_ADDING):
        value = wanted.get(key)
        if value is None or not stated:
            continue
        for name, content in ((CONFIG_FILE, stated), (path.name, beside)):
            said = content.get(key)
            if (said := said.get("content") if isinstance(said, dict) else said) is not None and said != value:
                ckpt.problems.append(f"{name} says {key} = {said!r}, the source {value!r}")
        needed = key == "eos_token" or (key == "bos_token" and wanted.get("add_bos_token"))
        if silent and needed and stated.get(key) is None and beside.get(key) is None:
            ckpt.problems.append(f"{CONFIG_FILE} lacks {key}, which the source says is {value!r}")


def _compare_added(ckpt: Checkpoint, stated: Mapping[str, Any]) -> None:
    """Tokens that tokenizer_config.json or added_tokens.json say otherwise than tokenizer.json, or add to it."""
    content: dict[str, Any] = json.loads((ckpt.folder / "tokenizer.json").read_bytes())
    vocab = content["model"]["vocab"]
    ids = dict(vocab) if isinstance(vocab, dict) else {str(row[0]): i for i, row in enumerate(vocab)}
    ids |= {str(row["content"]): row["id"] for row in content.get("added_tokens") or ()}
    path = ckpt.folder / "added_tokens.json"
    rows = stated.get("added_tokens_decoder")
    further = {
        CONFIG_FILE: {str(r.get("content")): i for i, r in rows.items() if isinstance(r, dict)}
        if isinstance(rows, dict)
        else {},
        path.name: read_json(path, ckpt.problems) if path.exists() else {},
    }
    beside = read_json(ckpt.folder / MAP_FILE, ckpt.problems) if (ckpt.folder / MAP_FILE).exists() else {}
    for name, table in ((CONFIG_FILE, stated), (MAP_FILE, beside)):
        listed = [token for key in _LISTS for token in _texts(table.get(key))]
        if new := [token for token in listed if token not in ids]:
            ckpt.problems.append(f"{name} names special tokens that tokenizer.json has not: {listing(new[:5])}")
    for name, tokens in further.items():
        if wrong := [token for token, i in tokens.items() if str(ids.get(token)) != str(i)]:
            ckpt.problems.append(f"{name} adds tokens that tokenizer.json has not, or elsewhere: {listing(wrong[:5])}")


def _texts(tokens: Any) -> Iterator[str]:
    """Texts of special tokens, which are listed as such, as objects, or by a name for each."""
    rows = tokens.values() if isinstance(tokens, dict) else tokens if isinstance(tokens, list) else ()
    for row in rows:
        text = row.get("content") if isinstance(row, dict) else row
        if isinstance(text, str):
            yield text


def _as_read(template: str) -> str:
    """A template as jinja2 reads it: every end of a line is one LF, and one at the end of all is none."""
    return _LINE_END.sub("\n", template).removesuffix("\n")


def _compare_templates(
    ckpt: Checkpoint, rebuilt: TokenizerFiles, stated: Mapping[str, Any], *, needed: bool
) -> Iterator[str]:
    """Chat templates, wherever loaders look for them: files of their own go before tokenizer_config.json.

    `needed`: whether none is a problem; llama.cpp's converter gives some models a template that they lack.
    """
    folder = ckpt.folder
    wanted = {name: text.decode() for name, text in rebuilt.files.items() if name.endswith(".jinja")}
    found: list[tuple[str, str, str]] = []  # (where it is, name of the file that the source gives, text)
    for path in (folder / TEMPLATE_FILE, *sorted((folder / TEMPLATE_DIR).glob("*.jinja"))):
        if path.is_file():
            name = path.relative_to(folder).as_posix()
            default = path.stem == DEFAULT and name not in wanted  # it goes before chat_template.jinja
            text = path.read_bytes().decode("utf-8", "replace")
            found.append((name, TEMPLATE_FILE if default else name, text))
    for file, content in ((CONFIG_FILE, stated), ("chat_template.json", read_json(folder / "chat_template.json", []))):
        inner = content.get("chat_template")
        rows = inner if isinstance(inner, list) else [{"name": "default", "template": inner}] if inner else []
        for row in rows:
            if isinstance(row, dict) and isinstance(row.get("template"), str):
                default = row.get("name") == DEFAULT
                place = TEMPLATE_FILE if default else f"{TEMPLATE_DIR}/{row.get('name')}.jinja"
                found.append((file, place, row["template"]))
    edits, further = ckpt.edits.setdefault("chat-template", []), []
    for where, place, text in found:
        if place not in wanted:
            further.append(where)
        elif _as_read(text) != _as_read(wanted[place]):
            edits.append(f"the chat template in {where} is not the source's")
    if lost := sorted(wanted.keys() - {place for _, place, _ in found}):
        line = f"there is no {', '.join(lost)}, which the source has"
        if needed:
            edits.append(line)
        else:
            yield line
    if further:
        yield f"chat templates that the source does not have: {', '.join(sorted(set(further)))}"
