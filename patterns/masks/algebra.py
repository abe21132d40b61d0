"""Building score expressions (see expr.py) in a normal form, so that equal masks give equal expressions however they are written.

Whole-number sums are kept as sums of atoms, comparisons of whole numbers as one `LessOrEqual` or `Equal` with the constant on the
right, negations stand at the atoms, and arithmetic on a choice between constants becomes a choice between results. Nothing here
changes a result: a rule that needs a number's range uses only what is certain (positions lie in 0..length-1, a tensor's elements in
the range of its type). Whole numbers are int64 and wrap around: a sum is taken apart only where no order of its terms can leave
the type, else its op stays as it is, and stays on its side of a comparison.

Besides the leaves of expr.py an expression may hold those of expressions.py: positions along batch axes and heads, and any position
of some other axis. Lengths that are known only at run time are taken to be at most MAX_RUN_TIME_LENGTH, so positions are exact in
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
        (terms, constant), (other_terms, other_constant) = self.linear(a), self.linear(b)
        return self.sums.from_linear(add_terms(terms, other_terms, sign), constant + sign * other_constant)

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
        """(quotient, remainder) with a = by * quotient + remainder, and the remainder certainly in 0..by-1."""
        terms, constant = self.linear(a)
        whole = {atom: factor // by for atom, factor in terms.items() if factor % by == 0}
        rest = {atom: factor for atom, factor in terms.items() if factor % by}
        try:
            remainder = self.sums.from_linear(rest, constant % by)
            low, high = self.bounds(remainder)
            return None if low < 0 or high >= by else (self.sums.from_linear(whole, constant // by), remainder)
        except Wraps:
            return None

    def at_most_zero(self, terms: Mapping[ScoreExpr, int], constant: int) -> ScoreExpr:
        """Whether the sum is 0 or less."""
        low, high = self.sums.range_of_sum(terms, constant)
        if high <= 0:
            return TRUE
        if low > 0:
            return FALSE
        for atom, factor in terms.items():
            rest = self.sums.from_linear({other: n for other, n in terms.items() if other != atom}, constant)
            match atom:
                case Apply("Where", (condition, *sides)):
                    return self.where(
                        condition,
                        *(self.compare("LessOrEqual", self.add(times(x, factor), rest), integer(0)) for x in sides),
                    )
                case Apply("Abs", (x,)) if abs(factor) == 1:
                    inner = (x, self.sums.from_linear(*negate_sum(self.linear(x))))
                    return self._at_most(rest, factor, inner, both=factor == 1)
                case Apply("Max" | "Min" as op, inner) if abs(factor) == 1:
                    # max(x, y) <= r where both are; -max(x, y) <= r where one is. Min is the other way round.
                    return self._at_most(rest, factor, inner, both=(factor == 1) == (op == "Max"))
        if low == 0:
            return self._is_zero(terms, constant)
        if len(terms) == 1 and abs(next(iter(terms.values()))) > 1:
            ((atom, factor),) = terms.items()
            # factor * x <= -constant is x <= floor(-constant / factor), and the other way round for a negative factor
            if factor > 0:
                return self.at_most_zero({atom: 1}, -(-constant // factor))
            return self.at_most_zero({atom: -1}, -(constant // factor))
        left, right = self._both_sides(terms, constant)
        if not any(factor > 0 for factor in terms.values()):
            # -x + constant <= 0 is constant <= x
            left, right = integer(constant), self._both_sides(terms, 0)[1]
        return sized(Apply("LessOrEqual", left, right))

    def _both_sides(self, terms: Mapping[ScoreExpr, int], constant: int) -> tuple[ScoreExpr, ScoreExpr]:
        """Two sums, left and right, where left - right is the sum: what is added, and what is taken away with the constant."""
        left = self.sums.from_linear({atom: factor for atom, factor in terms.items() if factor > 0}, 0)
        right = self.sums.from_linear({atom: -factor for atom, factor in terms.items() if factor < 0}, -constant)
        return left, right

    def _at_most(self, rest: ScoreExpr, factor: int, inner: tuple[ScoreExpr, ...], *, both: bool) -> ScoreExpr:
        """Whether rest + factor * x is 0 or less for both x of `inner`, or for one of them."""
        sides = [self.compare("LessOrEqual", self.add(rest, x, factor), integer(0)) for x in inner]
        return self.both(*sides) if both else self.either(*sides)

    def _is_zero(self, terms: Mapping[ScoreExpr, int], constant: int) -> ScoreExpr:
        """Whether the sum is 0."""
        low, high = self.sums.range_of_sum(terms, constant)
        if low > 0 or high < 0:
            return FALSE
        if low == high == 0:
            return TRUE
        first = min(terms, key=lambda atom: order_of((atom, 1)))
        if terms[first] < 0:
            terms, constant = {atom: -factor for atom, factor in terms.items()}, -constant
        return sized(Apply("Equal", *self._both_sides(terms, constant)))

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
        (left, left_constant), (right, right_constant) = self.linear(a), self.linear(b)
        # a <= b is a - b <= 0, and a < b is a - b + 1 <= 0
        terms, constant = add_terms(left, right, -1), left_constant - right_constant + (op == "Less")
        try:
            if self.sums.fits(terms, constant):
                return self._is_zero(terms, constant) if op == "Equal" else self.at_most_zero(terms, constant)
        except Wraps:
            pass
        return self._compared(op, a, b)

    def _compared(self, op: str, a: ScoreExpr, b: ScoreExpr) -> ScoreExpr:
        """Less, LessOrEqual or Equal of numbers that cannot be subtracted from each other."""
        (low, high), (other_low, other_high) = self.bounds(a), self.bounds(b)
        if op == "Equal":
            if high < other_low or other_high < low:
                return FALSE
            return TRUE if a == b else sized(keep_op(op, (a, b)))
        if high < other_low or (op == "LessOrEqual" and (high == other_low or a == b)):
            return TRUE
        if other_high < low or (op == "Less" and (other_high == low or a == b)):
            return FALSE
        return sized(Apply(op, a, b))

    def negate(self, e: ScoreExpr) -> ScoreExpr:
        """The opposite of a condition."""
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

    def where(self, condition: ScoreExpr, yes: ScoreExpr, no: ScoreExpr) -> ScoreExpr:
        """`yes` where the condition holds, else `no`."""
        self._spend()
        match condition:
            case Bool(value):
                return yes if value else no
            case Apply("Not", (negated,)):
                return self.where(negated, no, yes)
        yes, no = self._assume(yes, condition, True), self._assume(no, condition, False)
        if yes == no:
            return yes
        if yes == TRUE:
            return self.either(condition, no)
        if no == FALSE:
            return self.both(condition, yes)
        if yes == FALSE:
            return self.both(self.negate(condition), no)
        if no == TRUE:
            return self.either(self.negate(condition), yes)
        return sized(Apply("Where", condition, yes, no))

    def _assume(self, e: ScoreExpr, fact: ScoreExpr, truth: bool) -> ScoreExpr:
        """`e` where the condition `fact` is known to be `truth`."""
        if e == fact:
            return boolean(truth)
        match e:
            case Apply("And", (x, y)):
                return self.both(self._assume(x, fact, truth), self._assume(y, fact, truth))
            case Apply("Or", (x, y)):
                return self.either(self._assume(x, fact, truth), self._assume(y, fact, truth))
            case Apply("Not", (x,)):
                return self.negate(self._assume(x, fact, truth))
            case Apply("Where", (condition, yes, no)) if condition == fact:
                return self._assume(yes if truth else no, fact, truth)
        return e

    def over_choice(self, run: Callable[..., ScoreExpr], *args: ScoreExpr) -> ScoreExpr:
        """`run` of constants, carried into the choices that `args` are."""
        self._spend()
        for i, argument in enumerate(args):
            match argument:
                case Apply("Where", (condition, *sides)):
                    return self.where(condition, *(self.over_choice(run, *args[:i], x, *args[i + 1 :]) for x in sides))
        return run(*args)

    def over_outcomes(self, e: ScoreExpr, run: Callable[[Constant], ScoreExpr]) -> ScoreExpr:
        """`run` of each constant of a choice."""
        return self.over_choice(run, e)
