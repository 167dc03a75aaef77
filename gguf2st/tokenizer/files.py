"""Build the tokenizer files of a Hugging Face checkpoint from GGUF metadata."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from gguf2st.errors import TokenizerError
from gguf2st.header.keys import brief
from gguf2st.tokenizer import bytelevel, rawtext, sentencepiece, unigram, wordpiece
from gguf2st.tokenizer.evidence import resolve
from gguf2st.tokenizer.parts import Json, Parts
from gguf2st.tokenizer.pretokenizers import BY_NAME, QWEN2, QWEN35, RAW_TEXT
from gguf2st.tokenizer.special import AddedToken, SpecialTokens, added_tokens, special_tokens
from gguf2st.tokenizer.templates import read_templates, template_notes, template_path, written_templates
from gguf2st.tokenizer.unread import unread_notes
from gguf2st.tokenizer.vocab import COPY_HINT, PREFIX, Metadata, Vocabulary, read_text, read_vocabulary

T = TypeVar("T")

TWO_SEP_NOTE = (
    "two texts get two SEP between them, as llama.cpp gives; its converter says so of every ModernBERT whose "
    f"tokenizer.json does not tell, and ModernBERT's own tokenizer puts one: for a reranker, {COPY_HINT}"
)

_OWN_CLASS = {
    "qwen2": ("Qwen2Tokenizer", QWEN2),
    "qwen35": ("Qwen3_5Tokenizer", QWEN35),
    "qwen35moe": ("Qwen3_5Tokenizer", QWEN35),
}
"""GGUF arch -> the class that transformers 5 loads its model type with, whatever tokenizer_config.json says, and the
regex of that class: MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS of transformers 5.24 (tokenization_auto.py)."""

NAMED_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
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
    "gemma4": _Kind(rawtext.check, rawtext.parts),
    "whitespace": _Kind(rawtext.check, rawtext.parts),
    "bert": _Kind(wordpiece.check, wordpiece.parts),
    "t5": _Kind(unigram.check, unigram.parts),
}

_INEXPRESSIBLE = {
    "rwkv": "it takes the longest token of bytes that fits, which `tokenizers` does in quadratic time only",
    "plamo2": "its rounding and tie-breaking of scores is not that of the Unigram model of `tokenizers`",
    "hybriddna": "`tokenizers` cannot cut a text into groups of six letters and fill up the last",
    "no_vocab": "it has no vocabulary",
    "none": "it has no vocabulary",
}


@dataclass(frozen=True)
class TokenizerPlan:
    """A tokenizer that can be rebuilt: everything but its merges, and what the user should know of it."""

    metadata: Metadata
    _kind: _Kind
    vocabulary: Vocabulary
    special: SpecialTokens
    added: dict[int, AddedToken]
    named: dict[str, str]
    templates: dict[str, str]
    notes: list[str]

    @property
    def is_bert(self) -> bool:
        """Whether it is WordPiece, which spells tokens otherwise than the file."""
        return self.metadata.get(PREFIX + "model") == "bert"

    def build(self, *, n_rows: int | None = None) -> TokenizerFiles:
        """tokenizer.json, tokenizer_config.json, special_tokens_map.json and the chat templates.

        tokenizer.json needs no other file: BOS and EOS are in its post-processor.

        Args:
            n_rows: rows of the token embedding; more rows than tokens is padding and gives a note.

        Raises TokenizerError when `tokenizers` refuses it, or it has more tokens than the embedding has rows.
        """
        n_tokens = len(self.vocabulary.tokens)
        notes = list(self.notes)
        if n_rows is not None:
            self.require_rows(n_rows)
        if n_rows is not None and n_tokens < n_rows:
            notes.append(f"{n_rows - n_tokens} embedding rows after the {n_tokens} tokens are padding without a token")
        parts = self._kind.parts(self.metadata, self.vocabulary, self.special)
        tokenizer: Json = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [_added_token(i, self.text(i), token) for i, token in self.added.items()],
            "normalizer": parts.normalizer,
            "pre_tokenizer": parts.pre_tokenizer,
            "post_processor": _post_processor(self),
            "decoder": parts.decoder,
            "model": parts.model,
        }
        _check_parts(tokenizer)
        files = {
            "tokenizer.json": b"".join(_encoded(tokenizer)),
            "tokenizer_config.json": _pretty(_config(self)),
            "special_tokens_map.json": _pretty(self.named),
        }
        for name, template in self.templates.items():
            files[template_path(name)] = template.encode()
        return TokenizerFiles(files, tuple(notes))

    def require_rows(self, n_rows: int) -> None:
        """Raise TokenizerError when there are more tokens than the token embedding has rows."""
        n_tokens = len(self.vocabulary.tokens)
        if n_tokens > n_rows:
            raise TokenizerError(f"{n_tokens} tokens, but the token embedding has only {n_rows} rows", hint=COPY_HINT)

    def text(self, i: int) -> str:
        """A token as tokenizer.json spells it."""
        return wordpiece.piece_of(self.vocabulary, i) if self.is_bert else self.vocabulary.tokens[i]


def build_tokenizer(metadata: Metadata, *, n_rows: int | None = None) -> TokenizerFiles:
    """The files of a tokenizer from the metadata of a GGUF: see `plan_tokenizer` and `TokenizerPlan.build`."""
    return plan_tokenizer(metadata).build(n_rows=n_rows)


def plan_tokenizer(metadata: Metadata) -> TokenizerPlan:
    """Read and check what a tokenizer is rebuilt from. Cheap: `tokenizers` is not imported.

    Raises TokenizerError when it cannot be rebuilt.
    """
    metadata, notes = resolve(metadata)
    kind = _read_kind(metadata)
    vocabulary = read_vocabulary(metadata)
    special = special_tokens(metadata)
    is_bert = read_text(metadata, PREFIX + "model") == "bert"
    for role, wanted in (("bos", special.add_bos), ("eos", special.add_eos), ("sep", special.sep_after)):
        if wanted and getattr(special, role) is None:
            raise TokenizerError(
                f"{role.upper()} is to be added to each text, but the file has no {role}_token_id", hint=COPY_HINT
            )
    notes += kind.check(metadata, vocabulary)
    added = added_tokens(metadata, vocabulary, special)
    named = {}
    for role in NAMED_ROLES:
        i = getattr(special, role)
        if i is None:
            continue
        if i in added:
            # as tokenizer.json spells it: transformers would add any other spelling as one more token
            named[f"{role}_token"] = wordpiece.piece_of(vocabulary, i) if is_bert else vocabulary.tokens[i]
        else:
            # transformers would match a named token in the text, and a normal token must not be
            notes.append(f"{role}_token is not written: token {i} is the normal token {brief(vocabulary.tokens[i])}")
    notes += _own_class_notes(metadata)
    if special.add_sep and read_text(metadata, "general.architecture") == "modern-bert":
        notes.append(TWO_SEP_NOTE)
    notes += template_notes(read_templates(metadata))
    notes += unread_notes(metadata)
    return TokenizerPlan(metadata, kind, vocabulary, special, added, named, written_templates(metadata), notes)


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
    if name == "gpt2" and read_text(metadata, PREFIX + "pre") in RAW_TEXT:
        return _Kind(rawtext.check, rawtext.parts)
    if name in KINDS:
        return KINDS[name]
    if name in _INEXPRESSIBLE:
        raise TokenizerError(f"{PREFIX}model {name!r} cannot be rebuilt: {_INEXPRESSIBLE[name]}", hint=COPY_HINT)
    found = f"{PREFIX}model {brief(name)} is not supported" if name else f"the file has no {PREFIX}model"
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


def _post_processor(plan: TokenizerPlan) -> Json | None:
    """BOS and EOS around each text; the form that transformers 5 makes of add_bos_token and add_eos_token.

    Encoders have a form of their own: SEP after each text (`sep_after`), one more SEP between two (`add_sep`), and no
    BOS before the second (not `bos_again`).
    """
    special, tokens = plan.special, plan.vocabulary.tokens
    ends = special.sep if special.sep_after else special.eos if special.add_eos else None
    before = [special.bos] if special.add_bos and special.bos is not None else []
    after = [] if ends is None else [ends]
    between = [special.sep] if special.add_sep and special.sep is not None else []
    if not before and not after and not between:
        return None

    def fixed(ids: list[int], type_id: int) -> list[Json]:
        return [{"SpecialToken": {"id": tokens[i], "type_id": type_id}} for i in ids]

    def text(sequence: str, type_id: int) -> list[Json]:
        return [{"Sequence": {"id": sequence, "type_id": type_id}}]

    single = [*fixed(before, 0), *text("A", 0), *fixed(after, 0)]
    second = [*fixed(between, 0), *(fixed(before, 1) if special.bos_again else [])]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, *second, *text("B", 1), *fixed(after, 1)],
        "special_tokens": {
            tokens[i]: {"id": tokens[i], "ids": [i], "tokens": [tokens[i]]}
            for i in dict.fromkeys(before + after + between)
        },
    }


def _config(plan: TokenizerPlan) -> Json:
    config: Json = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    special = plan.special
    own_form = special.sep_after or special.add_sep or special.bos_again != special.add_bos
    if not own_form and ("bos_token" in plan.named or not special.add_bos):
        # transformers 5 rebuilds the post-processor from these, so they must not promise a token that has no name,
        # and must be absent where that is not the form it has
        config["add_bos_token"] = special.add_bos
        config["add_eos_token"] = special.add_eos
    length = plan.metadata.get(f"{plan.metadata.get('general.architecture')}.context_length")
    if isinstance(length, int):
        config["model_max_length"] = length
    if plan.is_bert:
        config["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    return config | plan.named


_CHUNK = 10_000


def _encoded(tokenizer: Json) -> Iterator[bytes]:
    """tokenizer.json in pieces: as one string, half a million merges would be in memory three times."""

    model = tokenizer["model"]
    small = {key: value for key, value in model.items() if key not in ("vocab", "merges")}
    rest = {key: value for key, value in tokenizer.items() if key != "model"}
    yield f'{_dump(rest)[:-1]}, "model": {_dump(small)[:-1]}, "vocab": '.encode()
    if isinstance(model["vocab"], dict):
        yield from _chunked("{}", model["vocab"].items(), lambda items: _dump(dict(items))[1:-1])
    else:  # of Unigram
        yield from _chunked("[]", model["vocab"], unigram.encoded)
    if "merges" in model:
        yield b', "merges": '
        yield from _chunked("[]", model["merges"], lambda items: _dump(items)[1:-1])
    yield b"}}"


def _chunked(brackets: str, items: Iterable[T], encode: Callable[[list[T]], str]) -> Iterator[bytes]:
    """A JSON array or object, so many items at a time."""
    iterator = iter(items)
    opening = brackets[0]
    while chunk := list(islice(iterator, _CHUNK)):
        yield (opening + encode(chunk)).encode()
        opening = ", "
    yield (brackets if opening == brackets[0] else brackets[1]).encode()


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _check_parts(tokenizer: Json) -> None:
    """Raise TokenizerError when `tokenizers` refuses the regexes, normalizers or templates.

    Vocabulary and merges are left out: they are checked already, and take most of a second to load.
    """
    from tokenizers import Tokenizer

    model = tokenizer["model"]
    if model["type"] == "Unigram":
        model = model | {"unk_id": 0, "vocab": [["?", 0.0]]}
    else:
        unk = model["unk_token"]
        model = model | {"vocab": {} if unk is None else {unk: 0}} | ({"merges": []} if "merges" in model else {})
    try:
        Tokenizer.from_str(json.dumps(tokenizer | {"model": model, "added_tokens": []}))
    except BaseException as error:  # the library raises nothing more precise, and its panics are no Exception
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise TokenizerError(f"tokenizers refuses the rebuilt tokenizer: {error}", hint=COPY_HINT) from error


def _pretty(value: Json | dict[str, str]) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=2) + "\n").encode()
