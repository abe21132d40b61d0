"""Integers of 16 bits and uint32, which IREE refuses to cast to: casts, quotients, the largest, and quantised floats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx import helper as h

import onnx_fa
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.rules import legalize
from tests.support.ort_run import run

Feeds = dict[str, np.ndarray[Any, Any]]
node = h.make_node


def model_of(
    nodes: list[onnx.NodeProto], inputs: Feeds, outputs: dict[str, Any], constants: Feeds, free: bool = True
) -> onnx.ModelProto:
    """With a name for the first size of each input."""
    element = h.np_dtype_to_tensor_dtype
    given = [
        h.make_tensor_value_info(name, element(x.dtype), ["N" if free else len(x), *x.shape[1:]])
        for name, x in inputs.items()
    ]
    made = [h.make_tensor_value_info(name, element(np.dtype(kind)), None) for name, kind in outputs.items()]
    held = [numpy_helper.from_array(x, name) for name, x in constants.items()]
    graph = h.make_graph(nodes, "g", given, made, held)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 21)], ir_version=10)


def assert_equal(model: onnx.ModelProto, feeds: Feeds, folder: Path, theirs: dict[str, Any] | None = None) -> None:
    """What `theirs` lacks onnxruntime computes."""
    onnx_fa.compile(model, folder / "m.vmfb")
    got = onnx_fa.run(folder / "m.vmfb", *feeds.values())
    names = [output.name for output in model.graph.output]
    want = dict(zip(names, run(model, feeds, optimise=False), strict=True)) if theirs is None else theirs
    for name, found in zip(names, got, strict=True):
        np.testing.assert_array_equal(found.view(want[name].dtype), want[name], err_msg=name)


def test_casts(tmp_path: Path) -> None:
    x = np.array([0, 1, -1, 40000, 65535, 65536, -32769, 2**31 + 5, 2**40 + 7], np.int64)
    f = np.array([0, 1.9, -1.9, 40000, 65535, 30000.5, -32768, 7, 9], np.float32)
    words = {np.int16: TensorProto.INT16, np.uint16: TensorProto.UINT16, np.uint32: TensorProto.UINT32}
    nodes = [node("Cast", ["x"], [f"x{np.dtype(kind)}"], to=to) for kind, to in words.items()]
    nodes += [node("Cast", ["f"], [f"f{np.dtype(kind)}"], to=to) for kind, to in words.items()]
    outputs = {f"{name}{np.dtype(kind)}": kind for name in "xf" for kind in words}
    want = {f"x{np.dtype(kind)}": x.astype(kind) for kind in words}
    want |= {f"f{np.dtype(kind)}": f.astype(np.int64).astype(kind) for kind in words}
    assert_equal(model_of(nodes, {"x": x, "f": f}, outputs, {}), {"x": x, "f": f}, tmp_path, want)


def test_quotients_and_the_largest(tmp_path: Path) -> None:
    feeds, want, nodes, kinds = Feeds(), dict[str, Any](), list[onnx.NodeProto](), dict[str, Any]()
    for kind, most in ((np.uint16, 1 << 16), (np.uint32, 1 << 32)):
        n, (a, b) = np.dtype(kind).name, np.random.default_rng(0).integers(1, most, (2, 6)).astype(kind)
        b[:3] = 7
        feeds |= {f"a_{n}": a, f"b_{n}": b}
        nodes += [node(op, [f"a_{n}", f"b_{n}"], [f"{op}_{n}"]) for op in ("Div", "Mod")]
        nodes.append(node("TopK", [f"a_{n}", "two"], [f"TopK_{n}", f"at_{n}"]))
        nodes.append(node("ScatterND", [f"a_{n}", "places", f"b_{n}"], [f"least_{n}"], reduction="min"))
        want |= {f"Div_{n}": a // b, f"Mod_{n}": a % b, f"TopK_{n}": np.sort(a)[:-3:-1]}
        want[f"least_{n}"] = np.minimum(a, b)
    kinds = {name: x.dtype for name, x in want.items()}
    nodes.sort(key=lambda made: list(want).index(made.output[0]))
    held: Feeds = {"two": np.array([2]), "places": np.arange(6)[:, None]}
    assert_equal(model_of(nodes, feeds, kinds, held, free=False), feeds, tmp_path, want)


def test_quantised(tmp_path: Path) -> None:
    """To uint16, all by one scale or rows by their own, and back; by blocks of bytes with zero points."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((3, 6)) * 1e5).astype(np.float32)
    x[0, :4] = [2.5, -2.5, 7.5, 1e9]
    held: Feeds = {
        "one": np.array(2.0, np.float32),
        "zero": np.array(32767, np.uint16),
        "scales": rng.uniform(1, 3, 6).astype(np.float32),
        "zeros": rng.integers(0, 1 << 16, 6).astype(np.uint16),
        "blocks": rng.uniform(100, 300, (3, 2)).astype(np.float32),
        "bytes": rng.integers(0, 256, (3, 2)).astype(np.uint8),
    }
    nodes = [
        node("QuantizeLinear", ["x", "one", "zero"], ["q"]),
        node("DequantizeLinear", ["q", "one", "zero"], ["d"]),
        node("QuantizeLinear", ["x", "scales", "zeros"], ["rows"], axis=1),
        node("DequantizeLinear", ["rows", "scales", "zeros"], ["back"], axis=1),
        node("QuantizeLinear", ["x", "blocks", "bytes"], ["cut"], axis=1, block_size=3),
    ]
    outputs = {"q": np.uint16, "d": np.float32, "rows": np.uint16, "back": np.float32, "cut": np.uint8}
    assert_equal(model_of(nodes, {"x": x}, outputs, held, free=False), {"x": x}, tmp_path)


def test_what_stays() -> None:
    """What IREE takes: bytes and int16 by one scale, casts to other types."""
    x = np.zeros((2, 4), np.float32)
    held: Feeds = {"s": np.array(2, np.float32), "z": np.array(3, np.int16)}
    nodes = [node("QuantizeLinear", ["x", "s", "z"], ["q"]), node("Cast", ["x"], ["c"], to=TensorProto.INT32)]
    model = model_of(nodes, {"x": x}, {"q": np.int16, "c": np.int32}, held)
    infer_types(model, {})
    assert [n.op_type for n in legalize(model).graph.node] == ["QuantizeLinear", "Cast"]
