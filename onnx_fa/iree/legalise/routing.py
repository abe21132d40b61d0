"""Which experts see a token, and with which weight: the router of onnxruntime's MoE and QMoE (ContribOperators.md of
onnxruntime)."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from onnx_fa.errors import ModelError
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of


def write_shares(g: GraphWriter, node: onnx.NodeProto, logits: str, weights: str, count: int, hint: str) -> str:
    """(T, `count`) floats: the share of each expert in the result of each token, 0 for all but the best k. `weights` (T, `count`)
    are shares that are given, "" where they are the softmax of the `logits`. Raises ModelError for the sparse mixer.

    An expert is chosen where fewer than k are better. Of equal ones the last is, as in the CPU provider. There the shares of QMoE
    are the softmax over the chosen ones alone, whatever `normalize_routing_weights` says, unless they are given.
    """
    if attr_of(node, "use_sparse_mixer", 0) == 1:
        raise ModelError(f"node {node.name!r}: {node.op_type} with use_sparse_mixer is not supported")
    k = attr_of(node, "k", 1)
    wide = g.cast(logits, g.kind(logits), TensorProto.FLOAT, hint)
    chance = g.add("Softmax", [wide], hint, axis=-1)

    def axis(number: int) -> str:
        return g.const(np.array([number], np.int64), hint)

    one, other = g.add("Unsqueeze", [chance, axis(2)], hint), g.add("Unsqueeze", [chance, axis(1)], hint)
    later = g.const(np.triu(np.ones((count, count), np.bool_), 1), hint)
    equal = g.add("And", [g.add("Equal", [one, other], hint), later], hint)
    better = g.add("Or", [g.add("Less", [one, other], hint), equal], hint)
    number = g.cast(better, TensorProto.BOOL, TensorProto.FLOAT, hint)
    rank = g.add("ReduceSum", [number, axis(2)], hint, keepdims=0)
    share = g.cast(weights, g.kind(weights), TensorProto.FLOAT, hint) if weights else chance
    zero = g.const(np.array(0, np.float32), hint)
    chosen = g.add("Less", [rank, g.const(np.array(k, np.float32), hint)], hint)
    chosen = g.add("And", [chosen, g.add("Greater", [share, zero], hint)], hint)
    share = g.add("Where", [chosen, share, zero], hint)
    alone = op_of(node).endswith("QMoE") and not weights
    if alone or attr_of(node, "normalize_routing_weights", 0) == 1:
        share = g.add("Div", [share, g.add("ReduceSum", [share, axis(1)], hint, keepdims=1)], hint)
    return share
