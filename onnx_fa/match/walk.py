"""From a softmax outward: behind it to the matmul with V and the division, before it to the matmul of Q and K."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from onnx_fa.graph_view import GraphView
from onnx_fa.match.types import (
    AddTerm,
    After,
    Anchor,
    Behind,
    Expr,
    Factor,
    Guard,
    Map,
    NoMatch,
    Nothing,
    Patterns,
    Peel,
    Scale,
    ScoreLayer,
    Select,
    Step,
)

_MAX_LAYERS = 32
_MAX_SOLUTIONS = 8


def walk_after(view: GraphView, anchor: Anchor, patterns: Patterns) -> list[Behind]:
    """From the probabilities to every matmul with V that reads them."""
    unplaced = Behind(anchor.node)  # stands for the matmul until one is found
    return _behind(view, anchor, patterns, anchor.prob, unplaced, None)


def _behind(
    view: GraphView,
    anchor: Anchor,
    patterns: Patterns,
    prob: ir.Value,
    state: Behind,
    only: ir.Node | None,
) -> list[Behind]:
    while True:
        if prob.is_graph_output():
            raise NoMatch("the softmax result is a graph output")
        users = [only] if only is not None else [u for u in view.users(prob) if u not in anchor.inside]
        only = None
        if not users:
            raise NoMatch("the softmax result is not used")
        after = next((a for layer in patterns.after if (a := layer(view, anchor, prob, users)) is not None), None)
        if after is not None:
            prob, state = after.value, _with(state, after)
            continue
        if len(users) > 1:
            return _branches(view, anchor, patterns, prob, state, users)
        node = users[0]
        if node.domain in ("", "ai.onnx") and node.op_type == "MatMul":
            if node.inputs[0] is not prob or node.inputs[1] is prob:
                raise NoMatch("the probabilities are not the left operand of the matmul with V", node)
            if anchor.column and not state.cut:
                raise NoMatch("the column of the sink is not cut off before the matmul with V", node)
            return [replace(state, pv=node)]
        raise NoMatch(f"the softmax result feeds {node.op_type}, not a matmul with V", node)


def _branches(
    view: GraphView, anchor: Anchor, patterns: Patterns, prob: ir.Value, state: Behind, users: list[ir.Node]
) -> list[Behind]:
    """Every reader must lead to a matmul with V of its own: then each is a site, and nothing else needs the probabilities."""
    found: list[Behind] = []
    for user in users:
        try:
            found += _behind(view, anchor, patterns, prob, state, user)
        except NoMatch as e:
            others = ", ".join(u.name or u.op_type for u in users[:3])
            why = f"the probabilities are read by several nodes ({others}), and not only to multiply V: {e.reason}"
            raise NoMatch(why, e.node or user) from e
    return found


def _with(state: Behind, after: After) -> Behind:
    """The state behind one more layer. Raises NoMatch for layers whose order matters and cannot be kept."""
    if after.guard and (state.wrap or state.keys):
        raise NoMatch("a guard for empty rows stands behind a factor on the probabilities", after.value.producer())
    if after.step is not None and (state.wrap or state.keys or state.drops):
        raise NoMatch("probabilities are changed before they are masked and divided anew", after.value.producer())
    if after.cut and state.cut:
        raise NoMatch("the probabilities are sliced twice", after.value.producer())
    guard = "" if after.step is not None else after.guard or state.guard  # an empty row is 0 / 0 after a new division
    return replace(
        state,
        guard=guard,
        wrap=state.wrap if after.rows is None else (*state.wrap, after.rows),
        keys=state.keys if after.keys is None else (*state.keys, after.keys),
        steps=state.steps if after.step is None else (*state.steps, after.step),
        drops=state.drops if after.drop is None else (*state.drops, after.drop),
        cut=state.cut or after.cut,
    )


def apply_drops(steps: Sequence[Step], behind: Behind) -> tuple[list[Step], Guard]:
    """The steps and the guard once probabilities of masked keys are also set to zero behind the softmax.

    Behind the same mask on the score that is exact: a masked key's probability is zero already, unless its whole row is
    masked, and then every probability of the row becomes zero. Raises NoMatch where the score has another mask.
    """
    if not behind.drops:
        return list(steps), behind.guard
    first = behind.drops[0]
    if any((d.keep, d.inverted) != (first.keep, first.inverted) for d in behind.drops):
        raise NoMatch("probabilities are set to zero by different masks", behind.pv)
    masks = [i for i, s in enumerate(steps) if isinstance(s, (Select, AddTerm, Map))]
    mask = steps[masks[0]] if len(masks) == 1 else None
    if not isinstance(mask, Select) or (mask.keep, mask.inverted) != (first.keep, first.inverted):
        raise NoMatch(
            "probabilities are set to zero by a mask that the score does not have as its only mask", behind.pv
        )
    if mask.fill > -6e4:
        raise NoMatch(f"masked scores become {mask.fill:g}, so a masked key may have a probability", behind.pv)
    # Behind a softcap or the like the fill would not reach the softmax as it is.
    if any(not isinstance(s, (Scale, Nothing)) for s in steps[masks[0] + 1 :]):
        raise NoMatch("a score function stands between the mask and the softmax", behind.pv)
    new = list(steps)
    new[masks[0]] = replace(mask, fill=float("-inf"))
    return new, "zero"


def walk_tail(
    view: GraphView, anchor: Anchor, pv: ir.Node, guard: Guard, patterns: Patterns
) -> tuple[ir.Value, Guard, Expr | None]:
    """Behind the matmul with V: the deferred division, around it the guard for empty rows, and a gate that is a sink."""
    output, guard = _divided(view, anchor, pv, guard)
    for layer in patterns.tail:
        tail = layer(view, anchor, output)
        if tail is not None:
            if anchor.sink is not None:
                raise NoMatch("a softmax with a sink is gated by another one", pv)
            return tail.value, guard, tail.sink
    return output, guard, anchor.sink


def _divided(view: GraphView, anchor: Anchor, pv: ir.Node, guard: Guard) -> tuple[ir.Value, Guard]:
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
    while len(view.users(acc)) == 1 and view.users(acc)[0].op_type == "Identity" and not acc.is_graph_output():
        acc = view.users(acc)[0].outputs[0]
    users = view.users(acc)
    if acc.is_graph_output() or len(users) != 1:
        raise NoMatch("the product with V is not divided by the row sum", pv)
    node = users[0]
    if view.producer(node.outputs[0], "Div") is not None and node.inputs[0] is acc:
        if node.inputs[1] is not total:
            raise NoMatch("the product with V is divided by something else than the row sum", node)
        return node.outputs[0], guard
    if view.producer(node.outputs[0], "Mul") is not None:
        other = node.inputs[1] if node.inputs[0] is acc else node.inputs[0]
        if other is not None and reciprocal_of(view, other) is total:
            return node.outputs[0], guard
    raise NoMatch("the product with V is not divided by the row sum", pv)


def reciprocal_of(view: GraphView, value: ir.Value | None) -> ir.Value | None:
    """x, where `value` is Reciprocal(x), 1 / x or x to the power of -1."""
    node = view.producer(value, "Reciprocal", "Div", "Pow")
    if node is None:
        return None
    if node.op_type == "Reciprocal":
        return node.inputs[0]
    if node.op_type == "Div":
        return node.inputs[1] if view.scalar(node.inputs[0]) == 1.0 else None
    return node.inputs[0] if view.scalar(node.inputs[1]) == -1.0 else None


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


Reading = tuple[tuple[Step, ...], ir.Node]
"""Steps from the matmul outward, and the matmul."""


@dataclass
class _Parser:
    """Every reading of a score. A value is read once, however many layers lead to it."""

    view: GraphView
    layers: Sequence[ScoreLayer]
    seen: dict[ir.Value, list[Reading]] = field(default_factory=dict)
    failure: tuple[int, NoMatch] | None = None

    def read(self, value: ir.Value, depth: int = 0) -> list[Reading]:
        if value not in self.seen:
            self.seen[value] = []  # what is above a value cannot lead back to it
            self.seen[value] = self._read(value, depth)
        return self.seen[value]

    def _read(self, value: ir.Value, depth: int) -> list[Reading]:
        qk = self.view.producer(value, "MatMul")
        if qk is not None:
            return [((), qk)]
        if depth > _MAX_LAYERS:
            self._fail(depth, NoMatch(f"more than {_MAX_LAYERS} layers between the matmul and the softmax"))
            return []
        found: list[Reading] = []
        tried = False
        for layer in self.layers:
            for peel in layer(self.view, value):
                tried = True
                for steps, qk in self.read(peel.inner, depth + 1):
                    if len(found) < _MAX_SOLUTIONS and not self._needs(peel, qk):
                        found.append(((*steps, peel.step), qk))
        if not found and not tried:
            node = value.producer()
            where = "a graph input or constant, not from a matmul of Q and K"
            self._fail(
                depth,
                NoMatch(f"the score comes straight from {where}")
                if node is None
                else NoMatch(f"{node.op_type} between the softmax and a matmul of Q and K is not a known layer", node),
            )
        return found

    def _needs(self, peel: Peel, qk: ir.Node) -> bool:
        """Whether an operand of the layer is itself computed from the score: then it is no mask or bias."""
        return any(self.view.depends(v, qk) for v in operands_of(peel.step))

    def _fail(self, depth: int, reason: NoMatch) -> None:
        # The first wins: layers name the more likely operand of an Add or Mul first.
        if self.failure is None:
            self.failure = (depth, reason)


def operands_of(step: Step) -> list[ir.Value]:
    """The graph values that a step reads."""

    def values(e: Expr) -> list[ir.Value]:
        if isinstance(e, ir.Value):
            return [e]
        return [v for a in getattr(e, "args", ()) for v in values(a)]

    match step:
        case AddTerm() | Factor():
            return values(step.value)
        case Select():
            return values(step.keep)
        case Map():
            return [v for e in step.values for v in values(e)]
    return []


def parse_score(view: GraphView, value: ir.Value, layers: Sequence[ScoreLayer]) -> list[Reading]:
    """Peels layers until a matmul of Q and K: every reading, the likeliest first. Raises NoMatch naming the op that no layer
    knows when there is none."""
    parser = _Parser(view, layers)
    found = parser.read(value)
    if found:
        return found
    if parser.failure is not None:
        raise parser.failure[1]
    raise NoMatch("the score depends on itself: a layer reads what it is applied to", value.producer())
