"""The cache of GroupQueryAttention where it is a growing one: all batch entries have as many keys, which is all there are."""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from onnx_fa.graph.growing import APPEND_ROWS, back_in_place, growing_cache, rows_first
from onnx_fa.graph.view import GraphView
from onnx_fa.match import Expr, NoMatch, OperandChoice, Operands
from onnx_fa.patterns.ops.exprs import append_rows, canonical, op, transpose
from onnx_fa.patterns.ops.kept import Kept


@dataclass(frozen=True)
class Grown:
    """`operands` with K and V as the attention reads them, and the `presents` for K and V, which are (B, Hkv, T, D)."""

    operands: Operands
    presents: tuple[Expr, Expr]


def grow_cache(
    view: GraphView, operands: Operands, pasts: tuple[ir.Value, ir.Value], kept: tuple[Kept, Kept]
) -> Grown | None:
    """K and V with the new rows written behind the old ones; None where the pasts are not those of growing caches."""
    caches = [growing_cache(past) for past in pasts]
    if any(cache is None or cache.axis != 2 for cache in caches):
        return None
    choices: list[OperandChoice] = []
    presents: list[Expr] = []
    for past, cache, keeps, new in zip(pasts, caches, kept, (operands.k, operands.v), strict=True):
        assert cache is not None
        if keeps.scale is None:
            choices.append(append_rows(past, canonical(new), 1.0, operands.Hkv))
            presents.append(canonical(choices[-1]))
            continue
        rows = op(APPEND_ROWS, cache.cache, transpose(keeps.store(canonical(new)), *rows_first(4, 2)))
        presents.append(transpose(rows, *back_in_place(4, 2)))
        choices.append(keeps.load(presents[-1], operands.Hkv))
    first = caches[0]
    assert first is not None
    shape = view.shape(first.cache)
    total = None if shape is None else shape[0]
    if total is None:
        raise NoMatch("the number of rows of the cache has no name")
    return Grown(replace(operands, k=choices[0], v=choices[1], Skv=total), (presents[0], presents[1]))
