"""Resize that repeats rows of free sizes, as upsampling in a UNet or a VAE does: IREE's compiler fails where a convolution reads
it. And that of sequences, which IREE refuses (docs/developer/iree-bugs.md)."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.resize_known import resize_known
from onnx_fa.iree.legalise.resize_planes import resize_planes
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of, copy_without

_REPEATS = {(b"asymmetric", b"floor"), (b"half_pixel", b"round_prefer_floor")}
"""(coordinate_transformation_mode, nearest_mode) by which row i of k times as many is row i // k."""

_BY_SCALE = (b"half_pixel", b"pytorch_half_pixel", b"asymmetric")
"""Coordinate transformations by which an axis of one element stays as it is."""

_PLAIN = {"mode", "coordinate_transformation_mode", "nearest_mode", "cubic_coeff_a"}
"""Attributes of a linear Resize that says nothing else."""


def resize(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Rows of an image of free size repeated, axes that are known by what they weigh, or a sequence as an image of one row; false
    for all else. Raises ModelError."""
    return (
        resize_planes(g, node)
        or _repeat_rows(g, node)
        or _resize_sequence(g, node)
        or resize_known(g, node)
        or _of_all_axes(g, node)
    )


def _of_all_axes(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """A Resize that names its axes as one of all, the others as they are; false where its sizes are computed."""
    shape, axes = g.shape(node.input[0]), attr_of(node, "axes", None)
    policy = attr_of(node, "keep_aspect_ratio_policy", b"stretch")
    if shape is None or axes is None or policy != b"stretch":
        return False
    inputs = [*node.input, "", "", ""][:4]
    scales, sizes = (g.array(name) if name else None for name in inputs[2:])
    whole = (
        np.ones(len(shape), np.float32) if sizes is None else np.array([d if isinstance(d, int) else -1 for d in shape])
    )
    numbers = scales if sizes is None else sizes
    if numbers is None or numbers.size != len(axes):
        return False
    whole[[axis % len(shape) for axis in axes]] = numbers
    if inputs[1]:
        return False
    hint = node.name or "Resize"
    if whole.min() < 0:  # a size that stays, and that only a run knows
        inputs[3] = g.sizes(node.input[0], [int(size) if size >= 0 else None for size in whole], hint)
    else:
        inputs[2 if sizes is None else 3] = g.const(whole, hint)
    made = copy_without(node, "axes")
    made.input[:] = inputs
    g.nodes.append(made)
    return True


def _resize_sequence(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Resize of three axes in mode "linear" as one of four, to constant sizes or by scales that make whole ones."""
    shape, hint = g.shape(node.input[0]), node.name or "Resize"
    known = {a.name for a in node.attribute} <= _PLAIN
    how = attr_of(node, "coordinate_transformation_mode", b"half_pixel")
    if shape is None or len(shape) != 3 or not known or attr_of(node, "mode", b"nearest") != b"linear":
        return False
    scales, sizes = (_constant(g, name) for name in (*node.input, "", "")[2:4])
    if sizes is None and scales is not None and all(isinstance(d, int) for d in shape):
        # The same where they are whole: else coordinates follow the scale.
        sizes = np.asarray(shape, np.float64) * scales
    if how not in _BY_SCALE or sizes is None or not np.array_equal(sizes, np.floor(sizes)):
        return False
    image = g.add("Unsqueeze", [node.input[0], g.ints([2], hint)], hint)
    of_four = g.ints([int(size) for size in np.insert(sizes, 2, 1)], hint)
    attributes = {"mode": "linear", "coordinate_transformation_mode": how.decode()}
    made = g.add("Resize", [image, "", "", of_four], hint, **attributes)
    g.add("Squeeze", [made, g.ints([2], hint)], hint, out=node.output[0])
    return True


def _constant(g: GraphWriter, name: str) -> np.ndarray[Any, Any] | None:
    """The elements of a constant of three, also behind an Identity; None for what is none."""
    while name and (maker := g.maker(name)) is not None and op_of(maker) == "Identity":
        name = maker.input[0]
    found = g.array(name) if name else None
    return found if found is not None and found.size == 3 else None


def _repeat_rows(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """A Gather of row i // k along each axis, where the mode is "nearest", scales are whole numbers and a size is free."""
    shape = g.shape(node.input[0])
    scales = g.array(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    modes = tuple(
        attr_of(node, name, default)
        for name, default in (
            ("coordinate_transformation_mode", b"half_pixel"),
            ("nearest_mode", b"round_prefer_floor"),
        )
    )
    if shape is None or scales is None or attr_of(node, "mode", b"nearest") != b"nearest" or modes not in _REPEATS:
        return False
    axes = attr_of(node, "axes", list(range(len(shape))))
    times = dict(zip((axis % len(shape) for axis in axes), map(float, scales), strict=False))
    whole = scales.size == len(axes) and all(k >= 1 and k == int(k) for k in times.values())
    if not whole or all(k == 1 or isinstance(shape[axis], int) for axis, k in times.items()):
        return False
    hint, x = node.name or "Resize", node.input[0]
    zero, one = (g.const(np.array(n, np.int64), hint) for n in (0, 1))
    sizes = g.add("Shape", [x], hint)
    for axis, k in times.items():
        if k == 1:
            continue
        factor, at = (g.const(np.array(n, np.int64), hint) for n in (int(k), axis))
        length = g.add("Mul", [g.add("Gather", [sizes, at], hint, axis=0), factor], hint)
        rows = g.add("Div", [g.add("Range", [zero, length, one], hint), factor], hint)
        x = g.add("Gather", [x, rows], hint, axis=axis)
    g.add("Identity", [x], hint, out=node.output[0])
    return True
