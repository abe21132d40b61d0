"""Small models that `damage.py` changes: every spelling, and what a file can hold besides nodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

from onnx_fa.forms.rewrite import rewrite
from tests.support import spelling_table
from tests.support.spellings import Spelling, build


@dataclass(frozen=True)
class Base:
    """A model file and the files beside it, by name."""

    name: str
    data: bytes
    beside: dict[str, bytes] = field(default_factory=dict)


@cache
def bases() -> tuple[Base, ...]:
    """All of them, always in the same order; those with structure come often."""
    special = few()
    spelled = [Base(e.id, e.build().SerializeToString()) for e in spelling_table.entries()]
    repeats = max(1, len(spelled) // (2 * len(special)))
    return (*special * repeats, *(b for b in spelled if len(b.data) < 1 << 16))


@cache
def few() -> tuple[Base, ...]:
    """One of each kind."""
    masked = build(Spelling(mask="where", softmax="explicit"))
    found = {
        "plain": build(Spelling(mask="add", Hkv=2)),
        "causal": build(Spelling(mask="range_causal")),
        "const_causal": build(Spelling(mask="const_causal")),
        "explicit": masked,
        "branch": _in_branch(build(Spelling(mask="bool_add"))),
        "function": _in_function(build(Spelling(scale="runtime"))),
        "blocked": rewrite(build(Spelling(mask="const_window")), "blocked")[0],
        "attention": rewrite(build(Spelling(mask="add", opset=23)), "attention")[0],
        "quantised": _quantised(),
        "sparse": _sparse(build(Spelling(mask="add"))),
        "constants": _constants(build(Spelling(mask="where", fill=-1e9))),
        "training": _training(build(Spelling())),
        "contrib": _contrib(),
    }
    made = [Base(name, model.SerializeToString()) for name, model in found.items()]
    made += [_external(build(Spelling(mask="const_causal", Hkv=2)), where) for where in ("initializers", "constants")]
    return tuple(made)


def _in_branch(inner: onnx.ModelProto) -> onnx.ModelProto:
    g = inner.graph
    shape = [d.dim_value for d in g.output[0].type.tensor_type.shape.dim]
    branch = h.make_graph(
        list(g.node), "then", [], [h.make_tensor_value_info("o", T.FLOAT, shape)], list(g.initializer)
    )
    zeros = h.make_node("Constant", [], ["z"], value=nh.from_array(np.zeros(shape, np.float32)))
    other = h.make_graph([zeros], "else", [], [h.make_tensor_value_info("z", T.FLOAT, shape)])
    node = h.make_node("If", ["c"], ["y"], name="if", then_branch=branch, else_branch=other)
    inputs = [h.make_tensor_value_info("c", T.BOOL, []), *g.input]
    graph = h.make_graph([node], "main", inputs, [h.make_tensor_value_info("y", T.FLOAT, shape)])
    return h.make_model(graph, opset_imports=list(inner.opset_import), ir_version=10)


def _in_function(inner: onnx.ModelProto) -> onnx.ModelProto:
    g = inner.graph
    names = [i.name for i in g.input]
    constants = [h.make_node("Constant", [], [t.name], value=t) for t in g.initializer]
    function = h.make_function("my", "Attend", names, ["o"], [*constants, *g.node], list(inner.opset_import))
    call = h.make_node("Attend", names, ["o"], name="call", domain="my")
    graph = h.make_graph([call], "main", list(g.input), list(g.output))
    opsets = [*inner.opset_import, h.make_opsetid("my", 1)]
    return h.make_model(graph, opset_imports=opsets, functions=[function], ir_version=10)


def _quantised() -> onnx.ModelProto:
    """K and V as int8 with one scale each."""
    model = build(Spelling(mask="add", opset=21))
    g = model.graph
    nodes = []
    for name in ("k", "v"):
        info = next(i for i in g.input if i.name == name)
        info.type.tensor_type.elem_type = T.INT8
        g.initializer.append(nh.from_array(np.float32(0.02), f"{name}_scale"))
        g.initializer.append(nh.from_array(np.int8(3), f"{name}_zero"))
        inputs = [name, f"{name}_scale", f"{name}_zero"]
        nodes.append(h.make_node("DequantizeLinear", inputs, [f"{name}_f"], name=f"dq_{name}"))
        for node in g.node:
            node.input[:] = [f"{name}_f" if i == name else i for i in node.input]
    nodes += list(g.node)
    del g.node[:]
    g.node.extend(nodes)
    return model


def _sparse(model: onnx.ModelProto) -> onnx.ModelProto:
    """With a sparse initializer added to the output, and a sparse constant."""
    g = model.graph
    shape = [d.dim_value for d in g.output[0].type.tensor_type.shape.dim]
    values = nh.from_array(np.array([1.5], np.float32), "sparse")
    index = nh.from_array(np.array([2], np.int64), "sparse_index")
    g.sparse_initializer.append(h.make_sparse_tensor(values, index, [shape[-1]]))
    values = nh.from_array(np.array([0.5], np.float32), "values")
    constant = h.make_sparse_tensor(values, index, [shape[-1]])
    old = g.output[0].name
    g.node.append(h.make_node("Constant", [], ["sparse_c"], name="sparse_c", sparse_value=constant))
    g.node.append(h.make_node("Add", [old, "sparse"], ["a"], name="add_sparse"))
    g.node.append(h.make_node("Mul", ["a", "sparse_c"], ["b"], name="mul_sparse"))
    g.output[0].name = "b"
    return model


def _constants(model: onnx.ModelProto) -> onnx.ModelProto:
    """Initializers as Constant nodes: tensors, and numbers where they fit."""
    g = model.graph
    nodes = []
    for t in g.initializer:
        array = nh.to_array(t)
        if array.ndim == 0 and array.dtype == np.float32:
            nodes.append(h.make_node("Constant", [], [t.name], name=f"const_{t.name}", value_float=float(array)))
        elif array.ndim == 1 and array.dtype == np.int64:
            nodes.append(h.make_node("Constant", [], [t.name], name=f"const_{t.name}", value_ints=array.tolist()))
        else:
            nodes.append(h.make_node("Constant", [], [t.name], name=f"const_{t.name}", value=t))
    nodes += list(g.node)
    del g.initializer[:], g.node[:]
    g.node.extend(nodes)
    return model


def _training(model: onnx.ModelProto) -> onnx.ModelProto:
    info = model.training_info.add()
    info.algorithm.CopyFrom(
        h.make_graph([h.make_node("Neg", ["o"], ["n"])], "alg", [], [h.make_tensor_value_info("n", T.FLOAT, [1])])
    )
    model.metadata_props.add(key="a", value="b")
    model.graph.quantization_annotation.add(tensor_name="q").quant_parameter_tensor_names.add(key="S", value="v")
    return model


def _contrib() -> onnx.ModelProto:
    """onnxruntime's own attention, as its optimiser and its exporters write it."""
    infos = [h.make_tensor_value_info(n, T.FLOAT, ["B", "S", 16]) for n in "qkvo"]
    node = h.make_node("MultiHeadAttention", ["q", "k", "v"], ["o"], name="mha", domain="com.microsoft", num_heads=2)
    graph = h.make_graph([node], "main", infos[:3], infos[3:])
    opsets = [h.make_opsetid("", 18), h.make_opsetid("com.microsoft", 1)]
    return h.make_model(graph, opset_imports=opsets, ir_version=10)


def _external(model: onnx.ModelProto, where: str) -> Base:
    """All tensors in one file beside the model, at aligned offsets."""
    if where == "constants":
        model = _constants(model)
    data = bytearray()
    tensors = list(model.graph.initializer)
    tensors += [a.t for n in model.graph.node for a in n.attribute if a.type == onnx.AttributeProto.TENSOR]
    for tensor in tensors:
        raw = nh.to_array(tensor).tobytes()
        data += bytes(-len(data) % 64)
        for key, value in (("location", "w.bin"), ("offset", str(len(data))), ("length", str(len(raw)))):
            tensor.external_data.add(key=key, value=value)
        tensor.data_location = T.EXTERNAL
        tensor.ClearField("raw_data")
        for name in ("float_data", "int64_data", "int32_data", "double_data"):
            tensor.ClearField(name)
        data += raw
    return Base(f"external_{where}", model.SerializeToString(), {"w.bin": bytes(data)})
