"""Score layers for masks: Add and Sub of a tensor, Where with a fill; and what such a tensor means.

A mask is read backwards (tracer.py) and what comes out is named (conditions.py, biases.py), so that as
little of it as possible has to exist as a tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import GraphView
from onnx_fa.match import AddTerm, Call, Expr, Map, NoMatch, Peel, Select, Term
from onnx_fa.patterns.masks.biases import add_bias_terms
from onnx_fa.patterns.masks.conditions import keep_where_true
from onnx_fa.patterns.masks.elements import Untraceable
from onnx_fa.patterns.masks.elementwise import map_score
from onnx_fa.patterns.masks.expressions import TooComplex
from onnx_fa.patterns.masks.reader import Reader
from onnx_fa.patterns.masks.tracer import Tracer
from onnx_fa.spec.expr import SCORE, Apply, Float, ScoreExpr
from onnx_fa.spec.terms import Dim


def peel_add(view: GraphView, value: ir.Value) -> Iterator[Peel]:
    """score + m, m + score, score - m."""
    node = view.producer(value, "Add", "Sub")
    if node is None:
        return
    a, b = node.inputs
    if a is None or b is None:
        return
    sign = 1.0 if op_of(node) == "Add" else -1.0
    if view.const(a) is None:
        yield Peel(AddTerm(b, sign), a)
    if op_of(node) == "Add" and view.const(b) is None:
        yield Peel(AddTerm(a), b)


def peel_where(view: GraphView, value: ir.Value) -> Iterator[Peel]:
    """Where(keep, score, fill) and Where(drop, fill, score)."""
    node = view.producer(value, "Where")
    if node is None:
        return
    cond, yes, no = node.inputs
    if cond is None or yes is None or no is None:
        return
    for score, fill, inverted in ((yes, no, False), (no, yes, True)):
        if view.const(score) is not None:
            continue
        number = _uniform(view, fill)
        if number is not None and number == number:
            yield Peel(Select(cond, inverted, number), score)


def _uniform(view: GraphView, value: ir.Value) -> float | None:
    """The one number that a value holds everywhere."""
    array = view.const(value)
    if array is not None and array.size:
        first = array.reshape(-1)[0]
        return float(first) if bool((array == first).all()) else None
    dims = view.shape(value)
    if dims is None:
        return None
    shape = (*(1,) * max(0, 2 - len(dims)), *(d if d is not None else f"{value.name}.{n}" for n, d in enumerate(dims)))
    tracer = Tracer(view, shape, "f64" if value.dtype == ir.DataType.DOUBLE else "f32")
    try:
        found = tracer.everywhere(value)
    except Untraceable:
        return None
    return float(found.value) if isinstance(found, Float) else None


def read_terms(
    view: GraphView,
    step: AddTerm | Select | Map,
    shape: tuple[Dim, ...],
    dtype: str,
    before: Sequence[Term] = (),
) -> list[Term]:
    """The mask terms that a step on a score of `shape` means, when `before` has already been done to it.

    Raises NoMatch when the step's tensors do not provably broadcast to the score.
    """
    try:
        try:
            return _read_terms(Reader(view, shape, dtype), step, before)
        except TooComplex:
            return _read_terms(Reader(view, shape, dtype, traces=False), step, before)
    except TooComplex as e:
        raise NoMatch("a mask is too large an expression") from e
    except ValueError as e:
        raise NoMatch(str(e)) from e


def _chosen_by_number(reader: Reader, keep: Expr) -> ScoreExpr | None:
    """The condition on which a number is 1 and otherwise 0, of one that is cast to a condition; None for every other mask."""
    if not isinstance(keep, Call) or keep.op != "Cast" or not isinstance(keep.args[0], ir.Value):
        return None
    match reader.read(keep.args[0], "float"):
        case Apply("Where", (condition, Float(1.0), Float(0.0))):
            return condition
    return None


def _read_terms(reader: Reader, step: AddTerm | Select | Map, before: Sequence[Term]) -> list[Term]:
    match step:
        case Select(keep, inverted, fill, drops):
            cond = _chosen_by_number(reader, keep) or reader.read(keep, "bool")
            return keep_where_true(reader, reader.algebra.negate(cond) if inverted else cond, fill, drops=drops)
        case AddTerm(value, factor):
            return add_bias_terms(reader, reader.read(value, "float"), factor, before)
        case Map(expr, values, label):
            whole = SCORE not in reader.leaves_of(expr)
            read = [reader.whole(v) if whole else reader.read(v) for v in values]
            return [map_score(reader, expr, read, label)]
