"""How scores and probabilities are rounded: by a pair of QuantizeLinear and DequantizeLinear. Around a score, the pair is a score
function; on probabilities, it is a step of the match."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from onnx_fa.graph.ops import CONTRIB, DEQUANTIZE, QUANTIZE, op_of
from onnx_fa.graph.view import GraphView
from onnx_fa.match import After, Anchor, Match, NoMatch
from onnx_fa.spec.terms import GRIDS, Rounding

_GRIDS: dict[ir.DataType | None, str] = {
    ir.DataType.UINT8: "u8",
    ir.DataType.INT8: "i8",
    ir.DataType.UINT16: "u16",
    ir.DataType.INT16: "i16",
}


def read_rounding(view: GraphView, node: ir.Node) -> tuple[ir.Value, Rounding] | None:
    """(x, the grid) where `node` is DequantizeLinear(QuantizeLinear(x)), both in float32 with one constant scale and zero point."""
    source = node.inputs[0]
    quantize = source.producer() if source is not None else None
    if op_of(node) not in DEQUANTIZE or quantize is None or op_of(quantize) not in QUANTIZE:
        return None
    x, kind = quantize.inputs[0], _GRIDS.get(quantize.outputs[0].dtype)
    if x is None or kind is None:
        return None
    if x.dtype != ir.DataType.FLOAT or node.outputs[0].dtype != ir.DataType.FLOAT:
        return None
    (scale, zero), other = (_scale_and_zero(view, n) for n in (quantize, node))
    if scale is None or zero is None or (scale, zero) != other or not 0 < scale < math.inf:
        return None
    return x, Rounding(scale, int(zero), kind)


def read_steps(view: GraphView, node: ir.Node) -> tuple[ir.Value, Rounding] | None:
    """(x, the grid) where `node` is DequantizeLinear(Cast(x)) in float32 with one constant scale and zero point, and x is
    Min(Max(Round(..), low), high), with the ends of the integers that the Cast makes."""
    cast = view.producer(node.inputs[0], "Cast")
    kind = _GRIDS.get(cast.outputs[0].dtype) if cast is not None else None
    if cast is None or kind is None or node.outputs[0].dtype != ir.DataType.FLOAT:
        return None
    x = inner = cast.inputs[0]
    if x is None or x.dtype != ir.DataType.FLOAT:
        return None
    for op, end in zip(("Min", "Max"), reversed(GRIDS[kind]), strict=True):
        clipped = view.producer(inner, op)
        if clipped is None or len(clipped.inputs) != 2 or view.scalar(clipped.inputs[1]) != end:
            return None
        inner = clipped.inputs[0]
    scale, zero = _scale_and_zero(view, node)
    if view.producer(inner, "Round") is None or scale is None or zero is None or not 0 < scale < math.inf:
        return None
    return x, Rounding(scale, int(zero), kind)


def _scale_and_zero(view: GraphView, node: ir.Node) -> tuple[float | None, float | None]:
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    return view.scalar(node.inputs[1]), 0.0 if zero is None else view.scalar(zero)


def read_rounding_of_probabilities(
    view: GraphView, anchor: Anchor, value: ir.Value, users: Sequence[ir.Node]
) -> After | None:
    """QuantizeLinear and DequantizeLinear on the probabilities, with one constant scale. Raises NoMatch for other roundings, and
    for exponentials that are not yet divided by their sum."""
    quantizers = [u for u in users if op_of(u) in (*QUANTIZE, "DynamicQuantizeLinear")]
    if not quantizers:
        return None
    node = quantizers[0]
    readers = view.users(node.outputs[0])
    found = read_rounding(view, readers[0]) if len(users) == 1 and len(readers) == 1 else None
    if found is None or node.outputs[0].is_graph_output():
        why = "and not by a pair of QuantizeLinear and DequantizeLinear in float32 with one constant scale, for one reader"
        raise NoMatch(f"{node.op_type} rounds the probabilities, {why}", node)
    if anchor.row_sum is not None or (anchor.unscaled and value is anchor.prob):
        raise NoMatch("exponentials are rounded before they are divided by their sum", node)
    return After(readers[0].outputs[0], rounding=found[1])


def refuse_integer_softmax(view: GraphView, node: ir.Node, label: str) -> Match | None:
    """None for all nodes but onnxruntime's QLinearSoftmax. Raises NoMatch for one that was not taken apart before matching
    (match/prepare/integer_ops.py), which says why where it is in the main graph."""
    if op_of(node) == f"{CONTRIB}.QLinearSoftmax":
        raise NoMatch(
            "QLinearSoftmax inside of a subgraph (If, Loop, Scan) or of a model before opset 10 is not taken apart"
        )
    return None
