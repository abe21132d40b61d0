"""The `blocked` form: a Loop over K/V blocks with running maximum, sum and rescaling (online softmax, Milakov and Gimelshein
2018; FlashAttention, Dao et al. 2022), in standard ops. Memory is O(Sq x block) on any runtime."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from onnx_fa.emit.decomposed import canonical_operands, finish
from onnx_fa.emit.onnx_builder import OnnxBuilder
from onnx_fa.emit.score import Positions, compute_type, modify
from onnx_fa.errors import UnsupportedError
from onnx_fa.match import NUMPY
from onnx_fa.patterns.blocked import SPEC_KEY
from onnx_fa.spec import AttentionSpec

MOST_UNROLLED = 64
"""Blocks up to which the form is written without a Loop."""
_SCORE_ELEMENTS = 1 << 24
"""Aim for one block of scores: 64 MiB of f32; a runtime holds a handful of such buffers at a time."""


def block_size(spec: AttentionSpec) -> int:
    """Keys per block: a power of two from 64 to 512, so that a block of scores stays near `_SCORE_ELEMENTS`."""
    rows = math.prod(d if isinstance(d, int) else 1 for d in (*spec.batch, spec.Hq, spec.Sq))
    fit = max(1, _SCORE_ELEMENTS // max(rows, 1))
    return min(512, max(64, 1 << (fit.bit_length() - 1)))


def emit(b: OnnxBuilder, spec: AttentionSpec, operands: Sequence[ir.Value]) -> list[ir.Value]:
    """A Loop whose body handles one block of keys; the last block may be shorter. Returns the site's output, alone: raises
    UnsupportedError for a spec with row statistics."""
    blocks = _Blocks(b, spec, operands)
    size = b.const(np.asarray(block_size(spec), np.int64))
    trips = b.op("Div", b.op("Add", blocks.skv, b.const(np.asarray(block_size(spec) - 1, np.int64))), size)
    m0, l0, a0 = blocks.start()

    body = b.nested()
    trip, cond, m, total, acc = (ir.Value(name=b.name(n)) for n in ("i", "go", "max", "sum", "acc"))
    trip.type, cond.type = ir.TensorType(ir.DataType.INT64), ir.TensorType(ir.DataType.BOOL)
    trip.shape = cond.shape = ir.Shape([])
    for state in (m, total, acc):
        state.type = ir.TensorType(blocks.dtype)
    start = body.op("Mul", trip, size)
    end = body.op("Add", start, size)
    # Min of integers came with opset 12.
    skv = blocks.skv
    end = body.op("Min", end, skv) if b.opset >= 12 else body.op("Where", body.op("Less", end, skv), end, skv)
    m_new, l_new, a_new = blocks.step(body, start, end, m, total, acc)
    go = body.op("Identity", cond)
    for value, like in ((go, cond), (m_new, m), (l_new, total), (a_new, acc)):
        value.type, value.shape = like.type, like.shape
    graph = ir.Graph([trip, cond, m, total, acc], [go, m_new, l_new, a_new], nodes=body.nodes, name=b.name("blocks"))
    outs = [ir.Value(name=b.name(n), type=ir.TensorType(blocks.dtype)) for n in ("max_out", "sum_out", "acc_out")]
    loop = ir.Node(
        "",
        "Loop",
        [trips, b.const(np.asarray(True)), m0, l0, a0],
        [ir.AttrGraph("body", graph)],
        outputs=outs,
        name=b.name("Loop"),
    )
    loop.metadata_props[SPEC_KEY] = json.dumps(spec.to_dict())
    b.nodes.append(loop)
    return [finish(b, spec, outs[2], outs[1])]


def emit_unrolled(b: OnnxBuilder, spec: AttentionSpec, operands: Sequence[ir.Value]) -> list[ir.Value]:
    """The same without a Loop, whose states' shapes are lost on the way into a compiler. Raises UnsupportedError also where the
    number of keys is known only at run time, or takes more than MOST_UNROLLED blocks."""
    size = block_size(spec)
    if not isinstance(spec.Skv, int) or spec.Skv > MOST_UNROLLED * size:
        raise UnsupportedError(f"{spec.Skv} keys are not {MOST_UNROLLED} blocks of {size} at the most")
    blocks = _Blocks(b, spec, operands)
    m, total, acc = blocks.start()
    for first in range(0, spec.Skv, size):
        start, end = (b.const(np.asarray(k, np.int64)) for k in (first, min(first + size, spec.Skv)))
        m, total, acc = blocks.step(b, start, end, m, total, acc)
    return [finish(b, spec, acc, total)]


class _Blocks:
    """The states of online softmax, and what a block of keys does to them. Raises UnsupportedError for row statistics."""

    def __init__(self, b: OnnxBuilder, spec: AttentionSpec, operands: Sequence[ir.Value]) -> None:
        if spec.stats:
            raise UnsupportedError("row statistics as further outputs")
        self.b = b
        self.inner, self.q, self.kt, self.v, self.masks, self.sink = canonical_operands(b, spec, operands)
        self.kind = np.dtype(NUMPY[compute_type(spec)])
        self.dtype = ir.DataType.from_numpy(self.kind)
        zero, self.one = (b.const(np.asarray(i, np.int64)) for i in (0, 1))
        self.skv = b.const(np.asarray(spec.Skv, np.int64)) if isinstance(spec.Skv, int) else b.dim(self.kt, -1)
        self.sq = b.const(np.asarray(spec.Sq, np.int64)) if isinstance(spec.Sq, int) else b.dim(self.q, -2)
        self.query = b.unsqueeze(b.op("Range", zero, self.sq, self.one), 1)
        self.minus_inf = b.const(np.asarray(-np.inf, self.kind))
        self.nought = b.const(np.asarray(0, self.kind))

    def start(self) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Maximum, sum and accumulator before the first key. A sink is a key that has been seen already: its logit is the first
        maximum, its exponential 1."""
        b, sink = self.b, self.sink
        rows = _row_shape(b, self.inner, self.q)
        unit = b.const(np.asarray(1, self.kind))
        m = b.op("Expand", self.minus_inf if sink is None else sink, rows(1))
        total = b.op("Expand", self.nought if sink is None else unit, rows(1))
        return m, total, b.op("Expand", self.nought, rows(self.inner.Dv))

    def step(
        self, body: OnnxBuilder, start: ir.Value, end: ir.Value, m: ir.Value, total: ir.Value, acc: ir.Value
    ) -> tuple[ir.Value, ir.Value, ir.Value]:
        """The states after the keys from `start` to `end`."""
        first, last = body.unsqueeze(start, 0), body.unsqueeze(end, 0)

        def columns(x: ir.Value, axis: int) -> ir.Value:
            return body.op("Slice", x, first, last, body.ints(axis))

        score = body.op("MatMul", self.q, columns(self.kt, -1))
        tensors = [
            columns(t, -1) if arg.shape and arg.shape[-1] != 1 else t
            for t, arg in zip(self.masks, self.inner.tensors, strict=True)
        ]
        positions = lambda: Positions(self.query, body.op("Range", start, end, self.one), self.sq, self.skv)  # noqa: E731
        score = modify(body, self.inner, score, tensors, positions)
        m_new = body.op("Max", m, body.reduce_max(score))
        # A row with no key so far has max -inf; subtracting 0 instead keeps its exponentials at exp(-inf) = 0, not NaN.
        safe = body.op("Where", body.op("Equal", m_new, self.minus_inf), self.nought, m_new)
        alpha = body.op("Exp", body.op("Sub", m, safe))
        p = body.op("Exp", body.op("Sub", score, safe))
        l_new = body.op("Add", body.op("Mul", total, alpha), body.reduce_sum(p))
        pv = body.op("MatMul", p, columns(self.v, -2))
        return m_new, l_new, body.op("Add", body.op("Mul", acc, alpha), pv)


def _row_shape(b: OnnxBuilder, spec: AttentionSpec, q: ir.Value) -> Callable[[int], ir.Value]:
    """A function width -> shape tensor (*B, Hq, Sq, width)."""
    dims = (*spec.batch, spec.Hq, spec.Sq)
    known = [d for d in dims if isinstance(d, int)]
    if len(known) == len(dims):
        return lambda width: b.ints(*known, width)
    shape = b.op("Slice", b.op("Shape", q), b.ints(0), b.ints(len(dims)))
    return lambda width: b.op("Concat", shape, b.ints(width), axis=0)
