"""Turns the steps on a score into a scale, modifications and mask terms, with one spelling for each meaning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir

from onnx_fa.graph.view import GraphView
from onnx_fa.match.exprs import Const, Expr
from onnx_fa.match.misses import NoMatch
from onnx_fa.match.types import AddTerm, Cap, Factor, Map, MaskRule, Nothing, Regroup, Scale, Select, Step, Term
from onnx_fa.spec.dtypes import F32_MAX
from onnx_fa.spec.expr import (
    SCORE,
    Apply,
    Float,
    Kind,
    Score,
    ScoreExpr,
    Tensor,
    kind_of,
    leaves,
    substitute,
    tensors_of,
)
from onnx_fa.spec.terms import AddMask, BoolMask, Causal, Dim, Elementwise, IndexMask, ScoreMod, Softcap

_MAX_MASKING_FILL = -1e4
"""A mask must push scores down to this or lower."""


def fold_steps(
    view: GraphView, mask: MaskRule, steps: Sequence[Step], shape: tuple[Dim, ...], dtype: str, at: ir.Node
) -> tuple[float, tuple[ScoreMod, ...], list[Term]]:
    """The scale, the modifications and the mask terms that the steps mean together, on scores of `shape`. Raises NoMatch, at `at`,
    for a scale that is not finite and for a softcap that is not positive."""
    scale = 1.0
    mods: list[ScoreMod] = []
    terms: list[Term] = []
    for step in _simplify_steps(view, steps):
        match step:
            case Nothing():
                pass
            case Regroup():
                raise NoMatch("axes of the score are moved", step.node)
            case Scale(factor):
                if not math.isfinite(factor):
                    raise NoMatch("a scale is not finite", at)
                if mods or not all(_may_scale_before(t, factor) for t in terms):
                    terms.append(Term(Elementwise(Apply("Mul", SCORE, Float(factor)), label="scale")))
                else:
                    scale *= factor
                    terms = [_scale_term(t, factor) for t in terms]
            case Cap(cap):
                if not cap > 0:
                    raise NoMatch("a softcap that is not positive", at)
                if mods or terms:
                    capped = Apply("Mul", Apply("Tanh", Apply("Div", SCORE, Float(cap))), Float(cap))
                    terms.append(Term(Elementwise(capped, label="softcap")))
                else:
                    mods.append(Softcap(cap))
            case Factor(value, divide):
                factor_of = Apply("Div" if divide else "Mul", SCORE, Tensor(0))
                terms += mask(view, Map(factor_of, (value,), "scale"), shape, dtype)
            case AddTerm() | Select() | Map():
                terms += mask(view, step, shape, dtype, terms)
    return scale, tuple(mods), terms


def _simplify_steps(view: GraphView, steps: Sequence[Step]) -> list[Step]:
    """The steps that do something, with one spelling for each meaning, whatever the graph's own spelling was."""
    rest: list[Step] = []
    for step in steps:
        if isinstance(step, AddTerm):
            number = view.scalar(step.value) if isinstance(step.value, ir.Value) else None
            if number is not None and math.isfinite(number):
                step = Map(Apply("Add", SCORE, Float(number * step.factor)), label="add")
        if isinstance(step, Map):
            rest += _split_into_links(step)
        elif not isinstance(step, Nothing):
            rest.append(step)
    i = 0
    while i + 1 < len(rest):  # c * tanh(x), wherever its factors stand, is a softcap c * tanh(c * x / c)
        step, after = rest[i], rest[i + 1]
        if isinstance(step, Map) and step.expr == Apply("Tanh", SCORE) and isinstance(after, Scale) and after.factor:
            rest[i : i + 2] = [Scale(after.factor), Cap(abs(after.factor))]
        i += 1
    return rest


def _split_into_links(step: Map) -> list[Step]:
    """A function that reads the score once, as a chain of functions of one op each; factors as scales."""
    expr = step.expr
    if expr == SCORE:
        return []
    if not isinstance(expr, Apply) or sum(leaf == SCORE for leaf in leaves(expr)) != 1:
        return [step]
    (inner,) = (a for a in expr.args if SCORE in leaves(a))
    outer = Apply(expr.op, *(SCORE if a is inner else a for a in expr.args))
    match outer:
        case Apply("Neg", (_,)):
            link: Step = Scale(-1.0)
        case Apply("Mul", (Float(factor), _)) | Apply("Mul", (_, Float(factor))):
            link = Scale(factor)
        case Apply("Div", (Score(), Float(factor))) if factor:
            link = Scale(1.0 / factor)
        case Apply("Add", (_, Float(0.0))):
            link = Nothing()
        case _:
            link = _part_of(step, outer)
    kinds = [_kind_of_operand(v) for v in step.values]
    try:
        if inner != SCORE and kind_of(inner, kinds) != "float":
            return [step]
    except ValueError:
        return [step]
    return [*_split_into_links(_part_of(step, inner)), *([] if isinstance(link, Nothing) else [link])]


def _part_of(step: Map, expr: ScoreExpr) -> Map:
    """A part of a step's expression, with the tensors that it reads."""
    read = sorted(tensors_of(expr))
    renumbered = substitute(expr, lambda leaf: Tensor(read.index(leaf.index)) if isinstance(leaf, Tensor) else leaf)
    return Map(renumbered, tuple(step.values[i] for i in read), step.label if expr == step.expr else "elementwise")


def _kind_of_operand(value: Expr) -> Kind:
    """What an operand is in a score expression, float where that is not known."""
    dtype = value.dtype if isinstance(value, ir.Value) else None
    if isinstance(value, Const):
        dtype = ir.DataType.from_numpy(value.array.dtype)
    if dtype == ir.DataType.BOOL:
        return "bool"
    return "int" if dtype in (ir.DataType.INT32, ir.DataType.INT64) else "float"


def _may_scale_before(term: Term, factor: float) -> bool:
    """Whether the factor can move in front of the term: scaling score and term is the same as scaling what the term makes."""
    t = term.term
    if isinstance(t, (BoolMask, IndexMask)) and t.fill != -math.inf:
        # Else it would no longer be a mask, or become -inf, which a row without keys shows.
        return factor > 0 and -F32_MAX <= t.fill * factor <= _MAX_MASKING_FILL
    return factor > 0 and not isinstance(t, Elementwise)


_MAX_PRODUCT = {"f16": 1e3}
"""Products of Q and K are taken to be below this before they are scaled; below 1e30 in types that are not listed."""


def tighten_causal(terms: list[Term], scale: float, dtype: str) -> list[Term]:
    """A causal mask that always leaves key 0, and is alone, gives masked keys a probability of exactly zero whatever its fill,
    unless the scale makes scores of the fill's size: then -inf says the same, and whole blocks may be skipped."""
    if len(terms) == 1 and isinstance(terms[0].term, Causal):
        mask = terms[0].term
        is_beyond = mask.fill <= -_MAX_PRODUCT.get(dtype, 1e30) * abs(scale)
        if isinstance(mask.offset, int) and mask.offset >= 0 and is_beyond:
            return [Term(replace(mask, fill=-math.inf))]
    return terms


def _scale_term(term: Term, factor: float) -> Term:
    t = term.term
    if isinstance(t, AddMask):
        return Term(replace(t, factor=t.factor * factor), term.operands)
    assert not isinstance(t, Elementwise)
    return Term(replace(t, fill=t.fill * factor), term.operands)
