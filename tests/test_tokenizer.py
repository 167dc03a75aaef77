"""Rebuilt tokenizers against llama.cpp: transformers gives the ids of llama.cpp from the written folder."""

import functools
import json
import random
import shutil
import subprocess
import sys
import unicodedata
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import pytest

from gguf2st.errors import TokenizerError
from gguf2st.header import read_header
from gguf2st.tokenizer import build_tokenizer, check_tokenizer, copy_tokenizer, special_tokens
from gguf2st.tokenizer.bytelevel import pre_tokenizer
from gguf2st.tokenizer.pretokenizers import BY_NAME, TABLE, PreTokenizer
from tests.oracle.llamacpp import LlamaCpp, in_child
from tests.vocabularies import (
    BYTE_CHARACTERS,
    FILES,
    REAL,
    SPACE,
    VOCABS,
    approximated,
    byte_level,
    differing,
    fetched,
    load,
    make_metadata,
    named_pre,
    sentencepiece,
    write_files,
    write_gguf,
)

WITHOUT_VECTORS = ("baichuan",)

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
_PIECES = [
    *" \n\t\r.,!?'-_/\\\"()[]{}<>=+*&^%$#@~`|:;0123456789abcXYZéßñ中文字かな한글дфя🙂👍\u0301\u200d▁½²",
    *("  ", "\n\n", "   ", "'s", "the", " of", "ing", " function", "return", "1234", " 56", "</", "<|", "|>", " 東京"),
]


def _random_texts(n: int) -> list[str]:
    draw = random.Random(7)
    return ["".join(draw.choices(_PIECES, k=draw.randint(2, 40))) for _ in range(n)]


TEXTS = tuple(dict.fromkeys((*LITERAL_TEXTS, *_random_texts(250))))


def _unicode_texts() -> list[str]:
    """Words over the characters that Unicode 14 has: llama.cpp's table and Oniguruma's are of different years."""
    draw = random.Random(3)
    texts = []
    for start in (*range(0x80, 0xD700, 256), *range(0xE000, 0x11000, 256), *range(0x1D000, 0x1FB00, 256)):
        chars = [chr(c) for c in range(start, start + 256) if unicodedata.category(chr(c)) != "Cn"]
        if chars:
            texts.append("".join(draw.choices(chars, k=12)) + " " + "a".join(draw.choices(chars, k=6)))
    return texts


@dataclass(frozen=True)
class Case:
    """A GGUF, the folder written for it, and the tokenizer that transformers makes of the folder."""

    name: str
    path: Path
    metadata: Mapping[str, Any]
    folder: Path
    tokenizer: Any

    def ids(self, text: str, *, add_special: bool = False) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=add_special)["input_ids"]
        return ids


def _marked(name: str) -> Any:
    return pytest.param(name, marks=[pytest.mark.oracle, pytest.mark.real] if name in REAL else [pytest.mark.oracle])


def _for_cases(*names: str) -> pytest.MarkDecorator:
    """Run a test for these files only; pytest keeps the tests of one file together, so that each is built once."""
    return pytest.mark.parametrize("case", [_marked(name) for name in names], indirect=True)


@pytest.fixture(scope="module", params=[_marked(name) for name in FILES])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    path = fetched(FILES[request.param])
    metadata = read_header([path]).metadata
    folder = write_files(tmp_path_factory.mktemp(request.param), metadata)
    return Case(request.param, path, metadata, folder, load(folder))


@pytest.fixture(scope="module")
def llama(case: Case) -> Iterator[LlamaCpp]:
    with LlamaCpp(case.path, vocab_only=True) as model:
        yield model


# --- token ids ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("add_special", [True, False])
def test_ids_are_llama_cpps(case: Case, llama: LlamaCpp, add_special: bool) -> None:
    wrong = {
        text: (ids, expected)
        for text in TEXTS
        if (ids := case.ids(text, add_special=add_special))
        != (expected := llama.tokenize(text, add_special=add_special))
    }
    assert len(TEXTS) > 400
    assert wrong == {}


@_for_cases(*(name for name in VOCABS if name not in WITHOUT_VECTORS))
def test_ids_are_those_of_llama_cpps_test_vectors(case: Case) -> None:
    texts = Path(f"{case.path}.inp").read_bytes().decode("utf-8").split("\n__ggml_vocab_test__\n")
    lines = Path(f"{case.path}.out").read_text().splitlines()
    backend = case.tokenizer.backend_tokenizer
    backend.encode_special_tokens = True  # the vectors are made with parse_special off
    try:
        ids = [backend.encode(text, add_special_tokens=False).ids for text in texts]
    finally:
        backend.encode_special_tokens = False
    expected = [[int(i) for i in line.split()] for line in lines]
    assert len(expected) > 40
    assert ids[: len(expected)] == expected


MODEL_TYPES = {"smollm2": ["llama", "mistral"], "gemma3": ["gemma3_text"], "llama-spm": ["llama"]}


@_for_cases(*MODEL_TYPES)
def test_the_class_transformers_picks_for_the_model_type_keeps_the_ids(case: Case, tmp_path: Path) -> None:
    for model_type in MODEL_TYPES[case.name]:
        folder = tmp_path / model_type
        shutil.copytree(case.folder, folder)
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
        tokenizer = load(folder)
        for text in TEXTS[::3]:
            assert tokenizer(text)["input_ids"] == case.ids(text, add_special=True), (model_type, text)


# --- decoding ----------------------------------------------------------------------------------------------------


DECODED_AS_BYTES = dict.fromkeys(("deepseek-coder", "deepseek-llm"), frozenset("õ÷ÁýÀÿøúþüùöû"))
"""Added tokens that the ByteLevel decoder of `tokenizers` takes for bytes, in the original tokenizers too."""


@pytest.mark.parametrize("keep_special", [True, False])
def test_decoded_text_is_llama_cpps(case: Case, llama: LlamaCpp, keep_special: bool) -> None:
    """Pieces are joined for byte-level BPE, where llama_detokenize drops some spaces before punctuation."""
    sentencepiece = case.metadata["tokenizer.ggml.model"] == "llama"
    prefixed = sentencepiece and case.metadata.get("tokenizer.ggml.add_space_prefix", True)
    special = {i for i, token in case.tokenizer.added_tokens_decoder.items() if token.special}
    wrong = {}
    for text in TEXTS:
        if not DECODED_AS_BYTES.get(case.name, frozenset()).isdisjoint(text):
            continue
        ids = llama.tokenize(text, add_special=False)
        if sentencepiece:
            expected = llama.detokenize(ids, unparse_special=keep_special)
        else:
            expected = b"".join(llama.piece(i, special=keep_special) for i in ids)
        if prefixed and not keep_special and ids and ids[0] in special:
            # llama.cpp strips the space of the first token, even of one that is left out; transformers the text's
            expected = expected.removeprefix(b" ")
        decoded = case.tokenizer.decode(ids, skip_special_tokens=not keep_special)
        if decoded != expected.decode("utf-8", "replace"):
            wrong[text] = (decoded, expected)
    assert wrong == {}


# --- special tokens ----------------------------------------------------------------------------------------------

INFILL = {"smollm2": {4}, "refact": {4, 18}, "starcoder": {4}, "command-r": {0}}
"""Tokens that llama.cpp also stops at because they end an infill: <reponame>, <fim_pad>, <PAD>."""
HTML = {"gemma3": {212}, "qwen2": {128247}, "qwen35": {128247}, "phi-3": {2}, "mpt": set()}
"""`</s>` where it is no control token."""


def test_end_ids_are_the_tokens_llama_cpp_stops_at(case: Case, llama: LlamaCpp) -> None:
    expected = {i for i in range(llama.n_tokens) if llama.ends_generation(i)}
    special = special_tokens(case.metadata)
    assert set(special.end_ids) == expected - INFILL.get(case.name, set()) - HTML.get(case.name, set())
    assert special.end_ids[0] == special.eos


NAMED = {
    "smollm2": {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "unk_token": "<|endoftext|>", "length": 8192},
    "gemma3": {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "length": 32768},
}
"""As the original repositories have them."""


@_for_cases(*NAMED)
def test_special_tokens_have_their_names(case: Case) -> None:
    tokenizer, expected = case.tokenizer, NAMED[case.name]
    found = {name: getattr(tokenizer, name) for name in expected if name != "length"}
    assert found | {"length": tokenizer.model_max_length} == expected
    special = [tokenizer.bos_token_id, tokenizer.eos_token_id]
    assert tokenizer.decode([special[0], *case.ids("Hello"), special[1]], skip_special_tokens=True) == "Hello"


# --- the table of pre-tokenizers ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llama3_with(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], LlamaCpp]:
    """llama.cpp with the vocabulary of Llama 3 and another `tokenizer.ggml.pre`."""
    path = tmp_path_factory.mktemp("pre") / "vocab.gguf"

    def open_with(pre: str) -> LlamaCpp:
        return LlamaCpp(named_pre(fetched(VOCABS["llama-bpe"]), path, pre), vocab_only=True)

    return open_with


@functools.cache
def _llama3_tokenizer() -> Any:
    from tokenizers import Tokenizer

    files = build_tokenizer(read_header([fetched(VOCABS["llama-bpe"])]).metadata).files
    return Tokenizer.from_str(files["tokenizer.json"].decode())


def _use(tokenizer: Any, row: PreTokenizer) -> None:
    from tokenizers import Tokenizer

    model = {"type": "BPE", "vocab": {}, "merges": []}
    empty = Tokenizer.from_str(json.dumps({"version": "1.0", "model": model, "pre_tokenizer": pre_tokenizer(row)}))
    tokenizer.pre_tokenizer = empty.pre_tokenizer
    tokenizer.model.ignore_merges = row.ignore_merges


@pytest.mark.oracle
@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.names[0])
def test_words_are_llama_cpps(row: PreTokenizer, llama3_with: Callable[[str], LlamaCpp]) -> None:
    tokenizer = _llama3_tokenizer()
    _use(tokenizer, row)
    texts = [text for text in (*TEXTS, *_unicode_texts()) if not approximated(row.note, text)]
    assert len(texts) > 200
    with llama3_with(row.names[0]) as model:
        wrong = [
            text
            for text in texts
            if tokenizer.encode(text, add_special_tokens=False).ids != model.tokenize(text, add_special=False)
        ]
    assert wrong == []


# --- chat templates ----------------------------------------------------------------------------------------------


@_for_cases("smollm2")
@pytest.mark.parametrize("generation", [True, False])
@pytest.mark.parametrize("system", [True, False])
def test_chat_template_renders_as_plain_jinja2(case: Case, generation: bool, system: bool) -> None:
    messages = [{"role": "user", "content": "Hi  <b>there</b>\n"}, {"role": "assistant", "content": "Hello!"}]
    if system:
        messages.insert(0, {"role": "system", "content": "Be brief."})
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(case.metadata["tokenizer.chat_template"])
    expected = template.render(messages=messages, add_generation_prompt=generation)
    rendered = case.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=generation)
    assert rendered == expected
    assert "<|im_start|>user\nHi" in rendered


@_for_cases("command-r")
def test_named_chat_templates_are_found_by_transformers(case: Case) -> None:
    assert case.tokenizer.chat_template == {
        "default": case.metadata["tokenizer.chat_template"],
        "tool_use": case.metadata["tokenizer.chat_template.tool_use"],
        "rag": case.metadata["tokenizer.chat_template.rag"],
    }


# --- tiny vocabularies, written as GGUF for llama.cpp -------------------------------------------------------------


def _every_word() -> dict[str, object]:
    """All words of up to three of these characters are tokens and have merges, so that each word boundary shows."""
    alphabet = ["a", "A", "s", "'", "\u0120", "\u010a", "1", ".", "-"]  # U+0120 is the space, U+010A the newline
    pairs = [x + y for x in alphabet for y in alphabet]
    triples = [x + pair for x in alphabet for pair in pairs]
    merges = (
        [f"{x[0]} {x[1]}" for x in pairs] + [f"{x[:2]} {x[2]}" for x in triples] + [f"{x[0]} {x[1:]}" for x in triples]
    )
    added = [(word, 1) for word in (*pairs, *triples)] + [
        ("aAsa", 1),
        ("\u0120aaaa", 1),
        ("<s>", 3),
    ]  # two without merges
    tokens = [*BYTE_CHARACTERS, *(token for token, _ in added)]
    return make_metadata("gpt2", tokens, tuple(added), {"merges": merges, "bos_token_id": len(tokens) - 1})


@pytest.mark.parametrize("name", BY_NAME)
def test_names_mean_what_they_mean_to_llama_cpp(name: str, tmp_path: Path) -> None:
    draw = random.Random(5)
    texts = ["", "aAsa", " aaaa", *("".join(draw.choices("aAs' \n1.-", k=draw.randint(1, 14))) for _ in range(400))]
    texts = [text for text in texts if not approximated(BY_NAME[name].note, text)]
    assert len(texts) > 100
    assert differing(tmp_path / "v.gguf", _every_word() | {"tokenizer.ggml.pre": name}, texts) == []


@pytest.mark.parametrize("seed", range(8))
def test_scores_become_merges_that_join_as_llama_cpp_does(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    words = {"".join(draw.choices("abc" + SPACE, k=draw.randint(2, 5))) for _ in range(60)}
    scored = dict.fromkeys(["a", "b", "c", SPACE], -100.0) | {word: draw.uniform(-50, 0) for word in sorted(words)}
    metadata = sentencepiece(scored, add_space_prefix=bool(seed % 2))
    texts = ["".join(draw.choices("abc é", k=draw.randint(1, 40))) for _ in range(200)]
    assert differing(tmp_path / "v.gguf", metadata, texts) == []


def test_equal_scores_join_the_leftmost_pair(tmp_path: Path) -> None:
    runs = {SPACE * n: -1e9 for n in range(2, 17)}  # as Llama 2 has them
    metadata = sentencepiece({"a": -1.0, SPACE: -2.0, SPACE + "a": -3.0} | runs)
    texts = [" " * n + tail for n in range(60) for tail in ("", "a", "a  a")]
    assert differing(tmp_path / "v.gguf", metadata, texts) == []


@pytest.mark.parametrize(
    ("added", "ends", "special"),
    [
        ((("<|end|>", 3), ("<|return|>", 3)), {"<|end|>", "<|return|>"}, {"<|end|>", "<|return|>"}),
        ((("<|end|>", 3), ("<|return|>", 3), ("<|call|>", 3)), {"<|return|>", "<|call|>"}, {"<|return|>", "<|call|>"}),
        ((("<|end|>", 3), ("<|flush|>", 3), ("<|calls|>", 3)), {"<|flush|>", "<|calls|>"}, {"<|flush|>", "<|calls|>"}),
        ((("</s>", 3), ("<|tool_response>", 4)), {"<|tool_response>"}, {"<|tool_response>"}),
        ((("<|im_end|>", 1), ("<|channel|>", 3)), {"<|im_end|>"}, {"<|im_end|>"}),
        ((("<fim_prefix>", 1), ("<|repo|>", 4), ("<?>", 2)), set(), {"<fim_prefix>", "<?>"}),
    ],
)
def test_spellings_that_llama_cpp_overrides(
    added: tuple[tuple[str, int], ...], ends: set[str], special: set[str], tmp_path: Path
) -> None:
    metadata = byte_level(*added, ("<eos>", 3), eos_token_id=256 + 2 + len(added))
    tokens: Any = metadata["tokenizer.ggml.tokens"]
    tokenizer = load(write_files(tmp_path / "out", metadata))
    with LlamaCpp(write_gguf(tmp_path / "v.gguf", metadata), vocab_only=True) as model:
        stops = {tokens[i] for i in range(model.n_tokens) if model.ends_generation(i)}
        for token, _ in added:
            assert tokenizer(token + "he")["input_ids"] == model.tokenize(token + "he", add_special=True)
    assert stops == ends | {"<eos>"}
    assert {tokens[i] for i in special_tokens(metadata).end_ids} == stops
    made_special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    assert made_special == special | {"<eos>"}


def test_a_duplicate_token_is_refused_by_llama_cpp_and_by_us(tmp_path: Path) -> None:
    metadata = byte_level(("he", 1))
    with pytest.raises(RuntimeError, match="the child ended"):
        in_child(lambda: LlamaCpp(write_gguf(tmp_path / "v.gguf", metadata), vocab_only=True).n_tokens)
    with pytest.raises(TokenizerError, match="1 tokens more than once") as caught:
        check_tokenizer(metadata)
    assert caught.value.problems == ("'he' is token 256 and token 258",)


def test_end_ids_are_in_order_and_each_once() -> None:
    added = (("<a>", 3), ("<b>", 3), ("<|eot_id|>", 3))
    special = special_tokens(byte_level(*added, eos_token_id=259, eot_token_id=258, eom_token_id=259))
    assert special.end_ids == (259, 258, 260)


def test_bos_and_eos_are_added_without_the_config(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    metadata = sentencepiece({"a": -1.0, SPACE: -2.0}, add_eos_token=True)
    tokenizer = Tokenizer.from_str(build_tokenizer(metadata).files["tokenizer.json"].decode())
    assert tokenizer.encode("a").ids == [1, 260, 259, 2]
    assert tokenizer.encode("a", "a").ids == [1, 260, 259, 2, 1, 260, 259, 2]


def test_a_normal_token_is_no_named_token(tmp_path: Path) -> None:
    """Old Qwen conversions say BOS is ',': naming it would take ',' out of every text."""
    metadata = byte_level(bos_token_id=11, add_bos_token=True)
    files = build_tokenizer(metadata)
    assert any("bos_token is not written: token 11" in note for note in files.notes)
    assert differing(tmp_path / "v.gguf", metadata, ["he,he", ""]) == []


def test_rows_beyond_the_tokens_are_padding() -> None:
    metadata = byte_level()
    assert not any("padding" in note for note in build_tokenizer(metadata, n_rows=258).notes)
    assert (
        "6 embedding rows after the 258 tokens are padding without a token"
        in build_tokenizer(metadata, n_rows=264).notes
    )
    with pytest.raises(TokenizerError, match="258 tokens, but the token embedding has only 257 rows"):
        build_tokenizer(metadata, n_rows=257)


def test_chat_template_is_written_only_when_there_is_one() -> None:
    without = build_tokenizer(byte_level())
    assert "no chat template in the file: none written" in without.notes
    assert set(without.files) == {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}
    named = {"tokenizer.chat_template": "A", "tokenizer.chat_template.tool_use": "B"}
    files = build_tokenizer(byte_level() | named).files
    assert files["chat_template.jinja"] == b"A"
    assert files["additional_chat_templates/tool_use.jinja"] == b"B"


def test_checking_needs_no_tokenizers_library() -> None:
    program = (
        "import sys\nfrom gguf2st.tokenizer import check_tokenizer\n"
        "keys = {'model': 'gpt2', 'pre': 'gpt-2', 'tokens': ['a', 'b', 'ab'], 'merges': ['a b']}\n"
        "keys['token_type'] = [1, 1, 1]\n"
        "check_tokenizer({f'tokenizer.ggml.{k}': v for k, v in keys.items()})\n"
        "print({'tokenizers', 'transformers', 'torch', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# --- errors ------------------------------------------------------------------------------------------------------

TOO_LONG, TOO_SHORT = array("i", [1] * 259), array("i", [1] * 3)
BROKEN: dict[str, tuple[dict[str, object], str]] = {
    "kind absent": ({"model": None}, "no tokenizer.ggml.model"),
    "kind unknown": ({"model": "test"}, "model 'test' is not supported"),
    "kind that tokenizers cannot express": ({"model": "rwkv"}, "model 'rwkv' cannot be rebuilt: it takes the longest"),
    "pre absent": ({"pre": None}, "no tokenizer.ggml.pre"),
    "pre default": ({"pre": "default"}, "pre is 'default'"),
    "pre unknown": ({"pre": "kimi-k3"}, "pre 'kimi-k3' is not supported"),
    "tokens absent": ({"tokens": None}, "no tokenizer.ggml.tokens"),
    "tokens numbers": ({"tokens": array("i", [1, 2])}, "tokens is not a list of strings"),
    "tokens not UTF-8": ({"tokens": ["\udcff", "a"], "token_type": array("i", [1, 1])}, "1 tokens that are not UTF-8"),
    "types absent": ({"token_type": None}, "no tokenizer.ggml.token_type"),
    "types long": ({"token_type": TOO_LONG}, "token_type has 259 entries for 258 tokens"),
    "types short": ({"token_type": TOO_SHORT}, "token_type has 3 entries for 258 tokens"),
    "types text": ({"token_type": "1" * 258}, "token_type is not an array of numbers"),
    "type unknown": ({"token_type": array("i", [7] * 258)}, r"token_type has the types \[7\]"),
    "merges absent": ({"merges": None}, "no tokenizer.ggml.merges"),
    "merges numbers": ({"merges": array("i", [1])}, "merges is not a list of strings"),
    "merge of one": ({"merges": ["h e", "he"]}, r"merges\[1\] is 'he'"),
    "merge of three": ({"merges": ["h e l"]}, r"merges\[0\] is 'h e l'"),
    "merge outside": ({"merges": ["h e", "x y"]}, "1 merges with a side or a result that is no token"),
    "bos missing": ({"add_bos_token": True}, "BOS is to be added to each text"),
    "eos missing": ({"add_eos_token": True}, "EOS is to be added to each text"),
    "flag is a number": ({"add_bos_token": 1}, "add_bos_token is 1, not a bool"),
}


@pytest.mark.parametrize(("keys", "message"), BROKEN.values(), ids=BROKEN)
def test_broken_byte_level_metadata(keys: dict[str, object], message: str) -> None:
    metadata = {key: value for key, value in byte_level(**keys).items() if value is not None}
    for function in (check_tokenizer, build_tokenizer):
        with pytest.raises(TokenizerError, match=message):
            function(metadata)


@pytest.mark.parametrize("model", ["test", "gpt2"])
def test_what_is_not_supported_says_what_is_and_what_to_do(model: str) -> None:
    with pytest.raises(TokenizerError) as caught:
        check_tokenizer(byte_level(model=model, pre="nonsense"))
    assert "--tokenizer-from DIR_OR_REPO" in caught.value.hint
    available = "smollm" if model == "gpt2" else "gpt2, llama"
    assert available in "".join(caught.value.problems)


@pytest.mark.parametrize("value", [258, -1, 2**32 - 1, "1", True, 1.0])
@pytest.mark.parametrize(
    "role", ["bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "cls", "mask", "fim_pre"]
)
def test_an_id_outside_the_vocabulary(role: str, value: object) -> None:
    metadata = byte_level() | {f"tokenizer.ggml.{role}_token_id": value}
    for function in (special_tokens, check_tokenizer):
        with pytest.raises(TokenizerError, match=rf"{role}_token_id is .*, but the ids go from 0 to 257"):
            function(metadata)


def _without_byte_tokens() -> dict[str, object]:
    metadata = sentencepiece({"a": -1.0})
    tokens: Any = metadata["tokenizer.ggml.tokens"]
    tokens[3:259] = [f"t{i}" for i in range(256)]
    return metadata


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (sentencepiece({"a": -1.0}, scores=array("f", [0.0])), "scores has 1 entries for 260 tokens"),
        (sentencepiece({"a": float("nan")}), "scores has values that are not numbers"),
        (_without_byte_tokens(), "lacks 256 of the 256 byte tokens, <0x00> first"),
        (sentencepiece({"a": -1.0, "ax": -2.0}), "1 tokens have a character that is no token of its own"),
        (sentencepiece({"a": -1.0, "a" * 1025: -2.0}), "token 260 has 1025 characters"),
    ],
    ids=["scores short", "scores NaN", "no byte tokens", "unreachable", "long"],
)
def test_broken_sentencepiece_metadata(metadata: dict[str, object], message: str) -> None:
    with pytest.raises(TokenizerError, match=message) as caught:
        check_tokenizer(metadata)
    assert "--tokenizer-from" in caught.value.hint


@pytest.mark.parametrize("name", ["../evil", "a/b", "", ".hidden", "a b", "\udcff"])
def test_a_template_name_cannot_leave_the_folder(name: str) -> None:
    with pytest.raises(TokenizerError, match="cannot be a file name"):
        check_tokenizer(byte_level() | {f"tokenizer.chat_template.{name}": "x"})


@pytest.mark.parametrize("template", [1, ["x"], "\udcff"])
def test_a_template_is_text(template: object) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.chat_template is not a UTF-8 string"):
        check_tokenizer(byte_level() | {"tokenizer.chat_template": template})


# --- the original tokenizer instead ------------------------------------------------------------------------------


def test_copying_takes_the_files_as_they_are(tmp_path: Path) -> None:
    metadata = byte_level(("<|im_end|>", 3)) | {"tokenizer.chat_template.rag": "x"}
    folder = write_files(tmp_path, metadata)
    (folder / "tokenizer.model").write_bytes(b"\x00\xff")
    (folder / "model.safetensors").write_bytes(b"no")
    expected = build_tokenizer(metadata).files | {"tokenizer.model": b"\x00\xff"}
    assert copy_tokenizer(folder, metadata).files == expected


def test_copying_works_for_kinds_that_cannot_be_rebuilt(tmp_path: Path) -> None:
    unigram = {"model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["▁a", -1.0]]}, "added_tokens": []}
    (tmp_path / "tokenizer.json").write_text(json.dumps(unigram))
    metadata = {"tokenizer.ggml.model": "t5", "tokenizer.ggml.tokens": ["<unk>", "▁a", "[PAD2]"]}
    assert set(copy_tokenizer(tmp_path, metadata).files) == {"tokenizer.json"}


def test_copying_undoes_what_the_converter_does_to_word_pieces_and_spaces(tmp_path: Path) -> None:
    pieces = {"model": {"type": "WordPiece", "vocab": {"[CLS]": 0, "a": 1, "##b": 2}}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(pieces))
    metadata = make_metadata("bert", ["[CLS]", "▁a", "b"], (), {}) | {
        "tokenizer.ggml.token_type": array("i", [3, 1, 1])
    }
    assert copy_tokenizer(tmp_path, metadata).files
    spaces = {"model": {"type": "BPE", "vocab": {"a": 0, "▁▁": 1}, "merges": []}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(spaces))
    assert copy_tokenizer(tmp_path, make_metadata("llama", ["a", "  "], (("  ", 4),), {})).files


def test_another_models_tokenizer_is_refused(tmp_path: Path) -> None:
    folder = write_files(tmp_path, byte_level(("<a>", 3), ("<b>", 3)))
    with pytest.raises(TokenizerError, match="2 tokens differ from the GGUF's") as caught:
        copy_tokenizer(folder, byte_level(("<c>", 3)))
    assert caught.value.problems == (
        "token 258: '<c>' in the GGUF, '<a>' in the folder",
        "token 259: absent in the GGUF, '<b>' in the folder",
    )


@pytest.mark.parametrize("content", [None, b"{}", b"[]", b"not json", b'{"model": {"vocab": {"a": "x"}}}', b"\xff"])
def test_a_folder_without_a_usable_tokenizer_json(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        copy_tokenizer(tmp_path, byte_level())
