"""A site whose keys are split: partial sites, each with its rows' maxima and sums, and what merges them. The derived recurrence
gives the merge: a part is corrected to the maximum of all as a block corrects what was before it (online softmax is associative).

    m = max m_i;  w_i = exp(m_i - m) l_i;  out = sum w_i out_i / sum w_i

A log-sum-exp of each part would not do: where a finite number masks a row throughout it has lost the logarithm of the count.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnx_fa.derive.loop import MAXIMUM, OLD_MAXIMUM, loop_of
from onnx_fa.derive.writer import write
from onnx_fa.errors import UnsupportedError
from onnx_fa.forms import decomposed
from onnx_fa.forms.blocked import OnnxLanguage
from onnx_fa.forms.decomposed import transpose
from onnx_fa.forms.integers import dequantized
from onnx_fa.forms.parts import Along, Part, cut, length
from onnx_fa.forms.score import Positions, cast, compute_type
from onnx_fa.graph.builder import OnnxBuilder
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.dtypes import NUMPY

Results = Sequence[ir.Value]
"""Of a part: its output, then of a part of the keys a number of each query, (*B, Hq, Sq, 1), for each of its statistics."""


def emit(b: OnnxBuilder, spec: AttentionSpec, operands: Sequence[ir.Value], count: int) -> list[ir.Value]:
    """The site in standard ops, its keys in `count` parts: its output, then its row statistics. Raises UnsupportedError where that
    is not the same."""
    if any(x.dtype in ("i4", "u4") for x in spec.quantized):  # ONNX has no Slice of integers of 4 bits
        spec, operands = dequantized(b, spec, operands)
    parts = parts_of(b, spec, operands, "keys", count)
    return joined(b, spec, operands, "keys", parts, [_in_standard_ops(b, part) for part in parts])


def parts_of(b: OnnxBuilder, spec: AttentionSpec, operands: Sequence[ir.Value], along: Along, count: int) -> list[Part]:
    """The site's parts. Raises UnsupportedError for a site whose parts do not make the same."""
    if along == "keys":
        _check_keys(spec)
    return cut(b, spec, operands, along, count)


def joined(
    b: OnnxBuilder,
    spec: AttentionSpec,
    operands: Sequence[ir.Value],
    along: Along,
    parts: Sequence[Part],
    results: Sequence[Results],
) -> list[ir.Value]:
    """The site's output and row statistics, of the results of its parts."""
    if along != "keys":
        axis = spec.rank - (3 if along == "heads" else 2)
        rows = len(spec.batch) + (along == "queries")
        outs = b.op("Concat", *(r[0] for r in results), axis=spec.o_layout.index(axis))
        return [outs, *(b.op("Concat", *(r[1 + i] for r in results), axis=rows) for i in range(len(spec.stats)))]
    if spec.weighting is not None:
        return [_half(b, spec, functools.reduce(lambda x, y: b.op("Add", x, y), _wide(b, spec, parts, results)))]
    return _Merge(b, spec, operands, parts).merge(results)


def _check_keys(spec: AttentionSpec) -> None:
    """Raises UnsupportedError for a site that is not the sum of its parts."""
    if spec.rounding is not None:
        raise UnsupportedError("probabilities that are rounded are divided by the sum over all keys before")
    if spec.renormalised:
        raise UnsupportedError("probabilities are divided anew by the sum of those that a mask keeps")
    if spec.weighting is not None and spec.weighting.total is not None:
        raise UnsupportedError("weights without a softmax are divided by their sum over all keys")


def _in_standard_ops(b: OnnxBuilder, part: Part) -> list[ir.Value]:
    """The part in the decomposed form."""
    out, *columns = decomposed.emit_part(b, part.spec, part.operands)
    return [out, *(decomposed.joined_column(b, part.spec, x) for x in columns)]


def _wide(b: OnnxBuilder, spec: AttentionSpec, parts: Sequence[Part], results: Sequence[Results]) -> list[ir.Value]:
    """The parts' outputs in the type of the computation; 0 where a part turned out to have no keys of its own."""
    wide, zero = compute_type(spec), b.const(np.asarray(0, NUMPY[compute_type(spec)]))
    outs = [r[0] if wide == spec.dtype else cast(b, r[0], wide) for r in results]
    return [
        out if part.some is None else b.op("Where", part.some, out, zero) for part, out in zip(parts, outs, strict=True)
    ]


def _half(b: OnnxBuilder, spec: AttentionSpec, out: ir.Value) -> ir.Value:
    return out if compute_type(spec) == spec.dtype else cast(b, out, spec.dtype)


@dataclass(frozen=True)
class _Merge:
    """Merges parts of the keys."""

    b: OnnxBuilder
    spec: AttentionSpec
    operands: Sequence[ir.Value]
    parts: Sequence[Part]

    def number(self, value: float) -> ir.Value:
        return self.b.const(np.asarray(value, NUMPY[compute_type(self.spec)]))

    def merge(self, results: Sequence[Results]) -> list[ir.Value]:
        b, spec = self.b, self.spec
        tops = [self.if_some(part, r[1], -math.inf) for part, r in zip(self.parts, results, strict=True)]
        sums = [self.if_some(part, r[2], 0.0) for part, r in zip(self.parts, results, strict=True)]
        sink = None
        if spec.sink is not None:
            sink = self.operands[3 + len(spec.tensors)]
            sink = sink if spec.sink.dtype == compute_type(spec) else cast(b, sink, compute_type(spec))
        top = b.op("Max", *tops, *([] if sink is None else [sink]))
        # A row with no key in any part has the maximum -inf: 0 in its place makes its weights 0, not NaN.
        known = b.op("Where", b.op("Equal", top, self.number(-np.inf)), self.number(0.0), top)
        weights = [b.op("Mul", self.correction(m, known), n) for m, n in zip(tops, sums, strict=True)]
        terms = [*weights, *([] if sink is None else [self.correction(sink, known)])]
        total = functools.reduce(lambda x, y: b.op("Add", x, y), terms)
        outs = [
            b.op("Mul", out, transpose(b, w, spec.o_layout))
            for out, w in zip(_wide(b, spec, self.parts, results), weights, strict=True)
        ]
        acc = functools.reduce(lambda x, y: b.op("Add", x, y), outs)
        stats = {
            "max": lambda: top,
            "sum": lambda: total,
            "lse": lambda: b.op("Add", b.op("Log", total), known),
        }
        return [self.divide(acc, total), *(b.squeeze(stats[which](), -1) for which in spec.stats)]

    def if_some(self, part: Part, x: ir.Value, nothing: float) -> ir.Value:
        """A number of each row of a part, or what it is of no keys, where the part turned out to have none of its own."""
        return x if part.some is None else self.b.op("Where", part.some, x, self.number(nothing))

    def correction(self, old: ir.Value, new: ir.Value) -> ir.Value:
        """What a part with the maximum `old` is multiplied by."""
        term = loop_of(self.parts[0].spec).one_walk.correction
        assert term is not None  # its maximum is a result, so that it is kept

        def positions() -> Positions:
            raise AssertionError("a correction reads no position")

        return write(term, OnnxLanguage(self.b, self.spec, positions), {OLD_MAXIMUM: old, MAXIMUM: new})

    def divide(self, acc: ir.Value, total: ir.Value) -> ir.Value:
        """The output, with rows without keys as the spec says. Without any keys it is 0."""
        b, spec = self.b, self.spec
        zero, one = self.number(0.0), self.number(1.0)
        if spec.empty_row == "zero":
            total = b.op("Where", b.op("Equal", total, zero), one, total)
        elif isinstance(spec.Skv, str) and spec.empty_row != "guarded":
            none = b.op("Equal", length(b, spec, self.operands, "k"), b.const(np.asarray(0, np.int64)))
            total = b.op("Add", total, cast(b, none, compute_type(spec)))
        row = transpose(b, total, spec.o_layout)
        if spec.empty_row == "guarded":
            some = b.op("Greater", row, zero)  # false for NaN too
            acc, row = b.op("Where", some, acc, zero), b.op("Where", some, row, one)
        return _half(b, spec, b.op("Div", acc, row))
