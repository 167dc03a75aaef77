"""Mutations of a header's counts, and of its metadata."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

from gguf2st.archmap.mapfile import all_maps
from gguf2st.header.keys import KEYS
from tests.fuzz import hostile
from tests.fuzz.draft import ARRAY, BOOL, NUMBERS, STRING, Array, Draft, Item

UINT32, INT32, FLOAT32, UINT8 = 4, 5, 6, 0
Mutation = Callable[[Draft, Random], None]
"""Changes a draft in place."""

TOKEN_IDS = [
    f"tokenizer.ggml.{role}_token_id".encode()
    for role in (
        *("bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "cls", "mask", "prefix", "suffix", "middle"),
        *("fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep"),
    )
]
FLAGS = [
    f"tokenizer.ggml.{flag}".encode()
    for flag in (
        *("add_bos_token", "add_eos_token", "add_sep_token", "add_space_prefix", "remove_extra_whitespaces"),
        *("normalizer.lowercase", "normalizer.strip_accents", "escape_whitespaces"),
    )
]
TOKENIZER_KEYS = [
    *(f"tokenizer.ggml.{key}".encode() for key in ("tokens", "token_type", "scores", "merges", "model", "pre")),
    *(b"tokenizer.ggml.precompiled_charsmap", b"tokenizer.chat_template"),
]
GENERAL = [
    f"general.{key}".encode()
    for key in (
        *("architecture", "name", "type", "alignment", "file_type", "quantization_version", "license", "tags"),
        *("sampling.temp", "sampling.top_k", "sampling.top_p", "sampling.min_p", "sampling.penalty_repeat"),
        *("base_model.0.name", "base_model.0.repo_url", "languages", "size_label", "finetune", "basename"),
    )
]
SPLIT = (b"split.no", b"split.count", b"split.tensors.count")


def known_key(draft: Draft, rng: Random) -> bytes:
    """A key of the format, below the architecture of the file where it belongs to one."""
    pick = rng.random()
    if pick < 0.55:
        return architecture(draft) + b"." + rng.choice(tuple(KEYS)).encode()
    if pick < 0.75:
        return rng.choice((*TOKEN_IDS, *FLAGS))
    if pick < 0.9:
        return rng.choice((*GENERAL, *SPLIT))
    return rng.choice((*TOKENIZER_KEYS, b"tokenizer.chat_template.tool_use", b"tokenizer.ggml.suppress_tokens"))


def architecture(draft: Draft) -> bytes:
    """What general.architecture says."""
    at = draft.find(b"general.architecture")
    value = draft.items[at].value if at >= 0 else b""
    return value if isinstance(value, bytes) else b""


@cache
def _architectures() -> Sequence[bytes]:
    return [*sorted({m.arch.encode() for m in all_maps()}), b"clip", b"mmproj", b"rwkv7", b"klingon"]


def near(n: int, rng: Random) -> int:
    close = (n - 1, n + 1, n + 2, n // 2, n * 2, 0)
    return (rng.choice(close) if rng.random() < 0.6 else hostile.integer(rng)) & (2**64 - 1)


def lie_in_preamble(draft: Draft, rng: Random) -> None:
    """Version, magic, counts."""
    pick = rng.randrange(5)
    if pick == 0:
        draft.version = rng.choice((0, 1, 2, 2, 4, 9, 0x03000000, 0x02000000, 2**32 - 1, 0x30000))
    elif pick == 1:
        draft.magic = rng.choice((b"FUGG", b"GGUf", b"\0\0\0\0", b"tjgg", b"lmgg", b"PK\3\4", b"\x1f\x8b\x08\0"))
    elif pick == 2:
        draft.n_items = near(len(draft.items), rng)
    else:
        draft.n_rows = near(len(draft.rows), rng)


def swap_byte_order(draft: Draft, rng: Random) -> None:
    """The whole file, as a converter for another machine writes it; the weights stay as they are."""
    draft.big = True


def change_alignment(draft: Draft, rng: Random) -> None:
    """general.alignment, with or without the data following it."""
    value = rng.choice((0, 1, 2, 3, 8, 12, 16, 31, 33, 64, 4096, 2**20, 2**31, 2**32 - 1))
    kind = UINT32 if rng.random() < 0.8 else rng.choice(tuple(NUMBERS))
    draft.put(Item(b"general.alignment", kind, value))
    if rng.random() < 0.5 and 0 < value <= 4096:
        draft.alignment = value
        draft.settle()


def drop_item(draft: Draft, rng: Random) -> None:
    """A key is absent."""
    if draft.items:
        del draft.items[rng.randrange(len(draft.items))]


def repeat_item(draft: Draft, rng: Random) -> None:
    """A key twice."""
    if draft.items:
        draft.items.insert(rng.randrange(len(draft.items) + 1), rng.choice(draft.items))


def rename_item(draft: Draft, rng: Random) -> None:
    """A value under another key."""
    if draft.items:
        at = rng.randrange(len(draft.items))
        key = known_key(draft, rng) if rng.random() < 0.6 else hostile.text(rng)
        draft.items[at] = replace(draft.items[at], key=key)


def lie_about_length(draft: Draft, rng: Random) -> None:
    """The length of a key, a string or an array is not what follows."""
    if not draft.items:
        return
    at = rng.randrange(len(draft.items))
    item = draft.items[at]
    if isinstance(item.value, Array) and rng.random() < 0.7:
        count = near(len(item.value.items), rng)
        draft.items[at] = item.changed(value=replace(item.value, count=count))
    elif isinstance(item.value, bytes) and rng.random() < 0.7:
        draft.items[at] = item.changed(nbytes=near(len(item.value), rng))
    else:
        draft.items[at] = replace(item, key_nbytes=near(len(item.key), rng))


def change_type(draft: Draft, rng: Random) -> None:
    """A value under the id of another type, its bytes as they were or encoded again."""
    if not draft.items:
        return
    at = rng.randrange(len(draft.items))
    kind = rng.choice((*NUMBERS, BOOL, STRING, ARRAY, 13, 255, 2**32 - 1))
    item = draft.items[at]
    draft.items[at] = replace(item, kind=kind) if rng.random() < 0.3 else item.changed(kind=kind)


def change_value(draft: Draft, rng: Random) -> None:
    """A value of the same type at an edge, or of any type."""
    if not draft.items:
        return
    at = rng.randrange(len(draft.items))
    draft.items[at] = _changed(draft.items[at], rng)


def _changed(item: Item, rng: Random) -> Item:
    pick = rng.random()
    if pick < 0.3:
        kind, value = hostile.value(rng)
        return item.changed(kind=kind, value=value)
    if isinstance(item.value, bytes):
        return item.changed(value=hostile.text(rng) if pick < 0.7 else item.value + hostile.text(rng))
    if item.kind == BOOL:
        return item.changed(value=rng.choice((0, 1, 2, 255)))
    if isinstance(item.value, Array):
        return item.changed(value=changed_array(item.value, rng))
    if isinstance(item.value, int) and pick < 0.6:
        return item.changed(value=near(item.value, rng))
    return item.changed(value=hostile.number(rng))


def changed_array(values: Array, rng: Random) -> Array:
    """An array shorter, longer, with some values replaced, or of another type."""
    items = list(values.items)
    pick = rng.randrange(6)
    if pick == 0 and items:
        items = items[: rng.choice((0, 1, len(items) // 2, len(items) - 1))]
    elif pick == 1:
        items += (items[-1:] or [0]) * rng.choice((1, 2, 100))
    elif pick == 2 and items:
        for _ in range(rng.choice((1, 1, 3))):
            items[rng.randrange(len(items))] = _element(values.kind, rng)
    elif pick == 3 and items:
        items[rng.randrange(len(items))] = rng.choice(items)
    elif pick == 4 and items:
        items = [_element(values.kind, rng)] * len(items)
    else:
        return replace(values, kind=rng.choice((*NUMBERS, BOOL, STRING, ARRAY, 13, 77)))
    return replace(values, items=items)


def _element(kind: int, rng: Random) -> Any:
    return hostile.text(rng) if kind == STRING else hostile.number(rng) if kind in NUMBERS else rng.getrandbits(1)


def add_item(draft: Draft, rng: Random) -> None:
    """A key that the format has, or one that it has not, with any value."""
    key = known_key(draft, rng) if rng.random() < 0.8 else hostile.text(rng)
    item = hostile.item(rng, key)
    draft.put(item) if rng.random() < 0.9 else draft.items.insert(0, item)


def nest_arrays(draft: Draft, rng: Random) -> None:
    """Arrays of arrays of arrays."""
    draft.put(Item(known_key(draft, rng), ARRAY, hostile.nested(rng)))


def change_architecture(draft: Draft, rng: Random) -> None:
    """Another architecture, with the keys renamed or left under the old one."""
    old, new = architecture(draft), rng.choice(_architectures())
    draft.put(Item(b"general.architecture", STRING, new))
    if rng.random() < 0.8 and old:
        for at, item in enumerate(draft.items):
            if item.key.startswith(old + b"."):
                draft.items[at] = replace(item, key=new + item.key[len(old) :])


def change_model_size(draft: Draft, rng: Random) -> None:
    """One of the numbers that everything else follows from."""
    key = rng.choice(tuple(KEYS)).encode()
    if rng.random() < 0.6:
        sizes = (b"block_count", b"embedding_length", b"attention.head_count", b"attention.head_count_kv")
        key = rng.choice(
            (*sizes, b"expert_count", b"expert_used_count", b"feed_forward_length", b"rope.dimension_count")
        )
    full = architecture(draft) + b"." + key
    pick = rng.random()
    if pick < 0.6:
        item = Item(full, UINT32, hostile.integer(rng))
    elif pick < 0.75:
        item = Item(full, FLOAT32, hostile.number(rng))
    elif pick < 0.9:
        values = [
            hostile.integer(rng) if rng.random() < 0.3 else rng.randrange(5) for _ in range(rng.choice((0, 1, 2, 3)))
        ]
        item = Item(full, ARRAY, Array(rng.choice((UINT32, INT32, BOOL, FLOAT32)), values))
    else:
        item = Item(full, STRING, rng.choice((b"linear", b"yarn", b"none", b"longrope", b"silu", *hostile.TEXTS)))
    draft.put(item)


PREAMBLE: tuple[Mutation, ...] = (lie_in_preamble, swap_byte_order, change_alignment)
METADATA: tuple[Mutation, ...] = (
    *(drop_item, repeat_item, rename_item, lie_about_length, change_type, change_value, add_item, nest_arrays),
    *(change_architecture, change_model_size),
)
