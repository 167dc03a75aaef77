"""Vocabularies for the tokenizer tests: the real ones, and tiny ones written as GGUF for llama.cpp."""

from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import regex

from gguf2st.tokenizer import build_tokenizer
from gguf2st.tokenizer.pretokenizers import CASE_NOTE, CASED_NOTE, DIGITS_NOTE
from tests.oracle.llamacpp import LlamaCpp

CACHE = Path(__file__).resolve().parents[1] / ".cache"
VOCAB_FOLDER = CACHE / "llama.cpp-11434" / "models"
REAL = {
    "smollm2": CACHE / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf",
    "gemma3": CACHE / "models" / "gemma-3-270m-q4_k_m.gguf",
}
"""Models with weights."""
VOCABS = {
    name: VOCAB_FOLDER / f"ggml-vocab-{name}.gguf"
    for name in [
        "aquila",
        "baichuan",
        "bert-bge",
        "command-r",
        "deepseek-coder",
        "deepseek-llm",
        "falcon",
        "gemma-4",
        "gpt-2",
        "gpt-neox",
        "llama-bpe",
        "llama-spm",
        "mpt",
        "nomic-bert-moe",
        "phi-3",
        "qwen2",
        "qwen35",
        "refact",
        "starcoder",
    ]
}
FILES = REAL | VOCABS
SPACE = "\u2581"


def fetched(path: Path) -> Path:
    if not path.exists():
        pytest.fail(f"{path.relative_to(CACHE.parent)} is absent: run `make models`")
    return path


def write_files(folder: Path, metadata: Mapping[str, object], **options: int) -> Path:
    for name, content in build_tokenizer(metadata, **options).files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def load(folder: Path, **options: object) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, **options)


BYTE_CHARACTERS = [chr(c) for c in (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x144))]
"""The 256 characters of byte-level BPE."""


MERGES = ["h e", "he l"]


def byte_level(*added: tuple[str, int], **keys: object) -> dict[str, object]:
    """Metadata of a byte-level BPE: bytes, the results of MERGES, then `added` tokens with their types."""
    tokens = [*BYTE_CHARACTERS, *(merge.replace(" ", "") for merge in MERGES), *(token for token, _ in added)]
    return make_metadata("gpt2", tokens, added, {"merges": list(MERGES), "pre": "gpt-2"} | keys)


def sentencepiece(scored: Mapping[str, float], *added: tuple[str, int], **keys: object) -> dict[str, object]:
    """Metadata of a SentencePiece BPE: <unk>, <s>, </s>, bytes, the scored tokens, then `added` ones with types."""
    head = {"<unk>": 2, "<s>": 3, "</s>": 3} | {f"<0x{byte:02X}>": 6 for byte in range(256)}
    tokens = [*head, *scored, *(token for token, _ in added)]
    scores = array("f", [0.0] * len(head) + list(scored.values()) + [0.0] * len(added))
    metadata = make_metadata("llama", tokens, added, {"scores": scores} | keys)
    for i, kind in enumerate(head.values()):
        metadata["tokenizer.ggml.token_type"][i] = kind  # type: ignore[index]
    return metadata


def make_metadata(
    kind: str, tokens: list[str], added: tuple[tuple[str, int], ...], keys: Mapping[str, object]
) -> dict[str, object]:
    types = array("i", [1] * (len(tokens) - len(added)) + [t for _, t in added])
    own = {"model": kind, "tokens": tokens, "token_type": types, **keys}
    return {"general.architecture": "llama", "llama.context_length": 64} | {
        f"tokenizer.ggml.{key}": value for key, value in own.items()
    }


def write_gguf(path: Path, metadata: Mapping[str, object]) -> Path:
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str) and key != "general.architecture":
            writer.add_string(key, value)
        elif isinstance(value, list | array):
            writer.add_array(key, list(value))
    for key, value in {"embedding_length": 64, "block_count": 1, "attention.head_count": 1}.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def differing(path: Path, metadata: Mapping[str, object], texts: list[str]) -> list[object]:
    tokenizer = load(write_files(path.parent / path.stem, metadata))
    with LlamaCpp(write_gguf(path, metadata), vocab_only=True) as model:
        return [
            (text, ours, theirs)
            for text in texts
            if (ours := tokenizer(text)["input_ids"]) != (theirs := model.tokenize(text, add_special=True))
        ]


def named_pre(path: Path, target: Path, pre: str) -> Path:
    """A copy of a GGUF without tensors that names a pre-tokenizer, whatever the original says."""
    raw = path.read_bytes()
    key, at = b"tokenizer.ggml.pre", raw.find(b"tokenizer.ggml.pre")
    value = (8).to_bytes(4, "little") + len(pre).to_bytes(8, "little") + pre.encode()  # type 8 is a string
    if at < 0:  # after the magic, the version and the number of tensors comes the number of keys
        n_keys = int.from_bytes(raw[16:24], "little") + 1
        head = raw[:16] + n_keys.to_bytes(8, "little") + len(key).to_bytes(8, "little") + key
        target.write_bytes(head + value + raw[24:])
    else:
        at += len(key)
        old = 4 + 8 + int.from_bytes(raw[at + 4 : at + 12], "little")
        target.write_bytes(raw[:at] + value + raw[at + old :])
    return target


def approximated(note: str, text: str) -> bool:
    """Whether llama.cpp's engine sees the text as the model's regex does not, for a row of the table with this note."""
    return (
        (CASED_NOTE in note and _has(r"[[\p{Lu}\p{Ll}\p{Lt}\p{M}]--[A-Za-z]]", text))
        or (CASE_NOTE in note and _has(r"[\p{Ll}\p{Lo}\p{Lm}][\p{Lu}\p{Lt}]|\p{M}", text))
        or (DIGITS_NOTE in note and _has(r"\s\s\p{N}", text))
        # \b of the model's regex for digits; llama.cpp only looks at what is a number
        or (CASE_NOTE in note and DIGITS_NOTE in note and _has(r"[\p{N}--0-9]|\p{N}[\p{L}_]", text))
    )


def _has(pattern: str, text: str) -> bool:
    return regex.search("(?V1)" + pattern, text) is not None
