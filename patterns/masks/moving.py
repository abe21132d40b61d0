"""Ops that only move elements: where the element at an index stood before."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.view import axes_of
from onnx_fa.patterns.masks.elements import Elements, Index, Untraceable, place_axis
from onnx_fa.patterns.masks.expressions import integer
from onnx_fa.spec.expr import ScoreExpr
from onnx_fa.spec.terms import Dim


def undo_transpose(elements: Elements, node: ir.Node, index: Index) -> ScoreExpr:
    rank = len(index)
    perm = list(node.attributes["perm"].as_ints()) if "perm" in node.attributes else list(range(rank))[::-1]
    return elements.read(node.inputs[0], tuple(index[perm.index(i)] for i in range(rank)))


def undo_unsqueeze(elements: Elements, node: ir.Node, index: Index) -> ScoreExpr:
    axes = axes_of(elements.view, node)
    if axes is None:
        raise Untraceable
    drop = {place_axis(a, len(index)) for a in axes}
    return elements.read(node.inputs[0], tuple(i for n, i in enumerate(index) if n not in drop))


def undo_squeeze(elements: Elements, node: ir.Node, index: Index) -> ScoreExpr:
    dims = elements.view.shape(node.inputs[0])
    if dims is None:
        raise Untraceable
    axes = axes_of(elements.view, node) if len(node.inputs) > 1 or "axes" in node.attributes else None
    units = [n for n, d in enumerate(dims) if d == 1] if axes is None else [place_axis(a, len(dims)) for a in axes]
    if len(dims) - len(units) != len(index):
        raise Untraceable
    rest = iter(index)
    return elements.read(node.inputs[0], tuple(integer(0) if n in units else next(rest) for n in range(len(dims))))


def undo_expand(elements: Elements, node: ir.Node, index: Index) -> ScoreExpr:
    return elements.read(node.inputs[0], elements.broadcast_index(node.inputs[0], node.outputs[0], index))


def undo_tile(elements: Elements, node: ir.Node, index: Index) -> ScoreExpr:
    dims, repeats = elements.view.shape(node.inputs[0]), elements.view.const(node.inputs[1])
    if dims is None:
        raise Untraceable
    result: list[ScoreExpr] = []
    for axis, (dim, place) in enumerate(zip(dims, index, strict=True)):
        if dim == 1:
            result.append(integer(0))
        elif repeats is not None and int(repeats.reshape(-1)[axis]) == 1:
            result.append(place)
        elif isinstance(dim, int):
            result.append(elements.algebra.modulo(place, dim))
        else:
            raise Untraceable
    return elements.read(node.inputs[0], tuple(result))


def undo_reshape(elements: Elements, node: ir.Node, index: Index) -> ScoreExpr:
    """Runs of dims with equal products are taken apart by division and put together by multiplication."""
    before, after = elements.view.shape(node.inputs[0]), elements.view.shape(node.outputs[0])
    if before is None or after is None:
        raise Untraceable
    result: list[ScoreExpr] = []
    todo = list(zip(after, index, strict=True))
    old = list(before)
    while old:
        if old[0] == 1:
            old.pop(0)
            result.append(integer(0))
        elif todo and todo[0][0] == 1:
            todo.pop(0)
        elif todo and old[0] is not None and old[0] == todo[0][0]:
            old.pop(0)
            result.append(todo.pop(0)[1])
        else:
            result += _take_run_apart(elements, old, todo)
    if any(d != 1 for d, _ in todo):
        raise Untraceable
    return elements.read(node.inputs[0], tuple(result))


def _take_run_apart(
    elements: Elements, old: list[Dim | None], todo: list[tuple[Dim | None, ScoreExpr]]
) -> list[ScoreExpr]:
    """Takes the shortest runs of static dims with equal products off both lists: the index into the old dims."""
    old_run, new_run = [old.pop(0)], [todo.pop(0)] if todo else []
    while (old_size := _multiply_dims(old_run)) != (new_size := _multiply_dims([dim for dim, _ in new_run])):
        if old_size < new_size and old:
            old_run.append(old.pop(0))
        elif new_size < old_size and todo:
            new_run.append(todo.pop(0))
        else:
            raise Untraceable
    flat: ScoreExpr = integer(0)
    for dim, place in new_run:
        assert isinstance(dim, int)
        flat = elements.algebra.add(elements.algebra.multiply(flat, dim), place)
    result = []
    for dim in reversed(old_run):
        assert isinstance(dim, int)
        result.append(elements.algebra.modulo(flat, dim))
        flat = elements.algebra.divide(flat, dim)
    return result[::-1]


def undo_slice(elements: Elements, node: ir.Node, index: Index) -> ScoreExpr:
    dims = elements.view.shape(node.inputs[0])
    given = [elements.view.const(i) for i in node.inputs[1:]]
    starts = given[0] if given else None
    if dims is None or starts is None or len(node.inputs) < 3:
        raise Untraceable
    first = [int(x) for x in starts.reshape(-1)]
    axes = given[2] if len(given) > 2 and node.inputs[3] is not None else np.arange(len(first))
    steps = given[3] if len(given) > 3 and node.inputs[4] is not None else np.ones(len(first))
    if axes is None or steps is None:
        raise Untraceable
    result = list(index)
    for start, axis, step in zip(first, axes.reshape(-1), steps.reshape(-1), strict=True):
        placed = place_axis(int(axis), len(dims))
        if int(step) < 1:
            raise Untraceable
        origin = integer(start)
        if start < 0:
            size = dims[placed]
            if not isinstance(size, int):
                raise Untraceable
            origin = integer(max(start + size, 0))
        result[placed] = elements.algebra.add(elements.algebra.multiply(result[placed], int(step)), origin)
    return elements.read(node.inputs[0], tuple(result))


def _multiply_dims(dims: list[Dim | None]) -> int:
    numbers = [d for d in dims if isinstance(d, int)]
    if len(numbers) != len(dims) or 0 in numbers:
        raise Untraceable
    return math.prod(numbers)
