"""MaxUnpool as numbers that are put among zeros: IREE refuses it."""

from __future__ import annotations

import math

import onnx
from onnx import TensorProto, helper

from onnx_fa.errors import ModelError
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of


def max_unpool(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """A ScatterND of all numbers in a row. Raises ModelError for images of a size that only a run knows, and for an `output_shape`
    other than what follows from the windows: onnx takes places for those of an image without it, onnxruntime with it."""
    shape, hint, kind = g.shape(node.input[0]), node.name or "MaxUnpool", g.kind(node.input[0])
    known = [d for d in (shape or [])[1:] if isinstance(d, int)]
    if shape is None or len(shape) < 3 or len(known) < len(shape) - 1 or not kind:
        raise ModelError(f"node {node.name!r}: MaxUnpool of sizes that are not static (--dim)")
    kernel = attr_of(node, "kernel_shape", [])
    axes = len(kernel)
    strides, pads = attr_of(node, "strides", [1] * axes), attr_of(node, "pads", [0] * 2 * axes)
    made = [(size - 1) * strides[i] + kernel[i] - pads[i] - pads[axes + i] for i, size in enumerate(known[1:])]
    if len(node.input) > 2 and node.input[2]:
        asked = g.array(node.input[2])
        if asked is None or [int(n) for n in asked.ravel()[2:]] != made:
            raise ModelError(
                f"node {node.name!r}: MaxUnpool with an output_shape other than {made}, by which onnx and onnxruntime put the "
                "numbers at different places"
            )
    whole = known[0] * math.prod(made)
    batch = g.add("Shape", [node.input[0]], hint, start=0, end=1)
    count = g.add("Mul", [g.typed(batch, TensorProto.INT64, [1]), g.ints([whole], hint)], hint)
    zeros = g.add("ConstantOfShape", [count], hint, value=helper.make_tensor("value", kind, [1], [0]))
    numbers, places = g.reshape(node.input[0], [-1], hint), g.reshape(node.input[1], [-1, 1], hint)
    row = g.add("ScatterND", [zeros, places, numbers], hint)
    g.reshape(row, [-1, known[0], *made], hint, out=node.output[0])
    return True
