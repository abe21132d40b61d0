"""Shapes that a graph computes although they are known, for IREE's importer: it takes a rank from constants alone, and sizes from
what onnx infers, which follows no arithmetic."""

from __future__ import annotations

import onnx_ir as ir

from onnx_fa.graph.normalise import infer_shapes, is_made_up
from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import GraphView
from onnx_fa.spec.terms import Dim


def settle_shapes(model: ir.Model) -> None:
    """Where the rank of a Reshape's result is not known and its shape operand can be computed now, a constant takes its place, as
    for a Pad's pads. Then every value of the main graph has the sizes that follow from the ops before it."""
    view = GraphView(model)
    changed = False
    for node in model.graph:
        if op_of(node) == "Reshape" and node.outputs[0].shape is None:
            changed |= _settle_operand(model, view, node)
        elif op_of(node) == "Pad" and len(node.inputs) > 1:
            _settle_operand(model, view, node)
    if changed:
        infer_shapes(model)
    _declare_sizes(model)


def _settle_operand(model: ir.Model, view: GraphView, node: ir.Node) -> bool:
    """Whether the second operand of a node was computed, and is a constant from now on."""
    operand = node.inputs[1]
    array = view.const(operand)
    if operand is None or array is None or operand.const_value is not None or view.producer(operand, "Constant"):
        return False
    known = ir.Value(name=f"{operand.name}_known", const_value=ir.tensor(array))
    known.shape, known.type = ir.Shape(array.shape), ir.TensorType(ir.DataType.INT64)
    if known.name not in model.graph.initializers:
        model.graph.register_initializer(known)
    node.replace_input_with(1, model.graph.initializers[str(known.name)])
    return True


def _declare_sizes(model: ir.Model) -> None:
    """Ranks and sizes that onnx does not infer. Free dims keep the names that they have; those without one, or with one that
    inference made up, are named by what they are of the inputs' sizes, so that equal ones look equal."""
    view = GraphView(model)
    found: list[tuple[ir.Value, list[Dim | None]]] = []
    for node in model.graph:
        for out in node.outputs:
            shape = view.shape(out)
            if shape is None or out.type is None:
                continue
            # Where a model says another rank than the op makes, onnxruntime warns and goes by the op.
            told = out.shape is not None and len(out.shape) == len(shape)
            have = [_named(d) for d in out.shape] if out.shape is not None and told else [None] * len(shape)
            sizes = [_name(d, old) for d, old in zip(shape, have, strict=True)]
            if not told or sizes != have:
                found.append((out, sizes))
    for out, sizes in found:
        out.shape = ir.Shape(sizes)


def _name(known: Dim | None, old: Dim | None) -> Dim | None:
    unnamed = old is None or (isinstance(old, str) and is_made_up(ir.SymbolicDim(old)))
    return known if isinstance(known, int) or (unnamed and known is not None) else old


def _named(dim: int | ir.SymbolicDim) -> int | str | None:
    return dim if isinstance(dim, int) else dim.value
