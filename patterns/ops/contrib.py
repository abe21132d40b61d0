"""Attention ops of onnxruntime, domain com.microsoft, as its CPU provider computes them
(https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md).

A masked score gets `mask_filter_value` added, so that a row without any key is the softmax of its scores; keys ahead of a query
are out of sight altogether.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.ops import CONTRIB, attr_float, attr_int, op_of, typed_attr
from onnx_fa.graph.view import DTYPES, GraphView
from onnx_fa.match import (
    AddTerm,
    Cap,
    Const,
    Expr,
    Guard,
    Match,
    NoMatch,
    OperandChoice,
    Operands,
    Scale,
    Step,
    Term,
    build_match,
)
from onnx_fa.patterns.masks.layers import terms as mask_terms
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
from onnx_fa.patterns.ops.standard import Past, append, padded_mask
from onnx_fa.spec.attention import AddMask, BoolMask, Causal, Dim, Elementwise, TensorArg
from onnx_fa.spec.expr import SCORE, K, ScoreExpr

_SWALLOWS = -1e37
"""Adding this or less to an f32 score gives the fill itself."""

_REFUSED = {
    "DecoderAttention": "an op with weights and masks of its own that no exporter writes any more",
    "DecoderMaskedSelfAttention": "its cache has a layout of its own, which only the CUDA provider knows",
    "LongformerAttention": "local windows with global tokens, which only the CUDA provider computes",
    "PackedAttention": "rows of several sequences packed into one, which only the CUDA provider computes",
    "PackedMultiHeadAttention": "rows of several sequences packed into one, which only the CUDA provider computes",
    "PagedAttention": "a cache in pages, which only the CUDA provider computes",
    "QAttention": "it rounds the quantised product of Q and K, which a fused kernel does not",
    "QOrderedAttention": "it rounds the quantised product of Q and K, which a fused kernel does not",
    "QOrderedLongformerAttention": "it rounds the quantised product of Q and K, which a fused kernel does not",
    "SparseAttention": "a block-sparse mask in compressed form",
}


def contrib(view: GraphView, node: ir.Node, label: str) -> Match | None:
    """The site of an attention op of onnxruntime; None for other nodes. Raises NoMatch for what cannot be expressed."""
    if node.domain != CONTRIB:
        return None
    name = op_of(node).removeprefix(f"{CONTRIB}.")
    if name in _REFUSED:
        raise NoMatch(f"{name}: {_REFUSED[name]}")
    rule = _RULES.get(name)
    if rule is None:
        return None
    if view.opset < 12:
        raise NoMatch(f"{node.op_type} in a model of opset {view.opset}: 12 is needed to write it in standard ops")
    return rule(view, node, label)


def _multi_head(view: GraphView, node: ir.Node, label: str) -> Match:
    q, k, v, bias, padding, extra, past_k, past_v, past_length, indirection = (present(node, i) for i in range(10))
    if q is None or k is None or v is None:
        raise NoMatch("packed QKV")
    if past_length is not None or indirection is not None:
        raise NoMatch("a cache buffer that is shared between steps, or beams")
    if output(node, 3) is not None:
        raise NoMatch("the scores are an output that somebody reads")
    o = _separate(view, node, q, k, v, bias, label)
    return _finish(view, node, label, o, padding, extra, (past_k, past_v), q.dtype)


def _separate(
    view: GraphView, node: ir.Node, q: ir.Value, k: ir.Value, v: ir.Value, bias: ir.Value | None, label: str
) -> Operands:
    """Q (B, S, H * D), K and V (B, L, H * D) or (B, H, L, D), with the bias of their projections."""
    heads = attr_int(node, "num_heads", 0)
    qs, ks, vs = (view.shape(x) for x in (q, k, v))
    if qs is None or ks is None or vs is None or heads < 1:
        raise NoMatch("the rank of Q, K or V is unknown")
    if len(qs) != 3 or len(ks) not in (3, 4) or len(ks) != len(vs):
        raise NoMatch("packed QKV or KV")
    b = same("the batch dims", qs[0], ks[0], vs[0]) or f"{label}_b"
    sq = qs[1] if qs[1] is not None else f"{label}_sq"
    cross = len(ks) == 4
    if cross and bias is not None:
        raise NoMatch("a projection's bias with K and V that are projected already")
    length = 2 if cross else 1
    skv = same("the lengths of K and V", ks[length], vs[length]) or f"{label}_skv"
    width, width_v = qs[2], vs[3] if cross else vs[2]
    if not isinstance(width, int) or not isinstance(width_v, int):
        raise NoMatch("the widths of Q and V are not static")
    d, dv = width // heads, width_v if cross else width_v // heads
    hd, hv = heads * d, heads * dv
    parts: list[Expr] = [q, k, v]
    if bias is not None:
        _check_bias(view, bias, 2 * hd + hv)
        ends = (0, hd, 2 * hd, 2 * hd + hv)
        parts = [op("Add", x, columns(bias, ends[i], ends[i + 1])) for i, x in enumerate(parts)]
    straight = (0, 1, 2, 3)
    choices = [OperandChoice(reshape(parts[0], 0, 0, heads, d), HEADS_BEHIND, 1.0, heads)]
    for part, w in zip(parts[1:], (d, dv), strict=True):
        if cross:
            choices.append(OperandChoice(part, straight, 1.0, heads))
        else:
            choices.append(OperandChoice(reshape(part, 0, 0, heads, w), HEADS_BEHIND, 1.0, heads))
    return Operands(choices[0], choices[1], choices[2], (b,), heads, heads, sq, skv, d, dv)


def _check_bias(view: GraphView, bias: ir.Value, width: int) -> None:
    """Raises NoMatch for what onnxruntime would only refuse when it runs: it loads a model with a bias of any shape."""
    shape = view.shape(bias)
    if shape is None or len(shape) != 1 or (isinstance(shape[0], int) and shape[0] != width):
        raise NoMatch(f"the bias of the projections is not known to be one vector of {width} numbers")


def _projected(view: GraphView, node: ir.Node, label: str) -> Match:
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
        _check_bias(view, bias, ws[1])
        projected = op("Add", projected, bias)
    choices, start = [], 0
    for w in wide:
        part = columns(projected, start, start + w)
        choices.append(OperandChoice(reshape(part, 0, 0, heads, w // heads), HEADS_BEHIND, 1.0, heads))
        start += w
    b = xs[0] if xs[0] is not None else f"{label}_b"
    s = xs[1] if xs[1] is not None else f"{label}_s"
    o = Operands(choices[0], choices[1], choices[2], (b,), heads, heads, s, s, wide[0] // heads, wide[2] // heads)
    pasts: tuple[Expr | None, Expr | None] = (None, None)
    length: Dim | None = None
    if past is not None:
        dims = view.shape(past)
        if dims is None or len(dims) != 5:
            raise NoMatch("a past that does not have five dims")
        length = dims[3]
        pasts = (op("Gather", past, Const(np.asarray(0)), axis=0), op("Gather", past, Const(np.asarray(1)), axis=0))
    return _finish(view, node, label, o, mask, extra, pasts, x.dtype, past_length=length, stacked=True)


def _finish(
    view: GraphView,
    node: ir.Node,
    label: str,
    o: Operands,
    mask: ir.Value | None,
    extra: ir.Value | None,
    pasts: tuple[Expr | None, Expr | None],
    dtype: ir.DataType | None,
    *,
    past_length: Dim | None = None,
    stacked: bool = False,
) -> Match:
    """The match of MultiHeadAttention or Attention, from operands with heads. `stacked`: one present output, K above V."""
    name = DTYPES.get(dtype or ir.DataType.UNDEFINED)
    past_k, past_v = pasts
    past = Past()
    queries, keys = o.Sq, o.Skv
    if (past_k is None) != (past_v is None):
        raise NoMatch("past_key and past_value must come together")
    if past_k is not None and past_v is not None:
        if past_length is None and isinstance(past_k, ir.Value) and isinstance(past_v, ir.Value):
            shapes = [view.shape(x) for x in (past_k, past_v)]
            past_length = same("the lengths of the past", *(s[2] if s and len(s) == 4 else None for s in shapes))
        axis = 3 if stacked else 2
        made = [view.shape(x) for x in node.outputs[1:2] if x is not None]
        total = next((s[axis] for s in made if s is not None and len(s) > axis), None)
        o, past = append(o, past_k, past_v, past_length, total, label)
    k, v = canonical(o.k), canonical(o.v)
    presents: list[tuple[ir.Value, Expr]] = []
    if stacked:
        if out := output(node, 1):
            presents.append((out, concat(0, *(op("Unsqueeze", x, ints(0)) for x in (k, v)))))
    else:
        presents += [(out, x) for i, x in ((1, k), (2, v)) if (out := output(node, i))]
    steps: list[Step] = [Scale(attr_float(node, "scale", 0.0) or inverse_root(o.D))]
    terms: list[Term] = []
    if extra is not None:
        steps.append(AddTerm(extra))
    if mask is not None:
        terms.append(_padding(view, mask, o, attr_float(node, "mask_filter_value", -10000.0)))
    if attr_int(node, "unidirectional", 0):
        if queries != keys:
            raise NoMatch(
                "unidirectional with other keys than queries: the CPU provider shows all of them to the last query"
            )
        terms.append(Term(Causal(past.fixed)) if past.expr is None else window(None, 0, 0, past.expr, past.read))
    return _match(view, node, label, o, steps, terms, presents, name)


def _match(
    view: GraphView,
    node: ir.Node,
    label: str,
    o: Operands,
    steps: list[Step],
    terms: list[Term],
    presents: list[tuple[ir.Value, Expr]],
    dtype: str | None,
    guard: Guard = "",
) -> Match:
    assert isinstance(o.Hq, int)
    width = o.Hq * o.Dv
    return build_match(
        view,
        mask_terms,
        name=label,
        op=op_of(node),
        dtype=dtype,
        operands=replace(o, o_layout=HEADS_BEHIND, wrap=(lambda e: reshape(e, 0, 0, width),)),
        steps=steps,
        extra_terms=terms,
        guard=guard,
        output=node.outputs[0],
        anchor=node,
        presents=tuple(presents),
    )


def _padding(view: GraphView, mask: ir.Value, o: Operands, fill: float) -> Term:
    """What a mask of 0 and 1, or of lengths, adds to the scores."""
    if not math.isfinite(fill):
        raise NoMatch("an infinite mask_filter_value, with which a row without keys has no defined result")
    dims = view.shape(mask)
    if dims is None:
        raise NoMatch("the rank of the padding mask is unknown")
    (b,) = o.batch
    if len(dims) == 1:
        if isinstance(b, int) and b > 0 and dims[0] == 2 * b:  # where the keys end, then where they start
            two = [per_row(cast(columns(mask, i * b, i * b + b), ir.DataType.INT64), b) for i in (0, 1)]
            within = ("And", ("Less", K, ("tensor", 0)), ("LessOrEqual", ("tensor", 1), K))
            return _lengths(within, fill, tuple(v for v, _ in two), tuple(a for _, a in two))
        if dims[0] != b:
            raise NoMatch("a padding mask of rank 1 that is not one length per batch row")
        value, arg = per_row(cast(mask, ir.DataType.INT64), b)
        return _lengths(("Less", K, ("tensor", 0)), fill, (value,), (arg,))
    shape: tuple[Dim, ...]
    if len(dims) == 2 and dims[1] == o.Skv and dims[0] in (b, None):
        value, shape = reshape(mask, 0, 1, 1, -1), (b, 1, 1, o.Skv)
    elif len(dims) == 3 and dims[1:] == (o.Sq, o.Skv) and dims[0] in (b, None):
        value, shape = op("Unsqueeze", mask, ints(1)), (b, 1, o.Sq, o.Skv)
    else:
        raise NoMatch(f"a padding mask of shape {list(dims)} for scores of {[b, o.Hq, o.Sq, o.Skv]}")
    if mask.dtype != ir.DataType.INT32:
        raise NoMatch("a padding mask that is not int32")
    keep = op("Greater", value, Const(np.asarray(0, np.int32)))
    if fill <= _SWALLOWS:
        return Term(BoolMask(shape, fill), (keep,))
    added_value = op("Where", keep, Const(np.asarray(0, np.float32)), Const(np.asarray(fill, np.float32)))
    return Term(AddMask(shape), (added_value,))


def _lengths(keep: ScoreExpr, fill: float, values: tuple[Expr, ...], args: tuple[TensorArg, ...]) -> Term:
    added = ("Add", SCORE, ("Where", keep, ("f", 0.0), ("f", fill)))
    return Term(Elementwise(added, args, "lengths"), values)


def _grouped(view: GraphView, node: ir.Node, label: str) -> Match:
    """GroupQueryAttention: a cache that is filled row by row up to lengths that are known at run time."""
    inputs = [present(node, i) for i in range(16)]
    q, k, v, past_k, past_v, lengths, total, cos, sin, positions, extra, sink = inputs[:12]
    if any(x is not None for x in inputs[12:14]) or any(
        _text(node, n, "NONE") != "NONE" for n in ("k_quant_type", "v_quant_type")
    ):
        raise NoMatch("a quantised cache, whose rounding is part of the op")
    if any(x is not None for x in inputs[14:16]):
        raise NoMatch("a norm of Q and K inside the op, which the CPU provider does not compute")
    if attr_int(node, "sliding_window_cache", 0):
        raise NoMatch("a cache that holds a window only")
    if output(node, 3) is not None:
        raise NoMatch("the scores are an output that somebody reads")
    if q is None or lengths is None or total is None:
        raise NoMatch("GroupQueryAttention without its query or lengths")
    dtype = DTYPES.get(q.dtype or ir.DataType.UNDEFINED)
    hq, hkv = attr_int(node, "num_heads", 0), attr_int(node, "kv_num_heads", 0)
    qs = view.shape(q)
    if qs is None or len(qs) != 3 or not isinstance(qs[2], int) or hq < 1 or hkv < 1:
        raise NoMatch("the width of the query is not static")
    if any(x is not None and x.dtype != q.dtype for x in (k, v, past_k, past_v)):
        raise NoMatch("Q, K, V and the cache have different element types")
    b = qs[0] if qs[0] is not None else f"{label}_b"
    s = qs[1] if qs[1] is not None else f"{label}_s"
    parts: list[Expr]
    if k is None or v is None:
        d = qs[2] // (hq + 2 * hkv)
        ends = (0, hq * d, (hq + hkv) * d, (hq + 2 * hkv) * d)
        parts = [columns(q, ends[i], ends[i + 1]) for i in range(3)]
    else:
        d = qs[2] // hq
        parts = [q, k, v]
    heads: list[Expr] = [reshape(x, 0, 0, h, d) for x, h in zip(parts, (hq, hkv, hkv), strict=True)]
    sq: Expr = ints(s) if isinstance(s, int) else dim_of(q, 1)
    ends_at = op("Add", cast(lengths, ir.DataType.INT64), ints(1))  # (B,): keys in sight of the last query
    ends_at = reshape(ends_at, -1)
    whole = reshape(cast(total, ir.DataType.INT64), 1)
    causal = attr_int(node, "causal", 1)
    if not causal and past_k is not None:
        raise NoMatch("a cache without a causal mask")
    before: Expr | None = None  # (B,): keys before the first query
    prompt: Expr | None = None
    if past_k is not None and past_v is not None:
        prompt = op("Equal", whole, sq)
        before = op("Where", prompt, ints(0), op("Sub", ends_at, sq))
    elif (past_k is None) != (past_v is None):
        raise NoMatch("past_key and past_value must come together")
    if attr_int(node, "do_rotary", 0):
        if cos is None or sin is None:
            raise NoMatch("rotary embedding without its tables")
        at = _positions(positions, sq, before, prompt)
        interleaved = bool(attr_int(node, "rotary_interleaved", 0))
        heads[:2] = [
            _rotate(view, x, cos, sin, at, d, h, interleaved) for x, h in zip(heads[:2], (hq, hkv), strict=True)
        ]
    choices = [OperandChoice(x, HEADS_BEHIND, 1.0, h) for x, h in zip(heads, (hq, hkv, hkv), strict=True)]
    o = Operands(choices[0], choices[1], choices[2], (b,), hq, hkv, s, s, d, d)
    terms: list[Term] = []
    row: tuple[Expr, TensorArg] | None = None
    if before is not None and past_k is not None and past_v is not None:
        o = _cached(view, node, o, (past_k, past_v), before, whole, sq, label)
        row = per_row(before, b)
    elif (shape := view.shape(k)) is not None and k is not None and shape[1] != s:
        raise NoMatch("fewer or more keys than queries, without a cache")
    first = ("tensor", 0) if row is not None else None
    size = attr_int(node, "local_window_size", -1)
    if causal:
        terms.append(window(None, 0, 0, first, row) if row is not None else Term(Causal(0)))
    terms.append(keep_where(("Less", K, ("tensor", 0)), (per_row(ends_at, b),), "lengths"))
    if size > 0:
        terms.append(window(size - 1, None, 0, first, row))
    steps: list[Step] = [Scale(attr_float(node, "scale", 0.0) or inverse_root(d))]
    cap = attr_float(node, "softcap", 0.0)
    if cap > 0:
        steps.append(Cap(cap))
    if extra is not None:
        dims = view.shape(extra)
        if row is not None and (dims is None or dims[-1] != o.Skv):
            terms.append(padded_mask(view, extra, o, 0.0))  # behind the keys in sight
        else:
            steps.append(AddTerm(extra))
    presents = [(out, canonical(x)) for i, x in ((1, o.k), (2, o.v)) if (out := output(node, i))]
    # With a window, a query behind the end of its row may have no key: the CPU provider's paths yield zero for it, or what they
    # would without a window, as it is padding.
    match = _match(view, node, label, o, steps, terms, presents, dtype, "zero" if size > 0 else "")
    if sink is not None:
        if DTYPES.get(sink.dtype or ir.DataType.UNDEFINED) is None:
            raise NoMatch("a head_sink that is not a float")
        arg = TensorArg((hq, 1, 1), DTYPES[sink.dtype or ir.DataType.UNDEFINED])
        return _with_sink(match, reshape(sink, hq, 1, 1), arg)
    if attr_int(node, "smooth_softmax", 0) == 1:
        return _with_sink(match, Const(np.zeros(1, np.float32)), TensorArg((1,), "f32"))
    return match


def _text(node: ir.Node, name: str, default: str) -> str:
    attr = typed_attr(node, name, ir.AttributeType.STRING)
    return default if attr is None else attr.as_string()


def _with_sink(match: Match, sink: Expr, arg: TensorArg) -> Match:
    return replace(match, spec=replace(match.spec, sink=arg), operands=(*match.operands, sink))


def _positions(given: ir.Value | None, sq: Expr, before: Expr | None, prompt: Expr | None) -> Expr:
    """The positions (B, S) or (1, S) of the queries. Of those that are given, a prompt (a call without a past) uses the first
    one only and counts on from it."""
    steps = reshape(op("Range", Const(np.asarray(0)), reshape(sq), Const(np.asarray(1))), 1, -1)
    if given is None:
        return steps if before is None else op("Add", steps, reshape(before, -1, 1))
    counted = op("Add", steps, columns(reshape(given, 1, -1), 0, 1))
    return counted if prompt is None else op("Where", prompt, counted, given)


def _rotate(
    view: GraphView, x: Expr, cos: ir.Value, sin: ir.Value, positions: Expr, d: int, heads: int, interleaved: bool
) -> Expr:
    """Rotary embedding of (B, S, H, D): the first 2 * half of every head are rotated, pair by pair."""
    table = view.shape(cos)
    if table is None or not isinstance(table[-1], int):
        raise NoMatch("the width of the rotary tables is not static")
    half = table[-1]
    c, s = (op("Unsqueeze", op("Gather", t, positions, axis=0), ints(2)) for t in (cos, sin))
    turning = columns(x, 0, 2 * half)
    if interleaved:
        pairs = reshape(turning, 0, 0, heads, half, 2)
        a, b = (op("Gather", pairs, Const(np.asarray(i)), axis=4) for i in (0, 1))
    else:
        a, b = columns(x, 0, half), columns(x, half, 2 * half)
    real = op("Sub", op("Mul", a, c), op("Mul", b, s))
    imaginary = op("Add", op("Mul", a, s), op("Mul", b, c))
    if interleaved:
        both = concat(4, *(op("Unsqueeze", y, ints(4)) for y in (real, imaginary)))
        turned: list[Expr] = [reshape(both, 0, 0, heads, 2 * half)]
    else:
        turned = [real, imaginary]
    rest = [columns(x, 2 * half, d)] if 2 * half < d else []
    parts = [*turned, *rest]
    return parts[0] if len(parts) == 1 else concat(3, *parts)


def _cached(
    view: GraphView,
    node: ir.Node,
    o: Operands,
    pasts: tuple[ir.Value, ir.Value],
    before: Expr,
    whole: Expr,
    sq: Expr,
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
    kind = np.float16 if pasts[0].dtype == ir.DataType.FLOAT16 else np.float32
    if pasts[0].dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
        raise NoMatch("a cache that is neither f32 nor f16")
    zero = Const(np.asarray(0, kind))
    at = reshape(op("Range", Const(np.asarray(0)), reshape(size), Const(np.asarray(1))), 1, 1, -1, 1)
    start = reshape(before, -1, 1, 1, 1)
    end = op("Add", start, sq)
    choices = []
    for past, new in zip(pasts, (o.k, o.v), strict=True):
        fresh = canonical(new)
        if o.Sq != 1:
            last = op("Sub", sq, ints(1))
            index = op("Min", op("Max", op("Sub", at, start), ints(0)), last)
            shape = concat(0, dim_of(fresh, 0), ints(int(o.Hkv)), size, ints(o.D))
            fresh = op("GatherElements", fresh, op("Expand", index, shape), axis=2)
        if missing is None:
            old: Expr = past
        else:
            old = op("Pad", past, concat(0, ints(0, 0, 0, 0, 0, 0), missing, ints(0)), zero)
        value = op("Where", op("Less", at, start), old, op("Where", op("Less", at, end), fresh, zero))
        choices.append(OperandChoice(value, (0, 1, 2, 3), 1.0, new.heads))
    return replace(o, k=choices[0], v=choices[1], Skv=total if total is not None else f"{label}_total")


def _decoder(view: GraphView, node: ir.Node, label: str) -> Match:
    """DecoderMaskedMultiHeadAttention: one query, over a cache buffer (or over K and V of another sequence)."""
    q, k, v, mask, extra, past_k, past_v, length, beams, indirection, bias = (present(node, i) for i in range(11))
    if q is None or k is None or v is None:
        raise NoMatch("packed QKV")
    if indirection is not None or beams is not None:
        raise NoMatch("beams")
    if output(node, 3) is not None or attr_int(node, "output_qk", 0):
        raise NoMatch("the scores are an output that somebody reads")
    o = _separate(view, node, q, k, v, bias, label)
    if o.Sq != 1:
        raise NoMatch("more than one query, or an unknown number")
    dtype = DTYPES.get(q.dtype or ir.DataType.UNDEFINED)
    fill = attr_float(node, "mask_filter_value", -10000.0)
    steps: list[Step] = [Scale(attr_float(node, "scale", 0.0) or inverse_root(o.D))]
    terms: list[Term] = []
    presents: list[tuple[ir.Value, Expr]] = []
    if past_k is None and past_v is None:
        if mask is not None:
            terms.append(_padding(view, mask, o, fill))
        if extra is not None:
            raise NoMatch("attention_bias in cross-attention, which onnxruntime refuses")
        return _match(view, node, label, o, steps, terms, presents, dtype)
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
        for c, past in zip((o.k, o.v), (past_k, past_v), strict=True)
    ]
    o = replace(o, k=choices[0], v=choices[1], Skv=shape[2])
    presents = [(out, canonical(x)) for i, x in ((1, o.k), (2, o.v)) if (out := output(node, i))]
    if extra is not None:
        terms.append(padded_mask(view, extra, o, 0.0))
    terms.append(window(None, 0, 0, ("tensor", 0), (at_row, TensorArg((1,), "i64"))))
    return _match(view, node, label, o, steps, terms, presents, dtype)


_RULES: dict[str, Callable[[GraphView, ir.Node, str], Match]] = {
    "MultiHeadAttention": _multi_head,
    "Attention": _projected,
    "GroupQueryAttention": _grouped,
    "DecoderMaskedMultiHeadAttention": _decoder,
}
