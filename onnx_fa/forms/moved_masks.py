"""Mask terms of a part of the keys or queries, whose first one is not the whole's first: positions are counted anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.builder import OnnxBuilder
from onnx_fa.spec.expr import SCORE, Apply, Axis, Float, Int, K, Length, Position, Q, ScoreExpr, Tensor, substitute
from onnx_fa.spec.terms import Causal, Elementwise, IndexMask, MaskTerm, SlidingWindow, TensorArg

_SCALAR = TensorArg((1,), "i64")


@dataclass(frozen=True)
class Number:
    """A whole number: known, or a scalar int64 of the graph."""

    known: int | None
    value: ir.Value | None = None

    def scalar(self, b: OnnxBuilder) -> ir.Value:
        return self.value if self.value is not None else b.const(np.asarray(self.known, np.int64))


@dataclass(frozen=True)
class Start:
    """Where a part starts among the queries and the keys of the whole, whose lengths `length` gives. `last`: it reaches to the end
    of what is cut."""

    query: Number
    key: Number
    length: Callable[[Axis], Number]
    last: bool

    def of(self, axis: Axis) -> Number:
        return self.query if axis == "q" else self.key


def moved(b: OnnxBuilder, mask: MaskTerm, start: Start) -> tuple[MaskTerm, list[ir.Value]]:
    """The term as a part has it, and the operands that it reads behind its own: positions that only a run knows."""
    if isinstance(mask, Causal | SlidingWindow):
        return _moved_bounds(b, mask, start)
    if not isinstance(mask, Elementwise):
        return mask, []
    added: dict[ScoreExpr, ir.Value] = {}

    def changed(leaf: ScoreExpr) -> ScoreExpr:
        match leaf:
            case Position(axis):
                first = start.of(axis)
                if first.known is not None:
                    return Apply("Add", leaf, Int(first.known)) if first.known else leaf
                return Apply("Add", leaf, read(leaf, first))
            case Length(axis):
                length = start.length(axis)
                return Int(length.known) if length.known is not None else read(leaf, length)
        return leaf

    def read(leaf: ScoreExpr, number: Number) -> ScoreExpr:
        if leaf not in added:
            added[leaf] = b.unsqueeze(number.scalar(b), 0)
        return Tensor(len(mask.tensors) + list(added).index(leaf))

    expr = substitute(mask.expr, changed)
    return replace(mask, expr=expr, tensors=(*mask.tensors, *[_SCALAR] * len(added))), list(added.values())


def _moved_bounds(b: OnnxBuilder, mask: IndexMask, start: Start) -> tuple[MaskTerm, list[ir.Value]]:
    """Of a mask by positions the offset changes, where it is known, and else the difference of the positions is an operand."""
    if isinstance(mask, SlidingWindow) and mask.left is None and mask.right is None:
        return mask, []  # it keeps every key
    if mask.offset == "end" and start.last:
        return mask, []  # the last query stands at the last key in the last part, too
    numbers = [start.query, start.key]
    if mask.offset == "end":
        numbers += [start.length("k"), start.length("q")]
    known = [n.known for n in numbers if n.known is not None]
    if len(known) == len(numbers):
        query, key, *ends = known
        offset = ends[0] - ends[1] if mask.offset == "end" else int(mask.offset)
        return replace(mask, offset=offset + query - key), []
    first_query, first_key, *lengths = (n.scalar(b) for n in numbers)
    behind = b.op("Sub", first_key, first_query)  # position of a key less that of the query next to it
    if mask.offset == "end":
        behind = b.op("Sub", behind, b.op("Sub", *lengths))
    elif mask.offset:
        behind = b.op("Sub", behind, b.const(np.asarray(mask.offset, np.int64)))
    at = Apply("Add", K, Tensor(0))
    bounds: list[ScoreExpr] = []
    right = 0 if isinstance(mask, Causal) else mask.right
    left = None if isinstance(mask, Causal) else mask.left
    if right is not None:
        bounds.append(Apply("LessOrEqual", at, _plus(Q, right)))
    if left is not None:
        bounds.append(Apply("LessOrEqual", _plus(Q, -left), at))
    keep = bounds[0] if len(bounds) == 1 else Apply("And", *bounds)
    label = "causal" if isinstance(mask, Causal) else "window"
    expr = Apply("Where", keep, SCORE, Float(mask.fill))
    return Elementwise(expr, (_SCALAR,), label), [b.unsqueeze(behind, 0)]


def _plus(x: ScoreExpr, by: int) -> ScoreExpr:
    return Apply("Add", x, Int(by)) if by else x
