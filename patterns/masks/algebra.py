"""Building score expressions (see expr.py) in a normal form, so that equal masks give equal expressions however they are written.

Whole-number sums are kept as sums of atoms, comparisons of whole numbers as one `LessOrEqual` or `Equal` with the constant on the
right, negations stand at the atoms, and arithmetic on a choice between constants becomes a choice between results. Nothing here
changes a result: a rule that needs a number's range uses only what is certain (positions lie in 0..length-1, a tensor's elements in
the range of its type). Whole numbers are int64 and wrap around: a sum is taken apart only where no order of its terms can leave
the type, else its op stays as it is, and stays on its side of a comparison.

Besides the leaves of expr.py an expression may hold ("axis", n), the position along score axis n (batch and heads), and ("var", n),
any position of some other axis. Lengths that are known only at run time are taken to be at most LONGEST, so positions are exact in
f32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from onnx_fa.patterns.masks.expressions import FALSE, TRUE, TooComplex, Wraps, boolean, flatten, integer, sized
from onnx_fa.patterns.masks.sums import (
    Bounds,
    Linear,
    Sums,
    add_terms,
    divide_towards_zero,
    keep_op,
    negate_sum,
    order_of,
    scale_sum,
    times,
)
from onnx_fa.spec.expr import OPS, ScoreExpr

_MAX_STEPS = 5_000
"""Comparisons, sums, choices and connectives that may be built for one mask."""


@dataclass
class Algebra:
    """Builds expressions. `sizes` are the static sizes of the positions ("q", "k", "axis", "var"), where known, `ranges` the least
    and the largest element of integer tensors. Raises TooComplex where an expression, or all that was built, is beyond use."""

    sizes: Mapping[ScoreExpr, int] = field(default_factory=dict)
    ranges: dict[ScoreExpr, Bounds] = field(default_factory=dict)
    _steps: int = 0

    def __post_init__(self) -> None:
        self.sums = Sums(self.sizes, self.ranges)

    def bounds(self, e: ScoreExpr) -> Bounds:
        """What a whole number cannot fall below and exceed, at the most the range of int64."""
        return self.sums.bounds(e)

    def linear(self, e: ScoreExpr) -> Linear:
        """A whole number as a sum of atoms and a constant. What might wrap around is an atom."""
        return self.sums.linear(e)

    def _spend(self) -> None:
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise TooComplex

    def add(self, a: ScoreExpr, b: ScoreExpr, sign: int = 1) -> ScoreExpr:
        """a + sign * b of whole numbers. Raises Wraps where that might leave int64."""
        self._spend()
        for x, other, first in ((a, b, True), (b, a, False)):
            if x[0] == "Where":
                return self.where(
                    x[1], *(self.add(y, other, sign) if first else self.add(other, y, sign) for y in (x[2], x[3]))
                )
        (p, c), (q, d) = self.linear(a), self.linear(b)
        return self.sums.from_linear(add_terms(p, q, sign), c + sign * d)

    def sum_of(self, a: ScoreExpr, b: ScoreExpr) -> ScoreExpr:
        """a + b of whole numbers, computed as int64 computes it."""
        try:
            return self.add(a, b)
        except Wraps:
            return sized(keep_op("Add", (a, b)))

    def multiply(self, a: ScoreExpr, by: int) -> ScoreExpr:
        """by * a of a whole number. Raises Wraps where that might leave int64."""
        self._spend()
        if a[0] == "Where":
            return self.where(a[1], self.multiply(a[2], by), self.multiply(a[3], by))
        return self.sums.from_linear(*scale_sum(self.linear(a), by))

    def divide(self, a: ScoreExpr, by: int) -> ScoreExpr:
        """a / by towards zero, `by` positive."""
        if by == 1:
            return a
        if a[0] == "i":
            return integer(divide_towards_zero(a[1], by))
        split = self._split(a, by)
        if split is not None and self.bounds(split[0])[0] >= 0:
            return split[0]
        return sized(("Div", a, integer(by)))

    def modulo(self, a: ScoreExpr, by: int) -> ScoreExpr:
        """a mod by, never negative, `by` positive."""
        if by == 1:
            return integer(0)
        if a[0] == "i":
            return integer(a[1] % by)
        split = self._split(a, by)
        return split[1] if split is not None else sized(("Mod", a, integer(by)))

    def _split(self, a: ScoreExpr, by: int) -> tuple[ScoreExpr, ScoreExpr] | None:
        """a as by * x + y with y certainly in 0..by-1."""
        terms, c = self.linear(a)
        whole = {x: n // by for x, n in terms.items() if n % by == 0}
        rest = {x: n for x, n in terms.items() if n % by}
        try:
            y = self.sums.from_linear(rest, c % by)
            lo, hi = self.bounds(y)
            return None if lo < 0 or hi >= by else (self.sums.from_linear(whole, c // by), y)
        except Wraps:
            return None

    def at_most_zero(self, terms: Mapping[ScoreExpr, int], c: int) -> ScoreExpr:
        """Whether the sum is 0 or less."""
        lo, hi = self.sums.range_of_sum(terms, c)
        if hi <= 0:
            return TRUE
        if lo > 0:
            return FALSE
        for atom, n in terms.items():
            rest = self.sums.from_linear({x: m for x, m in terms.items() if x != atom}, c)
            if atom[0] == "Where":
                return self.where(
                    atom[1], *(self.compare("LessOrEqual", self.add(times(y, n), rest), integer(0)) for y in atom[2:])
                )
            if abs(n) == 1 and atom[0] in ("Abs", "Max", "Min"):
                inner = (
                    (atom[1], self.sums.from_linear(*negate_sum(self.linear(atom[1]))))
                    if atom[0] == "Abs"
                    else atom[1:]
                )
                sides = [self.compare("LessOrEqual", self.add(rest, y, n), integer(0)) for y in inner]
                # max(x, y) <= r where both are; -max(x, y) <= r where one is. Min is the other way round.
                both = (n == 1) == (atom[0] != "Min")
                return self.both(*sides) if both else self.either(*sides)
        if lo == 0:
            return self._is_zero(terms, c)
        if len(terms) == 1 and abs(next(iter(terms.values()))) > 1:
            ((atom, n),) = terms.items()
            # n * x <= -c is x <= floor(-c / n), and the other way round for a negative n
            return self.at_most_zero({atom: 1}, -(-c // n)) if n > 0 else self.at_most_zero({atom: -1}, -(c // n))
        left = self.sums.from_linear({x: n for x, n in terms.items() if n > 0}, 0)
        right = self.sums.from_linear({x: -n for x, n in terms.items() if n < 0}, -c)
        if not any(n > 0 for n in terms.values()):
            # -x + c <= 0 is c <= x
            return sized(("LessOrEqual", integer(c), self.sums.from_linear({x: -n for x, n in terms.items()}, 0)))
        return sized(("LessOrEqual", left, right))

    def _is_zero(self, terms: Mapping[ScoreExpr, int], c: int) -> ScoreExpr:
        """Whether the sum is 0."""
        lo, hi = self.sums.range_of_sum(terms, c)
        if lo > 0 or hi < 0:
            return FALSE
        if lo == hi == 0:
            return TRUE
        first = min(terms, key=lambda x: order_of((x, 1)))
        if terms[first] < 0:
            terms, c = {x: -n for x, n in terms.items()}, -c
        left = self.sums.from_linear({x: n for x, n in terms.items() if n > 0}, 0)
        right = self.sums.from_linear({x: -n for x, n in terms.items() if n < 0}, -c)
        return sized(("Equal", left, right))

    def compare(self, op: str, a: ScoreExpr, b: ScoreExpr) -> ScoreExpr:
        """A comparison of whole numbers: Less, LessOrEqual, Greater, GreaterOrEqual or Equal."""
        self._spend()
        if op in ("Greater", "GreaterOrEqual"):
            return self.compare("Less" if op == "Greater" else "LessOrEqual", b, a)
        for x, other, first in ((a, b, True), (b, a, False)):
            if x[0] == "Where":
                return self.where(
                    x[1], *(self.compare(op, y, other) if first else self.compare(op, other, y) for y in (x[2], x[3]))
                )
        (p, c), (q, d) = self.linear(a), self.linear(b)
        terms, c = add_terms(p, q, -1), c - d
        c += op == "Less"
        try:
            if self.sums.fits(terms, c):
                return self._is_zero(terms, c) if op == "Equal" else self.at_most_zero(terms, c)
        except Wraps:
            pass
        return self._compared(op, a, b)

    def _compared(self, op: str, a: ScoreExpr, b: ScoreExpr) -> ScoreExpr:
        """Less, LessOrEqual or Equal of numbers that cannot be subtracted from each other."""
        (lo, hi), (least, most) = self.bounds(a), self.bounds(b)
        if op == "Equal":
            if hi < least or most < lo:
                return FALSE
            return TRUE if a == b else sized(keep_op(op, (a, b)))
        if hi < least or (op == "LessOrEqual" and (hi == least or a == b)):
            return TRUE
        if most < lo or (op == "Less" and (most == lo or a == b)):
            return FALSE
        return sized((op, a, b))

    def negate(self, e: ScoreExpr) -> ScoreExpr:
        match e[0]:
            case "b":
                return boolean(not e[1])
            case "Not":
                inner: ScoreExpr = e[1]
                return inner
            case "And":
                return self.either(self.negate(e[1]), self.negate(e[2]))
            case "Or":
                return self.both(self.negate(e[1]), self.negate(e[2]))
            case "Where":
                return self.where(e[1], self.negate(e[2]), self.negate(e[3]))
            case "LessOrEqual" | "Less" if self.is_whole(e[1]):
                return self.compare("Less" if e[0] == "LessOrEqual" else "LessOrEqual", e[2], e[1])
        return ("Not", e)

    def both(self, a: ScoreExpr, b: ScoreExpr) -> ScoreExpr:
        return self._joined("And", a, b, TRUE, FALSE)

    def either(self, a: ScoreExpr, b: ScoreExpr) -> ScoreExpr:
        return self._joined("Or", a, b, FALSE, TRUE)

    def _joined(self, op: str, a: ScoreExpr, b: ScoreExpr, unit: ScoreExpr, zero: ScoreExpr) -> ScoreExpr:
        self._spend()
        items: list[ScoreExpr] = []
        for x in (*flatten(op, sized(a)), *flatten(op, sized(b))):
            if x == zero or self.negate_shallow(x) in items:
                return zero
            if x != unit and x not in items:
                items.append(x)
        if not items:
            return unit
        total = items[0]
        for x in items[1:]:
            total = (op, total, x)
        return sized(total)

    def negate_shallow(self, e: ScoreExpr) -> ScoreExpr | None:
        """The negation of an atom, None for what is joined of several."""
        return None if e[0] in ("And", "Or", "Where") else self.negate(e)

    def is_whole(self, e: ScoreExpr) -> bool:
        """Whether a number built here is an int; only numbers know."""
        match e[0]:
            case "i" | "q" | "k" | "Sq" | "Skv" | "axis" | "var" | "Mod" | "ToInt":
                return True
            case "f" | "score" | "ToFloat":
                return False
            case "tensor":
                return len(e) > 2 and e[2] == "int"
            case "Where":
                return self.is_whole(e[2])
        return e[0] in OPS and OPS[e[0]].result is None and self.is_whole(e[1])

    def where(self, c: ScoreExpr, x: ScoreExpr, y: ScoreExpr) -> ScoreExpr:
        self._spend()
        if c[0] == "b":
            return x if c[1] else y
        if c[0] == "Not":
            return self.where(c[1], y, x)
        x, y = self._assume(x, c, True), self._assume(y, c, False)
        if x == y:
            return x
        if x == TRUE:
            return self.either(c, y)
        if y == FALSE:
            return self.both(c, x)
        if x == FALSE:
            return self.both(self.negate(c), y)
        if y == TRUE:
            return self.either(self.negate(c), x)
        return sized(("Where", c, x, y))

    def _assume(self, e: ScoreExpr, c: ScoreExpr, truth: bool) -> ScoreExpr:
        """`e` where `c` is known to be `truth`."""
        if e == c:
            return boolean(truth)
        if e[0] in ("And", "Or"):
            a, b = self._assume(e[1], c, truth), self._assume(e[2], c, truth)
            return self.both(a, b) if e[0] == "And" else self.either(a, b)
        if e[0] == "Not":
            return self.negate(self._assume(e[1], c, truth))
        if e[0] == "Where" and e[1] == c:
            return self._assume(e[2] if truth else e[3], c, truth)
        return e

    def over_choice(self, run: Callable[..., ScoreExpr], *args: ScoreExpr) -> ScoreExpr:
        """`run` of constants, carried into the choices that `args` are."""
        self._spend()
        for i, x in enumerate(args):
            if x[0] == "Where":
                return self.where(x[1], *(self.over_choice(run, *args[:i], y, *args[i + 1 :]) for y in (x[2], x[3])))
        return run(*args)

    def over_outcomes(self, e: ScoreExpr, run: Callable[[ScoreExpr], ScoreExpr]) -> ScoreExpr:
        """`run` of each constant of a choice."""
        return self.over_choice(run, e)
