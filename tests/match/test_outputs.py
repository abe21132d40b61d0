"""What is done to a site's output, in its type, and who asks behind it for a NaN."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from onnx_fa.match import nans
from onnx_fa.match.exprs import Call, Const, Expr
from onnx_fa.match.misses import NoMatch
from onnx_fa.match.types import (
    Anchor,
    Behind,
    Weighting,
)
from onnx_fa.match.wraps import wrap_in_type
from onnx_fa.patterns.operands.product import read_product
from tests.support.text_graphs import TextGraph, name_of

DEFERRED = "float[2,3,6,8] e, float[2,3,8,4] v"


def test_wraps_take_the_type_of_the_output() -> None:
    graph = TextGraph("float[6,1] row, float16[6,1] half", "y = Identity(row)", c=0.5, huge=1e30)
    c, huge, row, half = (graph.value(n) for n in ("c", "huge", "row", "half"))

    def times(factor: Expr) -> object:
        return lambda e: Call("Mul", (e, factor))

    def wrap(factor: Expr, dtype: str | None) -> str:
        made = wrap_in_type(graph.view, [times(factor)], dtype, graph.node("y"))  # type: ignore[list-item]
        (only,) = made
        found = only(ir.Value(name="o"))
        assert isinstance(found, Call)
        kind = found.args[1].array.dtype if isinstance(found.args[1], Const) else "as it is"
        return f"{name_of(found)} {kind}"

    assert wrap(c, "f32") == "Mul(o, c) as it is"
    assert wrap(c, "f16") == "Mul(o, 0.5) float16"
    assert wrap(row, "f32") == "Mul(o, row) as it is"
    assert wrap(half, None) == "Mul(o, half) as it is"
    for factor, dtype in ((huge, "f16"), (row, "f16"), (half, "f32")):
        with pytest.raises(NoMatch, match="the output is of another type"):
            wrap(factor, dtype)


@pytest.mark.parametrize(
    ("body", "asks"),
    [
        ("n = IsNaN(o) y = Not(n)", True),
        ("a = Add(o, o) y = Cast <to = 7> (a)", True),
        ("a = Transpose(o) y = Greater(a, a)", True),
        ("a = Cast <to = 10> (o) y = Neg(a)", False),
        ("a = Relu(o) y = IsNaN(a)", False),
        ("y = Identity(o)", False),
    ],
)
def test_who_asks_for_a_nan(body: str, asks: bool) -> None:
    graph = TextGraph(DEFERRED, f"o = MatMul(e, v) {body}", outputs="y")
    product = read_product(graph.view, graph.value("o"))
    assert product is not None
    anchor = Anchor(graph.node("o"), "Exp", graph.value("e"), graph.value("e"))
    behind = Behind(Weighting(product, 0, graph.value("e")))
    if not asks:
        nans.check_nan(graph.view, anchor, behind, graph.value("o"))
        return
    with pytest.raises(NoMatch, match="tells the NaN of that from a number"):
        nans.check_nan(graph.view, anchor, behind, graph.value("o"))
