"""A branch of an If in the place of that If."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from onnx_fa.graph.builder import names_in, unused_name
from onnx_fa.graph.dead_code import release_inputs, sweep


def put_in_place(model: ir.Model, node: ir.Node, branch: ir.Graph) -> None:
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
        _name_constant(value, unused_name(str(value.name), taken))
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
                    _name_constant(value, unused_name(name, taken))
                    graph.register_initializer(value)
            _give_own_names(graph, taken)


def _name_constant(value: ir.Value, name: str) -> None:
    """Names an initializer that no graph holds. Its tensor is copied where the name is new: onnx_ir names the tensor too, and that
    may be the caller's own."""
    tensor = value.const_value
    if tensor is not None and value.name != name:
        base = tensor.base_dir if isinstance(tensor, ir.ExternalTensor) else ""
        value.const_value = ir.serde.deserialize_tensor(ir.serde.serialize_tensor(tensor), base)
    value.name = name


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
