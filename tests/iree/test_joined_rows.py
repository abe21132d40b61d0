"""New rows behind a past that may have none, on GPUs: no launch for what is empty."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.compiler import iree_compile
from onnx_fa.iree.importer import import_mlir
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.joined_rows import JOINED_ROWS, join_rows, joined_name, joined_text, joined_type
from onnx_fa.iree.run import load_module
from onnx_fa.spec.target import parse_target

CUDA, HOST = parse_target("cuda-sm_80"), parse_target("cpu-host")


def test_the_function_joins_what_there_is(tmp_path: Path) -> None:
    dims, axis = ("b", 2, "n", 4), 2
    type_, name = joined_type(dims, axis, "f32"), joined_name(dims, axis, "f32")
    call = f"%r = util.call @{name}(%a, %b) : ({type_}, {type_}) -> {type_}\nreturn %r : {type_}"
    text = f"{joined_text(dims, axis, 'f32')}\nfunc.func @f(%a: {type_}, %b: {type_}) -> {type_} {{\n{call}\n}}\n"
    iree_compile(text, tmp_path / "m.vmfb", HOST, timeout_s=100)
    joined = load_module(tmp_path / "m.vmfb")
    rng = np.random.default_rng(0)
    for rows, new in ((0, 3), (3, 0), (2, 1), (5, 4)):
        a, b = (rng.standard_normal((2, 2, n, 4)).astype(np.float32) for n in (rows, new))
        np.testing.assert_array_equal(joined(a, b)[0], np.concatenate([a, b], axis))


def decoder(op: str, *, rows: int | str = "p", behind: bool = True, value: float = 0.0) -> onnx.ModelProto:
    """past (B, 2, P, 4) with what comes behind it: new rows, or zeros up to a total."""
    past = helper.make_tensor_value_info("past", TensorProto.FLOAT, ["b", 2, rows, 4])
    if op == "Concat":
        new = helper.make_tensor_value_info("new", TensorProto.FLOAT, ["b", 2, "s", 4])
        abs_, joined = helper.make_node("Abs", ["past"], ["abs"]), ["past", "new"] if behind else ["abs", "new"]
        nodes = [abs_, helper.make_node("Concat", joined, ["made"], axis=2)]
        graph = helper.make_graph(nodes, "g", [past, new], [])
    else:
        count = helper.make_tensor_value_info("count", TensorProto.INT64, [1])
        zeros = [numpy_helper.from_array(np.zeros(k, np.int64), f"z{k}") for k in (6, 1)]
        parts = ["z6", "count", "z1"] if behind else ["z1", "count", "z6"]
        nodes = [
            helper.make_node("Concat", parts, ["pads"], axis=0),
            helper.make_node("Pad", ["past", "pads", "value"], ["made"]),
        ]
        zeros.append(numpy_helper.from_array(np.float32(value), "value"))
        graph = helper.make_graph(nodes, "g", [past, count], [], zeros)
    graph.output.append(helper.make_tensor_value_info("made", TensorProto.FLOAT, ["b", 2, "t", 4]))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    infer_types(model, {})
    return model


@pytest.mark.parametrize("op", ["Concat", "Pad"])
def test_a_past_is_joined_on_gpus(op: str) -> None:
    model = decoder(op)
    join_rows(model, target=CUDA)
    assert [op_of(n) for n in model.graph.node][-1] == JOINED_ROWS
    assert "scf.if %no_a" in import_mlir(decoder(op), {}, target=CUDA).text


@pytest.mark.parametrize(
    "model",
    [
        decoder("Concat", rows=3),
        decoder("Concat", behind=False),
        decoder("Pad", behind=False),
        decoder("Pad", value=1.0),
    ],
)
def test_what_stays(model: onnx.ModelProto) -> None:
    """A past of a known length, what is computed, rows in front of it, and other numbers than zeros."""
    before = model.SerializeToString()
    join_rows(model, target=CUDA)
    assert model.SerializeToString() == before


def test_processors_copy_nothing_by_themselves() -> None:
    model = decoder("Concat")
    join_rows(model, target=HOST)
    assert [op_of(n) for n in model.graph.node] == ["Abs", "Concat"]
