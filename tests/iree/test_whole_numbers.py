"""Operators on integers at the ends of their types give what arithmetic of whole numbers gives: no float stands in between."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import onnx_fa

Array = np.ndarray[Any, Any]
KINDS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
OPS: dict[str, tuple[str, Callable[[Array, Array], Any]]] = {
    "sum": ("Add(x, y)", lambda x, y: x + y),
    "difference": ("Sub(x, y)", lambda x, y: x - y),
    "product": ("Mul(x, y)", lambda x, y: x * y),
    "quotient": ("Div(x, y)", lambda x, y: (x // y) + ((x % y != 0) & ((x < 0) != (y < 0))).astype(x.dtype)),
    "remainder": ("Mod(x, y)", lambda x, y: x % y),
    "signed as x": ("Mod<fmod = 1>(x, y)", np.fmod),
    "larger": ("Max(x, y)", np.maximum),
    "smaller": ("Min(x, y)", np.minimum),
    "less": ("Less(x, y)", np.less),
    "more": ("Greater(x, y)", np.greater),
    "not more": ("LessOrEqual(x, y)", np.less_equal),
    "not less": ("GreaterOrEqual(x, y)", np.greater_equal),
    "equal": ("Equal(x, y)", np.equal),
    "negative": ("Neg(x)", lambda x, y: -x),
    "absolute": ("Abs(x)", lambda x, y: np.abs(x)),
    "sign": ("Sign(x)", lambda x, y: np.sign(x)),
    "relu": ("Relu(x)", lambda x, y: np.maximum(x, 0)),
    "and": ("BitwiseAnd(x, y)", np.bitwise_and),
    "or": ("BitwiseOr(x, y)", np.bitwise_or),
    "xor": ("BitwiseXor(x, y)", np.bitwise_xor),
    "not": ("BitwiseNot(x)", lambda x, y: ~x),
    "chosen": ("Where(c, x, y)", lambda x, y: np.where(x < y, x, y)),
    "cut": ("Clip(x, y1, y2)", lambda x, y: np.clip(x, *sorted(y[0, :2]))),
    "largest": ("ReduceMax(x, last)", lambda x, y: x.max(1, keepdims=True)),
    "least": ("ReduceMin(x, last)", lambda x, y: x.min(1, keepdims=True)),
    "total": ("ReduceSum(x, last)", lambda x, y: x.sum(1, keepdims=True, dtype=x.dtype)),
    "so far": ("CumSum(x, one)", lambda x, y: x.cumsum(1, dtype=x.dtype)),
    "place of the largest": ("ArgMax<axis = 1>(x)", lambda x, y: x.argmax(1)[:, None]),
    "place of the least": ("ArgMin<axis = 1>(x)", lambda x, y: x.argmin(1)[:, None]),
    "square": ("Pow(x, two)", lambda x, y: x * x),
    "of rows": ("MatMul(x, t)", lambda x, y: x @ y.T),
    "joined": ("Concat<axis = 1>(x, y)", lambda x, y: np.concatenate([x, y], 1)),
    "padded": ("Pad(x, pads, y1)", lambda x, y: np.pad(x, 1, constant_values=sorted(y[0, :2])[0])),
    "picked": ("Gather<axis = 1>(x, last)", lambda x, y: x[:, 1:2]),
}
"""Source by x and y (n, m), and the same by NumPy."""
FALSE = ("less", "more", "not more", "not less", "equal")
SIGNED = ("negative", "relu")
OF_32_BITS = ("total", "so far", "square", "of rows")
NOT_OF_UINT64 = (
    "quotient",
    "remainder",
    "signed as x",
    "larger",
    "smaller",
    "cut",
    "largest",
    "least",
    "sign",
    "so far",
)
"""Of 64 bits without a sign: refused, with a line that says so (test_unsigned.py)."""


def names(kind: str) -> list[str]:
    """The operators that ONNX has of a type, and that are not refused."""
    left = set(OPS)
    if kind.startswith("u"):
        left -= {*SIGNED}
    if kind in ("int8", "uint8", "int16", "uint16"):
        left -= {*OF_32_BITS}
    if kind.startswith("uint"):
        left -= {"so far", "square"}
    if kind == "uint64":
        left -= {*NOT_OF_UINT64}
    return [name for name in OPS if name in left]


def draw(kind: str) -> tuple[Array, Array]:
    """Numbers at the ends of a type, at its middle, and small ones. y is not 0, nor -1."""
    limits, rng = np.iinfo(kind), np.random.default_rng(0)
    ends = [limits.min, limits.min + 1, limits.max, limits.max - 1, limits.max // 2 + 1, limits.max // 3, 3, 0, 1, 7]
    x, y = (rng.permutation([*ends] * 2).reshape(4, 5).astype(kind) for _ in range(2))
    return x, np.where((y == 0) | (y + 1 == 0), np.array(5, kind), y)


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_at_the_ends_of_a_type(kind: str, tmp_path: Path) -> None:
    x, y = draw(kind)
    low, high = sorted(int(n) for n in y[0, :2])
    kept = names(kind)
    results = ", ".join(
        f"{'bool' if name in FALSE else 'int64' if name.startswith('place') else kind} {name.replace(' ', '_')}"
        for name in kept
    )
    body = " ".join(f"{name.replace(' ', '_')} = {OPS[name][0]}" for name in kept)
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]> g ({kind}[n, m] x, {kind}[n, m] y) => ({results})
        <{kind} y1 = {{{low}}}, {kind} y2 = {{{high}}}, int64[1] last = {{1}}, int64 one = {{1}}, {kind} two = {{2}},
        int64[4] pads = {{1, 1, 1, 1}}> {{ t = Transpose(y) c = Less(x, y) {body} }}"""
    )
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    with np.errstate(over="ignore"):
        wanted = [OPS[name][1](x, y) for name in kept]
    for name, got, want in zip(kept, onnx_fa.run(tmp_path / "m.vmfb", x, y), wanted, strict=True):
        np.testing.assert_array_equal(got, want, err_msg=name)
        assert got.dtype == want.dtype, name
