"""PastRows, the rows of a growing cache before the new ones, where something else than an attention reads them."""

from __future__ import annotations

import numpy as np
import onnx

from onnx_fa.graph.growing import back_in_place
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of


def past_rows(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """The first T - S rows, brought back to their axis. cache: (T, ...), tokens: (B, S, ...)."""
    cache, tokens = node.input
    shape, hint = g.shape(cache), node.name or node.op_type
    if shape is None:
        return False

    def size(x: str, axis: int) -> str:
        return g.add("Gather", [g.add("Shape", [x], hint), g.const(np.array([axis], np.int64), hint)], hint, axis=0)

    zero = g.const(np.array([0], np.int64), hint)
    old = g.add("Sub", [size(cache, 0), size(tokens, 1)], hint)
    rows = g.add("Slice", [cache, zero, old, zero], hint)
    axis = attr_of(node, "axis", 2)
    g.add("Transpose", [rows], hint, out=node.output[0], perm=list(back_in_place(len(shape), axis)))
    return True
