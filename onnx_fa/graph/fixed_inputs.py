"""A model in which the caller fixes inputs of one element, and in which every If that this decides is its branch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from onnx_fa.errors import ModelError
from onnx_fa.graph.builder import names_in, unused_name
from onnx_fa.graph.dead_code import release_inputs, sweep
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
            _put_in_place(fixed, node, branch)
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


def _put_in_place(model: ir.Model, node: ir.Node, branch: ir.Graph) -> None:
    """Puts the branch's nodes in the place of the If. Names that the rest of the model has as well become new ones; the results
    keep the names of the If's results."""
    graph = model.graph
    results, moved = list(branch.outputs), list(branch)
    branch.outputs.clear()
    branch.remove(moved)
    inner = [n for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH for n in a.as_graph().all_nodes()]
    read = [i for n in (node, *inner) for i in n.inputs if i is not None]
    release_inputs([node])
    node.attributes.clear()  # so that names of the branches are free
    taken = names_in(model)
    _give_own_names(moved, taken)
    for value in list(branch.initializers.values()):
        del branch.initializers[str(value.name)]
        value.name = unused_name(str(value.name), taken)
        graph.register_initializer(value)
    graph.insert_before(node, moved)
    for old, result in zip(node.outputs, results, strict=True):
        own = result.producer() in moved and results.count(result) == 1
        _hand_over(node, old, result, own=own)
    graph.remove(node)
    sweep([p for p in (*(v.producer() for v in read), *moved) if p is not None and p.graph is graph])


def _give_own_names(nodes: Iterable[ir.Node], taken: set[str]) -> None:
    """Nodes and values, also of the graphs inside the nodes, get names that are not taken, and those are from then on."""
    for node in nodes:
        node.name = unused_name(str(node.name), taken) if node.name else None
        for value in node.outputs:
            value.name = unused_name(str(value.name), taken) if value.name else value.name
        for attr in node.attributes.values():
            if attr.type != ir.AttributeType.GRAPH:
                continue
            graph = attr.as_graph()
            for value in graph.inputs:
                value.name = unused_name(str(value.name), taken)
            for name, value in list(graph.initializers.items()):
                if not value.is_graph_input():
                    del graph.initializers[name]
                    value.name = unused_name(name, taken)
                    graph.register_initializer(value)
            _give_own_names(graph, taken)


def _hand_over(node: ir.Node, old: ir.Value, new: ir.Value, *, own: bool) -> None:
    """Lets what read the If's result `old` read the branch's `new`. `own`: `new` is made in the branch for this result alone, so it
    may take the result's name; else an output of the model gets it by an Identity."""
    name, outputs = old.name, old.is_graph_output()
    old.name = f"{name}/decided"
    if not own and outputs:
        copy = ir.node("Identity", [new], name=f"{name}/Identity")
        assert node.graph is not None
        node.graph.insert_before(node, copy)
        new, own = copy.outputs[0], True
    if outputs:
        # What the model declares of its output stays.
        new.type, new.shape = old.type or new.type, old.shape if old.shape is not None else new.shape
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=outputs)
    if own:
        new.name = name
