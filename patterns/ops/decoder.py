"""DecoderMaskedMultiHeadAttention of onnxruntime: one query, over a cache buffer or over another sequence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.ops import attr_float, attr_int
from onnx_fa.graph.view import DTYPES, GraphView
from onnx_fa.match import Const, Expr, Match, NoMatch, OperandChoice, Scale, Step, Term
from onnx_fa.patterns.ops.contrib_match import match_op, read_padding_mask
from onnx_fa.patterns.ops.exprs import canonical, cast, dim_of, ints, inverse_root, op, output, present, reshape, window
from onnx_fa.patterns.ops.multi_head import split_heads
from onnx_fa.patterns.ops.standard import padded_mask
from onnx_fa.spec.expr import Tensor
from onnx_fa.spec.terms import TensorArg


def match_decoder(view: GraphView, node: ir.Node, label: str) -> Match:
    """DecoderMaskedMultiHeadAttention: one query, over a cache buffer (or over K and V of another sequence)."""
    q, k, v, mask, extra, past_k, past_v, length, beams, indirection, bias = (present(node, i) for i in range(11))
    if q is None or k is None or v is None:
        raise NoMatch("packed QKV")
    if indirection is not None or beams is not None:
        raise NoMatch("beams")
    if output(node, 3) is not None or attr_int(node, "output_qk", 0):
        raise NoMatch("the scores are an output that somebody reads")
    operands = split_heads(view, node, q, k, v, bias, label)
    if operands.Sq != 1:
        raise NoMatch("more than one query, or an unknown number")
    dtype = DTYPES.get(q.dtype or ir.DataType.UNDEFINED)
    fill = attr_float(node, "mask_filter_value", -10000.0)
    steps: list[Step] = [Scale(attr_float(node, "scale", 0.0) or inverse_root(operands.D))]
    terms: list[Term] = []
    presents: list[tuple[ir.Value, Expr]] = []
    if past_k is None and past_v is None:
        if mask is not None:
            terms += read_padding_mask(view, mask, operands, fill)
        if extra is not None:
            raise NoMatch("attention_bias in cross-attention, which onnxruntime refuses")
        return match_op(view, node, label, operands, steps, terms, presents, dtype)
    if past_k is None or past_v is None or length is None or not attr_int(node, "past_present_share_buffer", 0):
        raise NoMatch("a past without a buffer that is shared between steps")
    shape = view.shape(past_k)
    if shape is None or len(shape) != 4 or shape[2] is None:
        raise NoMatch("the length of the cache buffer is unknown")
    if mask is not None:
        raise NoMatch("a padding mask over a cache buffer, which is longer than the mask")
    at_row = reshape(cast(length, ir.DataType.INT64), 1)
    size: Expr = ints(shape[2]) if isinstance(shape[2], int) else dim_of(past_k, 2)
    at = reshape(op("Range", Const(np.asarray(0)), reshape(size), Const(np.asarray(1))), 1, 1, -1, 1)
    choices = [
        OperandChoice(op("Where", op("Equal", at, at_row), canonical(c), past), (0, 1, 2, 3), 1.0, c.heads)
        for c, past in zip((operands.k, operands.v), (past_k, past_v), strict=True)
    ]
    operands = replace(operands, k=choices[0], v=choices[1], Skv=shape[2])
    presents = [(out, canonical(x)) for i, x in ((1, operands.k), (2, operands.v)) if (out := output(node, i))]
    if extra is not None:
        terms.append(padded_mask(view, extra, operands, 0.0))
    terms.append(window(None, 0, 0, Tensor(0), (at_row, TensorArg((1,), "i64"))))
    return match_op(view, node, label, operands, steps, terms, presents, dtype)
