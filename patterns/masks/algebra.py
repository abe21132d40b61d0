"""Building score expressions (see expr.py) in a normal form, so that equal masks give equal expressions however they are written.

Whole-number sums are kept as sums of atoms, comparisons of whole numbers as one `LessOrEqual` or `Equal` with the constant on the
right, negations stand at the atoms, and arithmetic on a choice between constants becomes a choice between results. Nothing here
changes a result: a rule that needs a number's range uses only what is certain (positions lie in 0..length-1, a tensor's elements in
the range of its type). Whole numbers are int64 and wrap around: a sum is taken apart only where no order of its terms can leave
the type, else its op stays as it is, and stays on its side of a comparison.

Besides the leaves of expr.py an expression may hold those of expressions.py: positions along batch axes and heads, and any position
of some other axis. Lengths that are known only at run time are taken to be at most LONGEST, so positions are exact in
f32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from onnx_fa.patterns.masks.expressions import (
    FALSE,
    TRUE,
    AnyPosition,
    AxisPosition,
    MaskTensor,
    TooComplex,
    Wraps,
    boolean,
    flatten,
    integer,
    sized,
)
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
from onnx_fa.spec.expr import OPS, Apply, Bool, Constant, Int, Length, Position, ScoreExpr

_MAX_STEPS = 5_000
"""Comparisons, sums, choices and connectives that may be built for one mask."""


@dataclass
class Algebra:
    """Builds expressions. `sizes` are the static sizes of the positions, where known, `ranges` the least
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
        match a, b:
            case Apply("Where", (condition, yes, no)), _:
                return self.where(condition, self.add(yes, b, sign), self.add(no, b, sign))
            case _, Apply("Where", (condition, yes, no)):
                return self.where(condition, self.add(a, yes, sign), self.add(a, no, sign))
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
        match a:
            case Apply("Where", (condition, yes, no)):
                return self.where(condition, self.multiply(yes, by), self.multiply(no, by))
        return self.sums.from_linear(*scale_sum(self.linear(a), by))

    def divide(self, a: ScoreExpr, by: int) -> ScoreExpr:
        """a / by towards zero, `by` positive."""
        if by == 1:
            return a
        if isinstance(a, Int):
            return integer(divide_towards_zero(a.value, by))
        split = self._split(a, by)
        if split is not None and self.bounds(split[0])[0] >= 0:
            return split[0]
        return sized(Apply("Div", a, integer(by)))

    def modulo(self, a: ScoreExpr, by: int) -> ScoreExpr:
        """a mod by, never negative, `by` positive."""
        if by == 1:
            return integer(0)
        if isinstance(a, Int):
            return integer(a.value % by)
        split = self._split(a, by)
        return split[1] if split is not None else sized(Apply("Mod", a, integer(by)))

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
            match atom:
                case Apply("Where", (condition, *sides)):
                    return self.where(
                        condition,
                        *(self.compare("LessOrEqual", self.add(times(y, n), rest), integer(0)) for y in sides),
                    )
                case Apply("Abs", (x,)) if abs(n) == 1:
                    inner = (x, self.sums.from_linear(*negate_sum(self.linear(x))))
                    return self._at_most(rest, n, inner, both=n == 1)
                case Apply("Max" | "Min" as op, inner) if abs(n) == 1:
                    # max(x, y) <= r where both are; -max(x, y) <= r where one is. Min is the other way round.
                    return self._at_most(rest, n, inner, both=(n == 1) == (op == "Max"))
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
            return sized(Apply("LessOrEqual", integer(c), self.sums.from_linear({x: -n for x, n in terms.items()}, 0)))
        return sized(Apply("LessOrEqual", left, right))

    def _at_most(self, rest: ScoreExpr, n: int, inner: tuple[ScoreExpr, ...], *, both: bool) -> ScoreExpr:
        """Whether rest + n * x is 0 or less for both x of `inner`, or for one of them."""
        sides = [self.compare("LessOrEqual", self.add(rest, y, n), integer(0)) for y in inner]
        return self.both(*sides) if both else self.either(*sides)

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
        return sized(Apply("Equal", left, right))

    def compare(self, op: str, a: ScoreExpr, b: ScoreExpr) -> ScoreExpr:
        """A comparison of whole numbers: Less, LessOrEqual, Greater, GreaterOrEqual or Equal."""
        self._spend()
        if op in ("Greater", "GreaterOrEqual"):
            return self.compare("Less" if op == "Greater" else "LessOrEqual", b, a)
        match a, b:
            case Apply("Where", (condition, yes, no)), _:
                return self.where(condition, self.compare(op, yes, b), self.compare(op, no, b))
            case _, Apply("Where", (condition, yes, no)):
                return self.where(condition, self.compare(op, a, yes), self.compare(op, a, no))
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
        return sized(Apply(op, a, b))

    def negate(self, e: ScoreExpr) -> ScoreExpr:
        match e:
            case Bool(value):
                return boolean(not value)
            case Apply("Not", (x,)):
                return x
            case Apply("And", (x, y)):
                return self.either(self.negate(x), self.negate(y))
            case Apply("Or", (x, y)):
                return self.both(self.negate(x), self.negate(y))
            case Apply("Where", (condition, x, y)):
                return self.where(condition, self.negate(x), self.negate(y))
            case Apply("LessOrEqual" | "Less" as op, (x, y)) if self.is_whole(x):
                return self.compare("Less" if op == "LessOrEqual" else "LessOrEqual", y, x)
        return Apply("Not", e)

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
            total = Apply(op, total, x)
        return sized(total)

    def negate_shallow(self, e: ScoreExpr) -> ScoreExpr | None:
        """The negation of an atom, None for what is joined of several."""
        return None if isinstance(e, Apply) and e.op in ("And", "Or", "Where") else self.negate(e)

    def is_whole(self, e: ScoreExpr) -> bool:
        """Whether a number built here is an int; only numbers know."""
        match e:
            case Int() | Position() | Length() | AxisPosition() | AnyPosition() | Apply("Mod" | "ToInt"):
                return True
            case MaskTensor(_, kind):
                return kind == "int"
            case Apply("ToFloat"):
                return False
            case Apply("Where", (_, yes, _)):
                return self.is_whole(yes)
            case Apply(op, args):
                return op in OPS and OPS[op].result is None and self.is_whole(args[0])
        return False

    def where(self, c: ScoreExpr, x: ScoreExpr, y: ScoreExpr) -> ScoreExpr:
        self._spend()
        match c:
            case Bool(value):
                return x if value else y
            case Apply("Not", (negated,)):
                return self.where(negated, y, x)
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
        return sized(Apply("Where", c, x, y))

    def _assume(self, e: ScoreExpr, c: ScoreExpr, truth: bool) -> ScoreExpr:
        """`e` where `c` is known to be `truth`."""
        if e == c:
            return boolean(truth)
        match e:
            case Apply("And", (x, y)):
                return self.both(self._assume(x, c, truth), self._assume(y, c, truth))
            case Apply("Or", (x, y)):
                return self.either(self._assume(x, c, truth), self._assume(y, c, truth))
            case Apply("Not", (x,)):
                return self.negate(self._assume(x, c, truth))
            case Apply("Where", (condition, yes, no)) if condition == c:
                return self._assume(yes if truth else no, c, truth)
        return e

    def over_choice(self, run: Callable[..., ScoreExpr], *args: ScoreExpr) -> ScoreExpr:
        """`run` of constants, carried into the choices that `args` are."""
        self._spend()
        for i, x in enumerate(args):
            match x:
                case Apply("Where", (condition, *sides)):
                    return self.where(condition, *(self.over_choice(run, *args[:i], y, *args[i + 1 :]) for y in sides))
        return run(*args)

    def over_outcomes(self, e: ScoreExpr, run: Callable[[Constant], ScoreExpr]) -> ScoreExpr:
        """`run` of each constant of a choice."""
        return self.over_choice(run, e)
