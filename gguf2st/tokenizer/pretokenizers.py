"""How byte-level BPE splits a text into words: the regexes behind each `tokenizer.ggml.pre` name.

The regexes are llama.cpp's (b11434, src/llama-vocab.cpp, `llm_tokenizer_bpe`), applied one after the other, each to the
pieces the one before left; what no regex matches is a piece of its own. `\\s+(?!\\S)` at the end of llama.cpp's GPT-2
pattern stands for `\\s+(?!\\S)|\\s+` in its splitter, and is written out here.

Where llama.cpp had to approximate the regex of the model, because its engine knows no upper and lower case letters and
no combining marks beyond ASCII, the model's own is used, as llama.cpp quotes it: rows with a note.

A name is listed only when `tests/test_tokenizer.py` finds its token ids equal to llama.cpp's. Left out on purpose:
* `default` names no rule at all;
* afmoe, cohere2moe, tiny_aya (digits grouped from the right) and kimi-k2 are code in llama.cpp;
* youtu splits words where their case changes, which llama.cpp's engine cannot;
* gemma4, mmbert, sarvam-moe, whitespace and granite-embed-multi-311m are not byte-level.
"""

from dataclasses import dataclass

from gguf2st.errors import TokenizerError
from gguf2st.tokenizer.vocab import COPY_HINT, PREFIX, Metadata, read_text

_SUFFIX = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_WORD = r"|[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"|\s+(?!\S)|\s+"
_LINES_SPACES = r"|\s*[\r\n]+" + _SPACES
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ASCII_SYMBOL = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_CJK = r"[一-龥぀-ゟ゠-ヿ]+"


def _cased_words(suffix: str, digits: str) -> str:
    """Words that break where lower case turns to upper case, as GPT-4o splits them."""
    lead = r"[^\r\n\p{L}\p{N}]?"
    words = f"{lead}{_UPPER}*{_LOWER}+{suffix}|{lead}{_UPPER}+{_LOWER}*{suffix}"
    return words + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _LINES_SPACES


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = _SUFFIX + _WORD + r"|\p{N}{1,3}" + _SYMBOLS + _LINES_SPACES
QWEN2 = _SUFFIX + _WORD + r"|\p{N}" + _SYMBOLS + _LINES_SPACES
DIGIT = r"\p{N}"
DEEPSEEK3_WORDS = (
    _ASCII_SYMBOL + r"[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*" + _LINES_SPACES
)
SPARK_WORDS = _ASCII_SYMBOL + r"[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]" + _SPACES
DEEPSEEK_LETTERS = (
    r"\s?"
    "[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7d"
    "ᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ"
    "-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
)  # escaped: characters that editors normalize into others
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
JAIS2 = (
    _SUFFIX + _WORD + r"|\p{N}{1,3}" + _SYMBOLS + r"|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)"
    r"|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}"
)
QWEN35 = _SUFFIX + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + _LINES_SPACES
EXAONE_MOE = (
    _SUFFIX
    + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]"
    + _SPACES
)
BAILING = r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])" + _WORD + r"|\p{N}" + _SYMBOLS + r"|\s*[\r\n]" + _SPACES
CHAMELEON = (
    r"<sentinel:[0-9]+>",
    r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
    r"([\t\n]|    |  )",
    DIGIT,
    r"[\p{P}!-/:-@\[-`{-~]",
    GPT2,
)

CASED_NOTE = (
    "the model's own word regex is written; llama.cpp approximates it, so that its ids can differ in words with "
    "non-ASCII capitals or combining marks"
)


@dataclass(frozen=True)
class PreTokenizer:
    """One row of the table.

    Attributes:
        patterns: regexes in the order they are applied, in the syntax of Oniguruma.
        names: the `tokenizer.ggml.pre` values that mean this row.
        ignore_merges: a word that is a token is that token, whatever the merges would make of it.
        add_bos: whether BOS is added when the file does not say.
        note: what the user should know.
    """

    patterns: tuple[str, ...]
    names: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    note: str = ""


TABLE = (
    PreTokenizer((GPT2,), ("gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "exaone4", "mpt", "olmo", "jais")),
    PreTokenizer((GPT2,), ("trillion", "granite-docling", "modern-bert", "roberta-bpe", "jina-v1-en", "jina-v2-code")),
    PreTokenizer((GPT2,), ("jina-es", "jina-de", "jina-v2-es", "jina-v2-de")),
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
    PreTokenizer((QWEN35,), ("qwen35",)),
    PreTokenizer((r"[^\n]+|[\n]+", QWEN2), ("laguna",)),
    PreTokenizer((QWEN2.removeprefix(_SUFFIX + "|"),), ("ufakzeka",)),
    PreTokenizer(
        (r"\p{N}{1,3}", _SUFFIX + _WORD + r"|\p{N}+" + _SYMBOLS + _LINES_SPACES),
        ("minicpm5",),
        ignore_merges=True,
    ),
    PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"), ("falcon",)),
    PreTokenizer(
        (r"[\r\n]", DEEPSEEK_LETTERS, r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", "[一-龥ࠀ-一가-퟿]+", r"\p{N}+"),
        ("deepseek-llm",),
    ),
    PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", DIGIT), ("deepseek-coder",)),
    PreTokenizer((r"\p{N}{1,3}", _CJK, DEEPSEEK3_WORDS), ("deepseek-v3", "hunyuan-dense", "hy_v4", "joyai-llm")),
    PreTokenizer((r"\p{N}{1,3}", _CJK, SPARK_WORDS, DIGIT), ("spark2_5",)),
    PreTokenizer((JAIS2,), ("jais-2",)),
    PreTokenizer((BLOOM,), ("bloom", "poro-chat", "gpt3-finnish")),
    PreTokenizer((BLOOM, DIGIT), ("viking",)),
    PreTokenizer((EXAONE_MOE,), ("exaone-moe",)),
    PreTokenizer((BAILING,), ("bailingmoe", "bailingmoe2", "llada-moe")),
    PreTokenizer(
        (_SUFFIX + _WORD + r"|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+" + _LINES_SPACES,),
        ("seed-coder",),
    ),
    PreTokenizer((r"\p{N}+", r"(?=(\d{3})+(?!\d))"), ("superbpe",)),
    PreTokenizer(CHAMELEON, ("chameleon",), add_bos=True),
    PreTokenizer(
        (_cased_words("", r"|\p{N}"),),
        ("tekken",),
        ignore_merges=True,
        add_bos=True,
        note=CASED_NOTE,
    ),
    PreTokenizer(
        (_cased_words(_SUFFIX + "?", r"|\p{N}{1,3}"),),
        ("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"),
        note=CASED_NOTE,
    ),
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
