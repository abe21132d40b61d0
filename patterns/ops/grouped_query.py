"""GroupQueryAttention of onnxruntime: a cache that is filled row by row, rotary embedding, sinks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.ops import attr_float, attr_int, typed_attr
from onnx_fa.graph.rotary import Ops, rotate_heads
from onnx_fa.graph.view import DTYPES, GraphView
from onnx_fa.match import AddTerm, Cap, Const, Expr, Guard, Match, NoMatch, OperandChoice, Operands, Scale, Step, Term
from onnx_fa.patterns.ops.contrib_match import match_op
from onnx_fa.patterns.ops.exprs import (
    HEADS_BEHIND,
    canonical,
    cast,
    columns,
    concat,
    dim_of,
    ints,
    inverse_root,
    keep_where,
    op,
    output,
    per_row,
    present,
    reshape,
    same,
    window,
)
from onnx_fa.patterns.ops.standard import padded_mask
from onnx_fa.spec.dtypes import NUMPY
from onnx_fa.spec.expr import Apply, K, Tensor
from onnx_fa.spec.terms import Causal, TensorArg

_OPS: Ops[Expr] = Ops(op, ints, lambda number: Const(np.asarray(number)))


def match_grouped_query(view: GraphView, node: ir.Node, label: str) -> Match:
    """GroupQueryAttention: a cache that is filled row by row up to lengths that are known at run time."""
    inputs = [present(node, i) for i in range(16)]
    q, k, v, past_k, past_v, lengths, total, cos, sin, positions, bias, sink = inputs[:12]
    _refuse_options(node, inputs)
    if q is None or lengths is None or total is None:
        raise NoMatch("GroupQueryAttention without its query or lengths")
    Hq, Hkv = attr_int(node, "num_heads", 0), attr_int(node, "kv_num_heads", 0)
    q_shape = view.shape(q)
    if q_shape is None or len(q_shape) != 3 or not isinstance(q_shape[2], int) or Hq < 1 or Hkv < 1:
        raise NoMatch("the width of the query is not static")
    if any(x is not None and x.dtype != q.dtype for x in (k, v, past_k, past_v)):
        raise NoMatch("Q, K, V and the cache have different element types")
    B = q_shape[0] if q_shape[0] is not None else f"{label}_b"
    S = q_shape[1] if q_shape[1] is not None else f"{label}_s"
    heads, D = _split_heads((q, k, v), q_shape[2], Hq, Hkv)
    seqlen: Expr = ints(S) if isinstance(S, int) else dim_of(q, 1)
    seen = reshape(op("Add", cast(lengths, ir.DataType.INT64), ints(1)), -1)  # (B,): keys in sight of the last query
    whole = reshape(cast(total, ir.DataType.INT64), 1)
    causal = bool(attr_int(node, "causal", 1))
    if not causal and past_k is not None:
        raise NoMatch("a cache without a causal mask")
    before: Expr | None = None  # (B,): keys before the first query
    prompt: Expr | None = None
    if past_k is not None and past_v is not None:
        prompt = op("Equal", whole, seqlen)
        before = op("Where", prompt, ints(0), op("Sub", seen, seqlen))
    elif (past_k is None) != (past_v is None):
        raise NoMatch("past_key and past_value must come together")
    heads[:2] = _normalised(view, node, heads[:2], inputs[14:16], D, q.dtype)
    if attr_int(node, "do_rotary", 0):
        if cos is None or sin is None:
            raise NoMatch("rotary embedding without its tables")
        at = _query_positions(positions, seqlen, before, prompt)
        interleaved = bool(attr_int(node, "rotary_interleaved", 0))
        heads[:2] = [
            _rotate_heads(view, x, cos, sin, at, D, h, interleaved) for x, h in zip(heads[:2], (Hq, Hkv), strict=True)
        ]
    choices = [OperandChoice(x, HEADS_BEHIND, 1.0, h) for x, h in zip(heads, (Hq, Hkv, Hkv), strict=True)]
    operands = Operands(choices[0], choices[1], choices[2], (B,), Hq, Hkv, S, S, D, D)
    row: tuple[Expr, TensorArg] | None = None
    if before is not None and past_k is not None and past_v is not None:
        operands = _fill_cache(view, node, operands, (past_k, past_v), before, whole, seqlen, label)
        row = per_row(before, B)
    elif (shape := view.shape(k)) is not None and k is not None and shape[1] != S:
        raise NoMatch("fewer or more keys than queries, without a cache")
    terms = _bound_keys(node, causal, row, per_row(seen, B))
    return _match_with_bias(view, node, label, operands, terms, bias, sink, q.dtype, padded=row is not None)


def _refuse_options(node: ir.Node, inputs: Sequence[ir.Value | None]) -> None:
    """Raises NoMatch for what no spec expresses, or the CPU provider does not compute."""
    kinds = [_text_attr(node, name, "NONE") for name in ("k_quant_type", "v_quant_type")]
    if any(x is not None for x in inputs[12:14]) or any(kind != "NONE" for kind in kinds):
        raise NoMatch("a quantised cache, whose rounding is part of the op")
    if attr_int(node, "sliding_window_cache", 0):
        raise NoMatch("a cache that holds a window only")
    if output(node, 3) is not None:
        raise NoMatch("the scores are an output that somebody reads")


def _split_heads(
    values: tuple[ir.Value, ir.Value | None, ir.Value | None], width: int, Hq: int, Hkv: int
) -> tuple[list[Expr], int]:
    """Q, K and V as (B, S, H, D), and D; where K or V is missing, all three lie side by side in Q, which is `width` wide."""
    q, k, v = values
    parts: list[Expr]
    if k is None or v is None:
        D = width // (Hq + 2 * Hkv)
        ends = (0, Hq * D, (Hq + Hkv) * D, (Hq + 2 * Hkv) * D)
        parts = [columns(q, ends[i], ends[i + 1]) for i in range(3)]
    else:
        D = width // Hq
        parts = [q, k, v]
    return [reshape(x, 0, 0, h, D) for x, h in zip(parts, (Hq, Hkv, Hkv), strict=True)], D


def _normalised(
    view: GraphView,
    node: ir.Node,
    heads: Sequence[Expr],
    weights: Sequence[ir.Value | None],
    head_dim: int,
    dtype: ir.DataType | None,
) -> list[Expr]:
    """Q and K with every head divided by the root of its mean square, in f32, and multiplied by weights, where the op has them.
    That is what its description says: the CPU provider refuses it."""
    given = [w for w in weights if w is not None]
    if not given:
        return list(heads)
    if len(given) != 2:
        raise NoMatch("q_norm_weight and k_norm_weight must come together")
    if any(view.shape(w) != (head_dim,) for w in given) or dtype is None:
        raise NoMatch(
            f"the weights of the norms of Q and K are not known to be {head_dim} numbers, one for each of a head"
        )
    if view.opset < 13:
        raise NoMatch(
            f"norms of Q and K in a model of opset {view.opset}: their sums are written for opset 13 and later"
        )
    epsilon = Const(np.asarray(attr_float(node, "qk_norm_epsilon", 1e-6), np.float32))
    normalised: list[Expr] = []
    for x, weight in zip(heads, given, strict=True):
        wide = cast(x, ir.DataType.FLOAT)
        squares = op("ReduceSum", op("Mul", wide, wide), ints(-1), keepdims=1)
        mean = op("Div", squares, Const(np.asarray(head_dim, np.float32)))
        scaled = op("Div", wide, op("Sqrt", op("Add", mean, epsilon)))
        normalised.append(cast(op("Mul", scaled, cast(weight, ir.DataType.FLOAT)), dtype))
    return normalised


def _bound_keys(
    node: ir.Node, causal: bool, row: tuple[Expr, TensorArg] | None, seen: tuple[Expr, TensorArg]
) -> list[Term]:
    """The keys that a query sees: up to its own position behind the `row`'s past, below the row's end, and within a window."""
    terms: list[Term] = []
    first = Tensor(0) if row is not None else None
    if causal:
        terms.append(window(None, 0, 0, first, row) if row is not None else Term(Causal(0)))
    terms.append(keep_where(Apply("Less", K, Tensor(0)), (seen,), "lengths"))
    size = attr_int(node, "local_window_size", -1)
    if size > 0:
        terms.append(window(size - 1, None, 0, first, row))
    return terms


def _match_with_bias(
    view: GraphView,
    node: ir.Node,
    label: str,
    operands: Operands,
    terms: list[Term],
    bias: ir.Value | None,
    sink: ir.Value | None,
    dtype: ir.DataType | None,
    *,
    padded: bool,
) -> Match:
    """The match, with scale, softcap, what is added to the scores and the sink. `padded`: the bias may end before the keys do."""
    steps: list[Step] = [Scale(attr_float(node, "scale", 0.0) or inverse_root(operands.D))]
    cap = attr_float(node, "softcap", 0.0)
    if cap > 0:
        steps.append(Cap(cap))
    if bias is not None:
        dims = view.shape(bias)
        if padded and (dims is None or dims[-1] != operands.Skv):
            terms.append(padded_mask(view, bias, operands, 0.0))  # behind the keys in sight
        else:
            steps.append(AddTerm(bias))
    presents = [
        (out, canonical(choice)) for i, choice in ((1, operands.k), (2, operands.v)) if (out := output(node, i))
    ]
    # With a window, a query behind the end of its row may have no key: the CPU provider's paths yield zero for it, or what they
    # would without a window, as it is padding.
    guard: Guard = "zero" if attr_int(node, "local_window_size", -1) > 0 else ""
    match = match_op(
        view, node, label, operands, steps, terms, presents, DTYPES.get(dtype or ir.DataType.UNDEFINED), guard
    )
    if sink is not None:
        if DTYPES.get(sink.dtype or ir.DataType.UNDEFINED) is None:
            raise NoMatch("a head_sink that is not a float")
        assert isinstance(operands.Hq, int)
        arg = TensorArg((operands.Hq, 1, 1), DTYPES[sink.dtype or ir.DataType.UNDEFINED])
        return _add_sink(match, reshape(sink, operands.Hq, 1, 1), arg)
    if attr_int(node, "smooth_softmax", 0) == 1:
        return _add_sink(match, Const(np.zeros(1, np.float32)), TensorArg((1,), "f32"))
    return match


def _text_attr(node: ir.Node, name: str, default: str) -> str:
    attr = typed_attr(node, name, ir.AttributeType.STRING)
    return default if attr is None else attr.as_string()


def _add_sink(match: Match, sink: Expr, arg: TensorArg) -> Match:
    return replace(match, spec=replace(match.spec, sink=arg), operands=(*match.operands, sink))


def _query_positions(given: ir.Value | None, Sq: Expr, before: Expr | None, prompt: Expr | None) -> Expr:
    """The positions (B, S) or (1, S) of the queries. Of those that are given, a prompt (a call without a past) uses the first
    one only and counts on from it."""
    steps = reshape(op("Range", Const(np.asarray(0)), reshape(Sq), Const(np.asarray(1))), 1, -1)
    if given is None:
        return steps if before is None else op("Add", steps, reshape(before, -1, 1))
    counted = op("Add", steps, columns(reshape(given, 1, -1), 0, 1))
    return counted if prompt is None else op("Where", prompt, counted, given)


def _rotate_heads(
    view: GraphView,
    x: Expr,
    cos: ir.Value,
    sin: ir.Value,
    positions: Expr,
    head_dim: int,
    heads: int,
    interleaved: bool,
) -> Expr:
    """Rotary embedding of (B, S, H, D) by tables (positions, half)."""
    table = view.shape(cos)
    if table is None or not isinstance(table[-1], int):
        raise NoMatch("the width of the rotary tables is not static")
    tables = [op("Unsqueeze", op("Gather", t, positions, axis=0), ints(2)) for t in (cos, sin)]
    return rotate_heads(_OPS, x, *tables, half=table[-1], head_dim=head_dim, third=heads, interleaved=interleaved)


def _fill_cache(
    view: GraphView,
    node: ir.Node,
    operands: Operands,
    pasts: tuple[ir.Value, ir.Value],
    before: Expr,
    whole: Expr,
    Sq: Expr,
    label: str,
) -> Operands:
    """K and V as the present outputs have them: the past up to `before`, the new rows, then zeros."""
    shapes = [view.shape(x) for x in pasts]
    if any(s is None or len(s) != 4 for s in shapes):
        raise NoMatch("past_key and past_value must have four dims")
    had = same("the lengths of past_key and past_value", *(s[2] for s in shapes if s is not None))
    made = [view.shape(x) for x in node.outputs[1:3] if x is not None]
    total = same("the lengths of the present outputs", *(s[2] for s in made if s is not None and len(s) == 4))
    if isinstance(total, int) and isinstance(had, int) and total == had:
        size: Expr = ints(total)
        missing: Expr | None = None
    else:
        held = dim_of(pasts[0], 2)
        size = op("Max", held, whole)
        missing = op("Sub", size, held)
    kind = DTYPES.get(pasts[0].dtype or ir.DataType.UNDEFINED)
    if kind not in ("f32", "f16", "bf16"):
        raise NoMatch("a cache that is neither f32, f16 nor bf16")
    zero = Const(np.asarray(0, NUMPY[kind]))
    at = reshape(op("Range", Const(np.asarray(0)), reshape(size), Const(np.asarray(1))), 1, 1, -1, 1)
    start = reshape(before, -1, 1, 1, 1)
    end = op("Add", start, Sq)
    choices = []
    for past, new in zip(pasts, (operands.k, operands.v), strict=True):
        fresh = canonical(new)
        if operands.Sq != 1:
            last = op("Sub", Sq, ints(1))
            index = op("Min", op("Max", op("Sub", at, start), ints(0)), last)
            shape = concat(0, dim_of(fresh, 0), ints(int(operands.Hkv)), size, ints(operands.D))
            fresh = op("GatherElements", fresh, op("Expand", index, shape), axis=2)
        if missing is None:
            old: Expr = past
        else:
            old = op("Pad", past, concat(0, ints(0, 0, 0, 0, 0, 0), missing, ints(0)), zero)
        value = op("Where", op("Less", at, start), old, op("Where", op("Less", at, end), fresh, zero))
        choices.append(OperandChoice(value, (0, 1, 2, 3), 1.0, new.heads))
    return replace(operands, k=choices[0], v=choices[1], Skv=total if total is not None else f"{label}_total")
