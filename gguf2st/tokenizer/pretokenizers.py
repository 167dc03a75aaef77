"""How byte-level BPE splits a text into words: the regexes behind each `tokenizer.ggml.pre` name.

The regexes are llama.cpp's own (b11434, src/llama-vocab.cpp, `llm_tokenizer_bpe`), applied one after the other, each to
the pieces the one before left; what no regex matches is a piece of its own. `\\s+(?!\\S)` at the end of a pattern of
llama.cpp stands for `\\s+(?!\\S)|\\s+` in its GPT-2 splitter, and is written out here.

A name is listed only when `tests/test_tokenizer.py` finds its words equal to llama.cpp's on every test text.
"""

from dataclasses import dataclass

from gguf2st.errors import TokenizerError
from gguf2st.tokenizer.vocab import COPY_HINT, PREFIX, Metadata, read_text

_CONTRACTION = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_LINES_AND_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"|[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*"

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = _CONTRACTION + _WORD + r"|\p{N}{1,3}" + _SYMBOLS + _LINES_AND_SPACES
QWEN2 = _CONTRACTION + _WORD + r"|\p{N}" + _SYMBOLS + _LINES_AND_SPACES
DIGIT = r"\p{N}"


@dataclass(frozen=True)
class PreTokenizer:
    """One row of the table.

    Attributes:
        patterns: regexes in the order they are applied, in the syntax of Oniguruma.
        names: the `tokenizer.ggml.pre` values that mean this row.
        ignore_merges: a word that is a token is that token, whatever the merges would make of it.
        add_bos: whether BOS is added when the file does not say.
    """

    patterns: tuple[str, ...]
    names: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


TABLE = (
    PreTokenizer((GPT2,), ("gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de", "a.x-4.0")),
    PreTokenizer((GPT2,), ("mellum", "modern-bert", "exaone4", "jina-v1-en", "jina-v2-code", "roberta-bpe")),
    PreTokenizer((GPT2,), ("mpt", "olmo", "jais", "trillion", "granite-docling")),
    PreTokenizer((DIGIT, GPT2), ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")),
    PreTokenizer((DIGIT, GPT2), ("mellum2",)),
    PreTokenizer(
        (LLAMA3,),
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"),
        ignore_merges=True,
        add_bos=True,
    ),
    PreTokenizer((LLAMA3,), ("dbrx", "smaug-bpe", "chatglm-bpe")),
    PreTokenizer((LLAMA3,), ("glm4", "glm5"), ignore_merges=True),
    PreTokenizer((QWEN2,), ("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan")),
    PreTokenizer((QWEN2,), ("solar-open", "grok-2")),
)

BY_NAME = {name: row for row in TABLE for name in row.names}


def read_pretokenizer(metadata: Metadata) -> PreTokenizer:
    """The row that `tokenizer.ggml.pre` names.

    Raises TokenizerError when it is absent, `default` or not in the table: a wrong regex would give wrong token ids
    without any sign of it.
    """
    name = read_text(metadata, PREFIX + "pre")
    if name in BY_NAME:
        return BY_NAME[name]
    if name is None:
        message = f"the file has no {PREFIX}pre: nothing says how words are split"
    elif name == "default":
        message = f"{PREFIX}pre is 'default', which only says that the converter did not know how words are split"
    else:
        message = f"{PREFIX}pre {name!r} is not supported"
    raise TokenizerError(message, hint=COPY_HINT, problems=[f"available: {', '.join(sorted(BY_NAME))}"])
