"""Of a prompt only the last token's logits are asked for: the rows of the others end before the layers that treat each row by
itself, the largest of which, onto the vocabulary, is a tenth of a small model's work, and whose results would be copied to the
host."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.ops import CONTRIB, op_of

_BY_ROW = frozenset(
    ["Tanh", "Cast", "Identity", "LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"]
)
_WITH_NUMBERS = frozenset(["Add", "Sub", "Mul", "Div"])
_PRODUCTS = frozenset(["MatMul", f"{CONTRIB}.MatMulNBits"])


def keep_last_row(model: ir.Model, logits: str) -> bool:
    """Changes the model so that its output `logits` (batch, tokens, vocabulary) has the last token's row alone. False where the
    output has other dims, or anything else reads what is cut."""
    output = next(v for v in model.graph.outputs if v.name == logits)
    if output.shape is None or len(output.shape) != 3:
        return False
    batch, _, vocabulary = output.shape
    chain: list[ir.Node] = []
    value: ir.Value | None = output
    while value is not None and (source := _row_source(value, last=not chain)) is not None:
        chain.append(source[0])
        value = source[1]
    if not chain or value is None:
        return False
    bounds = []
    for name, number in (("start", -1), ("end", np.iinfo(np.int64).max), ("axis", -2)):
        bounds.append(ir.Value(name=f"{logits}.last_row.{name}", const_value=ir.tensor(np.array([number], np.int64))))
        model.graph.register_initializer(bounds[-1])
    cut = ir.Node("", "Slice", [value, *bounds], name=f"{logits}.last_row", num_outputs=1)
    cut.outputs[0].name, cut.outputs[0].type = f"{logits}.last_row.value", value.type
    chain[-1].replace_input_with(next(i for i, x in enumerate(chain[-1].inputs) if x is value), cut.outputs[0])
    model.graph.insert_before(chain[-1], cut)
    for node in chain:
        node.outputs[0].shape = None
    output.shape = ir.Shape([batch, 1, vocabulary])
    return True


def _row_source(value: ir.Value, *, last: bool) -> tuple[ir.Node, ir.Value] | None:
    """The node that makes each row of a value of the same row of another, and that other; None where there is none, or something
    else reads the value, which if it is the `last` is the graph's output and nothing more."""
    node = value.producer()
    if node is None or len(list(value.uses())) != (0 if last else 1) or (value.is_graph_output() and not last):
        return None
    op, rows = op_of(node), [x for x in node.inputs if x is not None and ir.convenience.get_const_tensor(x) is None]
    if len(rows) != 1 or (op in _PRODUCTS and node.inputs[0] is not rows[0]):
        return None
    numbers = [t for x in node.inputs if x is not None and (t := ir.convenience.get_const_tensor(x)) is not None]
    if op in _PRODUCTS or op in _BY_ROW or (op in _WITH_NUMBERS and all(len(t.shape) < 2 for t in numbers)):
        return (node, rows[0]) if _normalises_columns(node) else None
    return None


def _normalises_columns(node: ir.Node) -> bool:
    """Whether a norm is over the last axis alone; true of every other node."""
    axis = node.attributes.get("axis")
    return axis is None or axis.as_int() == -1
