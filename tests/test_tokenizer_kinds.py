"""Kinds and pre-tokenizers of which there is no real vocabulary, and files that do not say what they are."""

import random
from array import array
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner
from tokenizers import Tokenizer
from tokenizers.models import BPE

from gguf2st import api
from gguf2st.cli.check import command as check
from gguf2st.errors import TokenizerError, UsageError
from gguf2st.header import read_header
from gguf2st.tokenizer import build_tokenizer, plan_tokenizer, special_tokens, with_pretokenizer
from gguf2st.tokenizer.evidence import SIGNATURES, resolve
from gguf2st.tokenizer.pretokenizers import BY_NAME, RAW_TEXT
from tests.make_gguf import tiny_llama
from tests.oracle.llamacpp import LlamaCpp
from tests.tokenizer_corpus import corpus
from tests.vocabularies import (
    BYTE_CHARACTERS,
    FILES,
    SPACE,
    byte_level,
    differing,
    fetched,
    load,
    make_metadata,
    sentencepiece,
    write_files,
    write_gguf,
)

pytestmark = pytest.mark.oracle


def _texts(alphabet: str, n: int = 300) -> list[str]:
    draw = random.Random(11)
    return ["", *("".join(draw.choices(alphabet, k=draw.randint(1, 16))) for _ in range(n))]


# --- BPE on the text itself --------------------------------------------------------------------------------------


def _raw_text(pre: str, kind: str = "gpt2", **keys: object) -> dict[str, object]:
    """Bytes, letters, and every pair and triple of a few of them; newlines merge too."""
    letters = ["a", "b", "A", SPACE, "\n"]
    pairs = [x + y for x in letters for y in letters if (x == "\n") == (y == "\n")]
    triples = [x + pair for x in letters for pair in pairs if (x == "\n") == (pair[0] == "\n")]
    merges = [f"{pair[0]} {pair[1]}" for pair in pairs] + [f"{word[0]} {word[1:]}" for word in triples]
    merges.append("\n\n \n")
    head = {"<unk>": 2, "<s>": 3, "<mask>": 3} | {f"<0x{byte:02X}>": 6 for byte in range(256)}
    tokens = [*head, *letters, *pairs, *triples]
    types = array("i", [*head.values(), *[1] * (len(tokens) - len(head))])
    own = {"merges": merges, "pre": pre, "token_type": types, "bos_token_id": 1, "unknown_token_id": 0}
    return make_metadata(kind, tokens, (), own | keys)


@pytest.mark.parametrize("pre", RAW_TEXT)
def test_text_itself_is_split_as_llama_cpp_does(pre: str, tmp_path: Path) -> None:
    texts = [*_texts("abA \n"), *_texts(f"ab {SPACE}\né<mask>"), *corpus(150, special=["<s>", "<mask>"])]
    assert differing(tmp_path / "v.gguf", _raw_text(pre), texts) == []


def test_newlines_that_no_merge_makes_are_refused() -> None:
    metadata = _raw_text("gemma4")
    metadata["tokenizer.ggml.merges"] = [m for m in metadata["tokenizer.ggml.merges"] if "\n" not in m]  # type: ignore[attr-defined]
    with pytest.raises(TokenizerError, match="2 runs of newlines are tokens that the merges do not make"):
        plan_tokenizer(metadata)


@pytest.mark.parametrize("lowercase", [True, False])
def test_words_between_white_space(lowercase: bool, tmp_path: Path) -> None:
    metadata = _raw_text("whitespace", "whitespace", **{"normalizer.lowercase": lowercase})
    assert differing(tmp_path / "v.gguf", metadata, _texts("abAé \n\t\u3000")) == []


# --- WordPiece ---------------------------------------------------------------------------------------------------


def _word_pieces(**keys: object) -> dict[str, object]:
    special = {"[PAD]": 3, "[UNK]": 3, "[CLS]": 3, "[SEP]": 3, "[MASK]": 3, "[unused0]": 1}
    words = [SPACE + w for w in ("play", "a", "b", "é", "É", "A", "e", ".", "!", "中", "1", "[unused1]")]
    tokens = [*special, *words, "ing", "er", "a", "b", "e", "1"]
    ids = {"unknown_token_id": 1, "cls_token_id": 2, "bos_token_id": 2, "seperator_token_id": 3, "padding_token_id": 0}
    types = array("i", [*special.values(), *[1] * (len(tokens) - len(special))])
    return make_metadata("bert", tokens, (), {"token_type": types, **ids, **keys})


@pytest.mark.parametrize("lowercase", [None, True, False])
@pytest.mark.parametrize("strip_accents", [None, True, False])
def test_word_pieces(lowercase: bool | None, strip_accents: bool | None, tmp_path: Path) -> None:
    options = {"normalizer.lowercase": lowercase, "normalizer.strip_accents": strip_accents}
    metadata = _word_pieces(**{key: value for key, value in options.items() if value is not None})
    texts = ["playing player", "PLAY[MASK]ing", "x" * 300, *_texts("playingeréÉA .!中1")]
    assert differing(tmp_path / "v.gguf", metadata, texts) == []


def test_two_texts_are_told_apart(tmp_path: Path) -> None:
    tokenizer = load(write_files(tmp_path, _word_pieces()))
    both = tokenizer("a", "b")
    words = tokenizer.convert_ids_to_tokens(both["input_ids"])
    assert words == ["[CLS]", "a", "[SEP]", "b", "[SEP]"]
    assert both["token_type_ids"] == [0, 0, 0, 1, 1]


def test_sep_goes_between_two_texts_of_byte_level_bpe(tmp_path: Path) -> None:
    """As RoBERTa has it: BOS a EOS SEP b EOS."""
    keys = {"bos_token_id": 258, "eos_token_id": 259, "seperator_token_id": 259}
    metadata = byte_level(("<s>", 3), ("</s>", 3), pre="roberta-bpe", add_bos_token=True, add_eos_token=True, **keys)
    tokenizer = load(write_files(tmp_path, metadata))
    assert tokenizer("h", "e")["input_ids"] == [258, 71, 259, 259, 68, 259]
    assert differing(tmp_path / "v.gguf", metadata, ["he", "</s>he"]) == []


def test_bytes_without_a_token(tmp_path: Path) -> None:
    """Both leave them out. What is left is joined by `tokenizers`, which the originals use, and not by llama.cpp."""
    metadata = byte_level()
    tokens = metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    tokens[tokens.index("Z")] = "unused"
    assert "no token for 1 bytes of ordinary texts (0x5A (Z))" in " ".join(build_tokenizer(metadata).notes)
    assert differing(tmp_path / "v.gguf", metadata, ["he", "hel Zoo", "Z", "ZZh"]) == []
    ours = load(tmp_path / "v")
    h, e, he = (tokens.index(token) for token in ("h", "e", "he"))
    with LlamaCpp(tmp_path / "v.gguf", vocab_only=True) as model:
        assert model.tokenize("hZe", add_special=True) == [h, e]
    assert ours("hZe")["input_ids"] == [he]
    original = Tokenizer(BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[("h", "e")]))
    assert original.encode("hZe").ids == [he]


@pytest.mark.parametrize("name", ["falcon", "gpt-neox", "mpt", "refact", "starcoder", "smollm2"])
def test_real_vocabularies_lack_bytes_of_no_ordinary_text(name: str) -> None:
    metadata = read_header([fetched(FILES[name])]).metadata
    assert not any("bytes of ordinary texts" in note for note in plan_tokenizer(metadata).notes)
    tokens = set(metadata["tokenizer.ggml.tokens"])  # type: ignore[call-overload]
    assert any(char not in tokens for char in BYTE_CHARACTERS)  # or it proves nothing


# --- Unigram -----------------------------------------------------------------------------------------------------


def _unigram(**keys: object) -> dict[str, object]:
    draw = random.Random(2)
    words = {"".join(draw.choices("abc" + SPACE, k=draw.randint(2, 4))) for _ in range(40)}
    scored = dict.fromkeys(["a", "b", "c", SPACE, "."], -9.0) | {word: draw.uniform(-12, -2) for word in sorted(words)}
    head = {"<pad>": 3, "</s>": 3, "<unk>": 2}
    tokens = [*head, *scored, "<x>", "[PAD49]"]
    types = array("i", [*head.values(), *[1] * len(scored), 4, 5])
    scores = array("f", [0.0] * 3 + list(scored.values()) + [0.0, -10000.0])
    return make_metadata("t5", tokens, (), {"token_type": types, "scores": scores, **keys})


@pytest.mark.parametrize("add_space_prefix", [None, True, False])
@pytest.mark.parametrize("remove_extra_whitespaces", [None, True, False])
@pytest.mark.parametrize("add_eos", [True, False])
def test_the_best_sum_of_scores(
    add_space_prefix: bool | None, remove_extra_whitespaces: bool | None, add_eos: bool, tmp_path: Path
) -> None:
    options = {"add_space_prefix": add_space_prefix, "remove_extra_whitespaces": remove_extra_whitespaces}
    metadata = _unigram(add_eos_token=add_eos, **{k: v for k, v in options.items() if v is not None})
    texts = [" ", "   ", "<x> a", "a <x>", "</s>a b</s>", *_texts("abc  .é\n"), *_texts("abc <x>")]
    assert differing(tmp_path / "v.gguf", metadata, texts) == []


@pytest.mark.parametrize(
    ("charsmap", "message"),
    [
        ("abcd", "not an array of bytes"),
        ([1.5, 2.0], "not an array of bytes"),
        (array("B", [200, 0, 0, 0, 1, 0]), "damaged: 6 bytes with a trie of 200"),
        (array("B", [4, 0, 0, 0, 1, 0, 0, 0, 65]), "damaged: 9 bytes with a trie of 4"),
    ],
)
def test_a_broken_map_of_characters(charsmap: object, message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        plan_tokenizer(_unigram(precompiled_charsmap=charsmap))


@pytest.mark.parametrize("kind", ["t5", "bert"])
def test_a_kind_that_needs_an_unknown_token(kind: str) -> None:
    metadata = make_metadata(kind, ["a", SPACE + "a"], (), {"scores": array("f", [0.0, 0.0])})
    for function in (plan_tokenizer, build_tokenizer):
        with pytest.raises(TokenizerError, match=r"unknown token|is to be added"):
            function(metadata)


@pytest.mark.parametrize("kind", ["rwkv", "plamo2", "hybriddna", "none", "no_vocab"])
def test_what_tokenizers_cannot_express_is_refused_with_the_reason(kind: str) -> None:
    with pytest.raises(TokenizerError, match=f"model '{kind}' cannot be rebuilt: .{{9}}") as caught:
        plan_tokenizer(byte_level(model=kind))
    assert "--tokenizer-from" in caught.value.hint


# --- files that do not say how words are split -------------------------------------------------------------------

NOT_BYTE_LEVEL = ("gemma3", "gemma-4", "baichuan", "llama-spm", "phi-3", "bert-bge", "nomic-bert-moe")
BYTE_LEVEL_FILES = [name for name in FILES if name not in NOT_BYTE_LEVEL]


@pytest.mark.real
@pytest.mark.parametrize("name", BYTE_LEVEL_FILES)
@pytest.mark.parametrize("said", [None, "default"])
def test_the_vocabulary_tells_how_words_are_split(name: str, said: str | None) -> None:
    metadata = read_header([fetched(FILES[name])]).metadata
    named = metadata.get("tokenizer.ggml.pre")
    unsaid: dict[str, object] = {k: v for k, v in metadata.items() if k != "tokenizer.ggml.pre"}
    if name == "qwen35":  # this file says it is of arch qwen2
        unsaid["general.architecture"] = "qwen35"
    if said is not None:
        unsaid["tokenizer.ggml.pre"] = said
    found, notes = resolve(unsaid)
    row = BY_NAME[str(found["tokenizer.ggml.pre"])]
    assert row.patterns == BY_NAME[str(named or "gpt-2")].patterns
    assert row.ignore_merges == BY_NAME[str(named or "gpt-2")].ignore_merges
    assert len(notes) == 1
    assert notes[0].startswith(f"tokenizer.ggml.pre is {said!r}; the vocabulary is that of")
    assert notes[0] in plan_tokenizer(unsaid).notes


def test_no_two_signatures_fit_one_vocabulary() -> None:
    """Each is told from every other by a token at the same place, or by the architecture."""
    for i, first in enumerate(SIGNATURES):
        for second in SIGNATURES[i + 1 :]:
            apart = any(second.tokens.get(place, text) != text for place, text in first.tokens.items())
            if first.pre != second.pre and not apart:
                assert first.archs or second.archs or not _fits_together(first.tokens, second.tokens), (first, second)


def _fits_together(first: Mapping[int, str], second: Mapping[int, str]) -> bool:
    """Whether one vocabulary could have both; those of different sizes are told apart by their last token."""
    return bool(first.keys() & second.keys()) and max(first) == max(second)


@pytest.mark.parametrize("said", [None, "default", "never-heard-of"])
def test_an_unknown_vocabulary_is_an_error_with_the_ways_out(said: str | None) -> None:
    metadata = {k: v for k, v in byte_level(pre=said).items() if v is not None}
    with pytest.raises(TokenizerError) as caught:
        plan_tokenizer(metadata)
    assert "--tokenizer-pre NAME" in caught.value.hint
    assert "--tokenizer-from" in caught.value.hint
    assert "qwen2" in caught.value.problems[0]


@pytest.mark.parametrize("said", [None, "default", "gpt-2", "never-heard-of"])
def test_the_user_can_name_it(said: str | None, tmp_path: Path) -> None:
    metadata = {k: v for k, v in byte_level(("<s>", 3), pre=said, bos_token_id=258).items() if v is not None}
    named = with_pretokenizer(metadata, "llama-bpe")
    assert special_tokens(named).add_bos  # as llama-bpe has it, where the file does not say
    expected = write_gguf(tmp_path / "v.gguf", metadata | {"tokenizer.ggml.pre": "llama-bpe"})
    tokenizer = load(write_files(tmp_path / "out", named))
    with LlamaCpp(expected, vocab_only=True) as model:
        for text in ("he he", "hehe 12345", "it's"):
            assert tokenizer(text)["input_ids"] == model.tokenize(text, add_special=True)


def test_a_name_that_is_none() -> None:
    with pytest.raises(TokenizerError, match="--tokenizer-pre 'default' is not supported") as caught:
        with_pretokenizer(byte_level(), "default")
    assert "qwen2" in caught.value.problems[0]
    with pytest.raises(TokenizerError, match=r"only tokenizer\.ggml\.model 'gpt2' has a pre-tokenizer to choose"):
        with_pretokenizer(sentencepiece({"a": -1.0}), "qwen2")


def test_check_takes_the_name_from_the_user(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "v.gguf", layers=1, extra_metadata={"tokenizer.ggml.pre": "never-heard-of"})
    said = "tokenizer.ggml.pre 'never-heard-of' is not supported: available: "
    assert [line.startswith(said) for _, line in api.problems(path)] == [True]
    assert not any("tokenizer" in line for _, line in api.problems(path, tokenizer_pre="gpt-2"))
    shown = CliRunner().invoke(check, [str(path), "--tokenizer-pre", "gpt-3"])
    assert shown.exit_code == TokenizerError.exit_code
    assert "--tokenizer-pre 'gpt-3' is not supported" in shown.output


def test_a_whole_tokenizer_leaves_nothing_to_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="tokenizer_from takes a whole tokenizer"):
        api.convert(fetched(FILES["smollm2"]), tmp_path / "out", tokenizer_from=tmp_path, tokenizer_pre="qwen2")
