"""One query per head: the heads that share a key/value head become the queries of one, so that K and V are read once."""

from __future__ import annotations

import dataclasses

from onnx_fa.emit.score_plan import IndexMask, window
from onnx_fa.expr import SCORE, K, Q, ScoreExpr, substitute
from onnx_fa.spec import AttentionSpec, Dim, Elementwise, MaskTerm, with_shapes


def fold_one_query(spec: AttentionSpec) -> AttentionSpec:
    """The same attention with the query heads of each key/value head in the place of the one query: (*B, Hkv, group, D).
    Every operand keeps the order of its elements, so that a reshape is all it takes. Specs with more queries stay as they
    are."""
    if spec.Sq != 1:
        return spec
    heads, length = spec.rank - 3, spec.rank - 2
    if spec.group == 1:  # the axis of one element goes before the head dim: vectors along it are compiled wrongly

        def before_head_dim(old: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(
                x for axis in old if axis != length for x in ((length, axis) if axis == spec.rank - 1 else (axis,))
            )

        return dataclasses.replace(
            spec, q_layout=before_head_dim(spec.q_layout), o_layout=before_head_dim(spec.o_layout)
        )

    def layout(old: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(x for axis in old if axis != length for x in ((heads, length) if axis == heads else (axis,)))

    def shape(old: tuple[Dim, ...]) -> tuple[Dim, ...]:
        *batch, head, _, keys = (1,) * (spec.rank - len(old)) + old
        return (*batch, 1, 1, keys) if head == 1 else (*batch, spec.Hkv, spec.group, keys)

    def leaf(x: ScoreExpr) -> ScoreExpr:
        return {Q: ("i", 0), ("Sq",): ("i", 1)}.get(x, x)

    masks: list[MaskTerm] = []
    for term in spec.masks:
        if isinstance(term, IndexMask):
            masks += _as_expression(term)
        elif isinstance(term, Elementwise):
            masks.append(with_shapes(dataclasses.replace(term, expr=substitute(term.expr, leaf)), shape))
        else:
            masks.append(with_shapes(term, shape))
    return dataclasses.replace(
        spec,
        Hq=spec.Hkv,
        Sq=spec.group,
        masks=tuple(masks),
        sink=spec.sink and dataclasses.replace(spec.sink, shape=shape(spec.sink.shape)),
        q_layout=layout(spec.q_layout),
        o_layout=layout(spec.o_layout),
    )


def _as_expression(mask: IndexMask) -> list[MaskTerm]:
    """An index mask for the query at position 0, which keeps the keys between two bounds."""
    left, right = window(mask)
    end = mask.offset == "end"
    last: ScoreExpr = ("Sub", ("Skv",), ("i", 1)) if end else ("i", mask.offset)
    keeps: list[ScoreExpr] = []
    if right is not None and not (end and right >= 0):
        keeps.append(("LessOrEqual", K, ("Add", last, ("i", right))))
    if left is not None:
        keeps.append(("GreaterOrEqual", K, ("Sub", last, ("i", left))))
    return [Elementwise(("Where", keep, SCORE, ("f", mask.fill))) for keep in keeps]
