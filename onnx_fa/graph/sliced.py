"""The shape that Slice gives."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from onnx_fa.graph.dims import Shape
from onnx_fa.graph.shape_rules import slice_dim
from onnx_fa.spec.terms import Dim

Elements = Callable[[ir.Value | None], "tuple[Dim | None, ...] | None"]


def sliced_dims(node: ir.Node, first: Shape, elements: Elements) -> Shape | None:
    """What becomes of `first`, with dims that nobody knows as None; None where the node is not valid. `elements` reads bounds, as
    far as they are numbers or dims."""
    parts = [elements(node.inputs[i]) if i < len(node.inputs) else None for i in range(1, 5)]
    starts, ends, axes, steps = parts
    if len(node.inputs) < 3:  # before opset 10
        if "starts" not in node.attributes:
            return None
        starts, ends = (tuple(node.attributes[n].as_ints()) for n in ("starts", "ends"))
        axes = tuple(node.attributes["axes"].as_ints()) if "axes" in node.attributes else None
    if starts is None and ends is None and axes is None:
        return (None,) * len(first)
    count = len(starts or ends or axes or ())
    if axes is None and len(node.inputs) > 3 and node.inputs[3] is not None:
        return (None,) * len(first)
    dims = list(first)
    if any(x is not None and len(x) != count for x in (starts, ends, axes, steps)):
        return None
    default_step = 1 if len(node.inputs) < 5 or node.inputs[4] is None else None
    for i in range(count):
        axis = axes[i] if axes is not None else i
        if not isinstance(axis, int):
            return (None,) * len(first)
        if not -len(first) <= axis < len(first):
            return None
        start, end = (x[i] if x is not None else None for x in (starts, ends))
        step = steps[i] if steps is not None else default_step
        dims[axis] = slice_dim(dims[axis], start, end, step)
    return tuple(dims)
