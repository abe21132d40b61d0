"""Ops whose elements follow from their position: Range, Trilu, EyeLike, ConstantOfShape, CumSum."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.ops import attr_int
from onnx_fa.patterns.masks.elements import Elements, Index, kind_of_value, place_axis
from onnx_fa.patterns.masks.expressions import FALSE, AnyPosition, boolean, integer, number
from onnx_fa.spec.expr import Apply, Float, Int, ScoreExpr


def count_range(elements: Elements, node: ir.Node, index: Index) -> ScoreExpr | None:
    start, step = (elements.read_number(node.inputs[i]) for i in (0, 2))
    kind = kind_of_value(node.outputs[0])
    if kind == "float":
        if node.outputs[0].dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
            return None
        start, step = _as_whole(start), _as_whole(step)
    if not isinstance(step, Int) or (kind == "float" and not isinstance(start, Int)):
        return None
    # All that Range makes lies between its ends, which its type holds.
    value = elements.algebra.sum_of(elements.algebra.multiply(index[0], step.value), start)
    if kind == "int":
        return value
    return number(value.value) if isinstance(value, Int) else Apply("ToFloat", value)


def _as_whole(e: ScoreExpr) -> ScoreExpr:
    """A float constant as a whole number, if it is one; else as it is."""
    return integer(int(e.value)) if isinstance(e, Float) and float(e.value).is_integer() else e


def cut_triangle(elements: Elements, node: ir.Node, index: Index) -> ScoreExpr | None:
    by = node.inputs[1] if len(node.inputs) > 1 else None
    shift = integer(0) if by is None else elements.read_number(by)
    right = elements.algebra.add(index[-1], index[-2], -1)
    op = "GreaterOrEqual" if attr_int(node, "upper", 1) else "LessOrEqual"
    keep = elements.algebra.compare(op, right, shift)
    kind = kind_of_value(node.outputs[0])
    zeros = {"bool": FALSE, "int": integer(0)}
    zero = zeros.get(kind or "float", number(0.0))
    return elements.algebra.where(keep, elements.read(node.inputs[0], index), zero)


def mark_diagonal(elements: Elements, node: ir.Node, index: Index) -> ScoreExpr | None:
    diagonal = elements.algebra.compare(
        "Equal", elements.algebra.add(index[1], index[0], -1), integer(attr_int(node, "k", 0))
    )
    match kind_of_value(node.outputs[0]):
        case "bool":
            return diagonal
        case "int":
            return elements.algebra.where(diagonal, integer(1), integer(0))
    return elements.algebra.where(diagonal, number(1.0), number(0.0))


def fill_constant(elements: Elements, node: ir.Node, index: Index) -> ScoreExpr:
    x = node.attributes["value"].as_tensor().numpy().reshape(-1)[0] if "value" in node.attributes else np.float32(0)
    if x.dtype == np.bool_:
        return boolean(bool(x))
    return integer(int(x)) if x.dtype.kind in "iu" else number(float(x))


def sum_up(elements: Elements, node: ir.Node, index: Index) -> ScoreExpr | None:
    """Of a value that is the same everywhere along the axis."""
    axis = elements.view.scalar(node.inputs[1])
    if axis is None:
        return None
    n = place_axis(int(axis), len(index))
    anywhere = elements.anywhere.setdefault(node, AnyPosition(len(elements.anywhere)))
    each = elements.read(node.inputs[0], (*index[:n], anywhere, *index[n + 1 :]))
    if not isinstance(each, Int):
        return None
    count = index[n]
    if attr_int(node, "reverse", 0):
        dims = elements.view.shape(node.inputs[0])
        size = elements.express_size(dims[n]) if dims is not None else None
        if size is None and each != integer(0):
            return None
        count = elements.algebra.add(elements.algebra.add(size or integer(0), integer(1), -1), count, -1)
    if not attr_int(node, "exclusive", 0):
        count = elements.algebra.add(count, integer(1))
    total, dtype = elements.algebra.multiply(count, each.value), node.outputs[0].dtype
    return None if dtype is None or elements.may_wrap(total, dtype) else total
