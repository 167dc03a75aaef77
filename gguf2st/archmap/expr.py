"""Arithmetic over GGUF metadata: the only language an arch map contains besides tensor names.

An expression is a whitelisted subset of Python, parsed once and evaluated many times:

    attention.key_length or embedding_length // heads
    [heads * head_dim, hidden]
    has('output.weight')

`a or b` is the fallback chain: b only where the file lacks a. A value that the file has is never replaced, be it 0,
false or an empty list; where 0 means that there is none, `nonzero(a) or b` says so. A condition left of `or` that is
no plain name, such as a comparison, is one: b where it does not hold. Anywhere else a missing name is an error that
names it. Arithmetic is for numbers only: a text or a list times a number is an error, not a repetition. Nothing outside
the whitelist is ever evaluated.
"""

import ast
import functools
import operator
import re
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gguf2st.errors import MapError

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_MAX_LENGTH = 1000
_MAX_DEPTH = 40
"""Deepest nesting; the longest chain of any map is a fifth of it, and Python's own stack stays out of the question."""
_MAX_NUMBER = 2**63
_MAX_ARGUMENT = 2**24
"""Largest whole number that a function takes: some make a list of that length. Contexts go up to 10 million tokens."""
_ONE_AT_A_TIME = threading.Lock()
"""Warnings are silenced for the whole process: two threads that took turns would leave them so."""
_INDEX = re.compile(r"\{(i|e)\}")
NONZERO = "nonzero"
"""`nonzero(a)` is a, or missing where the file lacks a or has 0 there: the one call whose argument may be missing."""


class Scope(Protocol):
    """What an expression can see."""

    @property
    def functions(self) -> Mapping[str, Callable[..., Any]]:
        """Functions an expression may call, by name."""
        ...

    def lookup(self, name: str) -> Any:
        """Value of a dotted name, or `MISSING`."""
        ...


class _Missing:
    """The value of a name that the file does not have."""

    def __repr__(self) -> str:
        return "missing"

    def __bool__(self) -> bool:
        return False


MISSING = _Missing()


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression.

    Attributes:
        names: what it reads, dotted, in the order of the text; i and e included.
        calls: the functions it calls.
        subscripted: those of the names that it takes one item of, as in `attention.head_count_kv[i]`.
        indices: i or e, where it reads them by name or inside a tensor name such as `'blk.{i}.attn_q.bias'`.
    """

    text: str
    node: ast.expr
    names: tuple[str, ...]
    calls: frozenset[str]
    subscripted: frozenset[str]
    indices: frozenset[str]


@functools.cache
def parse(text: str) -> Expression:
    """Parse and whitelist `text`.

    Raises:
        MapError: the text is not an expression, or uses anything that is not allowed.
    """
    text = text.strip()
    if len(text) > _MAX_LENGTH:
        raise MapError(f"expression of {len(text)} characters: the limit is {_MAX_LENGTH}")
    try:
        with _ONE_AT_A_TIME, warnings.catch_warnings(action="ignore"):  # the parser has opinions about `1or 2`
            node = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as err:
        raise MapError(f"{text!r} is not an expression: {getattr(err, 'msg', err)}") from None
    names: dict[str, None] = {}
    calls: set[str] = set()
    subscripted: set[str] = set()
    indices: set[str] = set()

    def check(node: ast.expr, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise MapError(f"{text!r} is nested more than {_MAX_DEPTH} deep")
        match node:
            case ast.Constant(value=str(value)):
                indices.update(_INDEX.findall(value))
                return
            case ast.Constant(value=None | bool()):
                return
            case ast.Constant(value=int() | float() as value) if value < _MAX_NUMBER:
                return
            case ast.Name(id=name):
                names[name] = None
                return
            case ast.Attribute():
                names[_dotted(node, text)] = None
                return
            case ast.List(elts=parts) | ast.BoolOp(values=parts):
                pass
            case ast.Subscript(value=value, slice=index):
                if isinstance(value, ast.Name | ast.Attribute):
                    subscripted.add(_dotted(value, text))
                parts = [value, index]
            case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
                parts = [operand]
            case ast.IfExp(test=test, body=body, orelse=orelse):
                parts = [test, body, orelse]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                parts = [left, right]
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
                parts = [left, right]
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                if name == NONZERO and len(args) != 1:
                    raise MapError(f"{text!r}: {NONZERO} takes one value")
                calls.add(name)
                parts = args
            case _:
                raise _forbidden(text, node)
        for part in parts:
            check(part, depth + 1)

    check(node, 0)
    indices |= names.keys() & {"i", "e"}
    return Expression(text, node, tuple(names), frozenset(calls), frozenset(subscripted), frozenset(indices))


def evaluate(expression: Expression, scope: Scope) -> Any:
    """Value of `expression` in `scope`.

    Raises:
        MapError: a name is missing and has no fallback, or the values do not fit the arithmetic.
    """
    text = expression.text

    def walk(node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return scope.lookup(name)
            case ast.Attribute():
                return scope.lookup(_dotted(node, text))
            case ast.List(elts=elements):
                return [present(e) for e in elements]
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not walk(operand)
            case ast.UnaryOp(operand=operand):
                return -number(operand)
            case ast.BoolOp(op=op, values=values):
                ends = _is_there if isinstance(op, ast.Or) else _is_false
                out: Any = MISSING
                for value in values:
                    out = walk(value)
                    if ends(value, out):
                        break
                return out
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return walk(body if walk(test) else orelse)
            case ast.Subscript(value=value, slice=index):
                return present(value)[present(index)]
            case ast.BinOp(left=left, op=op, right=right):
                return _within(_BINARY[type(op)](number(left), number(right)))
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return _COMPARE[type(op)](present(left), present(right))
            case ast.Call(func=ast.Name(id=name), args=[only]) if name == NONZERO:
                return MISSING if (value := walk(only)) is None or value == 0 else value
            case ast.Call(func=ast.Name(id=name), args=args):
                return scope.functions[name](*map(argument, args))
        raise AssertionError(ast.dump(node))  # parse() lets nothing else through

    def present(node: ast.expr) -> Any:
        value = walk(node)
        if value is MISSING:
            raise MapError(f"the file's metadata lack {_segment(text, node)!r}")
        return value

    def argument(node: ast.expr) -> Any:
        value = present(node)
        if type(value) is int and abs(value) > _MAX_ARGUMENT:
            raise ValueError(f"{_segment(text, node)} is {value}, more than {_MAX_ARGUMENT}")
        return value

    def number(node: ast.expr) -> int | float:
        value = present(node)
        if type(value) is int or type(value) is float:
            return value
        raise TypeError(f"{_segment(text, node)} is no number")

    try:
        return present(expression.node)
    except (TypeError, ValueError, ArithmeticError, LookupError) as err:
        raise MapError(f"cannot evaluate {text!r} on this file: {err}") from err


def _within(value: int | float) -> int | float:
    """The result of one operation, as long as it is a number that JSON and 64 bits hold."""
    if not -_MAX_NUMBER <= value <= _MAX_NUMBER:  # NaN neither
        raise ArithmeticError("the result is beyond 64 bits")
    return value


def _dotted(node: ast.expr, text: str) -> str:
    """`a.b.c` of a chain of attributes that starts at a plain name."""
    parts: list[str] = []
    inner = node
    while isinstance(inner, ast.Attribute):
        parts.append(inner.attr)
        inner = inner.value
    if not isinstance(inner, ast.Name):
        raise _forbidden(text, node)
    return ".".join([inner.id, *reversed(parts)])


def _forbidden(text: str, node: ast.expr) -> MapError:
    return MapError(f"{text!r}: {_segment(text, node)!r} is not allowed in an expression")


def _segment(text: str, node: ast.expr) -> str:
    """The part of the text that a node stands for; unparsing a strange one could run out of stack."""
    return ast.get_source_segment(text, node) or type(node).__name__


def _is_there(node: ast.expr, value: Any) -> bool:
    """Whether `or` ends at an operand: what a plain name stands for is there, whatever it is; a condition must hold."""
    if value is MISSING or value is None:
        return False
    return value is not False or isinstance(node, ast.Name | ast.Attribute)


def _is_false(node: ast.expr, value: Any) -> bool:
    """Whether `and` ends at an operand; a sequence counts as true when it has elements."""
    return not (len(value) if hasattr(value, "__len__") else value)
