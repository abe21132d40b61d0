"""A linear site as a model of its own, spelled as exporters do: MatMul by a constant, then ops. For tuner and benchmarks.

Weights of a few bits are MatMulNBits'. Bytes are spelled as dynamic quantisation is: MatMulInteger, a Cast of its sums to f32. A
weight in a shorter type than x's is a constant of that type and a Cast.
"""

from __future__ import annotations

from collections.abc import Sequence
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

CONTRIB = "com.microsoft"
GRAPH = "site"
"""The name of the model's graph."""


def plain_linear_model(spec: LinearSpec, held: Sequence[npt.NDArray[Any]]) -> ir.Model:
    """The model: inputs x, the zero point (of x's type) and the tensors t0, t1, ..., output `out`; what is `held`, the weight as a
    spec without panels has it, of few bits also its scales and zero points, is constant.

    Raises UnsupportedError for a weight that is not the spec's.
    """
    weight = held[0]
    if spec.bits is not None:
        if spec.dtype != "f32" or spec.bits.scales != "f32":
            raise UnsupportedError(
                f"a product of {spec.dtype} by few bits with scales of {spec.bits.scales} has no plain model"
            )
    elif spec.panel or weight.dtype != ir.DataType(ONNX[spec.weight_dtype]).numpy():
        raise UnsupportedError(f"a product of {spec.dtype} by a weight of {weight.dtype} has no plain model")
    constants = range(1, 1 + len(held))
    every = zip(spec.operand_names(), spec.operand_shapes, spec.operand_dtypes, strict=True)
    given = [operand for i, operand in enumerate(every) if i not in constants]
    names = [n for n, _, _ in given]
    inputs = [
        ir.Value(
            name=n,
            type=ir.TensorType(ir.DataType(ONNX[spec.dtype if n == "zero" else d])),
            shape=ir.Shape(shape),
        )
        for n, shape, d in given
    ]
    graph = ir.Graph(inputs, [], nodes=[], opset_imports={"": OPSET}, name=GRAPH)
    b = OnnxBuilder(graph, OPSET, "linear", set(names), {})
    if spec.bits is not None:
        out = _by_bits(b, spec, inputs[0], held)
    else:
        out = _by_numbers(b, spec, inputs, weight)
    tensors = inputs[len(inputs) - len(spec.tensors) :]
    out = apply_to_sums(b, spec.then, out, list(zip(tensors, spec.tensors, strict=True)), spec.result_dtype)
    graph.extend(b.nodes)
    ((shape, dtype),) = spec.results
    out.name, out.type, out.shape = "out", ir.TensorType(ir.DataType(ONNX[dtype])), ir.Shape(shape)
    graph.outputs.append(out)
    model = ir.Model(graph, ir_version=9)
    infer_shapes(model)
    return model


def _by_numbers(b: OnnxBuilder, spec: LinearSpec, inputs: Sequence[ir.Value], weight: npt.NDArray[Any]) -> ir.Value:
    w = b.const(weight.T.copy() if spec.transposed else weight, "weight")
    if spec.stored:
        w = b.op("Cast", w, to=ONNX[spec.dtype])
    if not spec.is_of_bytes:
        return b.op("MatMul", inputs[0], w)
    return b.op("Cast", b.op("MatMulInteger", inputs[0], w, *inputs[1 : 1 + spec.zero]), to=ONNX["f32"])


def _by_bits(b: OnnxBuilder, spec: LinearSpec, x: ir.Value, held: Sequence[npt.NDArray[Any]]) -> ir.Value:
    """onnxruntime's MatMulNBits, whose weight has a dim for its blocks."""
    assert spec.bits is not None
    packed = held[0].reshape(spec.N, spec.blocks, spec.bits.block // spec.bits.places)
    sizes = {"K": spec.K, "N": spec.N, "bits": spec.bits.bits, "block_size": spec.bits.block}
    rest = [b.const(part, name) for part, name in zip(held[1:], ("scales", "zeros"), strict=False)]
    b.graph.opset_imports[CONTRIB] = 1
    return b.op_of(CONTRIB, "MatMulNBits", [x, b.const(packed, "weight"), *rest], sizes)
