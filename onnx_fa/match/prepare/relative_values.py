"""Values that belong to distances: sum over j of P(i, j) (V(j) + R(j - i)), with R zero but for a few distances (VITS, Glow-TTS).

The second sum needs P near the diagonal alone, of which a softmax in a window gives all, up to the row's own maximum and sum. Each
of the 2 w + 1 keys in a row's window has another remainder by 2 w + 1, so that one product with the remainders as unit vectors puts
their probabilities side by side, and a gather puts them in the order of their distances. No tensor of Sq x Skv is left of it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.builder import OnnxBuilder, names_in
from onnx_fa.graph.dead_code import sweep
from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import GraphView
from onnx_fa.match import Match, Patterns
from onnx_fa.match.prepare.shared_softmax import rewrite_where_sites
from onnx_fa.match.prepare.skewed import Band, find_bands

_THROUGH = frozenset("Add Sub Mul Div Where Cast Neg Tanh Max Min Identity Reshape Transpose Squeeze Unsqueeze".split())
"""What may stand between the product of Q and K and the softmax."""
_MAX_LAYERS = 32


def part_distances(view: GraphView, patterns: Patterns, accepts: Callable[[Match], bool]) -> bool:
    """Gives, in place, values of distances a softmax in a window where both are then sites that `accepts` takes. Returns whether
    the model was changed: then the view is not valid any more."""
    return rewrite_where_sites(view, patterns, accepts, find_bands, _apply)


def _apply(view: GraphView, band: Band) -> set[ir.Node]:
    """Writes a band's product anew; the divisions of both softmaxes."""
    graph, old = band.softmax.graph, band.product.outputs[0]
    score = band.softmax.inputs[0]
    assert isinstance(graph, ir.Graph) and score is not None
    prefix = band.softmax.name or band.product.name or "distances"
    b = OnnxBuilder(graph, view.opset, prefix, names_in(view.model), {})
    whole = _Softmax(b, score)
    graph.insert_before(band.softmax, b.nodes)
    b.nodes = []
    ir.convenience.replace_all_uses_with(band.softmax.outputs[0], whole.made, replace_graph_outputs=True)
    near = _Softmax(b, _in_window(b, _Again(view, b).of(score), band.reach))
    beside = _by_distance(b, _share(b, whole, near, band.reach), band.reach)
    rows = band.rows if isinstance(band.rows, ir.Value) else b.const(np.ascontiguousarray(band.rows))
    new = b.op("MatMul", beside, rows)
    new.type, new.shape = old.type, old.shape
    graph.insert_before(band.product, b.nodes)
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    sweep([band.product])
    sweep([band.softmax])
    return {node for made in (whole.made, near.made) if (node := made.producer()) is not None}


class _Softmax:
    """A softmax over the last axis, spelled out."""

    def __init__(self, b: OnnxBuilder, score: ir.Value) -> None:
        self.top = b.reduce_max(score)
        weights = b.op("Exp", b.op("Sub", score, self.top))
        self.sum = b.reduce_sum(weights)
        self.made = b.op("Div", weights, self.sum)


def _in_window(b: OnnxBuilder, score: ir.Value, reach: int) -> ir.Value:
    """The scores of keys up to `reach` positions away; -inf for the others."""
    places = _places(b, score)
    away = b.op("Abs", b.op("Sub", b.unsqueeze(places, 0), b.unsqueeze(places, 1)))
    near = b.less_equal(away, b.const(np.asarray(reach, np.int64)))
    return b.op("Where", near, score, b.const(np.asarray(-np.inf, np.float32)))


def _places(b: OnnxBuilder, x: ir.Value, axis: int = -1) -> ir.Value:
    """0, 1, ... along an axis."""
    zero, one = (b.const(np.asarray(i, np.int64)) for i in (0, 1))
    return b.op("Range", zero, b.dim(x, axis), one)


def _share(b: OnnxBuilder, whole: _Softmax, near: _Softmax, reach: int) -> ir.Value:
    """(..., T, 2 reach + 1): the whole softmax at the key in the row's window whose position has the remainder, 0 where there is
    none."""
    width = 2 * reach + 1
    remainders = b.op("Mod", _places(b, near.made), b.const(np.asarray(width, np.int64)))
    is_one = b.op("Equal", b.unsqueeze(remainders, 1), b.const(np.arange(width)))
    unit = b.op("Cast", is_one, to=ir.DataType.FLOAT.value)
    inside = b.op("MatMul", near.made, unit)
    shrunk = b.op("Div", b.op("Exp", b.op("Sub", near.top, whole.top)), whole.sum)
    scaled = b.op("Mul", inside, b.op("Mul", shrunk, near.sum))
    # A row that a mask empties within the window alone has no sum there, and a probability of zero at each of these keys.
    some = b.op("Greater", near.sum, b.const(np.asarray(0, np.float32)))
    return b.op("Where", some, scaled, shrunk)


def _by_distance(b: OnnxBuilder, share: ir.Value, reach: int) -> ir.Value:
    """The same in the order of distances, from -reach on."""
    width = 2 * reach + 1
    keys = b.op("Add", b.unsqueeze(_places(b, share, -2), 1), b.const(np.arange(-reach, reach + 1)))
    at = b.op("Mod", keys, b.const(np.asarray(width, np.int64)))
    return b.op("GatherElements", share, b.op("Expand", at, b.op("Shape", share)), axis=-1)


class _Again:
    """Makes scores a second time, from the product of Q and K on: what is read twice is no part of a site."""

    def __init__(self, view: GraphView, b: OnnxBuilder) -> None:
        self.view, self.b = view, b
        self.made: dict[ir.Value, ir.Value] = {}
        self.known: dict[ir.Value, bool] = {}

    def of(self, value: ir.Value) -> ir.Value:
        """What a product has been made into, made again; any other value is left as it is."""
        node = self.view.producer(value, *_THROUGH, "MatMul")
        if node is None or not self._has_product(value):
            return value
        if value not in self.made:
            is_product = op_of(node) == "MatMul"
            inputs = [i if i is None or is_product else self.of(i) for i in node.inputs]
            made = self.b.op_of(node.domain, node.op_type, inputs, node.attributes)
            made.type, made.shape = value.type, value.shape
            self.made[value] = made
        return self.made[value]

    def _has_product(self, value: ir.Value, depth: int = 0) -> bool:
        if value not in self.known:
            node = self.view.producer(value, *_THROUGH, "MatMul")
            self.known[value] = node is not None and (
                op_of(node) == "MatMul"
                or (depth < _MAX_LAYERS and any(self._has_product(i, depth + 1) for i in node.inputs if i is not None))
            )
        return self.known[value]
