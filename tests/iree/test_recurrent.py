"""Recurrent layers in every direction, with and without lengths: the LSTMs of GLiNER, of readers of text and of voices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnx_fa
from onnx_fa.errors import ModelError
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.rules import legalize
from tests.support.ort_run import run

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
SQ, B, IN, H = 5, 3, 4, 2


def layers(op: str, *nodes: dict[str, Any], free: bool = False, lengths: bool = True) -> onnx.ModelProto:
    """Nodes of one operator over the same x: (Sq, B, IN), each with all its results as outputs."""
    rng = np.random.default_rng(0)
    made, constants, outputs = [], [], []
    for n, attributes in enumerate(nodes):
        ways = 2 if attributes.get("direction") == "bidirectional" else 1
        shapes = {"w": (GATES[op] * H, IN), "r": (GATES[op] * H, H), "b": (2 * GATES[op] * H,), "h": (B, H)}
        arrays = {f"{k}{n}": rng.standard_normal((ways, *s)).astype(np.float32) for k, s in shapes.items()}
        constants += [numpy_helper.from_array(a, name) for name, a in arrays.items()]
        weights, first = list(arrays)[:3], list(arrays)[3]
        results = [f"{r}{n}" for r in ("y", "yh", "yc")[: 3 if op == "LSTM" else 2]]
        inputs = ["x", *weights, "lengths" if lengths else "", first, *([first] if op == "LSTM" else [])]
        made.append(helper.make_node(op, inputs, results, name=f"layer{n}", hidden_size=H, **attributes))
        outputs += [
            helper.make_tensor_value_info(r, TensorProto.FLOAT, [None] * (4 - (i > 0))) for i, r in enumerate(results)
        ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["S", B, IN] if free else [SQ, B, IN])
    given = [x, helper.make_tensor_value_info("lengths", TensorProto.INT32, [B])][: 1 + lengths]
    graph = helper.make_graph(made, "g", given, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


DIRECTIONS = [{"direction": way} for way in ("forward", "reverse", "bidirectional")]


@pytest.mark.parametrize(
    ("op", "lengths", "free"),
    [("LSTM", True, True), ("LSTM", False, False), ("GRU", True, False), ("GRU", False, False), ("RNN", True, False)],
)
def test_directions_and_lengths(op: str, lengths: bool, free: bool, tmp_path: Path) -> None:
    """Of a sequence without elements all is 0."""
    model = layers(op, *DIRECTIONS, free=free, lengths=lengths)
    feeds = {"x": np.random.default_rng(1).standard_normal((SQ, B, IN)).astype(np.float32)}
    if lengths:
        feeds["lengths"] = np.array([SQ, 2, 0], np.int32)
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    got = onnx_fa.run(tmp_path / "m.vmfb", *feeds.values())
    for output, found, want in zip(model.graph.output, got, run(model, feeds), strict=True):
        np.testing.assert_allclose(np.asarray(found), want, rtol=1e-4, atol=1e-6, err_msg=output.name)


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("GRU", {"activations": ["Sigmoid", "Relu"] * 2, "direction": "bidirectional", "linear_before_reset": 1}),
        ("LSTM", {"activations": ["sigmoid", "TANH", "relu"]}),
    ],
)
def test_activations(op: str, attributes: dict[str, Any], tmp_path: Path) -> None:
    """Those of each direction by themselves; onnxruntime reads their names in any case."""
    model = layers(op, attributes, lengths=False)
    x = np.random.default_rng(1).standard_normal((SQ, B, IN)).astype(np.float32)
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    for found, want in zip(onnx_fa.run(tmp_path / "m.vmfb", x), run(model, {"x": x}), strict=True):
        np.testing.assert_allclose(np.asarray(found), want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("attributes", "why"),
    [({"clip": 0.3}, "a clip"), ({"activations": ["Sigmoid", "Softsign", "Tanh"]}, "Softsign as an activation")],
)
def test_what_iree_would_leave_out_is_refused(attributes: dict[str, Any], why: str) -> None:
    with pytest.raises(ModelError, match=f"'layer0': LSTM with {why}"):
        legalize(layers("LSTM", attributes))


def test_peepholes_are_refused() -> None:
    model = layers("LSTM", {}, lengths=False)
    model.graph.node[0].input.append("b0")
    with pytest.raises(ModelError, match="peepholes"):
        legalize(model)


def test_the_last_cell_behind_other_gates_is_refused() -> None:
    with pytest.raises(ModelError, match="gates are not Sigmoid's"):
        legalize(layers("LSTM", {"activations": ["Relu", "Tanh", "Tanh"]}))


@pytest.mark.parametrize("op", list(GATES))
@pytest.mark.parametrize(("steps", "batch"), [(0, 3), (0, 0), (4, 0)])
def test_nothing_written_in_the_file(op: str, steps: int, batch: int, tmp_path: Path) -> None:
    """No steps, no sequences or neither: results are without elements or 0."""
    model = layers(op, *DIRECTIONS, lengths=False)
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.FLOAT, [steps, batch, IN]))
    for tensor in model.graph.initializer:
        if tensor.name.startswith("h"):
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor)[:, :batch].copy(), tensor.name))
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    have = iter(onnx_fa.run(tmp_path / "m.vmfb", np.zeros((steps, batch, IN), np.float32)))
    for output in model.graph.output:
        ways, got = 2 if output.name[-1] == "2" else 1, np.asarray(next(have))
        assert got.shape == (*[steps] * (output.name[:-1] == "y"), ways, batch, H) and not got.any()


@pytest.mark.parametrize(
    ("op", "sizes", "why"),
    [
        ("LSTM", ("S", "B"), "'layer0': LSTM of a free length and a free batch"),
        ("GRU", ("S", B), "'layer0': GRU of a free length, "),
        ("RNN", (SQ, "B"), "'layer0': RNN of a free batch, "),
    ],
)
def test_free_sizes_that_iree_mixes_up_are_refused(op: str, sizes: tuple[int | str, int | str], why: str) -> None:
    """Of several LSTMs of a free length and a free batch each may have results of another."""
    model = layers(op, {}, lengths=False)
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.FLOAT, [*sizes, IN]))
    with pytest.raises(ModelError, match=why):
        legalize(model)


@pytest.mark.parametrize(("op", "way"), [("LSTM", "forward"), ("LSTM", "bidirectional"), ("GRU", "forward")])
def test_what_iree_has_stays(op: str, way: str) -> None:
    model = layers(op, {"direction": way}, lengths=False)
    nodes = [n for n in legalize(model).graph.node if op_of(n) == op]
    assert nodes == list(model.graph.node)
