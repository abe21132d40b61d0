"""What a block of queries and keys can prove about a condition: interval arithmetic on index values, when a kernel runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from onnx_fa.spec.expr import Apply, Bool, Int, Length, Position, ScoreExpr, Tensor

Bound = int | str
"""A number, or the SSA name of an index."""
Range = tuple[Bound, Bound]
Truth = bool | str
"""Known now, or the SSA name of an i1."""

_UNKNOWN: tuple[Truth, Truth] = (False, False)
_LONGEST = 2**31
"""No length is longer."""
_TAME = 2**40
"""Sums and products of integers from tensors are followed where those are no larger: a program tests that when it runs."""
_WRAPS = 2**63
"""From this size on, int64 arithmetic wraps around, in a model and in the bounds alike."""


def _largest(expr: ScoreExpr) -> int:
    """A bound of the absolute value of an integer expression whose tensors are tame."""
    match expr:
        case Int(value):
            return abs(int(value))
        case Tensor():
            return _TAME
        case Apply("Add" | "Sub", (x, y)):
            return _largest(x) + _largest(y)
        case Apply("Mul", (x, y)):
            return _largest(x) * _largest(y)
        case Apply("Min" | "Max", (x, y)):
            return max(_largest(x), _largest(y))
        case Apply("Neg" | "Div", (x, *_)):
            return _largest(x)
        case Apply("Mod", (_, Int(divisor))):
            return abs(int(divisor))
        case Position() | Length():
            return _LONGEST
    return _WRAPS


class BoundsText(Protocol):
    """The operations on indices and booleans that bounds are made of, in some language. They return names of values."""

    def index(self, value: int) -> str: ...
    def arith(self, op: str, a: str, b: str, type_: str = "index") -> str: ...
    def test(self, predicate: str, a: str, b: str) -> str: ...
    def choose(self, condition: str, a: str, b: str) -> str: ...


class Truths:
    """Conditions of which some are known when the text is written."""

    def __init__(self, t: BoundsText) -> None:
        self.t = t

    def both(self, a: Truth, b: Truth) -> Truth:
        if isinstance(a, bool):
            return b if a else False
        if isinstance(b, bool):
            return a if b else False
        return self.t.arith("andi", a, b, "i1")

    def either(self, a: Truth, b: Truth) -> Truth:
        if isinstance(a, bool):
            return True if a else b
        if isinstance(b, bool):
            return True if b else a
        return self.t.arith("ori", a, b, "i1")


class BlockBounds(Truths):
    """Evaluates integer expressions to ranges and conditions to (surely true, surely false). `leaf` gives the range of
    positions, lengths, integer tensors and booleans (0 and 1) over the block; None where it is unknown."""

    def __init__(self, t: BoundsText, leaf: Callable[[ScoreExpr], Range | None]) -> None:
        super().__init__(t)
        self.leaf = leaf

    # Arithmetic that is done now where it can be.

    def _ssa(self, x: Bound) -> str:
        return self.t.index(x) if isinstance(x, int) else x

    def _binary(self, op: str, a: Bound, b: Bound, now: Callable[[int, int], int]) -> Bound:
        if isinstance(a, int) and isinstance(b, int):
            return now(a, b)
        return self.t.arith(op, self._ssa(a), self._ssa(b))

    def _add(self, a: Bound, b: Bound) -> Bound:
        return self._binary("addi", a, b, lambda x, y: x + y)

    def _sub(self, a: Bound, b: Bound) -> Bound:
        return self._binary("subi", a, b, lambda x, y: x - y)

    def _mul(self, a: Bound, b: Bound) -> Bound:
        return self._binary("muli", a, b, lambda x, y: x * y)

    def _least(self, a: Bound, *more: Bound) -> Bound:
        for b in more:
            a = self._binary("minsi", a, b, min)
        return a

    def _most(self, a: Bound, *more: Bound) -> Bound:
        for b in more:
            a = self._binary("maxsi", a, b, max)
        return a

    def _test(self, predicate: str, a: Bound, b: Bound) -> Truth:
        if isinstance(a, int) and isinstance(b, int):
            return a < b if predicate == "slt" else a <= b
        return self.t.test(predicate, self._ssa(a), self._ssa(b))

    def _tame(self, *exprs: ScoreExpr) -> Truth:
        """Whether the integer tensors that take part in arithmetic there are small enough for `_largest`."""
        found: Truth = True
        todo = [part for expr in exprs if isinstance(expr, Apply) for part in expr.args]
        while todo:
            part = todo.pop()
            if isinstance(part, Apply):
                todo += part.args
            elif isinstance(part, Tensor) and (values := self.leaf(part)) is not None:
                for test in (self._test("sle", -_TAME, values[0]), self._test("sle", values[1], _TAME)):
                    found = self.both(found, test)
        return found

    def range(self, expr: ScoreExpr) -> Range | None:
        """The least and the largest value of an integer expression over the block, if its tensors are tame; None where that is
        unknown, or where int64 may wrap around."""
        match expr:
            case Apply("Add" | "Sub" | "Mul" | "Neg") if _largest(expr) >= _WRAPS:
                return None
            case Int(value):
                return value, value
            case Position() | Length() | Tensor():
                return self.leaf(expr)
            case Apply("Add" | "Sub" | "Mul" | "Min" | "Max" as op, (x, y)):
                a, b = self.range(x), self.range(y)
                if a is None or b is None:
                    return None
                match op:
                    case "Add":
                        return self._add(a[0], b[0]), self._add(a[1], b[1])
                    case "Sub":
                        return self._sub(a[0], b[1]), self._sub(a[1], b[0])
                    case "Min":
                        return self._least(a[0], b[0]), self._least(a[1], b[1])
                    case "Max":
                        return self._most(a[0], b[0]), self._most(a[1], b[1])
                products = [self._mul(p, r) for p in a for r in b]
                return self._least(*products), self._most(*products)
            case Apply("Neg", (x,)):
                negated = self.range(x)
                return None if negated is None else (self._sub(0, negated[1]), self._sub(0, negated[0]))
            case Apply("Div", (x, Int(divisor))) if divisor > 0:
                divided = self.range(x)
                if divided is None:
                    return None
                low, high = (self.t.arith("divsi", self._ssa(d), self.t.index(divisor)) for d in divided)
                return low, high
            case Apply("Mod", (x, Int(divisor))) if divisor > 0:
                return self._remainder(self.range(x), divisor)
        return None

    def _remainder(self, x: Range | None, divisor: int) -> Range:
        """The whole range of remainders, or where x stays within one multiple of the divisor, that part of it."""
        if x is None:
            return 0, divisor - 1
        t, by = self.t, self.t.index(divisor)
        floors = [t.arith("floordivsi", self._ssa(b), by) for b in x]
        one = t.test("eq", *floors)
        low, high = (self._sub(b, t.arith("muli", f, by)) for b, f in zip(x, floors, strict=True))
        return (
            t.choose(one, self._ssa(low), t.index(0)),
            t.choose(one, self._ssa(high), t.index(divisor - 1)),
        )

    def truth(self, expr: ScoreExpr) -> tuple[Truth, Truth]:
        """Whether a condition surely holds at every position of the block, and whether it surely holds at none."""
        match expr:
            case Bool(value):
                return bool(value), not value
            case Tensor():
                values = self.leaf(expr)
                return (
                    _UNKNOWN if values is None else (self._test("slt", 0, values[0]), self._test("sle", values[1], 0))
                )
            case Apply("Not", (x,)):
                true, false = self.truth(x)
                return false, true
            case Apply("And" | "Or" as op, (x, y)):
                a, b = self.truth(x), self.truth(y)
                if op == "And":
                    return self.both(a[0], b[0]), self.either(a[1], b[1])
                return self.either(a[0], b[0]), self.both(a[1], b[1])
            case Apply("Greater", (x, y)):
                return self.truth(Apply("Less", y, x))
            case Apply("GreaterOrEqual", (x, y)):
                return self.truth(Apply("LessOrEqual", y, x))
            case Apply("Less" | "LessOrEqual" | "Equal" as op, (x, y)):
                left, right = self.range(x), self.range(y)
                if left is None or right is None:
                    return _UNKNOWN
                tame = self._tame(x, y)
                true, false = self._compare(op, left, right)
                return self.both(tame, true), self.both(tame, false)
        return _UNKNOWN

    def _compare(self, op: str, left: Range, right: Range) -> tuple[Truth, Truth]:
        """Whether a comparison of two ranges surely holds, and whether it surely does not."""
        if op == "Less":
            return self._test("slt", left[1], right[0]), self._test("sle", right[1], left[0])
        if op == "LessOrEqual":
            return self._test("sle", left[1], right[0]), self._test("slt", right[1], left[0])
        same = self.both(self._test("sle", left[1], right[0]), self._test("sle", right[1], left[0]))
        return same, self.either(self._test("slt", left[1], right[0]), self._test("slt", right[1], left[0]))
