"""Shapes and types behind onnxruntime's own operators, held against what onnxruntime makes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

from onnx_fa.graph.normalise import infer_shapes
from onnx_fa.graph.view import GraphView
from tests.support.ort_run import session

B, S, C = 2, 3, 8
SIZES = {"b": B, "s": S, "t": 5}
WEIGHT = np.linspace(-1, 1, C).astype(np.float32)


def floats(*dims: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(dims).astype(np.float32)


BYTES = np.arange(C * 5, dtype=np.uint8).reshape(C, 5)


def grid(name: str) -> dict[str, Any]:
    """A scale and a zero point, as inputs."""
    return {f"{name}_scale": np.array(0.5, np.float32), f"{name}_zero": np.array(3, np.uint8)}


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], int]] = {
    # operator: inputs (dims with symbols, or constants; None is left out), attributes, outputs
    "FastGelu": ({"x": ["b", "s", C], "bias": WEIGHT}, {}, {}, 1),
    "QuickGelu": ({"x": ["b", "s", C]}, {}, {}, 1),
    "BiasGelu": ({"x": ["b", "s", C], "bias": WEIGHT}, {}, {}, 1),
    "SkipLayerNormalization": ({"x": ["b", "s", C], "skip": ["b", "s", C], "gamma": WEIGHT}, {}, {}, 4),
    "SkipSimplifiedLayerNormalization": ({"x": ["b", "s", C], "skip": ["b", "s", C], "gamma": WEIGHT}, {}, {}, 4),
    "EmbedLayerNormalization": (
        {
            "ids": ["b", "s"],
            "segments": None,
            "words": floats(11, C),
            "places": floats(7, C),
            "kinds": None,
            "gamma": WEIGHT,
            "beta": WEIGHT,
        },
        {},
        {"ids": np.int32},
        3,
    ),
    "CausalConvWithState": (
        {"x": ["b", C, "s"], "taps": floats(C, 1, 4), "bias": WEIGHT, "past": ["b", C, 3]},
        {"activation": "silu"},
        {},
        2,
    ),
    "LinearAttention": (
        {"q": ["b", "s", C], "k": ["b", "s", C], "v": ["b", "s", 20], "past": None, "decay": ["b", "s", 4]},
        {"q_num_heads": 2, "kv_num_heads": 4, "update_rule": "gated"},
        {},
        2,
    ),
    "LinearAttentionGate": ({"a": ["b", "s", C], "bias": WEIGHT, "scale": WEIGHT, "rate": ["b", "s", C]}, {}, {}, 2),
    "GatedRMSNorm": ({"x": ["b", "s", 2 * C], "scale": WEIGHT, "gate": ["b", "s", 2 * C]}, {}, {}, 1),
    "Attention": ({"x": ["b", "s", C], "w": floats(C, 3 * C), "bias": floats(3 * C)}, {"num_heads": 2}, {}, 1),
    "MultiHeadAttention": (
        {"q": ["b", "s", C], "k": ["b", "t", C], "v": ["b", "t", 6]},
        {"num_heads": 2},
        {},
        1,
    ),
    "DynamicQuantizeMatMul": (
        {"a": ["b", "s", C], "w": BYTES, "scale": np.array(0.5, np.float32)},
        {},
        {},
        1,
    ),
    "MatMulIntegerToFloat": (
        {"a": ["s", C], "w": BYTES, "scale": np.array(0.5, np.float32), "other": np.array(0.25, np.float32)},
        {},
        {"a": np.uint8},
        1,
    ),
    "GatherBlockQuantized": (
        {"table": np.zeros((7, 16), np.uint8), "ids": ["b", "s"], "scales": floats(7, 2)},
        {"block_size": 16, "gather_axis": 0, "quantize_axis": 1},
        {"ids": np.int32},
        1,
    ),
    **{
        name: (
            {"x": ["b", 1, C], **grid("x"), "y": ["s", 1], **grid("y"), **grid("z")},
            {},
            {"x": np.uint8, "y": np.uint8},
            1,
        )
        for name in ("QLinearAdd", "QLinearMul")
    },
    "QLinearSoftmax": (
        {"x": ["b", "s"], **grid("x"), **grid("y")},
        {"axis": -1, "opset": 13},
        {"x": np.uint8},
        1,
    ),
    "QLinearSigmoid": ({"x": ["b", "s"], **grid("x"), **grid("y")}, {}, {"x": np.uint8}, 1),
    "QLinearWhere": (
        {"c": ["s", 1], "x": ["b", 1, C], **grid("x"), "y": [C], **grid("y"), **grid("z")},
        {},
        {"c": np.bool_, "x": np.uint8, "y": np.uint8},
        1,
    ),
    "QLinearConcat": (
        {**grid("z"), "x": ["b", "s"], **grid("x"), "y": ["b", "t"], **grid("y")},
        {"axis": -1},
        {"x": np.uint8, "y": np.uint8},
        1,
    ),
    "FusedConv": ({"x": ["b", 4, 9, 7], "w": floats(6, 4, 3, 3)}, {"activation": "Relu", "strides": [2, 1]}, {}, 1),
    "FusedMatMul": ({"a": ["b", "s", C], "w": floats(5, C)}, {"transB": 1}, {}, 1),
}


@pytest.mark.parametrize("name", CASES)
def test_what_onnxruntime_makes(name: str) -> None:
    inputs, attributes, types, count = CASES[name]
    outs = [f"y{i}" for i in range(count)]
    fed = {k: v for k, v in inputs.items() if isinstance(v, list)}
    arrays = {
        k: np.zeros([SIZES.get(d, d) for d in dims], types[k])
        if k in types
        else floats(*(SIZES.get(d, d) for d in dims))
        for k, dims in fed.items()
    }
    node = h.make_node(
        name, [k if v is not None else "" for k, v in inputs.items()], outs, domain="com.microsoft", **attributes
    )
    # Behind each output stands a standard op, whose shape and type follow.
    nodes = [node, *(h.make_node("Identity", [out], [f"{out}_read"]) for out in outs)]
    graph = h.make_graph(
        nodes,
        "g",
        [h.make_tensor_value_info(k, h.np_dtype_to_tensor_dtype(arrays[k].dtype), dims) for k, dims in fed.items()],
        [h.make_empty_tensor_value_info(f"{out}_read") for out in outs],
        [numpy_helper.from_array(v, k) for k, v in inputs.items() if isinstance(v, np.ndarray)],
    )
    opsets = [h.make_opsetid("", 17), h.make_opsetid("com.microsoft", 1)]
    model = h.make_model(graph, opset_imports=opsets, ir_version=8)
    runnable = onnx.ModelProto()
    runnable.CopyFrom(model)
    for info in runnable.graph.output:
        kind = T.INT32 if (name, info.name) == ("EmbedLayerNormalization", "y1_read") else T.FLOAT
        kind = T.UINT8 if name.startswith("QLinear") else kind
        info.CopyFrom(h.make_tensor_value_info(info.name, kind, None))
    results = dict(zip(outs, session(runnable, optimise=False).run(None, arrays), strict=True))

    loaded = ir.from_proto(model)
    infer_shapes(loaded)
    view = GraphView(loaded)
    for value in next(n for n in loaded.graph if n.domain == "com.microsoft").outputs:
        result = results[str(value.name)]
        assert value.dtype == ir.DataType.from_numpy(result.dtype)
        shape = view.shape(value)
        assert shape is not None
        assert [SIZES.get(str(d), 8 if d == "s + t" else d) for d in shape] == list(result.shape)


@pytest.mark.parametrize("channels_last", [0, 1])
def test_convolution_over_blocks_of_channels(channels_last: int) -> None:
    """As a session that saves its model writes it: 10 channels in a block of 16, which are whole blocks on every CPU."""
    how = {"group": 1, "kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 0], "dilations": [1, 2]}
    nodes = [
        h.make_node("Conv", ["x", "w"], ["y0"], domain="com.microsoft.nchwc", auto_pad="NOTSET", **how),
        h.make_node(
            "ReorderOutput", ["y0"], ["y1"], domain="com.microsoft.nchwc", channels=10, channels_last=channels_last
        ),
        h.make_node("Identity", ["y1"], ["y"]),
    ]
    weights = numpy_helper.from_array(floats(16, 3, 3, 2), "w")
    x, y = h.make_tensor_value_info("x", T.FLOAT, ["b", 3, 9, 7]), h.make_tensor_value_info("y", T.FLOAT, None)
    opsets = [h.make_opsetid("", 17), h.make_opsetid("com.microsoft.nchwc", 1)]
    model = h.make_model(h.make_graph(nodes, "g", [x], [y], [weights]), opset_imports=opsets, ir_version=8)
    (result,) = session(model, optimise=False).run(None, {"x": floats(B, 3, 9, 7)})

    loaded = ir.from_proto(model)
    infer_shapes(loaded)
    found = GraphView(loaded).shape(loaded.graph.outputs[0])
    assert found is not None
    assert [SIZES.get(str(d), d) for d in found] == list(result.shape)
    assert loaded.graph.outputs[0].dtype == ir.DataType.FLOAT
