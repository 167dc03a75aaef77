"""Arithmetic over GGUF metadata: the only language an arch map contains besides tensor names.

An expression is a whitelisted subset of Python, parsed once and evaluated many times:

    attention.key_length or embedding_length // heads
    [heads * head_dim, hidden]
    has('output.weight')

`a or b` is the fallback chain: a name that the file lacks counts as false there. Anywhere else a missing
name is an error that names it. Nothing outside the whitelist is ever evaluated.
"""

import ast
import functools
import operator
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
_CONSTANTS = (bool, int, float, str, type(None))


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
    """A parsed expression: its text, the names it reads and the functions it calls."""

    text: str
    node: ast.expr
    names: frozenset[str]
    calls: frozenset[str]


@functools.cache
def parse(text: str) -> Expression:
    """Parse and whitelist `text`.

    Raises:
        MapError: the text is not an expression, or uses anything that is not allowed.
    """
    if len(text) > 1000:
        raise MapError(f"expression of {len(text)} characters: the limit is 1000")
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as err:
        raise MapError(f"{text!r} is not an expression: {getattr(err, 'msg', err)}") from None
    names: set[str] = set()
    calls: set[str] = set()

    def check(node: ast.expr) -> None:
        match node:
            case ast.Constant(value=value) if isinstance(value, _CONSTANTS):
                return
            case ast.Name(id=name):
                names.add(name)
                return
            case ast.Attribute():
                names.add(_dotted(node, text))
                return
            case ast.List(elts=parts) | ast.BoolOp(values=parts):
                pass
            case ast.Subscript(value=value, slice=index):
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
                calls.add(name)
                parts = args
            case _:
                raise MapError(f"{text!r}: {ast.unparse(node)!r} is not allowed in an expression")
        for part in parts:
            check(part)

    check(node)
    return Expression(text, node, frozenset(names), frozenset(calls))


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
                return -present(operand)
            case ast.BoolOp(op=op, values=values):
                stop = isinstance(op, ast.Or)
                out: Any = MISSING
                for value in values:
                    out = walk(value)
                    if _truth(out) == stop:
                        break
                return out
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return walk(body if walk(test) else orelse)
            case ast.Subscript(value=value, slice=index):
                return present(value)[present(index)]
            case ast.BinOp(left=left, op=op, right=right):
                a, b = present(left), present(right)
                if isinstance(a, str) or isinstance(b, str):
                    raise TypeError("arithmetic on text")
                return _BINARY[type(op)](a, b)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return _COMPARE[type(op)](present(left), present(right))
            case ast.Call(func=ast.Name(id=name), args=args):
                return scope.functions[name](*(present(a) for a in args))
        raise AssertionError(ast.dump(node))  # parse() lets nothing else through

    def present(node: ast.expr) -> Any:
        value = walk(node)
        if value is MISSING:
            raise MapError(f"the file has no {ast.unparse(node)!r}, which {text!r} needs")
        return value

    try:
        return present(expression.node)
    except (TypeError, ValueError, ArithmeticError, LookupError) as err:
        raise MapError(f"cannot evaluate {text!r} on this file: {err}") from err


def _dotted(node: ast.expr, text: str) -> str:
    """`a.b.c` of a chain of attributes that starts at a plain name."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            return f"{_dotted(value, text)}.{attr}"
    raise MapError(f"{text!r}: {ast.unparse(node)!r} is not allowed in an expression")


def _truth(value: Any) -> bool:
    """Truth of a fallback candidate; a sequence counts as true when it has elements."""
    return bool(len(value)) if hasattr(value, "__len__") else bool(value)
