"""Slices that take more rows than a run has: what onnxruntime gives, or a line that says where it stopped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import onnx_fa
from onnx_fa.errors import OnnxFaError
from onnx_fa.graph.view import GraphView
from onnx_fa.iree.legalise.slice_sizes import needed_rows
from onnx_fa.iree.run import load_module
from tests.support.ort_run import run

FAR = 2**62
CUTS = {
    # Where it begins, where it ends, its step, how many rows the model says, and how many it needs.
    "few": (3, 4, 1, "1", 4),
    "each second": (1, 6, 2, "3", 6),
    "the last": (-3, FAR, 1, "3", 3),
    "backwards": (-1, -FAR, -1, "M", 1),
    "backwards from the third": (2, 0, -1, "M", 1),
    "to the end": (2, FAR, 1, "M", 0),
    "none": (2, 2, 1, "0", 0),
    "between": (2, -2, 1, "M", 0),
}


def cut(name: str, dims: str = "N, 2") -> onnx.ModelProto:
    start, end, step, made, _ = CUTS[name]
    return onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]> g (float[{dims}] x) => (float[{made}, 2] y)
        <int64[1] start = {{{start}}}, int64[1] end = {{{end}}}, int64[1] axis = {{0}}, int64[1] step = {{{step}}}>
        {{ y = Slice(x, start, end, axis, step) }}"""
    )


def needed(model: onnx.ModelProto) -> list[tuple[int, int]]:
    work = ir.from_proto(model)
    return [(axis, rows) for _, axis, rows in needed_rows(GraphView(work), work.graph[-1])]


@pytest.mark.parametrize("name", CUTS)
def test_rows(name: str) -> None:
    want = CUTS[name][-1]
    assert needed(cut(name)) == ([(0, want)] if want else [])
    assert not needed(cut(name, "9, 2"))


def test_rows_that_are_always_there() -> None:
    """A cache of two rows in front of what is new."""
    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[2, 4] cache, float[N, 4] x) => (float[2, 4] y)
    <int64[1] start = {-2}, int64[1] end = {9223372036854775807}, int64[1] axis = {0}>
    { all = Concat<axis = 0>(cache, x) y = Slice(all, start, end, axis) }"""
    assert not needed(onnx.parser.parse_model(text))
    assert needed(onnx.parser.parse_model(text.replace("-2", "-3").replace("=> (float[2", "=> (float[3"))) == [(0, 3)]


SHORT = {
    # Rows, where it begins, where it ends, its step, and how many rows the model says: fewer than it asks for.
    "one of nine": (1, -9, FAR, 1, 1),
    "three of nine": (3, -9, FAR, 1, 3),
    "each second": (3, -9, FAR, 2, 2),
    "without the last": (3, -9, -1, 1, 2),
    "backwards from behind": (3, 5, -FAR, -1, 3),
}


@pytest.mark.parametrize("name", SHORT)
def test_what_is_asked_for_and_known_not_to_be_there(name: str, tmp_path: Path) -> None:
    """rotary_embedding_torch cuts as many rows as there are queries, and from an axis of one row where the angles have that."""
    rows, start, end, step, made = SHORT[name]
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]> g (float[{rows}, 2] x) => (float[{made}, 2] y)
        <int64[1] start = {{{start}}}, int64[1] end = {{{end}}}, int64[1] axis = {{0}}, int64[1] step = {{{step}}}>
        {{ y = Slice(x, start, end, axis, step) }}"""
    )
    assert not needed(model)
    x = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    np.testing.assert_array_equal(load_module(tmp_path / "m.vmfb")(x)[0], run(model, {"x": x})[0])


@pytest.mark.parametrize("name", CUTS)
def test_a_run_is_right_or_stops(name: str, tmp_path: Path) -> None:
    model, least = cut(name), CUTS[name][-1]
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    module = load_module(tmp_path / "m.vmfb")
    for rows in range(8):
        x = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
        if rows < least:
            with pytest.raises(OnnxFaError, match=f"axis 0 of 'x' to have {least} rows or more; it has fewer"):
                module(x)
        else:
            np.testing.assert_array_equal(module(x)[0], run(model, {"x": x})[0])
