"""How byte-level BPE splits a text into words: the regexes behind each `tokenizer.ggml.pre` name.

The regexes are llama.cpp's (b11434, src/llama-vocab.cpp, `llm_tokenizer_bpe`), applied one after the other, each to the
pieces the one before left; what no regex matches is a piece of its own. `\\s+(?!\\S)` at the end of llama.cpp's GPT-2
pattern stands for `\\s+(?!\\S)|\\s+` in its splitter, and is written out here.

Where llama.cpp had to approximate the regex of the model, because its engine knows no upper and lower case letters and
no combining marks beyond ASCII, the model's own is used, as llama.cpp quotes it: rows with a note.

A name is listed only when `tests/test_tokenizer.py` finds its token ids equal to llama.cpp's. `default` is left out on
purpose: it names no rule of any model (evidence.py). Names in RAW_TEXT are not byte-level (rawtext.py).
"""

from dataclasses import dataclass

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
YOUTU_SCRIPTS = "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+"
AFMOE_DIGITS = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
AFMOE_SCRIPTS = "[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+"
KIMI_K2 = r"\p{Han}+|" + _cased_words(_SUFFIX + "?", r"|\p{N}{1,3}").replace(
    _UPPER, _UPPER[:-1] + r"&&[^\p{Han}]]"
).replace(_LOWER, _LOWER[:-1] + r"&&[^\p{Han}]]").replace(r"[\r\n/]*", r"[\r\n]*")

CASED_NOTE = (
    "the model's own word regex is written; llama.cpp approximates it, so that its ids can differ in words with "
    "non-ASCII capitals or combining marks"
)
CASE_NOTE = (
    "the model's own word regex is written; llama.cpp does not split where lower case turns to upper case, so that its "
    "ids differ in words such as camelCase and with combining marks"
)
DIGITS_NOTE = (
    "digits are grouped from the right as the model does; llama.cpp does not set them off from the text in front of "
    "them, so that its ids can differ in runs of white space before digits"
)
WIDE_SPACES_NOTE = (
    "white space from U+1680 to U+3000 is split as the model does, with the letters of that range; llama.cpp takes it "
    "for U+000B there"
)


@dataclass(frozen=True)
class PreTokenizer:
    """One row of the table.

    Attributes:
        patterns: regexes in the order they are applied, in the syntax of Oniguruma.
        names: the `tokenizer.ggml.pre` values that mean this row.
        ignore_merges: a word that is a token is that token, whatever the merges would make of it.
        add_bos: whether BOS is added when the file does not say.
        add_sep: whether SEP is put between two texts.
        note: what the user should know.
    """

    patterns: tuple[str, ...]
    names: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    add_sep: bool = False
    note: str = ""


TABLE = (
    PreTokenizer((GPT2,), ("gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "exaone4", "mpt", "olmo", "jais")),
    PreTokenizer((GPT2,), ("trillion", "granite-docling", "modern-bert")),
    PreTokenizer((GPT2,), ("roberta-bpe", "jina-v1-en", "jina-v2-code"), add_sep=True),
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
        note=WIDE_SPACES_NOTE,
    ),
    PreTokenizer(
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", DIGIT),
        ("deepseek-coder",),
        note=WIDE_SPACES_NOTE,
    ),
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
    PreTokenizer(
        (r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
        ("superbpe",),
        note="digits of every script are grouped as the model does; llama.cpp groups 0-9 only",
    ),
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
    PreTokenizer(
        (_cased_words(_SUFFIX + "?", r"|\p{N}{1,3}"),),
        ("granite-embed-multi-97m",),
        ignore_merges=True,
        note=CASED_NOTE,
    ),
    PreTokenizer(
        (YOUTU_SCRIPTS, _cased_words(_SUFFIX + "?", r"|\p{N}")),
        ("youtu",),
        ignore_merges=True,
        note=CASE_NOTE,
    ),
    PreTokenizer((KIMI_K2,), ("kimi-k2",), note=CASE_NOTE),
    PreTokenizer((AFMOE_DIGITS, AFMOE_SCRIPTS, DEEPSEEK3_WORDS), ("afmoe",), note=DIGITS_NOTE),
    PreTokenizer(
        (r"\d{1,3}(?=(?:\d{3})*\b)", _cased_words(_SUFFIX + "?", r"|\p{N}{1,3}")),
        ("tiny_aya", "cohere2moe"),
        note=f"{CASE_NOTE}; {DIGITS_NOTE}",
    ),
)

BY_NAME = {name: row for row in TABLE for name in row.names}

RAW_TEXT = ("gemma4", "granite-embed-multi-311m", "mmbert", "sarvam-moe")
"""Names that mean BPE on the text itself. `whitespace` is not among them: with kind `gpt2`, llama.cpp aborts at two
spaces in a row, and its converter writes a kind of its own."""

SUPPORTED = frozenset(BY_NAME) | frozenset(RAW_TEXT)
