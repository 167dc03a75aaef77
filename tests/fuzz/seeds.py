"""The sound files that mutations start from. Everything here is made in a scratch folder, and the same every time."""

import tempfile
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzz.draft import Draft, take_apart
from tests.make_gguf import tiny_gemma3, tiny_llama, tiny_qwen2, tiny_qwen3moe, write_gguf

SMALL = {"layers": 1, "hidden": 32, "ffn": 32, "heads": 2, "kv_heads": 1}
LLAMA3_FACTORS = np.array([1.0, 1.0, 1.5, 4.0, 8.0, 8.0, 8.0, 8.0], np.float32)
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


@cache
def drafts() -> tuple[Draft, ...]:
    """Tiny complete models of several architectures, types and tokenizers."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "m.gguf"
        made: list[Draft] = []

        def keep(_: object) -> None:
            made.append(take_apart(path.read_bytes()))

        keep(tiny_llama(path, **SMALL, extra_metadata={"tokenizer.chat_template": TEMPLATE}))
        keep(tiny_llama(path, **SMALL, qtype="Q8_0", tied=False, extra_tensors={"rope_freqs.weight": LLAMA3_FACTORS}))
        keep(tiny_qwen2(path, **SMALL, qtype="Q4_0"))
        keep(tiny_qwen3moe(path, **SMALL, experts=2, expert_ffn=32, experts_used=1, qtype="BF16"))
        keep(tiny_gemma3(path, **(SMALL | {"layers": 2}), qtype="F16"))
        keep(_with_tokenizer(path, "bert", _word_pieces()))
        keep(_with_tokenizer(path, "t5", _unigram(scratch)))
        return tuple(made)


@cache
def packed_drafts() -> tuple[Draft, ...]:
    """Tiny models of types that can stay packed, wide enough for it."""
    wide = SMALL | {"hidden": 64, "ffn": 64}
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "m.gguf"
        return tuple(
            take_apart(tiny_qwen2(path, **wide, qtype=qtype).read_bytes())
            for qtype in ("Q4_0", "Q8_0", "Q4_1", "MXFP4", "NVFP4")
        )


def _with_tokenizer(path: Path, kind: str, keys: dict[str, Any]) -> Path:
    """A file without tensors: its tokenizer can be built, its model not."""
    metadata = {"llama.context_length": 64, "tokenizer.ggml.model": kind}
    return write_gguf(path, metadata | {f"tokenizer.ggml.{key}": value for key, value in keys.items()}, {})


def _word_pieces() -> dict[str, Any]:
    controls = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = ["▁the", "▁cat", "▁play", "ing", "s", "▁a", "▁b", ",", "."]
    types = np.array([3] * len(controls) + [1] * len(pieces), np.int32)
    ids = {"unknown": 1, "cls": 2, "bos": 2, "seperator": 3, "eos": 3, "padding": 0, "mask": 4}
    return {"tokens": controls + pieces, "token_type": types} | {f"{k}_token_id": v for k, v in ids.items()}


def _unigram(scratch: str) -> dict[str, Any]:
    """With a map of characters that SentencePiece compiled, of three rules."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    rules = Path(scratch) / "rules.tsv"
    rules.write_text("FB01\t66 69\n2126\t3A9\n41\t61\n", encoding="utf-8")
    prefix = Path(scratch) / "unigram"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the cat plays", "the play of a cat", "playing cats, and a fish"] * 3),
        model_prefix=str(prefix),
        vocab_size=24,
        num_threads=1,
        hard_vocab_limit=False,
        model_type="unigram",
        normalization_rule_tsv=str(rules),
        minloglevel=2,
    )
    model = sentencepiece_model_pb2.ModelProto.FromString(prefix.with_suffix(".model").read_bytes())
    charsmap = np.frombuffer(model.normalizer_spec.precompiled_charsmap, np.uint8)
    return {
        "tokens": [piece.piece for piece in model.pieces],
        "scores": np.array([piece.score for piece in model.pieces], np.float32),
        "token_type": np.array([piece.type for piece in model.pieces], np.int32),
        "precompiled_charsmap": charsmap,
        "add_space_prefix": True,
        "remove_extra_whitespaces": True,
        "unknown_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


@lru_cache(maxsize=2)
def real_draft(name: str) -> tuple[Draft, int]:
    """A published model's header without its weights, and the bytes of those."""
    from tests.vocabularies import REAL, fetched

    content = fetched(REAL[name]).read_bytes()
    draft = take_apart(content)
    nbytes, draft.data = len(draft.data), b""
    return draft, nbytes


@cache
def cases(only: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Names of the tiny models that llama.cpp's converter wrote: of these, or of all."""
    from tests.oracle.cases import CASES
    from tests.oracle.tiny import prepare

    names = only or tuple(sorted(CASES))
    failed = prepare(names)
    return tuple(case for case in names if case not in failed)


@lru_cache(maxsize=64)
def case_draft(case: str) -> Draft:
    """One of them."""
    from tests.oracle.tiny import oracle_gguf

    return take_apart(oracle_gguf(case).read_bytes())
