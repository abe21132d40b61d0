"""Reshapes to sizes of the run: those that change no free one, and those with a -1 beside them; and rows of a table of which there
are none."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import onnx_fa
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.rules import legalize
from onnx_fa.iree.vmfb_facts import inspect_vmfb
from tests.support.ort_run import assert_same, run


def reshaped(x: str, y: str, tail: str) -> onnx.ModelProto:
    """x as (batch of q, *tail), which is declared as `y`."""
    return onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]>
        g (float[{x}] x, float[M, 3] q) => (float[{y}] y) <int64[{tail.count(",") + 1}] tail = {{{tail}}}>
        {{ n = Shape <start = 0, end = 1> (q)  to = Concat <axis = 0> (n, tail)  y = Reshape(x, to) }}"""
    )


def targets(model: onnx.ModelProto) -> list[list[int] | None]:
    """The constant targets of its Reshapes as IREE gets them; None for one that a run computes."""
    infer_types(model, {})
    written = legalize(model)
    known = {t.name: onnx.numpy_helper.to_array(t).tolist() for t in written.graph.initializer}
    return [known.get(n.input[1]) for n in written.graph.node if op_of(n) == "Reshape"]


def test_a_batch_that_stays_is_copied(tmp_path: Path) -> None:
    model = reshaped("B, 6, 8", "C, 6, 2, 4", "-1, 2, 4")
    assert targets(model) == [[0, 6, 2, 4]]
    x = np.arange(96, dtype=np.float32).reshape(2, 6, 8)
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    np.testing.assert_array_equal(
        onnx_fa.run(tmp_path / "m.vmfb", x, np.ones((2, 3), np.float32))[0], x.reshape(2, 6, 2, 4)
    )


@pytest.mark.parametrize(
    ("x", "y", "tail"),
    [
        ("B, 6, 8", "C, D, 2, 4", "-1, 2, 4"),  # two free dims
        ("B, 6, 8", "C, 3, 8", "3, 8"),  # twice as many
        ("6, B, 8", "C, 6, 8", "6, 8"),  # another place
        ("B, 0, 8", "C, 0, 8", "0, 8"),  # no elements, of which nothing follows
    ],
)
def test_others_are_computed(x: str, y: str, tail: str) -> None:
    assert targets(reshaped(x, y, tail))[-1] is None


WINDOWS = """<ir_version: 9, opset_import: ["" : 18]> g (float[B, H, W, 8] x) => (float[N, Y, X, 8] y)
    <int64[1] two = {2}, int64[1] three = {3}, int64[1] all = {-1}, int64[1] depth = {8}> {
        b = Shape <start = 0, end = 1> (x)
        h = Shape <start = 1, end = 2> (x)
        w = Shape <start = 2, end = 3> (x)
        rows = Div(h, two)
        columns = Div(w, three)
        cut = Concat <axis = 0> (b, rows, two, columns, three, depth)
        parts = Reshape(x, cut)
        ordered = Transpose <perm = [0, 1, 3, 2, 4, 5]> (parts)
        each = Concat <axis = 0> (all, two, three, depth)
        windows = Reshape(ordered, each)
        inside = Softmax <axis = 1> (windows)
        grid = Concat <axis = 0> (all, rows, columns, two, three, depth)
        back = Reshape(inside, grid)
        turned = Transpose <perm = [0, 1, 3, 2, 4, 5]> (back)
        whole = Concat <axis = 0> (all, h, w, depth)
        image = Reshape(turned, whole)
        y = Add(x, image)
    }"""
"""MaxViT's windows of images of any size."""


def test_what_is_left_beside_sizes_of_the_run(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(WINDOWS)
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    for dims in ((2, 4, 9, 8), (1, 2, 3, 8), (3, 2, 6, 8)):
        x = np.random.default_rng(0).standard_normal(dims).astype(np.float32)
        assert_same(run(model, {"x": x}), onnx_fa.run(tmp_path / "m.vmfb", x))


def test_the_host_computes_what_is_left(tmp_path: Path) -> None:
    """Heads in front of a length of the run: a dispatch that computed the size would be waited for."""
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 18]> g (float[B, 3, S, 4] x) => (float[N, T, 4] y)
        <int64[1] all = {-1}, int64[1] depth = {4}> {
            rows = Shape <start = 2, end = 3> (x)
            to = Concat <axis = 0> (all, rows, depth)
            positive = Relu(x)
            y = Reshape(positive, to)
        }"""
    )
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    exports = inspect_vmfb(tmp_path / "m.vmfb").exports
    assert {number for name in exports for number in re.findall(r"dispatch_(\d+)", name)} == {"0"}
    for batch, rows in ((2, 5), (1, 1), (0, 5), (2, 0)):
        x = np.random.default_rng(0).standard_normal((batch, 3, rows, 4)).astype(np.float32)
        (got,) = onnx_fa.run(tmp_path / "m.vmfb", x)
        if rows:
            assert_same(run(model, {"x": x}), [got])
        assert got.size == x.size and got.shape[1:] == (rows, 4)


def test_rows_that_are_split_into_a_batch_of_them(tmp_path: Path) -> None:
    """Into sizes of which one is left behind that of the batch: ids, which a table is read by, and packed rows."""
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 18]>
        g (int64[N] ids, float[N, 8] x, float[29, 4] table, float[B, 3] q) => (float[B, 4, L] y, float[B, M, 8] z)
        <int64[1] all = {-1}, int64[2] tail = {-1, 8}> {
            b = Shape <start = 0, end = 1> (q)
            rows = Concat <axis = 0> (b, all)
            split = Reshape(ids, rows)
            found = Gather(table, split)
            turned = Transpose <perm = [0, 2, 1]> (found)
            grown = Exp(turned)
            y = Add(turned, grown)
            wide = Concat <axis = 0> (b, tail)
            parts = Reshape <allowzero = 1> (x, wide)
            raised = Exp(parts)
            z = Add(parts, raised)
        }"""
    )
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    rng = np.random.default_rng(0)
    for batch, length in ((2, 3), (1, 5), (4, 1)):
        x, table = (rng.standard_normal(dims).astype(np.float32) for dims in ((batch * length, 8), (29, 4)))
        feeds = {
            "ids": rng.integers(0, 29, batch * length),
            "x": x,
            "table": table,
            "q": np.ones((batch, 3), np.float32),
        }
        assert_same(run(model, feeds), onnx_fa.run(tmp_path / "m.vmfb", *feeds.values()))


@pytest.mark.parametrize(("dims", "target"), [("B, 8", "all, same, h"), ("A, B, C", "h, all, h")])
def test_no_size_is_computed_of_others(dims: str, target: str) -> None:
    """A constant 0 is the input's size at that place; what is not in front the compiler finds, where no free dim is split."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]> g (float[{dims}] x, float[H] other) => (float[C, E, D] y)
        <int64[1] all = {{-1}}, int64[1] same = {{0}}> {{
            h = Shape(other)  to = Concat <axis = 0> ({target})  y = Reshape(x, to) }}"""
    )
    before = [op_of(node) for node in model.graph.node]
    infer_types(model, {})
    assert [op_of(node) for node in legalize(model).graph.node] == before


@pytest.mark.parametrize(
    ("table", "indices", "axis", "made"),
    [("float[29, 4]", "B, 0", 0, "float[B, 0, 4]"), ("bool[B, 5, 4]", "0", 1, "bool[B, 0, 4]")],
)
def test_no_rows(table: str, indices: str, axis: int, made: str, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]>
        g ({table} x, int64[{indices}] i) => ({made} y) {{ y = Gather <axis = {axis}> (x, i) }}"""
    )
    sizes = {"B": 3}
    dims = [[sizes.get(d.dim_param, d.dim_value) for d in v.type.tensor_type.shape.dim] for v in model.graph.input]
    feeds = {"x": np.ones(dims[0], np.float32 if "float" in table else bool), "i": np.zeros(dims[1], np.int64)}
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    assert onnx_fa.run(tmp_path / "m.vmfb", *feeds.values())[0].shape == run(model, feeds)[0].shape
