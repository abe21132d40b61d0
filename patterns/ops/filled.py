"""The cache of GroupQueryAttention with its new rows: as long as its tensor, or with a window's rows only."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.view import GraphView
from onnx_fa.match import Const, Expr, NoMatch, Operands
from onnx_fa.patterns.ops.exprs import canonical, concat, dim_of, ints, op, reshape, same
from onnx_fa.patterns.ops.kept import Kept
from onnx_fa.spec.terms import Dim


@dataclass(frozen=True)
class Lengths:
    """What is known of the lengths of one call of the op, as int64: `queries` (1,) of this call, `before` (B,) keys in front of the
    first query, `seen` (B,) keys in sight of the last one, `whole` (1,) keys of the longest row."""

    queries: Expr
    before: Expr
    seen: Expr
    whole: Expr


@dataclass(frozen=True)
class Filled:
    """`operands` with K and V as the attention reads them, the cache's `presents` for K and V, and where the rows lie among them:
    `before` and `seen` (B,), counted from the first row that is there."""

    operands: Operands
    presents: tuple[Expr, Expr]
    before: Expr
    seen: Expr


@dataclass(frozen=True)
class _Room:
    """How many rows the attention reads: `size` (1,), of which the past's tensor lacks `missing`, and what the dim is called."""

    size: Expr
    missing: Expr | None
    dim: Dim


def fill_cache(
    view: GraphView,
    node: ir.Node,
    operands: Operands,
    pasts: tuple[ir.Value, ir.Value],
    kept: tuple[Kept, Kept],
    call: Lengths,
    window: int,
    label: str,
) -> Filled:
    """K and V as the present outputs have them: the past up to the first query, the new rows, then zeros. With a `window` above 0
    the cache holds the last rows only, as many as its tensor has or fewer."""
    shapes = [view.shape(x) for x in pasts]
    if any(s is None or len(s) != 4 for s in shapes):
        raise NoMatch("past_key and past_value must have four dims")
    had = same("the lengths of past_key and past_value", *(s[2] for s in shapes if s is not None))
    held = dim_of(pasts[0], 2)
    before, seen = call.before, call.seen
    if window > 0:
        before = _resident(call.before, held, window)
        seen = op("Add", before, op("Sub", call.seen, call.before))
        fixed = had + operands.Sq if isinstance(had, int) and isinstance(operands.Sq, int) else f"{label}_total"
        room = _Room(op("Add", held, call.queries), call.queries, fixed)
    else:
        made = [view.shape(x) for x in node.outputs[1:3] if x is not None]
        total = same("the lengths of the present outputs", *(s[2] for s in made if s is not None and len(s) == 4))
        dim = total if total is not None else f"{label}_total"
        if isinstance(total, int) and isinstance(had, int) and total == had:
            room = _Room(ints(total), None, dim)
        else:
            size = op("Max", held, call.whole)
            room = _Room(size, op("Sub", size, held), dim)
    caches = [
        _fill(past, keeps.store(canonical(new)), keeps, operands, room, before, call.queries)
        for past, keeps, new in zip(pasts, kept, (operands.k, operands.v), strict=True)
    ]
    k, v = (keeps.load(c, operands.Hkv) for keeps, c in zip(kept, caches, strict=True))
    if window > 0:
        after = _resident(call.seen, held, window)
        caches = [
            _evict(c, keeps, operands, room, held, op("Sub", seen, after), after)
            for keeps, c in zip(kept, caches, strict=True)
        ]
    return Filled(replace(operands, k=k, v=v, Skv=room.dim), (caches[0], caches[1]), before, seen)


def _resident(tokens: Expr, capacity: Expr, window: int) -> Expr:
    """How many rows (B,) a cache of `capacity` rows holds after so many tokens (B,), by the op's description: all of them while
    they fit; then as many are evicted at once, and again, as there are rows beyond the window's, and one.

    A capacity below the window is an error of the caller, which the op reports: nothing is divided by zero then."""
    at_once = op("Max", op("Sub", capacity, ints(window - 1)), ints(1))
    beyond = op("Sub", tokens, capacity)
    times = op("Div", op("Add", beyond, op("Sub", at_once, ints(1))), at_once)
    return op("Where", op("Greater", beyond, ints(0)), op("Sub", tokens, op("Mul", at_once, times)), tokens)


def _counted(size: Expr) -> Expr:
    """0, 1, 2, ... along the rows of a cache: (1, 1, size, 1)."""
    return reshape(op("Range", Const(np.asarray(0)), reshape(size), Const(np.asarray(1))), 1, 1, -1, 1)


def _pick(rows: Expr, index: Expr, keeps: Kept, operands: Operands, size: Expr) -> Expr:
    """The rows (B, Hkv, `size`, width) that an index (B, 1, size, 1) names."""
    shape = concat(0, dim_of(rows, 0), ints(int(operands.Hkv)), size, ints(keeps.width))
    return op("GatherElements", rows, op("Expand", index, shape), axis=2)


def _fill(past: Expr, fresh: Expr, keeps: Kept, operands: Operands, room: _Room, before: Expr, queries: Expr) -> Expr:
    """The past's first rows, as many as `before` says, the fresh ones behind them, and zeros."""
    at, start = _counted(room.size), reshape(before, -1, 1, 1, 1)
    if operands.Sq != 1:
        last = op("Sub", queries, ints(1))
        fresh = _pick(fresh, op("Min", op("Max", op("Sub", at, start), ints(0)), last), keeps, operands, room.size)
    old = past
    if room.missing is not None:
        old = op("Pad", past, concat(0, ints(0, 0, 0, 0, 0, 0), room.missing, ints(0)), keeps.zero)
    new = op("Where", op("Less", at, op("Add", start, queries)), fresh, keeps.zero)
    return op("Where", op("Less", at, start), old, new)


def _evict(cache: Expr, keeps: Kept, operands: Operands, room: _Room, held: Expr, evicted: Expr, after: Expr) -> Expr:
    """The rows that a window's cache goes on to hold: the first `evicted` ones (B,) are gone, `after` (B,) are left, in front of
    rows that the op leaves open."""
    at = _counted(held)
    index = op("Min", op("Add", at, reshape(evicted, -1, 1, 1, 1)), op("Sub", room.size, ints(1)))
    left = op("Less", at, reshape(after, -1, 1, 1, 1))
    return op("Where", left, _pick(cache, index, keeps, operands, held), keeps.zero)
