"""Sums of f16 and bf16: onnxruntime's numbers, which are rounded once, and none that is infinite on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.run import function_of, load_module
from onnx_fa.spec.target import parse_target
from tests.support.ort_run import run

HALF = 2.0**-10
"""Twice the rounding of a number of f16."""
ROW: list[tuple[str, dict[str, Any]]] = [
    ("ReduceMean", {"axes": [-1]}),
    ("ReduceL1", {"axes": [-1]}),
    ("ReduceL2", {"axes": [-1]}),
    ("ReduceSumSquare", {"axes": [-1]}),
    ("ReduceLogSumExp", {"axes": [-1]}),
    ("LogSoftmax", {"axis": -1}),
    ("LpNormalization", {"axis": -1}),
    ("Einsum", {"equation": "nchw->nch"}),
    ("GlobalAveragePool", {}),
    ("AveragePool", {"kernel_shape": [5, 31], "pads": [2, 15, 2, 15]}),
]


def graph(nodes: list[onnx.NodeProto], kind: int, outputs: list[str], shape: list[int | str]) -> onnx.ModelProto:
    """A model of f32 around nodes that read `narrow` (n, 2, 5, 300) of another type, whose outputs of that type are given out."""
    first = h.make_node("Cast", ["x"], ["narrow"], to=kind)
    last = [h.make_node("Cast", [o], [f"{o}_wide"], to=T.FLOAT) for o in outputs]
    arrays = {"last": np.array([-1]), "place": np.array(3), "sizes": np.array([1, 1, 2, 2], np.float32)}
    weights = [numpy_helper.from_array(a, n) for n, a in arrays.items() if any(n in node.input for node in nodes)]
    values = [h.make_tensor_value_info(f"{o}_wide", T.FLOAT, None) for o in outputs]
    x = h.make_tensor_value_info("x", T.FLOAT, shape)
    model = h.make_model(
        h.make_graph([first, *nodes, *last], "main_graph", [x], values, weights),
        opset_imports=[h.make_opsetid("", 17)],
        ir_version=9,
    )
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def compiled(model: onnx.ModelProto, x: np.ndarray[Any, Any], folder: Path) -> list[np.ndarray[Any, Any]]:
    compile_model(model, folder / "m.vmfb", parse_target("cpu-host"), parameters="embed")
    return load_module(folder / "m.vmfb", function=function_of(folder / "m.vmfb"))(x)


def test_f16(tmp_path: Path) -> None:
    nodes = [h.make_node(op, ["narrow"], [f"y{i}"], **attributes) for i, (op, attributes) in enumerate(ROW)]
    nodes += [
        h.make_node("ReduceSum", ["narrow", "last"], ["sum"]),
        h.make_node("CumSum", ["narrow", "place"], ["running"]),
        h.make_node("Resize", ["narrow", "", "sizes"], ["larger"], mode="linear"),
        h.make_node("Mean", ["narrow", "narrow"], ["mean"]),
    ]
    outputs = [*(f"y{i}" for i in range(len(ROW))), "sum", "running", "larger", "mean"]
    model = graph(nodes, T.FLOAT16, outputs, ["n", 2, 5, 300])
    x = np.random.default_rng(0).standard_normal((3, 2, 5, 300)).astype(np.float32)
    for name, got, want in zip(outputs, compiled(model, x, tmp_path), run(model, {"x": x}), strict=True):
        assert got.shape == want.shape and np.abs(got - want).max() <= HALF * np.abs(want).max(), name


def test_squares_do_not_end_at_infinity(tmp_path: Path) -> None:
    """A norm of numbers about 20, whose squares add up to more than f16 has."""
    nodes = [
        h.make_node("Mul", ["narrow", "narrow"], ["squares"]),
        h.make_node("ReduceMean", ["squares"], ["mean"], axes=[-1]),
        h.make_node("Sqrt", ["mean"], ["root"]),
        h.make_node("Div", ["narrow", "root"], ["y"]),
    ]
    model = graph(nodes, T.FLOAT16, ["y"], [1, 2, 5, 300])
    x = np.random.default_rng(0).uniform(15, 25, (1, 2, 5, 300)).astype(np.float32)
    (got,), (want,) = compiled(model, x, tmp_path), run(model, {"x": x})
    assert want.min() > 0.5 and np.abs(got - want).max() <= 2 * HALF * want.max()


def test_bf16(tmp_path: Path) -> None:
    """Sums of as many ones as bf16 cannot count."""
    nodes = [
        h.make_node("ReduceSum", ["narrow", "last"], ["sum"]),
        h.make_node("ReduceMean", ["narrow"], ["mean"], axes=[1, 2, 3]),
    ]
    model = graph(nodes, T.BFLOAT16, ["sum", "mean"], [2, 2, 5, 300])
    total, mean = compiled(model, np.ones((2, 2, 5, 300), np.float32), tmp_path)
    assert (total == 300).all() and (mean == 1).all()
