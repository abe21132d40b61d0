"""The `decomposed` form: standard ops in the order of IREE's fused op, with the division last."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnx_fa.emit.onnx_builder import OnnxBuilder
from onnx_fa.emit.score import Positions, cast, compute_type, modify
from onnx_fa.match import _NUMPY
from onnx_fa.spec import AttentionSpec


def emit(b: OnnxBuilder, spec: AttentionSpec, operands: Sequence[ir.Value]) -> ir.Value:
    """Scale, score modifications, masks, row max, subtract, exp, row sum, P@V, division. Returns the site's output."""
    q, kt, v = canonical_operands(b, spec, operands)
    score = b.op("MatMul", q, kt)
    score = ungroup(b, spec, score, "Skv") if spec.group > 1 else score
    score = modify(b, spec, score, operands[3:], lambda: _positions(b, spec, q, kt))
    p = b.op("Exp", b.op("Sub", score, b.reduce_max(score)))
    total = b.reduce_sum(p)
    if spec.group > 1:
        acc = ungroup(b, spec, b.op("MatMul", group(b, spec, p, "Skv"), v), "Dv")
    else:
        acc = b.op("MatMul", p, v)
    return finish(b, spec, acc, total)


def finish(b: OnnxBuilder, spec: AttentionSpec, acc: ir.Value, total: ir.Value) -> ir.Value:
    """acc / total, empty rows as the spec says, in the spec's type and layout."""
    out = b.op("Div", acc, total)
    if spec.empty_row == "zero":
        zero = b.const(np.asarray(0, _NUMPY[compute_type(spec)]))
        out = b.op("Where", b.op("Greater", total, zero), out, zero)
    if compute_type(spec) != spec.dtype:
        out = cast(b, out, spec.dtype)
    return transpose(b, out, spec.o_layout)


def canonical_operands(b: OnnxBuilder, spec: AttentionSpec, operands: Sequence[ir.Value]) -> tuple[ir.Value, ir.Value, ir.Value]:
    """q scaled (*B, Hq, Sq, D), k^T (*B, Hkv, D, Skv) and v (*B, Hkv, Skv, Dv); with groups q is (*B, Hkv, G, Sq, D) and k^T
    and v have a unit dim where G stands."""
    rank = spec.rank
    q = transpose(b, operands[0], _inverse(spec.q_layout))
    to_kt = (*range(rank - 2), rank - 1, rank - 2)
    kt = transpose(b, operands[1], tuple(_inverse(spec.k_layout)[a] for a in to_kt))
    v = transpose(b, operands[2], _inverse(spec.v_layout))
    if compute_type(spec) != spec.dtype:
        q, kt, v = (cast(b, x, compute_type(spec)) for x in (q, kt, v))
    if spec.scale != 1.0:
        q = b.op("Mul", q, b.const(np.asarray(spec.scale, _NUMPY[compute_type(spec)])))
    if spec.group > 1:
        q = group(b, spec, q, "D")
        axis = len(spec.batch) + 1
        kt, v = b.unsqueeze(kt, axis), b.unsqueeze(v, axis)
    return q, kt, v


def _inverse(layout: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argsort(layout))


def transpose(b: OnnxBuilder, x: ir.Value, perm: tuple[int, ...]) -> ir.Value:
    return x if perm == tuple(range(len(perm))) else b.op("Transpose", x, perm=perm)


def group(b: OnnxBuilder, spec: AttentionSpec, x: ir.Value, last: str) -> ir.Value:
    """(*B, Hq, Sq, last) -> (*B, Hkv, G, Sq, last)"""
    assert isinstance(spec.Hkv, int)
    return _regroup(b, spec, x, (spec.Hkv, spec.group), last)


def ungroup(b: OnnxBuilder, spec: AttentionSpec, x: ir.Value, last: str) -> ir.Value:
    """(*B, Hkv, G, Sq, last) -> (*B, Hq, Sq, last)"""
    assert isinstance(spec.Hq, int)
    return _regroup(b, spec, x, (spec.Hq,), last)


def _regroup(b: OnnxBuilder, spec: AttentionSpec, x: ir.Value, heads: tuple[int, ...], last: str) -> ir.Value:
    lead = [0] * len(spec.batch)  # 0 copies the dim
    tail = [getattr(spec, "Sq"), getattr(spec, last)]
    if all(isinstance(d, int) for d in tail):
        return b.op("Reshape", x, b.ints(*lead, *heads, *tail))
    if isinstance(tail[1], int):
        return b.op("Reshape", x, b.ints(*lead, *heads, -1, tail[1]))
    if isinstance(tail[0], int):
        return b.op("Reshape", x, b.ints(*lead, *heads, tail[0], -1))
    ends = b.op("Slice", b.op("Shape", x), b.ints(-2), b.ints(1 << 62))
    return b.op("Reshape", x, b.op("Concat", b.ints(*lead, *heads), ends, axis=0))


def _positions(b: OnnxBuilder, spec: AttentionSpec, q: ir.Value, kt: ir.Value) -> Positions:
    zero, one = b.const(np.asarray(0, np.int64)), b.const(np.asarray(1, np.int64))

    def size(dim: int | str, x: ir.Value, axis: int) -> ir.Value:
        return b.const(np.asarray(dim, np.int64)) if isinstance(dim, int) else b.dim(x, axis)

    sq, skv = size(spec.Sq, q, -2), size(spec.Skv, kt, -1)
    query = b.unsqueeze(b.op("Range", zero, sq, one), 1)
    key = b.unsqueeze(b.op("Range", zero, skv, one), 0)
    return Positions(query, key, sq, skv)
