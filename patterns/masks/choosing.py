"""Ops that choose elements by an index or by where a part ends: Gather, GatherND, GatherElements, Concat, Split."""

from __future__ import annotations

import onnx_ir as ir

from onnx_fa.graph.ops import attr_int
from onnx_fa.patterns.masks.elements import Elements, Index, Untraceable, place_axis
from onnx_fa.patterns.masks.expressions import FALSE, TRUE, integer, reads
from onnx_fa.spec.expr import ScoreExpr, Tensor


def choose_by_gather(elements: Elements, node: ir.Node, index: Index) -> ScoreExpr:
    data, where = node.inputs[0], node.inputs[1]
    dims, inner = elements.view.shape(data), elements.view.shape(where)
    if dims is None or inner is None:
        raise Untraceable
    axis = place_axis(attr_int(node, "axis", 0), len(dims))
    chosen = elements.read(where, index[axis : axis + len(inner)])
    chosen = elements.count_from_front(chosen, dims[axis])
    return elements.read(data, (*index[:axis], chosen, *index[axis + len(inner) :]))


def choose_by_gather_nd(elements: Elements, node: ir.Node, index: Index) -> ScoreExpr:
    data, where = node.inputs[0], node.inputs[1]
    dims, inner = elements.view.shape(data), elements.view.shape(where)
    batch = attr_int(node, "batch_dims", 0)
    if dims is None or inner is None or not isinstance(inner[-1], int):
        raise Untraceable
    lead = index[: len(inner) - 1]
    chosen = [
        elements.count_from_front(elements.read(where, (*lead, integer(n))), dims[batch + n]) for n in range(inner[-1])
    ]
    return elements.read(data, (*index[:batch], *chosen, *index[len(inner) - 1 :]))


def choose_by_gather_elements(elements: Elements, node: ir.Node, index: Index) -> ScoreExpr:
    dims = elements.view.shape(node.inputs[0])
    axis = place_axis(attr_int(node, "axis", 0), len(index))
    chosen = elements.count_from_front(elements.read(node.inputs[1], index), dims[axis] if dims is not None else None)
    return elements.read(node.inputs[0], (*index[:axis], chosen, *index[axis + 1 :]))


def choose_by_concat(elements: Elements, node: ir.Node, index: Index) -> ScoreExpr:
    axis = place_axis(attr_int(node, "axis", 0), len(index))
    place = index[axis]
    result: list[tuple[ScoreExpr, ScoreExpr]] = []
    base = 0
    for number, part in enumerate(node.inputs):
        dims = elements.view.shape(part)
        if dims is None:
            raise Untraceable
        dim = dims[axis]
        last = number == len(node.inputs) - 1
        if not last and not isinstance(dim, int):
            raise Untraceable
        ends = TRUE if last else elements.algebra.compare("Less", place, integer(base + int(dim or 0)))
        if ends != FALSE:
            local = integer(0) if dim == 1 else elements.algebra.add(place, integer(base), -1)
            piece = elements.read(part, (*index[:axis], local, *index[axis + 1 :]))
            if (result or ends != TRUE) and any(isinstance(leaf, Tensor) for leaf in reads(piece)):
                raise Untraceable  # would be read beyond its end
            result.append((ends, piece))
            if ends == TRUE:
                break
        base += int(dim) if isinstance(dim, int) else 0
    total = result[-1][1]
    for ends, piece in reversed(result[:-1]):
        total = elements.algebra.where(ends, piece, total)
    return total


def choose_by_split(elements: Elements, node: ir.Node, value: ir.Value, index: Index) -> ScoreExpr:
    axis = place_axis(attr_int(node, "axis", 0), len(index))
    start = 0
    for out in node.outputs:
        if out is value:
            break
        dims = elements.view.shape(out)
        if dims is None or not isinstance(dims[axis], int):
            raise Untraceable
        start += int(dims[axis] or 0)
    moved = elements.algebra.add(index[axis], integer(start))
    return elements.read(node.inputs[0], (*index[:axis], moved, *index[axis + 1 :]))
