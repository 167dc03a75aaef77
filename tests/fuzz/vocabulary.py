"""Mutations of a tokenizer: vocabulary, merges, special tokens, maps of characters, chat templates."""

import struct
from collections.abc import Callable
from random import Random

from gguf2st.tokenizer.pretokenizers import SUPPORTED
from tests.fuzz import hostile
from tests.fuzz.draft import ARRAY, BOOL, STRING, Array, Draft, Item
from tests.fuzz.metadata import FLAGS, FLOAT32, INT32, TOKEN_IDS, UINT8, UINT32, Mutation

MODELS = (b"gpt2", b"llama", b"gemma4", b"whitespace", b"bert", b"t5", b"rwkv", b"plamo2", b"no_vocab", b"none", b"")
SPECIALS = (
    *(b"<|im_end|>", b"<|endoftext|>", b"</s>", b"<eos>", b"<|end|>", b"<|return|>", b"<|call|>", b"<|fim_prefix|>"),
    *(b"<PAD>", b"<|channel|>", b"<|tool_response>", b"<mask>", b"[MASK]", b"<unk>", b"<s>", b"<0x00>", b"<0xFF>"),
    *(b"[PAD3]", b"[EMPTY_3]", b"##ing", "▁".encode(), "▁▁▁".encode(), b"[UNK]", b"[CLS]", b"[SEP]", b"[x]", b"##"),
    *(b"\n", b"\n\n", b"\n" * 40, "Ġ".encode(), "ÿ".encode(), b"<|plamo:eos|>"),
)
TEMPLATES = (
    *(b"", b"{{ messages }}", b"{{ x.__class__ }}", b"{% include 'x' %}", b"{{ x|nofilter }}", b"{% for %}", b"{{"),
    *(b"{{ " + b"(" * 400, b"{{ " + b"(" * 9_000, b"{{ a" + b".b" * 3_000 + b" }}", b"{{ " + b"9" * 6_000 + b" }}"),
    *(
        b"{% if a %}" * 500,
        b"{% if a %}" * 4_000,
        b"{{ x.append(1) }}",
        b"{{ 10 ** 10 ** 10 }}",
        b"{{ 'a' * 10 ** 12 }}",
    ),
    *(b"{% set x = range(10 ** 9) | list %}", b"{%- generation %}x{% endgeneration %}", b"\xff{{ x }}", b"{{ 1e999 }}"),
    *(b"{# " * 3_000, b"{{ '\\N{" + b"x" * 300 + b"}' }}", b"{% macro f() %}" * 300, b"{{ [" * 700, b"{{ not " * 900),
    *(b"x\n" * 4_000, b"{{ a }}" * 3_000, b"{% raw %}" * 50, b"{{ a if " * 400, b"{{ -" * 500, b"{% block a %}" * 60),
)


def _tokens(draft: Draft) -> list[bytes]:
    at = draft.find(b"tokenizer.ggml.tokens")
    value = draft.items[at].value if at >= 0 else None
    return list(value.items) if isinstance(value, Array) and value.kind == STRING else []


def change_tokens(draft: Draft, rng: Random) -> None:
    """Tokens that repeat, are special by their spelling, are no text; a vocabulary of another length."""
    tokens = _tokens(draft)
    if not tokens:
        return
    pick = rng.randrange(6)
    if pick == 0:
        tokens[rng.randrange(len(tokens))] = rng.choice(tokens)
    elif pick == 1:
        for _ in range(rng.choice((1, 2, 5))):
            tokens[rng.randrange(len(tokens))] = rng.choice(SPECIALS)
    elif pick == 2:
        tokens[rng.randrange(len(tokens))] = hostile.text(rng)
    elif pick == 3:
        tokens = tokens[: rng.choice((0, 1, 2, len(tokens) // 2, len(tokens) - 1))]
    elif pick == 4:
        tokens += [b"extra%d" % i for i in range(rng.choice((1, 2, 50, 3_000)))]
    else:
        rng.shuffle(tokens)
    draft.put(Item(b"tokenizer.ggml.tokens", ARRAY, Array(STRING, tokens)))


def change_token_types(draft: Draft, rng: Random) -> None:
    """Types out of range, of the wrong number, as other numbers, or all alike."""
    n = len(_tokens(draft)) + rng.choice((0, 0, 0, 0, 1, -1, -7))
    kind = rng.choice((INT32, INT32, INT32, UINT8, FLOAT32, BOOL, STRING))
    pick = rng.randrange(3)
    if pick == 0:
        values = [rng.choice((1, 2, 3, 4, 5, 6)) for _ in range(max(n, 0))]
    elif pick == 1:
        values = [rng.choice((0, 1, 3, 6, 7, 255, 256, -1, float("nan")))] * max(n, 0)
    else:
        values = [rng.choice((1, 1, 1, 4, hostile.integer(rng))) for _ in range(max(n, 0))]
    draft.put(Item(b"tokenizer.ggml.token_type", ARRAY, Array(kind, values)))


def change_scores(draft: Draft, rng: Random) -> None:
    """Scores that are no numbers, all equal, too few."""
    n = max(len(_tokens(draft)) + rng.choice((0, 0, 0, 1, -1)), 0)
    pick = rng.randrange(3)
    if pick == 0:
        values = [rng.choice(hostile.FLOATS) for _ in range(n)]
    elif pick == 1:
        values = [rng.choice((0.0, -1.0, float("nan"), float("-inf"), 1e-45))] * n
    else:
        values = [-float(i) for i in range(n)]
    draft.put(Item(b"tokenizer.ggml.scores", ARRAY, Array(rng.choice((FLOAT32, FLOAT32, 12, INT32)), values)))


def change_merges(draft: Draft, rng: Random) -> None:
    """Merges that name no tokens, or are no pairs."""
    tokens = _tokens(draft) or [b"a", b"b"]
    at = draft.find(b"tokenizer.ggml.merges")
    merges = list(draft.items[at].value.items) if at >= 0 and isinstance(draft.items[at].value, Array) else []
    new = (
        rng.choice(tokens) + b" " + rng.choice(tokens),
        rng.choice((b"", b" ", b"  ", b"a", b"a b c", b" a", b"a ", b"\xff \xfe", b"a\tb")),
        hostile.text(rng),
    )
    for line in rng.sample(new, rng.choice((1, 2, 3))):
        merges.insert(rng.randrange(len(merges) + 1), line)
    if rng.random() < 0.3:
        merges *= rng.choice((0, 2, 3))
    draft.put(Item(b"tokenizer.ggml.merges", ARRAY, Array(STRING, merges)))


def change_special_ids(draft: Draft, rng: Random) -> None:
    """Ids outside the vocabulary, of another type, or of a token that is no special one."""
    for key in rng.sample(TOKEN_IDS, rng.choice((1, 2, 4))):
        n = len(_tokens(draft))
        value = rng.randrange(n) if n and rng.random() < 0.6 else hostile.integer(rng)
        draft.put(Item(key, rng.choice((UINT32, UINT32, UINT32, INT32, 11, FLOAT32, BOOL, STRING)), value))


def change_flags(draft: Draft, rng: Random) -> None:
    """What is put around a text, and how it is normalized."""
    for key in rng.sample(FLAGS, rng.choice((1, 2, 4))):
        kind = BOOL if rng.random() < 0.9 else rng.choice((UINT32, STRING))
        draft.put(Item(key, kind, rng.getrandbits(1)))


def change_tokenizer_kind(draft: Draft, rng: Random) -> None:
    """Another kind of tokenizer or pre-tokenizer over the same vocabulary."""
    if rng.random() < 0.7:
        model = rng.choice(MODELS) if rng.random() < 0.9 else hostile.text(rng)
        draft.put(Item(b"tokenizer.ggml.model", STRING, model))
    if rng.random() < 0.7:
        names = (*sorted(SUPPORTED), "default", "")
        pre = rng.choice(names).encode() if rng.random() < 0.9 else hostile.text(rng)
        draft.put(Item(b"tokenizer.ggml.pre", STRING, pre))


def change_charsmap(draft: Draft, rng: Random) -> None:
    """A map of characters: sizes that do not add up, and tries that lead nowhere or round in circles."""
    units = rng.choice((0, 1, 2, 64, 256, 1_000))
    fill: Callable[[], int] = rng.choice(
        (lambda: rng.getrandbits(32), lambda: rng.choice((0, 1, 2**31, 2**32 - 1)), lambda: 0)
    )
    trie = b"".join(struct.pack("<I", fill()) for _ in range(units))
    size = len(trie) if rng.random() < 0.7 else hostile.integer(rng) & 0xFFFFFFFF
    raw = struct.pack("<I", size) + trie + rng.choice((b"\0", b"a\0b\0", b"", b"ab", "é\0".encode(), b"\xff\xfe\0"))
    if rng.random() < 0.3:
        raw = rng.randbytes(rng.choice((0, 1, 3, 4, 5, 400)))
    kind = rng.choice((UINT8, UINT8, UINT8, 1, INT32, FLOAT32, STRING))
    draft.put(Item(b"tokenizer.ggml.precompiled_charsmap", ARRAY, Array(kind, list(raw))))
    if rng.random() < 0.8:
        draft.put(Item(b"tokenizer.ggml.model", STRING, b"t5"))
        draft.put(Item(b"tokenizer.ggml.unknown_token_id", UINT32, 0))
        change_scores(draft, rng)


def change_template(draft: Draft, rng: Random) -> None:
    """Chat templates that do not parse, are refused, or are named like files of somebody else."""
    key = b"tokenizer.chat_template"
    if rng.random() < 0.3:
        key += b"." + rng.choice((b"tool_use", b"rag", b"..", b"../x", b"a/b", b"", b"x" * 300, b"A", *hostile.TEXTS))
    template = rng.choice(TEMPLATES) if rng.random() < 0.8 else hostile.text(rng)
    draft.put(Item(key, STRING, template) if rng.random() < 0.9 else hostile.item(rng, key))


TOKENIZER: tuple[Mutation, ...] = (
    *(change_tokens, change_token_types, change_scores, change_merges, change_special_ids, change_flags),
    *(change_tokenizer_kind, change_charsmap, change_template),
)
