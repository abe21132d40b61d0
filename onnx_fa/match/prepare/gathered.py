"""Keys and values that the model gathers from a pool (a paged cache, keys picked for each query batch): kernels read the pool.

The gather would copy all of K and V in every step. Instead the site reads the rows where they are, by a number for every key:

    K = Gather(pool (.., R, ..), index (*B, Skv))                               row  index
    K = Reshape(Gather(pool (.., P, page, ..), table (*B, N)))                  row  table * page + 0 .. page - 1
    K = Reshape(Transpose(Gather(pool (P, Hkv, page, D), table (*B, N))))       row  (table * Hkv + head) * page + 0 .. page - 1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.axes import node_axis
from onnx_fa.graph.dims import multiply_dims
from onnx_fa.graph.ops import attr_int
from onnx_fa.graph.view import GraphView
from onnx_fa.match import Call, Const, Expr, Match
from onnx_fa.spec.dtypes import NUMPY, ONNX
from onnx_fa.spec.terms import Dim, Gathered

_INDEX_TYPES: dict[ir.DataType | None, Literal["i32", "i64"]] = {
    ir.DataType(ONNX["i32"]): "i32",
    ir.DataType(ONNX["i64"]): "i64",
}
"""The element types that an index may have."""


@dataclass(frozen=True)
class _Pool:
    """The pool in its layout, with batch dims of 1; how many rows it has; and the gather: which index, along an axis of `count`
    rows, or pages of `page` rows, of which each head has its own if `heads` is above 1."""

    value: Expr
    rows: Dim
    index: ir.Value
    count: Expr
    page: int
    layout: tuple[int, ...]
    heads: int = 1

    @property
    def read(self) -> tuple[ir.Value, int, int, Dim]:
        """What K and V must have in common."""
        return self.index, self.page, self.heads, self.rows


def read_from_pools(view: GraphView, match: Match) -> Match:
    """The match with K and V as rows of pools, if the model gathers both by the same index; else the match itself."""
    spec = match.spec
    batch = len(spec.batch)
    k, v = (
        _pool(view, x, layout, batch) or _pool_by_heads(view, x, layout, batch)
        for x, layout in zip(match.operands[1:3], (spec.k_layout, spec.v_layout), strict=True)
    )
    if k is None or v is None or spec.quantized or k.read != v.read:
        return match
    kind = _INDEX_TYPES[k.index.dtype]
    gathered = Gathered(k.rows, kind, k.page if k.heads > 1 else 0)
    operands = (match.operands[0], k.value, v.value, *match.operands[3:], _index(k, batch))
    new = replace(spec, gathered=gathered, k_layout=k.layout, v_layout=v.layout)
    return replace(match, spec=new, operands=operands)


def _pool(view: GraphView, operand: Expr, layout: tuple[int, ...], batch: int) -> _Pool | None:
    """What the operand is gathered from; None where it is not, or not row by row."""
    if not isinstance(operand, ir.Value):
        return None
    shape, paged = view.shape(operand), view.producer(operand, "Reshape")
    gather = view.producer(paged.inputs[0] if paged is not None else operand, "Gather")
    if gather is None or shape is None:
        return None
    pool, index = gather.inputs
    pool_shape, index_shape = view.shape(pool), view.shape(index)
    if pool is None or index is None or index.dtype not in _INDEX_TYPES or pool_shape is None or index_shape is None:
        return None
    at = node_axis(gather, len(pool_shape))
    if at is None:
        return None
    inner = pool_shape[at + 1 + (paged is not None) :]
    # The index stands for the batch dims and the keys, in this order.
    want = (*range(batch), batch + 1)
    if (
        len(index_shape) != len(want)
        or layout[at : at + len(want)] != want
        or len(layout) != at + len(want) + len(inner)
    ):
        return None
    page = 1
    if paged is not None:
        whole = view.shape(gather.outputs[0])
        if whole is None or not isinstance(pool_shape[at + 1], int) or any(not isinstance(d, int) for d in inner):
            return None
        page, keys = pool_shape[at + 1], at + batch  # type: ignore[assignment]
        if not _merges(whole, shape, keys) or page < 1:
            return None
    rows = multiply_dims(pool_shape[at], page)
    if rows is None:
        return None
    value: Expr = pool
    if paged is not None:
        dims = [*[0] * at, *[1] * batch, -1, *inner]
        value = Call("Reshape", (pool, Const(np.asarray(dims, np.int64))))
    elif batch:
        value = Call("Unsqueeze", (pool, Const(np.arange(at, at + batch, dtype=np.int64))))
    return _Pool(value, rows, index, _pages(pool, at, pool_shape[at]), page, layout)


def _pool_by_heads(view: GraphView, operand: Expr, layout: tuple[int, ...], batch: int) -> _Pool | None:
    """The same of pages with a block of rows for each head, which the model moves behind the pages' number."""
    if not isinstance(operand, ir.Value):
        return None
    merged = view.producer(operand, "Reshape")
    moved = view.producer(merged.inputs[0], "Transpose") if merged is not None else None
    gather = view.producer(moved.inputs[0], "Gather") if moved is not None else None
    if merged is None or moved is None or gather is None or attr_int(gather, "axis", 0) != 0:
        return None
    pool, index = gather.inputs
    pool_shape, index_shape, whole = view.shape(pool), view.shape(index), view.shape(moved.outputs[0])
    shape, perm = view.shape(operand), moved.attributes.get("perm")
    if (
        pool is None
        or index is None
        or index.dtype not in _INDEX_TYPES
        or None in (pool_shape, index_shape, whole, shape)
        or perm is None
    ):
        return None
    assert pool_shape is not None and index_shape is not None and whole is not None and shape is not None
    if len(pool_shape) != 4 or len(index_shape) != batch + 1 or not all(isinstance(d, int) for d in pool_shape[1:]):
        return None
    # Axes of the gather: *B, N, Hkv, page, D. Those of the operand: *B, Hkv, Skv, D, in its layout.
    names = {**{i: i for i in range(batch)}, batch: -1, batch + 1: batch, batch + 2: batch + 1, batch + 3: batch + 2}
    order = [names[axis] for axis in perm.as_ints()]
    at = order.index(-1)
    if at + 1 == len(order) or order[at + 1] != batch + 1 or tuple(order[:at] + order[at + 1 :]) != layout:
        return None
    if not _merges(whole, shape, at):
        return None
    _, heads, page, width = pool_shape
    assert isinstance(heads, int) and isinstance(page, int)
    rows = multiply_dims(pool_shape[0], heads * page)
    if rows is None or page < 1:
        return None
    value = Call("Reshape", (pool, Const(np.asarray([*[1] * (batch + 1), -1, width], np.int64))))
    return _Pool(value, rows, index, _pages(pool, 0, pool_shape[0]), page, tuple(range(batch + 3)), heads)


def _merges(before: Sequence[Dim | None], after: Sequence[Dim | None], at: int) -> bool:
    """Whether a reshape makes one axis of two neighbours, and leaves the others, whose lengths are known, as they were."""
    kept = (*before[:at], *before[at + 2 :])
    return len(after) == len(before) - 1 and None not in kept and kept == (*after[:at], *after[at + 1 :])


def _pages(pool: ir.Value, axis: int, known: Dim | None) -> Expr:
    """The length of an axis, as a constant where it is known."""
    if isinstance(known, int):
        return Const(np.asarray(known, np.int64))
    return Call("Gather", (Call("Shape", (pool,)), Const(np.asarray(axis, np.int64))))


def _index(pool: _Pool, batch: int) -> Expr:
    """A row for every key, (*B, Skv). The remainder makes negative numbers count from the end, as Gather does, and keeps what is
    no row at all, which Gather refuses, inside the pool."""
    kind = NUMPY[_INDEX_TYPES[pool.index.dtype]]
    count = pool.count
    if isinstance(count, Const):
        count = Const(count.array.astype(kind))
    elif kind is np.int32:
        count = Call("Cast", (count,), (("to", int(ir.DataType.INT32)),))
    index: Expr = Call("Mod", (pool.index, count))
    if pool.page * pool.heads == 1:
        return index
    first = Call(
        "Mul",
        (
            Call("Unsqueeze", (index, Const(np.asarray([batch + 1], np.int64)))),
            Const(np.asarray(pool.page * pool.heads, kind)),
        ),
    )
    rows = Call("Add", (first, Const(np.arange(pool.page, dtype=kind))))
    return Call("Reshape", (rows, Const(np.asarray([*[0] * batch, -1], np.int64))))
