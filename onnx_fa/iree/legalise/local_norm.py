"""LRN, by which AlexNet and GoogLeNet divide what channels near each other have. Of a free batch IREE makes other sums."""

from __future__ import annotations

import onnx
from onnx import TensorProto

from onnx_fa.iree.legalise.conv_shapes import SLICE_OPSET
from onnx_fa.iree.legalise.writer import NARROW, GraphWriter, attr_of

_END = (1 << 31) - 1


def local_norm(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """x / (bias + alpha / size * the sum of squares of `size` channels)^beta, each sum as so many shifted images."""
    (x,), hint, kind, shape = node.input, node.name or "LRN", g.kind(node.input[0]), g.shape(node.input[0])
    if not kind or shape is None or g.opset < SLICE_OPSET:
        return False
    size, stash = attr_of(node, "size", 1), TensorProto.FLOAT if kind in NARROW else kind
    wide = g.cast(x, kind, stash, hint)
    square, behind = g.add("Mul", [wide, wide], hint), [0] * (len(shape) - 2)
    before = (size - 1) // 2
    pads = g.ints([0, before, *behind, 0, size - 1 - before, *behind], hint)
    padded = g.add("Pad", [square, pads], hint) if size > 1 else square
    total = ""
    for shift in range(size):
        bounds = [g.ints([n], hint) for n in (shift, shift - size + 1 or _END, 1)]
        part = g.add("Slice", [padded, *bounds], hint)
        total = g.add("Add", [total, part], hint) if total else part
    factor, bias, power = (
        g.scalar(number, stash, hint)
        for number in (attr_of(node, "alpha", 1e-4) / size, attr_of(node, "bias", 1.0), attr_of(node, "beta", 0.75))
    )
    base = g.add("Add", [g.add("Mul", [total, factor], hint), bias], hint)
    made = g.add("Div", [wide, g.add("Pow", [base, power], hint)], hint)
    g.cast(made, stash, kind, hint, out=node.output[0])
    return True
