"""Puts together what was peeled off: steps become scale, modifications and mask terms; the whole an AttentionSpec."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.view import DTYPES, Array, GraphView
from onnx_fa.match.types import (
    AddTerm,
    Call,
    Cap,
    Const,
    Expr,
    Factor,
    Guard,
    Map,
    MaskRule,
    Match,
    NoMatch,
    Nothing,
    OperandChoice,
    Operands,
    Regroup,
    Scale,
    Select,
    Step,
    Term,
)
from onnx_fa.spec.attention import (
    AddMask,
    AttentionSpec,
    BoolMask,
    Causal,
    Dim,
    Elementwise,
    EmptyRow,
    MaskTerm,
    Quantized,
    ScoreMod,
    SlidingWindow,
    Softcap,
    TensorArg,
    term_tensors,
)
from onnx_fa.spec.expr import SCORE, Kind, ScoreExpr, kind_of, leaves, substitute


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
    v_factors: Sequence[Expr] = (),
    weights: Expr | None = None,
    keeps: bool = False,
) -> Match:
    """Folds steps into scale, modifications and mask terms, and checks that everything fits an AttentionSpec.

    `v_factors` (..., 1, Skv) multiply the probabilities; they are applied to V. `weights` (..., Sq, Skv) multiply them too,
    as floats, or as booleans where they say which ones it `keeps`.
    """
    if dtype is None:
        raise NoMatch(f"element type {output.dtype} is not a float type that attention is defined on", anchor)
    o = operands
    sizes: dict[str, tuple[Dim, ...]] = {
        "keys": (o.Skv,),
        "queries": (o.Sq,),
        "head dims": (o.D, o.Dv),
        "heads": (o.Hq,),
        "batch rows": o.batch,
    }
    for what, dims in sizes.items():
        if 0 in dims:
            raise NoMatch(f"there are no {what}, so that nothing is computed", anchor)
    o = replace(o, k=_of_type(o.k, dtype), v=_of_type(o.v, dtype))
    for choice in (o.q, o.k, o.v):
        if (
            choice.integers is None
            and isinstance(choice.value, ir.Value)
            and DTYPES.get(choice.value.dtype or ir.DataType.UNDEFINED) != dtype
        ):
            raise NoMatch("Q, K, V and the output have different element types", anchor)
    score_shape = (*o.batch, o.Hq, o.Sq, o.Skv)
    steps, q = _onto_q(view, mask, steps, o.q, score_shape, dtype)
    o = replace(o, q=q, v=_onto_v(view, mask, v_factors, o, dtype, anchor))
    scale, mods, terms = _fold(view, mask, steps, score_shape, dtype, anchor)
    scale *= o.q.scale * o.k.scale
    if not (math.isfinite(scale) and math.isfinite(o.v.scale)):
        raise NoMatch("a scale is not finite", anchor)
    terms += extra_terms
    terms = _tighten(terms, scale, dtype)
    masks = tuple(t.term for t in terms)
    sink_arg: TensorArg | None = None
    weights_arg: TensorArg | None = None
    value_operands = (o.q.value, o.k.value, o.v.value, *(x for t in terms for x in t.operands))
    if weights is not None:
        read: ScoreExpr = ("ToFloat", ("tensor", 0)) if keeps else ("tensor", 0)
        (fitted,) = mask(view, Map(read, (weights,)), score_shape, dtype)
        (weights_arg,) = term_tensors(fitted.term)
        value_operands = (*value_operands, *fitted.operands)
    if sink is not None:
        # A sink is fitted to the score as a mask would be, but has no keys.
        (fitted,) = mask(view, Map(("tensor", 0), (sink,)), (*score_shape[:-1], 1), dtype)
        (sink_arg,) = term_tensors(fitted.term)
        value_operands = (*value_operands, *fitted.operands)
    integers = (o.k.integers, o.v.integers)
    value_operands = (*value_operands, *(x for i in integers if i is not None for x in i.operands))
    wrap = (*o.wrap, *wrap)
    o_layout, out_value = (
        _output_layout(view, output, len(o.batch) + 3)
        if not (wrap or o.rank2 or presents or o.o_layout)
        else (o.o_layout, output)
    )
    if o.rank2:
        wrap = (lambda e: Call("Squeeze", (e, Const(np.asarray([0], np.int64)))), *wrap)
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
            weights=weights_arg,
            empty_row=_empty_row(masks, guard),
            q_layout=o.q.layout,
            k_layout=o.k.layout,
            v_layout=o.v.layout,
            o_layout=o_layout,
            k_quant=_quantized(o.k, (*o.batch, o.Hkv, o.Skv, o.D)),
            v_quant=_quantized(o.v, (*o.batch, o.Hkv, o.Skv, o.Dv)),
        )
    except ValueError as e:
        raise NoMatch(str(e), anchor) from e
    return Match(name, op, form, spec, value_operands, out_value, anchor, wrap, presents)


def _of_type(choice: OperandChoice, dtype: str) -> OperandChoice:
    """The reading itself, or where its integers stand for numbers of another type, the one behind the dequantisation."""
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


_LEAST_FILL = -1e4
"""What masked scores must become at most."""
_LARGEST = 3.4028234663852886e38
"""Of the finite numbers of type f32."""


def _numpy_types() -> dict[str, type]:
    import ml_dtypes

    return {"f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


NUMPY = _numpy_types()


def _onto_q(
    view: GraphView, mask: MaskRule, steps: Sequence[Step], q: OperandChoice, shape: tuple[Dim, ...], dtype: str
) -> tuple[list[Step], OperandChoice]:
    """Factors of whole rows that come before anything but other factors multiply Q instead, which every kernel can do."""
    rest: list[Step] = []
    for i, step in enumerate(steps):
        if not isinstance(step, (Scale, Factor, Nothing)):
            return [*rest, *steps[i:]], q
        if not isinstance(step, Factor):
            rest.append(step)
            continue
        try:
            (term,) = mask(view, Map(("tensor", 0), (step.value,)), (*shape[:-1], 1), dtype)
        except NoMatch:  # one number per key, of a score whose keys are not its last axis
            return [*rest, *steps[i:]], q
        (arg,), (operand,) = term_tensors(term.term), term.operands
        if arg.dtype != dtype or dtype == "f16" or _is_huge(view, step.value, step.divide):
            # The score was widened before, or Q might overflow where the score does not.
            rest.append(step)
            continue
        if not _finite_where_known(view, step.value, step.divide):
            raise NoMatch("a scale is not finite")
        value = Call("Div" if step.divide else "Mul", (q.value, _laid_out(operand, arg.shape, q.layout)))
        q = replace(q, value=value)
    return rest, q


_HUGE = 1e18
"""A factor beyond this, as far as it is a constant, stays with the score: the squares of such numbers overflow in f32."""


def _known_numbers(view: GraphView, factor: Expr) -> Array | None:
    """The numbers of a factor that is a constant, perhaps with its axes moved."""
    while isinstance(factor, Call):
        factor = factor.args[0]
    return factor.array if isinstance(factor, Const) else view.const(factor)


def _is_huge(view: GraphView, factor: Expr, divide: bool) -> bool:
    """Whether Q times the factor (or divided by it) might overflow where the score does not."""
    array = _known_numbers(view, factor)
    if array is None:
        return False
    sizes = np.abs(array.astype(np.float64))
    sizes = sizes[np.isfinite(sizes)]
    return bool((sizes < 1 / _HUGE).any() if divide else (sizes > _HUGE).any())


def _finite_where_known(view: GraphView, factor: Expr, divide: bool) -> bool:
    """Whether a factor (or what it is divided by) is finite, as far as it is a constant: infinity times Q is not the score's."""
    array = _known_numbers(view, factor)
    return array is None or bool(np.isfinite(array).all() and not (divide and (array == 0).any()))


def _onto_v(
    view: GraphView, mask: MaskRule, factors: Sequence[Expr], o: Operands, dtype: str, at: ir.Node
) -> OperandChoice:
    """V times factors of its rows, one per key."""
    v = o.v.integers.plain if factors and o.v.integers is not None else o.v
    for factor in factors:
        (term,) = mask(view, Map(("tensor", 0), (factor,)), (*o.batch, o.Hq, 1, o.Skv), dtype)
        (arg,), (operand,) = term_tensors(term.term), term.operands
        if len(arg.shape) > 2 and arg.shape[-3] != 1 and o.Hq != o.Hkv:
            raise NoMatch("a factor on the probabilities differs between heads that share V", at)
        if arg.dtype != dtype:
            raise NoMatch("a factor on the probabilities and V have different element types", at)
        if dtype == "f16":
            raise NoMatch("V times a factor on the probabilities might overflow in f16", at)
        rank = len(arg.shape)
        if rank == 1:
            operand, dims = Call("Unsqueeze", (operand, Const(np.asarray([1], np.int64)))), (arg.shape[0], 1)
        else:
            swap = (*range(rank - 2), rank - 1, rank - 2)
            operand, dims = Call("Transpose", (operand,), (("perm", swap),)), tuple(arg.shape[a] for a in swap)
        v = replace(v, value=Call("Mul", (v.value, _laid_out(operand, dims, v.layout))))
    return v


def _laid_out(operand: Expr, dims: tuple[Dim, ...], layout: tuple[int, ...]) -> Expr:
    """An operand that broadcasts to a canonical tensor, so that it broadcasts to the tensor as stored."""
    rank = len(layout)
    if layout == tuple(range(rank)) or all(d == 1 for d in dims):
        return operand
    if len(dims) < rank:
        operand = Call("Unsqueeze", (operand, Const(np.arange(rank - len(dims), dtype=np.int64))))
    return Call("Transpose", (operand,), (("perm", layout),))


def _fold(
    view: GraphView, mask: MaskRule, steps: Sequence[Step], shape: tuple[Dim, ...], dtype: str, at: ir.Node
) -> tuple[float, tuple[ScoreMod, ...], list[Term]]:
    scale = 1.0
    mods: list[ScoreMod] = []
    terms: list[Term] = []
    for step in _plain_steps(view, steps):
        match step:
            case Nothing():
                pass
            case Regroup():
                raise NoMatch("axes of the score are moved", step.node)
            case Scale(factor):
                if not math.isfinite(factor):
                    raise NoMatch("a scale is not finite", at)
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
            case Factor(value, divide):
                factor_of = ("Div" if divide else "Mul", SCORE, ("tensor", 0))
                terms += mask(view, Map(factor_of, (value,), "scale"), shape, dtype)
            case AddTerm() | Select() | Map():
                terms += mask(view, step, shape, dtype, terms)
    return scale, tuple(mods), terms


def _plain_steps(view: GraphView, steps: Sequence[Step]) -> list[Step]:
    """The steps that do something, each in the one way that it is written here, however the graph spelled it."""
    rest: list[Step] = []
    for step in steps:
        if isinstance(step, AddTerm):
            number = view.scalar(step.value) if isinstance(step.value, ir.Value) else None
            if number is not None and math.isfinite(number):
                step = Map(("Add", SCORE, ("f", number * step.factor)), label="add")
        rest += _links(step) if isinstance(step, Map) else [] if isinstance(step, Nothing) else [step]
    i = 0
    while i + 1 < len(rest):  # c * tanh(x), wherever its factors stand, is a softcap c * tanh(c * x / c)
        step, after = rest[i], rest[i + 1]
        if isinstance(step, Map) and step.expr == ("Tanh", SCORE) and isinstance(after, Scale) and after.factor:
            rest[i : i + 2] = [Scale(after.factor), Cap(abs(after.factor))]
        i += 1
    return rest


def _links(step: Map) -> list[Step]:
    """A function that reads the score once, as a chain of functions of one op each; factors as scales."""
    expr = step.expr
    if expr == SCORE:
        return []
    at = [i for i, a in enumerate(expr[1:], 1) if isinstance(a, tuple) and SCORE in leaves(a)]
    if len(at) != 1 or sum(leaf == SCORE for leaf in leaves(expr)) != 1:
        return [step]
    inner, outer = expr[at[0]], (*expr[: at[0]], SCORE, *expr[at[0] + 1 :])
    match outer:
        case ("Neg", _):
            link: Step = Scale(-1.0)
        case ("Mul", ("f", factor), _) | ("Mul", _, ("f", factor)):
            link = Scale(factor)
        case ("Div", ("score",), ("f", factor)) if factor:
            link = Scale(1.0 / factor)
        case ("Add", _, ("f", 0.0)):
            link = Nothing()
        case _:
            link = _part(step, outer)
    kinds = [_kind(v) for v in step.values]
    try:
        if inner != SCORE and kind_of(inner, kinds) != "float":
            return [step]
    except ValueError:
        return [step]
    return [*_links(_part(step, inner)), *([] if isinstance(link, Nothing) else [link])]


def _part(step: Map, expr: ScoreExpr) -> Map:
    """A part of a step's expression, with the tensors that it reads."""
    read = sorted({leaf[1] for leaf in leaves(expr) if leaf[0] == "tensor"})
    renumbered = substitute(expr, lambda leaf: ("tensor", read.index(leaf[1])) if leaf[0] == "tensor" else leaf)
    return Map(renumbered, tuple(step.values[i] for i in read), step.label if expr == step.expr else "elementwise")


def _kind(value: Expr) -> Kind:
    """What an operand is in a score expression, float where that is not known."""
    dtype = value.dtype if isinstance(value, ir.Value) else None
    if isinstance(value, Const):
        dtype = ir.DataType.from_numpy(value.array.dtype)
    if dtype == ir.DataType.BOOL:
        return "bool"
    return "int" if dtype in (ir.DataType.INT32, ir.DataType.INT64) else "float"


def _scalable(term: Term, factor: float) -> bool:
    """Whether scaling the score before this term, and the term with it, is the same as scaling behind it."""
    t = term.term
    if isinstance(t, (BoolMask, Causal, SlidingWindow)) and t.fill != -math.inf:
        # Else it would no longer be a mask, or become -inf, which a row without keys shows.
        return factor > 0 and -_LARGEST <= t.fill * factor <= _LEAST_FILL
    return factor > 0 and not isinstance(t, Elementwise)


_LARGEST_PRODUCT = {"f16": 1e3}
"""A product of Q and K is below this before it is scaled, 1e30 in other types."""


def _tighten(terms: list[Term], scale: float, dtype: str) -> list[Term]:
    """A causal mask that always leaves key 0, and is alone, gives masked keys a probability of exactly zero whatever its fill,
    unless the scale makes scores of the fill's size: then -inf says the same, and whole blocks may be skipped."""
    if len(terms) == 1 and isinstance(terms[0].term, Causal):
        mask = terms[0].term
        is_beyond = mask.fill <= -_LARGEST_PRODUCT.get(dtype, 1e30) * abs(scale)
        if isinstance(mask.offset, int) and mask.offset >= 0 and is_beyond:
            return [Term(replace(mask, fill=-math.inf))]
    return terms


def _scaled(term: Term, factor: float) -> Term:
    t = term.term
    if isinstance(t, AddMask):
        return Term(replace(t, factor=t.factor * factor), term.operands)
    assert not isinstance(t, Elementwise)
    return Term(replace(t, fill=t.fill * factor), term.operands)


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
