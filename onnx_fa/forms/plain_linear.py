"""A linear site as a model of its own, spelled as exporters do: MatMul by a constant, then ops. For tuner and benchmarks."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from onnx_fa.errors import UnsupportedError
from onnx_fa.forms.plain import OPSET
from onnx_fa.forms.score import apply_to_sums
from onnx_fa.graph.builder import OnnxBuilder
from onnx_fa.graph.normalise import infer_shapes
from onnx_fa.spec.dtypes import ONNX
from onnx_fa.spec.linear import LinearSpec

GRAPH = "site"
"""The name of the model's graph."""


def plain_linear_model(spec: LinearSpec, weight: npt.NDArray[Any]) -> ir.Model:
    """The model: inputs x and the tensors t0, t1, ..., output `out`; the weight, as a spec without panels has it, is a constant.

    Raises UnsupportedError for weights of a few bits, and for bytes, which are spelled in more ways than one.
    """
    if spec.bits is not None or spec.is_of_bytes or spec.panel or weight.dtype != ir.DataType(ONNX[spec.dtype]).numpy():
        raise UnsupportedError(f"a product of {spec.dtype} by a weight of another type has no plain model")
    names = [n for n in spec.operand_names() if n != "w"]
    shapes, dtypes = (
        [v for n, v in zip(spec.operand_names(), of, strict=True) if n != "w"]
        for of in (spec.operand_shapes, spec.operand_dtypes)
    )
    inputs = [
        ir.Value(name=n, type=ir.TensorType(ir.DataType(ONNX[str(d)])), shape=ir.Shape(s))
        for n, s, d in zip(names, shapes, dtypes, strict=True)
    ]
    graph = ir.Graph(inputs, [], nodes=[], opset_imports={"": OPSET}, name=GRAPH)
    b = OnnxBuilder(graph, OPSET, "linear", set(names), {})
    w = b.const(weight.T.copy() if spec.transposed else weight, "weight")
    out = b.op("MatMul", inputs[0], w)
    out = apply_to_sums(b, spec.then, out, list(zip(inputs[1:], spec.tensors, strict=True)), spec.result_dtype)
    graph.extend(b.nodes)
    ((shape, dtype),) = spec.results
    out.name, out.type, out.shape = "out", ir.TensorType(ir.DataType(ONNX[dtype])), ir.Shape(shape)
    graph.outputs.append(out)
    model = ir.Model(graph, ir_version=9)
    infer_shapes(model)
    return model
