"""Masks that the graph computes by comparing key positions with query positions (Range chains), for symbolic lengths."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from onnx_fa.graph_view import GraphView, axes_of
from onnx_fa.match import Term
from onnx_fa.spec import Causal, Dim, SlidingWindow

# compare(a, b) as a bound on (key - query): keep iff key - query <= bound.
_SWAP = {"LessOrEqual": "GreaterOrEqual", "Less": "Greater", "GreaterOrEqual": "LessOrEqual", "Greater": "Less"}
_NEGATE = {"LessOrEqual": "Greater", "Less": "GreaterOrEqual", "GreaterOrEqual": "Less", "Greater": "LessOrEqual"}


@dataclass(frozen=True)
class _Positions:
    """0, 1, 2, ... plus `start` along the axis that is `from_end` dims from the last."""

    length: Dim
    from_end: int
    start: int = 0


def index_terms(
    view: GraphView, keep: ir.Value, inverted: bool, fill: float, shape: tuple[Dim, ...]
) -> list[Term] | None:
    """[Causal] or a one-sided [SlidingWindow] when `keep` is a comparison of key with query positions, else None."""
    node = view.producer(keep, *_SWAP)
    if node is None:
        return None
    a, b = (_positions(view, i) for i in node.inputs)
    if a is None or b is None:
        return None
    op = node.op_type
    if a.from_end == 1 and b.from_end == 0:
        a, b, op = b, a, _SWAP[op]
    if inverted:
        op = _NEGATE[op]
    if (a.from_end, b.from_end) != (0, 1) or (a.length, b.length) != (shape[-1], shape[-2]):
        return None
    # key + a.start  op  query + b.start
    offset = b.start - a.start
    match op:
        case "LessOrEqual":
            return [Term(Causal(offset, fill))]
        case "Less":
            return [Term(Causal(offset - 1, fill))]
        case "GreaterOrEqual":
            return [Term(SlidingWindow(left=-offset, fill=fill))]
        case _:
            return [Term(SlidingWindow(left=-offset - 1, fill=fill))]


def merge_bounds(terms: list[Term]) -> list[Term]:
    """An upper and a lower bound on key - query with the same fill are one window."""
    if len(terms) == 2:
        for x, y in (terms, reversed(terms)):
            upper, lower = x.term, y.term
            if not (isinstance(upper, Causal) and isinstance(lower, SlidingWindow)):
                continue
            if upper.fill != lower.fill or lower.right is not None:
                continue
            if lower.offset == 0 and isinstance(upper.offset, int):
                return [Term(SlidingWindow(lower.left, upper.offset, 0, upper.fill))]
    return terms


def _positions(view: GraphView, value: ir.Value | None) -> _Positions | None:
    node = view.producer(value)
    if node is None or value is None:
        return None
    if node.op_type == "Range":
        start, step = view.scalar(node.inputs[0]), view.scalar(node.inputs[2])
        shape = view.shape(value)
        if start is None or step != 1.0 or shape is None or shape[0] is None or start != int(start):
            return None
        return _Positions(shape[0], 0, int(start))
    inner = _positions(view, node.inputs[0])
    if node.op_type == "Unsqueeze" and inner is not None:
        axes, rank = axes_of(view, node), len(view.shape(value) or ())
        if axes is None or not rank:
            return None
        kept = [i for i in range(rank) if i not in {a % rank for a in axes}]
        live = kept[len(kept) - 1 - inner.from_end]
        return _Positions(inner.length, rank - 1 - live, inner.start)
    if node.op_type in ("Add", "Sub"):
        by = view.scalar(node.inputs[1])
        if inner is not None and by is not None and by == int(by):
            return _Positions(
                inner.length, inner.from_end, inner.start + (int(by) if node.op_type == "Add" else -int(by))
            )
    if node.op_type in ("Cast", "Identity"):
        return inner
    return None
