"""Reads skewed probabilities: P(i, j) moved to (i, j - i + T - 1), times rows of which all but the middle ones are zero.

Music Transformer's trick, turned around (VITS, Glow-TTS): T - 1 zeros behind each row, flat, T zeros in front, T rows of 2 T, and
the first column dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnx_fa.graph.dims import Shape, add_dims, multiply_dims, subtract_dims
from onnx_fa.graph.lengths import expression, is_never_negative
from onnx_fa.graph.view import GraphView
from onnx_fa.match.prepare.shared_softmax import find_shared
from onnx_fa.spec.terms import Dim

MOST_REACH = 64
"""Positions to either side. Values of a row are as many as there are positions, and a kernel holds a block of them."""


@dataclass(frozen=True)
class Band:
    """`product` multiplies the skewed probabilities of `softmax` by rows that are zero but for 2 `reach` + 1 of them, one for each
    distance j - i in -reach ... reach, which are `rows` (..., 2 reach + 1, D)."""

    softmax: ir.Node
    product: ir.Node
    reach: int
    rows: ir.Value | npt.NDArray[np.generic]


def find_bands(view: GraphView) -> Iterator[Band]:
    """All of a model whose probabilities something else reads as well."""
    for softmax, shape, readers in find_shared(view):
        if None in shape or len(shape) < 3 or shape[-1] != shape[-2]:
            continue
        if softmax.outputs[0].dtype != ir.DataType.FLOAT:
            continue
        found = [b for pad in readers if (b := _band(view, softmax, pad, shape)) is not None]
        if len(found) == 1:
            yield found[0]


def _band(view: GraphView, softmax: ir.Node, pad: ir.Node, shape: Shape) -> Band | None:
    """What begins with this reader of the probabilities."""
    size = shape[-1]
    assert size is not None
    twice = multiply_dims(2, size)
    less = subtract_dims(twice, 1)
    row = multiply_dims(size, less)
    if twice is None or less is None or row is None:
        return None
    steps = (
        ("Pad", (*shape[:-1], less), (0, subtract_dims(size, 1))),
        ("Reshape", (*shape[:-2], row), None),
        ("Pad", (*shape[:-2], multiply_dims(size, twice)), (size, 0)),
        ("Reshape", (*shape[:-1], twice), None),
        ("Slice", (*shape[:-1], less), None),
    )
    node: ir.Node | None = pad
    for kind, made, pads in steps:
        if node is None or view.producer(node.outputs[0], kind) is None or view.shape(node.outputs[0]) != made:
            return None
        if pads is not None and _last_pads(view, node) != pads:
            return None
        if kind == "Slice" and _begin_of(view, node, len(made)) != 1:
            return None
        readers = view.users(node.outputs[0])
        if len(readers) != 1 or node.outputs[0].is_graph_output():
            return None
        last, node = node, readers[0]
    if node is None or view.producer(node.outputs[0], "MatMul") is None or node.inputs[0] is not last.outputs[0]:
        return None
    values = node.inputs[1]
    found = None if values is None else _middle(view, values, size)
    return None if found is None else Band(softmax, node, *found)


def _last_pads(view: GraphView, node: ir.Node) -> tuple[Dim | None, Dim | None] | None:
    """How many zeros a Pad puts in front of and behind the last axis, if it puts some nowhere else."""
    pads = _pads(view, node)
    if pads is None or any(p != 0 for side in pads for p in side[:-1]):
        return None
    return pads[0][-1], pads[1][-1]


def _pads(view: GraphView, node: ir.Node) -> tuple[Shape, Shape] | None:
    """The zeros that a Pad puts in front of and behind each axis."""
    mode = node.attributes.get("mode")
    if mode is not None and mode.as_string() != "constant":
        return None
    filled = node.inputs[2] if len(node.inputs) > 2 else None
    if filled is not None and view.scalar(filled) != 0.0:
        return None
    if len(node.inputs) < 2 or node.inputs[1] is None or any(i is not None for i in node.inputs[3:]):
        return None
    pads = view.dims(node.inputs[1])
    return None if pads is None else (pads[: len(pads) // 2], pads[len(pads) // 2 :])


def _begin_of(view: GraphView, node: ir.Node, rank: int, axis: int = -1) -> Dim | None:
    """Where a Slice of this axis alone begins; None where it leaves places out, or that is not known."""
    given = [view.dims(i) if i is not None else None for i in node.inputs[1:]]
    if len(given) < 3 or given[0] is None or given[2] is None or len(given[2]) != 1:
        return None
    if given[2][0] not in (axis, rank + axis) or (len(given) > 3 and given[3] != (1,)):
        return None
    return given[0][0]


def _middle(view: GraphView, values: ir.Value, size: Dim) -> tuple[int, ir.Value | npt.NDArray[np.generic]] | None:
    """The reach of values (..., 2 T - 1, D), and the rows within it."""
    array = view.const(values)
    if array is not None:
        if not isinstance(size, int) or array.ndim < 2 or array.shape[-2] != 2 * size - 1:
            return None
        some = np.flatnonzero((array != 0).any(axis=(*range(array.ndim - 2), -1)))
        reach = int(np.abs(some - (size - 1)).max(initial=0))
        return (reach, array[..., size - 1 - reach : size + reach, :]) if reach <= MOST_REACH else None
    begin: Dim | None = 0
    shape = view.shape(values)
    while (node := view.producer(values, "Unsqueeze")) is not None and node.inputs[0] is not None:
        if shape is None or any(d != 1 for d in shape[:-2]):
            return None  # else a product broadcasts what stands in front of the last two axes, whether they are there or not
        values = node.inputs[0]
        shape = view.shape(values)
    cut = view.producer(values, "Slice")
    if cut is not None and shape is not None:
        begin = _begin_of(view, cut, len(shape), -2)
    pad = view.producer(values if cut is None else cut.inputs[0], "Pad")
    pads = None if pad is None else _pads(view, pad)
    rows = None if pad is None else pad.inputs[0]
    inner = view.shape(rows)
    if begin is None or pads is None or rows is None or inner is None or not isinstance(inner[-2], int):
        return None
    reach, odd = divmod(inner[-2], 2)
    elsewhere = [p for side in pads for i, p in enumerate(side) if i != len(side) - 2]
    if not odd or reach > MOST_REACH or any(p != 0 for p in elsewhere):
        return None
    return (reach, rows) if _is_middle(pads[0][-2], begin, size, reach) else None


def _is_middle(before: Dim | None, begin: Dim, size: Dim, reach: int) -> bool:
    """Whether the padded rows begin at T - 1 - reach once `begin` are cut off. Exporters write max(T - 1 - reach, 0) zeros, and
    cut max(reach + 1 - T, 0) rows. A negative `begin` would count from the end."""
    if before is None or not is_never_negative(expression(begin)):
        return False
    return before == add_dims(begin, subtract_dims(size, reach + 1))
