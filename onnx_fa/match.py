"""The matching engine: anchor at each softmax, walk outward one layer at a time, and name what was found as an AttentionSpec.

A layer is a function from `patterns/` that peels one optional thing (a scale, a mask, a softcap, a transpose, ...). Layers know
nothing of each other, so spellings add up instead of multiplying. What ends in an AttentionSpec is a Match, everything else a
Miss with a reason and a node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import onnx_ir as ir

from onnx_fa.graph_view import DTYPES, Array, GraphView
from onnx_fa.report import Miss
from onnx_fa.spec import (
    AddMask,
    AttentionSpec,
    BoolMask,
    Causal,
    Dim,
    EmptyRow,
    MaskTerm,
    ScoreMod,
    SlidingWindow,
    Softcap,
)


class NoMatch(Exception):
    """Raised while parsing one site; carries the reason and the node that stands in the way."""

    def __init__(self, reason: str, node: ir.Node | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.node = node


# Operand expressions: a graph value, a constant, or a standard op on those that the rewriter adds to the graph.


@dataclass(frozen=True)
class Call:
    """`op(*args)` with integer (or integer list) attributes, to be added to the graph when the site is rewritten."""

    op: str
    args: tuple[Expr, ...]
    attrs: tuple[tuple[str, int | tuple[int, ...]], ...] = ()


@dataclass(frozen=True, eq=False)
class Const:
    array: Array


Expr = ir.Value | Call | Const


@dataclass(frozen=True)
class Anchor:
    """A softmax: of `score`, giving `prob`. With `row_sum`, `prob` is not yet divided by it (deferred division)."""

    node: ir.Node
    op: str
    score: ir.Value
    prob: ir.Value
    row_sum: ir.Value | None = None
    floored: bool = False
    """The row maximum is kept finite, so that an empty row's exponentials are zero."""


# Steps from the matmul's output to the softmax's input, innermost first.


@dataclass(frozen=True)
class Scale:
    factor: float


@dataclass(frozen=True)
class Cap:
    """cap * tanh(score / cap)"""

    cap: float


@dataclass(frozen=True)
class AddTerm:
    """score + factor * value"""

    value: Expr
    factor: float = 1.0


@dataclass(frozen=True)
class Select:
    """score where `keep` is true (false, if `inverted`), else `fill`."""

    keep: Expr
    inverted: bool
    fill: float


@dataclass(frozen=True)
class Nothing:
    """A layer that leaves the value as it is (a cast between float types, Identity)."""


Guard = Literal["", "zero", "guarded"]
"""What becomes of a row without keys: nothing is done about its NaN, or see `AttentionSpec.empty_row`."""

Step = Scale | Cap | AddTerm | Select | Nothing


@dataclass(frozen=True)
class Peel:
    """One layer taken off the score: `step` was applied to `inner`."""

    step: Step
    inner: ir.Value


@dataclass(frozen=True)
class After:
    """One layer taken off behind the softmax: goes on at `value`; `guard` when it turns NaN probabilities into zero."""

    value: ir.Value
    guard: bool = False


@dataclass(frozen=True)
class Term:
    """A mask term and, for tensor masks, its operand."""

    term: MaskTerm
    operand: Expr | None = None


@dataclass(frozen=True)
class OperandChoice:
    """One way to read q, k or v: `value` is the canonical operand, permuted by `layout`, to be multiplied by `scale`.
    `heads` differs from the matmul's own head count where a repeat of K/V heads was peeled off."""

    value: Expr
    layout: tuple[int, ...]
    scale: float
    heads: Dim


@dataclass(frozen=True)
class Match:
    """A recognised site. `operands` are in the spec's order. `wrap` are ops to apply to the site's output, one after the other,
    to get `output`. `presents` are further outputs of the replaced node and what they become."""

    name: str
    op: str
    form: str
    spec: AttentionSpec
    operands: tuple[Expr, ...]
    output: ir.Value
    anchor: ir.Node
    wrap: tuple[Callable[[Expr], Expr], ...] = ()
    presents: tuple[tuple[ir.Value, Expr], ...] = ()
    keep: bool = False
    """Already in a final form that is not to be rewritten again."""


ScoreLayer = Callable[[GraphView, ir.Value], Iterable[Peel]]
MaskRule = Callable[[GraphView, AddTerm | Select, tuple[Dim, ...], str], list[Term]]
AfterLayer = Callable[[GraphView, ir.Value, Sequence[ir.Node]], After | None]


@dataclass(frozen=True)
class Patterns:
    """The ordered tables that `patterns/` fills in."""

    anchors: Callable[[GraphView, ir.Node], Anchor | None]
    score: Sequence[ScoreLayer]
    after: Sequence[AfterLayer]
    operand: Callable[[GraphView, ir.Value, tuple[str, ...], tuple[Dim, ...]], list[OperandChoice]]
    mask: MaskRule
    ops: Sequence[Callable[[GraphView, ir.Node, str], Match | None]] = field(default=())


def find_sites(view: GraphView, patterns: Patterns) -> tuple[list[Match], list[Miss]]:
    """Every attention in the model, in graph order, and a Miss for every softmax or attention op that is not one."""
    matches: list[Match] = []
    misses: list[Miss] = []
    for graph in view.model.graphs():
        if isinstance(graph, ir.Function):
            continue
        for node in graph:
            label = node.name or f"{node.op_type}:{node.outputs[0].name if node.outputs else '?'}"
            anchor = None
            try:
                found = _match_op(view, node, label, patterns)
                if found is None:
                    anchor = patterns.anchors(view, node)
                    if anchor is None:
                        continue
                    found = _match_anchor(view, anchor, label, patterns)
                matches.append(found)
            except NoMatch as miss:
                where = miss.node.name or miss.node.op_type if miss.node is not None else None
                reason = miss.reason if where in (None, label) else f"{miss.reason} (at {where})"
                misses.append(Miss(label, anchor.op if anchor else node.op_type, reason))
    for function in view.model.functions.values():
        for node in function:
            if node.op_type in ("Softmax", "Attention"):
                misses.append(
                    Miss(node.name or node.op_type, node.op_type, f"inside function {function.name}: inline it first")
                )
    return matches, misses


def _match_op(view: GraphView, node: ir.Node, label: str, patterns: Patterns) -> Match | None:
    for rule in patterns.ops:
        found = rule(view, node, label)
        if found is not None:
            return found
    return None


def _match_anchor(view: GraphView, anchor: Anchor, label: str, patterns: Patterns) -> Match:
    pv, guard = _walk_after(view, anchor, patterns)
    output, guard = _walk_tail(view, anchor, pv, guard)
    steps, qk = parse_score(view, anchor.score, patterns.score)
    dtype = DTYPES.get(output.dtype or ir.DataType.UNDEFINED)
    operands = _operands(view, qk, pv, patterns)
    return build_match(
        view,
        patterns.mask,
        name=label,
        op=anchor.op,
        dtype=dtype,
        operands=operands,
        steps=steps,
        guard=guard,
        output=output,
        anchor=anchor.node,
    )


def _walk_after(view: GraphView, anchor: Anchor, patterns: Patterns) -> tuple[ir.Node, Guard]:
    """From the probabilities to the matmul with V: (the matmul, what guards empty rows)."""
    prob = anchor.prob
    guard: Guard = ""
    seen_sum = {u for v in ([anchor.row_sum] if anchor.row_sum is not None else []) if (u := v.producer()) is not None}
    while True:
        users = [u for u in view.users(prob) if u not in seen_sum]
        if prob.is_graph_output():
            raise NoMatch("the softmax result is a graph output")
        if not users:
            raise NoMatch("the softmax result is not used")
        after = next((a for layer in patterns.after if (a := layer(view, prob, users)) is not None), None)
        if after is not None:
            prob, guard = after.value, "guarded" if after.guard else guard
            continue
        if len(users) > 1:
            others = ", ".join(u.name or u.op_type for u in users[:3])
            raise NoMatch(f"the probabilities are read by several nodes ({others})")
        node = users[0]
        if node.domain in ("", "ai.onnx") and node.op_type == "MatMul":
            if node.inputs[0] is prob and node.inputs[1] is not prob:
                return node, guard
            raise NoMatch("the probabilities are not the left operand of the matmul with V", node)
        raise NoMatch(f"the softmax result feeds {node.op_type}, not a matmul with V", node)


def _walk_tail(view: GraphView, anchor: Anchor, pv: ir.Node, guard: Guard) -> tuple[ir.Value, Guard]:
    """Behind the matmul with V: the deferred division, and around it the guard for empty rows, where there are such."""
    acc, total = pv.outputs[0], anchor.row_sum
    if total is None:
        return acc, guard
    guarded = _positive_or(view, acc, total, 0.0)
    if guarded is not None:
        safe = _positive_or(view, total, total, 1.0)
        if safe is None:
            raise NoMatch("only one side of the division by the row sum is guarded", pv)
        acc, total, guard = guarded, safe, "guarded"
    elif anchor.floored:
        safe = _one_if_zero(view, total)
        if safe is None:
            raise NoMatch("a row sum of zero is not guarded, though the row maximum is kept finite", pv)
        total, guard = safe, "zero"
    users = view.users(acc)
    if acc.is_graph_output() or len(users) != 1 or users[0].op_type != "Div" or users[0].inputs[0] is not acc:
        raise NoMatch("the product with V is not divided by the row sum", pv)
    if users[0].inputs[1] is not total:
        raise NoMatch("the product with V is divided by something else than the row sum", users[0])
    return users[0].outputs[0], guard


def _positive_or(view: GraphView, value: ir.Value, total: ir.Value, other: float) -> ir.Value | None:
    """The result of Where(total > 0, value, other), if `value` is read like that."""
    for where in view.users(value):
        test = view.producer(where.inputs[0], "Greater") if where.op_type == "Where" else None
        if test is None or test.inputs[0] is not total or view.scalar(test.inputs[1]) != 0.0:
            continue
        if where.inputs[1] is value and view.scalar(where.inputs[2]) == other:
            return where.outputs[0]
    return None


def _one_if_zero(view: GraphView, total: ir.Value) -> ir.Value | None:
    """The result of Where(total == 0, 1, total), if the sum is read like that."""
    for where in view.users(total):
        test = view.producer(where.inputs[0], "Equal") if where.op_type == "Where" else None
        if test is None or test.inputs[0] is not total or view.scalar(test.inputs[1]) != 0.0:
            continue
        if where.inputs[2] is total and view.scalar(where.inputs[1]) == 1.0:
            return where.outputs[0]
    return None


def parse_score(
    view: GraphView, value: ir.Value, layers: Sequence[ScoreLayer], depth: int = 0
) -> tuple[list[Step], ir.Node]:
    """Peels layers until the matmul of Q and K: (steps innermost first, the matmul). Backtracks where an Add has
    two candidates. Raises NoMatch naming the op that no layer knows."""
    qk = view.producer(value, "MatMul")
    if qk is not None:
        return [], qk
    if depth > 32:
        raise NoMatch("more than 32 layers between the matmul and the softmax")
    failure: NoMatch | None = None
    for layer in layers:
        for peel in layer(view, value):
            try:
                steps, qk = parse_score(view, peel.inner, layers, depth + 1)
            except NoMatch as e:
                failure = failure or e
                continue
            return [*steps, peel.step], qk
    if failure is not None:
        raise failure
    node = value.producer()
    if node is None:
        raise NoMatch("the score comes straight from a graph input or constant, not from a matmul of Q and K")
    raise NoMatch(f"{node.op_type} between the softmax and a matmul of Q and K is not a known layer", node)


def _operands(view: GraphView, qk: ir.Node, pv: ir.Node, patterns: Patterns) -> Operands:
    q, kt, v = qk.inputs[0], qk.inputs[1], pv.inputs[1]
    if q is None or kt is None or v is None:
        raise NoMatch("a matmul lacks an operand", qk)
    shapes = [view.shape(x) for x in (q, kt, v)]
    if any(s is None for s in shapes):
        raise NoMatch("the rank of Q, K or V is unknown", qk)
    qs, ks, vs = (s for s in shapes if s is not None)
    if not len(qs) == len(ks) == len(vs):
        raise NoMatch(f"Q, K and V have different ranks ({len(qs)}, {len(ks)}, {len(vs)})", qk)
    if len(qs) < 2:
        raise NoMatch("a matmul operand is a vector", qk)
    return plan_operands(view, patterns, q, kt, v, qk)


@dataclass(frozen=True)
class Operands:
    """q, k, v as read by the spec, with their named dims."""

    q: OperandChoice
    k: OperandChoice
    v: OperandChoice
    batch: tuple[Dim, ...]
    Hq: Dim
    Hkv: Dim
    Sq: Dim
    Skv: Dim
    D: int
    Dv: int
    rank2: bool = False


def plan_operands(view: GraphView, patterns: Patterns, q: ir.Value, kt: ir.Value, v: ir.Value, at: ir.Node) -> Operands:
    """Names the dims of Q (…, Sq, D), K^T (…, D, Skv) and V (…, Skv, Dv), and peels transposes, head repeats and scales off them.

    Raises NoMatch where a dim cannot be proved equal to the one it must equal.
    """

    def dims(value: ir.Value, letter: str) -> list[Dim]:
        shape = view.shape(value) or ()
        return [d if d is not None else f"{at.name}_{letter}{i}" for i, d in enumerate(shape)]

    qs, ks, vs = dims(q, "q"), dims(kt, "k"), dims(v, "v")
    rank2 = len(qs) == 2
    D = qs[-1] if isinstance(qs[-1], int) else ks[-2]
    Dv = vs[-1]
    if not isinstance(D, int) or not isinstance(Dv, int):
        raise NoMatch("the head dim is not static", at)
    Skv = ks[-1] if isinstance(ks[-1], int) else vs[-2]  # the matmul with V makes them equal
    Sq = qs[-2]
    lead_q, lead_k, lead_v = qs[:-2], ks[:-2], vs[:-2]
    if rank2:
        lead_q, lead_k, lead_v = [1], [1], [1]
    batch = tuple(lead_q[:-1])
    for name, lead in (("K", lead_k), ("V", lead_v)):
        if tuple(lead[:-1]) != batch:
            raise NoMatch(f"the batch dims of Q {list(batch)} and {name} {list(lead[:-1])} are not provably equal", at)
    Hq = lead_q[-1]
    b = tuple(f"b{i}" for i in range(len(batch)))

    def choices(
        value: ir.Value, names: tuple[str, ...], sizes: tuple[Dim, ...], unswapped: tuple[int, ...]
    ) -> list[OperandChoice]:
        if rank2:
            raised = Call("Unsqueeze", (value, Const(np.asarray([0], np.int64))))
            return [OperandChoice(raised, unswapped, 1.0, sizes[len(batch)])]
        return patterns.operand(view, value, names, sizes)

    rank = len(batch) + 3
    straight, swapped = tuple(range(rank)), (*range(rank - 2), rank - 1, rank - 2)
    q_all = choices(q, (*b, "h", "s", "d"), (*batch, Hq, Sq, D), straight)
    k_all = choices(kt, (*b, "h", "d", "s"), (*batch, lead_k[-1], Skv, D), swapped)
    v_all = choices(v, (*b, "h", "s", "d"), (*batch, lead_v[-1], Skv, Dv), straight)
    chosen = common_reading(q_all, k_all, v_all, Hq, at)
    return Operands(*chosen, batch, Hq, chosen[1].heads, Sq, Skv, D, Dv, rank2)


def common_reading(
    q_all: Sequence[OperandChoice],
    k_all: Sequence[OperandChoice],
    v_all: Sequence[OperandChoice],
    Hq: Dim,
    at: ir.Node,
) -> tuple[OperandChoice, OperandChoice, OperandChoice]:
    """The readings furthest up the graph in which K and V have equal heads that group those of Q. Raises NoMatch."""
    q = [c for c in q_all if c.heads == Hq][-1]
    for k in reversed(k_all):
        for v in reversed(v_all):
            if k.heads == v.heads and _groups(Hq, k.heads):
                return q, k, v
    raise NoMatch(f"the heads of Q ({Hq}), K ({k_all[0].heads}) and V ({v_all[0].heads}) do not form groups", at)


def _groups(hq: Dim, hkv: Dim) -> bool:
    return hq == hkv or (isinstance(hq, int) and isinstance(hkv, int) and hkv > 0 and hq % hkv == 0)


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
    value_operands = (o.q.value, o.k.value, o.v.value, *(t.operand for t in terms if t.operand is not None))
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
                if mods:
                    raise NoMatch("a scale after a softcap", at)
                if terms and not factor > 0:
                    raise NoMatch("a scale that is not positive after a mask", at)
                scale *= factor
                terms = [_scaled(t, factor) for t in terms]
            case Cap(cap):
                if terms:
                    raise NoMatch("a softcap after a mask", at)
                if mods or not cap > 0:
                    raise NoMatch("more than one softcap" if mods else "a softcap that is not positive", at)
                mods.append(Softcap(cap))
            case AddTerm() | Select():
                terms += mask(view, step, shape, dtype)
    if not math.isfinite(scale):
        raise NoMatch("the scale is not finite", at)
    return scale, tuple(mods), terms


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
        return Term(replace(t, factor=t.factor * factor), term.operand)
    # A huge finite fill times a scale is still a huge finite fill, unless it overflows.
    fill = max(t.fill * factor, -3.4e38) if math.isfinite(t.fill) else t.fill
    return Term(replace(t, fill=fill), term.operand)


def _empty_row(masks: Sequence[MaskTerm], guard: Guard) -> EmptyRow:
    """A guard decides. Without one, a row that only finite fills have masked is the mean of V."""
    if guard:
        return guard
    fills = [m.fill for m in masks if isinstance(m, (BoolMask, Causal, SlidingWindow))]
    only_finite = bool(fills) and all(map(math.isfinite, fills)) and not any(isinstance(m, AddMask) for m in masks)
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
