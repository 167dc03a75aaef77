"""Mutations of a GGUF: each changes a draft in place, and knows the format well enough to lie plausibly."""

import struct
from collections.abc import Sequence
from random import Random

from tests.fuzz import hostile
from tests.fuzz.draft import Draft
from tests.fuzz.metadata import (
    METADATA,
    PREAMBLE,
    Mutation,
    add_item,
    change_architecture,
    change_model_size,
    change_value,
    drop_item,
    rename_item,
)
from tests.fuzz.tensors import TENSORS, add_rows, change_shape, change_tensor_type, drop_row, rename_row, repeat_row
from tests.fuzz.vocabulary import TOKENIZER

ANYTHING = PREAMBLE + METADATA + TENSORS + TOKENIZER
MEANING: tuple[Mutation, ...] = (
    *(drop_item, rename_item, change_value, add_item, change_architecture, change_model_size, change_model_size),
    *(drop_row, repeat_row, rename_row, change_shape, change_tensor_type, add_rows, *TOKENIZER),
)
"""Those after which a header can still be read, so that what comes behind it is reached."""


def mutated(seed: Draft, rng: Random, mutations: Sequence[Mutation]) -> Draft:
    """The draft, changed once or a few times."""
    draft = seed.copy()
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        rng.choice(mutations)(draft, rng)
    return draft


def broken_bytes(content: bytes, rng: Random, end: int | None = None) -> bytes:
    """The file with some bytes changed before `end`, cut, or with bytes put in or taken out."""
    if not content:
        return content
    end = min(end or len(content), len(content))
    pick = rng.random()
    if pick < 0.2:
        return content[: rng.randrange(end)]
    if pick < 0.35:
        at = rng.randrange(end)
        n = rng.choice((1, 4, 8, 100))
        return content[:at] + (rng.randbytes(n) if rng.random() < 0.5 else b"") + content[at + rng.choice((0, n)) :]
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(end)
        if rng.random() < 0.7:
            changed[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, changed[at] ^ (1 << rng.randrange(8))))
        else:
            number = struct.pack("<Q", hostile.integer(rng) & (2**64 - 1))[: rng.choice((4, 8))]
            changed[at : at + len(number)] = number
    return bytes(changed)
