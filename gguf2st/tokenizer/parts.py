"""The parts of a tokenizer.json that depend on the kind of tokenizer, as JSON values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from gguf2st.errors import TokenizerError
from gguf2st.tokenizer.vocab import COPY_HINT, PREFIX, SHOWN, Vocabulary

Json: TypeAlias = dict[str, Any]
Pair: TypeAlias = tuple[str, ...]
"""The left and the right token of a merge."""


@dataclass(frozen=True)
class Parts:
    """What a kind of tokenizer contributes to tokenizer.json; None is JSON's null."""

    normalizer: Json | None
    pre_tokenizer: Json | None
    decoder: Json
    model: Json


def bpe_model(
    ids: dict[str, int],
    merges: Sequence[Pair],
    *,
    ignore_merges: bool = False,
    byte_fallback: bool = False,
    unk_token: str | None = None,
) -> Json:
    """The `model` part: BPE over the vocabulary, merges in rank order."""
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unk_token,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": unk_token is not None,
        "byte_fallback": byte_fallback,
        "ignore_merges": ignore_merges,
        "vocab": ids,
        "merges": merges,
    }


def check_merges(merges: Sequence[Pair], vocabulary: Vocabulary) -> None:
    """Raise TokenizerError unless both sides of each merge and its result are tokens.

    llama.cpp takes such merges; the BPE model of `tokenizers` refuses them.
    """
    ids = vocabulary.ids
    outside = [
        f"merges[{i}]: {left!r} + {right!r}"
        for i, (left, right) in enumerate(merges)
        if left not in ids or right not in ids or left + right not in ids
    ]
    if outside:
        raise TokenizerError(
            f"{PREFIX}merges has {len(outside)} merges with a side or a result that is no token",
            hint=COPY_HINT,
            problems=outside[:SHOWN],
        )
