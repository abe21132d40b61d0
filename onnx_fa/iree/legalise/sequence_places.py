"""Places of a sequence that are cut away or come to it, as codecs do it around each convolution: a Slice and a Pad along the length
of (batch, channels, length) are, of its rows (batch, length, channels), the same along another axis."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import onnx

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.image_rows import Places, RowsForm, RowsWriter
from onnx_fa.iree.legalise.pads import parts_of
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
    """A Pad of the length alone."""
    x, y = node.input[0], node.output[0]
    pads = place_pads(g, node) if x in sounds and y in sounds else None
    if pads is None:
        return None
    return RowsForm((x,), (y,), partial(_write_pad, pads) if any(pads) else write_same)


def place_pads(g: GraphWriter, node: onnx.NodeProto) -> tuple[int | str, int | str] | None:
    """How many places a Pad puts in front of a sequence and behind it, numbers or the names of those of the run; None where it does
    something else."""
    pads = parts_of(g, node) if attr_of(node, "mode", b"constant") in _MODES else None
    if pads is None or len(pads) != 6 or any(isinstance(n, int) and n < 0 for n in pads):
        return None
    low, high = pads[2::3]
    return (low, high) if pads[:2] == pads[3:5] == [0, 0] else None


def _write_pad(pads: tuple[int | str, int | str], w: RowsWriter[Any], node: onnx.NodeProto) -> None:
    g, hint, known = w.g, node.name or node.op_type, [n for n in pads if isinstance(n, int)]
    if len(known) == len(pads):
        numbers = g.ints([0, known[0], 0, 0, known[1], 0], hint)
    else:
        low, high = (g.ints([n], hint) if isinstance(n, int) else n for n in pads)
        none = g.ints([0], hint)
        numbers = g.add("Concat", [none, low, none, none, high, none], hint, axis=0)
    inputs = [w.read(node.input[0], hint), numbers, *node.input[2:3]]
    mode = attr_of(node, "mode", b"constant")
    w.give(node.output[0], w.step("Pad", inputs, w.images[node.output[0]].rows, hint, mode=mode))
