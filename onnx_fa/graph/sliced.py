"""The shape that Slice gives."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from onnx_fa.graph.dims import Shape, add_dims, subtract_dims
from onnx_fa.graph.lengths import expression, is_never_negative
from onnx_fa.graph.shape_rules import slice_dim
from onnx_fa.spec.terms import Dim

Elements = Callable[[ir.Value | None], "tuple[Dim | None, ...] | None"]
Cut = tuple[Dim | None, Dim | None, Dim | None, Dim | None]
"""Axis, start, end and step, as far as they are numbers or dims."""


def sliced_dims(node: ir.Node, first: Shape, elements: Elements) -> Shape | None:
    """What becomes of `first`, with dims that nobody knows as None; None where the node is not valid. `elements` reads bounds, as
    far as they are numbers or dims."""
    cuts = slice_cuts(node, elements)
    if cuts is None:
        return None
    dims = list(first)
    for axis, start, end, step in cuts:
        if not isinstance(axis, int):
            return (None,) * len(first)
        if not -len(first) <= axis < len(first):
            return None
        dims[axis] = slice_dim(dims[axis], start, end, step)
    return tuple(dims)


def slice_cuts(node: ir.Node, elements: Elements) -> list[Cut] | None:
    """What a Slice cuts, axis by axis; None where it is not valid. Of axes that nobody knows it is one cut, with nothing known."""
    parts = [elements(node.inputs[i]) if i < len(node.inputs) else None for i in range(1, 5)]
    starts, ends, axes, steps = parts
    if len(node.inputs) < 3:  # before opset 10
        if "starts" not in node.attributes:
            return None
        starts, ends = (tuple(node.attributes[n].as_ints()) for n in ("starts", "ends"))
        axes = tuple(node.attributes["axes"].as_ints()) if "axes" in node.attributes else None
    unsaid = axes is None and len(node.inputs) > 3 and node.inputs[3] is not None
    if unsaid or (starts is None and ends is None and axes is None):
        return [(None, None, None, None)]
    count = len(starts or ends or axes or ())
    if any(x is not None and len(x) != count for x in parts):
        return None
    one = 1 if len(node.inputs) < 5 or node.inputs[4] is None else None
    blank: tuple[None, ...] = (None,) * count
    return list(zip(axes or range(count), starts or blank, ends or blank, steps or (one,) * count, strict=True))


def window_rows(dim: Dim | None, start: Dim | None, end: Dim | None) -> Dim | None:
    """end - start, of which dim[start:end] gives at least one row but no more, wherever that is one or more; None where more or
    nothing may come of it.

    With start + end = n a number no less than the axis has rows, a start that is negative, and so counts from the end, goes with an
    end beyond the axis: the rows that are left are -start of them. With n no more than two axes have, a start that lies in front
    of its end lies in the axis.
    """
    rows, middle = subtract_dims(end, start), add_dims(start, end)
    if not isinstance(dim, int) or not isinstance(middle, int) or not isinstance(rows, str) or end is None:
        return None
    return rows if 0 < dim <= middle <= 2 * dim and is_never_negative(expression(end)) else None
