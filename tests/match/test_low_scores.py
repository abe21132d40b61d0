"""How low masks push scores, where the model reads a row statistic or makes probabilities of one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from onnx_fa.match.exprs import Expr
from onnx_fa.match.low_scores import check_low_scores, check_whole_rows
from onnx_fa.match.misses import NoMatch
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.expr import SCORE, Apply
from onnx_fa.spec.terms import AddMask, BoolMask, Causal, Elementwise, MaskTerm, SlidingWindow
from tests.support.text_graphs import TextGraph

INF = float("inf")
LOWEST = float(np.finfo(np.float32).min)


SPEC = AttentionSpec("f32", Hq=3, Hkv=3, Sq=6, Skv=8, D=4, Dv=4, batch=(2,))


def low(
    check: object,
    term: MaskTerm,
    inputs: str = "float[6,8] m, bool[8] row, float16[6,8] half",
    body: str = "y = Identity(m)",
) -> None:
    graph = TextGraph(
        f"{inputs}, float[2,3,6,8] s",
        body,
        zeros=[0.0] * 8,
        lows=[0.0] * 7 + [LOWEST],
        tens=[-1e30] * 8,
        more=[-1e37 * 2] * 8,
    )
    name = {"BoolMask": "row"}.get(type(term).__name__, "y")
    operands: list[Expr] = [graph.value("s")] * 3 + (
        [graph.value(name)] if not isinstance(term, (Causal, SlidingWindow)) else []
    )
    if isinstance(term, Elementwise) and not term.tensors:
        operands = operands[:3]
    node = ir.Node("", "Exp", [graph.value("s")])
    assert callable(check)
    check(graph.view, replace(SPEC, masks=(term,)), operands, node)


@pytest.mark.parametrize(
    ("term", "body"),
    [
        (Causal(), "y = Identity(m)"),
        (Causal(0, LOWEST), "y = Identity(m)"),
        (BoolMask((8,), -1e30), "y = Identity(m)"),
        (AddMask((8,)), "y = Identity(zeros)"),
        (AddMask((8,)), "y = Identity(lows)"),
        (AddMask((8,)), "y = Where(row, zeros, lows)"),
        (AddMask((6, 8)), "y = Cast <to = 1> (half)"),
        (AddMask((6, 8)), "y = Tanh(m)"),
        (Elementwise(Apply("Tanh", SCORE)), "y = Identity(m)"),
    ],
)
def test_statistics_of_scores_that_are_known(term: MaskTerm, body: str) -> None:
    low(check_low_scores, term, body=body)


@pytest.mark.parametrize(
    ("term", "body", "why"),
    [
        (AddMask((6, 8)), "y = Identity(m)", "numbers that are not known"),
        (AddMask((8,)), "y = Identity(more)", "as low as -2e[+]37"),
        (AddMask((8,)), "a = Where(row, zeros, lows) y = Add(a, a)", "as low as|not known"),
        (BoolMask((8,), -1e38), "y = Identity(m)", "as low as -1e[+]38"),
        (Elementwise(Apply("Exp", Apply("Mul", SCORE, SCORE))), "y = Identity(m)", None),
        (Elementwise(Apply("Neg", Apply("Exp", SCORE))), "y = Identity(m)", "not known"),
    ],
)
def test_statistics_of_scores_that_may_be_too_low(term: MaskTerm, body: str, why: str | None) -> None:
    if why is None:
        low(check_low_scores, term, body=body)
        return
    with pytest.raises(NoMatch, match=why):
        low(check_low_scores, term, body=body)


@pytest.mark.parametrize(
    ("term", "body", "why"),
    [
        (Causal(0, -1e9), "y = Identity(m)", None),
        (Causal(-1, -1e9), "y = Identity(m)", "masks throughout"),
        (BoolMask((8,), -INF), "y = Identity(m)", None),
        (BoolMask((8,), -100.0), "y = Identity(m)", None),
        (BoolMask((8,), -1e9), "y = Identity(m)", "masks throughout"),
        (AddMask((8,)), "y = Identity(zeros)", None),
        (AddMask((8,)), "y = Identity(tens)", "very low numbers"),
        (AddMask((6, 8)), "y = Identity(m)", "very low numbers"),
    ],
)
def test_probabilities_by_a_log_sum_exp(term: MaskTerm, body: str, why: str | None) -> None:
    if why is None:
        low(check_whole_rows, term, body=body)
        return
    with pytest.raises(NoMatch, match=why):
        low(check_whole_rows, term, body=body)
