"""Score expressions (expr.py) as operations on vectors: floats in f32, booleans in i1, integers in i32 where no value can
pass its range and in i64 elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from onnx_fa.kernels.mlir.functions import erf, one_plus_exp_of_minus, sigmoid_factor
from onnx_fa.kernels.mlir.vectors import Lanes
from onnx_fa.kernels.plan.score import LOG2, LOG2E, MASK_FLOOR, kind
from onnx_fa.spec.dtypes import F32_MAX
from onnx_fa.spec.expr import Apply, Axis, Bool, Constant, Float, Int, Length, Position, ScoreExpr, Tensor
from onnx_fa.spec.terms import Dim, TensorArg

LONGEST = 2**28
"""No length that is unknown at compile time is longer: K of one head would take a gigabyte at the least."""

Interval = tuple[int, int]
_I32, _I64 = (-(2**31), 2**31 - 1), (-(2**63), 2**63 - 1)

_FLOAT_UNARY = {
    "Exp": "math.exp",
    "Log": "math.log",
    "Sqrt": "math.sqrt",
    "Tanh": "math.tanh",
    "Sin": "math.sin",
    "Cos": "math.cos",
    "Floor": "math.floor",
    "Ceil": "math.ceil",
    "Round": "math.roundeven",
}
_BINARY = {
    "Add": ("arith.addf", "arith.addi"),
    "Sub": ("arith.subf", "arith.subi"),
    "Mul": ("arith.mulf", "arith.muli"),
    "Min": ("arith.minimumf", "arith.minsi"),
    "Max": ("arith.maximumf", "arith.maxsi"),
}
_COMPARE = {
    "Less": ("olt", "slt"),
    "LessOrEqual": ("ole", "sle"),
    "Greater": ("ogt", "sgt"),
    "GreaterOrEqual": ("oge", "sge"),
    "Equal": ("oeq", "eq"),
}
_LOGIC = {"And": "andi", "Or": "ori", "Xor": "xori"}


def _within(x: Interval, limits: Interval) -> bool:
    return limits[0] <= x[0] and x[1] <= limits[1]


def _quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


class IntBounds:
    """Static bounds of integer expressions."""

    def __init__(self, sq: Dim, skv: Dim, tensors: tuple[TensorArg, ...]) -> None:
        self._lengths: dict[Axis, Dim] = {"q": sq, "k": skv}
        self._tensors = tensors
        self.of = cache(self._of)

    def _of(self, expr: ScoreExpr) -> Interval:
        found = self._raw(expr)
        return found if _within(found, _I64) else _I64

    def _raw(self, expr: ScoreExpr) -> Interval:
        match expr:
            case Int(value):
                return value, value
            case Tensor(n):
                return _I32 if self._tensors[n].dtype == "i32" else _I64
            case Length(axis):
                size = self._lengths[axis]
                return (size, size) if isinstance(size, int) else (0, LONGEST)
            case Position(axis):
                size = self._lengths[axis]
                return 0, (size if isinstance(size, int) else LONGEST) - 1
            case Apply("ToInt", (a,)):
                argument = kind(a, self._tensors)
                if argument == "int":
                    return self.of(a)
                return (0, 1) if argument == "bool" else _I64
            case Apply("Where", (_, a, b)):
                (a0, a1), (b0, b1) = self.of(a), self.of(b)
                return min(a0, b0), max(a1, b1)
            case Apply("Neg", (a,)):
                low, high = self.of(a)
                return -high, -low
            case Apply("Abs", (a,)):
                low, high = self.of(a)
                return (0 if low <= 0 <= high else min(abs(low), abs(high))), max(abs(low), abs(high))
            case Apply("Sign", (a,)):
                return -1, 1
            case Apply("Relu", (a,)):
                low, high = self.of(a)
                return max(low, 0), max(high, 0)
            case Apply(op, (a, b)):
                return self._raw_of_two(op, self.of(a), self.of(b))
        raise AssertionError(expr)

    def _raw_of_two(self, op: str, a: Interval, b: Interval) -> Interval:
        """Bounds of an op of two numbers within `a` and `b`."""
        (a0, a1), (b0, b1) = a, b
        match op:
            case "Add":
                return a0 + b0, a1 + b1
            case "Sub":
                return a0 - b1, a1 - b0
            case "Mul":
                products = [x * y for x in (a0, a1) for y in (b0, b1)]
                return min(products), max(products)
            case "Min":
                return min(a0, b0), min(a1, b1)
            case "Max":
                return max(a0, b0), max(a1, b1)
            case "Div":
                if b0 > 0 or b1 < 0:
                    corners = [_quotient(x, y) for x in (a0, a1) for y in (b0, b1)]
                    return min(corners), max(corners)
                largest = max(abs(a0), abs(a1))
                return -largest, largest
            case "Mod":
                return min(b0 + 1, 0), max(b1 - 1, 0)
        raise AssertionError(op)


@dataclass(frozen=True)
class Vector:
    """An SSA value: a vector of `element` ("f32", "i1", "i32" or "i64")."""

    value: str
    element: str


class ExprVectors:
    """Emits expressions over vectors of `t`, or over its scalars."""

    def __init__(self, t: Lanes, bounds: IntBounds, tensors: Sequence[TensorArg]) -> None:
        self.t, self.bounds, self.tensors = t, bounds, tensors

    def emit(
        self, expr: ScoreExpr, known: Callable[[ScoreExpr], Vector | None], memo: dict[ScoreExpr, Vector]
    ) -> Vector:
        """`known` gives the vectors of leaves other than constants, and of whatever else has been computed before."""
        result = memo.get(expr) or known(expr)
        if result is None:
            if isinstance(expr, Constant):
                return self._constant(expr)
            assert isinstance(expr, Apply), expr
            result = self._times_sigmoid(expr, known, memo)
        if result is None:
            assert isinstance(expr, Apply), expr
            result = self._op(expr, [self.emit(a, known, memo) for a in expr.args])
        memo[expr] = result
        return result

    def _times_sigmoid(
        self, expr: ScoreExpr, known: Callable[[ScoreExpr], Vector | None], memo: dict[ScoreExpr, Vector]
    ) -> Vector | None:
        """A product with a sigmoid as one quotient, of vectors; None for anything else, and where the sigmoid is there already: of
        what does not change in a loop, that alone is known, and not what it is made of."""
        found = sigmoid_factor(expr)
        if found is None or self.t.width == 1:
            return None
        made = Apply("Sigmoid", found[1])
        if made in memo or known(made) is not None:
            return None
        y, x = (self.emit(e, known, memo) for e in found)
        return self._let("arith.divf", "f32", y, Vector(one_plus_exp_of_minus(self.t, x.value), "f32"))

    def type(self, element: str) -> str:
        return self.t.type(element)

    def _dense(self, literal: object, element: str) -> Vector:
        return Vector(self.t.dense(str(literal), element), element)

    def _constant(self, constant: Constant) -> Vector:
        match constant:
            case Bool(value):
                return self._dense("true" if value else "false", "i1")
            case Int(value):
                return self._dense(int(value), "i32" if _within((value, value), _I32) else "i64")
        return Vector(self._float(constant.value), "f32")

    def _float(self, value: float) -> str:
        if math.isnan(value):
            return self.t.dense("0x7FC00000", "f32")
        if math.isfinite(value):
            value = min(max(value, -F32_MAX), F32_MAX)
        return self.t.splat(value)

    def _let(self, op: str, element: str, *operands: Vector) -> Vector:
        names = ", ".join(x.value for x in operands)
        return Vector(self.t.let(f"{op} {names} : {self.type(element)}"), element)

    def _cast(self, op: str, x: Vector, element: str) -> Vector:
        return Vector(self.t.let(f"{op} {x.value} : {self.type(x.element)} to {self.type(element)}"), element)

    def _wider(self, x: Vector, element: str) -> Vector:
        return x if x.element == element else self._cast("arith.extsi", x, element)

    def _ints(self, args: Sequence[Vector], *results: ScoreExpr) -> list[Vector]:
        """Integers in one type, which holds the results as well."""
        narrow = all(a.element == "i32" for a in args) and all(_within(self.bounds.of(r), _I32) for r in results)
        return [self._wider(a, "i32" if narrow else "i64") for a in args]

    def _select(self, condition: Vector, a: Vector, b: Vector) -> Vector:
        kinds = self.type(a.element)
        if kinds != a.element:
            kinds = f"{self.type('i1')}, {kinds}"
        return Vector(self.t.let(f"arith.select {condition.value}, {a.value}, {b.value} : {kinds}"), a.element)

    def _test(self, predicate: str, a: Vector, b: Vector) -> Vector:
        op = "cmpf" if a.element == "f32" else "cmpi"
        return Vector(self.t.let(f"arith.{op} {predicate}, {a.value}, {b.value} : {self.type(a.element)}"), "i1")

    def _op(self, expr: Apply, args: list[Vector]) -> Vector:
        name, x = expr.op, args[0]
        if name in _FLOAT_UNARY:
            return self._let(_FLOAT_UNARY[name], "f32", x)
        if name in _LOGIC:
            return self._let(f"arith.{_LOGIC[name]}", "i1", *args)
        if name in _BINARY:
            floats, ints = _BINARY[name]
            if x.element == "f32":
                return self._bounded(expr, args) or self._let(floats, "f32", *args)
            args = self._ints(args, expr)
            return self._let(ints, args[0].element, *args)
        if name in _COMPARE:
            floats, ints = _COMPARE[name]
            if x.element not in ("f32", "i1"):
                args = self._ints(args)
            return self._test(floats if x.element == "f32" else ints, *args)
        if name in ("Neg", "Abs", "Sign", "Relu") and x.element != "f32":
            return self._int_unary(name, self._ints(args, expr)[0])
        match name:
            case "Where":
                a, b = args[1:]
                if a.element not in ("f32", "i1"):
                    a, b = self._ints([a, b])
                return self._select(x, a, b)
            case "Not":
                return self._let("arith.xori", "i1", x, self._dense("true", "i1"))
            case "IsNaN":
                return self._test("uno", x, x)
            case "Neg":
                return self._let("arith.negf", "f32", x)
            case "Abs":
                return self._let("math.absf", "f32", x)
            case "Sign":
                zero, one, minus = (Vector(self._float(v), "f32") for v in (0.0, 1.0, -1.0))
                below = self._select(self._test("olt", x, zero), minus, x)  # zeros and NaN stay
                return self._select(self._test("ogt", x, zero), one, below)
            case "Relu":
                return self._relu(x)
            case "Reciprocal":
                return self._let("arith.divf", "f32", Vector(self._float(1.0), "f32"), x)
            case "Div" if x.element == "f32":
                return self._let("arith.divf", "f32", *args)
            case "Div" | "Mod":
                return self._int_division(expr, self._ints(args, expr))
            case "Pow":
                return self._power(expr, args)
            case "Erf":
                return Vector(erf(self.t, x.value), "f32")
            case "Sigmoid":
                return self._sigmoid(x)
            case "Softplus":
                soft = self._let("math.log1p", "f32", self._exp_of_minus_abs(x))
                return self._let("arith.addf", "f32", soft, self._relu(x))
            case "ToFloat" | "ToInt" | "ToBool":
                return self._conversion(name, x)
            case n if n == LOG2:
                return Vector(self.in_log2(x.value), "f32")
        raise AssertionError(name)

    def _bounded(self, expr: Apply, args: list[Vector]) -> Vector | None:
        """Vectors that a constant bounds, by one instruction; what is NaN stays NaN. None for anything else."""
        choose = {"Max": self.t.maximum, "Min": self.t.minimum}.get(expr.op)
        constant = [isinstance(a, Float) and not math.isnan(a.value) for a in expr.args]
        if choose is None or self.t.width == 1 or not any(constant):
            return None
        bound, x = args if constant[0] else reversed(args)
        return Vector(choose(bound.value, x.value), "f32")

    def _relu(self, x: Vector) -> Vector:
        if self.t.width > 1:
            return Vector(self.t.maximum(self._float(0.0), x.value), "f32")
        return self._let("arith.maximumf", "f32", x, Vector(self._float(0.0), "f32"))

    def _conversion(self, name: str, x: Vector) -> Vector:
        match name, x.element:
            case ("ToFloat", "f32") | ("ToBool", "i1"):
                return x
            case "ToFloat", element:
                return self._cast("arith.uitofp" if element == "i1" else "arith.sitofp", x, "f32")
            case "ToInt", "i1":
                return self._cast("arith.extui", x, "i32")
            case "ToInt", element:
                return self._cast("arith.fptosi", x, "i64") if element == "f32" else x
            case _, "f32":
                return self._test("une", x, Vector(self._float(0.0), "f32"))
        return self._test("ne", x, self._dense(0, x.element))

    def in_log2(self, value: str) -> str:
        """A score or mask in units of log2: finite values are raised to MASK_FLOOR first."""
        t = self.t
        low = t.compare("olt", value, t.splat(MASK_FLOOR))
        finite = t.compare("one", value, t.splat(-math.inf))
        both = t.let(f"arith.andi {finite}, {low} : {t.bvec}")
        return t.vop("arith.mulf", t.select(both, t.splat(MASK_FLOOR), value), t.splat(LOG2E))

    def _int_unary(self, op: str, x: Vector) -> Vector:
        zero, one, minus = (self._dense(v, x.element) for v in (0, 1, -1))
        match op:
            case "Neg":
                return self._let("arith.subi", x.element, zero, x)
            case "Abs":
                return self._let("math.absi", x.element, x)
            case "Sign":
                return self._let("arith.minsi", x.element, self._let("arith.maxsi", x.element, x, minus), one)
        return self._let("arith.maxsi", x.element, x, zero)

    def _int_division(self, expr: Apply, args: list[Vector]) -> Vector:
        """Division towards zero, or the remainder with the divisor's sign. By zero both give 0, and nothing traps."""
        a, b = args
        element = a.element
        zero, one, minus = (self._dense(v, element) for v in (0, 1, -1))
        low, high = self.bounds.of(expr.args[1])
        divisor, by_zero, by_minus = b, None, None
        if low <= 0 <= high:
            by_zero = self._test("eq", b, zero)
            divisor = self._select(by_zero, one, divisor)
        if low <= -1 <= high:
            by_minus = self._test("eq", b, minus)
            divisor = self._select(by_minus, one, divisor)
        if expr.op == "Div":
            result = self._let("arith.divsi", element, a, divisor)
            if by_minus is not None:
                result = self._select(by_minus, self._let("arith.subi", element, zero, a), result)
            return self._select(by_zero, zero, result) if by_zero is not None else result
        result = self._let("arith.remsi", element, a, divisor)  # 0 where the divisor was replaced by 1, as it must be
        if low > 0 and self.bounds.of(expr.args[0])[0] >= 0:
            return result
        signs = self._test("slt", self._let("arith.xori", element, result, divisor), zero)
        differ = self._let("arith.andi", "i1", signs, self._test("ne", result, zero))
        return self._select(differ, self._let("arith.addi", element, result, divisor), result)

    def _exp_of_minus_abs(self, x: Vector) -> Vector:
        return self._let("math.exp", "f32", self._let("arith.negf", "f32", self._let("math.absf", "f32", x)))

    def _sigmoid(self, x: Vector) -> Vector:
        """1 / (1 + e^-x); of single numbers with e^-|x| by the compiler, so that nothing overflows and small results keep their
        digits."""
        if self.t.width > 1:
            below = Vector(one_plus_exp_of_minus(self.t, x.value), "f32")
            return self._let("arith.divf", "f32", Vector(self._float(1.0), "f32"), below)
        one, zero = (Vector(self._float(v), "f32") for v in (1.0, 0.0))
        e = self._exp_of_minus_abs(x)
        top = self._select(self._test("olt", x, zero), e, one)
        return self._let("arith.divf", "f32", top, self._let("arith.addf", "f32", one, e))

    def _power(self, expr: Apply, args: list[Vector]) -> Vector:
        power = expr.args[1]
        exponent = power.value if isinstance(power, Float) else None
        if exponent == 1.0:
            return args[0]
        if exponent in (2.0, 3.0):
            square = self._let("arith.mulf", "f32", args[0], args[0])
            return square if exponent == 2.0 else self._let("arith.mulf", "f32", square, args[0])
        if exponent == 0.5:
            return self._let("math.sqrt", "f32", args[0])
        return self._let("math.powf", "f32", *args)
