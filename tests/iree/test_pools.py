"""Pools, vectors by matrices of batches, and Dropout that drops nothing, compiled, against onnxruntime."""

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
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException

import onnx_fa
from onnx_fa.errors import ModelError
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.rules import legalize
from tests.support.joined_models import join_models
from tests.support.ort_run import run
from tests.support.sampled import sampled

COUNT = int(os.environ.get("ONNX_FA_POOLS", "0"))
"""So many that give the places of their maxima are compiled."""
Feeds = dict[str, np.ndarray[Any, Any]]


def model_of(
    node: onnx.NodeProto,
    inputs: dict[str, list[Any]],
    constants: Feeds | None = None,
    *,
    kind: int = TensorProto.FLOAT,
    opset: int = 22,
) -> onnx.ModelProto:
    outputs = [h.make_tensor_value_info(node.output[0], kind, None)]
    outputs += [
        h.make_tensor_value_info(name, TensorProto.INT64 if node.op_type == "MaxPool" else TensorProto.BOOL, None)
        for name in node.output[1:]
    ]
    given = [h.make_tensor_value_info(name, kind, dims) for name, dims in inputs.items()]
    held = [numpy_helper.from_array(x, name) for name, x in (constants or {}).items()]
    graph = h.make_graph([node], "g", given, outputs, held)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", opset)], ir_version=10)


def assert_same(models: list[onnx.ModelProto], feeds: list[Feeds], folder: Path) -> None:
    """All compiled as one."""
    joined = join_models(models, own_dims=True)
    arrays = {f"m{i}_{name}": x for i, own in enumerate(feeds) for name, x in own.items()}
    onnx_fa.compile(joined, folder / "m.vmfb")
    got = onnx_fa.run(folder / "m.vmfb", *arrays.values())
    for output, found, want in zip(joined.graph.output, got, run(joined, arrays, optimise=False), strict=True):
        assert found.shape == want.shape, output.name
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6, err_msg=output.name)


def drawn(seed: int) -> tuple[onnx.ModelProto, Feeds]:
    """A MaxPool that gives the places of its maxima; each second of a free batch."""
    r, rng = random.Random(seed), np.random.default_rng(seed)
    n = r.choice((1, 2, 2, 3))
    size, kernel, strides = ([r.randint(low, high) for _ in range(n)] for low, high in ((3, 8), (1, 3), (1, 3)))
    more: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "storage_order": r.randint(0, 1)}
    how = r.choice(("pads", "pads", "auto", ""))
    if how == "pads":
        more["pads"] = [r.randint(0, k - 1) for k in kernel + kernel]
    if how == "auto":
        more["auto_pad"] = r.choice(("SAME_UPPER", "SAME_LOWER"))
    elif r.random() < 0.5:
        more |= {"dilations": [r.randint(1, 2) for _ in range(n)], "ceil_mode": r.randint(0, 1)}
    node = h.make_node("MaxPool", ["x"], ["y", "places"], "pool", **more)
    x = rng.standard_normal((2, 3, *size)).astype(np.float32)
    return model_of(node, {"x": ["B" if seed % 2 else 2, 3, *size]}), {"x": x}


def kinds_of(model: onnx.ModelProto) -> set[str]:
    (node,) = model.graph.node
    given = {a.name: h.get_attribute_value(a) for a in node.attribute}
    free = bool(model.graph.input[0].type.tensor_type.shape.dim[0].dim_param)
    found = {f"{len(given['kernel_shape'])} axes", f"free {free}", f"order {given['storage_order']}"}
    found |= {
        str(given.get("auto_pad", b"")),
        f"ceil {given.get('ceil_mode', 0)}",
        f"pads {any(given.get('pads', []))}",
    }
    return {*found, f"dilated {max(given.get('dilations', [1])) > 1}"}


def test_places_of_maxima(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    models, feeds, count = [], [], COUNT or 12
    for seed in range(3 * count):
        model, own = drawn(seed)
        try:
            run(model, own, optimise=False)
            legalized(model)
        except (
            Fail,
            InvalidArgument,
            RuntimeException,
            ModelError,
        ):  # no window fits, or onnx and onnxruntime make another number of them
            continue
        models.append(model)
        feeds.append(own)
    assert len(models) >= count
    kept = list(range(count))
    if not COUNT and not pytestconfig.getoption("whole"):
        kept = sampled([kinds_of(model) for model in models[:count]], None)
    assert_same([models[i] for i in kept], [feeds[i] for i in kept], tmp_path)


@pytest.mark.parametrize("batch", [2, "B"])
def test_maxima_back_at_their_places(batch: int | str, tmp_path: Path) -> None:
    windows = {"kernel_shape": [2, 2], "strides": [2, 2]}
    model = model_of(h.make_node("MaxPool", ["x"], ["p", "i"], **windows), {"x": [batch, 3, 6, 4]})
    model.graph.node.append(h.make_node("MaxUnpool", ["p", "i"], ["y"], "back", **windows))
    del model.graph.output[:]
    model.graph.output.append(h.make_tensor_value_info("y", TensorProto.FLOAT, None))
    assert_same([model], [{"x": np.random.default_rng(0).standard_normal((2, 3, 6, 4)).astype(np.float32)}], tmp_path)


def test_sums_of_powers_and_last_windows(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 7, 6)).astype(np.float32)
    models = []
    for p in (1, 2, 3):
        for more in (
            {"dilations": [2, 1], "kernel_shape": [2, 3], "strides": [2, 1], "pads": [1, 1, 0, 1]},
            {"auto_pad": "SAME_UPPER", "kernel_shape": [3, 2], "strides": [2, 1]},
        ):
            models.append(model_of(h.make_node("LpPool", ["x"], ["y"], p=p, **more), {"x": ["B", 3, 7, 6]}))
    same = h.make_node("LpPool", ["x"], ["y"], auto_pad="SAME_LOWER", kernel_shape=[3, 2])
    models.append(model_of(same, {"x": ["B", 3, "H", "W"]}))
    last = {"kernel_shape": [1, 3], "strides": [3, 3], "pads": [0, 1, 0, 2], "ceil_mode": 1}
    models += [
        model_of(h.make_node(op, ["x"], ["y"], **last, **more), {"x": ["B", 3, 7, 6]})
        for op, more in (("AveragePool", {"count_include_pad": 1}), ("AveragePool", {}), ("MaxPool", {}))
    ]
    assert_same(models, [{"x": x}] * len(models), tmp_path)


def test_vectors_by_batches_and_no_dropout(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal(4).astype(np.float32), rng.standard_normal((2, 3, 4, 4)).astype(np.float32)
    b[0, 0, 0, 0] = np.nan
    node = h.make_node("MatMul", ["a", "b"], ["y"])
    models = [
        model_of(node, {"a": [4], "b": ["B", 3, 4, "N"]}),
        model_of(node, {"a": ["B", "H", "M", 4], "b": [4]}),
        model_of(node, {"a": [4], "b": [3, 4, 4]}),
    ]
    feeds: list[Feeds] = [{"a": a, "b": b}, {"a": b, "b": a}, {"a": a, "b": b[1]}]
    drop = h.make_node("Dropout", ["x", "ratio", "trains"], ["y", "mask"])
    for ratio, trains in ((0.5, False), (0.0, True)):
        held = {"ratio": np.array(ratio, np.float32), "trains": np.array(trains)}
        models.append(model_of(drop, {"x": ["B", 3, 4, 4]}, held))
        feeds.append({"x": b})
    assert_same(models, feeds, tmp_path)


def legalized(model: onnx.ModelProto) -> list[str]:
    typed = onnx.ModelProto.FromString(model.SerializeToString())
    infer_types(typed, {})
    return [node.op_type for node in legalize(typed).graph.node]


def pool(op: str = "MaxPool", *, places: bool = True, **attributes: Any) -> onnx.NodeProto:
    return h.make_node(op, ["x"], ["y", "places"] if places else ["y"], "pool", **attributes)


def unpooled(x: list[Any], output_shape: list[int] | None) -> onnx.ModelProto:
    names = ["x", "i"] + ["shape"] * (output_shape is not None)
    node = h.make_node("MaxUnpool", names, ["y"], "back", kernel_shape=[2, 2], strides=[2, 2])
    model = model_of(node, {"x": x}, None if output_shape is None else {"shape": np.array(output_shape)})
    model.graph.input.append(h.make_tensor_value_info("i", TensorProto.INT64, x))
    return model


TRAINS: Feeds = {"ratio": np.array(0.5, np.float32), "trains": np.array(True)}


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            model_of(pool(kernel_shape=[2, 2]), {"x": [1, 2, "H", 4]}),
            "node 'pool': MaxPool that gives the places of its maxima, which IREE counts wrongly, of what is no image of floats",
        ),
        (
            model_of(pool(kernel_shape=[2, 2]), {"x": [1, 2, 4, 4]}, kind=TensorProto.INT8),
            "node 'pool': MaxPool that gives the places",
        ),
        (
            model_of(pool(kernel_shape=[1], strides=[3], ceil_mode=1), {"x": [1, 2, 6]}, opset=21),
            "node 'pool': MaxPool with ceil_mode, of which onnx makes 3 windows along axis 2 and onnxruntime 2",
        ),
        (
            model_of(pool(kernel_shape=[2], dilations=[2], auto_pad="SAME_UPPER"), {"x": [1, 2, 6]}),
            "node 'pool': MaxPool with dilations and an auto_pad, which onnx and onnxruntime read differently",
        ),
        (
            model_of(
                pool("LpPool", places=False, kernel_shape=[2], strides=[2], auto_pad="SAME_UPPER"), {"x": [1, 2, "L"]}
            ),
            "node 'pool': LpPool with an auto_pad of a free size",
        ),
        (unpooled([1, 1, "H", 2], None), "node 'back': MaxUnpool of sizes that are not static"),
        (unpooled([1, 1, 2, 2], [1, 1, 5, 5]), r"node 'back': MaxUnpool with an output_shape other than \[4, 4\]"),
        (
            model_of(h.make_node("Dropout", ["x", "ratio", "trains"], ["y"], "drop"), {"x": [2]}, TRAINS),
            "node 'drop': Dropout in training mode, whose results are random",
        ),
    ],
)
def test_refused(model: onnx.ModelProto, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        legalized(model)


def test_what_stays() -> None:
    """Maxima whose places nobody reads, sums of powers without dilations, a matrix by a vector."""
    unread = model_of(pool(kernel_shape=[2, 2]), {"x": [1, 2, "H", 4]})
    del unread.graph.output[1:]
    for model in (
        unread,
        model_of(pool(places=False, kernel_shape=[2, 2]), {"x": [1, 2, 4, 4]}),
        model_of(pool("LpPool", places=False, kernel_shape=[2, 2]), {"x": [1, 2, 4, 4]}),
        model_of(h.make_node("MatMul", ["a", "b"], ["y"]), {"a": [3, 4], "b": [4]}),
        model_of(h.make_node("Dropout", ["x"], ["y"]), {"x": [3, 4]}),
    ):
        assert legalized(model) == [model.graph.node[0].op_type]
