"""Expands of free and known dims by constants, inputs and computed sizes: what onnxruntime gives, also at sizes of 0 and 1."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

from onnx_fa.iree.compile import compile_model, import_model
from onnx_fa.iree.run import load_module
from tests.support.ort_run import run

COUNT, FIRST = int(os.environ.get("ONNX_FA_EXPANDS", "0")), int(os.environ.get("ONNX_FA_SEED", "0"))
SEEDS = range(FIRST, FIRST + COUNT) if COUNT else range(3)
IN_A_MODEL = 6
RUNS = ((0, 3), (1, 2), (2, 1), (3, 0), (2, 4))
"""Sizes of M and N."""


def draw_expands(seed: int) -> tuple[onnx.ModelProto, list[dict[str, np.ndarray]]]:
    """Some Expands of inputs, and inputs for runs. What is asked for along an axis: 1, the size, another where the axis is 1."""
    rng = np.random.default_rng(seed)
    inputs, outputs, nodes, constants = [], [], [], []
    runs: list[dict[str, np.ndarray]] = [{} for _ in RUNS]
    constants += [helper.make_tensor(f"at{i}", TensorProto.INT64, [1], [i]) for i in range(4)]
    constants += [helper.make_tensor(f"n{i}", TensorProto.INT64, [1], [i]) for i in (1, 2, 3, 5)]
    for place in range(IN_A_MODEL):
        x, asked, y = f"x{place}", f"s{place}", f"y{place}"
        dims = [
            str(d) if d in ("M", "N", "free") else int(d)
            for d in rng.choice(["M", "N", "free", "1", "3"], rng.integers(1, 4))
        ]
        named: list[int | str | None] = [None if d == "free" else d for d in dims]
        inputs.append(helper.make_tensor_value_info(x, TensorProto.FLOAT, named))
        lead = int(rng.integers(0, 3))
        drop = int(rng.integers(0, len(dims))) if not lead and rng.random() < 0.3 else 0
        how = str(rng.choice(["constant", "input", "computed"]))
        nodes.append(helper.make_node("Shape", [x], [f"of_{x}"]))
        parts, sizes = [], [list[int]() for _ in RUNS]
        for axis in range(-lead, len(dims)):
            part, wanted = _wanted(rng, x, axis, dims[axis] if axis >= 0 else 1, nodes, how)
            if axis >= drop or axis < 0:
                parts.append(part)
                for numbers, (m, n) in zip(sizes, RUNS, strict=True):
                    numbers.append(wanted if isinstance(wanted, int) else {"M": m, "N": n, "free": m + 1}[wanted])
        for values, numbers, (m, n) in zip(runs, sizes, RUNS, strict=True):
            shape = [{"M": m, "N": n, "free": m + 1}[d] if isinstance(d, str) else d for d in dims]
            values[x] = np.asarray(rng.standard_normal(shape), np.float32)
            if how == "input":
                values[asked] = np.array(numbers, np.int64)
        if how == "input":
            inputs.append(helper.make_tensor_value_info(asked, TensorProto.INT64, [len(parts)]))
        elif how == "constant":
            constants.append(helper.make_tensor(asked, TensorProto.INT64, [len(parts)], sizes[0]))
        else:
            nodes.append(helper.make_node("Concat", parts, [asked], axis=0))
        nodes.append(helper.make_node("Expand", [x, asked], [y]))
        outputs.append(helper.make_tensor_value_info(y, TensorProto.FLOAT, [None] * max(len(dims), len(parts))))
    graph = helper.make_graph(nodes, "expands", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), runs


def _wanted(
    rng: np.random.Generator, x: str, axis: int, dim: int | str, nodes: list[onnx.NodeProto], how: str
) -> tuple[str, int | str]:
    """The name of one element of the shape, where it is computed, and the number or the dim that it is."""
    if dim == 1:
        number = int(rng.choice([1, 2, 5]))
        return f"n{number}", number
    if how == "constant" or rng.random() < 0.5:
        return ("n1", 1) if isinstance(dim, str) or rng.random() < 0.5 else (f"n{dim}", dim)
    name = f"{x}_{axis}"
    nodes.append(helper.make_node("Gather", [f"of_{x}", f"at{axis}"], [name], axis=0))
    return name, dim


@pytest.mark.parametrize("seed", SEEDS)
def test_random_expands(seed: int, tmp_path: Path) -> None:
    model, runs = draw_expands(seed)
    compile_model(model, tmp_path / "m.vmfb")
    module = load_module(tmp_path / "m.vmfb")
    for feeds in runs:
        for got, want in zip(module(*feeds.values()), run(model, feeds), strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("shape", "asked", "written"),
    [
        ("float[B, 1] x", "int64[2] s = {1, 5}", True),  # of a batch of none there is none
        ("float[B, 1] x", "int64[1] s = {5}", True),
        ("float[3, 1] x", "int64[2] s = {1, 5}", False),
        ("float[1, 4] x", "int64[2] s = {6, 1}", False),
    ],
)
def test_a_free_dim_stays_as_long_as_it_is(shape: str, asked: str, written: bool) -> None:
    text = f'<ir_version: 9, opset_import: ["": 18]> g ({shape}) => (float[P, Q] y) <{asked}> {{ y = Expand(x, s) }}'
    assert ("onnx.Shape" in import_model(onnx.parser.parse_model(text)).text) == written


def test_a_size_that_is_asked_for_by_name_is_asked_for_as_it_is() -> None:
    text = """<ir_version: 9, opset_import: ["": 18]> g (float[B, 1] x, float[B, 7] y) => (float[B, 7] z) {
        s = Shape(y) z = Expand(x, s) }"""
    assert import_model(onnx.parser.parse_model(text)).text.count('"onnx.Shape"') == 1
