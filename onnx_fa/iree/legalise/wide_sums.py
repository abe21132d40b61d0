"""Sums of f16 and bf16 in f32: IREE adds up numbers in their own type, onnxruntime in floats.

In f16 a mean of 768 numbers is off by 6e-3 so, and one of 768 squares of 10 is infinite.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import onnx_ir as ir
from onnx import TensorProto

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.writer import NARROW, GraphWriter

_SUMS = frozenset(
    "ReduceSum ReduceMean ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSum ReduceLogSumExp ReduceProd CumSum AveragePool "
    "GlobalAveragePool GlobalLpPool LpPool LpNormalization LogSoftmax Mean Resize".split()
)
"""Resize weighs a few numbers: of f16 IREE compiles it in f32 alone."""


def widen_sums(model: onnx.ModelProto, held: Mapping[str, ir.TensorProtocol] | None = None) -> None:
    """Puts Casts around every sum of f16 or bf16, in place; types of values are taken from `value_info`. To be done when everything
    else has its form: norms and products are told by theirs."""
    whole = GraphWriter(model, held)
    for g in (*whole.bodies(), whole):
        found = [_is_narrow_sum(g, node) for node in g.graph.node]
        if not any(found):
            continue
        for node, is_one in zip(g.graph.node, found, strict=True):
            if is_one:
                _widen(g, node)
            else:
                g.nodes.append(node)
        g.replace_nodes(g.nodes)


def _is_narrow_sum(g: GraphWriter, node: onnx.NodeProto) -> bool:
    op = op_of(node)
    # An Einsum of one tensor is a sum; one of two is a product, whose sums are f32.
    return (op in _SUMS or (op == "Einsum" and len(node.input) == 1)) and g.kind(node.input[0]) in NARROW


def _widen(g: GraphWriter, node: onnx.NodeProto) -> None:
    hint, kind = node.name or node.op_type, g.kind(node.input[0])
    wide = onnx.NodeProto()
    wide.CopyFrom(node)
    for i, name in enumerate(node.input):
        if name and g.kind(name) == kind:
            wide.input[i] = _typed(g, g.cast(name, kind, TensorProto.FLOAT, hint), name)
    total = g.fresh(hint)
    wide.output[0] = total
    g.nodes.append(wide)
    g.cast(_typed(g, total, node.output[0]), TensorProto.FLOAT, kind, hint, out=node.output[0])


def _typed(g: GraphWriter, value: str, like: str) -> str:
    """A value of f32, whose shape is another's."""
    shape = g.shape(like)
    return value if shape is None else g.typed(value, TensorProto.FLOAT, shape)
