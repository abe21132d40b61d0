"""Each layer between the product of Q and K and the softmax: what it peels, and what it leaves."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from onnx_fa.match.misses import NoMatch
from onnx_fa.patterns.score import elementwise, passthrough, regroup, scale, softcap
from tests.support.text_graphs import Constant, TextGraph, describe_step, name_of

INPUTS = (
    "float[2,3,6,8] s, float[2,3,6,8] t, float[3,1,1] head, float[8] keys, float[1] one, float16[2,3,6,8] half, "
    "double[2,3,6,8] double, bfloat16[2,3,6,8] brain, bool[6,8] b, int64[8] n, int32[8] narrow, float[2,18,8] flat"
)
ZERO_POINT = np.asarray(3, np.uint8)


def peel(rule: Callable[..., object], body: str, opset: int = 18, **constants: Constant) -> list[str]:
    graph = TextGraph(INPUTS, body, outputs="y", opset=opset, **constants)
    found = rule(graph.view, graph.value("y"))
    return [f"{describe_step(p.step)} on {name_of(p.inner)}" for p in found]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("body", "constants", "said"),
    [
        ("y = Mul(s, c)", {"c": 0.5}, ["scale 0.5 on s"]),
        ("y = Mul(c, s)", {"c": [0.5]}, ["scale 0.5 on s"]),
        ("y = Div(s, c)", {"c": 4.0}, ["scale 0.25 on s"]),
        ("y = Neg(s)", {}, ["scale -1 on s"]),
        ("y = Mul(s, head)", {}, ["times head on s"]),
        ("y = Mul(head, s)", {}, ["times head on s"]),
        ("y = Div(s, one)", {}, ["divide by one on s"]),
        ("y = Mul(s, c)", {"c": [[[1.0]], [[2.0]], [[3.0]]]}, ["times c on s"]),
        ("y = Div(c, s)", {"c": 1.0}, []),
        ("y = Div(s, c)", {"c": 0.0}, []),
        ("y = Mul(s, keys)", {}, []),
        ("y = Mul(s, t)", {}, []),
        ("y = Mul(s, c)", {"c": [[[[[0.5]]]]]}, []),
        ("y = Add(s, c)", {"c": 0.5}, []),
        ("y = my.Mul(s, c)", {"c": 0.5}, []),
    ],
)
def test_scale(body: str, constants: dict[str, Constant], said: list[str]) -> None:
    assert peel(scale.peel_scale, body, **constants) == said


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("u = Div(s, c) v = Tanh(u) y = Mul(v, c)", ["cap 5 on s"]),
        ("u = Mul(s, r) v = Tanh(u) y = Mul(c, v)", ["cap 5 on s"]),
        ("u = Mul(r, s) v = Tanh(u) y = Mul(v, c)", ["cap 5 on s"]),
        ("u = Div(s, m) v = Tanh(u) y = Mul(v, m)", ["cap 5 on s"]),
        ("u = Div(s, r) v = Tanh(u) y = Mul(v, c)", []),
        ("u = Div(c, s) v = Tanh(u) y = Mul(v, c)", []),
        ("v = Tanh(s) y = Mul(v, c)", []),
        ("u = Div(s, c) y = Tanh(u)", []),
        ("u = Div(s, one) v = Tanh(u) y = Mul(v, one)", []),
    ],
)
def test_softcap(body: str, said: list[str]) -> None:
    assert peel(softcap.peel_softcap, body, c=5.0, r=0.2, m=-5.0) == said


@pytest.mark.parametrize(
    ("body", "constants", "said"),
    [
        ("y = Identity(s)", {}, ["nothing on s"]),
        ("y = Cast <to = 1> (half)", {}, ["nothing on half"]),
        ("y = Cast <to = 11> (s)", {}, ["nothing on s"]),
        ("y = Cast <to = 16> (half)", {}, ["nothing on half"]),
        ("y = Dropout(s)", {}, ["nothing on s"]),
        ("y = Dropout(s, c, f)", {"c": 0.5, "f": False}, ["nothing on s"]),
        ("y = Cast <to = 10> (s)", {}, []),
        ("h = Cast <to = 1> (half) a = Add(h, h) y = Cast <to = 10> (a)", {}, ["nothing on a"]),
        ("h = Cast <to = 1> (half) a = Add(h, s) y = Cast <to = 10> (a)", {}, []),
        ("h = Cast <to = 1> (brain) a = Mul(h, h) y = Cast <to = 10> (a)", {}, []),
        ("h = Cast <to = 1> (half) a = Add(h, h) d = Add(a, h) y = Cast <to = 10> (d)", {}, []),
        ("y = Cast <to = 1> (double)", {}, []),
        ("y = Cast <to = 10> (brain)", {}, []),
        ("y = Cast <to = 1> (n)", {}, []),
        ("y = Cast <to = 7> (s)", {}, []),
        ("y = Dropout(s, c, f)", {"c": 0.5, "f": True}, []),
        ("y = Neg(s)", {}, []),
        ("y = my.Identity(s)", {}, []),
    ],
)
def test_casts_and_the_like(body: str, constants: dict[str, Constant], said: list[str]) -> None:
    assert peel(passthrough.peel_noop, body, **constants) == said


@pytest.mark.parametrize(
    ("body", "constants", "said"),
    [
        ("y = Add(s, c)", {"c": 0.0}, ["nothing on s"]),
        ("y = Add(c, s)", {"c": [0.0]}, ["nothing on s"]),
        ("z = Shape(s) w = Expand(c, z) y = Add(w, s)", {"c": [0.0]}, ["nothing on s"]),
        ("z = Shape(s) w = Expand(c, z) v = Mul(w, d) y = Add(s, v)", {"c": 5.0, "d": 0.0}, ["nothing on s"]),
        ("z = Shape(s) w = Expand(c, z) y = Add(w, s)", {"c": 1.0}, []),
        ("z = Shape(s) w = Expand(c, z) v = Mul(w, d) y = Add(s, v)", {"c": np.inf, "d": 0.0}, []),
        ("v = Mul(t, d) y = Add(s, v)", {"d": 0.0}, []),
        ("y = Add(s, one)", {}, []),
        ("y = Sub(s, c)", {"c": 0.0}, []),
        ("y = my.Add(s, c)", {"c": 0.0}, []),
    ],
)
def test_added_zeros(body: str, constants: dict[str, Constant], said: list[str]) -> None:
    """Not a tensor times zero, which is NaN where an element is infinite."""
    assert peel(passthrough.peel_added_zero, body, **constants) == said


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("y = Transpose <perm = [0, 2, 1, 3]> (s)", ["moved by Transpose on s"]),
        ("y = Reshape(s, c)", ["moved by Reshape on s"]),
        ("y = Unsqueeze(s, z)", ["moved by Unsqueeze on s"]),
        ("u = Unsqueeze(s, z) y = Squeeze(u, z)", ["moved by Squeeze on u"]),
        ("y = Flatten(s)", ["moved by Flatten on s"]),
        ("y = Expand(s, c)", []),
        ("y = my.Reshape(s, c)", []),
    ],
)
def test_moved_axes(body: str, said: list[str]) -> None:
    assert peel(regroup.peel_regroup, body, c=[2, 18, 8], z=[0]) == said


@pytest.mark.parametrize(
    ("body", "constants", "said"),
    [
        ("y = Relu(s)", {}, ["relu(score) on s"]),
        ("y = Tanh(s)", {}, ["tanh(score) on s"]),
        ("y = Mul(s, keys)", {}, ["(score * t0), keys on s"]),
        ("y = Pow(s, c)", {"c": 2.0}, ["pow(score, 2) on s"]),
        ("y = Max(s, c)", {"c": 0.0}, ["max(score, 0) on s"]),
        ("y = Sum(s, c, d)", {"c": 1.0, "d": 2.0}, ["((score + 1) + 2) on s"]),
        ("y = Clip(s, c, d)", {"c": -1.0, "d": 2.0}, ["min(max(score, -1), 2) on s"]),
        ("y = LeakyRelu <alpha = 0.5> (s)", {}, ["where((score < 0), (score * 0.5), score) on s"]),
        ("y = HardSigmoid(s)", {}, ["max(0, min(1, ((score * 0.2) + 0.5))) on s"]),
        ("y = Softsign(s)", {}, ["(score / (1 + abs(score))) on s"]),
        ("y = ThresholdedRelu <alpha = 2.0> (s)", {}, ["where((score > 2), score, 0) on s"]),
        ("u = Greater(s, c) y = Where(u, s, c)", {"c": 0.0}, ["where((score > 0), score, 0) on s"]),
        ("u = Cast <to = 1> (b) y = Mul(s, u)", {}, ["(score * t0), u on s"]),
        ("u = Exp(s) y = Log(u)", {}, ["log(score) on u", "log(exp(score)) on s"]),
        ("y = Mul(s, s)", {}, ["(score * score) on s"]),
        ("u = IsInf(s) y = Where(u, c, s)", {"c": 0.0}, ["where(((score == inf) or (score == -inf)), 0, score) on s"]),
        (
            "u = QuantizeLinear(s, c, z) y = DequantizeLinear(u, c, z)",
            {"c": 0.5, "z": ZERO_POINT},
            ["(min(max(round((score / 0.5)), -3), 252) * 0.5) on s"],
        ),
        ("y = Add(half, half)", {}, ["(score + score) on half"]),
        ("y = MatMul(s, c)", {"c": [[1.0] * 8] * 8}, []),
        ("y = Softmax(s)", {}, []),
        ("y = Cast <to = 7> (s)", {}, []),
        ("y = my.Relu(s)", {}, []),
    ],
)
def test_functions_of_the_score(body: str, constants: dict[str, Constant], said: list[str]) -> None:
    assert peel(elementwise.peel_elementwise, body, **constants) == said


@pytest.mark.parametrize(
    ("approximate", "said"),
    [
        ("none", ["((score * 0.5) * (1 + erf((score * 0.707107)))) on s"]),
        (
            "tanh",
            ["((score * 0.5) * (1 + tanh((0.797885 * (score + (0.044715 * (score * (score * score)))))))) on s"],
        ),
        ("other", []),
    ],
)
def test_gelu(approximate: str, said: list[str]) -> None:
    assert peel(elementwise.peel_elementwise, f'y = Gelu <approximate = "{approximate}"> (s)', opset=20) == said


def test_a_division_by_rounded_scores_is_refused() -> None:
    body = "u = QuantizeLinear(s, c, z) v = DequantizeLinear(u, c, z) y = Div(s, v)"
    with pytest.raises(NoMatch, match="divided by rounded scores"):
        peel(elementwise.peel_elementwise, body, c=0.5, z=ZERO_POINT)
