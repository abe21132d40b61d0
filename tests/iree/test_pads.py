"""Pads that IREE computes wrongly: the same results in onnxruntime as written out, and compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper as h
from onnx import numpy_helper as nh

from onnx_fa.errors import ModelError
from onnx_fa.iree.compile import import_model
from onnx_fa.iree.compiler import iree_compile
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.rules import legalize
from onnx_fa.iree.run import load_module
from onnx_fa.spec.target import parse_target
from tests.support.ort_run import run

X = np.arange(1, 36, dtype=np.float32).reshape(5, 7)


def padded(
    pads: list[int], mode: str, axes: list[int] | None = None, opset: int = 19, shape: tuple[Any, ...] = X.shape
) -> onnx.ModelProto:
    numbers = {"pads": np.array(pads), **({"axes": np.array(axes)} if axes else {})}
    attributes: dict[str, Any] = {"pads": pads} if opset < 11 else {}
    inputs = ["x"] if opset < 11 else ["x", "pads", "", "axes"] if axes else ["x", "pads"]
    info = [h.make_tensor_value_info(n, 1, s) for n, s in (("x", shape), ("y", ("a", "b")))]
    node = h.make_node("Pad", inputs, ["y"], "node", mode=mode, **attributes)
    constants = [nh.from_array(a, n) for n, a in numbers.items()] if opset >= 11 else []
    graph = h.make_graph([node], "main_graph", info[:1], info[1:], constants)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", opset)], ir_version=9)


def written(model: onnx.ModelProto) -> onnx.ModelProto:
    typed = onnx.ModelProto()
    typed.CopyFrom(model)
    infer_types(typed, {})
    return legalize(typed)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(-2, 2), min_size=4, max_size=4),
    st.sampled_from(["constant", "edge", "reflect", "wrap"]),
    st.sampled_from([None, [0, 1], [1, 0], [-1, 0]]),
    st.sampled_from([X.shape, ("N", 7), (5, "N"), ("N", "M")]),
)
def test_any_pads(pads: list[int], mode: str, axes: list[int] | None, shape: tuple[Any, ...]) -> None:
    if mode == "wrap" and shape != X.shape:
        return
    model = padded(pads, mode, axes, shape=shape)
    new = written(model)
    left = [n for n in new.graph.node if n.op_type == "Pad"]
    assert not (left and mode == "wrap") or min(pads) >= 0
    given_ = {t.name: nh.to_array(t) for t in new.graph.initializer}
    assert all((given_[n.input[1]] >= 0).all() for n in left)
    if mode == "reflect" and any(pads) and left:  # of free axes alone, of one at once, and of one row on each side
        assert all(sorted(given_[n.input[1]]) == [0, 0, 1, 1] for n in left) and shape != X.shape
    np.testing.assert_array_equal(run(new, {"x": X})[0], run(model, {"x": X})[0])


@pytest.mark.parametrize("opset", [8, 10, 11, 18])
@pytest.mark.parametrize("pads", [[-1, 2, 0, -3], [-1, -2, 0, 0], [1, 0, 0, 2]])
def test_any_opset(pads: list[int], opset: int) -> None:
    model = padded(pads, "constant", opset=opset)
    np.testing.assert_array_equal(run(written(model), {"x": X})[0], run(model, {"x": X})[0])


@pytest.mark.parametrize(
    ("pads", "mode"), [([0, 1, 0, -1], "constant"), ([-1, 1, 1, -2], "edge"), ([1, -1, 2, 3], "wrap")]
)
def test_compiled(pads: list[int], mode: str, tmp_path: Path) -> None:
    check_compiled(padded(pads, mode), X, tmp_path)


@pytest.mark.parametrize("mode", ["reflect", "edge"])
@pytest.mark.parametrize("shape", [("N", 3, 5, 9), ("N", 3, "H", 9), (2, 3, 5, 9)])
def test_copied_rows_of_images(shape: tuple[Any, ...], mode: str, tmp_path: Path) -> None:
    """Of parts of images too, whose columns lie apart."""
    model = padded([0, 0, 1, 2, 0, 0, 1, -1], mode, shape=shape)
    bounds = {"starts": [1], "ends": [99], "axes": [3], "steps": [2]}
    model.graph.initializer.extend(nh.from_array(np.array(numbers), name) for name, numbers in bounds.items())
    model.graph.node.insert(0, h.make_node("Slice", ["x", *bounds], ["part"], "slice"))
    model.graph.node[1].input[0] = "part"
    model.graph.output[0].type.tensor_type.ClearField("shape")
    check_compiled(model, np.random.default_rng(0).standard_normal((2, 3, 5, 9)).astype(np.float32), tmp_path)


@pytest.mark.parametrize("shape", [("N",), (5,), ("N", 3, 1, "M")])
def test_edges_along_the_first_axis(shape: tuple[Any, ...], tmp_path: Path) -> None:
    rank = len(shape)
    model = padded([2, *[0] * (rank - 1), 1, *[0] * (rank - 1)], "edge", shape=shape)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    x = np.random.default_rng(0).standard_normal([{"N": 5, "M": 2}.get(d, d) for d in shape]).astype(np.float32)
    check_compiled(model, x, tmp_path)


@pytest.mark.parametrize("sides", [(6, 0), (0, 2), (5, 1), (1, 1)])
def test_reflected_sounds(sides: tuple[int, int], tmp_path: Path) -> None:
    """Along a free length, as codecs of sounds pad it."""
    model = padded([0, 0, sides[0], 0, 0, sides[1]], "reflect", shape=("N", 3, "L"))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    check_compiled(model, np.random.default_rng(0).standard_normal((2, 3, 31)).astype(np.float32), tmp_path)


@pytest.mark.parametrize("mode", ["reflect", "edge"])
@pytest.mark.parametrize("known", [[0, None, None, 0, 1, None], [0, 0, 2, 0, 0, None], [0, 0, None, 0, 0, None]])
def test_numbers_of_the_run(known: list[int | None], mode: str, tmp_path: Path) -> None:
    """Pads of which the run says some, behind numbers that are there."""
    model = padded([0] * 6, mode, shape=("N", "C", "L"))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    free = h.make_tensor_value_info("free", onnx.TensorProto.INT64, [1])
    model.graph.input.append(free)
    parts = []
    for i, n in enumerate(known):
        parts.append("free" if n is None else f"part{i}")
        if n is not None:
            model.graph.initializer.append(nh.from_array(np.array([n]), parts[-1]))
    model.graph.node.insert(0, h.make_node("Concat", parts, ["numbers"], "numbers", axis=0))
    model.graph.node[1].input[1] = "numbers"
    done, module = import_model(model), tmp_path / "m.vmfb"
    iree_compile(done.text, module, parse_target("cpu-host"), flags=done.flags, timeout_s=60)
    call = load_module(module)
    x = np.random.default_rng(0).standard_normal((2, 5, 11)).astype(np.float32)
    for more in (0, 1, 4):
        given_ = {"x": x, "free": np.array([more])}
        np.testing.assert_array_equal(call(x, given_["free"])[0], run(model, given_)[0])


def check_compiled(model: onnx.ModelProto, x: np.ndarray, folder: Path) -> None:
    done, module = import_model(model), folder / "m.vmfb"
    iree_compile(done.text, module, parse_target("cpu-host"), flags=done.flags, timeout_s=60)
    np.testing.assert_array_equal(load_module(module)(x)[0], run(model, {"x": x})[0])


def test_what_would_never_end_is_refused() -> None:
    with pytest.raises(ModelError, match=r"'node'.*wrap.*static axis 0"):
        written(padded([1, 0, 0, 0], "wrap", shape=("N", 7)))
    model = padded([1, 0, 0, 0], "wrap")
    model.graph.input.append(h.make_tensor_value_info("pads", 7, [4]))
    del model.graph.initializer[:]
    with pytest.raises(ModelError, match=r"'node'.*wrap.*only a run knows"):
        written(model)
