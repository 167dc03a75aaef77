"""Rebuilt tokenizers of real vocabularies against llama.cpp: the ids, the texts and the ends are its own."""

import functools
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import pytest
import regex

from gguf2st.config.files import generation_config
from gguf2st.header import read_header
from gguf2st.tokenizer import build_tokenizer, special_tokens
from gguf2st.tokenizer.bytelevel import pre_tokenizer
from gguf2st.tokenizer.pretokenizers import BY_NAME, TABLE, PreTokenizer
from tests.oracle.llamacpp import LlamaCpp
from tests.tokenizer_corpus import LITERAL_TEXTS, corpus
from tests.vocabularies import (
    FILES,
    REAL,
    VOCABS,
    approximated,
    fetched,
    load,
    make_metadata,
    named_pre,
    write_files,
    write_gguf,
)

WITHOUT_VECTORS = ("aquila", "baichuan", "gpt-neox", "nomic-bert-moe")
UNNAMED = {"aquila": "gpt-2", "gpt-neox": "gpt-2"}
"""Files that name no pre-tokenizer, and the one of the model."""

KNOWN_DIFFERENCES = {
    # llama.cpp takes the first letter of a decomposed Hangul syllable, strips spacing marks too, and splits at control
    # characters; U+09FE is a mark since Unicode 11 only; U+2581 in a text starts a word in the middle of one
    "bert-bge": r"[\uAC00-\uD7A3\p{Mc}\p{Me}\x0B\x0C\x1C-\x1F\x85\u09FE\u2581]",
    # llama.cpp's engine sees white space beyond ASCII as U+000B where a regex names no category
    "deepseek-llm": r"\u3000",
    # bytes without a token: both leave them out, but tokenizers joins what is left of and right of them
    "falcon": r"[\x00-\x08\x0B-\x1F\x7F]",
    # tokenizers maps a character with all its marks, SentencePiece the longest match
    "nomic-bert-moe": r"[\p{M}\uFF9E-\uFFDC]",
}
"""Texts in which the ids differ for a reason that docs/tokenizers.md tells."""
SPECIAL_IN_MODEL = ("nomic-bert-moe",)
"""Unigram vocabularies, whose model matches special tokens also where they should be plain text."""


@dataclass(frozen=True)
class Case:
    """A GGUF, the folder written for it, and the tokenizer that transformers makes of the folder."""

    name: str
    path: Path
    metadata: Mapping[str, Any]
    folder: Path
    tokenizer: Any

    def texts(self, n: int) -> list[str]:
        """Texts that are hard in themselves, and random ones with the special tokens of this vocabulary in them."""
        known = KNOWN_DIFFERENCES.get(self.name)
        texts = [*LITERAL_TEXTS, *corpus(n, special=self.special)]
        return [text for text in texts if known is None or regex.search(known, text) is None]

    @property
    def special(self) -> list[str]:
        return [token.content for token in self.tokenizer.added_tokens_decoder.values()]

    def ids(self, texts: list[str], *, add_special: bool, parse_special: bool = True) -> list[list[int]]:
        backend = self.tokenizer.backend_tokenizer
        backend.encode_special_tokens = not parse_special
        try:
            return [e.ids for e in backend.encode_batch(texts, add_special_tokens=add_special)]
        finally:
            backend.encode_special_tokens = False


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
    if request.param in UNNAMED:  # llama.cpp has to be told what the evidence tells us
        path = named_pre(path, folder / "vocab.gguf", UNNAMED[request.param])
    return Case(request.param, path, metadata, folder, load(folder))


@pytest.fixture(scope="module")
def llama(case: Case) -> Iterator[LlamaCpp]:
    with LlamaCpp(case.path, vocab_only=True) as model:
        yield model


# --- token ids ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [250, pytest.param(5000, marks=pytest.mark.slow)])
def test_ids_are_llama_cpps(case: Case, llama: LlamaCpp, n: int) -> None:
    """With and without BOS and EOS, with special tokens in the text parsed and not."""
    texts = case.texts(n)
    assert len(texts) > 0.7 * n
    for parse_special in (True, False):
        if not parse_special and case.name in SPECIAL_IN_MODEL:
            texts = [text for text in texts if not any(special in text for special in case.special)]
        for add_special in (True, False):
            wrong = [
                (text, ids, expected)
                for text, ids in zip(
                    texts, case.ids(texts, add_special=add_special, parse_special=parse_special), strict=True
                )
                if ids != (expected := llama.tokenize(text, add_special=add_special, parse_special=parse_special))
            ]
            assert wrong == [], f"add_special={add_special} parse_special={parse_special}"


def test_transformers_gives_the_ids_of_its_backend(case: Case) -> None:
    texts = case.texts(0)
    assert case.tokenizer(texts)["input_ids"] == case.ids(texts, add_special=True)


@_for_cases(*(name for name in VOCABS if name not in WITHOUT_VECTORS))
def test_ids_are_those_of_llama_cpps_test_vectors(case: Case) -> None:
    texts = Path(f"{case.path}.inp").read_bytes().decode("utf-8").split("\n__ggml_vocab_test__\n")
    lines = Path(f"{case.path}.out").read_text().splitlines()
    ids = case.ids(texts, add_special=False, parse_special=False)  # as the vectors are made
    expected = [[int(i) for i in line.split()] for line in lines]
    wrong = [
        text
        for text, ours, theirs in zip(texts, ids, expected, strict=False)
        if ours != theirs and not regex.search(KNOWN_DIFFERENCES.get(case.name, "(?!)"), text)
    ]
    assert len(expected) > 40
    assert wrong == []


MODEL_TYPES = {
    "smollm2": ["llama", "mistral"],
    "gemma3": ["gemma3_text"],
    "llama-spm": ["llama"],
    "bert-bge": ["bert"],
    "nomic-bert-moe": ["xlm-roberta", "t5"],
}


@_for_cases(*MODEL_TYPES)
def test_the_class_transformers_picks_for_the_model_type_keeps_the_ids(case: Case, tmp_path: Path) -> None:
    for model_type in MODEL_TYPES[case.name]:
        folder = tmp_path / model_type
        shutil.copytree(case.folder, folder)
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
        tokenizer = load(folder)
        texts = case.texts(100)
        assert tokenizer(texts)["input_ids"] == case.ids(texts, add_special=True), model_type


# --- decoding ----------------------------------------------------------------------------------------------------


DECODED_AS_BYTES = dict.fromkeys(("deepseek-coder", "deepseek-llm"), frozenset("õ÷ÁýÀÿøúþüùöû"))
"""Added tokens that the ByteLevel decoder of `tokenizers` takes for bytes, in the original tokenizers too."""


@pytest.mark.parametrize("keep_special", [True, False])
def test_decoded_text_is_llama_cpps(case: Case, llama: LlamaCpp, keep_special: bool) -> None:
    """Pieces are joined for byte-level BPE, where llama_detokenize drops some spaces before punctuation."""
    kind = case.metadata["tokenizer.ggml.model"]
    prefixed = kind in ("llama", "t5") and case.metadata.get("tokenizer.ggml.add_space_prefix", kind == "llama")
    special = {i for i, token in case.tokenizer.added_tokens_decoder.items() if token.special}
    wrong = {}
    for text in case.texts(200):
        if not DECODED_AS_BYTES.get(case.name, frozenset()).isdisjoint(text):
            continue
        ids = llama.tokenize(text, add_special=False)
        if kind in ("llama", "t5"):
            expected = llama.detokenize(ids, unparse_special=keep_special)
        else:
            expected = b"".join(llama.piece(i, special=keep_special) for i in ids)
        if prefixed and not keep_special and ids and ids[0] in special:
            # llama.cpp strips the space of the first token, even of one that is left out; transformers the text's
            expected = expected.removeprefix(b" ")
        decoded = case.tokenizer.decode(ids, skip_special_tokens=not keep_special)
        theirs = expected.decode("utf-8", "replace")
        if kind == "bert":  # a text of words cannot be put together again: spaces are a matter of taste
            decoded, theirs = decoded.replace(" ", ""), theirs.replace(" ", "")
        if decoded != theirs:
            wrong[text] = (decoded, theirs)
    assert wrong == {}


# --- special tokens ----------------------------------------------------------------------------------------------

INFILL = {"smollm2": {4}, "refact": {4, 18}, "starcoder": {4}, "command-r": {0}, "bert-bge": {0}}
"""Tokens that llama.cpp also stops at because they end an infill: <reponame>, <fim_pad>, <PAD>, [PAD]."""
HTML = {"gemma3": {212}, "qwen2": {128247}, "qwen35": {128247}, "phi-3": {2}, "mpt": set()}
"""`</s>` where it is no control token."""


def test_end_ids_are_the_tokens_llama_cpp_stops_at(case: Case, llama: LlamaCpp) -> None:
    expected = {i for i in range(llama.n_tokens) if llama.ends_generation(i)}
    special = special_tokens(case.metadata)
    assert set(special.end_ids) == expected - INFILL.get(case.name, set()) - HTML.get(case.name, set())
    ends = generation_config(special, case.metadata).get("eos_token_id", [])
    assert tuple([ends] if isinstance(ends, int) else ends) == special.end_ids
    assert special.end_ids[:1] == (() if special.eos is None else (special.eos,))


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
    assert (
        tokenizer.decode([special[0], *case.ids(["Hello"], add_special=False)[0], special[1]], skip_special_tokens=True)
        == "Hello"
    )


# --- the table of pre-tokenizers ---------------------------------------------------------------------------------


N_TOKENS = 30_000
"""Of Llama 3, whose first tokens are the bytes and the results of the first merges: loads in a quarter of the time."""


@functools.cache
def _llama3() -> dict[str, object]:
    metadata = read_header([fetched(VOCABS["llama-bpe"])]).metadata
    tokens = metadata["tokenizer.ggml.tokens"][:N_TOKENS]
    known = set(tokens)
    merges = [m for m in metadata["tokenizer.ggml.merges"] if known.issuperset((*m.split(" "), m.replace(" ", "")))]
    return make_metadata("gpt2", tokens, (), {"merges": merges, "pre": "llama-bpe", "add_bos_token": False})


@pytest.fixture(scope="module")
def llama3_with(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], LlamaCpp]:
    """llama.cpp with the vocabulary of Llama 3 and another `tokenizer.ggml.pre`."""
    folder = tmp_path_factory.mktemp("pre")
    original = write_gguf(folder / "llama3.gguf", _llama3())

    def open_with(pre: str) -> LlamaCpp:
        return LlamaCpp(named_pre(original, folder / "vocab.gguf", pre), vocab_only=True)

    return open_with


@functools.cache
def _llama3_tokenizer() -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_str(build_tokenizer(_llama3()).files["tokenizer.json"].decode())


def _use(tokenizer: Any, row: PreTokenizer) -> None:
    from tokenizers import Tokenizer

    model = {"type": "BPE", "vocab": {}, "merges": []}
    empty = Tokenizer.from_str(json.dumps({"version": "1.0", "model": model, "pre_tokenizer": pre_tokenizer(row)}))
    tokenizer.pre_tokenizer = empty.pre_tokenizer
    tokenizer.model.ignore_merges = row.ignore_merges


WIDE_SPACES = r"[\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000]"
KNOWN_IN_WORDS = {"deepseek-llm": WIDE_SPACES, "deepseek-coder": WIDE_SPACES, "superbpe": r"[\p{Nd}--0-9]"}
"""As KNOWN_DIFFERENCES; \\d of llama.cpp's engine is ASCII."""


@functools.cache
def _distinct_rows() -> list[PreTokenizer]:
    """One row for each rule: names are checked by `test_names_mean_what_they_mean_to_llama_cpp`."""
    return list({(row.patterns, row.ignore_merges): row for row in TABLE}.values())


@pytest.mark.oracle
@pytest.mark.parametrize("n", [250, pytest.param(5000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("row", _distinct_rows(), ids=lambda row: row.names[0])
def test_words_are_llama_cpps(row: PreTokenizer, n: int, llama3_with: Callable[[str], LlamaCpp]) -> None:
    tokenizer = _llama3_tokenizer()
    _use(tokenizer, row)
    known = "(?V1)" + KNOWN_IN_WORDS.get(row.names[0], "(?!)")
    texts = [
        text
        for text in (*LITERAL_TEXTS, *corpus(n))
        if not approximated(row.note, text) and not regex.search(known, text)
    ]
    assert len(texts) > 0.4 * n
    with llama3_with(row.names[0]) as model:
        wrong = [
            text
            for text, ours in zip(texts, tokenizer.encode_batch(texts, add_special_tokens=False), strict=True)
            if ours.ids != model.tokenize(text, add_special=False)
        ]
    assert wrong == []


SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
LEAD, UPPER, LOWER = r"[^\r\n\p{L}\p{N}]?", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
CASED_WORDS = f"{LEAD}{UPPER}*{LOWER}+{SUFFIX}|{LEAD}{UPPER}+{LOWER}*{SUFFIX}"
GPT4O = CASED_WORDS + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + SPACES
NOT_HAN = r"&&[^\p{Han}]]"
MODELS_OWN = {
    "tekken": [GPT4O.replace(SUFFIX, "").replace("{1,3}", "")],
    "gpt-4o": [GPT4O],
    "granite-embed-multi-97m": [GPT4O],
    "kimi-k2": [
        r"[\p{Han}]+|"
        + GPT4O.replace(UPPER, UPPER[:-1] + NOT_HAN).replace(LOWER, LOWER[:-1] + NOT_HAN).replace("n/]", "n]")
    ],
    "tiny_aya": [r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O],
}
"""The regexes of the models' own repositories, as llama.cpp's sources quote them."""


@pytest.mark.parametrize("name", MODELS_OWN)
def test_words_are_those_of_the_models_own_regex(name: str) -> None:
    """Where llama.cpp can only approximate a regex, the words are compared with another engine's: `regex`."""
    from tokenizers import Tokenizer

    steps = pre_tokenizer(BY_NAME[name])
    words = {"type": "Sequence", "pretokenizers": steps["pretokenizers"][:-1]}
    model = {"type": "BPE", "vocab": {}, "merges": []}
    ours = Tokenizer.from_str(json.dumps({"version": "1.0", "model": model, "pre_tokenizer": words})).pre_tokenizer
    wrong = []
    for text in (*LITERAL_TEXTS, *corpus(1000)):
        if name == "tiny_aya" and regex.search(r"[\p{No}\p{Nl}]", text):
            continue  # they are letters to \b of Oniguruma, the engine of the model, but not of `regex`
        pieces = [text]
        for pattern in MODELS_OWN[name]:
            pieces = [word for piece in pieces for word in _split("(?V1)" + pattern, piece)]
        if [word for word, _ in ours.pre_tokenize_str(text)] != pieces:
            wrong.append(text)
    assert wrong == []


def _split(pattern: str, text: str) -> Iterator[str]:
    """The matches, and what lies between them."""
    end = 0
    for match in regex.finditer(pattern, text):
        yield from filter(None, (text[end : match.start()], match[0]))
        end = match.end()
    if end < len(text):
        yield text[end:]


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
