"""Build the tokenizer files of a Hugging Face checkpoint from GGUF metadata."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from gguf2st.errors import TokenizerError
from gguf2st.tokenizer import bytelevel, gemma4, sentencepiece
from gguf2st.tokenizer.parts import Json, Parts
from gguf2st.tokenizer.pretokenizers import BY_NAME, QWEN2, QWEN35
from gguf2st.tokenizer.special import AddedToken, SpecialTokens, added_tokens, special_tokens
from gguf2st.tokenizer.vocab import COPY_HINT, PREFIX, Metadata, Vocabulary, read_text, read_vocabulary

TEMPLATE_KEY = "tokenizer.chat_template"
TEMPLATE_FILE = "chat_template.jinja"
TEMPLATE_DIR = "additional_chat_templates"
_TEMPLATE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")

_OWN_CLASS = {
    "qwen2": ("Qwen2Tokenizer", QWEN2),
    "qwen35": ("Qwen3_5Tokenizer", QWEN35),
    "qwen35moe": ("Qwen3_5Tokenizer", QWEN35),
}
"""GGUF arch -> the class that transformers 5 loads its model type with, whatever tokenizer_config.json says, and the
regex of that class: MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS of transformers 5.24 (tokenization_auto.py)."""

_NAMED_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
"""Roles that transformers has a `<role>_token` for."""


@dataclass(frozen=True)
class TokenizerFiles:
    """File contents by path inside the checkpoint folder, and remarks for the user."""

    files: dict[str, bytes]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Kind:
    """A `tokenizer.ggml.model`: `check` raises or returns notes, `parts` gives its share of tokenizer.json."""

    check: Callable[[Metadata, Vocabulary], list[str]]
    parts: Callable[[Metadata, Vocabulary, SpecialTokens], Parts]


KINDS = {
    "gpt2": _Kind(bytelevel.check, bytelevel.parts),
    "llama": _Kind(sentencepiece.check, sentencepiece.parts),
    "gemma4": _Kind(gemma4.check, gemma4.parts),
}


@dataclass(frozen=True)
class _Plan:
    """Everything but the merges: what the files will be made of."""

    kind: _Kind
    vocabulary: Vocabulary
    special: SpecialTokens
    added: dict[int, AddedToken]
    named: dict[str, str]
    templates: dict[str, str]
    notes: list[str]


def check_tokenizer(metadata: Metadata) -> list[str]:
    """Notes on the tokenizer that `build_tokenizer` would write. Cheap: `tokenizers` is not imported.

    Raises TokenizerError when it cannot be rebuilt.
    """
    return _plan(metadata).notes


def build_tokenizer(metadata: Metadata, *, n_rows: int | None = None) -> TokenizerFiles:
    """tokenizer.json, tokenizer_config.json, special_tokens_map.json and the chat templates of a GGUF.

    tokenizer.json needs no other file: BOS and EOS are in its post-processor.

    Args:
        metadata: of the GGUF.
        n_rows: rows of the token embedding; more rows than tokens is padding and gives a note.

    Raises TokenizerError when the tokenizer cannot be rebuilt, or has more tokens than the embedding has rows.
    """
    plan = _plan(metadata)
    n_tokens = len(plan.vocabulary.tokens)
    notes = list(plan.notes)
    if n_rows is not None and n_tokens > n_rows:
        raise TokenizerError(f"{n_tokens} tokens, but the token embedding has only {n_rows} rows")
    if n_rows is not None and n_tokens < n_rows:
        notes.append(f"{n_rows - n_tokens} embedding rows after the {n_tokens} tokens are padding without a token")
    parts = plan.kind.parts(metadata, plan.vocabulary, plan.special)
    tokenizer: Json = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added_token(i, plan.vocabulary.tokens[i], token) for i, token in plan.added.items()],
        "normalizer": parts.normalizer,
        "pre_tokenizer": parts.pre_tokenizer,
        "post_processor": _post_processor(plan.vocabulary, plan.special),
        "decoder": parts.decoder,
        "model": parts.model,
    }
    _check_parts(tokenizer)
    files = {
        "tokenizer.json": json.dumps(tokenizer, ensure_ascii=False).encode(),
        "tokenizer_config.json": _pretty(_config(metadata, plan)),
        "special_tokens_map.json": _pretty(plan.named),
    }
    for name, template in plan.templates.items():
        files[f"{TEMPLATE_DIR}/{name}.jinja" if name else TEMPLATE_FILE] = template.encode()
    return TokenizerFiles(files, tuple(notes))


def read_templates(metadata: Metadata) -> dict[str, str]:
    """Chat templates by name; the unnamed one has the name "".

    Raises TokenizerError for a template that is no text, or a name that is no file name.
    """
    templates = {}
    for key in metadata:
        if key != TEMPLATE_KEY and not key.startswith(TEMPLATE_KEY + "."):
            continue
        name = key[len(TEMPLATE_KEY) + 1 :]
        if key != TEMPLATE_KEY and not _TEMPLATE_NAME.fullmatch(name):
            raise TokenizerError(f"{key!r}: the name of the chat template cannot be a file name")
        template = read_text(metadata, key)
        if template is not None:
            templates[name] = template
    return templates


def _plan(metadata: Metadata) -> _Plan:
    kind = _read_kind(metadata)
    vocabulary = read_vocabulary(metadata)
    special = special_tokens(metadata)
    for role, wanted in (("bos", special.add_bos), ("eos", special.add_eos)):
        if wanted and getattr(special, role) is None:
            raise TokenizerError(f"{role.upper()} is to be added to each text, but the file has no {role}_token_id")
    notes = kind.check(metadata, vocabulary)
    added = added_tokens(metadata, vocabulary, special)
    named = {}
    for role in _NAMED_ROLES:
        i = getattr(special, role)
        if i is None:
            continue
        if i in added:
            named[f"{role}_token"] = vocabulary.tokens[i]
        else:
            # transformers would match a named token in the text, and a normal token must not be
            notes.append(f"{role}_token is not written: token {i} is the normal token {vocabulary.tokens[i]!r}")
    notes += _own_class_notes(metadata)
    templates = read_templates(metadata)
    if not templates:
        notes.append("no chat template in the file: none written")
    return _Plan(kind, vocabulary, special, added, named, templates, notes)


def _own_class_notes(metadata: Metadata) -> list[str]:
    arch = read_text(metadata, "general.architecture") or ""
    if arch not in _OWN_CLASS:
        return []
    name, pattern = _OWN_CLASS[arch]
    pre = BY_NAME.get(read_text(metadata, PREFIX + "pre") or "")
    if pre is not None and pre.patterns == (pattern,):
        return [f"transformers 5 loads {arch} with {name}, which brings text to Unicode NFC first; llama.cpp does not"]
    return [
        f"transformers 5 loads {arch} with {name} and ITS word regex, not the one written here: load the tokenizer "
        "with PreTrainedTokenizerFast instead of AutoTokenizer"
    ]


def _read_kind(metadata: Metadata) -> _Kind:
    name = read_text(metadata, PREFIX + "model")
    if name in KINDS:
        return KINDS[name]
    found = f"{PREFIX}model {name!r} is not supported" if name else f"the file has no {PREFIX}model"
    raise TokenizerError(found, hint=COPY_HINT, problems=[f"available: {', '.join(sorted(KINDS))}"])


def _added_token(i: int, text: str, token: AddedToken) -> Json:
    return {
        "id": i,
        "content": text,
        "single_word": False,
        "lstrip": token.lstrip,
        "rstrip": token.rstrip,
        "normalized": False,
        "special": token.special,
    }


def _post_processor(vocabulary: Vocabulary, special: SpecialTokens) -> Json | None:
    """BOS and EOS around each text; the form that transformers 5 makes of add_bos_token and add_eos_token."""
    before = [special.bos] if special.add_bos and special.bos is not None else []
    after = [special.eos] if special.add_eos and special.eos is not None else []
    if not before and not after:
        return None

    def template(sequence: str, type_id: int) -> list[Json]:
        def fixed(i: int) -> Json:
            return {"SpecialToken": {"id": vocabulary.tokens[i], "type_id": type_id}}

        text = {"Sequence": {"id": sequence, "type_id": type_id}}
        return [*map(fixed, before), text, *map(fixed, after)]

    return {
        "type": "TemplateProcessing",
        "single": template("A", 0),
        "pair": template("A", 0) + template("B", 1),
        "special_tokens": {
            vocabulary.tokens[i]: {"id": vocabulary.tokens[i], "ids": [i], "tokens": [vocabulary.tokens[i]]}
            for i in dict.fromkeys(before + after)
        },
    }


def _config(metadata: Metadata, plan: _Plan) -> Json:
    config: Json = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    if "bos_token" in plan.named or not plan.special.add_bos:
        # transformers 5 rebuilds the post-processor from these, so they must not promise a token that has no name
        config["add_bos_token"] = plan.special.add_bos
        config["add_eos_token"] = plan.special.add_eos
    length = metadata.get(f"{metadata.get('general.architecture')}.context_length")
    if isinstance(length, int):
        config["model_max_length"] = length
    return config | plan.named


def _check_parts(tokenizer: Json) -> None:
    """Raise TokenizerError when `tokenizers` refuses the regexes, normalizers or templates.

    Vocabulary and merges are left out: they are checked already, and take most of a second to load.
    """
    from tokenizers import Tokenizer

    unk = tokenizer["model"]["unk_token"]
    model = tokenizer["model"] | {"vocab": {} if unk is None else {unk: 0}, "merges": []}
    try:
        Tokenizer.from_str(json.dumps(tokenizer | {"model": model, "added_tokens": []}))
    except Exception as error:  # the library raises nothing more precise
        raise TokenizerError(f"tokenizers refuses the rebuilt tokenizer: {error}", hint=COPY_HINT) from error


def _pretty(value: Json | dict[str, str]) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=2) + "\n").encode()
