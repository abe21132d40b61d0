"""Windows around the middle of a table of positions, as Zipformer and others cut 2 * seq - 1 distances out of one."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnx_fa.graph.dims import add_dims, subtract_dims
from onnx_fa.graph.normalise import infer_shapes
from onnx_fa.graph.sliced import window_rows
from onnx_fa.graph.view import GraphView
from tests.support.ort_run import run

PARTS = "-1, rows, 4"
"""What the window's rows are cut into: parts of as many rows as were asked for."""


def positions(table: int, middle: int, parts: str = PARTS, beside: str = "") -> onnx.ModelProto:
    """Of a table the rows from middle - seq on, 2 * seq - 1 of them, in parts."""
    return onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]>
        g (float[seq, 4] x, float[{table}, 4] table) => (float[P, R, C] y)
        <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] middle = {{{middle}}},
         int64[1] last = {{{middle - 1}}}, int64[1] less = {{-1}}, int64[1] four = {{4}}>
        {{ seq = Shape <end = 1> (x)
           start = Sub(middle, seq)  end = Add(last, seq)
           window = Slice(table, start, end, zero, one)
           twice = Mul(seq, two)  rows = Sub(twice, one)
           into = Concat <axis = 0> ({", ".join({"-1": "less", "4": "four"}.get(p, p) for p in parts.split(", "))})
           y = Reshape(window, into) {beside} }}"""
    )


def shapes(model: onnx.ModelProto) -> dict[str, tuple[int | str | None, ...] | None]:
    work = ir.from_proto(model)
    infer_shapes(work)
    view = GraphView(work)
    return {str(o.name): view.shape(o) for node in work.graph for o in node.outputs}


def test_rows_that_are_cut_into_parts_of_as_many_are_one_part() -> None:
    found = shapes(positions(9, 5))
    assert found["window"] == ("2*seq - 1", 4) and found["y"] == (1, "2*seq - 1", 4)


def test_a_name_that_somebody_gave_the_rows_says_nothing() -> None:
    """It may be that of another length, as seq is here, which is not 2 * seq - 1."""
    model = positions(9, 5)
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("window", onnx.TensorProto.FLOAT, ["seq", 4]))
    assert shapes(model)["window"] == ("seq", 4)


@pytest.mark.parametrize("seq", [1, 3, 5, 6, 7, 9, 12])
def test_a_run_beyond_the_table_fails(seq: int) -> None:
    """What shapes are known by: from 6 on there are fewer rows than a part has."""
    feeds = {"x": np.ones((seq, 4), np.float32), "table": np.ones((9, 4), np.float32)}
    if seq <= 5:
        assert run(positions(9, 5), feeds)[0].shape == (1, 2 * seq - 1, 4)
    else:
        with pytest.raises(Exception, match="Reshape"):
            run(positions(9, 5), feeds)


@pytest.mark.parametrize(
    ("table", "middle", "parts"),
    [
        (9, 4, PARTS),  # a start below 0 may leave nothing
        (9, 11, PARTS),  # so may one behind the table
        (9, 5, "seq, -1, 4"),
        (9, 5, "-1, seq, 4"),
    ],
)
def test_others_stay_unknown(table: int, middle: int, parts: str) -> None:
    assert "seq" not in str((shapes(positions(table, middle, parts))["window"] or ("seq",))[0])


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 12), st.integers(-4, 30), st.integers(-4, 30), st.integers(0, 40))
def test_a_window_has_a_row_and_no_more_than_it_asks_for(table: int, middle: int, behind: int, seq: int) -> None:
    start, end = subtract_dims(middle, "seq"), add_dims(behind, "seq")
    rows = window_rows(table, start, end)
    asked = behind + 2 * seq - middle
    if rows is not None and asked > 0:
        assert 1 <= len(range(table)[middle - seq : behind + seq]) <= asked
