"""ConvTranspose of any attributes gives onnxruntime's numbers, written out and compiled."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from onnx import helper as h
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument

import onnx_fa
from onnx_fa.errors import ModelError
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.rules import legalize
from tests.support.joined_models import join_models
from tests.support.ort_run import run

COUNT = int(os.environ.get("ONNX_FA_CONV_TRANSPOSES", "120"))
"""So many are written out, of static and of free sizes."""
Feeds = dict[str, np.ndarray[Any, Any]]


def model_of(
    x: list[int | str], w: tuple[int, ...], *, constant: bool = True, bias: bool = True, **attributes: Any
) -> onnx.ModelProto:
    """Of a weight (groups * channels, columns, taps) that is a constant, or an input of the model."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal(w).astype(np.float32)}
    if bias:
        weights["b"] = rng.standard_normal(w[1] * attributes.get("group", 1)).astype(np.float32)
    node = h.make_node("ConvTranspose", ["x", *weights], ["y"], "up", **attributes)
    inputs = [h.make_tensor_value_info("x", TensorProto.FLOAT, x)]
    inputs += [h.make_tensor_value_info(name, TensorProto.FLOAT, v.shape) for name, v in weights.items()][
        : len(weights) * (not constant)
    ]
    graph = h.make_graph([node], "g", inputs, [h.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    if constant:
        graph.initializer.extend(numpy_helper.from_array(v, name) for name, v in weights.items())
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 21)], ir_version=10)


def drawn(seed: int) -> tuple[list[int], tuple[int, ...], dict[str, Any]]:
    """The input's shape, the weight's and attributes."""
    r = random.Random(seed)
    n = r.choice((1, 1, 2, 2, 3))
    groups, columns = r.choice((1, 1, 2, 3)), r.randint(1, 3)
    channels = groups * r.randint(1, 3)
    taps, size, strides = ([r.randint(1, most) for _ in range(n)] for most in (4, 6, 3))
    dilations = [r.choice((1, 1, 1, 2)) for _ in range(n)]
    attributes: dict[str, Any] = {"strides": strides, "dilations": dilations, "group": groups}
    more = [0] * n
    if r.random() < 0.4:
        more = [r.randint(0, max(s, d) - 1) for s, d in zip(strides, dilations, strict=True)]
        attributes["output_padding"] = more
    how = r.choice(("", "pads", "pads", "auto", "shape", "both"))
    if how == "pads":
        attributes["pads"] = [r.randint(0, 2) for _ in range(2 * n)]
    if how in ("auto", "both"):
        attributes["auto_pad"] = r.choice(("SAME_UPPER", "SAME_LOWER", "VALID"))
    if how in ("shape", "both"):
        whole = zip(size, taps, strides, dilations, more, strict=True)
        attributes["output_shape"] = [
            max(1, (i - 1) * s + (k - 1) * d + 1 + m - r.randint(-1, 3)) for i, k, s, d, m in whole
        ]
    return [r.randint(1, 2), channels, *size], (channels, columns, *taps), attributes


def test_any_attributes() -> None:
    """Those that onnxruntime refuses are left out, and those are few whose result onnx takes for another shape."""
    tried = told = 0
    for seed in range(COUNT):
        x, w, attributes = drawn(seed)
        feeds: Feeds = {"x": np.random.default_rng(seed).standard_normal(x).astype(np.float32)}
        free: list[int | str] = ["B", x[1], *(f"n{i}" for i in range(len(x) - 2))]
        for shape in ([*x], free):
            model = model_of(shape, w, **attributes)
            try:
                (want,) = run(model, feeds, optimise=False)
            except (Fail, InvalidArgument):
                continue
            typed = onnx.ModelProto.FromString(model.SerializeToString())
            infer_types(typed, {})
            try:
                written = legalize(typed)
            except ModelError as e:
                assert "output_shape" in str(e)
                told += shape is not free
                continue
            if any(n.op_type == "ConvTranspose" for n in written.graph.node):  # IREE takes it
                continue
            (got,) = run(written, feeds)
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=f"{seed} {shape}")
            tried += 1
    assert tried > COUNT / 2
    assert told < COUNT / 10


def test_compiled(tmp_path: Path) -> None:
    """Groups, uneven pads, auto_pad, output_shape and free sizes along one axis to three; a weight that a run gives."""
    cases: list[tuple[tuple[int, ...], onnx.ModelProto]] = [
        ((2, 6, 5), model_of(["B", 6, "L"], (6, 2, 8), strides=[4], pads=[2, 2], group=3)),
        ((2, 2, 3, 4), model_of(["B", 2, "H", "W"], (2, 3, 3, 4), strides=[2, 3], pads=[0, 1, 1, 2])),
        ((2, 4, 3, 2), model_of(["B", 4, 3, 2], (4, 1, 2, 2), strides=[2, 2], group=4)),
        ((1, 2, 5), model_of([1, 2, "M"], (2, 1, 3), strides=[2], auto_pad="SAME_LOWER")),
        ((1, 2, 3, 3), model_of([1, 2, 3, 3], (2, 2, 3, 3), strides=[3, 2], output_shape=[10, 8], dilations=[1, 2])),
        ((1, 2, 2, 2, 2), model_of([1, 2, 2, 2, 2], (2, 1, 2, 1, 3), strides=[2, 1, 2], output_padding=[1, 0, 1])),
        ((2, 4, 3, 2), model_of([2, 4, 3, 2], (4, 3, 3, 2), constant=False, strides=[2, 1], dilations=[1, 2], group=2)),
    ]
    joined, feeds = join_models([model for _, model in cases], own_dims=True), {}
    rng = np.random.default_rng(1)
    for i, (shape, model) in enumerate(cases):
        for given in model.graph.input:
            dims = shape if given.name == "x" else [d.dim_value for d in given.type.tensor_type.shape.dim]
            feeds[f"m{i}_{given.name}"] = rng.standard_normal(dims).astype(np.float32)
    onnx_fa.compile(joined, tmp_path / "m.vmfb")
    got = onnx_fa.run(tmp_path / "m.vmfb", *feeds.values())
    for i, (found, want) in enumerate(zip(got, run(joined, feeds, optimise=False), strict=True)):
        assert found.shape == want.shape
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5, err_msg=str(i))


def test_what_stays() -> None:
    for more in ({"strides": [2], "pads": [1, 1], "output_padding": [1]}, {"dilations": [2]}):
        model = model_of(["B", 4, "L"], (4, 2, 3), **more)
        infer_types(model, {})
        assert [node.op_type for node in legalize(model).graph.node] == ["ConvTranspose"]


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            model_of([1, 2, "L"], (2, 1, 3), output_shape=[8]),
            "node 'up': ConvTranspose with an output_shape of a free size",
        ),
        (
            model_of([2, 2, 6], (2, 3, 4), strides=[3], output_padding=[1], auto_pad="SAME_LOWER"),
            r"whose result onnx takes to be \[2, 3, 19\]",
        ),
        (model_of([2, 2, 6], (0, 3, 4), group=2), "with a weight whose sizes are not static"),
    ],
)
def test_refused(model: onnx.ModelProto, reason: str) -> None:
    infer_types(model, {})
    with pytest.raises(ModelError, match=reason):
        legalize(model)
