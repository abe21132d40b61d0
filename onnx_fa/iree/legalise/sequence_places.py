"""Places of a sequence that are cut away or come to it, as codecs do it around each convolution: a Slice and a Pad along the length
of (batch, channels, length) are, of its rows (batch, length, channels), the same along another axis."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import onnx

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.image_rows import Places, RowsForm, RowsWriter
from onnx_fa.iree.legalise.row_forms import slice_, write_same
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of

_LENGTH = (2, -1)
"""The axis, as a node may name it."""
_FAR = 1 << 31
"""Ends so far away are those of the axis."""
_MODES = (b"constant", b"reflect", b"edge")
_CARRIES = ("Identity", "Unsqueeze", "Squeeze", "Reshape", "Cast")
"""Operators that hand on a single number."""


def cut_places(g: GraphWriter, sounds: Mapping[str, Places], node: onnx.NodeProto) -> RowsForm | None:
    """A Slice of some channels, or one of places, by numbers that are known or not."""
    if (form := slice_(g, sounds, node)) is not None:
        return form
    (x, *bounds), y = node.input, node.output[0]
    if x not in sounds or y not in sounds or len(bounds) < 3 or not _is_length(g, bounds[2]):
        return None
    if any(g.shape(name) != [1] for name in bounds if name):
        return None
    return RowsForm((x,), (y,), write_same if is_whole(g, node) else _write_cut)


def is_whole(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Whether a Slice takes all places: from the first to as many as its operand has, one after the other."""
    x, start, end, axis, *step = node.input
    first, last = (_number(g, name) for name in (start, end))
    steps = [1 if not name else _number(g, name) for name in step]
    if first != 0 or steps not in ([], [1]) or not _is_length(g, axis):
        return False
    return last >= _FAR - 1 if last is not None else _is_size(g, end, x)


def _is_size(g: GraphWriter, name: str, x: str) -> bool:
    """Whether a number is the length of x, asked for by Shape and Gather."""
    maker = g.maker(name)
    while maker is not None and op_of(maker) in _CARRIES:
        maker = g.maker(maker.input[0])
    if maker is None or op_of(maker) != "Gather" or _number(g, maker.input[1]) not in _LENGTH:
        return False
    shape = g.maker(maker.input[0])
    return shape is not None and op_of(shape) == "Shape" and not shape.attribute and shape.input[0] == x


def _number(g: GraphWriter, name: str) -> int | None:
    """A constant of one number; None for what is none."""
    array = g.array(name) if name and g.is_one_number(name) else None
    return None if array is None else int(array.reshape(()))


def _is_length(g: GraphWriter, axis: str) -> bool:
    return _number(g, axis) in _LENGTH


def _write_cut(w: RowsWriter[Any], node: onnx.NodeProto) -> None:
    g, hint, (x, start, end, _, *step) = w.g, node.name or node.op_type, node.input
    bounds = [start, end, g.ints([1], hint), *step]
    w.give(node.output[0], w.step("Slice", [w.read(x, hint), *bounds], w.images[node.output[0]].rows, hint))


def pad_places(g: GraphWriter, sounds: Mapping[str, Places], node: onnx.NodeProto) -> RowsForm | None:
    """A Pad of the length alone, by numbers that are known."""
    x, y = node.input[0], node.output[0]
    pads = place_pads(g, node) if x in sounds and y in sounds else None
    if pads is None:
        return None
    return RowsForm((x,), (y,), partial(_write_pad, pads) if any(pads) else write_same)


def place_pads(g: GraphWriter, node: onnx.NodeProto) -> tuple[int, int] | None:
    """How many places a Pad puts in front of a sequence and behind it; None where it does something else, or only a run knows."""
    known = len(node.input) > 1 and not any(node.input[3:]) and attr_of(node, "mode", b"constant") in _MODES
    pads = g.array(node.input[1]) if known else None
    if pads is None or pads.shape != (6,) or np.any(pads < 0) or np.any(pads[[0, 1, 3, 4]]):
        return None
    return int(pads[2]), int(pads[5])


def _write_pad(pads: tuple[int, int], w: RowsWriter[Any], node: onnx.NodeProto) -> None:
    g, hint, (low, high) = w.g, node.name or node.op_type, pads
    inputs = [w.read(node.input[0], hint), g.ints([0, low, 0, 0, high, 0], hint), *node.input[2:3]]
    mode = attr_of(node, "mode", b"constant")
    w.give(node.output[0], w.step("Pad", inputs, w.images[node.output[0]].rows, hint, mode=mode))
