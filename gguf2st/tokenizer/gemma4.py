"""Kind `gemma4`: SentencePiece BPE whose merges the file holds. U+2581 is a space; lines are split from newlines.

llama.cpp (b11434, `llm_tokenizer_bpe` with LLAMA_VOCAB_PRE_TYPE_GEMMA4) takes a run of newlines that is a token as that
token; the merges of gemma 4 give the same.
"""

from gguf2st.tokenizer.bytelevel import read_merges
from gguf2st.tokenizer.parts import Parts, bpe_model, check_merges
from gguf2st.tokenizer.sentencepiece import DECODERS, TO_VISIBLE, check_bytes
from gguf2st.tokenizer.special import SpecialTokens
from gguf2st.tokenizer.vocab import Metadata, Vocabulary

LINES = r"[^\n]+|[\n]+"


def check(metadata: Metadata, vocabulary: Vocabulary) -> list[str]:
    """Raise TokenizerError for merges that cannot be used or missing byte tokens. Returns notes."""
    check_bytes(vocabulary)
    check_merges(read_merges(metadata), vocabulary)
    return []


def parts(metadata: Metadata, vocabulary: Vocabulary, special: SpecialTokens) -> Parts:
    """The parts of tokenizer.json."""
    return Parts(
        normalizer=TO_VISIBLE,
        pre_tokenizer={"type": "Split", "pattern": {"Regex": LINES}, "behavior": "Isolated", "invert": False},
        decoder={"type": "Sequence", "decoders": list(DECODERS)},
        model=bpe_model(
            vocabulary.ids,
            read_merges(metadata),
            byte_fallback=True,
            unk_token=None if special.unk is None else vocabulary.tokens[special.unk],
        ),
    )
