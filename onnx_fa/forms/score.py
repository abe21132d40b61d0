"""Score modifications and mask terms as standard ONNX ops, shared by the decomposed and the blocked form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.builder import OnnxBuilder
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.dtypes import F32_MAX, NUMPY
from onnx_fa.spec.expr import SCORE, Apply, Bool, Float, Int, Kind, Length, Position, ScoreExpr, Tensor, kind_of
from onnx_fa.spec.terms import (
    AddMask,
    BoolMask,
    Causal,
    IndexMask,
    Offset,
    SlidingWindow,
    TensorArg,
    TensorMask,
    Weighting,
    term_expression,
    term_tensors,
)

Integer = type[np.int32] | type[np.int64]
"""The type of positions."""


@dataclass(frozen=True)
class Positions:
    """Integer tensors of one type: query positions (Sq, 1) and key positions (block), and Sq, Skv as scalars."""

    query: ir.Value
    key: ir.Value
    sq: ir.Value
    skv: ir.Value
    kind: Integer = np.int64


_FAR = 1 << 29
"""Sums of four such numbers, lengths and shifts of them, are int32."""


def narrowest(spec: AttentionSpec) -> Integer:
    """The type of positions for a compiler whose target may have no vectors of int64: int32 where no number can wrap around."""
    reach = [d for d in (spec.Sq, spec.Skv) if isinstance(d, int)]
    if len(reach) < 2:
        return np.int64
    for mask in spec.masks:
        if isinstance(mask, IndexMask):
            by = (0,) if isinstance(mask, Causal) else (mask.left or 0, mask.right or 0)
            reach += [abs(x) + (0 if mask.offset == "end" else abs(mask.offset)) for x in by]
        elif not isinstance(mask, TensorMask):
            return np.int64  # its numbers may be of any size
    return np.int32 if max(reach) < _FAR else np.int64


def compute_type(spec: AttentionSpec) -> str:
    """Half types are computed in f32: a deferred division would overflow f16, and sums would lose bits."""
    return "f32" if spec.dtype in ("f16", "bf16") else spec.dtype


def cast(b: OnnxBuilder, x: ir.Value, to: str) -> ir.Value:
    return b.op("Cast", x, to=int(ir.DataType.from_numpy(np.dtype(NUMPY[to]))))


def modify(
    b: OnnxBuilder,
    spec: AttentionSpec,
    score: ir.Value,
    tensors: Sequence[ir.Value],
    positions: Callable[[], Positions],
) -> ir.Value:
    """Applies the spec's modifications and masks to `score`. `tensors` are the mask operands, already fitting the score."""
    kind = NUMPY[compute_type(spec)]
    rest = iter(tensors)
    positions = cache(positions)  # made once, however many terms ask
    for mod in spec.mods:
        cap = b.const(np.asarray(mod.cap, kind))
        score = b.op("Mul", b.op("Tanh", b.op("Div", score, cap)), cap)
    for mask in spec.masks:
        match mask:
            case AddMask():
                value = next(rest)
                if mask.dtype != compute_type(spec):
                    value = cast(b, value, compute_type(spec))
                if mask.factor != 1.0:
                    value = b.op("Mul", value, b.const(np.asarray(mask.factor, kind)))
                score = b.op("Add", score, value)
            case BoolMask():
                score = b.op("Where", next(rest), score, _fill(b, mask.fill, kind))
            case Causal():
                p = positions()
                keep = b.less_equal(p.key, _shift(b, p, mask.offset, 0))
                score = b.op("Where", keep, score, _fill(b, mask.fill, kind))
            case SlidingWindow():
                p = positions()
                bounds = []
                if mask.right is not None:
                    bounds.append(b.less_equal(p.key, _shift(b, p, mask.offset, mask.right)))
                if mask.left is not None:
                    bounds.append(b.less_equal(_shift(b, p, mask.offset, -mask.left), p.key))
                keep = b.op("And", *bounds) if len(bounds) == 2 else bounds[0]
                score = b.op("Where", keep, score, _fill(b, mask.fill, kind))
            case _:
                read = [(next(rest), t) for t in term_tensors(mask)]
                score = _Expression(b, score, read, positions, compute_type(spec)).write(term_expression(mask))
    return score


def weighted(b: OnnxBuilder, spec: AttentionSpec, p: ir.Value, tensors: Sequence[ir.Value]) -> ir.Value:
    """Probabilities, or exponentials, times the spec's weights, the last of `tensors`."""
    if spec.weights is None:
        return p
    value = tensors[-1]
    if spec.weights.dtype == "bool" and not spec.renormalised:  # a NaN that is not kept must reach the new sum
        return b.op("Where", value, p, b.const(np.asarray(0, NUMPY[compute_type(spec)])))
    return b.op("Mul", p, value if spec.weights.dtype == compute_type(spec) else cast(b, value, compute_type(spec)))


def weigh(
    b: OnnxBuilder, spec: AttentionSpec, weighting: Weighting, score: ir.Value, positions: Callable[[], Positions]
) -> tuple[ir.Value, ir.Value | None]:
    """The weights of masked scores where no softmax makes them, and the terms of the sum that they are divided by, if they are."""
    writer = _Expression(b, score, (), cache(positions), compute_type(spec))
    weights = writer.write(weighting.weight)
    return weights, None if weighting.total is None else writer.write(weighting.total)


def apply_function(
    b: OnnxBuilder, spec: AttentionSpec, expr: ScoreExpr, x: ir.Value, positions: Callable[[], Positions]
) -> ir.Value:
    """A function of one number, as an expression of the score, of `x`."""
    return _Expression(b, x, (), positions, compute_type(spec)).write(expr)


def apply_to_sums(
    b: OnnxBuilder, expr: ScoreExpr, sums: ir.Value, tensors: Sequence[tuple[ir.Value, TensorArg]], dtype: str
) -> ir.Value:
    """An expression of the sums of a product and of tensors, which has no positions, computed in `dtype`."""

    def none() -> Positions:
        raise AssertionError("a product has no positions")

    return _Expression(b, sums, tensors, none, dtype).write(expr)


class _Expression:
    """Writes a score expression as ONNX ops. A part that occurs twice is computed once."""

    def __init__(
        self,
        b: OnnxBuilder,
        score: ir.Value,
        tensors: Sequence[tuple[ir.Value, TensorArg]],
        positions: Callable[[], Positions],
        compute: str,
    ) -> None:
        self.b, self.score, self.tensors, self.positions, self.compute = b, score, tensors, positions, compute
        self.types: dict[Kind, np.dtype[Any]] = {
            "float": np.dtype(NUMPY[compute]),
            "int": np.dtype(np.int64),
            "bool": np.dtype(bool),
        }
        self.made: dict[ScoreExpr, ir.Value] = {}

    def write(self, expr: ScoreExpr) -> ir.Value:
        """The value of an expression."""
        if expr not in self.made:
            self.made[expr] = self._op(expr) if isinstance(expr, Apply) else self._leaf(expr)
        return self.made[expr]

    def _leaf(self, leaf: ScoreExpr) -> ir.Value:
        match leaf:
            case Tensor(index):
                value, arg = self.tensors[index]
                return value if arg.dtype in ("bool", "i64", self.compute) else self._cast(value, arg.kind)
            case Float(number) | Int(number) | Bool(number):
                return self.b.const(np.asarray(number, self.types[self._kind(leaf)]))
            case Position(axis):
                return self.positions().query if axis == "q" else self.positions().key
            case Length(axis):
                return self.positions().sq if axis == "q" else self.positions().skv
        assert leaf == SCORE, leaf
        return self.score

    def _op(self, expr: Apply) -> ir.Value:
        op, args = expr.op, [self.write(a) for a in expr.args]
        if op in ("Where", "Relu", "Max", "Min"):
            other = _as_others(self.b, op, self._kind(expr), args)
            if other is not None:
                return other
        match op:
            case "ToFloat":
                return self._cast(args[0], "float")
            case "ToInt":
                return self._cast(args[0], "int")
            case "ToBool":
                return self._cast(args[0], "bool")
            case "LessOrEqual":
                return self.b.less_equal(*args)
            case "GreaterOrEqual":
                return self.b.less_equal(args[1], args[0])
        return self.b.op(op, *args)

    def _cast(self, x: ir.Value, kind: Kind) -> ir.Value:
        return self.b.op("Cast", x, to=int(ir.DataType.from_numpy(self.types[kind])))

    def _kind(self, expr: ScoreExpr) -> Kind:
        return kind_of(expr, [arg.kind for _, arg in self.tensors])


def _as_others(b: OnnxBuilder, op: str, kind: Kind, args: Sequence[ir.Value]) -> ir.Value | None:
    """The op by others, where onnxruntime has no kernel of it for the kind; None where it has."""
    if op == "Where" and kind == "bool":
        test, yes, no = args
        return b.op("Or", b.op("And", test, yes), b.op("And", b.op("Not", test), no))
    if kind != "int" or op == "Where" or (op != "Relu" and b.opset >= 12):
        return None
    x, y = args if op != "Relu" else (args[0], b.const(np.asarray(0, np.int64)))
    less = b.op("Less", x, y)
    return b.op("Where", less, *((x, y) if op == "Min" else (y, x)))


def _fill(b: OnnxBuilder, fill: float, kind: type) -> ir.Value:
    return b.const(np.asarray(fill if fill < -F32_MAX else max(fill, -F32_MAX), kind))


def _shift(b: OnnxBuilder, p: Positions, offset: Offset, by: int) -> ir.Value:
    """Query positions moved by the offset and `by`."""
    query = p.query
    if offset == "end":
        query = b.op("Add", query, b.op("Sub", p.skv, p.sq))
    elif offset:
        by += offset
    return b.op("Add", query, b.const(np.asarray(by, p.kind))) if by else query
