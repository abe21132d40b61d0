"""A few queries per head: those of the heads that share a key/value head become the queries of one head, so that K and V are
read once."""

from __future__ import annotations

import dataclasses

from onnx_fa.kernels.plan.score import window
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.expr import SCORE, SKV, SQ, Apply, Float, Int, K, Q, ScoreExpr
from onnx_fa.spec.terms import Dim, Elementwise, IndexMask, MaskTerm, TensorMask, with_leaves, with_shapes

MOST_ROWS = 32
"""More queries than this fill the vectors of a workgroup by themselves."""


def fold_queries(spec: AttentionSpec, *, merge: bool = True) -> AttentionSpec:
    """The same attention with `group` times Sq queries per key/value head, head after head: (*B, Hkv, group * Sq, D). Every
    operand keeps the order of its elements, so that a reshape is all it takes; a spec where that is not so, or with many
    queries, stays as it is. `merge` is whether heads are put together at all."""
    if not isinstance(spec.Sq, int) or spec.group * spec.Sq > MOST_ROWS:
        return spec
    heads, length, head_dim = spec.rank - 3, spec.rank - 2, spec.rank - 1
    sq = spec.Sq
    if sq == 1:  # an axis of one element can go anywhere; vectors are read along the head dim
        after = heads if spec.group > 1 else head_dim
        order = (heads, length) if spec.group > 1 else (length, head_dim)

        def moved(layout: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(x for axis in layout if axis != length for x in (order if axis == after else (axis,)))

        spec = dataclasses.replace(spec, q_layout=moved(spec.q_layout), o_layout=moved(spec.o_layout))
    if not merge or spec.group == 1 or not all(_adjacent(x, heads, length) for x in (spec.q_layout, spec.o_layout)):
        return spec
    further = (*spec.tensors, spec.sink) if spec.sink is not None else spec.tensors
    if not all(_folds(x.shape, spec) for x in further):
        return spec

    def shape(old: tuple[Dim, ...]) -> tuple[Dim, ...]:
        *batch, head, _, keys = (1,) * (spec.rank - len(old)) + old
        return (*batch, 1, 1, keys) if head == 1 else (*batch, spec.Hkv, rows, keys)

    rows = spec.group * sq
    query: ScoreExpr = Int(0) if sq == 1 else Apply("Mod", Q, Int(sq))

    def leaf(x: ScoreExpr) -> ScoreExpr:
        return {Q: query, SQ: Int(sq)}.get(x, x)

    masks: list[MaskTerm] = []
    for term in spec.masks:
        if isinstance(term, IndexMask):
            masks += _as_expression(term, query, sq)
        else:
            masks.append(with_shapes(term if isinstance(term, TensorMask) else with_leaves(term, leaf), shape))
    return dataclasses.replace(
        spec,
        Hq=spec.Hkv,
        Sq=rows,
        masks=tuple(masks),
        sink=spec.sink and dataclasses.replace(spec.sink, shape=shape(spec.sink.shape)),
        weights=spec.weights and dataclasses.replace(spec.weights, shape=shape(spec.weights.shape)),
    )


def _adjacent(layout: tuple[int, ...], heads: int, length: int) -> bool:
    return layout.index(length) == layout.index(heads) + 1


def _folds(shape: tuple[Dim, ...], spec: AttentionSpec) -> bool:
    """Whether a tensor has both the heads and the queries, or neither."""
    head, query = ((1, 1, 1, *shape)[-3:])[:2]
    return (head == 1 and query == 1) or (head != 1 and query == spec.Sq)


def _as_expression(mask: IndexMask, query: ScoreExpr, sq: int) -> list[MaskTerm]:
    """An index mask, which keeps the keys between two bounds, for queries at those positions."""
    left, right = window(mask)
    end = mask.offset == "end"
    offset: ScoreExpr = Apply("Sub", SKV, Int(sq)) if mask.offset == "end" else Int(mask.offset)
    at: ScoreExpr = Apply("Add", query, offset)
    keeps: list[ScoreExpr] = []
    if right is not None and not (end and right >= sq - 1):
        keeps.append(Apply("LessOrEqual", K, Apply("Add", at, Int(right))))
    if left is not None:
        keeps.append(Apply("GreaterOrEqual", K, Apply("Sub", at, Int(left))))
    return [Elementwise(Apply("Where", keep, SCORE, Float(mask.fill))) for keep in keeps]
