"""Qwen4-Exp: its table of n-grams, whose rows are found by hashing a token and those before it, and sparse attention.

The classes of transformers and vLLM compute the size of the table from config.json, of which a GGUF holds only what
followed: sizes, offsets and multipliers of the hash, and the padded table.
"""

import math
from typing import Any

from gguf2st.config.functions import FileScope, function, given
from gguf2st.config.hybrid import layerwise
from gguf2st.config.layer_rules import dense_width, linear_or_full
from gguf2st.errors import MapError

TABLE = "per_layer_token_embd.weight"
PUBLISHED_BASE, PUBLISHED_DIVISOR, PUBLISHED_PARTS = 20_000_000, 128, 512
"""What the classes have by default, and the published checkpoint (transformers' configuration_qwen4_exp.py)."""
MAX_HEADS = 256
"""Most heads whose sizes are looked for: each costs a search for a prime. The published model has 16."""
MAX_ROWS = 2**31 - 1
"""Most rows of a table: llama.cpp counts them in 32 bits."""


@function("ple.layers")
def ngram_layer(scope: FileScope, layers: int) -> int:
    """The layer that has a table of n-grams; -1 where none has.

    Raises:
        MapError: several have one, of which llama.cpp has the sizes of the first alone, or one past the last.
    """
    found = given(scope, "ple.layers", [-1])
    if len(found) > 1 or not -1 <= found[0] < layers:
        raise MapError(f"ple.layers is {found}; one of {layers} layers was expected")
    return int(found[0])


@function("ple.", "embedding_length_per_layer_input")
def ngram_heads(scope: FileScope) -> int:
    """How many numbers each n-gram is hashed to: some for each length from two tokens on."""
    size, heads = given(scope, "ple.ngram_size", 0), given(scope, "ple.heads_per_ngram", 0)
    if size < 2 or not 0 < (size - 1) * heads <= MAX_HEADS:
        raise MapError(f"ple.ngram_size is {size} and ple.heads_per_ngram {heads}: these give no number of heads")
    return int((size - 1) * heads)


@function()
def ngram_part_rows(scope: FileScope) -> int:
    """Rows of each part that the table is cut into but the last, as vLLM counts them for that number of parts."""
    return -(-scope.shape(TABLE)[0] // PUBLISHED_PARTS)


@function()
def ngram_parts(scope: FileScope) -> int:
    """How many parts the table is cut into, of which none is empty: 512 of a large one; 0 without a table."""
    return -(-scope.shape(TABLE)[0] // ngram_part_rows(scope)) if scope.has(TABLE) else 0


@function()
def ngram_rows(scope: FileScope, index: int) -> int:
    """Rows of one part of the table: the last has what is left."""
    size = ngram_part_rows(scope)
    return min(size, scope.shape(TABLE)[0] - index * size)


@function("ple.", "embedding_length_per_layer_input")
def ngram_width(scope: FileScope) -> int:
    """The embeddings of all n-grams of a token together."""
    return ngram_heads(scope) * scope.shape(TABLE)[-1]


@function("ple.", "embedding_length_per_layer_input", "attention.recurrent_layers", "full_attention_interval")
def ngrams(scope: FileScope, layers: int) -> dict[str, Any]:
    """config.json of the table.

    Raises:
        MapError: a table whose sizes are not what the classes would make of any configuration.
    """
    layer = ngram_layer(scope, layers)
    if layer < 0:
        return {"ple_layer_ids": []}
    if linear_or_full(scope, layers)[layer] != "linear_attention":
        raise MapError(f"ple.layers is [{layer}], a layer of full attention; one of linear attention was expected")
    if (eos := scope.get("ple.eos_token_id")) is None:
        raise MapError("the file lacks ple.eos_token_id, the token at which n-grams end")
    scope.get("ple.image_token_id")  # stands for images, which a text model does not see
    rows, width = scope.shape(TABLE)
    if scope.get("embedding_length_per_layer_input") not in (None, width):
        raise MapError(f"embedding_length_per_layer_input is not the {width} columns of {TABLE}")
    heads = ngram_heads(scope)
    base, total = _base(scope, heads)
    return {
        "ple_layer_ids": [layer + 1],
        "ple_embed_dim": ngram_width(scope),
        "ple_conv_kernel_size": scope.get("ple.conv_kernel"),
        "ngram_size": scope.get("ple.ngram_size"),
        "heads_per_ngram": scope.get("ple.heads_per_ngram"),
        "ngram_vocab_size_base": base,
        "make_ngram_vocab_size_divisible_by": _divisor(total, rows),
        "split_ngram_parts": ngram_parts(scope),
        "eos_token_id": eos,  # vLLM's class takes one; generation_config.json has all
    }


@function("attention.compress_ratios", "attention.indexer.", "attention.recurrent_layers", "full_attention_interval")
def block_attention(scope: FileScope, layers: int) -> dict[str, Any]:
    """The kind of attention of each layer, and what chooses, block by block, the tokens that full attention looks at.

    Raises:
        MapError: layers of full attention without one size of blocks that they share, or others with one.
    """
    ratios, kinds = layerwise(scope, "attention.compress_ratios", layers), linear_or_full(scope, layers)
    full = [kind == "full_attention" for kind in kinds]
    sizes = {ratio for ratio, is_full in zip(ratios, full, strict=True) if is_full}
    if any(ratio for ratio, is_full in zip(ratios, full, strict=True) if not is_full) or len(sizes) > 1 or 0 in sizes:
        raise MapError(f"attention.compress_ratios is {ratios}; one number for each layer of full attention, 0 for the"
                       " others, was expected")  # fmt: skip
    indexer = {
        "indexer_n_heads": scope.get("attention.indexer.head_count"),
        "indexer_kv_heads": 1,
        "indexer_head_dim": scope.get("attention.indexer.key_length"),
        "indexer_budget": scope.get("attention.indexer.top_k"),
    }
    return {"layer_types": kinds} | ({**indexer, "indexer_compress_ratio": sizes.pop()} if sizes else {})


@function("hyper_connection.")
def hyper_connections(scope: FileScope) -> dict[str, Any]:
    """The streams of the residual, and the rank of what mixes them.

    Raises:
        MapError: one stream, which has nothing to mix: neither the classes nor llama.cpp take that.
    """
    count = given(scope, "hyper_connection.count", 0)
    if count < 2:
        raise MapError(f"hyper_connection.count is {count}; several streams were expected")
    return {"hc_count": count, "hc_lowrank": scope.get("hyper_connection.low_rank")}


@function("ssm.")
def delta_nets(scope: FileScope) -> dict[str, Any]:
    """Heads of the gated delta nets, in the words of Qwen 3 Next and its successors.

    Raises:
        MapError: key heads that value heads cannot share evenly, or no whole number of values for each head.
    """
    names = ("conv_kernel", "group_count", "time_step_rank", "state_size", "inner_size")
    kernel, key_heads, value_heads, key_width, inner = (scope.get(f"ssm.{name}") for name in names)
    if not all((kernel, key_heads, value_heads, key_width, inner)):
        raise MapError("the file lacks some of ssm.conv_kernel, group_count, time_step_rank, state_size and inner_size")
    if value_heads % key_heads or inner % value_heads:
        raise MapError(f"{value_heads} value heads with {inner} values share {key_heads} key heads: not evenly")
    return {
        "linear_conv_kernel_dim": kernel,
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": value_heads,
        "linear_key_head_dim": key_width,
        "linear_value_head_dim": inner // value_heads,
    }


@function(
    "expert_count",
    "expert_feed_forward_length",
    "expert_gating_func",
    "expert_shared_feed_forward_length",
    "expert_used_count",
    "expert_weights_scale",
    "feed_forward_length",
)
def softmax_experts(scope: FileScope) -> dict[str, Any]:
    """Experts of which some are used, by a softmax of the router alone, beside a shared one.

    Raises:
        MapError: they are weighted otherwise, or more are used than there are.
    """
    if scope.get("expert_gating_func") not in (None, 1) or scope.get("expert_weights_scale") not in (None, 1.0):
        raise MapError("experts are not weighted by softmax alone")
    count, used = given(scope, "expert_count", 0), given(scope, "expert_used_count", 0)
    if not isinstance(used, int) or not 1 <= used <= count:
        raise MapError(f"expert_used_count is {used}; 1 to expert_count = {count} was expected")
    return {
        "moe_intermediate_size": scope.get("expert_feed_forward_length"),
        "shared_expert_intermediate_size": scope.get("expert_shared_feed_forward_length"),
        "num_experts": count,
        "num_experts_per_tok": used,
        **dense_width(scope),  # where the configuration had one that nothing uses
    }


def _base(scope: FileScope, heads: int) -> tuple[int, int]:
    """What the sizes of the heads follow from, and their sum: they are the first primes from there."""
    sizes, offsets = given(scope, "ple.head_vocab_sizes", []), given(scope, "ple.head_offsets", [])
    if len(sizes) != heads or len(offsets) != heads:
        found = f"ple.head_vocab_sizes has {len(sizes)} items, ple.head_offsets {len(offsets)}"
        raise MapError(f"{found}; {heads}, one for each head, were expected")
    if min(sizes) < 2 or sum(sizes) > MAX_ROWS:
        raise MapError(f"ple.head_vocab_sizes is {sizes[:20]}: no table has so many rows")
    if offsets != [sum(sizes[:n]) for n in range(heads)]:
        raise MapError(f"ple.head_offsets is {offsets[:20]}: the heads do not follow each other")
    for base in (PUBLISHED_BASE, sizes[0]):
        if _primes_from(base, heads, sizes[-1]) == sizes:
            return base, sum(sizes)
    raise MapError(
        f"ple.head_vocab_sizes is {sizes[:20]}; the first {heads} primes from {sizes[0]} on were expected, which is how"
        " transformers and vLLM make the table"
    )


def _primes_from(start: int, count: int, most: int) -> list[int]:
    """The first primes from a number on, as far as `most`: a file that has others says nothing for long."""
    found: list[int] = []
    n = start
    while len(found) < count and n <= most:
        if _is_prime(n):
            found.append(n)
        n += 1
    return found


def _is_prime(n: int) -> bool:
    """By Miller and Rabin: these bases tell all primes below 3e9."""
    if n % 2 == 0 or n < 9:
        return n in (2, 3, 5, 7)
    shift = ((n - 1) & -(n - 1)).bit_length() - 1
    for witness in (2, 3, 5, 7):
        x = pow(witness, (n - 1) >> shift, n)
        if x in (1, n - 1, 0):
            continue
        if all((x := x * x % n) != n - 1 for _ in range(shift - 1)):
            return False
    return True


def _divisor(total: int, rows: int) -> int:
    """What the rows are a multiple of, by which the sum of the sizes was rounded up to them.

    Raises:
        MapError: the table has fewer rows than the heads have together.
    """
    if rows < total:
        raise MapError(f"{TABLE} has {rows} rows; the heads have {total} together")
    if -(-total // PUBLISHED_DIVISOR) * PUBLISHED_DIVISOR == rows:
        return PUBLISHED_DIVISOR
    small = [d for d in range(1, math.isqrt(rows) + 1) if rows % d == 0]
    divisors = [*small, *(rows // d for d in reversed(small))]
    return next(d for d in divisors if -(-total // d) * d == rows)  # the rows themselves at the latest
