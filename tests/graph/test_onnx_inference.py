"""ONNX's inference as this package calls it finds what onnx_ir's pass finds, and leaves the rest of a model as it was."""

from __future__ import annotations

import logging

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model
from onnx_ir.passes.common import ShapeInferencePass

from onnx_fa.graph.normalise import infer_shapes
from onnx_fa.graph.onnx_inference import infer_by_onnx

HEAD = '<ir_version: 10, opset_import: ["" : 18, "other" : 1]>'
BODIES = {
    "free dims": "g (float[b,s,8] x) => (float[b,s,4] y) { t = MatMul(x, large) y = Relu(t) }",
    "numbers of shapes": """g (float[b,6,8] x) => (y) {
        n = Shape(x) two = Constant <value = int64[1] {2}> () m = Mul(n, two) y = ConstantOfShape(m) }""",
    "branches": """g (bool c, float[b,8] x) => (float[b,p] y) {
        y = If (c) <
            then_branch = t () => (float[b,p] u) { r = Relu(x) u = Tanh(r) },
            else_branch = e () => (float[b,p] v) { w = MatMul(x, square) v = Identity(w) }
        > }""",
    "a scan": """g (float[3,b] x, float[b] s0) => (s, o) {
        s, o = Scan <num_scan_inputs = 1, body = body (float[b] sin, float[b] xin) => (float[b] sout, float[b] oout) {
            q = Add(sin, xin) sout = Relu(q) oout = Exp(q) }> (s0, x) }""",
    "sequences": "g (float[2,3] x) => (y) { s = SplitToSequence(x) i = Constant <value = int64 {1}> () y = SequenceAt(s, i) }",
    "an operator that nobody knows": "g (float[2,3] x) => (z) { y = other.Thing(x) u = Relu(x) z = Add(y, u) }",
    "a contradiction": "g (float[2,3] x, float[5,3] w) => (z) { y = MatMul(x, w) z = Relu(x) }",
}


def _model(body: str) -> ir.Model:
    proto = parse_model(f"{HEAD} {body}")
    weights = {"small": (2,), "large": (8, 400), "square": (8, 8)}
    proto.graph.initializer.extend(
        numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in weights.items()
    )
    return ir.from_proto(proto)


def _known(model: ir.Model) -> set[tuple[str | None, str, str]]:
    graphs = (model.graph, *model.graph.subgraphs())
    values = [v for g in graphs for v in (*g.inputs, *g.outputs, *g.initializers.values())]
    values += [v for n in model.graph.all_nodes() for v in n.outputs]
    return {(v.name, str(v.shape), str(v.dtype)) for v in values}


@pytest.mark.parametrize("data_prop", [False, True], ids=["types", "numbers"])
@pytest.mark.parametrize("name", BODIES)
def test_it_finds_what_the_pass_finds(name: str, data_prop: bool, caplog: pytest.LogCaptureFixture) -> None:
    ours, theirs = _model(BODIES[name]), _model(BODIES[name])
    before = _known(ours)
    infer_by_onnx(ours, data_prop=data_prop)
    with caplog.at_level(logging.CRITICAL):
        ShapeInferencePass(check_type=False, strict_mode=False, data_prop=data_prop)(theirs)
    assert _known(ours) == _known(theirs)
    found = name != "a contradiction" and (data_prop or name != "numbers of shapes")
    assert not found or _known(ours) != before


def test_the_model_stays_in_order() -> None:
    """Inputs, initializers and their tensors are those of before, in their order: onnx_ir's pass moves large ones to the end."""
    model = _model(BODIES["free dims"])
    graph = model.graph
    first, *rest = list(graph.initializers.values())
    graph.inputs.append(first)  # a default
    before = (list(graph.inputs), list(graph.initializers.items()), [v.const_value for v in (first, *rest)])
    proto = ir.to_proto(model)
    infer_by_onnx(model, data_prop=True)
    assert (list(graph.inputs), list(graph.initializers.items()), [v.const_value for v in (first, *rest)]) == before
    assert all(v.is_initializer() for v in graph.initializers.values())
    after = ir.to_proto(model)
    del after.graph.value_info[:], proto.graph.value_info[:]
    del after.graph.output[:], proto.graph.output[:]
    assert after == proto


def test_what_cannot_be_written_stays() -> None:
    """A model that does not become a proto is left as it is."""
    model = _model(BODIES["free dims"])
    model.graph.inputs[0].name = None
    before = _known(model)
    infer_by_onnx(model, data_prop=True)
    assert _known(model) == before
    assert [v.name for v in model.graph.initializers.values()] == ["small", "large", "square"]


def test_the_proto_is_small() -> None:
    """Weights of more than a kilobyte are not written for inference: a model may have gigabytes."""
    model = _model(BODIES["free dims"])

    class Unread(ir.Tensor):
        def tobytes(self) -> bytes:
            raise AssertionError("a large weight was written")

    model.graph.initializers["large"].const_value = Unread(np.ones((8, 400), np.float32), name="large")
    infer_by_onnx(model, data_prop=False)
    made = model.graph.node(0).outputs[0]
    assert made.shape == ir.Shape(["b", "s", 400]) and made.dtype == ir.DataType.FLOAT
    assert made.dtype.value == onnx.TensorProto.FLOAT


def test_a_sequence_is_no_tensor() -> None:
    """What a Loop collects is a sequence of tensors: a tensor of its element type is another value, which nothing loads."""
    model = _model(
        """f (float[b, s, 400] x) => (float[n] o) {
          empty = SequenceEmpty <dtype = 1> ()
          two = SequenceInsert (empty, x)
          o = ConcatFromSequence <axis = 0> (two)
        }"""
    )
    infer_by_onnx(model, data_prop=False)
    kinds = {n.op_type: n.outputs[0].type for n in model.graph}
    assert isinstance(kinds["SequenceEmpty"], ir.SequenceType) and isinstance(kinds["SequenceInsert"], ir.SequenceType)
    inserted = next(i for i in ir.to_proto(model).graph.value_info if i.name == "two")
    assert inserted.type.WhichOneof("value") == "sequence_type"


def test_bins_of_one_side_are_the_default() -> None:
    """ONNX's inference takes an STFT that leaves `onesided` out for one of all bins."""
    model = _model(
        """f (float[2, 128, 1] x) => (float[2, 15, 9, 2] y, float[2, 15, 9, 2] o) <int64 step = {8}, int64 frame = {16}> {
          y = STFT (x, step, , frame)
          z = STFT (x, step, , frame)
          o = Identity (z)
        }"""
    )
    infer_by_onnx(model, data_prop=False)
    assert model.graph.node(1).outputs[0].shape == ir.Shape([2, 15, 9, 2])
    infer_shapes(model)
    assert model.graph.node(0).outputs[0].shape == ir.Shape([2, 15, 9, 2])
