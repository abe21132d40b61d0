"""Axes as nodes name them: negative ones counted from the end, as an attribute or as an input."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnx_fa.graph.ops import attr_int

Const = Callable[[ir.Value | None], "npt.NDArray[np.generic] | None"]

Axes = tuple[int, ...]
"""Axes of a value, counted from the end: the first of two comes first."""
LAST_AXIS: Axes = (-1,)

OPEN_END = 10**9
"""An end of a Slice that no length reaches: what is read of masks takes lengths to be at most 2^24. Exporters write it, and numbers
above, for an end that is left open."""


def node_axes(node: ir.Node, const: Const) -> list[int] | None:
    """Axes of a Reduce*, Squeeze or Unsqueeze in either spelling (attribute, or constant second input); None when unknown."""
    if "axes" in node.attributes:
        return list(node.attributes["axes"].as_ints())
    array = const(node.inputs[1]) if len(node.inputs) > 1 else None
    return None if array is None or array.dtype.kind not in "iu" else [int(a) for a in array.reshape(-1)]


def placed_axis(axis: int, rank: int) -> int | None:
    """The axis counted from the front. None where a tensor of this rank has no such axis, so that the model is not valid."""
    return axis % rank if -rank <= axis < rank else None


def node_axis(node: ir.Node, rank: int) -> int | None:
    """The axis that a node names by an attribute, as `placed_axis`; the first one without that. Raises ModelError for an attribute
    of another type."""
    return placed_axis(attr_int(node, "axis", 0), rank)


def placed_axes(axes: Sequence[int] | None, rank: int) -> set[int] | None:
    """As `placed_axis`; None also where they are unknown or one is there twice."""
    found = {placed_axis(a, rank) for a in axes or ()}
    placed = {a for a in found if a is not None}
    return placed if axes is not None and len(placed) == len(axes) else None
