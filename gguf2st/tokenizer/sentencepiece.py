"""Kind `llama`: SentencePiece BPE. The file holds tokens and scores; there are no merges, and no splitting into words.

llama.cpp (b11434, `llm_tokenizer_spm`) writes U+2581 for each space, starts from characters, and joins the two
neighbours whose joint text is the token with the best score, the leftmost of equals, until no two neighbours make a
token. Characters without a token become byte tokens.

`tokenizers` joins by the rank of the pair instead. The ranks that give the same result: pairs ordered by the score of
what they make. Equal scores occur in runs of spaces (llama 2 gives all of them -1e9), where taking the leftmost pair
means growing the leftmost run: the pair with the longer left side comes first.
"""

from itertools import groupby
from operator import itemgetter

from gguf2st.errors import TokenizerError
from gguf2st.tokenizer.parts import Json, Pair, Parts, bpe_model
from gguf2st.tokenizer.special import SpecialTokens
from gguf2st.tokenizer.vocab import (
    BYTE,
    COPY_HINT,
    NORMAL,
    PREFIX,
    SHOWN,
    SPACE,
    Metadata,
    Vocabulary,
    read_flag,
    read_numbers,
)

TO_VISIBLE: Json = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
DECODERS: tuple[Json, ...] = (
    {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
)
MAX_MERGE_CHARACTERS = 50_000_000
"""Every split of every token may be a merge. Gemma 3's 262,144 tokens could have 9.4 million characters of them."""
BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))


MAX_TOKEN_CHARS = 1024
"""Longer tokens are refused: finding their merges takes quadratic time. Gemma 3 and Llama 2 go up to 31 characters."""


def check(metadata: Metadata, vocabulary: Vocabulary) -> list[str]:
    """Raise TokenizerError for scores or tokens that cannot be turned into a BPE model. Returns notes."""
    scores = read_numbers(metadata, "scores", len(vocabulary.tokens))
    if any(score != score for score in scores):
        raise TokenizerError(f"{PREFIX}scores has values that are not numbers (NaN)", hint=COPY_HINT)
    longest = max(vocabulary.tokens, key=len)
    if len(longest) > MAX_TOKEN_CHARS:
        raise TokenizerError(
            f"token {vocabulary.ids[longest]} has {len(longest)} characters, more than {MAX_TOKEN_CHARS}",
            hint=COPY_HINT,
        )
    check_bytes(vocabulary)
    _check_characters(vocabulary)
    most = sum((len(token) - 1) * len(token) for token in vocabulary.tokens)
    if most > MAX_MERGE_CHARACTERS:
        raise TokenizerError(
            f"the vocabulary's long tokens could have merges of {most:,} characters in all; no real one comes near "
            f"{MAX_MERGE_CHARACTERS:,}",
            hint=COPY_HINT,
        )
    return []


def check_bytes(vocabulary: Vocabulary) -> None:
    """Raise TokenizerError unless each byte has a token."""
    missing = [token for token in BYTE_TOKENS if token not in vocabulary.ids]
    if missing:
        raise TokenizerError(
            f"the vocabulary lacks {len(missing)} of the 256 byte tokens, {missing[0]} first: characters without a "
            "token could not be written",
            hint=COPY_HINT,
        )


def _check_characters(vocabulary: Vocabulary) -> None:
    """Raise TokenizerError for normal tokens with a character that is no token of its own.

    llama.cpp joins text, so it can reach them; a BPE model joins tokens, and cannot.
    """
    alone = {char for char in set("".join(vocabulary.tokens)) if char not in vocabulary.ids}
    if not alone:
        return
    unreachable = [
        f"token {i} is {token!r}"
        for i, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True))
        if kind == NORMAL and not alone.isdisjoint(token)
    ]
    if unreachable:
        raise TokenizerError(
            f"{len(unreachable)} tokens have a character that is no token of its own, and a BPE model cannot make them",
            hint=COPY_HINT,
            problems=unreachable[:SHOWN],
        )


def parts(metadata: Metadata, vocabulary: Vocabulary, special: SpecialTokens) -> Parts:
    """The parts of tokenizer.json. The space in front goes before each piece of text between special tokens."""
    prefix = read_flag(metadata, "add_space_prefix", True)
    prepend: Json = {"type": "Prepend", "prepend": SPACE}
    strip: Json = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    return Parts(
        normalizer={"type": "Sequence", "normalizers": [prepend, TO_VISIBLE]} if prefix else TO_VISIBLE,
        pre_tokenizer=None,
        decoder={"type": "Sequence", "decoders": [*DECODERS, strip] if prefix else list(DECODERS)},
        model=bpe_model(
            vocabulary.ids,
            merges_by_score(metadata, vocabulary),
            byte_fallback=True,
            unk_token=None if special.unk is None else vocabulary.tokens[special.unk],
        ),
    )


def merges_by_score(metadata: Metadata, vocabulary: Vocabulary) -> list[Pair]:
    """Every way to make a token of two tokens: best score first, longest left side first among equals."""
    scores = read_numbers(metadata, "scores", len(vocabulary.tokens))
    bytes_out = {token for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True) if kind == BYTE}
    sides = vocabulary.ids.keys() - bytes_out  # a byte token stands for a byte, its text takes no part in merges
    by_score = sorted(zip(scores, vocabulary.tokens, strict=True), key=itemgetter(0), reverse=True)
    merges: list[Pair] = []
    for _, equals in groupby(by_score, key=itemgetter(0)):
        found = [
            (left, right)
            for _, token in equals
            for cut in range(len(token) - 1, 0, -1)
            if (left := token[:cut]) in sides and (right := token[cut:]) in sides
        ]
        found.sort(key=_left_length, reverse=True)
        merges += found
    return merges


def _left_length(merge: Pair) -> int:
    return len(merge[0])
