"""Attentions by onnxruntime's operators on bytes (`quantize_static` with QuantFormat.QOperator): those that make a site are written
as what they mean, DequantizeLinear, the op on floats, and QuantizeLinear.

QLinearMatMul and QLinearSoftmax round as QuantizeLinear does, the zero point added behind the rounding. QLinearAdd and QLinearMul
add it in front, so that numbers halfway between two steps go to the other one where the zero point is odd: there Round, Max, Min
and Cast say so. QLinearSoftmax multiplies by floor(1 / scale), which is what its scale says where that is one over a whole number
(quantize_static writes 1/256), and is left alone elsewhere. What is left is f32: onnxruntime multiplies whole sums by one factor,
adds operands that were divided by the step, and takes exponentials from a table, so that a number whose distance to a tie is within
the error of f32 may become the neighbouring step, as between any two computations (spec/rounding_bounds.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.builder import OnnxBuilder, names_in
from onnx_fa.graph.dead_code import sweep
from onnx_fa.graph.normalise import infer_shapes
from onnx_fa.graph.ops import CONTRIB, attr_int, op_of
from onnx_fa.graph.view import Array, GraphView, default_opset
from onnx_fa.match import Match, Patterns, find_sites
from onnx_fa.match.prepare.functions import nodes_of

SOFTMAX = f"{CONTRIB}.QLinearSoftmax"
_ON_FLOATS = {"QLinearMatMul": "MatMul", f"{CONTRIB}.QLinearAdd": "Add", f"{CONTRIB}.QLinearMul": "Mul"}
"""Of two operands with a scale and a zero point each, and those of the result."""
_BYTES: dict[ir.DataType | None, type[np.uint8] | type[np.int8]] = {
    ir.DataType.UINT8: np.uint8,
    ir.DataType.INT8: np.int8,
}
_MARK = "onnx_fa.bytes."
"""Prefix of the metadata that nodes carry while it is found out whether they are needed."""
Grid = tuple[Array, Array]
"""A scale and a zero point."""


def write_in_floats(model: ir.Model, patterns: Patterns, accepts: Callable[[Match], bool]) -> Mapping[str, str]:
    """Writes, in place, the operators on bytes of which some node lies inside a recognised attention that `accepts` takes. All
    others stay. Returns why a QLinearSoftmax makes no site, by the name of its node."""
    nodes = _candidates(model)
    softmax = any(op_of(node) in ("Softmax", SOFTMAX) for node in model.graph)
    if not softmax or default_opset(model) < 10 or all(_has_weight(node) for node in nodes):
        return {}
    trial = model.clone()
    refused = _write(trial, None)
    matches, misses = find_sites(GraphView(trial), patterns)
    refused |= {miss.node: miss.reason for miss in misses if miss.node not in refused}
    needed = {mark for match in matches if accepts(match) for node in nodes_of(match) for mark in node.metadata_props}
    chosen = {number for number, _ in enumerate(nodes) if f"{_MARK}{number}" in needed}
    in_bytes = {_label(node) for node in nodes if op_of(node) == SOFTMAX}
    if chosen:
        _write(model, chosen)
    return {name: why for name, why in refused.items() if name in in_bytes}


def _candidates(model: ir.Model) -> list[ir.Node]:
    """The operators on bytes, in an order that a clone of the model has too."""
    return [node for node in model.graph if op_of(node) == SOFTMAX or op_of(node) in _ON_FLOATS]


def _has_weight(node: ir.Node) -> bool:
    """Whether a product's second factor is held by the model."""
    return op_of(node) == "QLinearMatMul" and node.inputs[3] is not None and node.inputs[3].const_value is not None


@dataclass(frozen=True)
class _Plan:
    """How an operator on bytes is written: the op on floats with its attributes, the inputs that it reads with a grid each, and
    that of the result."""

    number: int
    node: ir.Node
    op: str
    attributes: dict[str, int]
    operands: tuple[tuple[int, Grid], ...]
    result: Grid

    @property
    def zero_first(self) -> bool:
        """Whether it matters that the zero point is added before the result is rounded."""
        return self.op in ("Add", "Mul") and int(self.result[1]) % 2 == 1


def _label(node: ir.Node) -> str:
    """What reports call it."""
    return node.name or f"{node.op_type}:{node.outputs[0].name}"


def _write(model: ir.Model, chosen: Collection[int] | None) -> dict[str, str]:
    """Writes these operators, or all that can be (None), by their number. Returns why a QLinearSoftmax cannot, by its name."""
    view, names, consts = GraphView(model), names_in(model), dict[tuple[str, ...], ir.Value]()
    plans = [
        _plan(view, number, node)
        for number, node in enumerate(_candidates(model))
        if chosen is None or number in chosen
    ]
    refused: dict[str, str] = {}
    for plan in plans:
        if isinstance(plan, tuple):
            node, why = plan
            if op_of(node) == SOFTMAX:
                refused[_label(node)] = why
            continue
        node = plan.node
        b = OnnxBuilder(model.graph, view.opset, node.name or node.op_type, names, consts)
        floats = [b.op("DequantizeLinear", node.inputs[at], *map(b.const, grid)) for at, grid in plan.operands]
        floats.append(b.op(plan.op, *floats, **plan.attributes))
        made = _to_bytes(b, plan, floats[-1])
        for new in b.nodes if chosen is None else ():
            new.metadata_props[f"{_MARK}{plan.number}"] = ""
        if op_of(node) == SOFTMAX:
            b.nodes[1].name = _label(node)
        old = node.outputs[0]
        made.type, made.shape = old.type, old.shape
        model.graph.insert_before(node, b.nodes)
        ir.convenience.replace_all_uses_with(old, made, replace_graph_outputs=True)
        old.name, made.name = made.name, old.name
        sweep([node])
    infer_shapes(model)
    return refused


def _to_bytes(b: OnnxBuilder, plan: _Plan, x: ir.Value) -> ir.Value:
    """The result, rounded as the operator rounds."""
    scale, zero = plan.result
    if not plan.zero_first:
        return b.op("QuantizeLinear", x, b.const(scale), b.const(zero))
    kind = ir.DataType.from_numpy(zero.dtype)
    ends = np.iinfo(_BYTES[kind])
    steps = b.op("Round", b.op("Add", b.op("Div", x, b.const(scale)), b.const(zero.astype(np.float32))))
    for op, end in (("Max", ends.min), ("Min", ends.max)):
        steps = b.op(op, steps, b.const(np.asarray(end, np.float32)))
    return b.op("Cast", steps, to=int(kind))


def _plan(view: GraphView, number: int, node: ir.Node) -> _Plan | tuple[ir.Node, str]:
    """How the operator is written, or itself and why it cannot be."""
    grids = [_grid(view, node, at) for at in ((1, 3) if op_of(node) == SOFTMAX else (1, 4, 6))]
    known = [grid for grid in grids if grid is not None]
    if len(known) != len(grids):
        return node, "the scales and zero points of QLinearSoftmax are not each one constant number"
    if op_of(node) != SOFTMAX:
        if view.opset < 11:
            return node, "Round is an op of opset 11"
        return _Plan(number, node, _ON_FLOATS[op_of(node)], {}, ((0, known[0]), (3, known[1])), known[2])
    shape = view.shape(node.inputs[0])
    axis = attr_int(node, "axis", -1 if attr_int(node, "opset", 1) >= 13 else 1)
    if shape is None or axis not in (-1, len(shape) - 1):
        return node, "QLinearSoftmax over another axis than the last, or of unknown rank"
    if shape[-1] == 1:
        return node, "onnxruntime's QLinearSoftmax overflows where there is one key, and gives zero"
    scale = np.float32(known[1][0])
    steps = 1 / float(scale)
    if steps != np.floor(np.float32(1) / scale):
        return node, (
            f"onnxruntime's QLinearSoftmax multiplies probabilities by the whole part of {steps:.9g}, one over its scale, and "
            "makes some a step too low; quantise with a scale of 1/256 or with QuantFormat.QDQ"
        )
    return _Plan(number, node, "Softmax", {"axis": len(shape) - 1}, ((0, known[0]),), known[1])


def _grid(view: GraphView, node: ir.Node, at: int) -> Grid | None:
    """The scale that is input `at` and the zero point behind it, where both are one number that is known. Without a zero point it
    is 0, of the type of the result."""
    scale, zero = (*node.inputs, None, None)[at : at + 2]
    kind = _BYTES.get(node.outputs[0].dtype)
    if scale is None or scale.dtype != ir.DataType.FLOAT:
        return None
    numbers = view.const(scale), np.zeros((), kind) if zero is None and kind is not None else view.const(zero)
    if numbers[0] is None or numbers[1] is None or numbers[0].size != 1 or numbers[1].size != 1:
        return None
    if numbers[1].dtype not in (np.uint8, np.int8):
        return None
    return numbers[0].reshape(()), numbers[1].reshape(())
