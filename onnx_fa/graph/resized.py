"""The shape that Resize and Upsample give."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import onnx_ir as ir

from onnx_fa.graph.axes import Const, placed_axis
from onnx_fa.graph.dims import Shape, divide_dims, multiply_dims
from onnx_fa.graph.ops import op_of, typed_attr
from onnx_fa.spec.terms import Dim

Elements = Callable[[ir.Value | None], "tuple[Dim | None, ...] | None"]
ROUNDED = 1e-5
"""More than f32 rounds a product by, as a part of it."""


def resized_dims(node: ir.Node, first: Shape, const: Const, elements: Elements) -> Shape | None:
    """What becomes of `first`: the sizes that the node is given, or floor(dim * scale) of each axis. None where it crops or keeps a
    ratio, where the scales are no constants, and where it has as many of either as it has no axes."""
    if _text(node, "coordinate_transformation_mode") == "tf_crop_and_resize":
        return None
    axes = _axes(node, len(first))
    if axes is None:
        return None
    sizes = _input(node, 3)
    if sizes is not None:
        given = elements(sizes)
        if given is None or len(given) != len(axes) or _text(node, "keep_aspect_ratio_policy") not in ("", "stretch"):
            return None
        return _put(first, axes, given)
    scales = _scales(node, const)
    if scales is None or len(scales) != len(axes):
        return None
    return _put(first, axes, [_scaled(first[axis], scale) for axis, scale in zip(axes, scales, strict=True)])


def _put(first: Shape, axes: Sequence[int], dims: Sequence[Dim | None]) -> Shape:
    result = list(first)
    for axis, dim in zip(axes, dims, strict=True):
        result[axis] = dim
    return tuple(result)


def _axes(node: ir.Node, rank: int) -> list[int] | None:
    """The axes that the scales are of, all of them where none are named."""
    given = typed_attr(node, "axes", ir.AttributeType.INTS)
    if given is None:
        return list(range(rank))
    placed = [placed_axis(axis, rank) for axis in given.as_ints()]
    found = [axis for axis in placed if axis is not None]
    return found if len(set(found)) == len(placed) else None


def _scales(node: ir.Node, const: Const) -> list[float] | None:
    """The factors of the axes: an attribute before opset 9, an input since."""
    if (attribute := typed_attr(node, "scales", ir.AttributeType.FLOATS)) is not None:
        return list(attribute.as_floats())
    before = op_of(node) == "Upsample" or len(node.inputs) == 2  # Resize has a region in front of them since opset 11
    array = const(_input(node, 1 if before else 2))
    if array is None or array.ndim != 1 or array.dtype.kind != "f":
        return None
    return [float(scale) for scale in array]


def _scaled(dim: Dim | None, scale: float) -> Dim | None:
    """floor(dim * scale). Runtimes multiply in f32 or in f64: it is known for whole numbers and one over powers of two, whose
    products with lengths neither rounds, and where a product of numbers is far from a whole one."""
    if not math.isfinite(scale) or scale <= 0:
        return None
    if scale.is_integer():
        return multiply_dims(dim, int(scale))
    if scale < 1 and (1 / scale).is_integer() and math.frexp(scale)[0] == 0.5:
        return divide_dims(dim, int(1 / scale))
    if not isinstance(dim, int):
        return None
    product = dim * scale
    return math.floor(product) if abs(product - round(product)) > ROUNDED * product else None


def _input(node: ir.Node, i: int) -> ir.Value | None:
    return node.inputs[i] if i < len(node.inputs) else None


def _text(node: ir.Node, name: str) -> str:
    attribute = typed_attr(node, name, ir.AttributeType.STRING)
    return "" if attribute is None else attribute.as_string()
