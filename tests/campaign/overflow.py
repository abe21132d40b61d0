"""What a graph makes when nothing overflows on the way, the same in f64, and when more does."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import numpy_helper as nh

from tests.support.ort_run import session

from .changes import PRODUCTS, Graph
from .inputs import Array, Engine, Inputs

ALMOST = {T.FLOAT: 1e36, T.FLOAT16: 1e4}
"""The terms of a product of this size may be too large, although their sum is not."""
ARITHMETIC = ("Mul", "Div", "Add", "Sub", "MatMul", "Einsum", "Gemm", "Sum", "Exp", "Pow")
_FLOATS = (T.FLOAT, T.FLOAT16, T.BFLOAT16)


def _shown(model: onnx.ModelProto, inputs: Inputs) -> dict[str, Array]:
    """What every node makes, but those in bf16, which onnxruntime does not hand out."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    del shown.graph.output[:]
    told = onnx.shape_inference.infer_shapes(model).graph.value_info
    hidden = {v.name for v in told if v.type.tensor_type.elem_type == T.BFLOAT16}
    names = [o for n in model.graph.node for o in n.output if o and o not in hidden]
    shown.graph.output.extend(onnx.ValueInfoProto(name=o) for o in names)
    found = dict(zip(names, session(shown, optimise=False).run(None, inputs), strict=True))
    found |= {i.name: nh.to_array(i) for i in model.graph.initializer}
    return found | inputs


def finite(x: Array) -> bool:
    return x.dtype.kind != "f" or bool(np.isfinite(x).all())


def overflows(model: onnx.ModelProto, inputs: Inputs) -> bool:
    """Whether arithmetic makes an infinity of finite numbers."""
    values = _shown(model, inputs)
    for node in model.graph.node:
        known = all(i in values for i in (*node.input, node.output[0]))
        if node.op_type not in ARITHMETIC or node.domain == "my" or not known:
            continue
        result = values[node.output[0]]
        if not finite(result) and all(finite(values[i]) for i in node.input):
            return True
    return False


def in_double(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every float an f64."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for info in (*made.graph.input, *made.graph.output, *made.graph.value_info):
        if info.type.tensor_type.elem_type in _FLOATS:
            info.type.tensor_type.elem_type = T.DOUBLE
    for i in made.graph.initializer:
        if i.data_type in _FLOATS:
            i.CopyFrom(nh.from_array(nh.to_array(i).astype(np.float64), i.name))
    for node in made.graph.node:
        for a in node.attribute:
            if node.op_type == "Cast" and a.name == "to" and a.i in _FLOATS:
                a.i = T.DOUBLE
    return made


def doubled(model: onnx.ModelProto, old: Engine, inputs: Inputs, index: int) -> list[Array]:
    """Output `index` in f64, where something overflows on the way; nothing where nothing does."""
    if old.by_definition:
        return []
    try:
        if not overflows(model, inputs):
            return []
        wide = {n: x.astype(np.float64) if x.dtype.kind == "f" else x for n, x in inputs.items()}
        result = Engine(in_double(model)).run(wide)[index]
    except Exception:  # not every op has a kernel for f64
        return []
    return [result]


def overflowed(g: Graph, node: onnx.NodeProto, own: str, kind: int) -> str | None:
    """Arithmetic with its factors in another order may make NaN where it makes an infinity of finite numbers, or a product of
    numbers above 1 that is almost one."""
    if node.op_type not in ARITHMETIC:
        return None
    infinite = [g.is_infinite(x) for x in node.input]
    if node.op_type in PRODUCTS:
        ones = [g.f32(g.op("Equal", x, x)) for x in infinite]
        more = [g.op("Add", one, g.f32(x)) for one, x in zip(ones, infinite, strict=True)]
        some = g.op("Not", g.op("Equal", g.again(node, *more), g.again(node, *ones)))
    else:
        some = infinite[0]
        for x in infinite[1:]:
            some = g.op("Or", some, x)
    large = g.is_infinite(own)
    if node.op_type == "Mul" or node.op_type in PRODUCTS:
        almost = g.above(own, ALMOST.get(kind, ALMOST[T.FLOAT]))
        for x in node.input if node.op_type == "Mul" else ():
            almost = g.op("And", almost, g.above(x, 1.0))
        large = g.op("Or", large, almost)
    return g.op("Where", g.op("And", large, g.op("Not", some)), g.number(np.nan, kind), own)
