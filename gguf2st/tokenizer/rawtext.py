"""Kinds `gemma4` and `whitespace`, and the `tokenizer.ggml.pre` names of kind `gpt2` that mean them: BPE on the text.

No bytes are spelled as characters: tokens are text, with U+2581 for a space, and characters without a token become byte
tokens. llama.cpp (b11434, `llm_tokenizer_bpe` with `byte_encode` false) splits lines from newlines, and then:

    gemma4      nothing more; granite-embed-multi-311m and sarvam-moe are the same
    mmbert      each U+2581 starts a word, and a line without one gets one in front
    whitespace  white space only separates words; there are no byte tokens, and what is no token is left out
"""

from itertools import pairwise

from gguf2st.errors import TokenizerError
from gguf2st.tokenizer.bytelevel import read_merges
from gguf2st.tokenizer.parts import Json, Pair, Parts, bpe_model, check_merges
from gguf2st.tokenizer.sentencepiece import BYTE_TOKENS, DECODERS, TO_VISIBLE, check_bytes
from gguf2st.tokenizer.special import SpecialTokens
from gguf2st.tokenizer.vocab import COPY_HINT, PREFIX, SHOWN, SPACE, Metadata, Vocabulary, read_flag, read_text

LINES = r"[^\n]+|[\n]+"
_NEWLINES_ARE_TOKENS = ("gemma4", "granite-embed-multi-311m", "mmbert")
"""Names for which a run of newlines that is a token becomes that token, whatever the merges would make of it."""

MAX_RUN_STEPS = 1_000_000
"""Merging a run of newlines takes the square of its length; Gemma's 31 runs take 10,000 steps together."""


def check(metadata: Metadata, vocabulary: Vocabulary) -> list[str]:
    """Raise TokenizerError for merges that cannot be used or missing byte tokens. Returns notes."""
    pre = _pre(metadata)
    merges = read_merges(metadata)
    if pre != "whitespace":
        check_bytes(vocabulary)
    check_merges(merges, vocabulary)
    if pre in _NEWLINES_ARE_TOKENS:
        ranks = {merge: i for i, merge in enumerate(merges) if not "".join(merge).strip("\n")}
        runs = [token for token in vocabulary.tokens if token and not token.strip("\n")]
        if sum(len(run) ** 2 for run in runs) > MAX_RUN_STEPS:
            raise TokenizerError(
                f"{len(runs)} runs of newlines are tokens, up to {max(map(len, runs))} long: too many", hint=COPY_HINT
            )
        unmade = [token for token in runs if _merged(token, ranks) != [token]]
        if unmade:
            raise TokenizerError(
                f"{len(unmade)} runs of newlines are tokens that the merges do not make: BPE cannot reach them",
                hint=COPY_HINT,
                problems=[repr(token) for token in unmade[:SHOWN]],
            )
    return []


def parts(metadata: Metadata, vocabulary: Vocabulary, special: SpecialTokens) -> Parts:
    """The parts of tokenizer.json."""
    pre = _pre(metadata)
    merges = read_merges(metadata)
    if pre == "whitespace":
        return _whitespace_parts(metadata, vocabulary)
    normalizers, pieces = [TO_VISIBLE], [split(LINES)]
    if pre == "mmbert":
        normalizers.append({"type": "Replace", "pattern": {"Regex": rf"(?<![^\n])(?=[^\n{SPACE}])"}, "content": SPACE})
        pieces.append(split(rf"{SPACE}[^{SPACE}]*"))
    return Parts(
        normalizer=_sequence("Normalizer", normalizers),
        pre_tokenizer=_sequence("PreTokenizer", pieces),
        decoder={"type": "Sequence", "decoders": list(DECODERS)},
        model=bpe_model(
            vocabulary.ids,
            merges,
            byte_fallback=True,
            unk_token=None if special.unk is None else vocabulary.tokens[special.unk],
        ),
    )


def _merged(text: str, ranks: dict[Pair, int]) -> list[str]:
    """What BPE makes of a text: the pair of the best rank is joined, the leftmost of equals, until none is left."""
    pieces = list(text)
    while True:
        found = [(ranks[pair], i) for i, pair in enumerate(pairwise(pieces)) if pair in ranks]
        if not found:
            return pieces
        _, i = min(found)
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]


def split(pattern: str) -> Json:
    """What the regex matches is a piece, and so is what lies between."""
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _whitespace_parts(metadata: Metadata, vocabulary: Vocabulary) -> Parts:
    return Parts(
        normalizer={"type": "Lowercase"} if read_flag(metadata, "normalizer.lowercase", False) else None,
        pre_tokenizer={"type": "WhitespaceSplit"},
        decoder={"type": "Fuse"},
        model=bpe_model(vocabulary.ids, read_merges(metadata), byte_fallback=vocabulary.ids.keys() >= set(BYTE_TOKENS)),
    )


def _pre(metadata: Metadata) -> str:
    """The name that says how; the kind's own when the file names none."""
    kind = read_text(metadata, PREFIX + "model") or ""
    pre = read_text(metadata, PREFIX + "pre") or kind
    if kind == "gemma4":
        return kind  # llama.cpp asks no further either
    if kind == "whitespace" and pre != kind:
        raise TokenizerError(f"{PREFIX}pre {pre!r} does not fit {PREFIX}model {kind!r}", hint=COPY_HINT)
    return pre


def _sequence(kind: str, steps: list[Json]) -> Json:
    if len(steps) == 1:
        return steps[0]
    return {"type": "Sequence", {"Normalizer": "normalizers", "PreTokenizer": "pretokenizers"}[kind]: steps}
