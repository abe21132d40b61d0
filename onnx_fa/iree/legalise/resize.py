"""Resize that repeats rows of free sizes, as upsampling in a UNet or a VAE does: IREE's compiler fails where a convolution reads it
(docs/developer/iree-bugs.md)."""

from __future__ import annotations

import numpy as np
import onnx

from onnx_fa.iree.legalise.writer import GraphWriter, attr_of

_REPEATS = {(b"asymmetric", b"floor"), (b"half_pixel", b"round_prefer_floor")}
"""(coordinate_transformation_mode, nearest_mode) by which row i of k times as many is row i // k."""


def resize(g: GraphWriter, node: onnx.NodeProto) -> bool:
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
