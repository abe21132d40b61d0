"""TopK whose results may have any order, as experts are chosen by: IREE compiles the one that sorts."""

from __future__ import annotations

import onnx

from onnx_fa.iree.legalise.writer import GraphWriter, attr_of


def top_k(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Sorted is one of the orders that `sorted=0` leaves open."""
    if attr_of(node, "sorted", 1):
        return False
    made = onnx.NodeProto()
    made.CopyFrom(node)
    del made.attribute[:]
    made.attribute.extend(a for a in node.attribute if a.name != "sorted")
    g.nodes.append(made)
    return True
