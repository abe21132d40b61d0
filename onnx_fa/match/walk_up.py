"""From the scores of a softmax up to the product of Q and K: every reading, the likeliest first."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from onnx_fa.graph.dims import broadcast_parts, known
from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import GraphView
from onnx_fa.match.exprs import Expr, values_of
from onnx_fa.match.hints import say_own_scores, say_sizes, say_unknown_op
from onnx_fa.match.misses import NoMatch
from onnx_fa.match.types import AddTerm, Factor, Map, Patterns, Peel, Product, Scale, Select, Step

Reading = tuple[tuple[Step, ...], Product]
"""Steps from the product outward, and the product."""
_MAX_LAYERS = 32
"""Layers between the product of Q and K and the softmax."""
_MAX_SOLUTIONS = 8
"""Readings of one value that are kept."""


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
                    _refuse_broadcast(self.view, value, peel)
                except NoMatch as e:
                    self._fail(e)
                    continue
                for steps, qk in self.read(peel.inner, depth + 1):
                    if self._needs(peel, qk.node):
                        made = say_own_scores(self.view, operands_of(peel.step), qk.node)
                        why = (
                            f"reads what is itself computed from the scores, by {made}; a mask or bias is known before"
                        )
                        self._fail(NoMatch(f"a {self._name(value)} before the softmax {why}", value.producer()))
                    elif len(found) < _MAX_SOLUTIONS:
                        found.append(((*steps, peel.step), qk))
        node = value.producer()
        if not tried and node is None:
            self._fail(NoMatch("the score comes straight from a graph input or constant, not from a matmul of Q and K"))
        elif not tried and node is not None:
            self._fail(NoMatch(say_unknown_op(node), node))
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


def _refuse_broadcast(view: GraphView, outer: ir.Value, peel: Peel) -> None:
    """Raises NoMatch when the op that made `outer` may have repeated the score along some dim: it then has more rows or keys."""
    inner = peel.inner
    node = view.producer(outer, *_ELEMENTWISE)
    if not isinstance(peel.step, Map) and (node is None or inner not in node.inputs):
        return
    after, before = view.shape(outer), view.shape(inner)
    if after is None or before is None:
        return  # the mask terms ask for the shapes that they need
    # Of lengths that are broadcast to each other it is seen later what has which (`joined`).
    pairs = [
        (a, b) for a, b in zip(after, before, strict=False) if len(broadcast_parts(a)) < 2 or not view.takes_in(a, b)
    ]
    if len(after) != len(before) or any(known(a) and a != b and (known(b) or isinstance(a, int)) for a, b in pairs):
        hint = say_sizes(view, [d for a, b in pairs if a != b for d in (a, b)])
        raise NoMatch(f"the score of shape {list(before)} is broadcast to {list(after)}{hint}", outer.producer())
