"""Rows that choose a matrix each: one product with all of them gives the same numbers, and is written where it is faster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper as h
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from onnx_fa.iree.compile import compile_model, import_model
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.rules import legalize
from onnx_fa.iree.run import load_module
from onnx_fa.spec.target import parse_target
from tests.support.ort_run import run

CPU = parse_target("cpu-avx512")
HOST = parse_target("cpu-host")


def experts(
    rows: int | str = 12,
    count: int = 3,
    *,
    op: str = "GatherND",
    kind: Any = np.float32,
    shown: bool = False,
    high: int = 1,
    index: Any = np.int64,
) -> onnx.ModelProto:
    """(rows, high, 20) by the matrices (20, 40) that the ids choose."""
    element, ids = (h.np_dtype_to_tensor_dtype(np.dtype(k)) for k in (kind, index))
    weight = np.random.default_rng(0).standard_normal((count, 20, 40)).astype(kind)
    inputs = [h.make_tensor_value_info("x", element, [rows, high, 20])]
    inputs.append(h.make_tensor_value_info("ids", ids, [rows, 1] if op == "GatherND" else [rows]))
    nodes = [h.make_node(op, ["w", "ids"], ["chosen"]), h.make_node("MatMul", ["x", "chosen"], ["y"])]
    outputs = [h.make_tensor_value_info("y", element, [rows, high, 40])]
    outputs += [h.make_tensor_value_info("chosen", element, [rows, 20, 40])] * shown
    graph = h.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(weight, "w")])
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9)


def drawn(model: onnx.ModelProto, count: int = 3) -> dict[str, np.ndarray]:
    """Inputs; some of the ids count from the last matrix."""
    rng, found = np.random.default_rng(1), {}
    for value in model.graph.input:
        shape = [d.dim_value or 12 for d in value.type.tensor_type.shape.dim]
        kind = h.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        found[value.name] = (
            rng.integers(-count, count, shape) if value.name == "ids" else rng.standard_normal(shape)
        ).astype(kind)
    return found


def legalized(model: onnx.ModelProto, target: Any = CPU) -> onnx.ModelProto:
    typed = onnx.ModelProto.FromString(model.SerializeToString())
    infer_types(typed, {})
    return legalize(typed, target=target)


def is_one_product(model: onnx.ModelProto, target: Any = CPU) -> bool:
    made = legalized(model, target)
    (product,) = (n for n in made.graph.node if n.op_type == "MatMul")
    return product.input[1] != "chosen"


@pytest.mark.parametrize("op", ["GatherND", "Gather"])
@pytest.mark.parametrize(("rows", "count"), [(12, 3), (3, 3), (40, 32), (5, 1)])
def test_it_means_the_same(op: str, rows: int, count: int) -> None:
    model = experts(rows, count, op=op)
    assert is_one_product(model)
    inputs = drawn(model, count)
    (want,) = run(model, inputs)
    (got,) = ReferenceEvaluator(legalized(model)).run(None, inputs)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_compiled(tmp_path: Path, kind: Any) -> None:
    model = experts(kind=kind)
    inputs = drawn(model)
    compile_model(model, tmp_path / "m.vmfb", HOST, parameters="embed")
    (got,) = load_module(tmp_path / "m.vmfb")(*inputs.values())
    (want,) = run(model, inputs)
    assert got.dtype == want.dtype
    np.testing.assert_allclose(
        got.astype(np.float32), want.astype(np.float32), atol=1e-4 if kind == np.float32 else 3e-2
    )


def test_the_product_is_a_linear_site() -> None:
    assert "util.call @linear_" in import_model(experts(), CPU).text


@pytest.mark.parametrize(
    "model",
    [
        experts(2, 3),  # fewer rows than matrices
        experts("n"),
        experts(64, 33),
        experts(high=2),
        experts(shown=True),
    ],
    ids=["few rows", "unknown rows", "many matrices", "several rows of a matrix", "matrices are given out"],
)
def test_it_stays(model: onnx.ModelProto) -> None:
    assert not is_one_product(model)


@pytest.mark.parametrize("target", [parse_target("cuda"), parse_target("vulkan"), None])
def test_gpus_keep_it(target: Any) -> None:
    assert not is_one_product(experts(), target)


def test_a_weight_of_the_run_stays() -> None:
    model = experts()
    model.graph.input.append(h.make_tensor_value_info("w", 1, [3, 20, 40]))
    del model.graph.initializer[0]
    assert not is_one_product(model)


def test_a_product_by_anything_else_stays() -> None:
    model = experts()
    del model.graph.input[1]
    model.graph.node[0].CopyFrom(h.make_node("Transpose", ["w"], ["chosen"], perm=[0, 1, 2]))
    assert not is_one_product(model)
