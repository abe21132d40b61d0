"""What is gathered from a part of a tensor on GPUs is copied first, and what is sorted of one everywhere; gathers on CPUs, and from
whole tensors, stay as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnx_fa.errors import ModelError
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.importer import import_mlir
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.packed_rows import APART
from onnx_fa.iree.legalise.sliced_rows import copy_sliced_rows
from onnx_fa.iree.run import load_module
from onnx_fa.spec.target import Target, parse_target
from tests.support.ort_run import run
from tests.support.part_readers import feeds, model_of, part_readers
from tests.support.sampled import sampled

CUDA, HOST = parse_target("cuda-sm_80"), parse_target("cpu-host")


def gathering(parts: list[onnx.NodeProto], source: str = "part", gather: str = "Gather") -> onnx.ModelProto:
    """x: (B, 4, S, 6), what is made of it, and a Gather of `source` by indices of the run."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", 4, "s", 6])
    places = helper.make_tensor_value_info("at", TensorProto.INT64, ["n"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    ends = [numpy_helper.from_array(np.array([n], np.int64), f"n{n}") for n in (0, 3)]
    shape = numpy_helper.from_array(np.array([0, 4, -1], np.int64), "flat")
    nodes = [*parts, helper.make_node(gather, [source, "at"], ["y"], "gather", axis=1)]
    graph = helper.make_graph(nodes, "g", [x, places], [y], [*ends, shape])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    infer_types(model, {})
    return model


def slice_() -> onnx.NodeProto:
    return helper.make_node("Slice", ["x", "n0", "n3", "n3"], ["part"])


def ops(model: onnx.ModelProto, target: Target) -> list[str]:
    copy_sliced_rows(model, target=target)
    return [op_of(n) for n in model.graph.node]


PARTS = {
    "slice": [slice_()],
    "split": [helper.make_node("Split", ["x"], ["part", "other"], axis=3, num_outputs=2)],
    "in another shape": [
        helper.make_node("Slice", ["x", "n0", "n3", "n3"], ["cut"]),
        helper.make_node("Reshape", ["cut", "flat"], ["part"]),
    ],
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_are_copied_on_gpus(name: str) -> None:
    found = ops(gathering(PARTS[name]), CUDA)
    assert found[-2:] == [APART, "Gather"] and found.count(APART) == 1
    assert "util.optimization_barrier" in import_mlir(gathering(PARTS[name]), {}, target=CUDA).text


def test_what_stays() -> None:
    """On a CPU; a Gather from a whole tensor, and from what is summed of a part."""
    assert ops(gathering([slice_()]), HOST) == ["Slice", "Gather"]
    assert ops(gathering([slice_()], "x"), CUDA) == ["Slice", "Gather"]
    computed = [
        helper.make_node("Slice", ["x", "n0", "n3", "n3"], ["cut"]),
        helper.make_node("ReduceSum", ["cut", "n3"], ["part"]),
    ]
    assert ops(gathering(computed), CUDA) == ["Slice", "ReduceSum", "Gather"]
    assert ops(reading("CumSum", ["part", "axis"]), CUDA).count(APART) == 0
    assert ops(reading("Slice", ["part", "n0", "n3", "n3", "n3"]), CUDA).count(APART) == 0


def reading(op: str, operands: list[str], **attributes: int) -> onnx.ModelProto:
    """A node that reads a part of x."""
    model = gathering([slice_()])
    model.graph.node[-1].CopyFrom(helper.make_node(op, operands, ["y"], op, **attributes))
    constants = {"axis": np.array(3), "back": np.array([-1]), "far": np.array([-100])}
    model.graph.initializer.extend(numpy_helper.from_array(a.astype(np.int64), n) for n, a in constants.items())
    return model


@pytest.mark.parametrize(
    "node",
    [
        reading("CumSum", ["part", "axis"], reverse=1),
        reading("Slice", ["part", "back", "far", "n3", "back"]),
        reading("ScatterElements", ["x", "places", "part"], axis=3),
        reading("ScatterND", ["x", "places", "part"]),
    ],
    ids=lambda model: str(model.graph.node[-1].op_type),
)
def test_what_reads_by_place(node: onnx.ModelProto) -> None:
    copied = ops(node, CUDA)
    assert copied.count(APART) == 1 and copied[-2] == APART


@pytest.mark.parametrize("target", [HOST, CUDA])
def test_parts_are_copied_to_be_written_into(target: Target) -> None:
    assert ops(reading("ScatterND", ["part", "places", "x"]), target).count(APART) == 1


def test_what_is_computed_of_a_part_and_what_is_sorted() -> None:
    cut = helper.make_node("Slice", ["x", "n0", "n3", "n3"], ["cut"])
    computed = [
        cut,
        helper.make_node("Less", ["cut", "cut"], ["less"]),
        helper.make_node("Cast", ["less"], ["part"], to=1),
    ]
    assert ops(gathering(computed), CUDA)[-2:] == [APART, "Gather"]
    best = helper.make_node("TopK", ["x", "n3"], ["part", "places"], axis=3)
    assert ops(gathering([best]), CUDA) == ["TopK", APART, "Gather"]


@pytest.mark.parametrize("target", [HOST, CUDA])
@pytest.mark.parametrize(("source", "copies"), [("part", 1), ("x", 0)])
def test_parts_are_copied_to_be_sorted(target: Target, source: str, copies: int) -> None:
    model = gathering([slice_()], source)
    sorting = helper.make_node("TopK", [source, "n3"], ["y", "places"], axis=2)
    model.graph.node[-1].CopyFrom(sorting)
    assert ops(model, target).count(APART) == copies


def in_branch(inside: str) -> onnx.ModelProto:
    """A branch that gathers from a part of x."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]> g (float[n, 6] x, bool c) => (float[n, 2] y) {{
        k0 = Constant<value_ints = [0]>() k3 = Constant<value_ints = [3]>() k1 = Constant<value_ints = [1]>()
        part = Slice(x, k0, k3, k1) i = Constant<value_ints = [2, 0]>()
        y = If(c)<then_branch = t () => (float[n, 2] a) {{ {inside} }}, else_branch = e () => (float[n, 2] b) {{
        z = Neg(x) b = Gather<axis = 1>(z, i) }}> }}"""
    )
    infer_types(model, {})
    return model


def test_parts_around_a_body() -> None:
    """Those are copied in front of it; of its own none can be."""
    assert ops(in_branch("a = Gather<axis = 1>(part, i)"), CUDA).count(APART) == 1
    assert ops(in_branch("a = Gather<axis = 1>(part, i)"), HOST).count(APART) == 0
    with pytest.raises(ModelError, match="Gather in the body of another node takes elements of a Slice"):
        ops(in_branch("own = Slice(x, k0, k3, k1) a = Gather<axis = 1>(own, i)"), CUDA)


TRIED = sampled(part_readers(), None)
EACH = [pytest.param(*x, marks=[pytest.mark.whole] * (i not in TRIED)) for i, x in enumerate(part_readers())]


@pytest.mark.parametrize(("part", "reader"), EACH)
def test_what_is_read_of_a_part(part: str, reader: str, tmp_path: Path) -> None:
    """On CPUs; scripts/gpu_chains.py runs the same on a GPU."""
    model = model_of(part, reader)
    compile_model(model, tmp_path / "m.vmfb", HOST)
    call = load_module(tmp_path / "m.vmfb")
    for given in feeds():
        for got, want in zip(call(given["x"]), run(model, given), strict=True):
            np.testing.assert_array_equal(got, want)
