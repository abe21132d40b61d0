"""MatMul of a vector by matrices of batches, which IREE refuses: of a matrix with one row or column."""

from __future__ import annotations

import onnx

from onnx_fa.iree.legalise.writer import GraphWriter

_BATCHES = 3
"""So many axes a tensor of batches has or more."""


def vector_product(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """A vector (K) by (..., K, N), or (..., M, K) by a vector (K)."""
    left, right = (g.shape(x) for x in node.input[:2])
    if left is None or right is None:
        return False
    hint = node.name or "MatMul"
    if len(left) == 1 and len(right) >= _BATCHES:
        row = g.add("Unsqueeze", [node.input[0], g.ints([0], hint)], hint)
        made, gone = g.add("MatMul", [row, node.input[1]], hint), -2
    elif len(right) == 1 and len(left) >= _BATCHES:
        column = g.add("Unsqueeze", [node.input[1], g.ints([1], hint)], hint)
        made, gone = g.add("MatMul", [node.input[0], column], hint), -1
    else:
        return False
    g.add("Squeeze", [made, g.ints([gone], hint)], hint, out=node.output[0])
    return True
