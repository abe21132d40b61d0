"""(P1 - f * P2) @ V becomes P1 @ V - f * (P2 @ V): the difference (or sum) of softmaxes as several attentions.

Differential attention (Ye et al. 2024, "Differential Transformer", arXiv:2410.05258, eq. 1) is written with one product. The
product with V is linear in the probabilities, so each softmax can have one of its own, and is then an attention like any other.
Only V's infinities show the difference: inf - inf is NaN, where the original may have multiplied them by the one difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.axes import node_axis, placed_axis
from onnx_fa.graph.builder import OnnxBuilder, names_in
from onnx_fa.graph.dead_code import sweep
from onnx_fa.graph.dims import Shape
from onnx_fa.graph.moves import EACH_ONCE
from onnx_fa.graph.normalise import infer_shapes
from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import FLOATS, GraphView
from onnx_fa.match import Match, NoMatch, Patterns, Product, find_sites
from onnx_fa.spec.terms import Dim

_MAX_LAYERS = 12
"""The search for a softmax above the product with V goes up this many layers."""
_MAX_PRODUCTS = 16
"""One product becomes at most this many, one for each time that a softmax occurs in it."""
_LINEAR = EACH_ONCE | {"Cast", "Dropout", "Mul", "Div"}
"""Ops f with f(a + b) = f(a) + f(b) in their first operand (in either one of Mul), while the others do not depend on it."""
_BEFORE = (*_LINEAR, "Add", "Sub", "Where", "Slice", "Split", "Gather", "Exp")
"""What may lie between a combination and the softmaxes that it combines."""


@dataclass(frozen=True)
class _Combined:
    """A product of V with a combination of these softmaxes."""

    product: Product
    side: int
    softmaxes: frozenset[ir.Node]


def distribute(view: GraphView, patterns: Patterns, accepts: Callable[[Match], bool]) -> bool:
    """Gives, in place, every softmax its own product with V where one product takes several, if all of them are then attentions.

    A product where that does not make sites that `accepts` takes of all softmaxes stays as it is. Returns whether the model was
    changed: then the view is not valid any more.
    """
    softmaxes = _Softmaxes(view, patterns)
    plans = list(_combined(softmaxes))
    if not plans:
        return False
    trial = _Softmaxes(GraphView(view.model.clone()), patterns)
    tried = list(_combined(trial))
    _apply(trial, tried)
    sites = {match.anchor for match in find_sites(GraphView(trial.view.model), patterns)[0] if accepts(match)}
    chosen = [plan for plan, copy in zip(plans, tried, strict=True) if copy.softmaxes <= sites]
    _apply(softmaxes, chosen)
    return bool(chosen)


def _apply(softmaxes: _Softmaxes, plans: Sequence[_Combined]) -> None:
    """Distributes the products."""
    if not plans:
        return
    view = softmaxes.view
    names = names_in(view.model)
    consts: dict[ir.Graph, dict[tuple[str, ...], ir.Value]] = {}
    for plan in plans:
        graph = plan.product.node.graph
        assert isinstance(graph, ir.Graph)
        prefix = plan.product.node.name or plan.product.node.op_type
        builder = OnnxBuilder(graph, view.opset, prefix, names, consts.setdefault(graph, {}))
        _Distribution(softmaxes, plan, builder).apply()
    infer_shapes(view.model)


def _combined(softmaxes: _Softmaxes) -> Iterator[_Combined]:
    """The products that take several softmaxes, in graph order."""
    view = softmaxes.view
    for graph in view.model.graphs():
        if isinstance(graph, ir.Function):
            continue
        for node in graph:
            if len(node.outputs) != 1 or (product := softmaxes.patterns.product(view, node.outputs[0])) is None:
                continue
            for side, operand in enumerate(product.operands):
                if isinstance(operand, ir.Value) and 0 < softmaxes.terms(operand) <= _MAX_PRODUCTS:
                    yield _Combined(product, side, softmaxes.of(operand))
                    break


class _Softmaxes:
    """Which softmaxes a value is made of."""

    def __init__(self, view: GraphView, patterns: Patterns) -> None:
        self.view, self.patterns = view, patterns
        self._of: dict[ir.Value, frozenset[ir.Node]] = {}

    def of(self, value: ir.Value | None, depth: int = 0) -> frozenset[ir.Node]:
        if value is None or depth > _MAX_LAYERS:
            return frozenset()
        if value not in self._of:
            self._of[value] = self._find(value, depth)
        return self._of[value]

    def _find(self, value: ir.Value, depth: int) -> frozenset[ir.Node]:
        node = value.producer()
        if node is None:
            return frozenset()
        if self._is_softmax(node):
            return frozenset({node})
        if self.view.producer(value, *_BEFORE) is None:
            return frozenset()
        return frozenset[ir.Node]().union(*(self.of(i, depth + 1) for i in node.inputs))

    def _is_softmax(self, node: ir.Node) -> bool:
        try:
            return any(rule(self.view, node) is not None for rule in self.patterns.anchors)
        except NoMatch:  # says what it is instead
            return False

    def combination(self, value: ir.Value | None) -> ir.Node | None:
        """The sum or difference of two values made of softmaxes, of the same shape, that makes `value`."""
        node = self.view.producer(value, "Add", "Sub")
        if node is None or not all(self.of(i) for i in node.inputs):
            return None
        a, b = (self.view.shape(i) for i in node.inputs)
        return node if a is not None and a == b and None not in a else None

    def linear(self, value: ir.Value | None) -> tuple[ir.Node, int] | None:
        """The linear op that makes `value`, and which operand holds the probabilities."""
        node = self.view.producer(value, *_LINEAR)
        if node is None or value is not node.outputs[0]:
            return None
        made = [i for i, x in enumerate(node.inputs) if self.of(x)]
        if len(made) != 1 or (made[0] and op_of(node) != "Mul"):
            return None
        if (
            op_of(node) == "Cast"
            and not {node.outputs[0].dtype, node.inputs[0].dtype if node.inputs[0] else None} <= FLOATS
        ):
            return None
        return node, made[0]

    def terms(self, value: ir.Value | None, depth: int = 0) -> int:
        """How many products a product with `value` becomes: 0 if none has to be parted, more than _MAX_PRODUCTS if too many."""
        if depth > _MAX_LAYERS or not self.below_combination(value):
            return 0
        while (combination := self.combination(value)) is None:
            found = self.linear(value)
            assert found is not None
            value = found[0].inputs[found[1]]
        total = 0
        for i in combination.inputs:
            total += self.terms(i, depth + 1) or 1
            if total > _MAX_PRODUCTS:
                break
        return total

    def below_combination(self, value: ir.Value | None) -> bool:
        """Whether only linear ops lie between `value` and a combination."""
        for _ in range(_MAX_LAYERS):
            if self.combination(value) is not None:
                return True
            found = self.linear(value)
            if found is None:
                return False
            value = found[0].inputs[found[1]]
        return False


class _Distribution:
    """Builds the products of one plan, and puts them in the place of the one there was."""

    def __init__(self, softmaxes: _Softmaxes, plan: _Combined, builder: OnnxBuilder) -> None:
        self.view, self.softmaxes, self.plan, self.b = softmaxes.view, softmaxes, plan, builder
        self.wholes: dict[tuple[ir.Value, int, int | None], ir.Value] = {}
        """The product of all heads, by the probabilities, the axis of the heads and how many of them read V."""

    def apply(self) -> None:
        node = self.plan.product.node
        old = node.outputs[0]
        assert node.graph is not None
        new = self._times(node.inputs[self.plan.side], ())
        node.graph.insert_before(node, self.b.nodes)
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        old.name, new.name = new.name, old.name
        sweep([node])

    def _times(self, value: ir.Value | None, chain: tuple[tuple[ir.Node, int], ...]) -> ir.Value:
        """`value`, behind it the linear ops of the chain, times V."""
        combination = self.softmaxes.combination(value)
        if combination is not None:
            terms = [self._times(i, chain) for i in combination.inputs]
            return self._copy(combination, terms, self.plan.product.output)
        found = self.softmaxes.linear(value)
        if found is not None and self.softmaxes.below_combination(value):
            return self._times(found[0].inputs[found[1]], (found, *chain))
        assert value is not None
        of_heads = self._of_heads(value) if not chain else None
        if of_heads is not None:
            return of_heads
        for node, place in chain:
            value = self._with(node, place, value, node.outputs[0])
        return self._with(self.plan.product.node, self.plan.side, value, self.plan.product.output)

    def _of_heads(self, value: ir.Value) -> ir.Value | None:
        """Where `value` is some heads of a softmax, perhaps times a factor per row: those heads of the product of all heads."""
        product, view = self.plan.product, self.view
        v, shape = product.node.inputs[1], view.shape(value)
        if op_of(product.node) != "MatMul" or self.plan.side or v is None or shape is None:
            return None
        found = self.softmaxes.linear(value)
        if found is not None and op_of(found[0]) in ("Mul", "Div"):
            node, place = found
            factor, inner = view.shape(node.inputs[1 - place]), node.inputs[place]
            if inner is None or factor is None or factor[-1:] not in ((), (1,)) or view.shape(inner) != shape:
                return None
            made = self._of_heads(inner)
            return None if made is None else self._with(node, place, made, product.output)
        part = some_heads(view, value)
        if part is None or view.shape(v) is None or len(product.shapes[1]) != len(shape):
            return None
        if not _reads_v_in_order(part, product.shapes[1]):
            return None
        key = part.whole, part.axis, part.width
        if key not in self.wholes:
            self.wholes[key] = self.b.op("MatMul", part.whole, self._v_of_all_heads(part, v, product.shapes[1]))
        whole = self.wholes[key]
        if part.width is None:
            made = self.b.op("Gather", whole, self.b.const(np.asarray(part.start, np.int64)), axis=part.axis)
        else:
            bounds = (part.start, part.start + part.width, part.axis)
            made = self.b.op("Slice", whole, *(self.b.ints(x) for x in bounds))
        made.type, made.shape = product.output.type, product.output.shape
        return made

    def _v_of_all_heads(self, part: Part, v: ir.Value, shape: Shape) -> ir.Value:
        """V for all heads, each part of which reads the same one."""
        if part.width is None:
            return self.b.unsqueeze(v, part.axis)
        if shape[part.axis] == 1:
            return v
        return self.b.op("Concat", *[v] * (part.total // part.width), axis=part.axis)

    def _with(self, node: ir.Node, place: int, value: ir.Value, like: ir.Value) -> ir.Value:
        """The same op with another operand in `place`."""
        return self._copy(node, [value if i == place else x for i, x in enumerate(node.inputs)], like)

    def _copy(self, node: ir.Node, inputs: Sequence[ir.Value | None], like: ir.Value) -> ir.Value:
        out = self.b.op_of(node.domain, node.op_type, inputs, node.attributes)
        out.type, out.shape = like.type, like.shape
        return out


@dataclass(frozen=True)
class Part:
    """Heads [start, start + width) along `axis` of `whole`, which has `total` there; without a width, head `start` and no axis."""

    whole: ir.Value
    axis: int
    start: int
    width: int | None
    total: int


def _reads_v_in_order(part: Part, shape: Shape) -> bool:
    """Whether each of these heads reads the head of V that it has where V is repeated for all heads."""
    if part.width is None or shape[part.axis] == 1:
        return True
    return shape[part.axis] == part.width and part.start % part.width == 0 and part.total % part.width == 0


def some_heads(view: GraphView, value: ir.Value) -> Part | None:
    """The part of probabilities that `value` is, if a Gather, Slice or Split takes it from an axis before queries and keys."""
    node = view.producer(value, "Gather", "Slice", "Split")
    whole = node.inputs[0] if node is not None else None
    shape, shown = view.shape(whole), view.shape(value)
    if node is None or whole is None or shape is None or shown is None or view.opset < 10:
        return None
    rank = len(shape)
    if rank < 3:
        return None
    if op_of(node) == "Gather":
        at, index = node_axis(node, rank), view.const(node.inputs[1])
        if index is None or index.ndim or at is None or at >= rank - 2:
            return None
        size = shape[at]
        if not isinstance(size, int) or not -size <= int(index) < size:
            return None
        return Part(whole, at, int(index) % size, None, size)
    moved = [i for i in range(rank) if shape[i] != shown[i]]
    axis = moved[0] if len(moved) == 1 else rank
    width, total = (shown[axis], shape[axis]) if axis < rank - 2 else (None, None)
    if not (isinstance(width, int) and isinstance(total, int)) or None in shown or not width:
        return None
    if op_of(node) == "Split":
        sizes = [view.shape(o) for o in node.outputs[: node.outputs.index(value)]]
        before = [s[axis] if s is not None else None for s in sizes]
        return Part(whole, axis, sum(before), width, total) if all_ints(before) else None
    start, axes = view.const(node.inputs[1]), view.const(node.inputs[3]) if len(node.inputs) > 3 else None
    step = view.scalar(node.inputs[4]) if len(node.inputs) > 4 and node.inputs[4] is not None else 1.0
    if (
        start is None
        or axes is None
        or start.size != 1
        or placed_axis(int(axes.reshape(-1)[0]), rank) != axis
        or step != 1.0
    ):
        return None
    first = int(start.reshape(-1)[0])
    first = max(first + total, 0) if first < 0 else first
    return Part(whole, axis, first, width, total) if first + width <= total else None


def all_ints(dims: Sequence[Dim | None]) -> TypeGuard[list[int]]:
    return all(isinstance(d, int) for d in dims)
