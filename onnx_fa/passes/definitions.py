"""Composite ops replaced by ONNX's own definitions of them, so that few ops are known by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
import onnx.inliner
from onnx import helper

from onnx_fa.errors import UnsupportedError
from onnx_fa.graph.bounded import infer_followed
from onnx_fa.graph.ops import FUSED_MATMULS, STANDARD, op_of

INTEGERS = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)
"""Types of tensors that hold shapes, bounds and axes."""


def take_apart(model: onnx.ModelProto, seeds: set[str]) -> onnx.ModelProto:
    """The model with every op behind `seeds` that ONNX defines by others replaced by them, until none is left."""
    for _ in range(8):
        model = infer_followed(model)
        opset = next(o.version for o in model.opset_import if o.domain in STANDARD)
        values = (*model.graph.input, *model.graph.output, *model.graph.value_info)
        types = {v.name: v.type for v in values}
        types |= {t.name: helper.make_tensor_type_proto(t.data_type, t.dims) for t in model.graph.initializer}
        found, newer, reached = False, False, set(seeds)
        for i, node in enumerate(model.graph.node):
            if reached.isdisjoint(node.input):
                continue
            reached |= set(node.output)
            if any(types[o].tensor_type.elem_type in INTEGERS for o in node.output if o in types):
                continue  # sizes and positions
            body = _definition(node, types, opset)
            if body is None:
                continue
            found = True
            newer |= any(o.version > opset for o in body.opset_import)
            body.domain = node.domain = "taken.apart"
            body.name = node.op_type = f"{node.op_type}_{i}"
            model.functions.append(body)
        if not found:
            return model
        if not any(o.domain == "taken.apart" for o in model.opset_import):
            model.opset_import.append(helper.make_opsetid("taken.apart", 1))
        model = onnx.inliner.inline_local_functions(model, convert_version=newer)
    return model


def _definition(node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto], opset: int) -> onnx.FunctionProto | None:
    """What ONNX defines the op by, None for an op that stands for itself."""
    if op_of(node) in FUSED_MATMULS:
        return _fused_matmul(node, types, opset)
    if node.domain not in STANDARD:
        return None
    try:
        schema: Any = onnx.defs.get_schema(op_of(node), opset)  # its stubs lack these methods
        newest: Any = onnx.defs.get_schema(op_of(node))
    except onnx.defs.SchemaError:
        return None
    body: onnx.FunctionProto | None = None
    axis = next((a.i for a in node.attribute if a.name == "axis"), None)
    given = [types.get(name, onnx.TypeProto()).SerializeToString() for name in node.input]
    for s in (schema, newest):  # an op may have been given its definition later
        versions = [v for v in s.context_dependent_function_opset_versions if v <= opset]
        if versions:
            data = s.get_context_dependent_function_with_opset_version(max(versions), node.SerializeToString(), given)
            body = onnx.FunctionProto.FromString(data) if data else None
        elif any(v <= opset for v in s.function_opset_versions):
            version = max(v for v in s.function_opset_versions if v <= opset)
            body = onnx.FunctionProto.FromString(s.get_function_with_opset_version(version))
        elif s.has_function:
            body = s.function_body
        if body is not None and body.node:
            break
    if body is None or not body.node or any(op_of(n) == op_of(node) for n in body.node):
        return None
    _write_defaults(node, schema)
    made = onnx.FunctionProto()
    made.CopyFrom(body)
    if all(o.version <= opset for o in made.opset_import):
        del made.opset_import[:]  # one of several definitions, good from its version to the next one's
        made.opset_import.append(helper.make_opsetid("", opset))
    else:
        # Defined only since its meaning changed: the two agree along the last axis.
        rank = len(types[node.input[0]].tensor_type.shape.dim) if node.input[0] in types else 0
        if axis not in (-1, rank - 1):
            raise UnsupportedError(f"passes not counted: {node.op_type} has no definition at opset {opset}")
    return made


def _write_defaults(node: onnx.NodeProto, schema: Any) -> None:
    """The inliner leaves what a body asks of an attribute that is not there."""
    there = {a.name for a in node.attribute}
    defaults = (a.default_value for name, a in schema.attributes.items() if name not in there)
    node.attribute.extend(a for a in defaults if a.type != onnx.AttributeProto.UNDEFINED)


def _fused_matmul(node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto], opset: int) -> onnx.FunctionProto | None:
    """onnxruntime's product with transposed operands and a factor, as ops of ONNX (which has no definition of it)."""
    said = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if said.get("transBatchA") or said.get("transBatchB") or any(name not in types for name in node.input):
        return None
    nodes, read = [], []
    for name, value in zip("AB", node.input, strict=True):
        rank = len(types[value].tensor_type.shape.dim)
        turned = bool(said.get(f"trans{name}")) and rank > 1
        if turned:
            perm = [*range(rank - 2), rank - 1, rank - 2]
            nodes.append(helper.make_node("Transpose", [name], [f"{name}t"], perm=perm))
        read.append(f"{name}t" if turned else name)
    nodes.append(helper.make_node("MatMul", read, ["product"]))
    nodes.append(helper.make_node("Constant", [], ["alpha"], value_float=float(said.get("alpha", 1.0))))
    nodes.append(helper.make_node("Mul", ["product", "alpha"], ["Y"]))
    return helper.make_function(node.domain, node.op_type, ["A", "B"], ["Y"], nodes, [helper.make_opsetid("", opset)])
