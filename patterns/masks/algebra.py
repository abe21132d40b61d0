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

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from onnx_fa.spec.expr import OPS, ScoreExpr

TRUE: ScoreExpr = ("b", True)
FALSE: ScoreExpr = ("b", False)
_LEAVES = frozenset(["score", "q", "k", "Sq", "Skv", "tensor", "f", "i", "b", "axis", "var"])
LONGEST = 1 << 24
"""No length that is known only at run time is longer."""
INT64 = (-(1 << 63), (1 << 63) - 1)
_SAFE = 1 << 62
"""Sums below this may be rearranged: whatever the order of their terms, none leaves int64."""
_EXACT_IN_F32 = 1 << 24
_LARGEST = 200
"""Nodes that an expression may have. What is larger is better read from a tensor."""
_STEPS = 5_000
"""Comparisons, sums, choices and connectives that may be built for one mask."""


class TooComplex(Exception):
    """An expression grew beyond use."""


class Wraps(TooComplex):
    """A whole number might leave int64."""


Bounds = tuple[int, int]
Linear = tuple[dict[ScoreExpr, int], int]


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


def sized(e: ScoreExpr) -> ScoreExpr:
    """`e` itself. Raises TooComplex where it has more nodes than are of use."""
    if sum(1 for _ in islice(parts(e), _LARGEST + 1)) > _LARGEST:
        raise TooComplex
    return e


def magnitude(x: Bounds) -> int:
    return max(abs(x[0]), abs(x[1]))


@dataclass
class Algebra:
    """Builds expressions. `sizes` are the static sizes of the positions ("q", "k", "axis", "var"), where known, `ranges` the least
    and the largest element of integer tensors. Raises TooComplex where an expression, or all that was built, is beyond use."""

    sizes: Mapping[ScoreExpr, int] = field(default_factory=dict)
    ranges: dict[ScoreExpr, Bounds] = field(default_factory=dict)
    _steps: int = 0
    _linear: dict[ScoreExpr, Linear] = field(default_factory=dict)
    _bounds: dict[ScoreExpr, Bounds] = field(default_factory=dict)

    def _spend(self) -> None:
        self._steps += 1
        if self._steps > _STEPS:
            raise TooComplex

    # Ranges

    def bounds(self, e: ScoreExpr) -> Bounds:
        """What a whole number cannot fall below and exceed, at the most the range of int64."""
        if e not in self._bounds:
            lo, hi = self._range_of(e)
            self._bounds[e] = (lo, hi) if INT64[0] <= lo and hi <= INT64[1] else INT64
        return self._bounds[e]

    def _range_of(self, e: ScoreExpr) -> Bounds:
        match e[0]:
            case "i":
                return e[1], e[1]
            case "q" | "k" | "axis" | "var":
                return 0, self.sizes.get(e, LONGEST) - 1
            case "Sq" | "Skv":
                return 0, LONGEST
            case "tensor":
                return self.ranges.get(e, INT64)
            case "Sign":
                return -1, 1
            case "Abs" | "Relu":
                lo, hi = self.bounds(e[1])
                if e[0] == "Relu":
                    return max(lo, 0), max(hi, 0)
                return 0 if lo <= 0 <= hi else min(abs(lo), abs(hi)), magnitude((lo, hi))
            case "Mod" if e[2][0] == "i" and e[2][1] > 0:
                return 0, e[2][1] - 1
            case "Div" if e[2][0] == "i" and e[2][1]:
                ends = [_quotient(x, e[2][1]) for x in self.bounds(e[1])]
                return min(ends), max(ends)
            case "Max" | "Min":
                (a, b), (c, d) = self.bounds(e[1]), self.bounds(e[2])
                return (max(a, c), max(b, d)) if e[0] == "Max" else (min(a, c), min(b, d))
            case "Where":
                (a, b), (c, d) = self.bounds(e[2]), self.bounds(e[3])
                return min(a, c), max(b, d)
            case "Add" | "Sub" | "Neg" | "Mul":
                terms, c = self.linear(e)
                if terms != {e: 1} or c:
                    return self._range(terms, c)
                if e[0] == "Mul":
                    corners = [x * y for x in self.bounds(e[1]) for y in self.bounds(e[2])]
                    return min(corners), max(corners)
        return INT64

    def _range(self, terms: Mapping[ScoreExpr, int], c: int) -> Bounds:
        return self._low(terms, c), -self._low({x: -n for x, n in terms.items()}, -c)

    def _low(self, terms: Mapping[ScoreExpr, int], c: int) -> int:
        return c + sum(n * self.bounds(atom)[0 if n > 0 else 1] for atom, n in terms.items())

    def _fits(self, terms: Mapping[ScoreExpr, int], c: int) -> bool:
        """Whether no order in which the terms can be added leaves int64."""
        return abs(c) + sum(abs(n) * magnitude(self.bounds(x)) for x, n in terms.items()) < _SAFE

    # Whole numbers

    def linear(self, e: ScoreExpr) -> Linear:
        """A whole number as a sum of atoms and a constant. What might wrap around is an atom."""
        if e not in self._linear:
            self._linear[e] = self._terms_of(e)
        terms, c = self._linear[e]
        return dict(terms), c

    def _terms_of(self, e: ScoreExpr) -> Linear:
        match e[0]:
            case "i":
                return {}, e[1]
            case "Add" | "Sub":
                (a, c), (b, d) = self.linear(e[1]), self.linear(e[2])
                sign = 1 if e[0] == "Add" else -1
                found = _added(a, b, sign), c + sign * d
            case "Neg":
                found = _negated(self.linear(e[1]))
            case "Mul" if e[1][0] == "i" or e[2][0] == "i":
                factor, rest = (e[1][1], e[2]) if e[1][0] == "i" else (e[2][1], e[1])
                found = _scaled(self.linear(rest), factor)
            case _:
                return {e: 1}, 0
        return found if self._fits(*found) else ({e: 1}, 0)

    def from_linear(self, terms: Mapping[ScoreExpr, int], c: int) -> ScoreExpr:
        """The sum, with what is added before what is taken away and the constant last. Raises Wraps where it might leave int64."""
        if not self._fits(terms, c) and (c or list(terms.values()) != [1]) and (terms or not _in_int64(c)):
            raise Wraps
        plus = [_times(x, n) for x, n in sorted(terms.items(), key=_order) if n > 0]
        minus = [_times(x, -n) for x, n in sorted(terms.items(), key=_order) if n < 0]
        if not plus and not minus:
            return integer(c)
        if plus:
            total = plus.pop(0)
        elif c:
            total, c = integer(c), 0
        else:
            total = ("Neg", minus.pop(0))
        for x in plus:
            total = ("Add", total, x)
        for x in minus:
            total = ("Sub", total, x)
        if c:
            total = ("Add", total, integer(c)) if c > 0 else ("Sub", total, integer(-c))
        return sized(total)

    def add(self, a: ScoreExpr, b: ScoreExpr, sign: int = 1) -> ScoreExpr:
        """a + sign * b of whole numbers. Raises Wraps where that might leave int64."""
        self._spend()
        for x, other, first in ((a, b, True), (b, a, False)):
            if x[0] == "Where":
                return self.where(
                    x[1], *(self.add(y, other, sign) if first else self.add(other, y, sign) for y in (x[2], x[3]))
                )
        (p, c), (q, d) = self.linear(a), self.linear(b)
        return self.from_linear(_added(p, q, sign), c + sign * d)

    def sum_of(self, a: ScoreExpr, b: ScoreExpr) -> ScoreExpr:
        """a + b of whole numbers, computed as int64 computes it."""
        try:
            return self.add(a, b)
        except Wraps:
            return sized(_as_it_is("Add", (a, b)))

    def multiply(self, a: ScoreExpr, by: int) -> ScoreExpr:
        """by * a of a whole number. Raises Wraps where that might leave int64."""
        self._spend()
        if a[0] == "Where":
            return self.where(a[1], self.multiply(a[2], by), self.multiply(a[3], by))
        return self.from_linear(*_scaled(self.linear(a), by))

    def divide(self, a: ScoreExpr, by: int) -> ScoreExpr:
        """a / by towards zero, `by` positive."""
        if by == 1:
            return a
        if a[0] == "i":
            return integer(_quotient(a[1], by))
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
            y = self.from_linear(rest, c % by)
            lo, hi = self.bounds(y)
            return None if lo < 0 or hi >= by else (self.from_linear(whole, c // by), y)
        except Wraps:
            return None

    # Truth

    def at_most_zero(self, terms: Mapping[ScoreExpr, int], c: int) -> ScoreExpr:
        """Whether the sum is 0 or less."""
        lo, hi = self._range(terms, c)
        if hi <= 0:
            return TRUE
        if lo > 0:
            return FALSE
        for atom, n in terms.items():
            rest = self.from_linear({x: m for x, m in terms.items() if x != atom}, c)
            if atom[0] == "Where":
                return self.where(
                    atom[1], *(self.compare("LessOrEqual", self.add(_times(y, n), rest), integer(0)) for y in atom[2:])
                )
            if abs(n) == 1 and atom[0] in ("Abs", "Max", "Min"):
                inner = (atom[1], self.from_linear(*_negated(self.linear(atom[1])))) if atom[0] == "Abs" else atom[1:]
                sides = [self.compare("LessOrEqual", self.add(rest, y, n), integer(0)) for y in inner]
                # max(x, y) <= r where both are; -max(x, y) <= r where one is. Min is the other way round.
                both = (n == 1) == (atom[0] != "Min")
                return self.both(*sides) if both else self.either(*sides)
        if lo == 0:
            return self._zero(terms, c)
        if len(terms) == 1 and abs(next(iter(terms.values()))) > 1:
            ((atom, n),) = terms.items()
            # n * x <= -c is x <= floor(-c / n), and the other way round for a negative n
            return self.at_most_zero({atom: 1}, -(-c // n)) if n > 0 else self.at_most_zero({atom: -1}, -(c // n))
        left = self.from_linear({x: n for x, n in terms.items() if n > 0}, 0)
        right = self.from_linear({x: -n for x, n in terms.items() if n < 0}, -c)
        if not any(n > 0 for n in terms.values()):
            # -x + c <= 0 is c <= x
            return sized(("LessOrEqual", integer(c), self.from_linear({x: -n for x, n in terms.items()}, 0)))
        return sized(("LessOrEqual", left, right))

    def _zero(self, terms: Mapping[ScoreExpr, int], c: int) -> ScoreExpr:
        """Whether the sum is 0."""
        lo, hi = self._range(terms, c)
        if lo > 0 or hi < 0:
            return FALSE
        if lo == hi == 0:
            return TRUE
        first = min(terms, key=lambda x: _order((x, 1)))
        if terms[first] < 0:
            terms, c = {x: -n for x, n in terms.items()}, -c
        left = self.from_linear({x: n for x, n in terms.items() if n > 0}, 0)
        right = self.from_linear({x: -n for x, n in terms.items() if n < 0}, -c)
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
        terms, c = _added(p, q, -1), c - d
        c += op == "Less"
        try:
            if self._fits(terms, c):
                return self._zero(terms, c) if op == "Equal" else self.at_most_zero(terms, c)
        except Wraps:
            pass
        return self._compared(op, a, b)

    def _compared(self, op: str, a: ScoreExpr, b: ScoreExpr) -> ScoreExpr:
        """Less, LessOrEqual or Equal of numbers that cannot be subtracted from each other."""
        (lo, hi), (least, most) = self.bounds(a), self.bounds(b)
        if op == "Equal":
            return FALSE if hi < least or most < lo else TRUE if a == b else sized(_as_it_is(op, (a, b)))
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

    # Choices

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

    # Any op

    def apply(self, op: str, args: tuple[ScoreExpr, ...], kind: str, dtype: np.dtype[np.generic]) -> ScoreExpr | None:
        """An op of expr.OPS. `kind` is that of the arguments (of the last one for Where), `dtype` the result's in the graph,
        to which constants are rounded. None where the op has no exact expression."""
        if op == "Where":
            return self.where(*args)
        if op == "Not":
            return self.negate(args[0])
        if op in ("And", "Or"):
            return (self.both if op == "And" else self.either)(*args)
        if op == "Xor" or (op == "Equal" and kind == "bool"):
            a, b = args
            if is_const(a) or is_const(b) or a == b:
                same = self.either(self.both(a, b), self.both(self.negate(a), self.negate(b)))
                return self.negate(same) if op == "Xor" else same
            return sized((op, a, b))
        if kind == "int":
            try:
                found = self._whole(op, args)
            except Wraps:
                found = None
            if found is not None:
                return found
        if all(map(is_choice, args)) and op in OPS and not self._sum_of_lows(op, args):
            return self.over_choice(lambda *c: _folded(op, c, dtype), *args)
        if kind == "float":
            found = self._as_whole(op, args)
            if found is not None:
                return found
        return sized(_as_it_is(op, args) if kind == "int" else (op, *args))

    def _sum_of_lows(self, op: str, args: tuple[ScoreExpr, ...]) -> bool:
        """Two masks added: better as two terms than as one with four outcomes."""
        wide = [a for a in args if a[0] == "Where"]
        return op in ("Add", "Sub") and len(wide) > 1 and all(any(o[1] < -1e3 for o in outcomes(a)) for a in wide)

    def _whole(self, op: str, args: tuple[ScoreExpr, ...]) -> ScoreExpr | None:
        match op:
            case "Add" | "Sub":
                return self.add(args[0], args[1], 1 if op == "Add" else -1)
            case "Neg":
                return self.add(integer(0), args[0], -1)
            case "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual" | "Equal":
                return self.compare(op, *args)
            case "Mul":
                for by, x in (args, args[::-1]):
                    if by[0] == "i":
                        return self.multiply(x, by[1])
            case "Div" | "Mod" if args[1][0] == "i" and args[1][1] > 0 and args[0][0] != "Where":
                return (self.divide if op == "Div" else self.modulo)(args[0], args[1][1])
            case "Abs" if args[0][0] != "Where":
                lo, hi = self.bounds(args[0])
                if lo >= 0:
                    return args[0]
                if hi <= 0:
                    return self.add(integer(0), args[0], -1)
                mirrored = self.add(integer(0), args[0], -1)
                return ("Abs", min(args[0], mirrored, key=repr))
        return None

    def _as_whole(self, op: str, args: tuple[ScoreExpr, ...]) -> ScoreExpr | None:
        """Float arithmetic on positions is exact: it is done on whole numbers."""
        inner = [self._whole_of(a) for a in args]
        if op in ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal") and sum(x is None for x in inner) == 1:
            found = self._against_fraction(op, args, inner)
            if found is not None:
                return found
        if any(x is None for x in inner) or all(map(is_const, args)):
            return None
        whole = tuple(x for x in inner if x is not None)
        if op in ("Add", "Sub", "Neg", "Abs"):
            found = self._whole(op, whole)
            return None if found is None else ("ToFloat", found)
        if op in ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"):
            return self.compare(op, *whole)
        return None

    def _against_fraction(
        self, op: str, args: tuple[ScoreExpr, ...], inner: list[ScoreExpr | None]
    ) -> ScoreExpr | None:
        """A position compared with a constant that is no whole number."""
        if inner[0] is None:
            swap = {
                "Less": "Greater",
                "LessOrEqual": "GreaterOrEqual",
                "Greater": "Less",
                "GreaterOrEqual": "LessOrEqual",
            }
            op, args, inner = swap.get(op, op), args[::-1], inner[::-1]
        x, by = inner[0], args[1]
        if x is None or by[0] != "f" or not math.isfinite(by[1]):
            return None
        if op == "Equal":
            return FALSE
        below = math.floor(by[1])
        if abs(below) >= _SAFE:
            return boolean(op.startswith("Less") == (below > 0))
        return self.compare("LessOrEqual" if op.startswith("Less") else "Greater", x, integer(below))

    def to_float(self, e: ScoreExpr, kind: str, dtype: np.dtype[np.generic]) -> ScoreExpr:
        if kind == "bool":
            return self.where(e, number(1.0), number(0.0))
        if is_choice(e):
            return self.over_choice(lambda c: number(_round(c[1], dtype)), e)
        if kind == "float":
            return e
        return ("ToFloat", e)

    def to_int(self, e: ScoreExpr, kind: str) -> ScoreExpr | None:
        if kind == "bool":
            return self.where(e, integer(1), integer(0))
        if kind == "int":
            return e
        if is_choice(e):
            if not all(math.isfinite(o[1]) and abs(o[1]) < 2**31 for o in outcomes(e)):
                return None
            return self.over_choice(lambda c: integer(int(c[1])), e)
        whole = self._whole_of(e)
        return whole if whole is not None else sized(("ToInt", e))

    def to_bool(self, e: ScoreExpr, kind: str) -> ScoreExpr:
        if kind == "bool":
            return e
        if is_choice(e):
            return self.over_choice(lambda c: boolean(c[1] != 0), e)
        if kind == "int":
            return self.negate(self.compare("Equal", e, integer(0)))
        return ("ToBool", e)

    def _whole_of(self, e: ScoreExpr) -> ScoreExpr | None:
        """The int that a float certainly equals."""
        if e[0] == "ToFloat" and self.is_whole(e[1]):
            inner: ScoreExpr = e[1]
            return inner if magnitude(self.bounds(inner)) <= _EXACT_IN_F32 else None
        if e[0] == "f" and math.isfinite(e[1]) and e[1] == int(e[1]) and abs(e[1]) <= _EXACT_IN_F32:
            return integer(int(e[1]))
        return None


def flatten(op: str, e: ScoreExpr) -> list[ScoreExpr]:
    """The parts of a chain of one op (And, Or)."""
    return [*flatten(op, e[1]), *flatten(op, e[2])] if e[0] == op else [e]


def _as_it_is(op: str, args: tuple[ScoreExpr, ...]) -> ScoreExpr:
    """An op of whole numbers, the arguments in the one order where their order is of no matter."""
    if op in ("Add", "Mul", "Max", "Min", "Equal"):
        args = tuple(sorted(args, key=lambda x: (x[0] == "i", _order((x, 1)))))
    return (op, *args)


def _quotient(a: int, by: int) -> int:
    """a / by towards zero."""
    return abs(a) // abs(by) * (1 if (a < 0) == (by < 0) else -1)


def _in_int64(x: int) -> bool:
    return INT64[0] <= x <= INT64[1]


def _folded(op: str, args: tuple[ScoreExpr, ...], dtype: np.dtype[np.generic]) -> ScoreExpr:
    """An op on constants, computed in the type that the graph computes it in."""
    logical = OPS[op].result == "bool"
    arrays = [
        np.asarray(a[1], np.int64 if a[0] == "i" else np.bool_ if a[0] == "b" else (np.float64 if logical else dtype))
        for a in args
    ]
    with np.errstate(all="ignore"):
        result = np.asarray(OPS[op].run(*arrays))
    if result.dtype == np.bool_:
        return boolean(bool(result))
    if result.dtype.kind == "i":
        return integer(int(result))
    return number(float(result.astype(dtype)))


def _round(x: float, dtype: np.dtype[np.generic]) -> float:
    with np.errstate(all="ignore"):
        return float(np.asarray(x, np.float64).astype(dtype))


def _added(a: Mapping[ScoreExpr, int], b: Mapping[ScoreExpr, int], sign: int) -> dict[ScoreExpr, int]:
    total = dict(a)
    for x, n in b.items():
        total[x] = total.get(x, 0) + sign * n
    return {x: n for x, n in total.items() if n}


def _negated(x: Linear) -> Linear:
    return _scaled(x, -1)


def _scaled(x: Linear, by: int) -> Linear:
    return {atom: n * by for atom, n in x[0].items() if by}, x[1] * by


def _times(e: ScoreExpr, n: int) -> ScoreExpr:
    return e if n == 1 else ("Mul", e, integer(n))


_RANK = {"k": 0, "q": 1, "Skv": 2, "Sq": 3}


def _order(item: tuple[ScoreExpr, int]) -> tuple[int, str]:
    return _RANK.get(item[0][0], 9), repr(item[0])
