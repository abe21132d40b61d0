"""Score expressions while a mask is read: leaves that no finished expression has, and questions about choices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from onnx_fa.spec.expr import Apply, Bool, Constant, Float, Int, Kind, ScoreExpr, Tensor, leaves, parts

TRUE = Bool(True)
FALSE = Bool(False)
MAX_RUN_TIME_LENGTH = 1 << 24
"""A length that is known only at run time is taken to be at most this."""
INT64 = (-(1 << 63), (1 << 63) - 1)
_MAX_NODES = 200
"""Nodes that an expression may have. What is larger is better read from a tensor."""


@dataclass(frozen=True, slots=True, repr=False)
class AxisPosition(ScoreExpr):
    """The position along an axis of the score in front of the queries': a batch axis, or the heads."""

    axis: int

    @property
    def written(self) -> tuple[Any, ...]:
        return ("axis", self.axis)


@dataclass(frozen=True, slots=True, repr=False)
class AnyPosition(ScoreExpr):
    """Any position along an axis that is none of the score's; `number` tells such axes apart."""

    number: int

    @property
    def written(self) -> tuple[Any, ...]:
        return ("var", self.number)


@dataclass(frozen=True, slots=True, repr=False)
class MaskTensor(Tensor):
    """A tensor that a mask reads, whose kind is known."""

    kind: Kind

    @property
    def written(self) -> tuple[Any, ...]:
        return ("tensor", self.index, self.kind)


class TooComplex(Exception):
    """An expression grew beyond use."""


class Wraps(TooComplex):
    """A whole number might leave int64."""


def integer(n: int) -> Int:
    return Int(int(n))


def number(x: float) -> Float:
    return Float(float(x))


def boolean(b: bool) -> Bool:
    return TRUE if b else FALSE


def reads(e: ScoreExpr) -> frozenset[ScoreExpr]:
    """The leaves of `e`."""
    return frozenset(leaves(e))


def is_where(e: ScoreExpr) -> bool:
    """A choice between anything."""
    return isinstance(e, Apply) and e.op == "Where"


def is_choice(e: ScoreExpr) -> bool:
    """A constant, or a choice between choices."""
    match e:
        case Apply("Where", (_, yes, no)):
            return is_choice(yes) and is_choice(no)
    return isinstance(e, Constant)


def outcomes(e: ScoreExpr) -> Iterator[Constant]:
    """The constants of a choice."""
    match e:
        case Apply("Where", (_, yes, no)):
            yield from outcomes(yes)
            yield from outcomes(no)
        case Float() | Int() | Bool():
            yield e


def flatten(op: str, e: ScoreExpr) -> list[ScoreExpr]:
    """The parts of a chain of one op (And, Or)."""
    if isinstance(e, Apply) and e.op == op:
        return [part for side in e.args for part in flatten(op, side)]
    return [e]


def sized(e: ScoreExpr) -> ScoreExpr:
    """`e` itself. Raises TooComplex where it has more nodes than are of use."""
    if sum(1 for _ in islice(parts(e), _MAX_NODES + 1)) > _MAX_NODES:
        raise TooComplex
    return e
