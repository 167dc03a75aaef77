"""The vocabulary as the GGUF stores it, read and checked: `tokenizer.ggml.tokens` and the arrays beside it.

llama.cpp (b11434, src/llama-vocab.cpp, `llama_vocab::impl::load`) is what the checks follow: it renames empty tokens to
`[EMPTY_<id>]`, and it refuses a vocabulary with the same token twice.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gguf2st.errors import TokenizerError
from gguf2st.header.keys import brief

Metadata: TypeAlias = Mapping[str, object]
"""GGUF key -> value: bool, int, float, str, list of str, or `array.array` for arrays of numbers."""

PREFIX = "tokenizer.ggml."

# enum llama_token_type of llama.h
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # U+2581, SentencePiece's visible space
COPY_HINT = "take the original tokenizer with --tokenizer-from DIR_OR_REPO"
SHOWN = 5
"""How many offenders an error lists."""


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by id and ids by token.

    Attributes:
        tokens: text by id, as the file spells it: byte-level characters, or U+2581 for a space.
        ids: id by text.
        types: token type by id, 1 to 6 as in llama.h.
    """

    tokens: list[str]
    ids: dict[str, int]
    types: list[int]


def read_vocabulary(metadata: Metadata) -> Vocabulary:
    """The vocabulary of a file, checked.

    Raises TokenizerError for missing or mistyped arrays, lengths that differ, a token that appears twice, and tokens
    that are not UTF-8: tokenizer.json is JSON text and cannot hold them.
    """
    tokens = list(read_tokens(metadata))
    types = [int(kind) for kind in read_numbers(metadata, "token_type", len(tokens))]
    for i, token in enumerate(tokens):
        if not token:
            tokens[i] = f"[EMPTY_{i}]"
    ids = {token: i for i, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        # ids keeps the last place of each token, so the earlier ones show
        twice = [
            f"{brief(token)} is token {i} and token {ids[token]}" for i, token in enumerate(tokens) if ids[token] != i
        ]
        raise TokenizerError(
            f"{PREFIX}tokens has {len(twice)} tokens more than once; llama.cpp refuses such a vocabulary too",
            hint=COPY_HINT,
            problems=_shown(twice),
        )
    if not _is_utf8("".join(tokens)):
        broken = [f"token {i} is {brief(token)}" for i, token in enumerate(tokens) if not _is_utf8(token)]
        raise TokenizerError(
            f"{PREFIX}tokens has {len(broken)} tokens that are not UTF-8, which tokenizer.json cannot hold",
            hint=COPY_HINT,
            problems=_shown(broken),
        )
    unknown = sorted(set(types) - {NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE})
    if unknown:
        raise TokenizerError(f"{PREFIX}token_type has the types {unknown}; llama.cpp knows 1 to 6", hint=COPY_HINT)
    return Vocabulary(tokens, ids, types)


def read_tokens(metadata: Metadata) -> list[str]:
    """`tokenizer.ggml.tokens` as it stands in the file. Raises TokenizerError when it is not a list of strings."""
    tokens = metadata.get(PREFIX + "tokens")
    if tokens is None:
        raise TokenizerError(f"the file has no {PREFIX}tokens", hint=COPY_HINT)
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
        raise TokenizerError(f"{PREFIX}tokens is not a list of strings", hint=COPY_HINT)
    return tokens


def read_numbers(metadata: Metadata, key: str, n_tokens: int) -> Sequence[float]:
    """A per-token array of numbers, as long as the vocabulary. Raises TokenizerError otherwise."""
    values = metadata.get(PREFIX + key)
    if values is None:
        raise TokenizerError(f"the file has no {PREFIX}{key}", hint=COPY_HINT)
    # Arrays of numbers are read as `array`; lists hold texts, bools or arrays, except in hand-made metadata.
    numbers = isinstance(values, array) or (
        isinstance(values, list | tuple) and all(type(v) in (int, float) for v in values)
    )
    if not numbers or not isinstance(values, Sequence):
        raise TokenizerError(f"{PREFIX}{key} is not an array of numbers", hint=COPY_HINT)
    if key == "token_type" and not all(v == v // 1 and 0 <= v < 256 for v in set(values)):
        raise TokenizerError(f"{PREFIX}{key} has values that are no token types", hint=COPY_HINT)
    if len(values) != n_tokens:
        raise TokenizerError(f"{PREFIX}{key} has {len(values)} entries for {n_tokens} tokens", hint=COPY_HINT)
    return values


def read_text(metadata: Metadata, key: str) -> str | None:
    """A string value, None when absent. Raises TokenizerError for another type or text that is not UTF-8."""
    value = metadata.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not _is_utf8(value):
        raise TokenizerError(f"{key} is not a UTF-8 string: {brief(value)}", hint=COPY_HINT)
    return value


def read_flag(metadata: Metadata, key: str, default: bool) -> bool:
    """A bool of `tokenizer.ggml.*`, `default` when absent. Raises TokenizerError for another type."""
    value = metadata.get(PREFIX + key, default)
    if not isinstance(value, bool):
        raise TokenizerError(f"{PREFIX}{key} is {brief(value)}, not a bool", hint=COPY_HINT)
    return value


def _shown(problems: list[str]) -> list[str]:
    more = len(problems) - SHOWN
    return problems[:SHOWN] + ([f"... and {more} more"] if more > 0 else [])


def _is_utf8(text: str) -> bool:
    """Whether a string read with surrogateescape came from valid UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
