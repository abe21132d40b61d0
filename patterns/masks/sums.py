"""Whole numbers as sums of atoms, each times a number, and a constant; and the range that is certain of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from onnx_fa.patterns.masks.expressions import INT64, LONGEST, AnyPosition, AxisPosition, Wraps, integer, sized
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
                return 0, self.sizes.get(e, LONGEST) - 1
            case Length():
                return 0, LONGEST
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
                (a, b), (c, d) = self.bounds(x), self.bounds(y)
                return max(a, c), max(b, d)
            case "Min", (x, y):
                (a, b), (c, d) = self.bounds(x), self.bounds(y)
                return min(a, c), min(b, d)
            case "Where", (_, x, y):
                (a, b), (c, d) = self.bounds(x), self.bounds(y)
                return min(a, c), max(b, d)
            case "Add" | "Sub" | "Neg" | "Mul", _:
                terms, c = self.linear(e)
                if terms != {e: 1} or c:
                    return self.range_of_sum(terms, c)
                if op == "Mul":
                    corners = [x * y for x in self.bounds(args[0]) for y in self.bounds(args[1])]
                    return min(corners), max(corners)
        return INT64

    def range_of_sum(self, terms: Mapping[ScoreExpr, int], c: int) -> Bounds:
        """What a sum of terms cannot fall below and exceed."""
        return self._low(terms, c), -self._low({x: -n for x, n in terms.items()}, -c)

    def _low(self, terms: Mapping[ScoreExpr, int], c: int) -> int:
        return c + sum(n * self.bounds(atom)[0 if n > 0 else 1] for atom, n in terms.items())

    def fits(self, terms: Mapping[ScoreExpr, int], c: int) -> bool:
        """Whether no order in which the terms can be added leaves int64."""
        return abs(c) + sum(abs(n) * magnitude(self.bounds(x)) for x, n in terms.items()) < MAX_SAFE_SUM

    def linear(self, e: ScoreExpr) -> Linear:
        """A whole number as a sum of atoms and a constant. What might wrap around is an atom."""
        if e not in self._linear:
            self._linear[e] = self._terms_of(e)
        terms, c = self._linear[e]
        return dict(terms), c

    def _terms_of(self, e: ScoreExpr) -> Linear:
        match e:
            case Int(value):
                return {}, value
            case Apply("Add" | "Sub" as op, (x, y)):
                (a, c), (b, d) = self.linear(x), self.linear(y)
                sign = 1 if op == "Add" else -1
                found = add_terms(a, b, sign), c + sign * d
            case Apply("Neg", (x,)):
                found = negate_sum(self.linear(x))
            case Apply("Mul", (Int(factor), x)) | Apply("Mul", (x, Int(factor))):
                found = scale_sum(self.linear(x), factor)
            case _:
                return {e: 1}, 0
        return found if self.fits(*found) else ({e: 1}, 0)

    def from_linear(self, terms: Mapping[ScoreExpr, int], c: int) -> ScoreExpr:
        """The sum, with what is added before what is taken away and the constant last. Raises Wraps where it might leave int64."""
        if not self.fits(terms, c) and (c or list(terms.values()) != [1]) and (terms or not _in_int64(c)):
            raise Wraps
        plus = [times(x, n) for x, n in sorted(terms.items(), key=order_of) if n > 0]
        minus = [times(x, -n) for x, n in sorted(terms.items(), key=order_of) if n < 0]
        if not plus and not minus:
            return integer(c)
        total: ScoreExpr
        if plus:
            total = plus.pop(0)
        elif c:
            total, c = integer(c), 0
        else:
            total = Apply("Neg", minus.pop(0))
        for x in plus:
            total = Apply("Add", total, x)
        for x in minus:
            total = Apply("Sub", total, x)
        if c:
            total = Apply("Add", total, integer(c)) if c > 0 else Apply("Sub", total, integer(-c))
        return sized(total)


def magnitude(x: Bounds) -> int:
    return max(abs(x[0]), abs(x[1]))


def divide_towards_zero(a: int, by: int) -> int:
    """a / by towards zero."""
    return abs(a) // abs(by) * (1 if (a < 0) == (by < 0) else -1)


def _in_int64(x: int) -> bool:
    return INT64[0] <= x <= INT64[1]


def add_terms(a: Mapping[ScoreExpr, int], b: Mapping[ScoreExpr, int], sign: int) -> dict[ScoreExpr, int]:
    total = dict(a)
    for x, n in b.items():
        total[x] = total.get(x, 0) + sign * n
    return {x: n for x, n in total.items() if n}


def negate_sum(x: Linear) -> Linear:
    return scale_sum(x, -1)


def scale_sum(x: Linear, by: int) -> Linear:
    return {atom: n * by for atom, n in x[0].items() if by}, x[1] * by


def times(e: ScoreExpr, n: int) -> ScoreExpr:
    return e if n == 1 else Apply("Mul", e, integer(n))


_RANK: Mapping[ScoreExpr, int] = {K: 0, Q: 1, SKV: 2, SQ: 3}


def order_of(item: tuple[ScoreExpr, int]) -> tuple[int, str]:
    return _RANK.get(item[0], 9), repr(item[0])


def keep_op(op: str, args: tuple[ScoreExpr, ...]) -> ScoreExpr:
    """An op of whole numbers, the arguments in the one order where their order is of no matter."""
    if op in ("Add", "Mul", "Max", "Min", "Equal"):
        args = tuple(sorted(args, key=lambda x: (isinstance(x, Int), order_of((x, 1)))))
    return Apply(op, *args)
