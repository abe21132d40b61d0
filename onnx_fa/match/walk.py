"""From a softmax outward: behind it to the matmul with V and the division, before it to the matmul of Q and K."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from onnx_fa.graph.ops import op_of
from onnx_fa.graph.symbolic import known
from onnx_fa.graph.view import GraphView
from onnx_fa.match.shown import only_shows
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
    Product,
    Scale,
    Select,
    Step,
    Weighting,
    values_of,
)
from onnx_fa.spec.attention import Rounding

_MAX_LAYERS = 32
_MAX_SOLUTIONS = 8


@dataclass(frozen=True)
class _State:
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
    shown: tuple[ir.Value, ...] = ()

    @property
    def meaning(self) -> tuple[object, ...]:
        """What makes the probabilities others than those of the softmax."""
        return self.guard, self.wrap, self.keys, self.steps, self.drops, self.cut, self.rounding


def walk_after(view: GraphView, anchor: Anchor, patterns: Patterns) -> list[Behind]:
    """From the probabilities to every product with V that reads them."""
    return _behind(view, anchor, patterns, _State(anchor.prob), None)


def _behind(
    view: GraphView, anchor: Anchor, patterns: Patterns, state: _State, only: ir.Node | None, depth: int = 0
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
            new = _with(state, after)
            if state.shown and new.meaning[:1] + new.meaning[3:] != state.meaning[:1] + state.meaning[3:]:
                raise NoMatch("the probabilities are an output, and are changed before they multiply V", users[0])
            state = new
            continue
        joined = patterns.joined_values(view, prob, users, patterns.product)
        if joined is not None:
            return [_before_product(anchor, state, joined)]
        _name_combined(view, users)
        if len(users) > 1:
            return _branches(view, anchor, patterns, state, users, depth + 1)
        return [_at_product(view, anchor, patterns, state, users[0])]


def _showing(anchor: Anchor, state: _State, further: Sequence[ir.Node]) -> _State:
    """The state with probabilities that are an output too. Raises NoMatch where they are not what multiplies V."""
    if not further:
        raise NoMatch("the softmax result is a graph output")
    if anchor.row_sum is not None or anchor.unscaled:
        raise NoMatch("the exponentials are a graph output before they are divided by their sum")
    if state.wrap or state.keys or state.weights is not None or state.rounding is not None:
        raise NoMatch("the probabilities are a graph output after they are multiplied by a factor or rounded")
    if state.regroups:
        raise NoMatch("the probabilities are a graph output after their axes are moved", state.regroups[-1])
    return replace(state, shown=(*state.shown, state.prob))


def _name_combined(view: GraphView, users: Sequence[ir.Node]) -> None:
    """Raises NoMatch for the weighted difference of two softmaxes that could not be parted (`distribute`)."""
    for user in users:
        for value in (user.outputs[0], *(u.outputs[0] for u in view.users(user.outputs[0]))):
            node = view.producer(value, "Sub", "Add")
            if node is not None and op_of(user) in ("Sub", "Add", "Mul") and all(_from_softmax(i) for i in node.inputs):
                what = "the probabilities of two softmaxes are combined (differential attention)"
                raise NoMatch(f"{what}, and not each of them is an attention by itself", node)


def _from_softmax(value: ir.Value | None) -> bool:
    """Whether a softmax makes the value, or one of the factors of a product of few."""
    stack, seen = [value], {value}
    while stack and len(seen) <= _MAX_LAYERS:
        node = value.producer() if (value := stack.pop()) is not None else None
        if node is not None and op_of(node) == "Softmax":
            return True
        above = [i for i in dict.fromkeys(node.inputs) if i not in seen] if node and op_of(node) == "Mul" else []
        seen.update(above)
        stack += above
    return False


def _at_product(view: GraphView, anchor: Anchor, patterns: Patterns, state: _State, node: ir.Node) -> Behind:
    pv = patterns.product(view, node.outputs[0])
    if pv is None:
        raise NoMatch(f"the softmax result feeds {op_of(node)}, not a matmul with V", node)
    return _before_product(anchor, state, pv)


def _before_product(anchor: Anchor, state: _State, pv: Product) -> Behind:
    node = pv.node
    sides = [i for i, x in enumerate(pv.operands) if x is state.prob]
    if len(sides) != 1:
        raise NoMatch("the probabilities are multiplied by themselves", node)
    if anchor.column and not state.cut:
        raise NoMatch("the column of the sink is not cut off before the matmul with V", node)
    if anchor.unscaled and not state.steps:
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
    )


def keeps_rows(weighting: Weighting) -> bool:
    """Whether the product with V has the axes of the probabilities, but for that of the keys, where V's own stands."""
    out, letters = weighting.product.out, weighting.product.letters[weighting.side]
    if weighting.regroups or len(out) != len(letters):
        return False
    return all(x == y or (x not in out and y not in letters) for x, y in zip(letters, out, strict=True))


def _branches(
    view: GraphView, anchor: Anchor, patterns: Patterns, state: _State, users: list[ir.Node], depth: int
) -> list[Behind]:
    """Every reader must lead to a matmul with V of its own: then each is a site, and nothing else needs the probabilities."""
    found: list[Behind] = []
    for user in users:
        try:
            found += _behind(view, anchor, patterns, state, user, depth)
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
    if after.step is not None:
        raise NoMatch(
            "exponentials are masked and divided by their sum, and the product with V by that of all keys", node
        )
    if after.guard and not anchor.floored:
        raise NoMatch("exponentials are guarded against NaN, and the sum that divides the product with V is not", node)


def _with(state: _State, after: After) -> _State:
    """The state behind one more layer. Raises NoMatch for layers whose order matters and cannot be kept."""
    node = after.value.producer()
    weighted = state.weights is not None
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
    if after.step is not None and (state.wrap or state.keys or state.drops or weighted):
        raise NoMatch("probabilities are changed before they are masked and divided anew", node)
    if after.cut and state.cut:
        raise NoMatch("the probabilities are sliced twice", node)
    if after.rounding is not None and (state.wrap or state.keys or weighted or state.rounding is not None):
        raise NoMatch("the probabilities are changed before they are rounded", node)
    if state.rounding is not None and (after.guard or after.step is not None or after.drop is not None):
        raise NoMatch("the probabilities are masked or guarded after they are rounded", node)
    placed = after.cut or after.rows or after.keys or after.weights or after.step or after.drop or after.guard == "zero"
    if placed and state.regroups:
        raise NoMatch("the axes of the probabilities are moved before they are changed", node)
    return replace(
        state,
        prob=after.value,
        guard=_both(state.guard, after),
        wrap=state.wrap if after.rows is None else (*state.wrap, after.rows),
        keys=state.keys if after.keys is None else (*state.keys, after.keys),
        steps=state.steps if after.step is None else (*state.steps, after.step),
        drops=state.drops if after.drop is None else (*state.drops, after.drop),
        cut=state.cut or after.cut,
        regroups=state.regroups if after.regroup is None else (*state.regroups, after.regroup),
        rounding=after.rounding or state.rounding,
        weights=after.weights or state.weights,
    )


def _both(before: Guard, after: After) -> Guard:
    """What is left of rows without keys behind one more layer."""
    if after.step is not None:
        return ""  # an empty row is 0 / 0 after a new division
    return "guarded" if before == "guarded" else after.guard or before  # NaN of any kind stays zero


def apply_drops(steps: Sequence[Step], behind: Behind, anchor: Anchor) -> tuple[list[Step], Guard]:
    """The steps and the guard once probabilities of masked keys are also set to zero behind the softmax.

    Behind the same mask on the score that is exact: a masked key's probability is zero already, unless its whole row is
    masked, and then every probability of the row becomes zero. Raises NoMatch where the score has another mask.
    """
    if not behind.drops:
        return list(steps), behind.guard
    first = behind.drops[0]
    if any((d.keep, d.inverted) != (first.keep, first.inverted) for d in behind.drops):
        raise NoMatch("probabilities are set to zero by different masks", behind.weighting.product.node)
    masks = [i for i, s in enumerate(steps) if isinstance(s, (Select, AddTerm, Map))]
    mask = steps[masks[0]] if len(masks) == 1 else None
    if not isinstance(mask, Select) or (mask.keep, mask.inverted) != (first.keep, first.inverted):
        raise NoMatch(
            "probabilities are set to zero by a mask that the score does not have as its only mask",
            behind.weighting.product.node,
        )
    # Behind a softcap or the like the fill would not reach the softmax as it is.
    after = steps[masks[0] + 1 :]
    if any(not isinstance(s, (Scale, Nothing)) for s in after):
        raise NoMatch("a score function stands between the mask and the softmax", behind.weighting.product.node)
    factor = math.prod(s.factor for s in after if isinstance(s, Scale))
    fill = mask.fill * factor if factor else 0.0
    if not fill <= (-6e4 if anchor.score.dtype == ir.DataType.FLOAT16 else -1e37):
        raise NoMatch(
            f"masked scores become {fill:g}, so a masked key may have a probability", behind.weighting.product.node
        )
    lowest = -65504.0 if anchor.score.dtype == ir.DataType.FLOAT16 else -3.4028234663852886e38
    if anchor.row_sum is not None and not anchor.floored and fill < lowest:
        raise NoMatch(
            "a row without keys is zero before the matmul with V, and its sum, which divides the product, is NaN",
            behind.weighting.product.node,
        )
    new = list(steps)
    new[masks[0]] = replace(mask, fill=math.copysign(math.inf, mask.fill))  # -inf once the factors have been applied
    return new, behind.guard or "zero"


def walk_tail(
    view: GraphView, anchor: Anchor, behind: Behind, patterns: Patterns
) -> tuple[ir.Value, Guard, Expr | None]:
    """Behind the matmul with V: the deferred division, around it the guard for empty rows, and a gate that is a sink."""
    pv = behind.weighting.product.node
    output, guard = _divided(view, anchor, behind.weighting, behind.guard)
    if anchor.floored and anchor.row_sum is None:
        if behind.steps:
            raise NoMatch("probabilities whose row maximum is kept finite are masked and divided anew", pv)
        guard = guard or "zero"
    for layer in patterns.tail:
        tail = layer(view, anchor, output)
        if tail is not None:
            if anchor.sink is not None:
                raise NoMatch("a softmax with a sink is gated by another one", pv)
            if behind.rounding is not None:
                raise NoMatch("the probabilities are rounded without the share of a sink, which a gate stands for", pv)
            if behind.wrap or behind.steps or not keeps_rows(behind.weighting):
                raise NoMatch("the probabilities are changed or moved before a gate that stands for a sink", pv)
            return tail.value, guard, tail.sink
    return output, guard, anchor.sink


def _divided(view: GraphView, anchor: Anchor, weighting: Weighting, guard: Guard) -> tuple[ir.Value, Guard]:
    pv = weighting.product.node
    acc, total = weighting.product.output, anchor.row_sum
    if total is None:
        return acc, guard
    if not keeps_rows(weighting):
        raise NoMatch("the axes move between the row sum and the division by it", pv)
    guarded = _positive_or(view, acc, total, 0.0)
    if guarded is not None:
        safe = _positive_or(view, total, total, 1.0)
        if safe is None:
            raise NoMatch("only one side of the division by the row sum is guarded", pv)
        acc, total, guard = guarded, safe, "guarded"
    elif anchor.floored:
        safe = one_if_zero(view, total)
        if safe is None:
            raise NoMatch("a row sum of zero is not guarded, though the row maximum is kept finite", pv)
        total, guard = safe, "zero"
    while len(view.users(acc)) == 1 and op_of(view.users(acc)[0]) == "Identity" and not acc.is_graph_output():
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
    if op_of(node) == "Reciprocal":
        return node.inputs[0]
    if op_of(node) == "Div":
        return node.inputs[1] if view.scalar(node.inputs[0]) == 1.0 else None
    return node.inputs[0] if view.scalar(node.inputs[1]) == -1.0 else None


def _positive_or(view: GraphView, value: ir.Value, total: ir.Value, other: float) -> ir.Value | None:
    """The result of Where(total > 0, value, other), if `value` is read like that."""
    for where in view.users(value):
        test = view.producer(where.inputs[0], "Greater") if op_of(where) == "Where" else None
        if test is None or test.inputs[0] is not total or view.scalar(test.inputs[1]) != 0.0:
            continue
        if where.inputs[1] is value and view.scalar(where.inputs[2]) == other:
            return where.outputs[0]
    return None


def one_if_zero(view: GraphView, total: ir.Value) -> ir.Value | None:
    """The result of Where(total == 0, 1, total), if the sum is read like that."""
    for where in view.users(total):
        test = view.producer(where.inputs[0], "Equal") if op_of(where) == "Where" else None
        if test is None or test.inputs[0] is not total or view.scalar(test.inputs[1]) != 0.0:
            continue
        if where.inputs[2] is total and view.scalar(where.inputs[1]) == 1.0:
            return where.outputs[0]
    return None


Reading = tuple[tuple[Step, ...], Product]
"""Steps from the product outward, and the product."""


@dataclass
class _Parser:
    """Every reading of a score. A value is read once, however many layers lead to it."""

    view: GraphView
    patterns: Patterns
    seen: dict[ir.Value, list[Reading]] = field(default_factory=dict)
    failure: NoMatch | None = None
    """The first wins: layers name the more likely operand of an Add or Mul first."""

    def read(self, value: ir.Value, depth: int = 0) -> list[Reading]:
        if value not in self.seen:
            self.seen[value] = []  # what is above a value cannot lead back to it
            self.seen[value] = self._read(value, depth)
        return self.seen[value]

    def _read(self, value: ir.Value, depth: int) -> list[Reading]:
        qk = self.patterns.product(self.view, value)
        if qk is not None:
            return [((Scale(qk.factor),) if qk.factor != 1.0 else (), qk)]
        if depth > _MAX_LAYERS:
            return self._fail(NoMatch(f"more than {_MAX_LAYERS} layers between the matmul and the softmax"))
        joined = self.patterns.joined_score(self.view, value, lambda part: self.read(part, depth + 1))
        if joined is not None:
            return [joined]
        found: list[Reading] = []
        tried = False
        for layer in self.patterns.score:
            for peel in layer(self.view, value):
                tried = True
                try:
                    _no_broadcast(self.view, value, peel)
                except NoMatch as e:
                    self._fail(e)
                    continue
                for steps, qk in self.read(peel.inner, depth + 1):
                    if self._needs(peel, qk.node):
                        why = "reads a value that is itself computed from the scores, such as a top-k threshold"
                        self._fail(NoMatch(f"a {self._name(value)} before the softmax {why}", value.producer()))
                    elif len(found) < _MAX_SOLUTIONS:
                        found.append(((*steps, peel.step), qk))
        node = value.producer()
        if not tried and node is None:
            self._fail(NoMatch("the score comes straight from a graph input or constant, not from a matmul of Q and K"))
        elif not tried and node is not None:
            name = op_of(node)
            self._fail(NoMatch(f"{name} between the softmax and a matmul of Q and K is not a known layer", node))
        return found

    def _needs(self, peel: Peel, qk: ir.Node) -> bool:
        """Whether an operand of the layer is itself computed from the score: then it is no mask or bias."""
        return any(self.view.depends(v, qk) for v in operands_of(peel.step))

    def _name(self, value: ir.Value) -> str:
        node = value.producer()
        return op_of(node) if node is not None else "value"

    def _fail(self, reason: NoMatch) -> list[Reading]:
        self.failure = self.failure or reason
        return []


def operands_of(step: Step) -> list[ir.Value]:
    """The graph values that a step reads."""
    match step:
        case AddTerm() | Factor():
            return values_of(step.value)
        case Select():
            return values_of(step.keep)
        case Map():
            return values_of(*step.values)
    return []


def parse_score(view: GraphView, value: ir.Value, patterns: Patterns) -> list[Reading]:
    """Peels layers until a product of Q and K: every reading, the likeliest first. Raises NoMatch naming the op that no layer
    knows when there is none."""
    parser = _Parser(view, patterns)
    found = parser.read(value)
    if found:
        # What another attention made is rather a bias than scores.
        return sorted(found, key=lambda reading: any(is_weights(view, x) for x in reading[1].operands))
    if parser.failure is not None:
        raise parser.failure
    raise NoMatch("no layer leads from the softmax to a matmul of Q and K", value.producer())


_FAR = 100
"""So many nodes away from the scores, they are taken to be used for something else."""


def reader_elsewhere(view: GraphView, qk: ir.Node, outputs: Sequence[ir.Value]) -> ir.Node | None:
    """A node that reads the scores, or what is made of them, for something else than the sites with these outputs or another
    softmax. With such a reader the scores would be computed twice, and once as a whole."""
    inside = {qk}
    stack = [p for o in outputs if (p := o.producer()) is not None]
    while stack:
        node = stack.pop()
        if node in inside:
            continue
        inside.add(node)
        stack += [p for i in node.inputs if i is not None and view.depends(i, qk) and (p := i.producer()) is not None]
    for node in inside:
        for value in node.outputs:
            if value in outputs:
                continue
            if value.is_graph_output():
                return node
            for user in view.users(value):
                if user not in inside and _is_for_something_else(view, user):
                    return user
    return None


def _is_for_something_else(view: GraphView, node: ir.Node) -> bool:
    """Whether a node leads to a graph output, or far away, without another softmax between."""
    seen, stack = {node}, [node]
    while stack:
        node = stack.pop()
        if op_of(node) in ("Softmax", "LogSoftmax", "Exp"):
            continue
        for value in node.outputs:
            if value.is_graph_output() or len(seen) > _FAR:
                return True
            new = [u for u in view.users(value) if u not in seen]
            seen.update(new)
            stack += new
    return False


def is_weights(view: GraphView, value: Expr) -> bool:
    """Whether a matmul's operand looks like the probabilities of an attention."""
    for _ in range(4):
        node = view.producer(value, *_ON_PROBABILITIES) if isinstance(value, ir.Value) else None
        if node is None or node.inputs[0] is None:
            return False
        if op_of(node) in ("Softmax", "Exp"):
            return True
        value = node.inputs[0]
    return False


_ON_PROBABILITIES = ("Softmax", "Exp", "Cast", "Identity", "Dropout", "Div", "Mul", "Slice")
_ELEMENTWISE = ("Add", "Sub", "Mul", "Div", "Where", "Min", "Max", "Pow", "Mod", "Sum", "PRelu")


def _no_broadcast(view: GraphView, outer: ir.Value, peel: Peel) -> None:
    """Raises NoMatch when the op that made `outer` may have repeated the score along some dim: it then has more rows or keys."""
    inner = peel.inner
    node = view.producer(outer, *_ELEMENTWISE)
    if not isinstance(peel.step, Map) and (node is None or inner not in node.inputs):
        return
    after, before = view.shape(outer), view.shape(inner)
    if after is None or before is None:
        return  # the mask terms ask for the shapes that they need
    pairs = zip(after, before, strict=False)
    if len(after) != len(before) or any(known(a) and a != b and (known(b) or isinstance(a, int)) for a, b in pairs):
        raise NoMatch(f"the score of shape {list(before)} is broadcast to {list(after)}", outer.producer())
