"""What the rules for ops of onnxruntime share: the biases of projections, padding masks, and the match of an op."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import GraphView
from onnx_fa.match import Const, Expr, Found, Guard, Match, NoMatch, Operands, Step, Term, build_match
from onnx_fa.patterns.masks.layers import read_terms
from onnx_fa.patterns.ops.exprs import HEADS_BEHIND, cast, columns, ints, op, per_row, reshape
from onnx_fa.spec.expr import SCORE, Apply, Float, K, ScoreExpr, Tensor
from onnx_fa.spec.terms import AddMask, BoolMask, Dim, Elementwise, TensorArg

_MAX_SWALLOWING_FILL = -1e37
"""A fill of this or lower swallows an f32 score that it is added to."""
_MAX_FILL = 3.5e38
"""More is infinite in f32."""


def check_bias(view: GraphView, bias: ir.Value, width: int) -> None:
    """Raises NoMatch for what onnxruntime would only refuse when it runs: it loads a model with a bias of any shape."""
    shape = view.shape(bias)
    if shape is None or len(shape) != 1 or (isinstance(shape[0], int) and shape[0] != width):
        raise NoMatch(f"the bias of the projections is not known to be one vector of {width} numbers")


def match_op(
    view: GraphView,
    node: ir.Node,
    label: str,
    operands: Operands,
    steps: list[Step],
    terms: list[Term],
    presents: list[tuple[ir.Value, Expr]],
    dtype: str | None,
    guard: Guard = "",
) -> Match:
    assert isinstance(operands.Hq, int)
    width = operands.Hq * operands.Dv
    return build_match(
        view,
        read_terms,
        Found(
            name=label,
            op=op_of(node),
            dtype=dtype,
            operands=replace(operands, o_layout=HEADS_BEHIND, wrap=(lambda e: reshape(e, 0, 0, width),)),
            steps=steps,
            extra_terms=terms,
            guard=guard,
            output=node.outputs[0],
            anchor=node,
            presents=tuple(presents),
        ),
    )


def read_padding_mask(view: GraphView, mask: ir.Value, operands: Operands, fill: float) -> list[Term]:
    """What a mask of 0 and 1, or of lengths, adds to the scores. A mask of one column stands for none, as onnxruntime has it: a
    single key gets all the weight whatever is added to its score."""
    dims = view.shape(mask)
    if dims is not None and len(dims) == 2 and dims[1] == 1 and dims[0] in (1, *operands.batch):
        return []
    return [_added_by_mask(view, mask, operands, fill)]


def _added_by_mask(view: GraphView, mask: ir.Value, operands: Operands, fill: float) -> Term:
    if math.isnan(fill) or fill > _MAX_FILL:
        raise NoMatch(f"a mask_filter_value of {fill:g}")
    dims = view.shape(mask)
    if dims is None:
        raise NoMatch("the rank of the padding mask is unknown")
    (b,) = operands.batch
    if len(dims) == 1:
        if isinstance(b, int) and b > 0 and dims[0] == 2 * b:  # where the keys end, then where they start
            two = [per_row(cast(columns(mask, i * b, i * b + b), ir.DataType.INT64), b) for i in (0, 1)]
            within = Apply("And", Apply("Less", K, Tensor(0)), Apply("LessOrEqual", Tensor(1), K))
            return _mask_beyond_lengths(within, fill, tuple(v for v, _ in two), tuple(a for _, a in two))
        if dims[0] != b:
            raise NoMatch("a padding mask of rank 1 that is not one length per batch row")
        value, arg = per_row(cast(mask, ir.DataType.INT64), b)
        return _mask_beyond_lengths(Apply("Less", K, Tensor(0)), fill, (value,), (arg,))
    shape: tuple[Dim, ...]
    if len(dims) == 2 and dims[1] == operands.Skv and dims[0] in (b, None):
        value, shape = reshape(mask, 0, 1, 1, -1), (b, 1, 1, operands.Skv)
    elif len(dims) == 3 and dims[1:] == (operands.Sq, operands.Skv) and dims[0] in (b, None):
        value, shape = op("Unsqueeze", mask, ints(1)), (b, 1, operands.Sq, operands.Skv)
    else:
        raise NoMatch(
            f"a padding mask of shape {list(dims)} for scores of {[b, operands.Hq, operands.Sq, operands.Skv]}"
        )
    if mask.dtype != ir.DataType.INT32:
        raise NoMatch("a padding mask that is not int32")
    keep = op("Greater", value, Const(np.asarray(0, np.int32)))
    if fill <= _MAX_SWALLOWING_FILL:
        return Term(BoolMask(shape, fill), (keep,))
    added_value = op("Where", keep, Const(np.asarray(0, np.float32)), Const(np.asarray(fill, np.float32)))
    return Term(AddMask(shape), (added_value,))


def _mask_beyond_lengths(keep: ScoreExpr, fill: float, values: tuple[Expr, ...], args: tuple[TensorArg, ...]) -> Term:
    added = Apply("Add", SCORE, Apply("Where", keep, Float(0.0), Float(fill)))
    return Term(Elementwise(added, args, "lengths"), values)
