"""K and V kept as integers, and roundings: what a DequantizeLinear, or the same by hand, says."""

from __future__ import annotations

import numpy as np
import pytest

from onnx_fa.match.misses import NoMatch
from onnx_fa.patterns.quant import rounding
from onnx_fa.patterns.quant.dequantized import read_dequantized
from tests.support.text_graphs import Constant, TextGraph, name_of

INPUTS = (
    "int8[2,3,8,4] x, uint8[2,3,8,4] u, int16[2,3,8,4] wide, float[2,3,8,4] f, "
    "float[2,3,8,1] rows, float16[1] half, float[8] eight"
)


@pytest.mark.parametrize(
    ("body", "constants", "said"),
    [
        ("y = DequantizeLinear(x, c)", {"c": 0.5}, "x i8 () c none"),
        ("y = DequantizeLinear(u, c, z)", {"c": 0.5, "z": np.asarray(3, np.uint8)}, "u u8 () c 3"),
        ("y = DequantizeLinear(u, c, z)", {"c": 0.5, "z": np.asarray(0, np.uint8)}, "u u8 () c none"),
        (
            "y = DequantizeLinear <axis = 1> (x, c)",
            {"c": [0.5, 1.0, 2.0]},
            "x i8 (3, 1, 1) [[[0.5]],[[1.0]],[[2.0]]] none",
        ),
        ("y = DequantizeLinear <axis = -2> (x, eight)", {}, "x i8 (8, 1) Unsqueeze(eight, [1]) none"),
        ("y = DequantizeLinear <axis = 3> (x, c)", {"c": [0.5] * 4}, "x i8 (4,) c none"),
        ("a = Cast <to = 1> (x) y = Mul(a, rows)", {}, "x i8 (2, 3, 8, 1) rows none"),
        ("a = Cast <to = 1> (x) y = Mul(c, a)", {"c": 0.5}, "x i8 () c none"),
        (
            "a = Cast <to = 1> (u) b = Cast <to = 1> (z) d = Sub(a, b) y = Mul(d, c)",
            {"c": 0.5, "z": np.asarray(3, np.uint8)},
            "u u8 () c 3",
        ),
        ("y = DequantizeLinear(wide, c)", {"c": 0.5}, None),
        ("y = DequantizeLinear(x, c, z)", {"c": [0.5, 1.0, 2.0], "z": np.asarray([1, 2], np.int8)}, None),
        ("a = Cast <to = 1> (wide) y = Mul(a, rows)", {}, None),
        ("a = Cast <to = 1> (x) y = Add(a, rows)", {}, None),
        ("y = Mul(f, rows)", {}, None),
        ("a = Cast <to = 1> (u) d = Sub(a, c) y = Mul(d, c)", {"c": 0.5}, None),
        ("y = my.DequantizeLinear(x, c)", {"c": 0.5}, None),
    ],
)
def test_dequantised(body: str, constants: dict[str, Constant], said: str | None) -> None:
    graph = TextGraph(INPUTS, body, outputs="y", opset=21, **constants)
    found = read_dequantized(graph.view, graph.value("y"))
    if found is None:
        assert said is None
        return
    assert f"{name_of(found.source)} {found.dtype} {found.shape} {name_of(found.scale)} {name_of(found.zero)}" == said


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("q = QuantizeLinear(f, c, z) y = DequantizeLinear(q, c, z)", ("f", 0.25, 3, "u8")),
        ("q = QuantizeLinear(f, c, i) y = DequantizeLinear(q, c, i)", ("f", 0.25, -3, "i8")),
        ("q = QuantizeLinear(f, c, z) y = DequantizeLinear(q, d, z)", None),
        ("q = QuantizeLinear(f, c, z) y = DequantizeLinear(q, c)", None),
        ("q = QuantizeLinear(f, e, z) y = DequantizeLinear(q, e, z)", None),
        ("y = DequantizeLinear(u, c, z)", None),
        ("y = Round(f)", None),
    ],
)
def test_rounding(body: str, said: tuple[str, float, int, str] | None) -> None:
    numbers: dict[str, Constant] = {
        "c": 0.25,
        "d": 0.5,
        "e": float("inf"),
        "z": np.asarray(3, np.uint8),
        "i": np.asarray(-3, np.int8),
    }
    graph = TextGraph(INPUTS, body, outputs="y", **numbers)
    found = rounding.read_rounding(graph.view, graph.node("y"))
    have = None if found is None else (name_of(found[0]), found[1].scale, found[1].zero_point, found[1].dtype)
    assert have == said


@pytest.mark.parametrize(
    ("ends", "op", "said"),
    [
        ((0, 255), "Round", ("most", 0.25, 3, "u8")),
        ((-1, 255), "Round", None),
        ((0, 254), "Round", None),
        ((0, 255), "Floor", None),
    ],
)
def test_whole_numbers_as_bytes(ends: tuple[int, int], op: str, said: tuple[str, float, int, str] | None) -> None:
    """What QLinearAdd and QLinearMul are written as: only whole numbers that the bytes hold stay as they are in the Cast."""
    body = f"r = {op}(f) least = Max(r, low) most = Min(least, high) q = Cast <to = 2> (most) y = DequantizeLinear(q, c, z)"
    constants = {"low": float(ends[0]), "high": float(ends[1]), "c": 0.25, "z": np.asarray(3, np.uint8)}
    graph = TextGraph(INPUTS, body, outputs="y", **constants)
    found = rounding.read_steps(graph.view, graph.node("y"))
    have = None if found is None else (name_of(found[0]), found[1].scale, found[1].zero_point, found[1].dtype)
    assert have == said


def test_an_integer_softmax_is_refused() -> None:
    body = "s = Softmax(f) y = com.microsoft.QLinearSoftmax <axis = -1, opset = 13> (u, c, z, c, z)"
    graph = TextGraph(INPUTS, body, outputs="y", c=0.5, z=np.asarray(3, np.uint8))
    assert rounding.refuse_integer_softmax(graph.view, graph.node("s"), "s") is None
    with pytest.raises(NoMatch, match="QLinearSoftmax"):
        rounding.refuse_integer_softmax(graph.view, graph.node("y"), "y")
