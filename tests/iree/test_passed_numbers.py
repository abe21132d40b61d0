"""Dispatches that are passed more numbers than a runtime takes are found, and their module is compiled with less joined."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnx_fa.errors import CompileError
from onnx_fa.iree import passed_numbers
from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.passed_numbers import LESS_JOINED, MOST, WHY_LESS_JOINED, check_numbers, crowded_in
from onnx_fa.iree.run import load_module
from onnx_fa.spec.target import parse_target

EXPORT = "hal.executable.export public @{} ordinal(0) layout({}) count(%d: !hal.device) -> (index) {{"


def _layout(many: int) -> str:
    return f"#hal.pipeline.layout<constants = {many}, bindings = [#hal.pipeline.binding<storage_buffer>]>"


def test_exports_with_too_many_are_found() -> None:
    text = "\n".join(
        [
            f"#few = {_layout(MOST)}",
            f"#many = {_layout(MOST + 1)}",
            "#none = #hal.pipeline.layout<bindings = [#hal.pipeline.binding<storage_buffer>]>",
            *(EXPORT.format(f"of_{name}", f"#{name}") for name in ("few", "many", "none")),
            EXPORT.format("own", _layout(80)),
        ]
    )
    assert crowded_in(text) == (("of_many", MOST + 1), ("own", 80))


def _sum_of(many: int) -> onnx.ModelProto:
    """x (n, 8) by so many rows of weights, the largest number of each product's row, and the sum of these."""
    nodes, rows = [], []
    weights = [numpy_helper.from_array(np.array([1], np.int64), "axis")]
    for i in range(many):
        weights.append(numpy_helper.from_array(np.full(8, 1 + i, np.float32), f"w{i}"))
        nodes.append(helper.make_node("Mul", ["x", f"w{i}"], [f"m{i}"]))
        nodes.append(helper.make_node("ReduceMax", [f"m{i}", "axis"], [f"r{i}"], keepdims=0))
        rows.append(f"r{i}")
    nodes.append(helper.make_node("Sum", rows, ["y"]))
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", ["n", 8]), ("y", ["n"])))
    return helper.make_model(
        helper.make_graph(nodes, "sum", [x], [y], weights), opset_imports=[helper.make_opsetid("", 18)], ir_version=9
    )


@pytest.mark.parametrize("many", [8, 40])
def test_a_sum_of_many_is_loaded(many: int, tmp_path: Path) -> None:
    done = compile_model(_sum_of(many), tmp_path / "m.vmfb", parse_target("cpu-host"))
    assert (WHY_LESS_JOINED in done.note) == (set(LESS_JOINED) <= set(done.command)) == (many == 40)
    x = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)
    want = sum((x * (1 + i)).max(axis=1) for i in range(many))
    np.testing.assert_allclose(load_module(tmp_path / "m.vmfb")(x)[0], want, rtol=1e-5)


def test_what_no_runtime_loads_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in.8.executable-sources.mlir").write_text(EXPORT.format("sum", _layout(66)))
    with pytest.raises(CompileError, match=r"the dispatch sum is passed 66 .* takes 64: fix free dims"):
        check_numbers(tmp_path)
    monkeypatch.setattr(passed_numbers, "MOST", 66)
    check_numbers(tmp_path)
