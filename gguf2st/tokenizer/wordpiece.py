"""Kind `bert`: WordPiece. The file holds tokens, and how a text is normalized; there are no merges and no scores.

llama.cpp's converter writes a token that starts a word with U+2581 in front, and one that goes on with a word without
its `##`: `play`, `##ing` become `▁play`, `ing`. Control tokens stay as they are, and old files leave everything in
square brackets as it is. This is undone here.

llama.cpp (b11434, `llm_tokenizer_wpm_session`) takes from each word the longest token that fits, again and again, and
gives [UNK] for the word when none does. That is the WordPiece model of `tokenizers`, but without its limit of 100
characters a word.
"""

from gguf2st.errors import TokenizerError
from gguf2st.tokenizer.parts import Json, Parts
from gguf2st.tokenizer.special import SpecialTokens
from gguf2st.tokenizer.vocab import CONTROL, COPY_HINT, SHOWN, SPACE, Metadata, Vocabulary, read_flag

CONTINUES = "##"
MAX_WORD_CHARS = 1_000_000
"""llama.cpp has no limit. The model's own is 100 characters; a longer word is [UNK] there."""

NORMALIZER_NOTE = (
    "text is normalized as the model does, not as llama.cpp: it drops all but the first letter of a decomposed Hangul "
    "syllable, drops spacing marks (U+0903 and others) with the accents, and splits words at control characters"
)


def check(metadata: Metadata, vocabulary: Vocabulary) -> list[str]:
    """Raise TokenizerError for a vocabulary that is no WordPiece one. Returns notes."""
    _normalization(metadata)
    pieces(vocabulary)
    return [NORMALIZER_NOTE]


def parts(metadata: Metadata, vocabulary: Vocabulary, special: SpecialTokens) -> Parts:
    """The parts of tokenizer.json."""
    lowercase, strip_accents = _normalization(metadata)
    if special.unk is None:
        raise TokenizerError("the file names no unknown token, which a WordPiece vocabulary needs", hint=COPY_HINT)
    normalizer: Json = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": strip_accents,
        "lowercase": lowercase,
    }
    return Parts(
        normalizer=normalizer,
        pre_tokenizer={"type": "BertPreTokenizer"},
        decoder={"type": "WordPiece", "prefix": CONTINUES, "cleanup": True},
        model={
            "type": "WordPiece",
            "unk_token": piece_of(vocabulary, special.unk),
            "continuing_subword_prefix": CONTINUES,
            "max_input_chars_per_word": MAX_WORD_CHARS,
            "vocab": pieces(vocabulary),
        },
    )


def pieces(vocabulary: Vocabulary) -> dict[str, int]:
    """The vocabulary as WordPiece spells it: `▁play` -> `play`, `ing` -> `##ing`. Raises TokenizerError for a clash."""
    ids: dict[str, int] = {}
    twice = []
    for i, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True)):
        piece = spelled(token, control=kind == CONTROL)
        if piece in ids:
            twice.append(f"token {ids[piece]} and token {i} are both {piece!r}")
        ids[piece] = i
    if twice:
        raise TokenizerError(
            f"{len(twice)} tokens are the same word piece as another", hint=COPY_HINT, problems=twice[:SHOWN]
        )
    return ids


def piece_of(vocabulary: Vocabulary, i: int) -> str:
    """Token `i` as WordPiece spells it."""
    return spelled(vocabulary.tokens[i], control=vocabulary.types[i] == CONTROL)


def spelled(token: str, *, control: bool) -> str:
    """One token as WordPiece spells it."""
    if control or (token.startswith("[") and token.endswith("]")):
        return token
    if token.startswith(SPACE) and token != SPACE:
        return token.removeprefix(SPACE)
    return CONTINUES + token


def _normalization(metadata: Metadata) -> tuple[bool, bool]:
    """Whether texts are put in lower case, and whether accents are stripped; the latter follows the former."""
    lowercase = read_flag(metadata, "normalizer.lowercase", True)
    return lowercase, read_flag(metadata, "normalizer.strip_accents", lowercase)
