"""Whole numbers as sums of atoms, each times a number, and a constant; and the range that is certain of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from onnx_fa.patterns.masks.expressions import (
    INT64,
    MAX_RUN_TIME_LENGTH,
    AnyPosition,
    AxisPosition,
    Wraps,
    integer,
    sized,
)
from onnx_fa.spec.expr import SKV, SQ, Apply, Int, K, Length, Position, Q, ScoreExpr, Tensor

MAX_SAFE_SUM = 1 << 62
"""Sums below this may be rearranged: whatever the order of their terms, none leaves int64."""
Bounds = tuple[int, int]
Linear = tuple[dict[ScoreExpr, int], int]


@dataclass
class Sums:
    """Sums of one algebra: `sizes` are the static sizes of the positions, where known, `ranges` the least and the largest element
    of integer tensors."""

    sizes: Mapping[ScoreExpr, int]
    ranges: Mapping[ScoreExpr, Bounds]
    _linear: dict[ScoreExpr, Linear] = field(default_factory=dict)
    _bounds: dict[ScoreExpr, Bounds] = field(default_factory=dict)

    def bounds(self, e: ScoreExpr) -> Bounds:
        """What a whole number cannot fall below and exceed, at the most the range of int64."""
        if e not in self._bounds:
            lo, hi = self._range_of(e)
            self._bounds[e] = (lo, hi) if INT64[0] <= lo and hi <= INT64[1] else INT64
        return self._bounds[e]

    def _range_of(self, e: ScoreExpr) -> Bounds:
        match e:
            case Int(value):
                return value, value
            case Position() | AxisPosition() | AnyPosition():
                return 0, self.sizes.get(e, MAX_RUN_TIME_LENGTH) - 1
            case Length():
                return 0, MAX_RUN_TIME_LENGTH
            case Tensor():
                return self.ranges.get(e, INT64)
            case Apply(op, args):
                return self._range_of_op(e, op, args)
        return INT64

    def _range_of_op(self, e: ScoreExpr, op: str, args: tuple[ScoreExpr, ...]) -> Bounds:
        match op, args:
            case "Sign", _:
                return -1, 1
            case "Relu", (x,):
                lo, hi = self.bounds(x)
                return max(lo, 0), max(hi, 0)
            case "Abs", (x,):
                lo, hi = self.bounds(x)
                return 0 if lo <= 0 <= hi else min(abs(lo), abs(hi)), magnitude((lo, hi))
            case "Mod", (_, Int(by)) if by > 0:
                return 0, by - 1
            case "Div", (x, Int(by)) if by:
                ends = [divide_towards_zero(end, by) for end in self.bounds(x)]
                return min(ends), max(ends)
            case "Max", (x, y):
                (low, high), (other_low, other_high) = self.bounds(x), self.bounds(y)
                return max(low, other_low), max(high, other_high)
            case "Min", (x, y):
                (low, high), (other_low, other_high) = self.bounds(x), self.bounds(y)
                return min(low, other_low), min(high, other_high)
            case "Where", (_, yes, no):
                (low, high), (other_low, other_high) = self.bounds(yes), self.bounds(no)
                return min(low, other_low), max(high, other_high)
            case "Add" | "Sub" | "Neg" | "Mul", _:
                terms, constant = self.linear(e)
                if terms != {e: 1} or constant:
                    return self.range_of_sum(terms, constant)
                if op == "Mul":
                    corners = [x * y for x in self.bounds(args[0]) for y in self.bounds(args[1])]
                    return min(corners), max(corners)
        return INT64

    def range_of_sum(self, terms: Mapping[ScoreExpr, int], constant: int) -> Bounds:
        """What a sum of terms cannot fall below and exceed."""
        negated = {atom: -factor for atom, factor in terms.items()}
        return self._lowest(terms, constant), -self._lowest(negated, -constant)

    def _lowest(self, terms: Mapping[ScoreExpr, int], constant: int) -> int:
        return constant + sum(factor * self.bounds(atom)[0 if factor > 0 else 1] for atom, factor in terms.items())

    def fits(self, terms: Mapping[ScoreExpr, int], constant: int) -> bool:
        """Whether no order in which the terms can be added leaves int64."""
        sizes = (abs(factor) * magnitude(self.bounds(atom)) for atom, factor in terms.items())
        return abs(constant) + sum(sizes) < MAX_SAFE_SUM

    def linear(self, e: ScoreExpr) -> Linear:
        """A whole number as a sum of atoms and a constant. What might wrap around is an atom."""
        if e not in self._linear:
            self._linear[e] = self._terms_of(e)
        terms, constant = self._linear[e]
        return dict(terms), constant

    def _terms_of(self, e: ScoreExpr) -> Linear:
        match e:
            case Int(value):
                return {}, value
            case Apply("Add" | "Sub" as op, (x, y)):
                (terms, constant), (other_terms, other_constant) = self.linear(x), self.linear(y)
                sign = 1 if op == "Add" else -1
                found = add_terms(terms, other_terms, sign), constant + sign * other_constant
            case Apply("Neg", (x,)):
                found = negate_sum(self.linear(x))
            case Apply("Mul", (Int(factor), x)) | Apply("Mul", (x, Int(factor))):
                found = scale_sum(self.linear(x), factor)
            case _:
                return {e: 1}, 0
        return found if self.fits(*found) else ({e: 1}, 0)

    def from_linear(self, terms: Mapping[ScoreExpr, int], constant: int) -> ScoreExpr:
        """The sum, with what is added before what is taken away and the constant last. Raises Wraps where it might leave int64."""
        is_one_number = (not constant and list(terms.values()) == [1]) or (not terms and _in_int64(constant))
        if not is_one_number and not self.fits(terms, constant):
            raise Wraps
        plus = [times(atom, factor) for atom, factor in sorted(terms.items(), key=order_of) if factor > 0]
        minus = [times(atom, -factor) for atom, factor in sorted(terms.items(), key=order_of) if factor < 0]
        if not plus and not minus:
            return integer(constant)
        total: ScoreExpr
        if plus:
            total = plus.pop(0)
        elif constant:
            total, constant = integer(constant), 0
        else:
            total = Apply("Neg", minus.pop(0))
        for term in plus:
            total = Apply("Add", total, term)
        for term in minus:
            total = Apply("Sub", total, term)
        if constant > 0:
            total = Apply("Add", total, integer(constant))
        elif constant < 0:
            total = Apply("Sub", total, integer(-constant))
        return sized(total)


def magnitude(bounds: Bounds) -> int:
    return max(abs(bounds[0]), abs(bounds[1]))


def divide_towards_zero(number: int, by: int) -> int:
    """number / by towards zero."""
    return abs(number) // abs(by) * (1 if (number < 0) == (by < 0) else -1)


def _in_int64(number: int) -> bool:
    return INT64[0] <= number <= INT64[1]


def add_terms(terms: Mapping[ScoreExpr, int], others: Mapping[ScoreExpr, int], sign: int) -> dict[ScoreExpr, int]:
    """terms + sign * others, without what cancels out."""
    total = dict(terms)
    for atom, factor in others.items():
        total[atom] = total.get(atom, 0) + sign * factor
    return {atom: factor for atom, factor in total.items() if factor}


def negate_sum(summed: Linear) -> Linear:
    return scale_sum(summed, -1)


def scale_sum(summed: Linear, by: int) -> Linear:
    terms, constant = summed
    return {atom: factor * by for atom, factor in terms.items() if by}, constant * by


def times(e: ScoreExpr, factor: int) -> ScoreExpr:
    return e if factor == 1 else Apply("Mul", e, integer(factor))


_RANK: Mapping[ScoreExpr, int] = {K: 0, Q: 1, SKV: 2, SQ: 3}


def order_of(item: tuple[ScoreExpr, int]) -> tuple[int, str]:
    return _RANK.get(item[0], 9), repr(item[0])


def keep_op(op: str, args: tuple[ScoreExpr, ...]) -> ScoreExpr:
    """An op of whole numbers. Where the order of its arguments does not matter, they come in a fixed one."""
    if op in ("Add", "Mul", "Max", "Min", "Equal"):
        args = tuple(sorted(args, key=lambda x: (isinstance(x, Int), order_of((x, 1)))))
    return Apply(op, *args)
