"""Dropout that drops nothing although it says that it trains, which IREE's compiler does not take."""

from __future__ import annotations

import numpy as np
import onnx

from onnx_fa.errors import ModelError
from onnx_fa.iree.legalise.writer import GraphWriter


def dropout(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Its input, and a mask that is true everywhere. False where it does not train, which IREE takes. Raises ModelError where it
    trains by a ratio above 0, whose numbers are random, or where only a run knows."""
    x, ratio, trains = (*node.input, "", "")[:3]
    if not trains:
        return False
    mode, part = g.array(trains), g.array(ratio) if ratio else np.array(0.5)
    if mode is None or (mode.all() and (part is None or part.any())):
        raise ModelError(
            f"node {node.name!r}: Dropout in training mode, whose results are random; export the model for inference"
        )
    hint = node.name or "Dropout"
    if len(node.output) > 1 and node.output[1]:
        same = g.add("Equal", [x, x], hint)  # false of NaN
        g.add("Or", [same, g.add("Not", [same], hint)], hint, out=node.output[1])
    if node.output[0]:
        g.add("Identity", [x], hint, out=node.output[0])
    return True
