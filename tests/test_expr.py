"""The expression language: what it accepts, what it refuses, and that nothing but a MapError ever comes out."""

import random
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pytest

from gguf2st.archmap.expr import MISSING, evaluate, parse
from gguf2st.errors import MapError

pytestmark = pytest.mark.filterwarnings("ignore::SyntaxWarning")  # what Python thinks of `1if`


class Names:
    """A scope over plain values."""

    functions: Mapping[str, Callable[..., Any]] = MappingProxyType({"has": lambda name: name == "here", "add": max})

    def __init__(self, **values: Any) -> None:
        self.values = values

    def lookup(self, name: str) -> Any:
        return self.values.get(name.replace(".", "_"), MISSING)


SCOPE = Names(a=6, b=4, zero=0, half=0.5, empty=[], word="yarn", list=[3, 5], yes=True, no=False, x_y_z=7)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a", 6),
        ("x.y.z", 7),
        ("a + b * 2 - 1", 13),
        ("a // b", 1),
        ("a / b", 1.5),
        ("a % b", 2),
        ("-a", -6),
        ("[a * b, a]", [24, 6]),
        ("[]", []),
        ("list[1]", 5),
        ("list[-1]", 5),
        ("a > b and b < a", True),
        ("a == 6", True),
        ("word == 'yarn'", True),
        ("not has('here')", False),
        ("has('there')", False),
        ("a if yes else b", 6),
        ("a if missing else b", 4),
        ("add(a, b)", 6),
        ("None", None),
        ("missing or None", None),
        ("missing or a", 6),
        ("missing or zero or b", 0),
        ("zero or b", 0),
        ("half - half or b", 0.0),
        ("no or b", False),
        ("x.y.z or b", 7),
        ("empty or a", []),
        ("None or a", 6),
        ("nonzero(zero) or b", 4),
        ("nonzero(half - half) or b", 4),
        ("nonzero(missing) or b", 4),
        ("nonzero(missing or zero) or b", 4),
        ("nonzero(a) or b", 6),
        ("nonzero(word) or b", "yarn"),
        ("a == b or b", 4),
        ("a == 6 or b", True),
        ("not yes or no", False),
        ("has('there') or has('here')", True),
        ("(a == b and missing) or b", 4),
        ("list or a", [3, 5]),
        ("a or missing", 6),
        ("a or nothing(1)", 6),  # the rest of a chain is not looked at
        ("(missing or 0) == 0", True),
        ("not missing", True),
        ("missing.key or 1.5", 1.5),
        ("  a\n", 6),
    ],
)
def test_value(text: str, value: Any) -> None:
    found = evaluate(parse(text), SCOPE)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        "a.b()",
        "a.b.__class__()",
        "().__class__",
        "''.join",
        "[].append",
        "f(a)(b)",
        "f(*a)",
        "f(**a)",
        "f(x=1)",
        "lambda: 1",
        "[x for x in a]",
        "{x for x in a}",
        "(x for x in a)",
        "{1: 2}",
        "{1}",
        "(1, 2)",
        "1, 2",
        "f'{a}'",
        "b'bytes'",
        "1j",
        "...",
        "a ** b",
        "a << b",
        "a | b",
        "a & b",
        "a @ b",
        "~a",
        "+a",
        "(a := 1)",
        "a = 1",
        "a; b",
        "import os",
        "await a",
        "yield a",
        "nonzero()",
        "nonzero(a, b)",
        "a[1:2]",
        "a[1, 2]",
        "[*a]",
        "a < b < c",
        "a in b",
        "a is b",
        "a is not None",
        "1e999",
        "9223372036854775808",
        "9" * 400,
        "a" * 1001,
        "-" * 999 + "a",
        "not " * 200 + "a",
        "(" * 90 + "a" + ")" * 90 + " +",
        "[" * 60 + "]" * 60,
        "a" + "[0]" * 60,
        "a" + "+a" * 100,
        "a if " * 60 + "a" + " else a" * 60,
        "",
        " ",
        "a b",
        "a +",
        "'open",
        "a\0b",
        "\udc80",
        "blk.{i}.attn_q.weight",
        "0x",
        "#",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(MapError):
        parse(text)


@pytest.mark.parametrize("part", ["lambda: 1", "x ** 2", "x.y()"])
def test_refusal_names_the_part(part: str) -> None:
    with pytest.raises(MapError) as caught:
        parse(f"a + ({part})")
    assert repr(part) in caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        "missing",
        "missing.key.long",
        "a + missing",
        "[a, missing]",
        "-missing",
        "missing[0]",
        "list[missing]",
        "missing > 1",
        "add(a, missing)",
        "a if no else missing",
        "missing or missing.too",
        "missing and a",
    ],
)
def test_a_missing_name_is_named(text: str) -> None:
    with pytest.raises(MapError, match=r"lack.*missing"):
        evaluate(parse(text), SCOPE)


@pytest.mark.parametrize(
    "text",
    [
        "word * a",
        "a * word",
        "word + word",
        "word % a",
        "'%s' % a",
        "list * a",
        "list + list",
        "a * list",
        "yes + 1",
        "a * no",
        "None + a",
        "-word",
        "-list",
        "-yes",
        "a // zero",
        "a % zero",
        "a / zero",
        "a < word",
        "list < a",
        "a[0]",
        "list[2]",
        "list[half]",
        "list['x']",
        "word['x']",
        "nothing(1)",
        "add()",
        "add(1, 'x')",
        "has()",
        "1e308 * 1e308 // 1",
    ],
)
def test_wrong_types_and_values_name_the_expression(text: str) -> None:
    with pytest.raises(MapError) as caught:
        evaluate(parse(text), SCOPE)
    assert repr(text) in caught.value.message


@pytest.mark.parametrize(
    ("text", "names", "calls", "subscripted", "indices"),
    [
        ("attention.key_length or hidden // heads", ("attention.key_length", "hidden", "heads"), set(), set(), set()),
        ("has('blk.{i}.x') and i < dense", ("i", "dense"), {"has"}, set(), {"i"}),
        ("rows('blk.{i}.{e}.x')", (), {"rows"}, set(), {"i", "e"}),
        ("has('blk.{j}.x')", (), {"has"}, set(), set()),
        ("attention.head_count[i] * b", ("attention.head_count", "i", "b"), set(), {"attention.head_count"}, {"i"}),
        ("[a, b][0]", ("a", "b"), set(), set(), set()),
        ("e", ("e",), set(), set(), {"e"}),
        ("i.e", ("i.e",), set(), set(), set()),
        ("a + a", ("a",), set(), set(), set()),
    ],
)
def test_what_an_expression_depends_on(
    text: str, names: tuple[str, ...], calls: set[str], subscripted: set[str], indices: set[str]
) -> None:
    x = parse(text)
    assert (x.names, set(x.calls), set(x.subscripted), set(x.indices)) == (names, calls, subscripted, indices)


TOKENS = [
    *["a", "b", "zero", "half", "empty", "word", "list", "yes", "missing", "x.y", "i", "__import__", "has", "add"],
    *["0", "1", "2.5", "1e9", "9" * 18, "'s'", "'{i}'", "None", "True"],
    *["+", "-", "*", "/", "//", "%", "**", "<<", "<", "==", "!=", ">=", "and", "or", "not", "if", "else", "in", "is"],
    *[
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        ",",
        ":",
        ".",
        ":=",
        "=",
        "lambda",
        "for",
        "\n",
        "\\",
        "#",
        "@",
        "~",
        "...",
        "f'{a}'",
    ],
]
"""Words that random expressions are made of."""


@pytest.mark.parametrize("seed", range(8))
def test_random_words_give_a_value_or_a_map_error(seed: int) -> None:
    rng = random.Random(seed)
    evaluated = 0
    for _ in range(1500):
        text = rng.choice(["", " "]).join(rng.choices(TOKENS, k=rng.randint(1, 9)))
        try:
            evaluate(parse(text), SCOPE)
            evaluated += 1
        except MapError:
            continue
    assert evaluated > 10


@pytest.mark.parametrize("seed", range(4))
def test_random_well_formed_expressions_give_a_value_or_a_map_error(seed: int) -> None:
    rng = random.Random(seed)

    def grow(depth: int) -> str:
        if depth == 0:
            return rng.choice(TOKENS[:10] + TOKENS[14:23])
        x, y, z = (grow(depth - 1) for _ in range(3))
        operator = rng.choice(["+", "-", "*", "/", "//", "%", "<", "==", "and", "or"])
        return rng.choice([f"({x} {operator} {y})", f"[{x}, {y}]", f"({x})[{y}]", f"-{x}", f"not {x}",
                           f"({x} if {y} else {z})", f"add({x}, {y})", f"has({x})", x])  # fmt: skip

    evaluated = 0
    for _ in range(600):
        try:
            evaluate(parse(grow(rng.randint(1, 3))), SCOPE)
            evaluated += 1
        except MapError:
            continue
    assert evaluated > 100
