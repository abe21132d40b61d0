"""What a model declares of its outputs, beside what its nodes make. onnxruntime goes by the nodes, and only warns."""

from __future__ import annotations

from collections.abc import Container, Mapping

import onnx
import onnx_ir as ir

from onnx_fa.graph.onnx_inference import write_onesided
from onnx_fa.graph.ops import constant_tensor, op_of
from onnx_fa.graph.scaled_sizes import scales_as_run

_CONTENT_BYTES = 1 << 12
"""Constants up to this size take part (as shapes, axes and the like)."""


def correct_outputs(model: ir.Model, given: Mapping[ir.Value, ir.Shape | None]) -> bool:
    """Where the node that makes a graph output gives it another number in a dim than is declared, or a free dim of the inputs where
    a number is declared, the node's shape stands: what is derived from a wrong number makes onnxruntime refuse a Loop, and IREE
    take no other batch. Takes the shapes away that may have been derived so, down to what was `given` for the model's outputs, and
    returns whether there were any."""
    corrected = []
    free = {d.value for i in model.graph.inputs for d in i.shape or () if isinstance(d, ir.SymbolicDim) and d.value}
    for value in (o for graph in model.graphs() for o in graph.outputs):
        node = value.producer()
        if node is None or value.shape is None:
            continue
        made = _made_shape(node, value, model)
        if made is not None and _contradict(made, value.shape, free):
            value.shape = made
            corrected.append(value)
    for value in _behind(corrected, model):
        if value not in given or value not in corrected:
            value.shape = given.get(value)
    return bool(corrected)


def _behind(values: list[ir.Value], model: ir.Model) -> set[ir.Value]:
    """What is made from them, by whatever nodes; a node reads what its subgraphs do."""
    holders = {
        a.as_graph(): n
        for n in model.graph.all_nodes()
        for a in n.attributes.values()
        if a.type == ir.AttributeType.GRAPH
    }
    found: set[ir.Value] = set()
    todo = list(values)
    while todo:
        value = todo.pop()
        made_by = value.producer()
        inside = made_by.graph if made_by is not None and value.is_graph_output() else None
        holder = holders.get(inside) if isinstance(inside, ir.Graph) else None
        for reader in (*value.consumers(), *([holder] if holder is not None else [])):
            node: ir.Node | None = reader
            while node is not None:
                todo += [o for o in node.outputs if o not in found]
                found |= {*node.outputs}
                node = holders.get(node.graph) if isinstance(node.graph, ir.Graph) else None
    return found


def _contradict(made: ir.Shape, declared: ir.Shape, free: Container[str]) -> bool:
    if made.rank() != declared.rank():
        return True
    pairs = [(m, d) for m, d in zip(made.dims, declared.dims, strict=True) if isinstance(d, int)]
    return any(m != d if isinstance(m, int) else m.value in free for m, d in pairs)


def _made_shape(node: ir.Node, value: ir.Value, model: ir.Model) -> ir.Shape | None:
    """What ONNX's rules for the operator say by themselves; None where they say nothing."""
    version = model.graph.opset_imports.get(node.domain)
    given = [v for v in node.inputs if v is not None]
    if version is None or any(v.type is None for v in given):
        return None
    if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values()):
        return None
    try:
        proto = ir.serde.serialize_node(node)
        write_onesided([proto])
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
        content = {str(v.name): ir.serde.serialize_tensor(t) for v in given if (t := _content(v, model)) is not None}
        types = {str(v.name): ir.serde.serialize_value(v).type for v in given}
        content |= scales_as_run(proto, types, content)
        opsets = [onnx.helper.make_opsetid(d, n) for d, n in model.graph.opset_imports.items()]
        made = onnx.shape_inference.infer_node_outputs(
            schema,
            proto,
            types,
            content,
            opset_imports=opsets,
            ir_version=model.ir_version or 4,
        )
    except (onnx.defs.SchemaError, onnx.shape_inference.InferenceError, onnx.checker.ValidationError):
        return None  # an operator of another domain, or inputs or element types that it does not take
    found = made.get(str(value.name))
    if found is None or not found.tensor_type.HasField("shape"):
        return None
    shape = ir.serde.deserialize_type_proto_for_shape(found)
    # ONNX's inference of an Attention's scores takes lengths that it does not know for 0.
    return None if shape is None or (op_of(node) == "Attention" and 0 in shape.dims) else shape


def _content(value: ir.Value, model: ir.Model) -> ir.TensorProtocol | None:
    """A small constant that the caller of the model cannot replace."""
    tensor = constant_tensor(value)
    if tensor is None or tensor.nbytes > _CONTENT_BYTES or (value.is_graph_input() and (model.ir_version or 4) >= 4):
        return None
    return tensor
