"""Operand expressions that the patterns of whole attention ops share: heads split off, caches appended, masks padded."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.growing import APPEND_ROWS, growing_cache, rows_first
from onnx_fa.match import Call, Const, Expr, NoMatch, OperandChoice, Term
from onnx_fa.spec.expr import SCORE, Apply, Float, Int, K, Q, ScoreExpr
from onnx_fa.spec.terms import Dim, Elementwise, Offset, SlidingWindow, TensorArg, inverse

HEADS_BEHIND = (0, 2, 1, 3)
"""The layout of (B, S, H, D), which a (B, S, H * D) tensor is reshaped to."""

NEG_INF: ScoreExpr = Float(-math.inf)


def op(name: str, *args: Expr, **attrs: int | tuple[int, ...]) -> Call:
    return Call(name, args, tuple(attrs.items()))


def cast(value: Expr, dtype: ir.DataType) -> Call:
    return op("Cast", value, to=int(dtype))


def ints(*values: int) -> Const:
    return Const(np.asarray(values, np.int64))


def reshape(value: Expr, *shape: int) -> Call:
    return Call("Reshape", (value, ints(*shape)))


def transpose(value: Expr, *perm: int) -> Expr:
    return value if perm == tuple(range(len(perm))) else Call("Transpose", (value,), (("perm", perm),))


def concat(axis: int, *values: Expr) -> Expr:
    if all(isinstance(v, Const) for v in values):
        return Const(np.concatenate([v.array for v in values if isinstance(v, Const)], axis))
    return Call("Concat", values, (("axis", axis),))


def columns(value: Expr, start: int, end: int, axis: int = -1) -> Call:
    """value[..., start:end] along one axis."""
    return Call("Slice", (value, ints(start), ints(end), ints(axis)))


def dim_of(value: Expr, axis: int) -> Call:
    """The size of an axis at run time, int64 of shape (1,)."""
    return Call("Gather", (Call("Shape", (value,)), ints(axis)), (("axis", 0),))


def canonical(choice: OperandChoice) -> Expr:
    """The operand as (B, H, S, D), whatever layout it is read in."""
    return transpose(choice.value, *inverse(choice.layout))


def append_rows(past: Expr, new: Expr, scale: float, heads: Dim) -> OperandChoice:
    """New rows (B, H, S, D) behind those of a past (B, H, P, D): in place where the past is that of a growing cache."""
    growing = growing_cache(past)
    if growing is None or growing.axis != 2:
        return OperandChoice(concat(2, past, new), (0, 1, 2, 3), scale, heads)
    order = rows_first(4, 2)
    return OperandChoice(op(APPEND_ROWS, growing.cache, transpose(new, *order)), order, scale, heads)


def is_read(value: ir.Value | None) -> bool:
    """Whether an optional output of a node is used."""
    return value is not None and (bool(value.uses()) or value.is_graph_output())


def present(node: ir.Node, index: int) -> ir.Value | None:
    """An optional input: None where it is left out or named by the empty string."""
    return node.inputs[index] if index < len(node.inputs) else None


def output(node: ir.Node, index: int) -> ir.Value | None:
    """An optional output that somebody reads."""
    value = node.outputs[index] if index < len(node.outputs) else None
    return value if is_read(value) else None


def same(what: str, *dims: Dim | None) -> Dim | None:
    """The one size that an op's definition gives to several dims: an int if one is known. Raises NoMatch for two different ints."""
    fixed = {d for d in dims if isinstance(d, int)}
    if len(fixed) > 1:
        raise NoMatch(f"{what} differ: {sorted(fixed)}")
    return next(iter(fixed)) if fixed else next((d for d in dims if d is not None), None)


def keep_where(
    keep: ScoreExpr, tensors: tuple[tuple[Expr, TensorArg], ...], label: str, fill: float = -math.inf
) -> Term:
    """The score where `keep` is true, else `fill`."""
    term = Elementwise(Apply("Where", keep, SCORE, Float(fill)), tuple(arg for _, arg in tensors), label)
    return Term(term, tuple(value for value, _ in tensors))


def per_row(lengths: Expr, batch: Dim) -> tuple[Expr, TensorArg]:
    """A vector (B,) of int64, as a tensor that broadcasts to the score."""
    return reshape(lengths, -1, 1, 1, 1), TensorArg((batch, 1, 1, 1), "i64")


def window(
    left: int | None,
    right: int | None,
    offset: Offset,
    first_key: ScoreExpr | None,
    read: tuple[Expr, TensorArg] | None,
    fill: float = -math.inf,
) -> Term:
    """Keys from `left` before to `right` behind the query (None: no bound), whose position is q + offset, or q + `first_key`
    where that depends on the tensor `read`. The scores of others become `fill`."""
    if first_key is None or read is None:
        return Term(SlidingWindow(left, right, offset, fill))
    position: ScoreExpr = Apply("Add", Q, first_key)
    bounds: list[ScoreExpr] = []
    if right is not None:
        bounds.append(Apply("LessOrEqual", K, Apply("Add", position, Int(right)) if right else position))
    if left is not None:
        bounds.append(Apply("LessOrEqual", Apply("Sub", position, Int(left)) if left else position, K))
    keep = bounds[0] if len(bounds) == 1 else Apply("And", *bounds)
    return keep_where(keep, (read,), "causal" if (left, right) == (None, 0) else "window", fill)


def inverse_root(D: int) -> float:
    """The scale of an op that names none. Raises NoMatch where there is none."""
    if D < 1:
        raise NoMatch(f"a head dim of {D}")
    return 1.0 / math.sqrt(D)
