"""Puts together what was peeled off: steps become scale, modifications and mask terms; the whole an AttentionSpec."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnx_fa.expr import SCORE
from onnx_fa.graph_view import DTYPES, GraphView
from onnx_fa.match.types import (
    AddTerm,
    Call,
    Cap,
    Const,
    Expr,
    Guard,
    Map,
    MaskRule,
    Match,
    NoMatch,
    Nothing,
    Operands,
    Scale,
    Select,
    Step,
    Term,
)
from onnx_fa.spec import (
    AddMask,
    AttentionSpec,
    BoolMask,
    Causal,
    Dim,
    Elementwise,
    EmptyRow,
    MaskTerm,
    ScoreMod,
    SlidingWindow,
    Softcap,
    TensorArg,
    term_tensors,
)


def build_match(
    view: GraphView,
    mask: MaskRule,
    *,
    name: str,
    op: str,
    dtype: str | None,
    operands: Operands,
    steps: Sequence[Step],
    guard: Guard,
    output: ir.Value,
    anchor: ir.Node,
    wrap: tuple[Callable[[Expr], Expr], ...] = (),
    presents: tuple[tuple[ir.Value, Expr], ...] = (),
    form: str = "original",
    extra_terms: Sequence[Term] = (),
    sink: Expr | None = None,
) -> Match:
    """Folds steps into scale, modifications and mask terms, and checks that everything fits an AttentionSpec."""
    if dtype is None:
        raise NoMatch(f"element type {output.dtype} is not a float type that attention is defined on", anchor)
    o = operands
    for choice in (o.q, o.k, o.v):
        if isinstance(choice.value, ir.Value) and DTYPES.get(choice.value.dtype or ir.DataType.UNDEFINED) != dtype:
            raise NoMatch("Q, K, V and the output have different element types", anchor)
    score_shape = (*o.batch, o.Hq, o.Sq, o.Skv)
    scale, mods, terms = _fold(view, mask, steps, score_shape, dtype, anchor)
    scale *= o.q.scale * o.k.scale
    terms += extra_terms
    terms = _tighten(terms)
    masks = tuple(t.term for t in terms)
    sink_arg: TensorArg | None = None
    value_operands = (o.q.value, o.k.value, o.v.value, *(x for t in terms for x in t.operands))
    if sink is not None:
        # A sink is fitted to the score as a mask would be, but has no keys.
        (fitted,) = mask(view, Map(("tensor", 0), (sink,)), (*score_shape[:-1], 1), dtype, ())
        (sink_arg,) = term_tensors(fitted.term)
        value_operands = (*value_operands, *fitted.operands)
    o_layout, out_value = (
        _output_layout(view, output, len(o.batch) + 3) if not (wrap or o.rank2 or presents) else ((), output)
    )
    if o.rank2:
        wrap = (*wrap, lambda e: Call("Squeeze", (e, Const(np.asarray([0], np.int64)))))
    if o.v.scale != 1.0:
        factor = o.v.scale
        wrap = (lambda e: Call("Mul", (e, Const(np.asarray(factor, NUMPY[dtype])))), *wrap)
    try:
        spec = AttentionSpec(
            dtype=dtype,  # type: ignore[arg-type]
            batch=o.batch,
            Hq=o.Hq,
            Hkv=o.Hkv,
            Sq=o.Sq,
            Skv=o.Skv,
            D=o.D,
            Dv=o.Dv,
            scale=scale,
            mods=mods,
            masks=masks,
            sink=sink_arg,
            empty_row=_empty_row(masks, guard),
            q_layout=o.q.layout,
            k_layout=o.k.layout,
            v_layout=o.v.layout,
            o_layout=o_layout,
        )
    except ValueError as e:
        raise NoMatch(str(e), anchor) from e
    return Match(name, op, form, spec, value_operands, out_value, anchor, wrap, presents)


def _numpy_types() -> dict[str, type]:
    import ml_dtypes

    return {"f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


NUMPY = _numpy_types()


def _fold(
    view: GraphView, mask: MaskRule, steps: Sequence[Step], shape: tuple[Dim, ...], dtype: str, at: ir.Node
) -> tuple[float, tuple[ScoreMod, ...], list[Term]]:
    scale = 1.0
    mods: list[ScoreMod] = []
    terms: list[Term] = []
    for step in steps:
        match step:
            case Nothing():
                pass
            case Scale(factor):
                if mods or not all(_scalable(t, factor) for t in terms):
                    terms.append(Term(Elementwise(("Mul", SCORE, ("f", factor)), label="scale")))
                else:
                    scale *= factor
                    terms = [_scaled(t, factor) for t in terms]
            case Cap(cap):
                if not cap > 0:
                    raise NoMatch("a softcap that is not positive", at)
                if mods or terms:
                    capped = ("Mul", ("Tanh", ("Div", SCORE, ("f", cap))), ("f", cap))
                    terms.append(Term(Elementwise(capped, label="softcap")))
                else:
                    mods.append(Softcap(cap))
            case AddTerm() | Select() | Map():
                terms += mask(view, step, shape, dtype, terms)
    if not math.isfinite(scale):
        raise NoMatch("the scale is not finite", at)
    return scale, tuple(mods), terms


def _scalable(term: Term, factor: float) -> bool:
    """Whether scaling the score before this term, and the term with it, is the same as scaling behind it."""
    return factor > 0 and not isinstance(term.term, Elementwise)


def _tighten(terms: list[Term]) -> list[Term]:
    """A causal mask that always leaves key 0, and is alone, gives masked keys a probability of exactly zero whatever its fill:
    then -inf says the same, and whole blocks may be skipped."""
    if len(terms) == 1 and isinstance(terms[0].term, Causal):
        mask = terms[0].term
        if isinstance(mask.offset, int) and mask.offset >= 0:
            return [Term(replace(mask, fill=-math.inf))]
    return terms


def _scaled(term: Term, factor: float) -> Term:
    t = term.term
    if isinstance(t, AddMask):
        return Term(replace(t, factor=t.factor * factor), term.operands)
    assert not isinstance(t, Elementwise)
    # A huge finite fill times a scale is still a huge finite fill, unless it overflows.
    fill = max(t.fill * factor, -3.4e38) if math.isfinite(t.fill) else t.fill
    return Term(replace(t, fill=fill), term.operands)


def _empty_row(masks: Sequence[MaskTerm], guard: Guard) -> EmptyRow:
    """A guard decides. Without one, a row that only finite fills have masked is the mean of V."""
    if guard:
        return guard
    fills = [m.fill for m in masks if isinstance(m, (BoolMask, Causal, SlidingWindow))]
    other = any(isinstance(m, (AddMask, Elementwise)) for m in masks)
    only_finite = bool(fills) and all(map(math.isfinite, fills)) and not other
    return "mean" if only_finite else "nan"


def _output_layout(view: GraphView, output: ir.Value, rank: int) -> tuple[tuple[int, ...], ir.Value]:
    """Absorbs a Transpose behind the site when it is the only reader and leaves Dv innermost."""
    users = view.users(output)
    if not output.is_graph_output() and len(users) == 1 and len(list(output.uses())) == 1:
        node = view.producer(users[0].outputs[0], "Transpose")
        if node is not None and "perm" in node.attributes:
            perm = tuple(node.attributes["perm"].as_ints())
            if len(perm) == rank and perm[-1] == rank - 1:
                return perm, node.outputs[0]
    return (), output
