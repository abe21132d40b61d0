"""Slice(softmax(scores)) becomes softmax(Slice(scores)): probabilities of which some heads multiply values of their own.

Zipformer's layers multiply V of all heads, and values of a gate by the first head's probabilities alone. A row of a softmax depends
on its own scores alone, so that some heads can have a softmax of their own, whose scores are those heads of Q, K, masks and biases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from onnx_fa.graph.axes import placed_axis
from onnx_fa.graph.builder import OnnxBuilder, names_in
from onnx_fa.graph.dead_code import sweep
from onnx_fa.graph.dims import Shape
from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import GraphView
from onnx_fa.match import Match, Patterns
from onnx_fa.match.prepare.distribute import Part
from onnx_fa.match.prepare.shared_softmax import find_shared, rewrite_where_sites

_ELEMENTWISE = frozenset("Add Sub Mul Div Where Cast Neg Tanh Max Min Identity".split())
"""Ops whose result at one place depends on their operands there alone, and whose operands broadcast."""
_MAX_LAYERS = 32


@dataclass(frozen=True)
class _Cut:
    """Some heads of a softmax, taken by one node."""

    softmax: ir.Node
    taken: ir.Node
    part: Part


def part_heads(view: GraphView, patterns: Patterns, accepts: Callable[[Match], bool]) -> bool:
    """Gives, in place, some heads of a softmax one of their own where both are then sites that `accepts` takes. Returns whether the
    model was changed: then the view is not valid any more."""
    return rewrite_where_sites(view, patterns, accepts, _cuts, _apply)


def _cuts(view: GraphView) -> Iterator[_Cut]:
    """What takes some heads of probabilities that something else reads as well."""
    for softmax, shape, users in find_shared(view):
        for user in users:
            part = _part(view, softmax.outputs[0], shape, user)
            if part is not None:
                yield _Cut(softmax, user, part)


def _part(view: GraphView, prob: ir.Value, shape: Shape, node: ir.Node) -> Part | None:
    """The heads that a Slice takes: those of one axis in front of queries and keys, by known numbers."""
    if view.producer(node.outputs[0], "Slice") is None or node.inputs[0] is not prob or len(node.inputs) < 4:
        return None
    start, end, axes = (view.const(i) for i in node.inputs[1:4])
    step = view.scalar(node.inputs[4]) if len(node.inputs) > 4 and node.inputs[4] is not None else 1.0
    if start is None or end is None or axes is None or axes.size != 1 or step != 1.0:
        return None
    axis = placed_axis(int(axes.reshape(-1)[0]), len(shape))
    total = shape[axis] if axis is not None and axis < len(shape) - 2 else None
    if axis is None or not isinstance(total, int):
        return None
    first, last, _ = slice(int(start.reshape(-1)[0]), int(end.reshape(-1)[0])).indices(total)
    return Part(prob, axis, first, last - first, total) if first < last else None


def _apply(view: GraphView, cut: _Cut) -> set[ir.Node]:
    """Puts a new softmax in the place of what took some heads of the old one; both."""
    graph = cut.softmax.graph
    assert isinstance(graph, ir.Graph)
    prefix = cut.taken.name or cut.softmax.name or "some_heads"
    builder = OnnxBuilder(graph, view.opset, prefix, names_in(view.model), {})
    score = cut.softmax.inputs[0]
    assert score is not None
    shape = view.shape(cut.part.whole)
    assert shape is not None
    heads = _Heads(view, builder, cut.part, cut.part.axis - len(shape))
    made = builder.op_of("", "Softmax", [heads.of(score)], cut.softmax.attributes)
    old = cut.taken.outputs[0]
    made.type, made.shape = old.type, old.shape
    cut.taken.graph.insert_before(cut.taken, builder.nodes)  # type: ignore[union-attr]
    ir.convenience.replace_all_uses_with(old, made, replace_graph_outputs=True)
    sweep([cut.taken])
    new = made.producer()
    assert new is not None
    return {cut.softmax, new}


class _Heads:
    """Makes the same heads of scores, up to the product that makes them."""

    def __init__(self, view: GraphView, builder: OnnxBuilder, part: Part, axis: int) -> None:
        self.view, self.b, self.part, self.axis = view, builder, part, axis
        self.made: dict[ir.Value, ir.Value] = {}

    def of(self, value: ir.Value, depth: int = 0) -> ir.Value:
        """The heads of a value that has all of them along the axis; a value that has none, or one for all, is left as it is."""
        if value not in self.made:
            self.made[value] = self._of(value, depth)
        return self.made[value]

    def _of(self, value: ir.Value, depth: int) -> ir.Value:
        shape = self.view.shape(value)
        if shape is not None and (len(shape) < -self.axis or shape[self.axis] == 1):
            return value
        node = self.view.producer(value, *_ELEMENTWISE, "MatMul")
        inputs = [] if node is None else [i for i in node.inputs if i is not None]
        if node is None or depth > _MAX_LAYERS or not all(self._is_plain(i) for i in inputs):
            return self._sliced(value)
        if op_of(node) == "MatMul":
            inputs = [self._sliced(i) if self._has_all(i) else i for i in inputs]
        else:
            inputs = [self.of(i, depth + 1) if self._has_all(i) else i for i in inputs]
        made = self.b.op_of(node.domain, node.op_type, inputs, node.attributes)
        if value.dtype is not None:
            made.dtype = value.dtype
        return made

    def _has_all(self, value: ir.Value) -> bool:
        shape = self.view.shape(value)
        return shape is not None and len(shape) >= -self.axis and shape[self.axis] == self.part.total

    def _is_plain(self, value: ir.Value) -> bool:
        """Whether it is known how many heads a value has: all, one, or no axis of them."""
        shape = self.view.shape(value)
        return shape is not None and (len(shape) < -self.axis or shape[self.axis] in (1, self.part.total))

    def _sliced(self, value: ir.Value) -> ir.Value:
        assert self.part.width is not None
        shape = self.view.shape(value)
        axis = self.part.axis if shape is None else len(shape) + self.axis
        bounds = (self.part.start, self.part.start + self.part.width, axis)
        made = self.b.op("Slice", value, *(self.b.ints(x) for x in bounds))
        if value.dtype is not None:
            made.dtype = value.dtype
        return made
