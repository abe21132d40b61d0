"""A Gather of nothing, as of the words so far before a decoder's first step, which ends IREE's compiler by a segmentation fault."""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

from onnx_fa.iree.legalise.writer import GraphWriter, attr_of


def empty_gather(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Indices with a dim of 0 give a tensor without elements, of which only the other dims are to be computed."""
    data, indices = g.shape(node.input[0]), g.shape(node.input[1])
    kind = g.kind(node.input[0])
    if data is None or indices is None or 0 not in indices or not kind:
        return False
    hint, axis = node.name or "Gather", attr_of(node, "axis", 0) % len(data)
    sizes = g.add("Shape", [node.input[0]], hint)
    before, behind = (
        g.add("Slice", [sizes, g.ints([start], hint), g.ints([end], hint)], hint)
        for start, end in ((0, axis), (axis + 1, len(data)))
    )
    dims = g.add("Concat", [before, g.add("Shape", [node.input[1]], hint), behind], hint, axis=0)
    nothing = helper.make_tensor("value", kind, [1], [False if kind == TensorProto.BOOL else 0])
    g.add("ConstantOfShape", [dims], hint, out=node.output[0], value=nothing)
    return True
