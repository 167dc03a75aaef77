"""Random texts for tokenizers: seeded, of many scripts, and of the things that tokenizers get wrong."""

import random
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import cache

_BLOCKS = {
    "latin": (0x41, 0x250),
    "ipa": (0x250, 0x2B0),
    "greek": (0x370, 0x400),
    "cyrillic": (0x400, 0x530),
    "armenian": (0x530, 0x590),
    "hebrew": (0x590, 0x600),
    "arabic": (0x600, 0x700),
    "devanagari": (0x900, 0x980),
    "bengali": (0x980, 0xA00),
    "tamil": (0xB80, 0xC00),
    "thai": (0xE00, 0xE80),
    "tibetan": (0xF00, 0x1000),
    "georgian": (0x10A0, 0x1100),
    "ethiopic": (0x1200, 0x1380),
    "khmer": (0x1780, 0x1800),
    "vietnamese": (0x1E00, 0x1F00),
    "punctuation": (0x2000, 0x2070),
    "symbols": (0x2070, 0x2C00),
    "cjk symbols": (0x3000, 0x3040),
    "kana": (0x3040, 0x3100),
    "han": (0x4E00, 0xA000),
    "hangul": (0xAC00, 0xD7A4),
    "compatibility": (0xF900, 0xFB00),
    "fullwidth": (0xFF00, 0xFFF0),
    "mathematical": (0x1D400, 0x1D800),
    "emoji": (0x1F300, 0x1FB00),
    "rare han": (0x20000, 0x2A6E0),
}
# fmt: off
_WORDS = (
    "the", "of", "and", "to", "in", "is", "that", "for", "it", "was", "on", "are", "as", "with", "his", "they", "at",
    "be", "this", "from", "have", "or", "by", "one", "had", "not", "but", "what", "all", "were", "Hello", "World",
    "I'm", "we'll", "DON'T", "it's", "camelCase", "snake_case", "HTTPServer", "iPhone", "e.g.", "naïve", "café",
    "Straße", "ÉCOLE", "Ελλάδα", "Россия", "नमस्ते", "こんにちは", "世界", "한국어", "안녕하세요", "ภาษาไทย", "العربية",
    "עברית",
    "Tiếng", "Việt", "internationalization",
)
# fmt: on
_CODE = (
    *(
        "def f(x):\n    return x",
        "if (a && b) {\n\t",
        "}\n",
        "for(int i=0;i<n;++i)",
        "#include <stdio.h>\n",
        "</div>",
        "=>",
    ),
    *(
        "a[i] += 1;",
        "x = 0x1F",
        "// note\n",
        "/* */",
        '"key": "value",',
        "SELECT *",
        "\\n",
        "$HOME/bin",
        "C:\\Users",
        "!=",
    ),
    *(
        "://www.",
        "@user",
        "<br/>",
        "&amp;",
        "a_b-c.d",
        "```python\n",
        "| --- |",
        "\r\n",
        "print('x')",
        "...",
        "--",
        "===",
    ),
)
_EMOJI = (
    *("👨‍👩‍👧‍👦", "👍🏽", "🏳️‍🌈", "🇩🇪", "🙂", "❤️", "👩🏿‍🚀", "1️⃣", "🤷‍♂️", "✊🏻", "🧑‍🤝‍🧑", "\u200d", "\ufe0f", "🦙"),
)
_SPACES = " \u00a0\u2003\u3000\t\n\r\x0b\x0c\u2028\u1680\u200b\ufeff\x85"
_CONTRACTIONS = ("'s", "'S", "'t", "'re", "'RE", "'ve", "'m", "'ll", "'d", "’s", "'", "''", "'x")


@cache
def _characters(block: str) -> tuple[str, ...]:
    """Of Unicode 14 at most, as Python 3.11 has it: llama.cpp's tables and those of `tokenizers` are of other years."""
    start, stop = _BLOCKS[block]
    return tuple(chr(c) for c in range(start, stop) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co"))


def corpus(n: int, *, special: Sequence[str] = (), seed: int = 1) -> list[str]:
    """`n` different texts.

    Args:
        n: how many.
        special: texts of special tokens to put between others.
        seed: of the generator; the same seed gives the same texts.
    """
    draw = random.Random(seed)
    makers: list[Callable[[random.Random], str]] = [
        *(_words, _script, _mixed, _code, _spaces, _digits, _emoji, _marks, _broken, _symbols, _long, _contractions),
    ]
    if special:
        makers += [lambda d: _with_special(d, special)] * 2
    texts: dict[str, None] = {}
    while len(texts) < n:
        texts[draw.choice(makers)(draw)] = None
    return list(texts)


def _join(draw: random.Random, pieces: Iterable[str], glue: Sequence[str] = ("", " ", " ", "  ", "\n")) -> str:
    return "".join(piece + draw.choice(glue) for piece in pieces)


def _words(draw: random.Random) -> str:
    text = _join(draw, draw.choices(_WORDS, k=draw.randint(1, 14)), (" ", " ", " ", ", ", ". ", "; ", "\n", "-", ""))
    return draw.choice((str, str, str.upper, str.title, str.strip))(text)


def _script(draw: random.Random) -> str:
    characters = _characters(draw.choice(tuple(_BLOCKS)))
    return _join(draw, ("".join(draw.choices(characters, k=draw.randint(1, 9))) for _ in range(draw.randint(1, 5))))


def _mixed(draw: random.Random) -> str:
    blocks = draw.choices(tuple(_BLOCKS), k=draw.randint(2, 6))
    return _join(draw, ("".join(draw.choices(_characters(block), k=draw.randint(1, 4))) for block in blocks))


def _code(draw: random.Random) -> str:
    return _join(
        draw, draw.choices((*_CODE, *_WORDS[:20]), k=draw.randint(1, 10)), ("", " ", "    ", "\n", "\t", "\n\n")
    )


def _spaces(draw: random.Random) -> str:
    runs = (
        draw.choice(_SPACES[: draw.randint(1, len(_SPACES))]) * draw.randint(1, 40) for _ in range(draw.randint(1, 4))
    )
    return _join(draw, runs, ("", "x", ".", "1", "é", "字"))


def _digits(draw: random.Random) -> str:
    numbers = ("".join(draw.choices("0123456789", k=draw.randint(1, 13))) for _ in range(draw.randint(1, 6)))
    return _join(draw, numbers, (" ", "  ", ".", ",", "-", "a", "%", "\n ", "²", "½", "٣", "１"))


def _emoji(draw: random.Random) -> str:
    return _join(draw, draw.choices((*_EMOJI, *_characters("emoji")), k=draw.randint(1, 8)), ("", "", " ", "a"))


def _marks(draw: random.Random) -> str:
    marks = [chr(c) for c in (*range(0x300, 0x370), 0x93C, 0x94D, 0x5B0, 0x64B, 0xE31, 0x20D0)]
    bases = "aeioucnAEIOUCNяи가न한 .1"
    return "".join(
        draw.choice(bases) + "".join(draw.choices(marks, k=draw.choice((0, 1, 1, 2))))
        for _ in range(draw.randint(1, 12))
    )


def _broken(draw: random.Random) -> str:
    """What invalid UTF-8 is read as: replacement characters where bytes were."""
    raw = bytearray(_mixed(draw).encode())
    for _ in range(draw.randint(1, 4)):
        raw[draw.randrange(len(raw))] = draw.randrange(256)
    return raw.decode("utf-8", "replace")


def _symbols(draw: random.Random) -> str:
    pool = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~▁Ġ€£§«»…—“”\x00\x01\x1b\x7f\ue000"
    return "".join(draw.choices(pool + "  \n\n", k=draw.randint(1, 30)))


def _long(draw: random.Random) -> str:
    """Very long words."""
    piece = "".join(draw.choices("abcdefghijklmnopqrstuvwxyzABCéß中", k=draw.choice((1, 2, 3, 7, 50))))
    return piece * draw.randint(20, 400 // len(piece) + 20)


def _contractions(draw: random.Random) -> str:
    return _join(
        draw, (draw.choice(_WORDS) + draw.choice(_CONTRACTIONS) for _ in range(draw.randint(1, 6))), (" ", "", "\n")
    )


def _with_special(draw: random.Random, special: Sequence[str]) -> str:
    pieces = [
        draw.choice((draw.choice(special), draw.choice(_WORDS), draw.choice(_CODE))) for _ in range(draw.randint(1, 8))
    ]
    return _join(draw, pieces, ("", "", " ", "\n", "  "))


# fmt: off
LITERAL_TEXTS = (
    # words, spaces, lines
    "", "Hello, world!", " leading", "trailing ", "  two", "   three   spaces   ", " ", "  ", " " * 5, " " * 16,
    " " * 17, " " * 31, " " * 33, " " * 70, "\n", "\n\n", "\n" * 5, "\n" * 31, "\n" * 32, "\n" * 40, "\t", "\t" * 20,
    "\r", "\r\n", "\n\r\n\r", "\t\ttabs\tinside", "a\r\nb\r\n\r\nc", " \n \n", " \n  x", "x\n\ny", "x \n y",
    "x\n \n\ny\n", "  \t \n\t x", "new\nline\r\rcarriage\r\n", " " * 5 + "\n" + " " * 5, "x" + " " * 20 + "y",
    "...\n\n\n", " ' ", " 's", " .", "?!", " ?",
    # digits
    "\n 2024", "  9001", "½ ¼ ¾", "x = 1234567890", "3.14159, 1,000,000.00", "$1,234.56 -7e-10 0xDEADBEEF",
    "1st 2nd 10000th", "2024-01-02T03:04:05Z", "1 22 333 4444 55555 666666", "a1 b22 c333 d4444 e55555", "1a2b3c",
    "aA1bB2cC3", "①②③ ⅫⅣ ²³", "١٢٣٤٥ १२३ １２３",
    # code and markup
    "def f(x):\n    return x**2  # ok\n", "if(a<b){\n\t\tc++;\n\t}\n",
    "#include <stdio.h>\nint main(void){printf(\"%d\\n\", 42);}", "<html><body class=\"x\">&nbsp;</body></html>",
    "SELECT * FROM t WHERE a='b';", "{\n  \"a\": [1, 2, {\"b\": null}]\n}", "\\frac{a}{b} $x^2$", "* item\n  * sub\n",
    "| a | b |\n|---|---|", "C:\\Users\\x\\y.txt", "user@mail.co.uk", "https://example.com/a?b=c&d=%20#e",
    "!@#$%^&*()_+-=[]{}|;':\",./<>?", "a!b?c.d,e;f:g", "=" * 70, "-" * 65 + "\n", "." * 33,
    "camelCaseWord snake_case_word SCREAMING_CASE", "HTMLParser iPhoneX",
    # contractions and quotes
    "I'm you're he'd we've they'll IT'S DON'T I'M can't", "'s 't 'S 'T ''' \"'\"", "“quotes” ‘single’ —dash– …",
    "x'Re abc'S",
    # scripts
    "你好，世界！", "今日は良い天気ですね。東京タワー", "안녕하세요 세계", "ฉันรักภาษาไทย", "مرحبا بالعالم", "العَرَبِيَّة",
    "שלום עולם",
    "नमस्ते दुनिया", "क्षत्रिय ज्ञ", "Привет, мир! ÉCOLE école Straße", "ÉCOLE CaféBar ЗДРАВСТВУЙ МирТруд",
    "Ελληνικά ΑΒΓ", "Հայերեն ქართული አማርኛ", "Việt Nam tiếng", "café naïve", "ﬁ ﬂ ligature", "ı İ ǅ ʰ ª º",
    "Æther œuvre", "ſ 'ſ K", "mixed漢字かなABC한글 العربية", "Ünïcödé c\u0327o\u0301mbining e\u0301", "ä\u0308 Å\u030a",
    "\u0301\u0302 alone", "a\u0300b", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟘𝟙𝟚", "𐍈𐎀 \U00020000\U0002f800", "ﷺ", "ÀÁÂ õö÷øùúûüýþÿ", "õ÷Á", "Ġx Ċ",
    "aĠb",
    # emoji, symbols, controls, odd spaces
    "👨‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪", "🙂🙃😀😀😀", "🦙.cpp 🚀 (normal) 😶‍🌫️", "\U0001f1e6", "€£¥₿ ©®™", "\ue000\uf8ff",
    "a\u200db",
    "\u00a0nbsp\u00a0\u00a0x", "\u2003em\u3000ideo", "\u200bzero\u200dwidth\ufeff", "\x00\x01\x02\x1b[0m\x7f",
    "\x0b\x0c\x1c\x1d\x85", "\u2028line\u2029para", "\u1680ogham", "\u180e",
    # U+2581, which SentencePiece uses for the space
    "▁", "▁▁", "  ▁  ", "a▁b ▁c", "▁▁▁▁x", " ▁", "▁ ", "▁<PRE>", " <PRE>",
    # special tokens in the text
    "<0x0A>", "<0x41>", "</s>", "<s>", "<s> x </s> y", "x<s>", "<unk>", "<pad>", "<bos>", "<eos> x", "<|endoftext|>",
    "<unused5>", "<|im_start|>user\nHi<|im_end|>\n", "<start_of_turn>user\nHi<end_of_turn>\n",
    "<|begin_of_text|>Hi<|eot_id|>", "[multimodal]", "<|user|>\nHi <|end|>\n<|assistant|>", "[PAD32011] x",
    "[PAD151646]z", "<fim_prefix>a<fim_suffix>b", "<reponame>x", "<BOS_TOKEN>", "<|tool_call>x<tool_call|>",
    "<h1> a </h1>", "IMGIMGABCZ",
    # long words
    "antidisestablishmentarianism" * 3, "a" * 100, "ab" * 70,
)
# fmt: on
