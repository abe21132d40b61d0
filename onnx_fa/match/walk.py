"""From a softmax outward: behind it to the matmul with V and the division, before it to the matmul of Q and K."""

from __future__ import annotations

import onnx_ir as ir

from onnx_fa.graph_view import GraphView
from onnx_fa.match.types import Anchor, Guard, NoMatch, Patterns, Product, Scale, Step, Weighting
from onnx_fa.symbolic import known


def walk_after(view: GraphView, anchor: Anchor, patterns: Patterns) -> tuple[Weighting, Guard]:
    """From the probabilities to the product with V: (the product, what guards empty rows)."""
    prob = anchor.prob
    regroups: list[ir.Node] = []
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
            if after.regroup is not None:
                regroups.append(after.regroup)
            continue
        if len(users) > 1:
            others = ", ".join(u.name or u.op_type for u in users[:3])
            raise NoMatch(f"the probabilities are read by several nodes ({others})")
        node = users[0]
        pv = patterns.product(view, node.outputs[0])
        if pv is not None:
            sides = [i for i, x in enumerate(pv.operands) if x is prob]
            if len(sides) != 1:
                raise NoMatch("the probabilities are multiplied by themselves", node)
            return Weighting(pv, sides[0], prob, tuple(regroups)), guard
        raise NoMatch(f"the softmax result feeds {node.op_type}, not a matmul with V", node)


def walk_tail(view: GraphView, anchor: Anchor, weighting: Weighting, guard: Guard) -> tuple[ir.Value, Guard]:
    """Behind the matmul with V: the deferred division, and around it the guard for empty rows, where there are such."""
    pv = weighting.product.node
    acc, total = weighting.product.output, anchor.row_sum
    if total is None:
        return acc, guard
    if weighting.regroups or weighting.side != 0 or weighting.product.letters[0][:-1] != weighting.product.out[:-1]:
        raise NoMatch("the axes move between the row sum and the division by it", pv)
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


def parse_score(view: GraphView, value: ir.Value, patterns: Patterns, depth: int = 0) -> tuple[list[Step], Product]:
    """Peels layers until the product of Q and K: (steps innermost first, the product). Backtracks where an Add has
    two candidates. Raises NoMatch naming the op that no layer knows."""
    qk = patterns.product(view, value)
    if qk is not None:
        return [Scale(qk.factor)] if qk.factor != 1.0 else [], qk
    if depth > 32:
        raise NoMatch("more than 32 layers between the matmul and the softmax")
    failure: NoMatch | None = None
    for layer in patterns.score:
        for peel in layer(view, value):
            try:
                _no_broadcast(view, value, peel.inner)
                steps, qk = parse_score(view, peel.inner, patterns, depth + 1)
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


_ELEMENTWISE = ("Add", "Sub", "Mul", "Div", "Where", "Min", "Max", "Pow", "Mod")


def _no_broadcast(view: GraphView, outer: ir.Value, inner: ir.Value) -> None:
    """Raises NoMatch when the op that made `outer` may have repeated `inner` along some dim: it then has more rows or keys."""
    node = view.producer(outer, *_ELEMENTWISE)
    if node is None or inner not in node.inputs:
        return
    after, before = view.shape(outer), view.shape(inner)
    if after is None or before is None:
        return  # the mask terms ask for the shapes that they need
    pairs = zip(after, before, strict=False)
    if len(after) != len(before) or any(known(a) and a != b and (known(b) or isinstance(a, int)) for a, b in pairs):
        raise NoMatch(f"the score of shape {list(before)} is broadcast to {list(after)}", node)
