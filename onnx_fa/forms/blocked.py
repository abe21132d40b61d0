"""The `blocked` form: a Loop over K/V blocks in standard ops that carries what was derived for the spec (for a softmax a running
maximum, a sum and the output: Milakov and Gimelshein 2018; Dao et al. 2022). Memory is O(Sq x block) on any runtime."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnx_fa.derive.attention import STEPS, function_of
from onnx_fa.derive.loop import MASS, MAXIMUM, OLD_MAXIMUM, SCORE, Walk, loop_of
from onnx_fa.derive.terms import Term, known
from onnx_fa.derive.writer import write
from onnx_fa.errors import UnsupportedError
from onnx_fa.forms.decomposed import canonical_operands, finish, leave, positions
from onnx_fa.forms.integers import rounded
from onnx_fa.forms.score import (
    Integer,
    Positions,
    apply_function,
    cast,
    compute_type,
    modify,
    narrowest,
    weighted,
)
from onnx_fa.graph.builder import OnnxBuilder
from onnx_fa.graph.casts import without_round_trip
from onnx_fa.graph.ops import op_of
from onnx_fa.patterns.ops.blocked import SPEC_KEY
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.dtypes import NUMPY

MOST_UNROLLED = 64
"""Blocks up to which the form is written without a Loop."""
_SCORE_ELEMENTS = 1 << 24
"""Aim for one block of scores: 64 MiB of f32; a runtime holds a handful of such buffers at a time."""


def block_size(spec: AttentionSpec) -> int:
    """Keys per block: a power of two from 64 to 512, so that a block of scores stays near `_SCORE_ELEMENTS`."""
    rows = math.prod(d if isinstance(d, int) else 1 for d in (*spec.batch, spec.Hq, spec.Sq))
    fit = max(1, _SCORE_ELEMENTS // max(rows, 1))
    return min(512, max(64, 1 << (fit.bit_length() - 1)))


@dataclass(frozen=True)
class _Step:
    """One block of keys in the body of a loop: its scores, a slice of an operand's keys, and what the loop carries."""

    b: OnnxBuilder
    score: ir.Value
    tensors: list[ir.Value]
    """Those of the mask terms and the weights, of these keys."""
    columns: Callable[[ir.Value, int], ir.Value]
    carried: list[ir.Value]
    positions: Callable[[], Positions]


def emit_unrolled(b: OnnxBuilder, spec: AttentionSpec, operands: Sequence[ir.Value]) -> list[ir.Value]:
    """The form without a Loop, whose states lose their shapes on the way into a compiler. Raises UnsupportedError also where the
    number of keys is known only at run time, or takes more than MOST_UNROLLED blocks."""
    size = block_size(spec)
    if not isinstance(spec.Skv, int) or spec.Skv > MOST_UNROLLED * size:
        raise UnsupportedError(f"{spec.Skv} keys are not {MOST_UNROLLED} blocks of {size} at the most")
    return emit(b, spec, operands, unrolled=True)


def emit(
    b: OnnxBuilder, spec: AttentionSpec, operands: Sequence[ir.Value], *, unrolled: bool = False
) -> list[ir.Value]:
    """A Loop whose body handles one block of keys; the last block may be shorter. Where probabilities are rounded, they must be
    normalised first: one Loop finds maximum and sum, a second one multiplies V. Returns the site's output, alone: raises
    UnsupportedError for a spec with row statistics."""
    if spec.stats:
        raise UnsupportedError("row statistics as further outputs")
    inner, q, kt, v, masks, sink = canonical_operands(b, spec, [without_round_trip(x) for x in operands])
    kind = np.dtype(NUMPY[compute_type(spec)])
    rows = _row_shape(b, inner, q)
    minus_inf, nought = b.const(np.asarray(-np.inf, kind)), b.const(np.asarray(0, kind))
    unit = b.const(np.asarray(1, kind))
    language, recurrence = OnnxLanguage(b, spec, lambda: positions(b, spec, q, kt)), loop_of(spec)
    found: dict[Term, ir.Value] = {}
    for walk in recurrence.walks:
        # A sink is a key that has been seen already: its logit is the first maximum, its exponential 1.
        names = ["max"] * walk.has_maximum + ["sum"] * (walk.mass is not None) + ["acc"] * (walk.weight is not None)
        starts = {
            "max": lambda: b.op("Expand", minus_inf if sink is None else sink, rows(1)),
            "sum": lambda: b.op("Expand", nought if sink is None else unit, rows(1)),
            "acc": lambda: b.op("Expand", nought, rows(spec.Dv)),
        }
        step = _Block(inner, walk, v, minus_inf, nought, dict(found))
        over = _unrolled if unrolled else _loop
        ends = dict(
            zip(names, over(b, spec, (inner, q, kt, masks), {n: starts[n]() for n in names}, step.add), strict=True)
        )
        place = {term: ends[name] for term, name in ((MAXIMUM, "max"), (MASS, "sum")) if name in ends}
        if walk.weight is None:
            if MAXIMUM in place:
                place[MAXIMUM] = step.make_finite(b, place[MAXIMUM])
            found |= {known(name): write(term, language, place) for name, term in walk.results.items()}
    _remember(b, spec)
    acc = ends["acc"]
    if recurrence.factor != 1.0:
        acc = b.op("Mul", acc, b.const(np.asarray(recurrence.factor, kind)))
    if recurrence.divisor is None:
        return [leave(b, spec, acc)]
    total = write(recurrence.divisor, language, place)
    if isinstance(spec.Skv, str):  # without any keys the output is 0, and not 0 / 0
        none = b.op("Equal", b.dim(kt, -1), b.const(np.asarray(0, np.int64)))
        total = b.op("Add", total, cast(b, none, compute_type(spec)))
    return [finish(b, spec, acc, total)]


@dataclass(frozen=True)
class OnnxLanguage:
    """The ops of terms as standard ONNX ops."""

    b: OnnxBuilder
    spec: AttentionSpec
    positions: Callable[[], Positions]

    def add(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.b.op("Add", a, b)

    def sub(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.b.op("Sub", a, b)

    def mul(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.b.op("Mul", a, b)

    def div(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.b.op("Div", a, b)

    def max(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.b.op("Max", a, b)

    def exp(self, x: ir.Value) -> ir.Value:
        return self.b.op("Exp", x)

    def log(self, x: ir.Value) -> ir.Value:
        return self.b.op("Log", x)

    def num(self, value: float) -> ir.Value:
        return self.b.const(np.asarray(value, NUMPY[compute_type(self.spec)]))

    def map(self, name: str, x: ir.Value) -> ir.Value:
        if name == "Reciprocal":
            share = self.div(self.num(1.0), x)
            # A row without keys is NaN before it is rounded, as 0 * (1 / 0), where the spec says that it is NaN.
            if self.spec.empty_row == "nan":
                return share
            return self.b.op("Where", self.b.op("Equal", x, self.num(0.0)), self.num(0.0), share)
        if name == STEPS and self.spec.rounding is not None:
            if self.spec.empty_row == "guarded":
                x = self.b.op("Where", self.b.op("IsNaN", x), self.num(0.0), x)
            return self.div(rounded(self.b, self.spec.rounding, x), self.num(self.spec.rounding.scale))
        return apply_function(self.b, self.spec, function_of(self.spec, name), x, self.positions)


@dataclass(frozen=True)
class _Block:
    """What a block of keys changes. `found`: what earlier walks left."""

    spec: AttentionSpec
    walk: Walk
    v: ir.Value
    minus_inf: ir.Value
    nought: ir.Value
    found: dict[Term, ir.Value]

    def make_finite(self, b: OnnxBuilder, row_max: ir.Value) -> ir.Value:
        """A row with no key so far has max -inf; subtracting 0 instead keeps its exponentials at exp(-inf) = 0, not NaN."""
        return b.op("Where", b.op("Equal", row_max, self.minus_inf), self.nought, row_max)

    def add(self, step: _Step) -> list[ir.Value]:
        """What is carried, with one more block."""
        b, walk, new, carried = step.b, self.walk, list[ir.Value](), list(step.carried)
        language, place, alpha = OnnxLanguage(b, self.spec, step.positions), {SCORE: step.score} | self.found, None
        if walk.has_maximum:
            row_max = carried.pop(0)
            new.append(b.op("Max", row_max, b.reduce_max(step.score)))
            place[MAXIMUM] = self.make_finite(b, new[0])
            if walk.correction is not None:
                # What was summed with the old maximum taken out is rescaled to the new one.
                alpha = write(walk.correction, language, {OLD_MAXIMUM: row_max, MAXIMUM: place[MAXIMUM]})
        memo: dict[Term, ir.Value] = {}

        def kept(old: ir.Value) -> ir.Value:
            return old if alpha is None else b.op("Mul", old, alpha)

        def value(term: Term, *, multiplied: bool) -> ir.Value:
            x = write(term, language, place, memo)
            if multiplied and Term("weighted", (term,)) not in memo:
                memo[Term("weighted", (term,))] = weighted(b, self.spec, x, step.tensors)
            return memo[Term("weighted", (term,))] if multiplied else x

        if walk.mass is not None:
            p = value(walk.mass, multiplied=walk.mass_multiplied)
            new.append(b.op("Add", kept(carried.pop(0)), b.reduce_sum(p)))
        if walk.weight is not None:
            p = value(walk.weight, multiplied=walk.weight_multiplied)
            new.append(b.op("Add", kept(carried.pop(0)), b.op("MatMul", p, step.columns(self.v, -2))))
        return new


def _remember(b: OnnxBuilder, spec: AttentionSpec) -> None:
    """The Loop just made, if one was, is known by its spec."""
    if op_of(b.nodes[-1]) == "Loop":
        b.nodes[-1].metadata_props[SPEC_KEY] = json.dumps(spec.to_dict())


Scored = tuple[AttentionSpec, ir.Value, ir.Value, list[ir.Value]]
"""The spec of the inner computation, q, k^T and the mask tensors."""


class _Keys:
    """What the scores of any block of keys are made of. `kind` is the type of positions; other than int64 it is for a spec whose
    lengths are known."""

    def __init__(self, b: OnnxBuilder, spec: AttentionSpec, scored: Scored, kind: Integer = np.int64) -> None:
        self.b, self.scored, self.kind = b, scored, kind
        _, q, kt, _ = scored
        zero, self.one = (b.const(np.asarray(i, kind)) for i in (0, 1))
        self.skv = b.const(np.asarray(spec.Skv, kind)) if isinstance(spec.Skv, int) else b.dim(kt, -1)
        self.sq = b.const(np.asarray(spec.Sq, kind)) if isinstance(spec.Sq, int) else b.dim(q, -2)
        self.query = b.unsqueeze(b.op("Range", zero, self.sq, self.one), 1)

    def block(
        self,
        body: OnnxBuilder,
        bounds: tuple[ir.Value, ir.Value],
        carried: list[ir.Value],
        numbers: tuple[ir.Value, ir.Value] | None = None,
    ) -> _Step:
        """The keys between two `bounds` of int64, which `numbers` are in the type of positions."""
        inner, q, kt, masks = self.scored
        start, end = bounds
        first, last = body.unsqueeze(start, 0), body.unsqueeze(end, 0)

        def columns(x: ir.Value, axis: int) -> ir.Value:
            return body.op("Slice", x, first, last, body.ints(axis))

        def positions() -> Positions:
            return Positions(self.query, body.op("Range", *(numbers or bounds), self.one), self.sq, self.skv, self.kind)

        score = body.op("MatMul", q, columns(kt, -1))
        tensors = [
            columns(t, -1) if arg.shape and arg.shape[-1] != 1 else t
            for t, arg in zip(masks, inner.tensors, strict=True)
        ]
        return _Step(body, modify(body, inner, score, tensors, positions), tensors, columns, carried, positions)


def _unrolled(
    b: OnnxBuilder,
    spec: AttentionSpec,
    scored: Scored,
    starts: dict[str, ir.Value],
    step: Callable[[_Step], list[ir.Value]],
) -> list[ir.Value]:
    """The same as `_loop`, one block after the other, of a known number of keys."""
    assert isinstance(spec.Skv, int)
    kind = narrowest(spec)
    keys, states, size = _Keys(b, spec, scored, kind), list(starts.values()), block_size(spec)

    def scalar(value: int, of: Integer) -> ir.Value:
        return b.const(np.asarray(value, of))

    for first in range(0, spec.Skv, size):
        last = min(first + size, spec.Skv)
        bounds, numbers = ((scalar(first, of), scalar(last, of)) for of in (np.int64, kind))
        states = step(keys.block(b, bounds, states, numbers))
    return states


def _loop(
    b: OnnxBuilder,
    spec: AttentionSpec,
    scored: Scored,
    starts: dict[str, ir.Value],
    step: Callable[[_Step], list[ir.Value]],
) -> list[ir.Value]:
    """A Loop over blocks of keys that carries `starts`, by name, and makes them anew by `step`; what they are in the end."""
    dtype = ir.DataType.from_numpy(np.dtype(NUMPY[compute_type(spec)]))
    block = block_size(spec)
    keys, size = _Keys(b, spec, scored), b.const(np.asarray(block, np.int64))
    skv = keys.skv
    trips = b.op("Div", b.op("Add", skv, b.const(np.asarray(block - 1, np.int64))), size)

    body = b.nested()
    trip, cond, *carried = (ir.Value(name=b.name(n)) for n in ("i", "go", *starts))
    trip.type, cond.type = ir.TensorType(ir.DataType.INT64), ir.TensorType(ir.DataType.BOOL)
    trip.shape = cond.shape = ir.Shape([])
    for state in carried:
        state.type = ir.TensorType(dtype)
    start = body.op("Mul", trip, size)
    end = body.op("Add", start, size)
    # Min of integers came with opset 12.
    end = body.op("Min", end, skv) if b.opset >= 12 else body.op("Where", body.op("Less", end, skv), end, skv)
    new = step(keys.block(body, (start, end), carried))
    go = body.op("Identity", cond)
    for value, like in ((go, cond), *zip(new, carried, strict=True)):
        value.type, value.shape = like.type, like.shape
    graph = ir.Graph([trip, cond, *carried], [go, *new], nodes=body.nodes, name=b.name("blocks"))
    outs = [ir.Value(name=b.name(f"{n}_out"), type=ir.TensorType(dtype)) for n in starts]
    loop = ir.Node(
        "",
        "Loop",
        [trips, b.const(np.asarray(True)), *starts.values()],
        [ir.AttrGraph("body", graph)],
        outputs=outs,
        name=b.name("Loop"),
    )
    b.nodes.append(loop)
    return outs


def _row_shape(b: OnnxBuilder, spec: AttentionSpec, q: ir.Value) -> Callable[[int], ir.Value]:
    """A function width -> shape tensor (*B, Hq, Sq, width)."""
    dims = (*spec.batch, spec.Hq, spec.Sq)
    known = [d for d in dims if isinstance(d, int)]
    if len(known) == len(dims):
        return lambda width: b.ints(*known, width)
    shape = b.op("Slice", b.op("Shape", q), b.ints(0), b.ints(len(dims)))
    return lambda width: b.op("Concat", shape, b.ints(width), axis=0)
