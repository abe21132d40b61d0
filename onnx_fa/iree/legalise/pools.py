"""Pools that IREE does not take as they are: LpPool with dilations or pads by `auto_pad`, and places of maxima."""

from __future__ import annotations

import math

import onnx
from onnx import TensorProto

from onnx_fa.errors import ModelError
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.conv_shapes import pads_of
from onnx_fa.iree.legalise.max_places import places_of_maxima
from onnx_fa.iree.legalise.windows import check_same, window
from onnx_fa.iree.legalise.writer import NARROW, GraphWriter, attr_of


def pool(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """A MaxPool, AveragePool or LpPool. Raises ModelError."""
    if op_of(node) == "LpPool" and _lp_pool(g, node):
        return True
    return places_of_maxima(g, node) or window(g, node)


def _lp_pool(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """The root of a mean of powers, times as many as a window has, whose pads are zeros in front. False where IREE takes the pool,
    and with a ceil_mode. Raises ModelError for an `auto_pad` of a size that only a run knows, or with dilations."""
    kernel = attr_of(node, "kernel_shape", [])
    axes, auto = len(kernel), attr_of(node, "auto_pad", b"NOTSET")
    strides, dilations = (attr_of(node, name, [1] * axes) for name in ("strides", "dilations"))
    if attr_of(node, "ceil_mode", 0) or (all(d == 1 for d in dilations) and not auto.startswith(b"SAME")):
        return False
    check_same(node)
    sizes = (g.shape(node.input[0]) or [None] * (axes + 2))[2:]
    if auto.startswith(b"SAME") and any(not isinstance(d, int) and s > 1 for d, s in zip(sizes, strides, strict=True)):
        raise ModelError(
            f"node {node.name!r}: LpPool with an auto_pad of a free size, whose pads only a run knows; give it (--dim)"
        )
    # Of a stride of 1 the pads are the same for every size.
    pads = pads_of(node, [d if isinstance(d, int) else 1 for d in sizes], kernel, strides, dilations)
    x, p, hint, kind = node.input[0], attr_of(node, "p", 2), node.name or "LpPool", g.kind(node.input[0])
    wide = TensorProto.FLOAT if kind in NARROW else kind
    x = g.cast(x, kind, wide, hint)
    power = g.add("Mul", [x, x], hint) if p == 2 else g.add("Abs", [x], hint)
    if p > 2:
        power = g.add("Pow", [power, g.scalar(p, wide, hint)], hint)
    if any(pads):
        power = g.add("Pad", [power, g.ints([0, 0, *pads[:axes], 0, 0, *pads[axes:]], hint)], hint)
    mean = g.add("AveragePool", [power], hint, kernel_shape=kernel, strides=strides, dilations=dilations)
    total = g.add("Mul", [mean, g.scalar(math.prod(kernel), wide, hint)], hint)
    root = g.add("Sqrt", [total], hint) if p == 2 else total
    if p > 2:
        root = g.add("Pow", [total, g.scalar(1 / p, wide, hint)], hint)
    g.cast(root, wide, kind, hint, out=node.output[0])
    return True
