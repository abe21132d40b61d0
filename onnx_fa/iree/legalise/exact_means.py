"""Norms of rows that the compiler keeps, with means as kernels have them (kernels/cpu/norm.py).

A rounded mean leaves a part of itself, which counts where numbers are alike: of a row of 12345.678 throughout a norm was 0.9. So
the mean of what is left is added to it.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import TensorProto

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.writer import NARROW, GraphWriter, attr_of
from onnx_fa.spec.terms import Dim

_EPSILON = 1e-5
_SINCE = 18
"""The opset whose ReduceMean has its axes as an input."""


def exact_means(g: GraphWriter, places: Sequence[int]) -> dict[int, list[onnx.NodeProto]]:
    """What is to stand in the place of a node of the norm that has these, by its place; nothing for one without a mean of f32."""
    for place in places:
        node, g.nodes = g.graph.node[place], []
        if op_of(node) == "LayerNormalization" and _write_norm(g, node):
            return {place: g.nodes}
        if op_of(node) == "Sub" and (mean := _mean_of(g, node)) is not None:
            _write_centred(g, node, mean)
            return {place: g.nodes}
    return {}


def _mean_of(g: GraphWriter, node: onnx.NodeProto) -> onnx.NodeProto | None:
    """The ReduceMean of x that a Sub takes away from x."""
    x, mean = node.input
    made = g.maker(mean)
    is_mean = made is not None and op_of(made) == "ReduceMean" and made.input[0] == x
    known = g.kind(x) == TensorProto.FLOAT and g.shape(x) is not None and g.shape(mean) is not None
    return made if is_mean and known else None


def _write_centred(g: GraphWriter, node: onnx.NodeProto, mean: onnx.NodeProto) -> None:
    hint, (x, taken), kind = node.name or "Sub", node.input, TensorProto.FLOAT
    left = g.typed(g.add("Sub", [x, taken], hint), kind, g.shape(x) or [])
    rest = onnx.NodeProto.FromString(mean.SerializeToString())
    rest.name, rest.input[0], rest.output[0] = g.fresh(f"{hint}/ReduceMean"), left, g.fresh(hint)
    g.nodes.append(rest)
    small = g.shape(taken) or []
    whole = g.add("Add", [taken, g.typed(rest.output[0], kind, small)], hint)
    g.add("Sub", [x, g.typed(whole, kind, small)], hint, out=node.output[0])


def _write_norm(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """A LayerNormalization over the last axis in smaller operators; False where its type is unknown."""
    x, scale, *bias = node.input
    (kind, shape), hint = g.types.get(x, (0, None)), node.name or node.op_type
    if not kind or shape is None or g.opset < _SINCE or any(node.output[1:]):
        return False
    stash = TensorProto.FLOAT if kind in NARROW else kind
    row: list[Dim | None] = [*shape[:-1], 1]

    def step(op: str, *inputs: str, of: Sequence[Dim | None] = shape) -> str:
        return g.typed(g.add(op, inputs, hint), stash, of)

    def mean(value: str) -> str:
        return g.typed(g.mean(value, [-1], hint), stash, row)

    def wide(value: str) -> str:
        return value if kind == stash else g.typed(g.cast(value, kind, stash, hint), stash, g.shape(value) or [])

    whole = wide(x)
    first = mean(whole)
    centred = step("Sub", whole, step("Add", first, mean(step("Sub", whole, first)), of=row))
    square = mean(step("Mul", centred, centred))
    epsilon = g.scalar(attr_of(node, "epsilon", _EPSILON), stash, hint)
    value = step("Mul", step("Div", centred, step("Sqrt", step("Add", square, epsilon, of=row), of=row)), wide(scale))
    if bias and bias[0]:
        value = step("Add", value, wide(bias[0]))
    g.cast(value, stash, kind, hint, out=node.output[0])
    return True
