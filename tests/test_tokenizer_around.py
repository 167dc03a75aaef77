"""What is put around one text and around two: as the original tokenizer has it, through files that llama.cpp's own
converter writes, and around one text as llama.cpp itself has it.
"""

import json
import shutil
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from gguf2st.header import read_header
from gguf2st.tokenizer import build_tokenizer, special_tokens
from gguf2st.tokenizer.files import TWO_SEP_NOTE
from tests.oracle.case import Case
from tests.oracle.cases import CASES
from tests.oracle.llamacpp import LlamaCpp
from tests.oracle.tiny import oracle_gguf, original, run_converter
from tests.vocabularies import byte_level, load, make_metadata, write_files

pytestmark = pytest.mark.oracle

TEXTS = ("hello world", "A file; is opened, twice!", "", "[SEP] </s>")
PAIRS = (("hello", "world"), ("a b", ""), ("", "open file"), ("</s>", "[CLS] x"))
WORD_PIECE = ("bert", "bert_mean", "bert_types", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "neo-bert")


@pytest.mark.parametrize("case", WORD_PIECE)
def test_word_pieces_are_put_between_cls_and_sep(case: str, tmp_path: Path) -> None:
    """gguf-py writes `add_sep_token` = false for the template of BERT, and llama.cpp appends SEP for all that."""
    path, theirs = oracle_gguf(case), load(original(case))
    metadata = read_header([path]).metadata
    assert metadata["tokenizer.ggml.add_sep_token"] is False  # or it proves nothing
    ours = load(write_files(tmp_path, metadata))
    with LlamaCpp(path, vocab_only=True) as model:
        for text in TEXTS:
            assert ours(text)["input_ids"] == theirs(text)["input_ids"]
            assert ours(text)["input_ids"] == model.tokenize(text, add_special=True)
    for pair in PAIRS:
        assert ours(*pair)["input_ids"] == theirs(*pair)["input_ids"]
        assert ours(*pair)["token_type_ids"] == theirs(*pair)["token_type_ids"]


@pytest.mark.parametrize("kind", get_args(get_type_hints(Case)["tokenizer"]))
def test_one_text_with_the_keys_that_the_converter_writes(kind: str, tmp_path: Path) -> None:
    """Of every kind of tokenizer the converter knows; published vocabularies are older than some of these keys."""
    case = next(name for name, case in CASES.items() if case.tokenizer == kind and not case.weights)
    path = oracle_gguf(case)
    metadata = read_header([path]).metadata
    ours = load(write_files(tmp_path, metadata))
    with LlamaCpp(path, vocab_only=True) as model:
        for text in TEXTS:
            assert ours(text)["input_ids"] == model.tokenize(text, add_special=True)


def _template(*, single: str, pair: str) -> dict[str, Any]:
    from tokenizers import processors

    ids = [("<s>", 0), ("</s>", 1)]
    made = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)
    found: dict[str, Any] = json.loads(made.__getstate__())
    return found


ROBERTA = {"type": "RobertaProcessing", "trim_offsets": True, "add_prefix_space": False}
ROBERTA_BPE = ROBERTA | {"sep": ["</s>", 1], "cls": ["<s>", 0]}
ENCODER = {"cls_token": "<s>", "sep_token": "</s>"}
DECODER = {"bos_token": "<s>", "eos_token": "</s>"}
WORDS = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
FORMS = {
    # name -> (case, what tokenizer.json puts around texts, names in tokenizer_config.json)
    "bert": ("modern-bert", _template(single="<s> $A </s>", pair="<s> $A </s> $B </s>"), ENCODER),
    "roberta": ("modern-bert", ROBERTA_BPE, ENCODER | DECODER),
    "roberta_words": ("bert", ROBERTA | {"sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}, WORDS),
    "llama": ("qwen3", _template(single="<s> $A", pair="<s> $A <s> $B:1"), DECODER),
    "llama_eos": ("qwen3", _template(single="<s> $A </s>", pair="<s> $A </s> <s> $B </s>"), DECODER),
    "eos": ("qwen3", _template(single="$A </s>", pair="$A </s> $B </s>"), DECODER),
}


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Originals `NAME` and the converter's `NAME.gguf`, one for each of FORMS."""
    root = tmp_path_factory.mktemp("forms")
    for name, (case, form, roles) in FORMS.items():
        shutil.copytree(original(case), root / name)
        path = root / name / "tokenizer.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"post_processor": form}))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>", "unk_token": "<unk>", **roles}
        (root / name / "tokenizer_config.json").write_text(json.dumps(config))
    jobs = [
        {"source": str(root / name), "target": str(root / f"{name}.gguf"), "flags": [], "hparams": {}} for name in FORMS
    ]
    assert run_converter(jobs) == {}
    return root


@pytest.mark.parametrize("name", FORMS)
def test_what_the_converter_makes_of_a_template_is_undone(name: str, forms: Path, tmp_path: Path) -> None:
    """The original's ids, with the class of transformers that makes a template of its own of two keys."""
    path, theirs = forms / f"{name}.gguf", load(forms / name)
    ours = load(write_files(tmp_path, read_header([path]).metadata))
    with LlamaCpp(path, vocab_only=True) as model:
        for text in TEXTS:
            assert ours(text)["input_ids"] == theirs(text)["input_ids"]
            assert ours(text)["input_ids"] == model.tokenize(text, add_special=True)
    for pair in PAIRS:
        assert ours(*pair)["input_ids"] == theirs(*pair)["input_ids"], pair


def test_the_second_sep_of_modern_bert_is_told(forms: Path) -> None:
    """The converter says `add_sep_token` of each; its own template, where there is one, goes before that."""
    assert TWO_SEP_NOTE in build_tokenizer(read_header([forms / "roberta.gguf"]).metadata).notes
    assert TWO_SEP_NOTE not in build_tokenizer(read_header([forms / "bert.gguf"]).metadata).notes
    assert TWO_SEP_NOTE in build_tokenizer(read_header([oracle_gguf("modern-bert")]).metadata).notes


def test_files_of_xlm_r_older_than_the_key(tmp_path: Path) -> None:
    """`<s> A </s></s> B </s>`, by transformers' class for it; their converter wrote BOS and EOS, and no word of SEP."""
    from transformers import XLMRobertaTokenizer

    pieces = ["<s>", "<pad>", "</s>", "<unk>", "▁", "a", "b", "<mask>"]
    theirs: Any = XLMRobertaTokenizer(vocab=[(piece, float(-i)) for i, piece in enumerate(pieces)])
    keys: dict[str, object] = {
        "token_type": [3, 3, 3, 2, 1, 1, 1, 3],
        "scores": [float(-i) for i in range(len(pieces))],
    }
    keys |= {"bos_token_id": 0, "eos_token_id": 2, "seperator_token_id": 2, "unknown_token_id": 3}
    keys |= {"add_bos_token": True, "add_eos_token": True, "add_space_prefix": True}
    ours = load(write_files(tmp_path, make_metadata("t5", pieces, (), keys)))
    assert ours("a")["input_ids"] == theirs("a")["input_ids"]
    assert ours("a", "b")["input_ids"] == theirs("a", "b")["input_ids"] == [0, 4, 5, 2, 2, 4, 6, 2]


@pytest.mark.parametrize("value", [True, False])
def test_the_pretokenizer_of_another_kind_says_nothing(value: bool) -> None:
    """The converter writes a name for word pieces too; llama.cpp reads it of byte-level BPE alone."""
    metadata = byte_level(("<s>", 3), ("</s>", 3), pre="roberta-bpe", bos_token_id=258, seperator_token_id=259)
    assert special_tokens(metadata).add_sep
    assert not special_tokens({**metadata, "tokenizer.ggml.model": "bert"}).add_sep
    both = {"tokenizer.ggml.add_sep_token": value, "tokenizer.ggml.add_eos_token": True}
    assert special_tokens({**metadata, "tokenizer.ggml.model": "bert", **both}).add_sep is value
