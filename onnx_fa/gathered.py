"""Keys and values that the model gathers from a pool (a paged cache, keys picked for each query batch): kernels read the pool.

The gather would copy all of K and V in every step. Instead the site reads the rows where they are, by a number for every key:

    K = Gather(pool (.., R, ..), index (*B, Skv))                               row  index
    K = Reshape(Gather(pool (.., P, page, ..), table (*B, N)))                  row  table * page + 0 .. page - 1
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onnx_fa.graph_view import GraphView, attr_int
from onnx_fa.match import Call, Const, Expr, Match
from onnx_fa.spec import Dim, Gathered
from onnx_fa.symbolic import multiplied

_TYPES = {ir.DataType.INT32: "i32", ir.DataType.INT64: "i64"}


@dataclass(frozen=True)
class _Pool:
    """The pool in the layout of the operand, with batch dims of 1; how many rows it has; and the gather: which index, along an axis
    of `count` rows, or pages of `page` rows."""

    value: Expr
    rows: Dim
    index: ir.Value
    count: Expr
    page: int


def from_pools(view: GraphView, match: Match) -> Match:
    """The match with K and V as rows of pools, if the model gathers both by the same index; else the match itself."""
    spec = match.spec
    k, v = (
        _pool(view, x, layout, len(spec.batch))
        for x, layout in zip(match.operands[1:3], (spec.k_layout, spec.v_layout), strict=True)
    )
    if k is None or v is None or spec.quantized or (k.index, k.page, k.rows) != (v.index, v.page, v.rows):
        return match
    kind = _TYPES[k.index.dtype or ir.DataType.INT64]
    gathered = Gathered(k.rows, kind)  # type: ignore[arg-type]
    operands = (match.operands[0], k.value, v.value, *match.operands[3:], _index(k, len(spec.batch)))
    return replace(match, spec=replace(spec, gathered=gathered), operands=operands)


def _pool(view: GraphView, operand: Expr, layout: tuple[int, ...], batch: int) -> _Pool | None:
    """What the operand is gathered from; None where it is not, or not row by row."""
    if not isinstance(operand, ir.Value):
        return None
    shape, paged = view.shape(operand), view.producer(operand, "Reshape")
    gather = view.producer(paged.inputs[0] if paged is not None else operand, "Gather")
    if gather is None or shape is None:
        return None
    pool, index = gather.inputs
    before, of = view.shape(pool), view.shape(index)
    if pool is None or index is None or index.dtype not in _TYPES or before is None or of is None:
        return None
    at = attr_int(gather, "axis", 0) % len(before)
    inner = before[at + 1 + (paged is not None) :]
    # The index stands for the batch dims and the keys, in this order.
    want = (*range(batch), batch + 1)
    if len(of) != len(want) or layout[at : at + len(want)] != want or len(layout) != at + len(want) + len(inner):
        return None
    page = 1
    if paged is not None:
        whole = view.shape(gather.outputs[0])
        if whole is None or not isinstance(before[at + 1], int) or any(not isinstance(d, int) for d in inner):
            return None
        page, keys = before[at + 1], at + batch  # type: ignore[assignment]
        around = [
            *zip(shape[:keys], whole[:keys], strict=True),
            *zip(shape[keys + 1 :], whole[keys + 2 :], strict=False),
        ]
        if len(shape) != len(whole) - 1 or any(a is None or a != b for a, b in around) or page < 1:
            return None
    rows, axis = multiplied(before[at], page), Const(np.asarray(at, np.int64))
    if rows is None:
        return None
    value: Expr = pool
    if paged is not None:
        dims = [*[0] * at, *[1] * batch, -1, *inner]
        value = Call("Reshape", (pool, Const(np.asarray(dims, np.int64))))
    elif batch:
        value = Call("Unsqueeze", (pool, Const(np.arange(at, at + batch, dtype=np.int64))))
    count: Expr = Call("Gather", (Call("Shape", (pool,)), axis))
    if isinstance(before[at], int):
        count = Const(np.asarray(before[at], np.int64))
    return _Pool(value, rows, index, count, page)


def _index(pool: _Pool, batch: int) -> Expr:
    """A row for every key, (*B, Skv). The remainder makes negative numbers count from the end, as Gather does, and keeps what is
    no row at all, which Gather refuses, inside the pool."""
    kind = np.int32 if pool.index.dtype == ir.DataType.INT32 else np.int64
    count = pool.count
    if isinstance(count, Const):
        count = Const(count.array.astype(kind))
    elif kind is np.int32:
        count = Call("Cast", (count,), (("to", int(ir.DataType.INT32)),))
    index: Expr = Call("Mod", (pool.index, count))
    if pool.page == 1:
        return index
    first = Call(
        "Mul",
        (Call("Unsqueeze", (index, Const(np.asarray([batch + 1], np.int64)))), Const(np.asarray(pool.page, kind))),
    )
    rows = Call("Add", (first, Const(np.arange(pool.page, dtype=kind))))
    return Call("Reshape", (rows, Const(np.asarray([*[0] * batch, -1], np.int64))))
