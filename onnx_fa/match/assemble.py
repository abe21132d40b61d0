"""Puts together what was peeled off: steps become scale, modifications and mask terms; the whole an AttentionSpec."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.view import DTYPES, GraphView
from onnx_fa.match.exprs import Call, Const, Expr
from onnx_fa.match.factors import multiply_q, multiply_v
from onnx_fa.match.fold import fold_steps, tighten_causal
from onnx_fa.match.in_place import sink_fills
from onnx_fa.match.misses import NoMatch
from onnx_fa.match.types import Guard, Map, MaskRule, Match, OperandChoice, Operands, Step, Term
from onnx_fa.spec.attention import AttentionSpec, EmptyRow
from onnx_fa.spec.dtypes import NUMPY
from onnx_fa.spec.expr import Apply, ScoreExpr, Tensor
from onnx_fa.spec.terms import (
    BoolMask,
    Dim,
    IndexMask,
    MaskTerm,
    Quantized,
    ScoreMod,
    TensorArg,
    Weighting,
    term_tensors,
)

_MOST_ASKING = 16
"""Nodes that are looked at, between a result and what is viewed by its sizes."""


@dataclass(frozen=True)
class Found:
    """What a walk, or the rule of a whole op, has found of one site."""

    name: str
    """How reports call the site."""
    op: str
    """The op, or the ops, of the softmax, for reports."""
    dtype: str | None
    """The element type of the output; None where attention is not defined on it."""
    operands: Operands
    """Q, K and V with the dims of the site."""
    steps: Sequence[Step]
    """What happens between the product of Q and K and the softmax, in order; tensors broadcast to (*B, Hq, Sq, Skv)."""
    guard: Guard
    """What is done about rows without keys."""
    output: ir.Value
    anchor: ir.Node
    """The node that reports point at. The site is written in front of it."""
    wrap: tuple[Callable[[Expr], Expr], ...] = ()
    """What is done to the result, in order."""
    presents: tuple[tuple[ir.Value, Expr], ...] = ()
    """Further values of the graph that the site makes: caches with their new rows."""
    form: str = "original"
    extra_terms: Sequence[Term] = ()
    """Mask terms behind those of the steps."""
    sink: Expr | None = None
    """One more logit per row, of a shape that broadcasts to (*B, Hq, Sq, 1)."""
    v_factors: Sequence[Expr] = ()
    """Tensors (..., 1, Skv) that multiply the probabilities; they are applied to V."""
    weights: Expr | None = None
    """A tensor (..., Sq, Skv) that multiplies the probabilities, as floats, or as booleans that say which ones it `keeps`."""
    keeps: bool = False
    renormalised: bool = False
    """What the weights keep of a row is divided by its own sum."""
    weighting: Weighting | None = None
    """What stands in place of a softmax."""
    scores: str | None = None
    """The element type of the scores, where that is another one."""
    leaves_as: ir.DataType | None = None
    """What the result is cast to at last, where `output` has another type than the site."""


def build_match(view: GraphView, mask: MaskRule, found: Found) -> Match:
    """Folds steps into scale, modifications and mask terms. Raises NoMatch for what does not fit an AttentionSpec."""
    dtype, anchor = found.dtype, found.anchor
    if dtype is None:
        raise NoMatch(f"element type {found.output.dtype} is not a float type that attention is defined on", anchor)
    operands = _check_operands(found, dtype)
    score_shape = (*operands.batch, operands.Hq, operands.Sq, operands.Skv)
    kind = found.scores or dtype
    steps, q = multiply_q(view, mask, found.steps, operands.q, score_shape, dtype)
    operands = replace(operands, q=q, v=multiply_v(view, mask, found.v_factors, operands, dtype, anchor))
    scale, mods, terms = fold_steps(view, mask, steps, score_shape, kind, anchor)
    scale *= operands.q.scale * operands.k.scale
    if not (math.isfinite(scale) and math.isfinite(operands.v.scale)):
        raise NoMatch("a scale is not finite", anchor)
    terms = [*terms, *found.extra_terms]
    terms = tighten_causal(terms, scale, kind) if found.weighting is None else sink_fills(terms, found.weighting)
    weights, sink = (
        _fit_weights(view, mask, found, score_shape, dtype),
        _fit_sink(view, mask, found, score_shape, kind),
    )
    integers = [i for choice in (operands.k, operands.v) if (i := choice.integers) is not None]
    values = (
        *(operands.q.value, operands.k.value, operands.v.value),
        *(x for term in (*terms, *weights, *sink) for x in term.operands),
        *(x for i in integers for x in i.operands),
    )
    layout, output, wrap = _wrap_output(view, found, operands, dtype)
    spec = _write_spec(operands, dtype, scale, mods, terms, weights, sink, layout, found)
    return Match(found.name, found.op, found.form, spec, values, output, anchor, wrap, found.presents)


def _check_operands(found: Found, dtype: str) -> Operands:
    """The operands, those kept as integers of another type read behind their dequantisation. Raises NoMatch where a dim is zero or
    an element type is not `dtype`."""
    operands, anchor = found.operands, found.anchor
    sizes: dict[str, tuple[Dim, ...]] = {
        "keys": (operands.Skv,),
        "queries": (operands.Sq,),
        "head dims": (operands.D, operands.Dv),
        "heads": (operands.Hq,),
        "batch rows": operands.batch,
    }
    for what, dims in sizes.items():
        if 0 in dims:
            raise NoMatch(f"there are no {what}, so that nothing is computed", anchor)
    operands = replace(operands, k=_of_type(operands.k, dtype), v=_of_type(operands.v, dtype))
    for choice in (operands.q, operands.k, operands.v):
        if (
            choice.integers is None
            and isinstance(choice.value, ir.Value)
            and DTYPES.get(choice.value.dtype or ir.DataType.UNDEFINED) != dtype
        ):
            raise NoMatch("Q, K, V and the output have different element types", anchor)
    return operands


def _fit_weights(
    view: GraphView, mask: MaskRule, found: Found, score_shape: tuple[Dim, ...], dtype: str
) -> Sequence[Term]:
    """The weights of the probabilities as a function of a score of `score_shape`; none where there are none."""
    if found.weights is None:
        return ()
    read: ScoreExpr = Apply("ToFloat", Tensor(0)) if found.keeps else Tensor(0)
    return mask(view, Map(read, (found.weights,)), score_shape, dtype)


def _fit_sink(
    view: GraphView, mask: MaskRule, found: Found, score_shape: tuple[Dim, ...], dtype: str
) -> Sequence[Term]:
    """Fits the sink to the score as a mask is fitted, but to a single key."""
    if found.sink is None:
        return ()
    return mask(view, Map(Tensor(0), (found.sink,)), (*score_shape[:-1], 1), dtype)


def _one_tensor(terms: Sequence[Term]) -> TensorArg | None:
    """What the spec says of weights or of a sink."""
    if not terms:
        return None
    (term,) = terms
    (tensor,) = term_tensors(term.term)
    return tensor


def _wrap_output(
    view: GraphView, found: Found, operands: Operands, dtype: str
) -> tuple[tuple[int, ...], ir.Value, tuple[Callable[[Expr], Expr], ...]]:
    """The layout of the site's result, the value of the graph that it replaces, and what turns the result into that value."""
    wrap = (*operands.wrap, *found.wrap)
    layout, output = operands.o_layout, found.output
    if not (wrap or operands.rank2 or found.presents or operands.o_layout):
        layout, output = _output_layout(view, found.output, len(operands.batch) + 3)
    if operands.rank2:
        wrap = (lambda e: Call("Squeeze", (e, Const(np.asarray([0], np.int64)))), *wrap)
    narrow = found.leaves_as
    factor = operands.v.scale
    if factor != 1.0:
        wrap = (lambda e: Call("Mul", (e, Const(np.asarray(factor, NUMPY[dtype])))), *wrap)
    if narrow is not None:
        wrap = (*wrap, lambda e: Call("Cast", (e,), (("to", int(narrow)),)))
    return layout, output, wrap


def _write_spec(
    operands: Operands,
    dtype: str,
    scale: float,
    mods: tuple[ScoreMod, ...],
    terms: Sequence[Term],
    weights: Sequence[Term],
    sink: Sequence[Term],
    o_layout: tuple[int, ...],
    found: Found,
) -> AttentionSpec:
    """Raises NoMatch where fields contradict each other."""
    masks = tuple(t.term for t in terms)
    try:
        return AttentionSpec(
            dtype=dtype,  # type: ignore[arg-type]
            batch=operands.batch,
            Hq=operands.Hq,
            Hkv=operands.Hkv,
            Sq=operands.Sq,
            Skv=operands.Skv,
            D=operands.D,
            Dv=operands.Dv,
            scale=scale,
            mods=mods,
            masks=masks,
            sink=_one_tensor(sink),
            weights=_one_tensor(weights),
            renormalised=found.renormalised,
            weighting=found.weighting,
            empty_row="nan" if found.weighting is not None else _empty_row(masks, found.guard),
            q_layout=operands.q.layout,
            k_layout=operands.k.layout,
            v_layout=operands.v.layout,
            o_layout=o_layout,
            k_quant=_quantized(operands.k, (*operands.batch, operands.Hkv, operands.Skv, operands.D)),
            v_quant=_quantized(operands.v, (*operands.batch, operands.Hkv, operands.Skv, operands.Dv)),
        )
    except ValueError as e:
        raise NoMatch(str(e), found.anchor) from e


def _of_type(choice: OperandChoice, dtype: str) -> OperandChoice:
    """The reading itself; where its integers stand for numbers of another type than `dtype`, the reading that begins behind the
    dequantisation."""
    return choice if choice.integers is None or choice.integers.number == dtype else choice.integers.plain


def _quantized(choice: OperandChoice, canonical: tuple[Dim, ...]) -> Quantized | None:
    """How an operand is kept as integers, with the dims of the scale named as the site names its own."""
    if choice.integers is None:
        return None
    quant, layout = choice.integers.quant, choice.layout
    axes = layout[len(layout) - len(quant.shape) :]
    shape = tuple(
        d if isinstance(d, int) or axis == len(layout) - 1 else canonical[axis]
        for d, axis in zip(quant.shape, axes, strict=True)
    )
    return replace(quant, shape=shape)


def _empty_row(masks: Sequence[MaskTerm], guard: Guard) -> EmptyRow:
    """What a row without keys yields. A guard decides; without one, a row that only finite fills mask is the mean of V."""
    if guard:
        return guard
    fills = [m.fill for m in masks if isinstance(m, (BoolMask, IndexMask))]
    only_finite = bool(fills) and all(map(math.isfinite, fills)) and len(fills) == len(masks)
    return "mean" if only_finite else "nan"


def _output_layout(view: GraphView, output: ir.Value, rank: int) -> tuple[tuple[int, ...], ir.Value]:
    """Absorbs a Transpose behind the site when it is the only reader and leaves Dv innermost."""
    reader = _only_reader(view, output)
    if reader is not None and view.producer(same := reader.outputs[0], "Reshape") is not None:
        # Exporters view the result in the shape that it has, by sizes of its own.
        shape = view.shape(output)
        is_same = shape is not None and None not in shape and view.shape(same) == shape
        goes = is_same and not view.asking(same) and _serve(view, output, reader)
        reader = _only_reader(view, same) if goes else None
    elif reader is not None and view.asking(output):
        reader = None
    if reader is None or view.producer(reader.outputs[0], "Transpose") is None or "perm" not in reader.attributes:
        return (), output
    perm = tuple(reader.attributes["perm"].as_ints())
    return (perm, reader.outputs[0]) if len(perm) == rank and perm[-1] == rank - 1 else ((), output)


def _only_reader(view: GraphView, value: ir.Value) -> ir.Node | None:
    """The node that alone reads the elements of a value, which is no result of the graph; once."""
    users = view.users(value)
    there = len(users) == 1 and not value.is_graph_output()
    return users[0] if there and list(users[0].inputs).count(value) == 1 else None


def _serve(view: GraphView, value: ir.Value, node: ir.Node) -> bool:
    """Whether what asks for the shape of a value does so for `node` alone, so that all of it goes with that."""
    todo, seen = view.asking(value), set[ir.Node]()
    while todo:
        asked = todo.pop()
        if asked is node or asked in seen:
            continue
        seen.add(asked)
        if any(o.is_graph_output() for o in asked.outputs) or len(seen) > _MOST_ASKING:
            return False
        readers = [use.node for o in asked.outputs for use in o.uses()]
        if not readers or any(r.graph is not node.graph for r in readers):
            return False
        todo += readers
    return True
