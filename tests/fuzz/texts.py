"""Mutations of texts that are read back: expressions, arch maps (TOML), JSON, journals."""

import json
from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Any

from gguf2st.archmap.mapfile import maps_folder
from gguf2st.config import FUNCTIONS
from gguf2st.header.keys import KEYS
from gguf2st.ops import OPS
from tests.fuzz import hostile

ATOMS = (
    *("i", "e", "0", "1", "-1", "9223372036854775807", "1e308", "1e999", "0x7fffffffffffffff", "True", "None", "'x'"),
    *(
        "'blk.{i}.attn_q.weight'",
        "'output.weight'",
        "[]",
        "[1, 2]",
        "()",
        "{}",
        "lambda: 0",
        "1j",
        "b'x'",
        "...",
        "f'{i}'",
    ),
    *("heads", "hidden", "block_count", "__class__", "__import__", "a.__class__.__mro__", "x.y.z", "_", "é", "ﬁ"),
    *("*names", "**names", "x := 1", "yield", "await x", "[x for x in y]", "'%s' % 1", "9" * 500, "0" * 50, "1_000"),
)
OPERATORS = (
    *(" + ", " - ", " * ", " // ", " / ", " % ", " ** ", " < ", " <= ", " == ", " != ", " > ", " >= ", " or ", " and "),
    *(" if 1 else ", " in ", " is ", " << ", " >> ", " @ ", " | ", " & ", ", ", " not ", ".", " "),
)


PLAIN = (
    *("i", "0", "1", "2", "heads", "hidden", "block_count", "embedding_length", "attention.head_count", "vocab_size"),
    *("attention.head_count_kv", "attention.sliding_window", "rope.scaling.type", "expert_count", "'x'", "[1, 2]"),
    *("has('output.weight')", "rows('token_embd.weight')", "cols('blk.{i}.attn_q.weight')", "rope.freq_base"),
)


def plain_expression(rng: Random, depth: int = 0) -> str:
    """An expression of the grammar, whatever its value."""
    if depth > 4 or rng.random() < 0.3:
        return rng.choice(PLAIN)
    left, right = plain_expression(rng, depth + 1), plain_expression(rng, depth + 1)
    forms = (f"({left}{rng.choice(OPERATORS[:14])}{right})", f"[{left}, {right}]", f"{left}[{right}]", f"-{left}")
    return rng.choice((*forms[:1] * 5, *forms, f"{left} if {right} else {left}", f"not {left}", f"{left} or {right}"))


def expression(rng: Random, depth: int = 0) -> str:
    """Something that may be an expression."""
    pick = rng.random()
    if depth > 5 or pick < 0.35:
        return rng.choice(ATOMS) if rng.random() < 0.6 else rng.choice(tuple(KEYS))
    inner = expression(rng, depth + 1)
    if pick < 0.65:
        return inner + rng.choice(OPERATORS) + expression(rng, depth + 1)
    if pick < 0.75:
        name = rng.choice(
            ("has", "rows", "cols", *FUNCTIONS, "eval", "open", "print", "getattr", "len", "int", "range")
        )
        return f"{name}({inner}{rng.choice(('', ', ' + inner, ', x=1', ', *y'))})"
    if pick < 0.85:
        return f"{inner}[{expression(rng, depth + 1)}]"
    if pick < 0.9:
        return f"[{inner}, {expression(rng, depth + 1)}]"
    if pick < 0.95:
        return rng.choice(("not ", "-", "~", "+", "(", "")) + inner + rng.choice(("", ")"))
    return rng.choice(("(", "[", "-", "not ", "a.", "x[")) * rng.choice((10, 39, 41, 300)) + inner


def broken_text(text: str, rng: Random, pieces: Sequence[str]) -> str:
    """The text with pieces put in, taken out, or repeated."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(text) + 1)
        n = rng.choice((0, 0, 1, 2, 10))
        pick = rng.random()
        if pick < 0.5:
            new = rng.choice(pieces)
        elif pick < 0.7:
            new = hostile.text(rng).decode("utf-8", "replace")
        elif pick < 0.85:
            start = rng.randrange(len(text) + 1)
            new = text[start : start + rng.choice((1, 5, 40, 200))]
        else:
            new = rng.choice("0123456789.,:;'\"[]{}()|->=#\n\\ \t")
        text = text[:at] + new + text[at + n :]
    return text


def arch_map(rng: Random) -> str:
    """An arch map of the package, changed."""
    text = _maps()[rng.choice(_COMMON if rng.random() < 0.7 else tuple(_maps()))]
    pieces = (
        *(
            " | ",
            " -> ",
            "{i}",
            "{e}",
            "{x}",
            "[",
            "]",
            "[[tensors]]\n",
            'if = "',
            '"',
            "'",
            "or ",
            "experts = ",
            "{",
            "}",
        ),
        *(f" | {op}({expression(rng, 3)})" for op in rng.sample(sorted(OPS), 4)),
        *(f"{table} = {rng.choice(('1', '[]', '{}', chr(34) + expression(rng, 4) + chr(34)))}\n" for table in TABLES),
        f'\n[names]\nx = "{expression(rng, 2)}"\n',
        f'\n[config]\nx = "{expression(rng, 2)}"\n',
        '\n[names]\na = "b"\nb = "a"\n',
        f' -> [{expression(rng, 3)}]"',
        "9" * rng.choice((30, 5_000)),
        "[" * rng.choice((50, 2_000)),
        "a.b.c.d = 1\n[a.b]\n",
        "1979-05-27T07:32:00Z",
    )
    if rng.random() < 0.8:  # line by line, so that the file may still be TOML
        lines = text.split("\n")
        for _ in range(rng.choice((1, 1, 2, 4))):
            _change_line(lines, rng, pieces)
        return "\n".join(lines)
    return broken_text(text, rng, pieces)


def _change_line(lines: list[str], rng: Random, pieces: Sequence[str]) -> None:
    """A right-hand side from elsewhere or made up, a line gone, or anything."""
    equations = [n for n, line in enumerate(lines) if " = " in line]
    if not equations:
        return
    at, other = rng.choice(equations), rng.choice(equations)
    (left, _, right), (_, _, taken) = lines[at].partition(" = "), lines[other].partition(" = ")
    pick = rng.random()
    if pick < 0.3:
        lines[at] = f"{left} = {taken}"
    elif pick < 0.6:
        lines[at] = f'{left} = "{plain_expression(rng, 2) if rng.random() < 0.7 else expression(rng, 3)}"'
    elif pick < 0.67:
        del lines[at]
    elif pick < 0.7:
        lines[at] = f"{left} = {rng.choice(('9' * 6_000, '1e999', 'nan', '[[[[]]]]', '0x7fffffffffffffffff', '{}'))}"
    elif pick < 0.85:
        words = right.split(" ")
        words[rng.randrange(len(words))] = rng.choice((plain_expression(rng, 3), *taken.split(" ")))
        lines[at] = f"{left} = {' '.join(words)}"
    else:
        lines[at] = broken_text(lines[at], rng, pieces)


TABLES = ("arch", "layers", "experts", "when", "names", "constants", "assumed", "config", "require", "fused", "drop",
          "beyond", "ignore", "float32", "float16", "tensors")  # fmt: skip
_COMMON = ("llama", "qwen3moe", "gemma3", "deepseek2", "granitehybrid")


@cache
def _maps() -> dict[str, str]:
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(maps_folder().glob("*.toml"))}


def broken_json(value: Any, rng: Random) -> bytes:
    """A JSON value with parts changed, or a text that is no JSON."""
    if rng.random() < 0.75:
        for _ in range(rng.choice((1, 1, 2, 4))):
            value = change_json(value, rng)
        text = json.dumps(value)
    else:
        pieces = (
            "{",
            "}",
            "[",
            "]",
            '"',
            ":",
            ",",
            "NaN",
            "Infinity",
            "-",
            "1e999",
            "null",
            "[" * 3_000,
            "9" * 5_000,
            "\\ud800",
        )
        text = broken_text(json.dumps(value), rng, pieces)
    raw = text.encode("utf-8", "surrogatepass")
    pick = rng.random()
    if pick < 0.03:
        return raw[: rng.randrange(len(raw) + 1)]
    return hostile.text(rng) + raw if pick < 0.06 else raw


def change_json(value: Any, rng: Random) -> Any:
    """The value with one part changed somewhere inside."""
    if isinstance(value, dict) and value and rng.random() < 0.92:
        key = rng.choice(sorted(value, key=str))
        pick = rng.random()
        if pick < 0.12:
            return {k: v for k, v in value.items() if k != key}
        if pick < 0.2:
            return {**value, hostile.text(rng).decode("utf-8", "surrogateescape"): any_json(rng)}
        return {**value, key: change_json(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        pick = rng.random()
        if pick < 0.1:
            return value[:at] + value[at + 1 :]
        if pick < 0.2:
            return [*value[:at], value[at], *value[at:]]
        return [*value[:at], change_json(value[at], rng), *value[at + 1 :]]
    if type(value) is int and rng.random() < 0.5:
        return rng.choice((value + 1, value - 1, value * 2, -value, value + 2**40))
    return any_json(rng)


def any_json(rng: Random, depth: int = 0) -> Any:
    """Any JSON value, with the numbers that Python's reader takes beyond the standard's."""
    makers: tuple[Callable[[], Any], ...] = (
        lambda: None,
        lambda: rng.random() < 0.5,
        lambda: hostile.integer(rng),
        lambda: rng.choice(hostile.FLOATS),
        lambda: hostile.text(rng).decode("utf-8", "surrogateescape"),
        lambda: [any_json(rng, depth + 1) for _ in range(rng.choice((0, 1, 3)))] if depth < 3 else [],
        lambda: {str(i): any_json(rng, depth + 1) for i in range(rng.choice((0, 1, 3)))} if depth < 3 else {},
        lambda: 10**400,
    )
    return rng.choice(makers)()
