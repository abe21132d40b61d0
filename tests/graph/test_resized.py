"""Shapes that Resize and Upsample give: those that onnxruntime gives, and unknown rather than wrong."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

from onnx_fa.graph.dims import Shape
from onnx_fa.graph.io import load
from onnx_fa.graph.view import GraphView
from tests.support.ort_run import run

Dims = list[int | str]


def model_of(
    op: str, inputs: list[str], dims: Dims, opset: int, given: dict[str, np.ndarray], **attrs: object
) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(array, name) for name, array in given.items()]
    node = h.make_node(op, inputs, ["y"], **attrs)
    out = h.make_tensor_value_info("y", T.FLOAT, None)
    graph = h.make_graph([node], "g", [h.make_tensor_value_info("x", T.FLOAT, dims)], [out], tensors)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", opset)], ir_version=8)


def inferred(model: onnx.ModelProto) -> Shape | None:
    view = GraphView(load(model))
    return view.shape(view.model.graph.outputs[0])


def scales(*factors: float) -> dict[str, np.ndarray]:
    return {"s": np.asarray(factors, np.float32)}


@pytest.mark.parametrize("factor", [2.0, 3.0, 0.5, 0.25, 1.5, 1.3, 0.7, 1 / 3, 0.1])
@pytest.mark.parametrize("size", [1, 2, 5, 10, 33])
def test_numbers_are_those_of_onnxruntime_or_unknown(factor: float, size: int) -> None:
    dims: Dims = ["b", 3, size, 30]
    model = model_of("Resize", ["x", "", "s"], dims, 13, scales(1, 1, factor, factor), mode="nearest")
    found = inferred(model)
    assert found is not None and found[:2] == ("b", 3)
    if int(size * factor) == 0:
        return
    (have,) = run(model, {"x": np.zeros((2, 3, size, 30), np.float32)}, optimise=False)
    assert all(dim in (None, length) for dim, length in zip(found[2:], have.shape[2:], strict=True))
    assert found[2] is not None or abs(size * factor - round(size * factor)) < 1e-3


def test_symbols_are_multiplied_halved_or_unknown() -> None:
    dims: Dims = ["b", "c", "h", "w"]
    assert inferred(model_of("Resize", ["x", "", "s"], dims, 13, scales(1, 1, 2, 2))) == ("b", "c", "2*h", "2*w")
    halved = inferred(model_of("Resize", ["x", "", "s"], dims, 13, scales(1, 1, 0.5, 1.5)))
    assert halved == ("b", "c", "((h)//(2))", None)
    assert inferred(model_of("Resize", ["x", "s"], dims, 10, scales(1, 1, 2, 2))) == ("b", "c", "2*h", "2*w")
    assert inferred(model_of("Upsample", ["x", "s"], dims, 9, scales(1, 1, 2, 3))) == ("b", "c", "2*h", "3*w")
    old = model_of("Upsample", ["x"], dims, 7, {}, scales=[1.0, 1.0, 2.0, 2.0])
    assert inferred(old) == ("b", "c", "2*h", "2*w")


def test_sizes_and_axes() -> None:
    dims: Dims = ["b", 3, "h", "w"]
    sizes = {"n": np.asarray([2, 3, 7, 9], np.int64)}
    assert inferred(model_of("Resize", ["x", "", "", "n"], dims, 13, sizes)) == (2, 3, 7, 9)
    two = {"n": np.asarray([7, 9], np.int64)}
    assert inferred(model_of("Resize", ["x", "", "", "n"], dims, 18, two, axes=[-1, 2])) == ("b", 3, 9, 7)
    assert inferred(model_of("Resize", ["x", "", "s"], dims, 18, scales(2, 4), axes=[3, 2])) == ("b", 3, "4*h", "2*w")


def unknown(model: onnx.ModelProto) -> bool:
    found = inferred(model)
    return found is None or all(not isinstance(dim, str) or dim.startswith("unk__") for dim in found)


def test_what_crops_keeps_a_ratio_or_has_scales_of_a_run_is_not_known() -> None:
    dims: Dims = ["b", 3, "h", "w"]
    roi = {"roi": np.asarray([0, 0, 0, 0, 1, 1, 1, 0.5], np.float32)}
    crop = model_of(
        "Resize",
        ["x", "roi", "s"],
        dims,
        13,
        roi | scales(1, 1, 2, 2),
        coordinate_transformation_mode="tf_crop_and_resize",
    )
    assert unknown(crop)
    ratio = {"n": np.asarray([8, 16], np.int64)}
    kept = model_of("Resize", ["x", "", "", "n"], dims, 18, ratio, axes=[2, 3], keep_aspect_ratio_policy="not_larger")
    assert inferred(kept) != ("b", 3, 8, 16)
    given = model_of("Resize", ["x", "", "s"], dims, 13, {})
    given.graph.input.append(h.make_tensor_value_info("s", T.FLOAT, [4]))
    assert unknown(given)
