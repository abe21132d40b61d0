"""The table of ops that move elements, against what onnx makes of numbered elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from onnx_fa.graph.moves import EACH_ONCE, LOOKS_UP, MOVES, REGROUPS, REPEATS

Case = tuple[Sequence[Any], dict[str, Any]]
_CASES: dict[str, Case] = {
    "Identity": ([], {}),
    "Reshape": ([[3, 2]], {}),
    "Flatten": ([], {"axis": 2}),
    "Squeeze": ([[0]], {}),
    "Unsqueeze": ([[1]], {}),
    "Transpose": ([], {"perm": [2, 0, 1]}),
    "Slice": ([[1], [3], [2]], {}),
    "Gather": ([[1, 1]], {"axis": 1}),
    "Expand": ([[2, 2, 3]], {}),
    "Tile": ([[1, 1, 2]], {}),
}


def _run(op: str) -> tuple[np.ndarray, np.ndarray]:
    """Six numbers (1, 2, 3), and what the op makes of them."""
    further, attributes = _CASES[op]
    x = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    names = [f"i{n}" for n in range(len(further))]
    node = onnx.helper.make_node(op, ["x", *names], ["y"], **attributes)
    value = onnx.helper.make_tensor_value_info
    given = [value("x", onnx.TensorProto.FLOAT, None), *(value(n, onnx.TensorProto.INT64, None) for n in names)]
    graph = onnx.helper.make_graph([node], "g", given, [value("y", onnx.TensorProto.FLOAT, None)])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10)
    feeds = {"x": x, **{n: np.asarray(a, np.int64) for n, a in zip(names, further, strict=True)}}
    (y,) = ReferenceEvaluator(model).run(None, feeds)
    return x, np.asarray(y)


def test_every_op_of_the_table_is_tried() -> None:
    assert set(_CASES) == MOVES


@pytest.mark.parametrize("op", sorted(MOVES))
def test_what_an_op_does_to_elements(op: str) -> None:
    x, y = _run(op)
    assert set(y.flat) <= set(x.flat)
    assert (sorted(y.flat) == sorted(x.flat)) == (op in EACH_ONCE)
    assert (y.size > x.size) == (op in REPEATS)
    assert (op in REGROUPS) == (op in EACH_ONCE and y.shape != x.shape)


def test_what_looks_up_takes_its_places_from_an_operand() -> None:
    assert {"Gather"} == LOOKS_UP
    assert set(_run("Gather")[1].flat) == {3.0, 4.0, 5.0}
