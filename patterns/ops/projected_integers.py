"""QAttention of onnxruntime: Attention whose input and weights are integers. The CPU provider computes what is behind the
projections in f32, as Attention does (https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md)."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.ops import attr_int
from onnx_fa.graph.view import GraphView
from onnx_fa.match import Const, Expr, Match, NoMatch
from onnx_fa.patterns.ops.contrib_match import check_bias
from onnx_fa.patterns.ops.exprs import cast, op, present
from onnx_fa.patterns.ops.multi_head import Given, match_projection

_INTEGERS = {ir.DataType.INT8: np.int8, ir.DataType.UINT8: np.uint8}


def match_projected_integers(view: GraphView, node: ir.Node, label: str) -> Match:
    """QAttention: (x - zero point) (weights - zero point) * both scales + bias, split into Q, K and V."""
    x, weights, bias, x_scale, scale, mask, x_zero, zero, past = (present(node, i) for i in range(9))
    if x is None or weights is None or bias is None or x_scale is None or scale is None:
        raise NoMatch("QAttention without its input, weights, bias or scales")
    if attr_int(node, "past_present_share_buffer", 0):
        raise NoMatch("a cache buffer that is shared between steps")
    if attr_int(node, "do_rotary", 0):
        raise NoMatch("rotary embedding inside the op, which only the CUDA provider computes")
    if any(value.dtype != ir.DataType.FLOAT for value in (bias, x_scale, scale)):
        raise NoMatch("a bias or scales of integers that are not f32")
    heads, xs, ws = attr_int(node, "num_heads", 0), view.shape(x), view.shape(weights)
    if xs is None or ws is None or len(xs) != 3 or len(ws) != 2 or not isinstance(ws[1], int) or heads < 1:
        raise NoMatch("the shape of the input or of the weights is unknown")
    if ws[1] % (3 * heads):
        raise NoMatch("hidden sizes that do not divide into heads")
    check_bias(view, bias, ws[1])
    start: Expr | None = x_zero
    if start is None:  # with no zero point at all IREE does not tell bytes with a sign from such without
        kind = _INTEGERS.get(x.dtype or ir.DataType.UNDEFINED)
        if kind is None:
            raise NoMatch("an input that is not known to be int8 or uint8")
        start = Const(np.asarray(0, kind))
    product = op("MatMulInteger", x, weights, start, *(() if zero is None else (zero,)))
    scaled = op("Mul", cast(product, ir.DataType.FLOAT), op("Mul", x_scale, scale))
    given = Given(ir.DataType.FLOAT, mask, None, is_stacked=True)
    wide = (ws[1] // 3,) * 3
    return match_projection(view, node, label, op("Add", scaled, bias), (xs[0], xs[1]), wide, past, given)
