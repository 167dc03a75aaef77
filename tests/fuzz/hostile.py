"""Numbers, texts and values that break programs, and how to pick one."""

import struct
from random import Random
from typing import Any

from tests.fuzz.draft import ARRAY, BOOL, NUMBERS, STRING, Array, Item

INTEGERS = (
    *(0, 1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 255, 256, 257, 300, 302, 303, 1000),
    *(9_999, 10_000, 10_001, 65_535, 65_536, 1_000_000, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**53 + 1),
    *(
        2**60,
        2**61,
        2**62,
        2**63 - 1,
        2**63,
        2**63 + 1,
        2**64 - 2,
        2**64 - 1,
        -1,
        -2,
        -31,
        -32,
        -128,
        -(2**31),
        -(2**63),
    ),
)
FLOATS = (
    *(0.0, -0.0, 1.0, -1.0, 0.5, 1e-6, 1e-5, 1e-45, 1e-320, 1e4, 1e6, 1e12, 1e13, 3.4e38, 1e39, 1e300, 0.1 + 0.2),
    *(float("inf"), float("-inf"), float("nan"), 16777217.0, 2.0**63, -1e9),
)
TEXTS = (
    b"",
    b" ",
    b"\0",
    b"a\0b",
    b"\n",
    b"a\r\nb",
    b"\x1b[31mred\x1b[0m",
    b"\x1b]0;title\x07",
    b"\x1b[2J\x1b[1;1H",
    b"\x9b31m",
    b"[bold red]markup[/bold red][/]",
    b"../../../../etc/passwd",
    b"/etc/passwd",
    b"..",
    b".",
    b"~/x",
    b"C:\\x",
    b"$(touch pwned)",
    b"`touch pwned`",
    b"; touch pwned #",
    b"'\"\\",
    b"-o",
    b"--help",
    b"%s%n%x",
    b"{i}",
    b"{e}.{0}",
    b"__import__('os').system('touch pwned')",
    b"{{ ().__class__.__mro__ }}",
    b"{% include '/etc/passwd' %}",
    b"\xff\xfe\xfd",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    "\u202egnp.exe".encode(),
    "\ufeffx".encode(),
    "\u2028x\u0085".encode(),
    "é\u0301ﬁ한👩‍👩‍👧".encode(),
    b"true",
    b"1",
    b"NaN",
    b"-1",
    b"x" * 300,
    b"x" * 5_000,
    b"\n" * 1_000,
    "é".encode() * 2_000,
    b"9" * 6_000,
)
"""As a file has them: bytes, some of them no UTF-8."""


def integer(rng: Random) -> int:
    """A number at an edge, or any."""
    pick = rng.random()
    if pick < 0.8:
        return rng.choice(INTEGERS)
    return rng.getrandbits(rng.choice((4, 8, 16, 32, 64)))


def number(rng: Random) -> int | float:
    """A whole number or a float."""
    return integer(rng) if rng.random() < 0.6 else rng.choice(FLOATS)


def text(rng: Random) -> bytes:
    """A text, or bytes that are none."""
    if rng.random() < 0.85:
        return rng.choice(TEXTS)
    return rng.randbytes(rng.choice((1, 2, 8, 64)))


def value(rng: Random, depth: int = 0) -> tuple[int, Any]:
    """(type, value) of any kind."""
    pick = rng.random()
    if pick < 0.35:
        kind = rng.choice(tuple(NUMBERS))
        return kind, number(rng)
    if pick < 0.5:
        return BOOL, rng.choice((0, 1, 1, 2, 255))
    if pick < 0.7:
        return STRING, text(rng)
    return ARRAY, array(rng, depth)


def array(rng: Random, depth: int = 0) -> Array:
    """An array of anything, now and then nested, long, or of another length than it says."""
    kind = rng.choice((*NUMBERS, BOOL, STRING, STRING, ARRAY))
    n = rng.choice((0, 1, 2, 3, 5, 17, 100, 302))
    count = integer(rng) if rng.random() < 0.1 else None
    if kind == ARRAY:
        if depth > 6 or rng.random() < 0.3:
            return Array(ARRAY, (), count)
        return Array(ARRAY, [array(rng, depth + 1) for _ in range(min(n, 3))], count)
    make = {BOOL: lambda: rng.getrandbits(1), STRING: lambda: text(rng)}.get(kind, lambda: number(rng))
    few = [make() for _ in range(min(n, 5))]
    return Array(kind, [few[i % 5] for i in range(n)], count)


def nested(rng: Random) -> Array:
    """An array inside an array, many times; encoded already, as that many Python calls would not fit on its stack."""
    depth = rng.choice((1, 3, 4, 5, 40, 3_000))
    inner = struct.pack("<IQ", ARRAY, 1) * depth + struct.pack("<IQ", rng.choice((0, STRING, ARRAY)), 0)
    return Array(ARRAY, (inner,))


def item(rng: Random, key: bytes) -> Item:
    """A key with any value."""
    return Item(key, *value(rng))
