"""A spec as a model of its own, spelled as exporters do: MatMul, score, Softmax, MatMul. For benchmarks and tests, not a form."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from onnx_fa.errors import UnsupportedError
from onnx_fa.forms.decomposed import canonical_operands, leave, positions, shown_weights, statistic
from onnx_fa.forms.integers import by_pair, dequantized, guarded
from onnx_fa.forms.score import modify, weighted
from onnx_fa.graph.builder import OnnxBuilder
from onnx_fa.graph.normalise import infer_shapes
from onnx_fa.graph.ops import op_of
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.dtypes import ONNX
from onnx_fa.spec.terms import Dim

OPSET, INTEGERS_OPSET = 18, 21
"""The opset of the models; where K or V is kept as integers, the first that has scales per block."""


def input_names(spec: AttentionSpec) -> list[str]:
    """The model's inputs: operands as the spec names them, tensors of mask terms as t0, t1, ..."""
    return spec.operand_names("t")


def opset_of(spec: AttentionSpec) -> int:
    """The opset that the spec's ops need."""
    return INTEGERS_OPSET if spec.quantized or spec.rounding is not None else OPSET


def plain_model(spec: AttentionSpec) -> ir.Model:
    """The model: inputs as `input_names` says, outputs `out` and the row statistics. Index masks are computed from Range, as no
    mask is given.

    Raises UnsupportedError where a plain softmax does not mean what the spec says of rows without a key.
    """
    if spec.stats and spec.sink is not None:
        raise UnsupportedError("row statistics with a sink")
    if spec.empty_row in ("zero", "guarded"):
        raise UnsupportedError(f"a plain softmax does not give {spec.empty_row} for a row without a key")
    inputs = operand_values(spec)
    opset = opset_of(spec)
    graph = ir.Graph(inputs, [], nodes=[], opset_imports={"": opset}, name="attention")
    b = OnnxBuilder(graph, opset, "attention", set(input_names(spec)), {})
    inner, q, kt, v, tensors, sink = canonical_operands(b, *dequantized(b, spec, inputs, by_op=True))
    score = modify(b, inner, b.op("MatMul", q, kt), tensors, lambda: positions(b, spec, q, kt))
    if spec.weighting is not None:
        p = shown_weights(b, spec, spec.weighting, score, lambda: positions(b, spec, q, kt))
    elif sink is None:
        p = b.op("Softmax", score, axis=-1)
    else:
        column = b.op("Expand", sink, b.op("Shape", b.reduce_max(score)))
        joined = b.op("Softmax", b.op("Concat", score, column, axis=-1), axis=-1)
        p = b.op("Slice", joined, b.ints(0), b.ints(-1), b.ints(-1))
    for i, rounding in enumerate(spec.rounding.chain if spec.rounding else ()):
        p = by_pair(b, rounding, guarded(b, p) if i else p)  # guards between, as quantisers of exports leave them
    out = leave(b, spec, b.op("MatMul", weighted(b, spec, p, tensors), v))
    stats = [statistic(b, spec, score, which) for which in spec.stats]
    model = finished(b, spec, out, *stats)
    infer_shapes(model)
    return model


def plain_model_in_halves(spec: AttentionSpec) -> ir.Model:
    """The model of an f16 spec with f16 between all its ops, as models in f16 are exported; `plain_model` computes in f32.

    Raises UnsupportedError for other types, and for specs with tensors of their own.
    """
    if spec.dtype != "f16" or spec.tensors or spec.sink is not None or spec.stats:
        raise UnsupportedError("only f16 attention of Q, K and V alone is written in halves")
    model = plain_model(dataclasses.replace(spec, dtype="f32"))
    half = ir.DataType.FLOAT16
    values = [*model.graph.inputs, *model.graph.initializers.values(), *(o for n in model.graph for o in n.outputs)]
    for value in values:
        if value.dtype != ir.DataType.FLOAT:
            continue
        if value.const_value is not None:
            value.const_value = ir.tensor(value.const_value.numpy().astype(np.float16), name=value.name)
        value.type = ir.TensorType(half)
    for node in model.graph:
        if op_of(node) == "Cast" and node.attributes["to"].as_int() == ir.DataType.FLOAT:
            node.attributes["to"] = ir.AttrInt64("to", half)
    return model


def finished(b: OnnxBuilder, spec: AttentionSpec, *outs: ir.Value) -> ir.Model:
    """The model of the builder's graph and nodes, whose outputs are the site's."""
    b.graph.extend(b.nodes)
    for out, name, (shape, dtype) in zip(outs, ("out", *spec.stats), spec.results, strict=True):
        out.name = name
        out.type, out.shape = ir.TensorType(ir.DataType(ONNX[dtype])), ir.Shape(shape)
        b.graph.outputs.append(out)
    return ir.Model(b.graph, ir_version=10 if spec.quantized else 9)


def operand_values(spec: AttentionSpec) -> list[ir.Value]:
    """Graph inputs for the operands of `spec`, named by `input_names`."""
    return [
        _value(n, s, d) for n, s, d in zip(input_names(spec), spec.operand_shapes, spec.operand_dtypes, strict=True)
    ]


def _value(name: str, shape: tuple[Dim, ...], dtype: str) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(ir.DataType(ONNX[dtype])), shape=ir.Shape(shape))
