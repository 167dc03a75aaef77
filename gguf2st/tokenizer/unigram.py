"""Kind `t5`: SentencePiece Unigram. The file holds tokens, their log probabilities, and how a text is normalized.

llama.cpp (b11434, `llm_tokenizer_ugm_session`) normalizes with the map of characters that SentencePiece compiled,
writes U+2581 for spaces, and takes the segmentation with the best sum of scores. The Unigram model of `tokenizers` does
the same.
"""

import base64
import json
import math
from collections.abc import Sequence

from gguf2st.errors import TokenizerError
from gguf2st.tokenizer.charsmap import read_charsmap
from gguf2st.tokenizer.parts import Json, Parts
from gguf2st.tokenizer.special import SpecialTokens
from gguf2st.tokenizer.vocab import (
    BYTE,
    COPY_HINT,
    PREFIX,
    SPACE,
    UNUSED,
    Metadata,
    Vocabulary,
    read_flag,
    read_numbers,
)

GRAPHEMES_NOTE = (
    "tokenizers applies the map of characters to characters with all their marks, SentencePiece to the longest match: "
    "ids can differ in rare sequences of combining marks"
)


def check(metadata: Metadata, vocabulary: Vocabulary) -> list[str]:
    """Raise TokenizerError for scores or a map of characters that cannot be used. Returns notes."""
    scores = read_numbers(metadata, "scores", len(vocabulary.tokens))
    if not all(map(math.isfinite, scores)):
        raise TokenizerError(f"{PREFIX}scores has values that are not finite numbers", hint=COPY_HINT)
    notes = [GRAPHEMES_NOTE] if read_charsmap(metadata) else []
    if BYTE in vocabulary.types:
        notes.append("byte tokens are not used for characters without a token, as in llama.cpp")
    return notes


def parts(metadata: Metadata, vocabulary: Vocabulary, special: SpecialTokens) -> Parts:
    """The parts of tokenizer.json. Each piece of text between special tokens is normalized by itself."""
    if special.unk is None:
        raise TokenizerError("the file names no unknown token, which a Unigram vocabulary needs", hint=COPY_HINT)
    scores = read_numbers(metadata, "scores", len(vocabulary.tokens))
    prefix = read_flag(metadata, "add_space_prefix", False)
    decoders: list[Json] = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "Fuse"}]
    if prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return Parts(
        normalizer={"type": "Sequence", "normalizers": _normalizers(metadata, prefix=prefix)},
        pre_tokenizer=None,
        decoder={"type": "Sequence", "decoders": decoders},
        model={
            "type": "Unigram",
            "unk_id": special.unk,
            "vocab": list(zip(vocabulary.tokens, scores, strict=True))[: _n_used(vocabulary)],
            "byte_fallback": False,
        },
    )


def encoded(vocabulary: Sequence[tuple[str, float]]) -> str:
    """Tokens and scores as JSON arrays, with commas between."""
    return ", ".join(f"[{json.dumps(token, ensure_ascii=False)}, {exact(score)}]" for token, score in vocabulary)


_STEPS = tuple(sorted(range(-8, 9), key=abs))


def exact(score: float) -> str:
    """A decimal that `tokenizers` reads as just this number.

    Its JSON parser takes the digits as an integer and divides by a power of ten, both rounded: of the shortest decimals
    of the 250k scores of XLM-R, a quarter are read one bit off. Segmentations whose sums are equal, as in runs of one
    character, would then be told apart by that bit. Of the decimals nearby, one that survives is taken (there is none
    for one in a thousand); a correct parser reads the same number from it.
    """
    text, size = repr(score), abs(score)
    decimals = len(text.partition(".")[2])
    if "e" in text or _read(int(text.replace(".", "").lstrip("-")), decimals) == size:
        return text
    for decimals in range(18, 13, -1):
        middle = round(size * 10**decimals)
        step = max(1, middle >> 53)
        for n in _STEPS:
            digits = middle + n * step
            if _read(digits, decimals) == size == float(f"{digits}e-{decimals}"):
                whole, fraction = divmod(digits, 10**decimals)
                return f"{'-' if score < 0 else ''}{whole}.{fraction:0{decimals}d}"
    return text


def _read(digits: int, decimals: int) -> float:
    """What serde_json (1.0, without its feature float_roundtrip) makes of a number."""
    return float(digits) / 10.0**decimals


def _n_used(vocabulary: Vocabulary) -> int:
    """Tokens without the unused ones at the end: they fill up the embedding, and `tokenizers` would take their score of
    -10000 for that of the rarest token, from which it gets the score of unknown characters."""
    n_tokens = len(vocabulary.tokens)
    while n_tokens and vocabulary.types[n_tokens - 1] == UNUSED:
        n_tokens -= 1
    return n_tokens


def _normalizers(metadata: Metadata, *, prefix: bool) -> list[Json]:
    def replace(pattern: str, content: str) -> Json:
        return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}

    charsmap = read_charsmap(metadata)
    normalizers: list[Json] = []
    if charsmap:
        normalizers.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()})
    if read_flag(metadata, "remove_extra_whitespaces", False):
        normalizers += [replace(r"\A +| +\z", ""), {"type": "Prepend", "prepend": SPACE}]
    elif prefix:
        normalizers.append(replace(r"\A(?= *[^ ])", SPACE))  # a text of nothing but spaces gets none
    runs = " +" if read_flag(metadata, "remove_extra_whitespaces", False) else " "
    return [*normalizers, replace(runs, SPACE)]
