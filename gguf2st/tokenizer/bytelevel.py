"""Kind `gpt2`: byte-level BPE. The file holds tokens, merges and the name of a pre-tokenizer."""

from gguf2st.errors import TokenizerError
from gguf2st.header.keys import brief
from gguf2st.tokenizer.evidence import read_pretokenizer
from gguf2st.tokenizer.parts import Json, Pair, Parts, bpe_model, check_merges
from gguf2st.tokenizer.pretokenizers import PreTokenizer
from gguf2st.tokenizer.special import SpecialTokens
from gguf2st.tokenizer.vocab import COPY_HINT, NORMAL, PREFIX, SHOWN, Metadata, Vocabulary

_BYTE_LEVEL: Json = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}

_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = tuple(byte for byte in range(256) if byte not in _PRINTABLE)
_BYTE_CHARACTERS = {chr(byte): byte for byte in _PRINTABLE} | {chr(0x100 + i): b for i, b in enumerate(_OTHERS)}
"""The characters that stand for bytes: the printable ones of Latin-1, and U+0100 on for the rest (GPT-2)."""
_TEXT_BYTES = frozenset((*b"\t\n\r", *range(0x20, 0x7F), *range(0x80, 0xC0), *range(0xC2, 0xF1), 0xF3, 0xF4))
"""Bytes of texts that people write. Not among them, and without a token in real vocabularies: control characters, what
no UTF-8 has (0xC0, 0xC1, 0xF5 and more), and the first bytes of planes without a character (0xF1, 0xF2)."""


def check(metadata: Metadata, vocabulary: Vocabulary) -> list[str]:
    """Raise TokenizerError for merges or a pre-tokenizer that cannot be used. Returns notes."""
    row = read_pretokenizer(metadata)
    check_merges(read_merges(metadata), vocabulary)
    notes = [row.note] if row.note else []
    letters = [
        token
        for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True)
        if kind != NORMAL and not token.isascii() and _BYTE_CHARACTERS.keys() >= set(token)
    ]
    if letters:
        shown = ", ".join(map(brief, letters[:SHOWN])) + (" ..." if len(letters) > SHOWN else "")
        notes.append(
            f"tokenizers decodes {len(letters)} added tokens ({shown}) as single bytes "
            "instead of these letters; encoding is not affected"
        )
    return [*notes, *_lost_bytes(vocabulary)]


def _lost_bytes(vocabulary: Vocabulary) -> list[str]:
    """A note on the bytes of ordinary texts that have no token, which such a BPE leaves out."""
    lost = sorted(b for char, b in _BYTE_CHARACTERS.items() if b in _TEXT_BYTES and char not in vocabulary.ids)
    if not lost:
        return []
    shown = ", ".join(f"0x{b:02X}" + (f" ({chr(b)})" if 0x20 < b < 0x7F else "") for b in lost[:SHOWN])
    shown += " ..." if lost[SHOWN:] else ""
    return [
        f"the vocabulary has no token for {len(lost)} bytes of ordinary texts ({shown}): "
        "they are left out of a text, as by llama.cpp; tokenizers also joins what stood on both sides of one, which "
        "llama.cpp does not"
    ]


def parts(metadata: Metadata, vocabulary: Vocabulary, _special: SpecialTokens) -> Parts:
    """The parts of tokenizer.json."""
    row = read_pretokenizer(metadata)
    return Parts(
        normalizer=None,
        pre_tokenizer=pre_tokenizer(row),
        decoder=_BYTE_LEVEL,
        model=bpe_model(vocabulary.ids, read_merges(metadata), ignore_merges=row.ignore_merges),
    )


def pre_tokenizer(row: PreTokenizer) -> Json:
    """One isolating split per regex, then each byte as a character."""
    splits: list[Json] = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in row.patterns
    ]
    return {"type": "Sequence", "pretokenizers": [*splits, _BYTE_LEVEL]}


def read_merges(metadata: Metadata) -> list[Pair]:
    """`tokenizer.ggml.merges` as pairs, in rank order, each once; each line is "left right".

    Raises TokenizerError when there are none or a line is not two tokens.
    """
    lines = metadata.get(PREFIX + "merges")
    if lines is None:
        raise TokenizerError(f"the file has no {PREFIX}merges", hint=COPY_HINT)
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise TokenizerError(f"{PREFIX}merges is not a list of strings", hint=COPY_HINT)
    merges = [tuple(line.split(" ")) for line in lines]
    if any(len(merge) != 2 for merge in merges):
        i = next(i for i, merge in enumerate(merges) if len(merge) != 2)
        raise TokenizerError(
            f"{PREFIX}merges[{i}] is {brief(lines[i])}, not two tokens with a space between", hint=COPY_HINT
        )
    # Of a merge that is there twice, llama.cpp keeps the first rank (`emplace`), `tokenizers` would keep the last.
    return list(dict.fromkeys(merges))
