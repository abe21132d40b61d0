"""Tensors that broadcast to a score, as they broadcast to the canonical dims of the site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.view import GraphView
from onnx_fa.match import Call, Const, Expr, NoMatch
from onnx_fa.match.axes import Axis, Group, Sources, has_size, leaves, move_axes
from onnx_fa.match.hints import refuse_rank, say_sizes
from onnx_fa.patterns.operands.upwards import Piece, Pieces, Standing, step_up
from onnx_fa.patterns.operands.viewed import spread_axes
from onnx_fa.spec.terms import Dim


def place_tensor(view: GraphView, value: Expr, axes: Sequence[Axis], groups: Sequence[Group], sources: Sources) -> Expr:
    """A tensor that broadcasts (right-aligned) to a score with `axes`, as one that broadcasts to the canonical dims (b.., h, s, t).

    A value further up the graph is taken where that is such a tensor. Raises NoMatch where the tensor does not provably
    broadcast.
    """
    dims = _dims_of(view, value)
    extra = len(dims) - len(axes)
    if extra > 0 and all(d == 1 for d in dims[:extra]):
        value = Call("Squeeze", (value, Const(np.arange(extra, dtype=np.int64))))
        dims = dims[extra:]
    elif extra > 0:
        raise _refuse(value, "a mask has more dims than the score")
    axes = [leaves(a) for a in axes][len(axes) - len(dims) :]
    what = f"a mask of shape {list(dims)} does not provably broadcast to the score"
    pieces: list[Pieces] = []
    for dim, axis in zip(dims, axes, strict=True):
        if dim == 1 or not axis:
            if dim != 1:
                raise _refuse(value, what + say_sizes(view, (dim, *(a.size for a in axis))))
            pieces.append(())
        elif dim is not None and has_size(axis, dim):
            pieces.append(tuple(Piece(a, a.size) for a in axis))
        else:
            raise _refuse(value, what + say_sizes(view, (dim, *(a.size for a in axis))))
    if isinstance(value, ir.Value):
        best: ir.Value | None = None
        state: Standing | None = Standing(value, tuple(pieces), None)
        while state is not None:
            if _is_aligned(state, groups):
                best = state.value
                break
            state = step_up(view, state)
        if best is not None:
            return best
    have = [[p.atom for p in axis] for axis in pieces]
    present = [a for axis in have for a in axis]
    want = [[a for a in g.atoms if a in present] for g in groups]
    expr = move_axes(value, have, want, sources)
    missing = [[a for a in g.atoms if w and a not in w] for g, w in zip(groups, want, strict=True)]
    if any(missing):
        expr = spread_axes(expr, want, [list(g.atoms) for g in groups], missing, sources)
    if not isinstance(expr, Call):
        return expr
    return replace(expr, shape=tuple(g.size if w else 1 for g, w in zip(groups, want, strict=True)))


def _is_aligned(state: Standing, groups: Sequence[Group]) -> bool:
    """Whether the value broadcasts to the canonical dims as it is."""
    axes = [[p for p in axis if not p.repeated and p.size != 1] for axis in state.axes]
    while axes and not axes[0]:
        axes = axes[1:]
    if len(axes) > len(groups):
        return False
    return all(not a or tuple(p.atom for p in a) == g.atoms for a, g in zip(axes[::-1], groups[::-1], strict=False))


def _dims_of(view: GraphView, value: Expr) -> tuple[Dim | None, ...]:
    if isinstance(value, Const):
        return value.array.shape
    if isinstance(value, Call) and value.op in ("Not", "Cast", "Identity", "Neg"):
        return _dims_of(view, value.args[0])
    dims = view.shape(value) if isinstance(value, ir.Value) else None
    if dims is None:
        raise refuse_rank(view, "a mask", value)
    return dims


def _refuse(value: Expr, reason: str) -> NoMatch:
    return NoMatch(reason, value.producer() if isinstance(value, ir.Value) else None)
