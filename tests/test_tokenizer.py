"""Tokenizers rebuilt from tiny vocabularies, against llama.cpp; broken vocabularies; the original instead."""

import json
import random
import subprocess
import sys
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf2st import convert, make_plan, open_gguf, verify
from gguf2st.errors import Gguf2stError, TokenizerError
from gguf2st.tokenizer import build_tokenizer, copy_tokenizer, plan_tokenizer, special_tokens
from gguf2st.tokenizer.pretokenizers import BY_NAME
from tests.make_gguf import tiny_model
from tests.oracle.llamacpp import LlamaCpp, in_child
from tests.oracle.tiny import oracle_gguf
from tests.vocabularies import (
    BYTE_CHARACTERS,
    SPACE,
    approximated,
    byte_level,
    differing,
    load,
    make_metadata,
    sentencepiece,
    write_files,
    write_gguf,
)

WITHOUT_VECTORS = ("baichuan",)

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
        plan_tokenizer(metadata)
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


@pytest.mark.oracle
@pytest.mark.parametrize("more", [-1, 1])
def test_llama_cpp_too_refuses_a_vocabulary_that_is_not_the_rows(tmp_path: Path, more: int) -> None:
    """Neither side can be padded: no working file has another number of tokens than rows of the embedding."""
    rows = np.zeros((302 + more, 64), np.float32)
    source = tiny_model(tmp_path / "m.gguf", extra_tensors={"token_embd.weight": rows})
    with pytest.raises(RuntimeError, match=r"'token_embd\.weight' has wrong shape"):
        in_child(lambda: LlamaCpp(source).n_tokens)
    with pytest.raises(Gguf2stError, match="vocab_size is not the embedding's rows"):
        make_plan(source).require_complete()


@pytest.mark.oracle
def test_the_converters_padding_of_xlm_r_is_no_other_tokenizer(tmp_path: Path) -> None:
    """Its padding is numbered as before the ids were moved by one: token 511 is [PAD510]."""
    source = oracle_gguf("xlm-roberta")
    assert open_gguf(source).metadata["tokenizer.ggml.tokens"][511] == "[PAD510]"
    convert(source, tmp_path / "out", dtype="float32")
    verify(tmp_path / "out", against=source).require_ok()


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
        "import sys\nfrom gguf2st.tokenizer import plan_tokenizer\n"
        "keys = {'model': 'gpt2', 'pre': 'gpt-2', 'tokens': ['a', 'b', 'ab'], 'merges': ['a b']}\n"
        "keys['token_type'] = [1, 1, 1]\n"
        "plan_tokenizer({f'tokenizer.ggml.{k}': v for k, v in keys.items()})\n"
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
    for function in (plan_tokenizer, build_tokenizer):
        with pytest.raises(TokenizerError, match=message):
            function(metadata)


@pytest.mark.parametrize("model", ["test", "gpt2"])
def test_what_is_not_supported_says_what_is_and_what_to_do(model: str) -> None:
    with pytest.raises(TokenizerError) as caught:
        plan_tokenizer(byte_level(model=model, pre="nonsense"))
    assert "--tokenizer-from DIR_OR_REPO" in caught.value.hint
    available = "smollm" if model == "gpt2" else "gpt2, llama"
    assert available in "".join(caught.value.problems)


@pytest.mark.parametrize("value", [258, -1, 2**32 - 1, "1", True, 1.0])
@pytest.mark.parametrize(
    "role", ["bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "cls", "mask", "fim_pre"]
)
def test_an_id_outside_the_vocabulary(role: str, value: object) -> None:
    metadata = byte_level() | {f"tokenizer.ggml.{role}_token_id": value}
    for function in (special_tokens, plan_tokenizer):
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
        plan_tokenizer(metadata)
    assert "--tokenizer-from" in caught.value.hint


@pytest.mark.parametrize("name", ["../evil", "a/b", "", ".hidden", "a b", "\udcff"])
def test_a_template_name_cannot_leave_the_folder(name: str) -> None:
    with pytest.raises(TokenizerError, match="cannot be a file name"):
        plan_tokenizer(byte_level() | {f"tokenizer.chat_template.{name}": "x"})


@pytest.mark.parametrize("template", [1, ["x"], "\udcff"])
def test_a_template_is_text(template: object) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.chat_template is not a UTF-8 string"):
        plan_tokenizer(byte_level() | {"tokenizer.chat_template": template})


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
    vocab = {"[CLS]": 0, "a": 1, "##b": 2}
    options = {"unk_token": "[CLS]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    pieces = {"version": "1.0", "added_tokens": [], "model": {"type": "WordPiece", "vocab": vocab, **options}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(pieces))
    metadata = make_metadata("bert", ["[CLS]", "▁a", "b"], (), {}) | {
        "tokenizer.ggml.token_type": array("i", [3, 1, 1])
    }
    assert copy_tokenizer(tmp_path, metadata).files
    spaces = {"added_tokens": [], "model": {"type": "BPE", "vocab": {"a": 0, "▁▁": 1}, "merges": []}}
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


def _tokenizer_json(*tokens: str, added: Mapping[int, str] | None = None) -> str:
    extra = [{"id": i, "content": text} for i, text in (added or {}).items()]
    vocab = {token: i for i, token in enumerate(tokens)}
    return json.dumps({"model": {"type": "BPE", "vocab": vocab, "merges": []}, "added_tokens": extra})


OTHER_FOLDERS = {
    "ids shifted by one": (
        _tokenizer_json("<new>", "a", "b", "c"),
        4,
        "token 0: 'a' in the GGUF, '<new>' in the folder",
    ),
    "two swapped": (_tokenizer_json("b", "a", "c"), 2, "token 0: 'a' in the GGUF, 'b' in the folder"),
    "one too few": (_tokenizer_json("a", "b"), 1, "token 2: 'c' in the GGUF, absent in the folder"),
    "an added token": (_tokenizer_json("a", "b", "c", added={3: "<x>"}), 1, "token 3: absent in the GGUF, '<x>' in"),
    "an added token over another": (
        _tokenizer_json("a", "b", "c", added={1: "<x>"}),
        1,
        "token 1: 'b' in the GGUF, '<x>'",
    ),
    "a space where there is none": (_tokenizer_json("a", "▁b", "c"), 1, "token 1: 'b' in the GGUF, '▁b' in the folder"),
    "another case": (_tokenizer_json("A", "b", "c"), 1, "token 0: 'a' in the GGUF, 'A' in the folder"),
}


@pytest.mark.parametrize(("content", "n", "problem"), OTHER_FOLDERS.values(), ids=OTHER_FOLDERS)
def test_a_folder_that_nearly_fits_is_refused(content: str, n: int, problem: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerError, match=f"another model: {n} tokens differ") as caught:
        copy_tokenizer(tmp_path, make_metadata("gpt2", ["a", "b", "c"], (), {}))
    assert caught.value.problems[0].startswith(problem)


def test_a_folder_with_sentencepiece_only(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"x")
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json.*, only tokenizer\.model") as caught:
        copy_tokenizer(tmp_path, byte_level())
    assert "save_pretrained" in caught.value.hint


@pytest.mark.parametrize("as_object", [True, False])
@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
def test_special_tokens_with_another_role_are_told(file: str, as_object: bool, tmp_path: Path) -> None:
    metadata = byte_level(("<a>", 3), ("<b>", 3), bos_token_id=258, eos_token_id=259)
    (write_files(tmp_path, metadata) / "tokenizer_config.json").unlink()
    content = {"eos_token": {"content": "<a>"} if as_object else "<a>", "bos_token": "<a>", "pad_token": "<p>"}
    (tmp_path / file).write_text(json.dumps(content))
    notes = copy_tokenizer(tmp_path, metadata).notes
    assert notes[1:] == ("eos_token is '<a>' in the folder, '<b>' in the GGUF: the folder's is taken",)


def test_a_folder_without_a_template_gets_the_ggufs(tmp_path: Path) -> None:
    folder = write_files(tmp_path, byte_level())
    metadata = byte_level() | {"tokenizer.chat_template": "A"}
    copied = copy_tokenizer(folder, metadata)
    assert copied.files["chat_template.jinja"] == b"A"
    assert "chat_template.jinja is the GGUF's: the folder has no chat template" in copied.notes
    (folder / "chat_template.jinja").write_text("B")
    assert copy_tokenizer(folder, metadata).files["chat_template.jinja"] == b"B"
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").write_text('{"chat_template": "C"}')
    assert "chat_template.jinja" not in copy_tokenizer(folder, metadata).files


@pytest.mark.parametrize("content", [b"[]", b"nonsense", b"1", b"\xff"])
def test_a_broken_config_in_the_folder(content: bytes, tmp_path: Path) -> None:
    (write_files(tmp_path, byte_level()) / "tokenizer_config.json").write_bytes(content)
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json is no JSON object"):
        copy_tokenizer(tmp_path, byte_level())


@pytest.mark.parametrize("content", [None, b"{}", b"[]", b"not json", b'{"model": {"vocab": {"a": "x"}}}', b"\xff"])
def test_a_folder_without_a_usable_tokenizer_json(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        copy_tokenizer(tmp_path, byte_level())
