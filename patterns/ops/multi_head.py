"""MultiHeadAttention and Attention of onnxruntime: heads side by side in the last dim, projections and a past."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.ops import attr_float, attr_int, typed_attr
from onnx_fa.graph.view import DTYPES, GraphView
from onnx_fa.match import AddTerm, Call, Const, Expr, Match, NoMatch, OperandChoice, Operands, Scale, Step, Term
from onnx_fa.patterns.ops.contrib_match import check_bias, match_op, read_padding_mask
from onnx_fa.patterns.ops.exprs import (
    HEADS_BEHIND,
    canonical,
    columns,
    concat,
    ints,
    inverse_root,
    keep_where,
    op,
    output,
    present,
    reshape,
    same,
    window,
)
from onnx_fa.patterns.ops.standard import Past, append
from onnx_fa.spec.expr import SQ, Apply, Int, K, Q, ScoreExpr
from onnx_fa.spec.terms import Causal, Dim


def match_multi_head(view: GraphView, node: ir.Node, label: str) -> Match:
    """MultiHeadAttention: Q, K and V come projected, perhaps with a past."""
    q, k, v, bias, padding, extra, past_k, past_v, past_length, indirection = (present(node, i) for i in range(10))
    if q is None:
        raise NoMatch("MultiHeadAttention without its query")
    if past_length is not None or indirection is not None:
        raise NoMatch("a cache buffer that is shared between steps, or beams")
    if k is None or v is None:
        operands = split_packed(view, node, q, k, bias, label)
    else:
        operands = split_heads(view, node, q, k, v, bias, label)
    scores = output(node, 3)
    given = Given(q.dtype, padding, extra, past_k, past_v, shows_scores=scores is not None)
    match = _match_with_past(view, node, label, operands, given)
    return match if scores is None else replace(match, scores=(scores, "masked"))


def split_heads(
    view: GraphView, node: ir.Node, q: ir.Value, k: ir.Value, v: ir.Value, bias: ir.Value | None, label: str
) -> Operands:
    """Q (B, S, H * D), K and V (B, L, H * D) or (B, H, L, D), with the bias of their projections."""
    heads = attr_int(node, "num_heads", 0)
    q_shape, k_shape, v_shape = (view.shape(x) for x in (q, k, v))
    if q_shape is None or k_shape is None or v_shape is None or heads < 1:
        raise NoMatch("the rank of Q, K or V is unknown")
    if len(q_shape) != 3 or len(k_shape) not in (3, 4) or len(k_shape) != len(v_shape):
        raise NoMatch("packed QKV or KV")
    b = same("the batch dims", q_shape[0], k_shape[0], v_shape[0]) or f"{label}_b"
    Sq = q_shape[1] if q_shape[1] is not None else f"{label}_sq"
    cross = len(k_shape) == 4
    length = 2 if cross else 1
    Skv = same("the lengths of K and V", k_shape[length], v_shape[length]) or f"{label}_skv"
    width, width_v = q_shape[2], v_shape[3] if cross else v_shape[2]
    if not isinstance(width, int) or not isinstance(width_v, int):
        raise NoMatch("the widths of Q and V are not static")
    d, Dv = width // heads, width_v if cross else width_v // heads
    hd, hv = heads * d, heads * Dv
    parts: list[Expr] = [q, k, v]
    if bias is not None:
        check_bias(view, bias, 2 * hd + hv)
        ends = (0, hd, 2 * hd, 2 * hd + hv)
        # K and V that have heads already have their bias, too.
        parts[: 1 if cross else 3] = [
            op("Add", x, columns(bias, ends[i], ends[i + 1])) for i, x in enumerate(parts[: 1 if cross else 3])
        ]
    straight = (0, 1, 2, 3)
    choices = [OperandChoice(reshape(parts[0], 0, 0, heads, d), HEADS_BEHIND, 1.0, heads)]
    for part, w in zip(parts[1:], (d, Dv), strict=True):
        if cross:
            choices.append(OperandChoice(part, straight, 1.0, heads))
        else:
            choices.append(OperandChoice(reshape(part, 0, 0, heads, w), HEADS_BEHIND, 1.0, heads))
    return Operands(choices[0], choices[1], choices[2], (b,), heads, heads, Sq, Skv, d, Dv)


def split_packed(
    view: GraphView, node: ir.Node, q: ir.Value, kv: ir.Value | None, bias: ir.Value | None, label: str
) -> Operands:
    """Q, K and V of each head side by side, (B, S, H, 3, D); or Q (B, S, H * D), and K and V of each head, (B, L, H, 2, D). Only
    the CUDA provider computes these."""
    heads, packed = attr_int(node, "num_heads", 0), q if kv is None else kv
    shape, q_shape = view.shape(packed), view.shape(q)
    if shape is None or q_shape is None:
        raise NoMatch("the rank of packed QKV or KV is unknown")
    count = 3 if kv is None else 2
    d = shape[-1]
    if len(shape) != 5 or shape[2:4] != (heads, count) or not isinstance(d, int) or heads < 1:
        raise NoMatch("packed QKV or KV that is not known to be one of each for every head")
    if bias is not None:
        raise NoMatch("a projection's bias with packed QKV or KV")
    b = same("the batch dims", shape[0], q_shape[0]) or f"{label}_b"
    Skv = shape[1] if shape[1] is not None else f"{label}_skv"
    parts: list[Expr] = [op("Gather", packed, Const(np.asarray(i)), axis=3) for i in range(count)]
    Sq = Skv
    if kv is not None:
        if len(q_shape) != 3 or q_shape[2] != heads * d:
            raise NoMatch("packed KV with other heads than Q's")
        Sq = q_shape[1] if q_shape[1] is not None else f"{label}_sq"
        parts.insert(0, reshape(q, 0, 0, heads, d))
    choices = [OperandChoice(x, HEADS_BEHIND, 1.0, heads) for x in parts]
    return Operands(choices[0], choices[1], choices[2], (b,), heads, heads, Sq, Skv, d, d)


def match_projected(view: GraphView, node: ir.Node, label: str) -> Match:
    """Attention: the projections of Q, K and V are part of the op."""
    x, weights, bias, mask, past, extra, past_length = (present(node, i) for i in range(7))
    if x is None or weights is None:
        raise NoMatch("Attention without its input or weights")
    if past_length is not None or attr_int(node, "past_present_share_buffer", 0):
        raise NoMatch("a cache buffer that is shared between steps")
    if attr_int(node, "do_rotary", 0):
        raise NoMatch("rotary embedding inside the op, which only the CUDA provider computes")
    heads = attr_int(node, "num_heads", 0)
    xs, ws = view.shape(x), view.shape(weights)
    if xs is None or ws is None or len(xs) != 3 or len(ws) != 2 or not isinstance(ws[1], int) or heads < 1:
        raise NoMatch("the shape of the input or of the weights is unknown")
    sizes = typed_attr(node, "qkv_hidden_sizes", ir.AttributeType.INTS)
    wide = tuple(sizes.as_ints()) if sizes is not None else (ws[1] // 3,) * 3
    if len(wide) != 3 or wide[0] != wide[1] or sum(wide) != ws[1] or any(w % heads for w in wide):
        raise NoMatch("hidden sizes that do not divide into heads")
    projected: Expr = op("MatMul", x, weights)
    if bias is not None:
        check_bias(view, bias, ws[1])
        projected = op("Add", projected, bias)
    given = Given(x.dtype, mask, extra, is_stacked=True)
    return match_projection(view, node, label, projected, (xs[0], xs[1]), wide, past, given)


def match_projection(
    view: GraphView,
    node: ir.Node,
    label: str,
    projected: Expr,
    rows: tuple[Dim | None, Dim | None],
    wide: tuple[int, ...],
    past: ir.Value | None,
    given: Given,
) -> Match:
    """The match of Q, K and V side by side in `projected` (B, S, the sum of `wide`); `rows` are B and S, None where unknown, and
    `past` is (2, B, H, P, D)."""
    heads = attr_int(node, "num_heads", 0)
    choices, start = [], 0
    for w in wide:
        part = columns(projected, start, start + w)
        choices.append(OperandChoice(reshape(part, 0, 0, heads, w // heads), HEADS_BEHIND, 1.0, heads))
        start += w
    b = rows[0] if rows[0] is not None else f"{label}_b"
    s = rows[1] if rows[1] is not None else f"{label}_s"
    operands = Operands(
        choices[0], choices[1], choices[2], (b,), heads, heads, s, s, wide[0] // heads, wide[2] // heads
    )
    if past is not None:
        dims = view.shape(past)
        if dims is None or len(dims) != 5:
            raise NoMatch("a past that does not have five dims")
        past_k, past_v = (op("Gather", past, Const(np.asarray(i)), axis=0) for i in (0, 1))
        given = replace(given, past_k=past_k, past_v=past_v, past_length=dims[3])
    return _match_with_past(view, node, label, operands, given)


@dataclass(frozen=True)
class Given:
    """What a node of MultiHeadAttention or Attention has beside Q, K and V."""

    dtype: ir.DataType | None
    """The element type of the query, and of the output."""
    padding: ir.Value | None
    """0 and 1, or lengths, in any of the forms that `read_padding_mask` knows."""
    bias: ir.Value | None
    """What is added to the scores."""
    past_k: Expr | None = None
    """(B, H, P, D); the past of the values likewise (B, H, P, Dv)."""
    past_v: Expr | None = None
    past_length: Dim | None = None
    """P, where `past_k` is cut out of another value, so that its own shape is not known."""
    is_stacked: bool = False
    """The present is one output, K above V."""
    shows_scores: bool = False
    """Somebody reads the masked scores."""


def _whole_bias(view: GraphView, bias: ir.Value, operands: Operands) -> Expr:
    """attention_bias as a tensor of one number per query and key, which it is by the op's definition, whatever its lengths are
    called: onnxruntime refuses any other."""
    dims, lengths = view.shape(bias), (operands.Sq, operands.Skv)
    if dims is None or len(dims) != 4 or dims[2:] == lengths:
        return bias
    if any(isinstance(have, int) for have in dims[2:]):
        return bias
    return Call("Identity", (bias,), shape=(*dims[:2], *lengths))


def _causal(given: Given, operands: Operands, past: Past, fresh: Dim, filter_value: float) -> Term:
    """`unidirectional`, as the CPU provider has it: no query sees keys ahead of it but the last, which sees all; these are more
    than its own where there are `fresh` keys, other than queries.

    The op has the least float in the place of such scores. That counts where the scores are read, and where padding puts others as
    low: then a row without any other key sees these.
    """
    lowest = float(np.finfo(np.float32).min)
    counts = given.shows_scores or (given.padding is not None and filter_value <= lowest)
    fill = lowest if counts else -math.inf
    if fresh == operands.Sq:
        if past.expr is None:
            return Term(Causal(past.fixed, fill))
        return window(None, 0, 0, past.expr, past.read, fill)
    before: ScoreExpr = past.expr or Int(past.fixed if isinstance(past.fixed, int) else 0)
    seen = Apply("LessOrEqual", K, Apply("Add", Q, before))
    keep = Apply("Or", seen, Apply("Equal", Q, Apply("Sub", SQ, Int(1))))
    return keep_where(keep, () if past.read is None else (past.read,), "causal", fill)


def _match_with_past(view: GraphView, node: ir.Node, label: str, operands: Operands, given: Given) -> Match:
    """The match of MultiHeadAttention or Attention, from operands with heads."""
    past_k, past_v, past_length = given.past_k, given.past_v, given.past_length
    past = Past()
    keys = operands.Skv
    if (past_k is None) != (past_v is None):
        raise NoMatch("past_key and past_value must come together")
    if past_k is not None and past_v is not None:
        if past_length is None and isinstance(past_k, ir.Value) and isinstance(past_v, ir.Value):
            shapes = [view.shape(x) for x in (past_k, past_v)]
            past_length = same("the lengths of the past", *(s[2] if s and len(s) == 4 else None for s in shapes))
        axis = 3 if given.is_stacked else 2
        made = [view.shape(x) for x in node.outputs[1:2] if x is not None]
        total = next((s[axis] for s in made if s is not None and len(s) > axis), None)
        operands, past = append(operands, past_k, past_v, past_length, total, label)
    k, v = canonical(operands.k), canonical(operands.v)
    presents: list[tuple[ir.Value, Expr]] = []
    if given.is_stacked:
        if out := output(node, 1):
            presents.append((out, concat(0, *(op("Unsqueeze", x, ints(0)) for x in (k, v)))))
    else:
        presents += [(out, x) for i, x in ((1, k), (2, v)) if (out := output(node, i))]
    steps: list[Step] = [Scale(attr_float(node, "scale", 0.0) or inverse_root(operands.D))]
    terms: list[Term] = []
    if given.bias is not None:
        steps.append(AddTerm(_whole_bias(view, given.bias, operands)))
    filter_value = attr_float(node, "mask_filter_value", -10000.0)
    if given.padding is not None:
        terms += read_padding_mask(view, given.padding, operands, filter_value)
    if attr_int(node, "unidirectional", 0) == 1:  # onnxruntime takes no other number for true
        terms.append(_causal(given, operands, past, keys, filter_value))
    dtype = DTYPES.get(given.dtype or ir.DataType.UNDEFINED)
    return match_op(view, node, label, operands, steps, terms, presents, dtype)
