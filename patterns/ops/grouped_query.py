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
    dim_of,
    ints,
    inverse_root,
    keep_where,
    op,
    output,
    per_row,
    present,
    reshape,
    window,
)
from onnx_fa.patterns.ops.filled import Lengths, fill_cache
from onnx_fa.patterns.ops.grown import grow_cache
from onnx_fa.patterns.ops.kept import read_kept
from onnx_fa.patterns.ops.standard import padded_mask
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
    if q.dtype is None or any(x is not None and x.dtype != q.dtype for x in (k, v)):
        raise NoMatch("Q, K and V have different element types")
    B = q_shape[0] if q_shape[0] is not None else f"{label}_b"
    S = q_shape[1] if q_shape[1] is not None else f"{label}_s"
    heads, D = _split_heads((q, k, v), q_shape[2], Hq, Hkv)
    seqlen: Expr = ints(S) if isinstance(S, int) else dim_of(q, 1)
    seen: Expr = reshape(
        op("Add", cast(lengths, ir.DataType.INT64), ints(1)), -1
    )  # (B,): keys in sight of the last query
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
    if attr_int(node, "do_rotary", 0) == 1:
        if cos is None or sin is None:
            raise NoMatch("rotary embedding without its tables")
        at = _query_positions(positions, seqlen, before, prompt)
        interleaved = attr_int(node, "rotary_interleaved", 0) == 1
        heads[:2] = [
            _rotate_heads(view, x, cos, sin, at, D, h, interleaved) for x, h in zip(heads[:2], (Hq, Hkv), strict=True)
        ]
    choices = [OperandChoice(x, HEADS_BEHIND, 1.0, h) for x, h in zip(heads, (Hq, Hkv, Hkv), strict=True)]
    operands = Operands(choices[0], choices[1], choices[2], (B,), Hq, Hkv, S, S, D, D)
    row: tuple[Expr, TensorArg] | None = None
    presents = (canonical(operands.k), canonical(operands.v))
    if before is not None and past_k is not None and past_v is not None:
        kept = [
            read_kept(view, node, which, past, q.dtype, scale, (Hkv, D))
            for which, past, scale in zip("kv", (past_k, past_v), inputs[12:14], strict=True)
        ]
        size = _cached_window(node, bias)
        if size == 0 and (grown := grow_cache(view, operands, (past_k, past_v), (kept[0], kept[1]))) is not None:
            made = [(out, x) for i, x in enumerate(grown.presents) if (out := output(node, i + 1))]
            terms = _bound_keys_at_end(node, causal)
            return _match_with_bias(view, node, label, grown.operands, terms, bias, sink, made, padded=True)
        lengths_of = Lengths(seqlen, before, seen, whole)
        filled = fill_cache(view, node, operands, (past_k, past_v), (kept[0], kept[1]), lengths_of, size, label)
        operands, presents, seen = filled.operands, filled.presents, filled.seen
        row = per_row(filled.before, B)
    elif (shape := view.shape(k)) is not None and k is not None and shape[1] != S:
        raise NoMatch("fewer or more keys than queries, without a cache")
    terms = _bound_keys(node, causal, row, per_row(seen, B))
    made = [(out, x) for i, x in enumerate(presents) if (out := output(node, i + 1))]
    return _match_with_bias(view, node, label, operands, terms, bias, sink, made, padded=row is not None)


def _refuse_options(node: ir.Node, inputs: Sequence[ir.Value | None]) -> None:
    """Raises NoMatch for what no spec expresses."""
    kinds = [typed_attr(node, name, ir.AttributeType.STRING) for name in ("k_quant_type", "v_quant_type")]
    quantised = any(kind is not None and kind.as_string() != "NONE" for kind in kinds)
    if (quantised or any(x is not None for x in inputs[12:14])) and inputs[3] is None:
        raise NoMatch("a quantised cache without past_key and past_value, whose type says how it is kept")
    if attr_int(node, "sliding_window_cache", 0) and inputs[3] is None:
        raise NoMatch("a cache that holds a window only, without past_key and past_value, whose length is its capacity")
    if output(node, 3) is not None:
        raise NoMatch("the scores are an output that somebody reads")


def _cached_window(node: ir.Node, bias: ir.Value | None) -> int:
    """The window whose rows are all that the cache holds; 0 for a cache that holds every row."""
    if not attr_int(node, "sliding_window_cache", 0):
        return 0
    window = attr_int(node, "local_window_size", -1)
    if window < 1:
        raise NoMatch("a cache that holds a window only, without a local_window_size")
    if bias is not None:
        raise NoMatch("attention_bias, whose columns are those of all keys, over a cache that holds a window only")
    return window


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
    is_wide = dtype == ir.DataType.FLOAT
    for x, weight in zip(heads, given, strict=True):
        wide = x if is_wide else cast(x, ir.DataType.FLOAT)
        squares = op("ReduceSum", op("Mul", wide, wide), ints(-1), keepdims=1)
        mean = op("Div", squares, Const(np.asarray(head_dim, np.float32)))
        scaled = op("Div", wide, op("Sqrt", op("Add", mean, epsilon)))
        if is_wide:
            normalised.append(op("Mul", scaled, weight))
        else:
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


def _bound_keys_at_end(node: ir.Node, causal: bool) -> list[Term]:
    """As `_bound_keys`, where the last query of every row stands on the last key."""
    size = attr_int(node, "local_window_size", -1)
    terms = [Term(Causal("end"))] if causal else []
    return [*terms, window(size - 1, None, "end", None, None)] if size > 0 else terms


def _match_with_bias(
    view: GraphView,
    node: ir.Node,
    label: str,
    operands: Operands,
    terms: list[Term],
    bias: ir.Value | None,
    sink: ir.Value | None,
    presents: list[tuple[ir.Value, Expr]],
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
    # With a window, a query behind the end of its row may have no key: the CPU provider's paths yield zero for it, or what they
    # would without a window, as it is padding.
    guard: Guard = "zero" if attr_int(node, "local_window_size", -1) > 0 else ""
    query = present(node, 0)
    dtype = DTYPES.get((query.dtype if query is not None else None) or ir.DataType.UNDEFINED)
    match = match_op(view, node, label, operands, steps, terms, presents, dtype, guard)
    if sink is not None:
        if DTYPES.get(sink.dtype or ir.DataType.UNDEFINED) is None:
            raise NoMatch("a head_sink that is not a float")
        assert isinstance(operands.Hq, int)
        arg = TensorArg((operands.Hq, 1, 1), DTYPES[sink.dtype or ir.DataType.UNDEFINED])
        return _add_sink(match, reshape(sink, operands.Hq, 1, 1), arg)
    if attr_int(node, "smooth_softmax", 0) == 1:
        return _add_sink(match, Const(np.zeros(1, np.float32)), TensorArg((1,), "f32"))
    return match


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
