"""Score expressions (expr.py) as Triton source, on tiles: queries along the first axis, keys along the second."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from onnx_fa.kernels.mlir.expressions import IntBounds
from onnx_fa.kernels.plan.score import LOG2, LOG2E, MASK_FLOOR, fill_log2, kind, uses
from onnx_fa.kernels.triton import reciprocals
from onnx_fa.kernels.triton.one_and import one_and_erf, one_and_tanh
from onnx_fa.spec.dtypes import F16_MAX, F32_MAX
from onnx_fa.spec.expr import Apply, Constant, Float, Int, Length, ScoreExpr, Tensor
from onnx_fa.spec.terms import Dim, TensorArg

SLOPE = "Slope"
"""One more op, for the same reason as LOG2: a factor of positions, in units of log2."""
_EXACT_INT = 1 << 24
"""Integers below this are exact in f32."""
_I32 = (-(2**31), 2**31 - 1)
_STEEPEST = 1e29
"""Slopes are clamped to this: times any position it is finite, and swallows every score all the same."""

_INFIX = {"Add": "+", "Sub": "-", "Mul": "*"}
_COMPARE = {"Less": "<", "LessOrEqual": "<=", "Greater": ">", "GreaterOrEqual": ">=", "Equal": "=="}
_LOGIC = {"And": "&", "Or": "|", "Xor": "^"}
_UNARY = {
    "Exp": "tl.exp",
    "Log": "tl.log",
    "Sqrt": "tl.sqrt_rn",
    "Erf": "tl.erf",
    "Sin": "tl.sin",
    "Cos": "tl.cos",
    "Floor": "tl.floor",
    "Ceil": "tl.ceil",
}


def float_text(value: float) -> str:
    """An f32 constant in Triton source."""
    if math.isnan(value):
        return 'float("nan")'
    if math.isinf(value):
        return 'float("inf")' if value > 0 else 'float("-inf")'
    return repr(float(min(max(value, -F32_MAX), F32_MAX)))


@dataclass
class Block:
    """Lines of source under construction, and names for values."""

    lines: list[str] = field(default_factory=list)
    count: int = 0
    indent: int = 1

    def do(self, line: str) -> None:
        self.lines.append("    " * self.indent + line)

    def let(self, value: str) -> str:
        self.count += 1
        name = f"x{self.count}"
        self.do(f"{name} = {value}")
        return name


class Expressions:
    """Writes expressions into a block. `known` names the values of leaves, and of what was computed before."""

    def __init__(
        self,
        block: Block,
        sq: Dim,
        skv: Dim,
        tensors: tuple[TensorArg, ...],
        exact_tanh: bool,
        *,
        to_halves: bool = False,
    ) -> None:
        """`to_halves`: what they give is rounded to f16 or bf16."""
        self.t, self.tensors, self.exact_tanh, self.to_halves = block, tensors, exact_tanh, to_halves
        self.bounds = IntBounds(sq, skv, tensors)

    def emit(
        self, expr: ScoreExpr, known: Callable[[ScoreExpr], str | None], memo: dict[ScoreExpr, str] | None = None
    ) -> str:
        """The name of a value, or the text of a constant. `memo` is shared by what is computed in the same place."""
        memo = {} if memo is None else memo
        found = memo.get(expr) or known(expr)
        if found is None:
            if isinstance(expr, Constant):
                return float_text(expr.value) if isinstance(expr, Float) else repr(expr.value)
            assert isinstance(expr, Apply), expr
            found = self.t.let(self._op(expr, lambda e: self.emit(e, known, memo)))
            memo[expr] = found
        return found

    def _tile(self, expr: ScoreExpr, text: str) -> str:
        """A constant as a tile, for functions that take no constants."""
        if text.isdigit():
            return f"tl.full([1, 1], {text}, {'tl.int32' if _fits(int(text)) else 'tl.int64'})"
        if not isinstance(expr, Constant):
            return text
        types = {"float": "tl.float32", "int": "tl.int64", "bool": "tl.int1"}
        return f"tl.full([1, 1], {text}, {types[self._kind(expr)]})"

    def _kind(self, expr: ScoreExpr) -> str:
        return kind(expr, self.tensors)

    def _wide(self, expr: ScoreExpr, *results: ScoreExpr) -> str:
        """What makes an integer operand wide enough for the results."""
        narrow = all(_fits(*self.bounds.of(r)) for r in results)
        return "" if narrow or isinstance(expr, Int | Length) else ".to(tl.int64)"

    def _together(self, expr: Apply, emit: Callable[[ScoreExpr], str]) -> str | None:
        """What an op and one that it reads give, where that is less than both; None where it is not."""
        match expr:
            case Apply("ToFloat", (Apply("Sub", (a, b)) as difference,)) if self._kind(difference) == "int":
                # The same number, from conversions of positions alone, which cost nothing per score.
                if all(_fits(*self.bounds.of(x), limit=_EXACT_INT) for x in (difference, a, b)):
                    return f"{emit(Apply('ToFloat', a))} - {emit(Apply('ToFloat', b))}"
            case Apply("Add", (Apply("Erf", (z,)), Float(1.0)) | (Float(1.0), Apply("Erf", (z,)))) if self.to_halves:
                return one_and_erf(self.t.let, self._tile(z, emit(z)))
            case Apply("Add", (Apply("Tanh", (z,)), Float(1.0)) | (Float(1.0), Apply("Tanh", (z,)))) if self.exact_tanh:
                return one_and_tanh(self.t.let, self._tile(z, emit(z)))
        return None

    def _op(self, expr: Apply, emit: Callable[[ScoreExpr], str]) -> str:
        name, args = expr.op, expr.args
        if name == LOG2:
            return self._log2(args[0], emit)
        if name == SLOPE:
            return self._slope(emit(args[0]))
        together = self._together(expr, emit)
        if together is not None:
            return together
        values = [emit(a) for a in args]
        x = self._tile(args[0], values[0])
        integers = self._kind(args[0]) == "int"
        if name in _UNARY:
            return f"{_UNARY[name]}({x})"
        if name in _LOGIC:
            return f"{x} {_LOGIC[name]} {values[1]}"
        if name in _INFIX or name in ("Min", "Max"):
            return self._arithmetic(expr, x, values[1], integers)
        if name in _COMPARE:
            return f"{x} {_COMPARE[name]} {values[1]}"
        match name:
            case "Where":
                return f"tl.where({x}, {values[1]}, {values[2]})"
            case "Not":
                return f"~{x}"
            case "IsNaN":
                return f"{x} != {x}"
            case "Neg":
                return f"0 - {x}{self._wide(args[0], expr)}" if integers else f"-{x}"
            case "Abs":
                return f"tl.abs({x})"
            case "Sign":
                one, zero = ("1", "0") if integers else ("1.0", "0.0")
                return f"tl.where({x} > {zero}, {one}, tl.where({x} < {zero}, -{one}, {x}))"
            case "Relu":
                return f"tl.where({x} < 0, 0, {x})" if integers else f"tl.where({x} < 0.0, 0.0, {x})"
            case "Round":
                return self._round(x)
            case "Reciprocal":
                return f"1.0 / {x}"
            case "Tanh":
                return self.tanh(x)
            case "Sigmoid":
                e = self.t.let(f"tl.exp(-tl.abs({x}))")
                return f"tl.where({x} < 0.0, {e}, 1.0) / (1.0 + {e})"
            case "Softplus":
                soft = self._log1p(f"tl.exp(-tl.abs({x}))")
                return f"tl.maximum({x}, 0.0, propagate_nan=triton.language.PropagateNan.ALL) + {soft}"
            case "Pow":
                return self._power(args, x, values[1])
            case "Div" if not integers:
                return f"{x} / {values[1]}"
            case "Div" | "Mod":
                return self._division(expr, x, self._tile(args[1], values[1]))
            case "ToFloat" | "ToInt" | "ToBool":
                return self._conversion(name, x, self._kind(args[0]))
        raise AssertionError(name)

    def _arithmetic(self, expr: Apply, x: str, y: str, integers: bool) -> str:
        """A sum, a difference, a product, the smaller or the larger of two numbers."""
        name = expr.op
        if integers:
            x += self._wide(expr.args[0], expr)
            y += self._wide(expr.args[1], expr)
        if name in _INFIX:
            return f"{x} {_INFIX[name]} {y}"
        nan = "" if integers else ", propagate_nan=triton.language.PropagateNan.ALL"
        return f"tl.{name.lower()}imum({x}, {y}{nan})"

    def _conversion(self, name: str, x: str, kind: str) -> str:
        """A value of a kind as a float, an integer or a boolean."""
        if name == "ToFloat":
            return f"{x}.to(tl.float32)"
        if name == "ToInt":
            return f"{x}.to(tl.int32)" if kind == "bool" else f"{x}.to(tl.int64)"
        return x if kind == "bool" else f"{x} != 0"

    def tanh(self, x: str) -> str:
        """1 - 2 / (e^2x + 1). Near 0 that has few digits, where f32 wants the series (Abramowitz and Stegun 4.5.64)."""
        if not self.exact_tanh:
            return reciprocals.shared_tanh(self.t.let, x)
        far = f"1.0 - 2.0 / (tl.exp2({x} * {2 * LOG2E!r}) + 1.0)"
        s = self.t.let(f"{x} * {x}")
        near = f"{x} * (1.0 + {s} * ({-1 / 3!r} + {s} * ({2 / 15!r} + {s} * ({-17 / 315!r} + {s} * {62 / 2835!r}))))"
        return f"tl.where(tl.abs({x}) < 0.2, {near}, {far})"

    def _log1p(self, x: str) -> str:
        """log(1 + x) for x from 0 to 1, with all digits of small ones, which 1 + x would lose: 2 artanh(x / (2 + x)) as a series
        (Abramowitz and Stegun 4.1.27), whose next term is below 1e-8."""
        x = self.t.let(x)
        r = self.t.let(f"{x} / (2.0 + {x})")
        square, series = self.t.let(f"{r} * {r}"), repr(1 / 13)
        for n in (11, 9, 7, 5, 3):
            series = f"({1 / n!r} + {square} * {series})"
        return f"2.0 * {r} * (1.0 + {square} * {series})"

    def _round(self, x: str) -> str:
        """To the nearest whole number, of two equally near ones the even."""
        up = self.t.let(f"tl.floor({x} + 0.5)")
        tie = f"({up} - {x} == 0.5) & (tl.floor({up} * 0.5) * 2.0 != {up})"
        return f"tl.where(tl.abs({x}) < 4194304.0, tl.where({tie}, {up} - 1.0, {up}), {x})"

    def _power(self, args: tuple[ScoreExpr, ...], x: str, y: str) -> str:
        exponent = args[1].value if isinstance(args[1], Float) else None
        if exponent == 1.0:
            return x
        if exponent in (2.0, 3.0):
            return " * ".join([x] * int(exponent))
        if exponent == 0.5:
            return f"tl.sqrt_rn({x})"
        y = self.t.let(self._tile(args[1], y))
        size = self.t.let(f"tl.exp2({y} * tl.log2(tl.abs({x})))")
        whole = f"tl.floor({y}) == {y}"
        odd = f"tl.floor({y} * 0.5) * 2.0 != {y}"
        signed = self.t.let(f"tl.where({whole}, tl.where({odd}, -{size}, {size}), {float_text(math.nan)})")
        return f"tl.where({y} == 0.0, 1.0, tl.where({x} < 0.0, {signed}, {size}))"

    def _division(self, expr: Apply, x: str, y: str) -> str:
        """Division towards zero, or the remainder with the divisor's sign. By zero both give 0."""
        x, y = (f"({v}{self._wide(e, expr, *expr.args)})" for v, e in zip((x, y), expr.args, strict=True))
        if self.bounds.of(expr.args[1])[0] > 0 and self.bounds.of(expr.args[0])[0] >= 0:
            return f"{x} {'//' if expr.op == 'Div' else '%'} {y}"
        divisor = self.t.let(f"tl.where({y} == 0, 1, {y})")
        size = self.t.let(f"tl.abs({x}) // tl.abs({divisor})")
        quotient = self.t.let(f"tl.where(({x} < 0) != ({divisor} < 0), -{size}, {size})")
        if expr.op == "Div":
            return f"tl.where({y} == 0, 0, {quotient})"
        rest = self.t.let(f"{x} - {quotient} * {divisor}")
        return f"tl.where(({rest} != 0) & (({rest} < 0) != ({divisor} < 0)), {rest} + {divisor}, {rest})"

    # Units of log2.

    def _log2(self, expr: ScoreExpr, emit: Callable[[ScoreExpr], str]) -> str:
        """A value times log2(e); finite values below MASK_FLOOR are raised to it first, where there can be any."""
        if isinstance(expr, Float):
            return f"tl.full([1, 1], {float_text(fill_log2(expr.value))}, tl.float32)"
        if self._size(expr) <= F32_MAX / 2:
            return f"{emit(expr)} * {LOG2E!r}"
        match expr:
            case Apply("Where", (condition, a, b)):
                return f"tl.where({emit(condition)}, {emit(Apply(LOG2, a))}, {emit(Apply(LOG2, b))})"
            case Apply("Mul", (a, b)):
                for slope, other in ((a, b), (b, a)):
                    if uses(slope, self.tensors) <= {"q"} and self._size(other) <= _EXACT_INT:
                        return f"{emit(Apply(SLOPE, slope))} * {emit(other)}"
        x = self._tile(expr, emit(expr))
        low = f"({x} < {MASK_FLOOR!r}) & ({x} != {float_text(-math.inf)})"
        return f"tl.where({low}, {MASK_FLOOR!r}, {x}) * {LOG2E!r}"

    def _slope(self, x: str) -> str:
        """Times log2(e), and clamped so that it stays finite times any position."""
        clamped = f"tl.minimum(tl.maximum({x}, {-_STEEPEST!r}), {_STEEPEST!r})"
        return f"tl.where(tl.abs({x}) < {float_text(math.inf)}, {clamped}, {x}) * {LOG2E!r}"

    def _size(self, expr: ScoreExpr) -> float:
        """A bound of the magnitude of finite values of a float expression; infinite where none is known."""
        match expr:
            case Float(value):
                return abs(value) if math.isfinite(value) else 0.0
            case Apply("ToFloat", (a,)):
                if self._kind(a) == "bool":
                    return 1.0
                return float(max(map(abs, self.bounds.of(a)))) if self._kind(a) == "int" else self._size(a)
            case Tensor(n):
                return F16_MAX if self.tensors[n].dtype == "f16" else math.inf
            case Apply("Sin" | "Cos" | "Tanh" | "Erf" | "Sigmoid" | "Sign", (_,)):
                return 1.0
            case Apply("Neg" | "Abs" | "Relu" | "Floor" | "Ceil" | "Round", (a,)):
                return self._size(a) + 1.0
            case Apply("Add" | "Sub", (a, b)):
                return self._size(a) + self._size(b)
            case Apply("Mul", (a, b)):
                sizes = self._size(a), self._size(b)
                return math.inf if math.inf in sizes else sizes[0] * sizes[1]
            case Apply("Min" | "Max", (a, b)) | Apply("Where", (_, a, b)):
                return max(self._size(a), self._size(b))
        return math.inf


def _fits(low: int, high: int | None = None, limit: int | None = None) -> bool:
    least, most = (-limit, limit) if limit is not None else _I32
    return least <= low and (low if high is None else high) <= most


class BoundsText:
    """The operations that `BlockBounds` needs, as Triton source: on vectors with an element per block of keys."""

    def __init__(self, block: Block) -> None:
        self.t = block

    def index(self, value: int) -> str:
        return str(value)

    def arith(self, op: str, a: str, b: str, type_: str = "index") -> str:
        """A binary operation, by its name in MLIR's arith dialect."""
        if _known(a) and _known(b):
            return str(_NOW[op](int(a), int(b)))
        return self.t.let(_ARITH[op].format(a=a, b=b))

    def test(self, predicate: str, a: str, b: str) -> str:
        return self.t.let(f"{a} {_PREDICATES[predicate]} {b}")

    def choose(self, condition: str, a: str, b: str) -> str:
        return self.t.let(f"tl.where({condition}, {a}, {b})")


def _known(text: str) -> bool:
    return text.lstrip("-").isdigit()


_PREDICATES = {"slt": "<", "sle": "<=", "eq": "=="}
_NOW: Mapping[str, Callable[[int, int], int]] = {
    "divsi": lambda a, b: abs(a) // b * (1 if a >= 0 else -1),
    "floordivsi": lambda a, b: a // b,
}
"""Of two constants; all else `BlockBounds` does itself."""
_ARITH: Mapping[str, str] = {
    "addi": "{a} + {b}",
    "subi": "{a} - {b}",
    "muli": "{a} * {b}",
    "minsi": "tl.minimum({a}, {b})",
    "maxsi": "tl.maximum({a}, {b})",
    "divsi": "tl.where({a} < 0, -((0 - {a}) // {b}), {a} // {b})",
    "floordivsi": "tl.where({a} < 0, -(({b} - 1 - {a}) // {b}), {a} // {b})",
    "andi": "{a} & {b}",
    "ori": "{a} | {b}",
}
