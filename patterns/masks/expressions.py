"""Score expressions as tuples: their leaves, their parts, and the choices among them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from onnx_fa.spec.expr import ScoreExpr

TRUE: ScoreExpr = ("b", True)
FALSE: ScoreExpr = ("b", False)
_LEAVES = frozenset(["score", "q", "k", "Sq", "Skv", "tensor", "f", "i", "b", "axis", "var"])
LONGEST = 1 << 24
"""No length that is known only at run time is longer."""
INT64 = (-(1 << 63), (1 << 63) - 1)
_MAX_NODES = 200
"""Nodes that an expression may have. What is larger is better read from a tensor."""


class TooComplex(Exception):
    """An expression grew beyond use."""


class Wraps(TooComplex):
    """A whole number might leave int64."""


def integer(n: int) -> ScoreExpr:
    return ("i", int(n))


def number(x: float) -> ScoreExpr:
    return ("f", float(x))


def boolean(b: bool) -> ScoreExpr:
    return TRUE if b else FALSE


def is_const(e: ScoreExpr) -> bool:
    return e[0] in ("f", "i", "b")


def parts(e: ScoreExpr) -> Iterator[ScoreExpr]:
    """The expression and everything in it."""
    stack = [e]
    while stack:
        x = stack.pop()
        yield x
        if x[0] not in _LEAVES:
            stack += reversed(x[1:])


def reads(e: ScoreExpr) -> frozenset[ScoreExpr]:
    """The leaves of `e`."""
    return frozenset(x for x in parts(e) if x[0] in _LEAVES)


def is_choice(e: ScoreExpr) -> bool:
    """A constant, or a choice between choices."""
    return is_const(e) or (e[0] == "Where" and is_choice(e[2]) and is_choice(e[3]))


def outcomes(e: ScoreExpr) -> Iterator[ScoreExpr]:
    """The constants of a choice."""
    if e[0] == "Where":
        yield from outcomes(e[2])
        yield from outcomes(e[3])
    else:
        yield e


def flatten(op: str, e: ScoreExpr) -> list[ScoreExpr]:
    """The parts of a chain of one op (And, Or)."""
    return [*flatten(op, e[1]), *flatten(op, e[2])] if e[0] == op else [e]


def sized(e: ScoreExpr) -> ScoreExpr:
    """`e` itself. Raises TooComplex where it has more nodes than are of use."""
    if sum(1 for _ in islice(parts(e), _MAX_NODES + 1)) > _MAX_NODES:
        raise TooComplex
    return e
