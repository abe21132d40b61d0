"""Windows that leave rows over along an axis with a single one: the same results in onnxruntime as written out, and compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper as h
from onnx.reference import ReferenceEvaluator

from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.rules import legalize
from onnx_fa.iree.run import load_module
from tests.support.ort_run import run

SIZE = st.integers(1, 5)


def of_one_op(op: str, size: list[int], kernel: list[int], domain: str = "", **attributes: Any) -> onnx.ModelProto:
    """The op on (N, 4, *size), with a free batch; a convolution is depthwise."""
    inputs = [h.make_tensor_value_info("x", 1, ["N", 4, *size])]
    conv = op in ("Conv", "FusedConv")
    if conv:
        inputs.append(h.make_tensor_value_info("w", 1, [4, 1, *kernel]))
        attributes["group"] = 4
    outputs = [h.make_tensor_value_info("y", 1, ["N", 4, *"PQ"[: len(size)]])]
    names = ["x", "w"] if conv else ["x"]
    node = h.make_node(op, names, ["y"], "node", domain=domain, kernel_shape=kernel, **attributes)
    opsets = [h.make_opsetid("", 18), h.make_opsetid("com.microsoft", 1)]
    return h.make_model(h.make_graph([node], "g", inputs, outputs), opset_imports=opsets, ir_version=9)


def drawn(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = [(v.name, [d.dim_value or 2 for d in v.type.tensor_type.shape.dim]) for v in model.graph.input]
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes}


def left_over(node: onnx.NodeProto, size: list[int]) -> list[int]:
    """Rows behind the last window of each axis that has one."""
    of = {a.name: h.get_attribute_value(a) for a in node.attribute}
    n = len(size)
    pads, strides, dilations = of.get("pads", [0] * 2 * n), of["strides"], of.get("dilations", [1] * n)
    lefts = [s + pads[i] + pads[n + i] - (of["kernel_shape"][i] - 1) * dilations[i] - 1 for i, s in enumerate(size)]
    return [left for left, stride in zip(lefts, strides, strict=True) if left < stride]


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(["Conv", "MaxPool", "AveragePool"]),
    st.lists(
        st.tuples(SIZE, st.integers(1, 3), st.integers(1, 4), st.integers(0, 2), st.integers(0, 2)),
        min_size=1,
        max_size=2,
    ),
    st.sampled_from(["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]),
    st.integers(1, 2),
)
def test_any_window(op: str, axes: list[tuple[int, ...]], auto: str, dilation: int) -> None:
    size, kernel, strides, low, high = (list(part) for part in zip(*axes, strict=True))
    if op != "Conv":  # padded by less than a window, and not spread
        low, high = ([min(p, k - 1) for p, k in zip(part, kernel, strict=True)] for part in (low, high))
    spread = {"dilations": [dilation] * len(size)} if op == "Conv" else {}
    padded = {"pads": [*low, *high]} if auto == "NOTSET" else {"auto_pad": auto}
    model = of_one_op(op, size, kernel, strides=strides, **spread, **padded)
    reach = [(k - 1) * (dilation if spread else 1) + 1 for k in kernel]
    fits = all(s + lo + hi >= r for s, lo, hi, r in zip(size, low, high, reach, strict=True))
    if not (fits if auto == "NOTSET" else auto != "VALID" or all(s >= r for s, r in zip(size, reach, strict=True))):
        return  # no window fits
    if op != "Conv" and auto.startswith("SAME") and any(k < s for k, s in zip(kernel, strides, strict=True)):
        return  # onnxruntime refuses it: negative pads
    if op == "Conv" and auto.startswith("SAME") and dilation > 1:
        return  # and this
    typed = onnx.ModelProto()
    typed.CopyFrom(model)
    infer_types(typed, {})
    written = legalize(typed)
    inputs = drawn(model)
    # Where windows are two and more further apart than they reach, onnxruntime may crop the image, which onnx does not say.
    cropped = op == "Conv" and auto.startswith("SAME") and any(s > r + 1 for s, r in zip(strides, reach, strict=True))
    want = ReferenceEvaluator(model).run(None, inputs) if cropped else run(model, inputs)
    np.testing.assert_allclose(run(written, inputs)[0], want[0], rtol=1e-5, atol=1e-6)
    if auto == "NOTSET" and all(
        r > lo for r, lo in zip(reach, low, strict=True)
    ):  # a window of pads alone stays as it is
        (node,) = (n for n in written.graph.node if n.op_type in (op, "MatMul"))
        cut = next((n for n in written.graph.node if n.op_type == "Slice"), None)
        if node.op_type == op and cut is None:
            assert not any(n > 0 for n in left_over(node, size))


@pytest.mark.parametrize("op", ["FusedConv", "AveragePool"])
def test_compiled(op: str, tmp_path: Path) -> None:
    more = {"domain": "com.microsoft", "activation": "Relu"} if op == "FusedConv" else {}
    model = of_one_op(op, [3, 4], [2, 3], strides=[2, 3], pads=[0, 1, 0, 0], **more)
    compile_model(model, tmp_path / "a.vmfb")
    inputs = drawn(model)
    (got,) = load_module(tmp_path / "a.vmfb")(*inputs.values())
    np.testing.assert_allclose(got, run(model, inputs)[0], rtol=1e-5, atol=1e-6)
