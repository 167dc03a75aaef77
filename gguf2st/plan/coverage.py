"""What a file and the entries made of it leave open: keys nobody read, tensors used in part, types that do not fit.

Each function gives its findings as lines for `Plan.problems`.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from gguf2st.archmap import ArchMap
from gguf2st.fold import few, listing
from gguf2st.header import Header
from gguf2st.header.keys import brief, says_nothing
from gguf2st.ops import OPS
from gguf2st.plan import Entry
from gguf2st.quants.layout import DECODABLE, INTEGERS


def uneven_heads(config: Mapping[str, Any]) -> list[str]:
    """Whether heads cannot share their keys, which no shape shows and no model can run."""
    heads, kv_heads = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if type(heads) is int and type(kv_heads) is int and kv_heads > 0 and heads % kv_heads:
        return [f"{heads} attention heads cannot share {kv_heads} key-value heads evenly"]
    return []


def unread_keys(amap: ArchMap, header: Header, read: Collection[str], *, failed: bool) -> list[str]:
    """Keys of the architecture that nothing read and the map does not ignore: what they say would be lost.

    After a failure only keys that the map could not have read: what it would have read after the failure is open.
    """
    prefix = f"{header.arch}."
    unread = [
        f"{key} = {brief(value)}"
        for key, value in header.metadata.items()
        if key.startswith(prefix)
        and key not in read
        and key.removeprefix(prefix) not in amap.ignore
        and not says_nothing(key.removeprefix(prefix), value)
        and not (failed and is_among(key.removeprefix(prefix), amap.keys))
    ]
    return [f"metadata that the map {amap.name} does not use: {few(unread, 20)}"] if unread else []


def is_among(key: str, names: Collection[str]) -> bool:
    """Whether `key` is one of the names, or begins with one that ends in a dot."""
    return key in names or any(key.startswith(name) for name in names if name.endswith("."))


def partly_used(header: Header, entries: Iterable[Entry]) -> list[str]:
    """Tensors of which some elements reach no entry, such as rows of a fused projection that no equation takes."""
    taken: dict[tuple[str, ...], int] = {}
    for (sources, ops), n in {(e.sources, e.ops): e.n_elements for e in entries}.items():  # the same rows count once
        taken[sources] = taken.get(sources, 0) + n * math.prod(OPS[name].merges for name, *_ in ops)
    used = {name for sources in taken for name in sources}
    reached = {name: 0 for name in header.sources if name in used}
    for sources, n in taken.items():
        total = sum(header.sources[name].n_elements for name in sources)
        for name in sources:
            reached[name] += min(n, total) * header.sources[name].n_elements // total
    partly = [name for name, n in reached.items() if n < header.sources[name].n_elements]
    return [f"only a part of these tensors has a place: {listing(partly)}"] if partly else []


def undecodable(header: Header, used: Collection[str]) -> list[str]:
    """Types that nothing decodes, of tensors that have a place."""
    by_type: dict[str, list[str]] = {}
    for name, source in header.sources.items():
        if name in used and source.qtype not in DECODABLE:
            by_type.setdefault(source.qtype, []).append(name)
    return [f"no decoder for ggml {qtype}, used by {listing(names)}" for qtype, names in by_type.items()]


def misplaced_numbers(header: Header, entries: Iterable[Entry]) -> list[str]:
    """Whole numbers where the model has weights, and weights where it has whole numbers.

    llama.cpp multiplies by no tensor of integers, so that such a file is no model of its; rounded to 16 bits, indices
    would become others, and nothing would tell.
    """
    weights: dict[str, dict[str, None]] = {}
    numbers: dict[str, dict[str, None]] = {}
    for entry in entries:
        for source in (header.sources[name] for name in entry.sources):
            if source.qtype in DECODABLE and (source.qtype in INTEGERS) != entry.whole:
                (numbers if entry.whole else weights).setdefault(source.qtype, {})[source.name] = None
    return [
        *(f"{listing(names)} is {q}, whole numbers; weights were expected" for q, names in weights.items()),
        *(f"{listing(names)} is {q}; whole numbers (I8 to I64) were expected" for q, names in numbers.items()),
    ]
