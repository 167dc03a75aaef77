"""SentencePiece's compiled map of characters, read and checked before other programs walk through it.

    nbytes of the trie u32 | units of the trie u32 each | replacements, UTF-8, each with a NUL behind it

The trie is a double array of darts-clone (src/darts.h of SentencePiece 0.2): the children of a state `s` are the units
at `s ^ byte` whose label is that byte; a unit leads to the state `s ^ byte ^ offset`, and if it has a leaf, the unit
there is the place of a replacement. `tokenizers` follows units and places without looking where they lead, and ends
the whole process when that is outside.
"""

import sys
from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence

from gguf2st.errors import TokenizerError
from gguf2st.tokenizer.vocab import COPY_HINT, PREFIX

_SIZE_NBYTES = 4
_LABEL = 1 << 31 | 0xFF  # of a unit that holds a place, the upper bit is set
_PLACE = (1 << 31) - 1


def read_charsmap(metadata: Mapping[str, object]) -> bytes:
    """`tokenizer.ggml.precompiled_charsmap`; empty when the file has none.

    Raises TokenizerError when it is no array of bytes, its parts do not add up, or its trie leads out of it.
    """
    values = metadata.get(PREFIX + "precompiled_charsmap")
    if values is None:
        return b""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise TokenizerError(f"{PREFIX}precompiled_charsmap is not an array of bytes", hint=COPY_HINT)
    try:
        raw = bytes(value & 0xFF for value in values)  # files have int8 as well as uint8
    except TypeError:
        raise TokenizerError(f"{PREFIX}precompiled_charsmap is not an array of bytes", hint=COPY_HINT) from None
    if raw and (problem := _problem(raw)):
        raise TokenizerError(f"{PREFIX}precompiled_charsmap is damaged: {problem}", hint=COPY_HINT)
    return raw


def _problem(raw: bytes) -> str:
    """What is wrong with a map; "" when nothing is."""
    trie_nbytes = int.from_bytes(raw[:_SIZE_NBYTES], "little")
    text = raw[_SIZE_NBYTES + trie_nbytes :]
    if trie_nbytes % 4 or not trie_nbytes or not text or text[-1]:
        return f"{len(raw)} bytes with a trie of {trie_nbytes}"
    try:
        text.decode()
    except UnicodeDecodeError:
        return "its replacements are not UTF-8"
    units = array("I", raw[_SIZE_NBYTES : _SIZE_NBYTES + trie_nbytes])
    if sys.byteorder != "little":
        units.byteswap()
    return _trie_problem(units, text)


def _trie_problem(units: "array[int]", text: bytes) -> str:
    """Follow every path from the root."""
    children: dict[int, list[int]] = defaultdict(list)
    for at, unit in enumerate(units):
        if 0 < unit & _LABEL < 0x100:
            children[at ^ (unit & _LABEL)].append(at)
    root = _offset(units[0])
    seen, waiting = {root}, [root]
    while waiting:
        state = waiting.pop()
        if state | 0xFF >= len(units):  # any byte may be looked up in it
            return f"its trie leads to unit {state} of {len(units)}"
        for at in children.get(state, ()):
            after = at ^ _offset(units[at])
            if units[at] >> 8 & 1:
                if after >= len(units):
                    return f"its trie leads to unit {after} of {len(units)}"
                place = units[after] & _PLACE
                if place >= len(text) or text[place] & 0xC0 == 0x80:
                    return f"its trie leads to byte {place} of {len(text)} of the replacements"
            if after not in seen:
                seen.add(after)
                waiting.append(after)
    return ""


def _offset(unit: int) -> int:
    return unit >> 10 << ((unit & 1 << 9) >> 6)
