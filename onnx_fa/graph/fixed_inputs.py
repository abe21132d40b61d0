"""A model in which the caller fixes inputs of one element, and in which every If that this decides is its branch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from onnx_fa.errors import ModelError
from onnx_fa.graph.branches import put_in_place
from onnx_fa.graph.free_dims import graph_inputs
from onnx_fa.graph.io import ModelLike, load
from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import Array, GraphView

Scalar = bool | int | float
_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def fixed_arrays(model: ir.Model, values: Mapping[str, Scalar]) -> dict[str, Array]:
    """The values as arrays of their inputs' types and shapes: what a caller of the model as it was passes for them.

    Raises ModelError for a name that is no input, an input of another size than one element, and a value that the input's type
    does not hold.
    """
    inputs = {str(v.name): v for v in graph_inputs(model)}
    for name in values:
        if name not in inputs:
            raise ModelError(
                f"--set {name}: the model has no such input; its inputs are: {', '.join(inputs) or 'none'}"
            )
    return {name: _array(inputs[name], value) for name, value in values.items()}


def fix_inputs(model: ModelLike, values: Mapping[str, Scalar]) -> ir.Model:
    """A copy of the model in which these inputs are constants, and are no inputs any more. An If whose condition is known then is
    replaced by the nodes of its branch, and what nobody reads after that is removed; other inputs stay, read or not.
    Without values nothing is changed.

    Raises ModelError as `fixed_arrays` does.
    """
    fixed = model.clone() if isinstance(model, ir.Model) else load(model)
    arrays = fixed_arrays(fixed, values)
    if not arrays:
        return fixed
    for value in [v for v in fixed.graph.inputs if v.name in arrays]:
        fixed.graph.inputs.remove(value)
        value.const_value = ir.tensor(arrays[str(value.name)], name=value.name, dtype=value.dtype)
        fixed.graph.register_initializer(value)
    # A branch may hold an If whose condition is known only once the branch's nodes are in the graph around it.
    while decided := _decided(fixed):
        for node, branch in decided:
            put_in_place(fixed, node, branch)
    for name, value in list(fixed.graph.initializers.items()):
        if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
            del fixed.graph.initializers[name]
    return fixed


def _array(value: ir.Value, number: Scalar) -> Array:
    label = f"--set {value.name}={number}"
    if value.shape is None or any(dim != 1 for dim in value.shape):
        dims = "unknown" if value.shape is None else "x".join(map(str, value.shape))
        raise ModelError(f"{label}: the input's shape is {dims}; only inputs of one element can be set")
    dtype = value.dtype
    if dtype == ir.DataType.BOOL:
        fits = number in (0, 1)
    elif dtype is not None and dtype.is_integer():
        limits = np.iinfo(dtype.numpy())
        fits = not isinstance(number, float) and limits.min <= number <= limits.max
    else:
        fits = dtype in _FLOATS and not isinstance(number, bool)
    if dtype is None or not fits:
        raise ModelError(f"{label}: the input's type is {dtype.name if dtype else 'unknown'}, which has no such value")
    return np.full(tuple(map(int, value.shape.dims)), number, dtype.numpy())  # type: ignore[arg-type]


def _decided(model: ir.Model) -> list[tuple[ir.Node, ir.Graph]]:
    """The If nodes of the main graph whose condition is known, and the branch that each takes."""
    view, found = GraphView(model), []
    for node in [n for n in model.graph if op_of(n) == "If"]:
        condition = view.const(node.inputs[0])
        if condition is not None and condition.size == 1:
            name = "then_branch" if condition.reshape(-1)[0] else "else_branch"
            found.append((node, node.attributes[name].as_graph()))
    return found
