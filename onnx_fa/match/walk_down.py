"""From the probabilities of a softmax down to every product with V: what is peeled off them, in which order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import GraphView
from onnx_fa.match.exprs import Expr
from onnx_fa.match.in_place import check_layer
from onnx_fa.match.misses import NoMatch
from onnx_fa.match.no_product import refuse_combined, refuse_product
from onnx_fa.match.shown import only_shows
from onnx_fa.match.types import (
    After,
    Anchor,
    Behind,
    Guard,
    OwnSum,
    Patterns,
    Product,
    Select,
    Shown,
    Step,
    Weighting,
)
from onnx_fa.match.walk_up import _MAX_LAYERS
from onnx_fa.spec.terms import MOST_ROUNDINGS, Rounding


@dataclass(frozen=True)
class _Peeled:
    """What was peeled off the probabilities so far."""

    prob: ir.Value
    guard: Guard = ""
    wrap: tuple[Callable[[Expr], Expr], ...] = ()
    keys: tuple[Expr, ...] = ()
    steps: tuple[Step, ...] = ()
    drops: tuple[Select, ...] = ()
    cut: bool = False
    regroups: tuple[ir.Node, ...] = ()
    rounding: Rounding | None = None
    weights: Expr | None = None
    shown: tuple[Shown, ...] = ()
    renormalised: bool = False
    total: OwnSum | None = None

    @property
    def meaning(self) -> tuple[object, ...]:
        """What makes the probabilities others than those of the softmax."""
        return (
            self.guard,
            self.wrap,
            self.keys,
            self.steps,
            self.drops,
            self.cut,
            self.rounding,
            self.renormalised,
            self.total,
        )


def walk_after(view: GraphView, anchor: Anchor, patterns: Patterns) -> list[Behind]:
    """From the probabilities to every product with V that reads them."""
    return _walk_behind(view, anchor, patterns, _Peeled(anchor.prob), None)


def _walk_behind(
    view: GraphView, anchor: Anchor, patterns: Patterns, state: _Peeled, only: ir.Node | None, depth: int = 0
) -> list[Behind]:
    if depth > _MAX_LAYERS:
        raise NoMatch(f"the probabilities branch more than {_MAX_LAYERS} times before the matmul with V", only)
    while True:
        prob = state.prob
        users = [only] if only is not None else [u for u in view.users(prob) if u not in anchor.inside]
        if only is None:
            further = [u for u in users if not only_shows(view, prob, u)]
            if prob.is_graph_output() or 0 < len(further) < len(users):
                state, users = _showing(anchor, state, further), further
        only = None
        if not users:
            raise NoMatch("the softmax result is not used")
        after = next((a for layer in patterns.after if (a := layer(view, anchor, prob, users)) is not None), None)
        if after is not None:
            _check_deferred(anchor, after)
            if anchor.weight is not None:
                check_layer(after)
            new = _add_layer(state, after)
            if state.shown and new.meaning[:1] + new.meaning[3:] != state.meaning[:1] + state.meaning[3:]:
                raise NoMatch("the probabilities are an output, and are changed before they multiply V", users[0])
            state = new
            continue
        joined = patterns.joined_values(view, prob, users, patterns.product)
        if joined is not None:
            return [_before_product(anchor, state, joined)]
        _name_combined(view, patterns, users)
        if len(users) > 1:
            return _walk_branches(view, anchor, patterns, state, users, depth + 1)
        return [_at_product(view, anchor, patterns, state, users[0])]


def _showing(anchor: Anchor, state: _Peeled, further: Sequence[ir.Node]) -> _Peeled:
    """The state with probabilities that are an output too. Raises NoMatch where they are not what multiplies V."""
    if not further:
        raise NoMatch("the softmax result is a graph output")
    if anchor.row_sum is not None or anchor.unscaled:
        raise NoMatch("the exponentials are a graph output before they are divided by their sum")
    if state.keys or state.weights is not None or state.rounding is not None:
        raise NoMatch("the probabilities are a graph output after they are multiplied by a factor per key or rounded")
    if state.renormalised:
        raise NoMatch("the probabilities are a graph output after they are divided by the sum of those that were kept")
    if state.wrap and state.drops:
        raise NoMatch("the probabilities are a graph output after rows and keys of them are set to zero")
    if state.regroups:
        raise NoMatch("the probabilities are a graph output after their axes are moved", state.regroups[-1])
    return replace(state, shown=(*state.shown, Shown(state.prob, state.wrap)))


def _name_combined(view: GraphView, patterns: Patterns, users: Sequence[ir.Node]) -> None:
    """Raises NoMatch for the weighted sum or difference of two softmaxes that could not be parted (`distribute`)."""
    for user in users:
        for node in (user, *view.users(user.outputs[0])) if op_of(user) in ("Sub", "Add", "Mul") else ():
            refused = refuse_combined(view, patterns, node)
            if refused is not None:
                raise refused


def _at_product(view: GraphView, anchor: Anchor, patterns: Patterns, state: _Peeled, node: ir.Node) -> Behind:
    pv = patterns.product(view, node.outputs[0])
    if pv is None:
        raise refuse_product(view, state.prob, node)
    return _before_product(anchor, state, pv)


def _before_product(anchor: Anchor, state: _Peeled, pv: Product) -> Behind:
    node = pv.node
    sides = [i for i, x in enumerate(pv.operands) if x is state.prob]
    if len(sides) != 1:
        raise NoMatch("the probabilities are multiplied by themselves", node)
    if anchor.column and not state.cut:
        raise NoMatch("the column of the sink is not cut off before the matmul with V", node)
    if anchor.unscaled and not (state.steps or state.renormalised):
        raise NoMatch("exponentials are not divided by their sum", node)
    weighting = Weighting(pv, sides[0], state.prob, state.regroups)
    if state.wrap and not keeps_rows(weighting):
        raise NoMatch("the axes move between a factor on the probabilities and the matmul with V", node)
    return Behind(
        weighting,
        state.guard,
        state.wrap,
        state.keys,
        state.steps,
        state.drops,
        state.rounding,
        state.weights,
        state.shown,
        state.renormalised,
        state.total,
    )


def keeps_rows(weighting: Weighting) -> bool:
    """Whether the product with V has the axes of the probabilities, but for that of the keys, where V's own stands."""
    out, letters = weighting.product.out, weighting.product.letters[weighting.side]
    if weighting.regroups or len(out) != len(letters):
        return False
    return all(x == y or (x not in out and y not in letters) for x, y in zip(letters, out, strict=True))


def _walk_branches(
    view: GraphView, anchor: Anchor, patterns: Patterns, state: _Peeled, users: list[ir.Node], depth: int
) -> list[Behind]:
    """Every reader must lead to a matmul with V of its own: then each is a site, and nothing else needs the probabilities."""
    found: list[Behind] = []
    for user in users:
        try:
            found += _walk_behind(view, anchor, patterns, state, user, depth)
        except NoMatch as e:
            others = ", ".join(u.name or u.op_type for u in users[:3])
            why = f"the probabilities are read by several nodes ({others}), and not only to multiply V: {e.reason}"
            raise NoMatch(why, e.node or user) from e
    return found


def _check_deferred(anchor: Anchor, after: After) -> None:
    """Raises NoMatch for what happens to exponentials and not to the sum that the product with V is divided by later."""
    if anchor.row_sum is None:
        return
    node = after.value.producer()
    if after.step is not None or after.renormalised:
        raise NoMatch(
            "exponentials are masked and divided by their sum, and the product with V by that of all keys", node
        )
    if after.guard and not anchor.floored:
        raise NoMatch("exponentials are guarded against NaN, and the sum that divides the product with V is not", node)


def _add_layer(state: _Peeled, after: After) -> _Peeled:
    """The state behind one more layer. Raises NoMatch for layers whose order matters and cannot be kept."""
    node = after.value.producer()
    weighted = state.weights is not None
    anew = after.step is not None or after.renormalised
    if weighted and (after.weights is not None or after.drop is not None):
        raise NoMatch("the probabilities are multiplied by two tensors with values per query and key", node)
    if after.weights is not None and (state.rounding is not None or state.drops):
        raise NoMatch("the probabilities are changed before they are multiplied by values per query and key", node)
    if after.guard == "guarded" and state.steps:
        raise NoMatch("probabilities that are masked and divided anew may be NaN, which a guard turns into zero", node)
    if after.guard and (state.wrap or state.keys or weighted):
        raise NoMatch("a guard for empty rows stands behind a factor on the probabilities", node)
    if after.guard == "zero" and state.steps:
        raise NoMatch("a guard for empty rows asks for the scores as they were before they were masked anew", node)
    if anew and (state.wrap or state.keys or state.drops or weighted):
        raise NoMatch("probabilities are changed before they are masked and divided anew", node)
    if after.cut and state.cut:
        raise NoMatch("the probabilities are sliced twice", node)
    if after.rounding is not None and (state.wrap or state.keys or weighted):
        raise NoMatch("the probabilities are changed before they are rounded", node)
    if after.renormalised and (state.steps or state.guard):
        raise NoMatch(
            "probabilities are changed before they are masked and divided anew, with rows of zero guarded", node
        )
    if state.renormalised and (after.guard or after.step is not None):
        raise NoMatch("probabilities that were divided anew are guarded or masked once more", node)
    if state.rounding is not None and (after.guard or after.step is not None or after.drop is not None):
        raise NoMatch("the probabilities are masked or guarded after they are rounded", node)
    if after.total is not None and (state.wrap or state.keys or weighted or state.regroups or state.total is not None):
        raise NoMatch("the weights are changed before they are divided by their sum", node)
    total = state.total if after.total is None else replace(after.total, drops=state.drops)
    drops = state.drops if after.drop is None else (*state.drops, after.drop)
    placed = after.cut or after.rows or after.keys or after.weights or after.step or after.drop or after.guard == "zero"
    if placed and state.regroups:
        raise NoMatch("the axes of the probabilities are moved before they are changed", node)
    return replace(
        state,
        prob=after.value,
        guard=_combine_guards(state.guard, after),
        wrap=state.wrap if after.rows is None else (*state.wrap, after.rows),
        keys=state.keys if after.keys is None else (*state.keys, after.keys),
        steps=state.steps if after.step is None else (*state.steps, after.step),
        drops=() if after.total is not None else drops,
        cut=state.cut or after.cut,
        regroups=state.regroups if after.regroup is None else (*state.regroups, after.regroup),
        rounding=_rounded_anew(state.rounding, after, node),
        weights=after.weights or state.weights,
        renormalised=after.renormalised or state.renormalised,
        total=total,
    )


def _rounded_anew(before: Rounding | None, after: After, node: ir.Node | None) -> Rounding | None:
    """The roundings behind one more layer."""
    if after.rounding is None or before is None:
        return after.rounding or before
    if len(before.chain) >= MOST_ROUNDINGS:
        raise NoMatch(f"the probabilities are rounded more than {MOST_ROUNDINGS} times", node)
    return replace(after.rounding, before=before)


def _combine_guards(before: Guard, after: After) -> Guard:
    """What is left of rows without keys behind one more layer."""
    if after.step is not None:
        return ""  # an empty row is 0 / 0 after a new division
    return "guarded" if before == "guarded" else after.guard or before  # NaN of any kind stays zero
