"""The `decomposed` form: standard ops in the order of IREE's fused op, with the division last."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnx_fa.errors import UnsupportedError
from onnx_fa.forms.groups import is_grouped, join_heads, split_spec, split_tensor
from onnx_fa.forms.integers import dequantized, rounded
from onnx_fa.forms.score import Integer, Positions, cast, compute_type, modify, weigh, weighted
from onnx_fa.graph.builder import OnnxBuilder
from onnx_fa.match import ScoreStage
from onnx_fa.spec.attention import AttentionSpec, Stat
from onnx_fa.spec.dtypes import NUMPY
from onnx_fa.spec.terms import AddMask, Elementwise, Weighting, inverse

FORM_KEY = "onnx_fa.form"
"""Metadata of a site's Exp, or of the division next to it: the site is in this form already, and writing it again would only
rename its nodes."""
PART = "part"
"""What that says of a part of a site's keys, which is in the decomposed form."""


def emit(
    b: OnnxBuilder, spec: AttentionSpec, operands: Sequence[ir.Value], *, kind: Integer = np.int64
) -> list[ir.Value]:
    """K and V as numbers, scale, score modifications, masks, row max, subtract, exp, row sum, P@V, division. Returns the site's
    output, then its row statistics. `kind` is the type of positions. Raises UnsupportedError for statistics of a spec with a sink.

    The division stands before P@V where probabilities are rounded or divided anew, and where a run may have no keys: onnxruntime's
    reductions of an empty axis are empty, and such a sum divides no product with V.
    """
    return _emit(b, spec, operands, kind, "decomposed", columns=False)


def emit_part(b: OnnxBuilder, spec: AttentionSpec, operands: Sequence[ir.Value]) -> list[ir.Value]:
    """As `emit`, for one part of a site's keys (forms/split.py): row statistics are left as reductions with a unit dim make them,
    in the heads of the inner computation, and the nodes say that they are a part."""
    return _emit(b, spec, operands, np.int64, PART, columns=True)


def _emit(
    b: OnnxBuilder, spec: AttentionSpec, operands: Sequence[ir.Value], kind: Integer, metadata: str, *, columns: bool
) -> list[ir.Value]:
    if spec.stats and spec.sink is not None:
        raise UnsupportedError("row statistics with a sink")
    inner, q, kt, v, tensors, sink = canonical_operands(b, spec, operands)
    score = b.op("MatMul", q, kt)
    score = modify(b, inner, score, tensors, lambda: positions(b, spec, q, kt, kind))
    if spec.weighting is not None:
        before = len(b.nodes)
        p, divisor = weights_of(b, spec, spec.weighting, score, lambda: positions(b, spec, q, kt, kind))
        for node in b.nodes[before:]:
            if FORM_KEY in node.metadata_props:
                node.metadata_props[FORM_KEY] = metadata
        out = b.op("MatMul", weighted(b, spec, p, tensors), v)
        return [leave(b, spec, out if divisor is None else b.op("Div", out, divisor))]
    p, total, top = _exponentials(b, spec, score, sink, metadata)
    if columns:
        made = {"max": top, "sum": total}
        stats = [made[which] for which in spec.stats]
    else:
        stats = [
            _statistic_of_column(b, spec, total) if which == "sum" else statistic(b, spec, score, which)
            for which in spec.stats
        ]
    if spec.rounding is None and isinstance(spec.Skv, int) and not spec.renormalised:
        return [finish(b, spec, b.op("MatMul", weighted(b, spec, p, tensors), v), total), *stats]
    floored = _floored(spec)
    p = b.op("Div", p, _one_if_zero(b, spec, total) if floored else total)
    b.nodes[-1].metadata_props[FORM_KEY] = metadata
    if spec.renormalised:
        return [leave(b, spec, b.op("MatMul", _renormalised(b, spec, weighted(b, spec, p, tensors)), v))]
    if spec.empty_row in ("zero", "guarded") and not floored:  # what is NaN becomes zero either way
        p = b.op("Where", b.op("IsNaN", p), b.const(np.asarray(0, NUMPY[compute_type(spec)])), p)
    p = weighted(b, spec, p, tensors) if spec.rounding is None else rounded(b, spec.rounding, p)
    return [leave(b, spec, b.op("MatMul", p, v)), *stats]


def weights_of(
    b: OnnxBuilder, spec: AttentionSpec, weighting: Weighting, score: ir.Value, at: Callable[[], Positions]
) -> tuple[ir.Value, ir.Value | None]:
    """What multiplies V without a softmax, and what the product is to be divided by; None where nothing is left to divide by.

    The division stands before the product with V where that is needed to tell a row without keys, and where a run may have no keys.
    """
    before = len(b.nodes)
    p, each = weigh(b, spec, weighting, score, at)
    for node in b.nodes[before:]:
        node.metadata_props[FORM_KEY] = "decomposed"
    if each is None:
        return p, None
    kind = NUMPY[compute_type(spec)]
    total = b.reduce_sum(each)
    if weighting.plus:
        total = b.op("Add", total, b.const(np.asarray(weighting.plus, kind)))
    if weighting.least > -math.inf:
        total = b.op("Max", total, b.const(np.asarray(weighting.least, kind)))
    if isinstance(spec.Skv, int) and spec.empty_row not in ("zero", "guarded"):
        return p, total
    p, zero = b.op("Div", p, total), b.const(np.asarray(0, kind))
    if spec.empty_row == "guarded":
        p = b.op("Where", b.op("IsNaN", p), zero, p)
    elif spec.empty_row == "zero":
        empty = b.op("Equal", b.reduce_max(score), b.const(np.asarray(-np.inf, kind)))
        p = b.op("Where", empty, zero, p)
    return p, None


def _floored(spec: AttentionSpec) -> bool:
    """Whether the row maximum is kept finite, so that an empty row's exponentials are 0, and their sum."""
    return spec.empty_row == "zero" and spec.rounding is None


def statistic(b: OnnxBuilder, spec: AttentionSpec, score: ir.Value, which: Stat) -> ir.Value:
    """A row statistic (*B, Hq, Sq), in the type of the computation."""
    if which == "sum":
        exponentials = b.op("Exp", b.op("Sub", score, b.reduce_max(score)))
        return _statistic_of_column(b, spec, b.reduce_sum(exponentials))
    op = {"lse": "ReduceLogSumExp", "max": "ReduceMax"}[which]
    if not is_grouped(spec):
        return b.reduce(op, score, keep=False)
    return _statistic_of_column(b, spec, b.reduce(op, score))


def _statistic_of_column(b: OnnxBuilder, spec: AttentionSpec, column: ir.Value) -> ir.Value:
    """(*B, Hq, Sq) of a number of each query with a unit dim behind it."""
    return b.squeeze(joined_column(b, spec, column), -1)


def joined_column(b: OnnxBuilder, spec: AttentionSpec, column: ir.Value) -> ir.Value:
    """(*B, Hq, Sq, 1) of a number of each query in the heads of the inner computation."""
    return join_heads(b, spec, column, 1) if is_grouped(spec) else column


def scores(b: OnnxBuilder, spec: AttentionSpec, operands: Sequence[ir.Value], stage: ScoreStage) -> ir.Value:
    """The scores (*B, Hq, Sq, Skv) of `spec` as far as `stage`, in the spec's type, for an output that shows them."""
    spec, operands = dequantized(b, spec, operands)
    if stage == "scaled":
        spec = replace(spec, mods=())
    if stage in ("scaled", "capped"):
        operands = (*operands[:3], *operands[len(operands) - (spec.sink is not None) :])
        spec = replace(spec, masks=(), weights=None)
    inner, q, kt, _, tensors, sink = canonical_operands(b, spec, operands)
    score = b.op("MatMul", q, kt)
    score = modify(b, inner, score, tensors, lambda: positions(b, spec, q, kt))
    if stage == "probabilities" and spec.weighting is not None:
        score = shown_weights(b, spec, spec.weighting, score, lambda: positions(b, spec, q, kt))
    elif stage == "probabilities":
        p, total, _ = _exponentials(b, spec, score, sink)
        one = b.const(np.asarray(1, NUMPY[compute_type(spec)]))
        zero = b.const(np.asarray(0, NUMPY[compute_type(spec)]))
        score = b.op("Div", p, b.op("Where", b.op("Equal", total, zero), one, total))
    if is_grouped(spec):
        score = join_heads(b, spec, score, spec.Skv)
    return cast(b, score, spec.dtype) if compute_type(spec) != spec.dtype else score


def probabilities(b: OnnxBuilder, spec: AttentionSpec, operands: Sequence[ir.Value], lse: ir.Value | None) -> ir.Value:
    """The normalised probabilities (*B, Hq, Sq, Skv) of `spec` in the spec's type, for an output that shows them: of the rows'
    log-sum-exp (*B, Hq, Sq) where that is given, which `told_by_lse` allows, else by a softmax. A sink's share is left out."""
    spec, operands = dequantized(b, spec, operands)
    inner, q, kt, _, tensors, sink = canonical_operands(b, spec, operands)
    score = modify(b, inner, b.op("MatMul", q, kt), tensors, lambda: positions(b, spec, q, kt))
    if lse is not None and is_grouped(spec):
        score = join_heads(b, spec, score, spec.Skv)
    kind = NUMPY[compute_type(spec)]
    minus_inf, zero = b.const(np.asarray(-np.inf, kind)), b.const(np.asarray(0, kind))
    if spec.weighting is not None:
        p = shown_weights(b, spec, spec.weighting, score, lambda: positions(b, spec, q, kt))
    elif lse is not None:
        top = b.unsqueeze(lse, len(spec.batch) + 2)
        p = b.op("Exp", b.op("Sub", score, top))
        if spec.empty_row == "zero":
            p = b.op("Where", b.op("Equal", top, minus_inf), zero, p)
    elif spec.empty_row == "zero" or sink is not None:
        p, total, _ = _exponentials(b, spec, score, sink)
        if (
            spec.empty_row == "zero"
        ):  # only an empty row sums up to zero; of a NaN the row's maximum does not always tell
            total = b.op("Where", b.op("Equal", total, zero), b.const(np.asarray(1, kind)), total)
        p = b.op("Div", p, total)
    else:
        p = b.op("Softmax", score, axis=-1)
    if spec.empty_row == "guarded" and spec.weighting is None:
        p = b.op("Where", b.op("IsNaN", p), zero, p)
    if lse is None and is_grouped(spec):
        p = join_heads(b, spec, p, spec.Skv)
    return cast(b, p, spec.dtype) if compute_type(spec) != spec.dtype else p


def shown_weights(
    b: OnnxBuilder, spec: AttentionSpec, weighting: Weighting, score: ir.Value, at: Callable[[], Positions]
) -> ir.Value:
    """What multiplies V without a softmax, divided already."""
    p, total = weights_of(b, spec, weighting, score, at)
    return p if total is None else b.op("Div", p, total)


def told_by_lse(spec: AttentionSpec) -> bool:
    """Whether exp(score - log-sum-exp) are the probabilities in every row: no finite number masks scores. In a row that such a
    number has masked throughout, the log-sum-exp is as large as the number, and log(Skv) is lost in its last bits."""
    finite = any(isinstance(m, (AddMask, Elementwise)) or math.isfinite(m.fill) for m in spec.masks)
    return not finite and spec.sink is None and spec.rounding is None and spec.weighting is None


def _exponentials(
    b: OnnxBuilder, spec: AttentionSpec, score: ir.Value, sink: ir.Value | None, metadata: str = "decomposed"
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """exp(score - row maximum) and its sum, the sink's share included; and the row maximum of the scores."""
    top = most = b.reduce_max(score)
    if sink is not None:
        top = b.op("Max", top, sink)
    if _floored(spec):
        # Subtracting the lowest number instead of -inf makes an empty row's exponentials 0, not NaN.
        kind = NUMPY[compute_type(spec)]
        top = b.op("Max", top, b.const(np.asarray(np.finfo(kind).min, kind)))
    p = b.op("Exp", b.op("Sub", score, top))
    b.nodes[-1].metadata_props[FORM_KEY] = metadata
    total = b.reduce_sum(p)
    if sink is not None:
        total = b.op("Add", total, b.op("Exp", b.op("Sub", sink, top)))
    return p, total, most


def _one_if_zero(b: OnnxBuilder, spec: AttentionSpec, total: ir.Value) -> ir.Value:
    kind = NUMPY[compute_type(spec)]
    zero, one = b.const(np.asarray(0, kind)), b.const(np.asarray(1, kind))
    return b.op("Where", b.op("Equal", total, zero), one, total)


def _renormalised(b: OnnxBuilder, spec: AttentionSpec, kept: ir.Value) -> ir.Value:
    """kept / its sum in each row; zero in rows whose sum is zero or NaN."""
    kind = NUMPY[compute_type(spec)]
    zero, one = b.const(np.asarray(0, kind)), b.const(np.asarray(1, kind))
    total = b.reduce_sum(kept)
    some = b.op("Greater", total, zero)
    return b.op("Where", some, b.op("Div", kept, b.op("Where", some, total, one)), zero)


def finish(b: OnnxBuilder, spec: AttentionSpec, acc: ir.Value, total: ir.Value) -> ir.Value:
    """acc / total, empty rows as the spec says, in the spec's type and layout.

    Zero for empty rows is spelled around the division, not behind it, so that every site ends in the division.
    """
    kind = NUMPY[compute_type(spec)]
    zero, one = b.const(np.asarray(0, kind)), b.const(np.asarray(1, kind))
    if spec.empty_row == "zero":
        total = _one_if_zero(b, spec, total)
    if spec.empty_row == "guarded":
        some = b.op("Greater", total, zero)  # false for an empty row's NaN too
        acc, total = b.op("Where", some, acc, zero), b.op("Where", some, total, one)
    return leave(b, spec, b.op("Div", acc, total))


def leave(b: OnnxBuilder, spec: AttentionSpec, out: ir.Value) -> ir.Value:
    """The output in the spec's heads, type and layout."""
    if is_grouped(spec):
        out = join_heads(b, spec, out)
    if compute_type(spec) != spec.dtype:
        out = cast(b, out, spec.dtype)
    return transpose(b, out, spec.o_layout)


def canonical_operands(
    b: OnnxBuilder, spec: AttentionSpec, operands: Sequence[ir.Value]
) -> tuple[AttentionSpec, ir.Value, ir.Value, ir.Value, list[ir.Value], ir.Value | None]:
    """(spec of the inner computation, q scaled (*B, Hq, Sq, D), k^T (*B, Hkv, D, Skv), v (*B, Hkv, Skv, Dv), mask tensors,
    the sink in the type of the computation, if there is one).

    K and V are dequantised. With groups of heads the inner computation has one more batch dim, see `groups.split_spec`.
    """
    spec, operands = dequantized(b, spec, operands)
    rank = spec.rank
    q = transpose(b, operands[0], inverse(spec.q_layout))
    to_kt = (*range(rank - 2), rank - 1, rank - 2)
    kt = transpose(b, operands[1], tuple(inverse(spec.k_layout)[a] for a in to_kt))
    v = transpose(b, operands[2], inverse(spec.v_layout))
    tensors = list(operands[3:])
    shapes = [t.shape for t in spec.tensors] + ([spec.sink.shape] if spec.sink is not None else [])
    inner = spec
    if is_grouped(spec):
        q = split_tensor(b, spec, q, spec.canonical_shapes[0])
        kt, v = b.unsqueeze(kt, rank - 2), b.unsqueeze(v, rank - 2)
        tensors = [split_tensor(b, spec, t, shape) for t, shape in zip(tensors, shapes, strict=True)]
        inner = split_spec(spec)
    if compute_type(spec) != spec.dtype:
        q, kt, v = (cast(b, x, compute_type(spec)) for x in (q, kt, v))
    if spec.scale != 1.0:
        q = b.op("Mul", q, b.factor(spec.scale, NUMPY[compute_type(spec)], spec.D))
    sink = tensors.pop() if spec.sink is not None else None
    if sink is not None and spec.sink is not None and spec.sink.dtype != compute_type(spec):
        sink = cast(b, sink, compute_type(spec))
    return inner, q, kt, v, tensors, sink


def transpose(b: OnnxBuilder, x: ir.Value, perm: tuple[int, ...]) -> ir.Value:
    return x if perm == tuple(range(len(perm))) else b.op("Transpose", x, perm=perm)


def positions(b: OnnxBuilder, spec: AttentionSpec, q: ir.Value, kt: ir.Value, kind: Integer = np.int64) -> Positions:
    """Those of all queries and keys. `kind` other than int64 is for a spec whose lengths are known."""
    zero, one = b.const(np.asarray(0, kind)), b.const(np.asarray(1, kind))

    def size(dim: int | str, x: ir.Value, axis: int) -> ir.Value:
        return b.const(np.asarray(dim, kind)) if isinstance(dim, int) else b.dim(x, axis)

    sq, skv = size(spec.Sq, q, -2), size(spec.Skv, kt, -1)
    return Positions(b.unsqueeze(b.op("Range", zero, sq, one), 1), b.op("Range", zero, skv, one), sq, skv, kind)
