"""What follows a product, in words."""

from __future__ import annotations

import math

import pytest

from onnx_fa.spec.expr import SCORE, Apply, Float, ScoreExpr, Tensor
from onnx_fa.spec.linear import LinearSpec
from onnx_fa.spec.linear_words import follows
from onnx_fa.spec.terms import TensorArg

COLUMNS, WHOLE = TensorArg((8,), "f32"), TensorArg((4, 8), "f32")
BIASED = Apply("Add", SCORE, Tensor(0))


def gelu(x: ScoreExpr, *, half_behind: bool = False) -> ScoreExpr:
    inner = Apply("Add", Float(1.0), Apply("Erf", Apply("Mul", x, Float(math.sqrt(0.5)))))
    if half_behind:
        return Apply("Mul", Apply("Mul", x, inner), Float(0.5))
    return Apply("Mul", Apply("Mul", Float(0.5), x), inner)


def tanh_gelu(x: ScoreExpr) -> ScoreExpr:
    cube = Apply("Mul", Float(0.044715), Apply("Pow", x, Float(3.0)))
    inner = Apply("Tanh", Apply("Mul", Float(0.798), Apply("Add", x, cube)))
    return Apply("Mul", Apply("Mul", Float(0.5), x), Apply("Add", Float(1.0), inner))


@pytest.mark.parametrize(
    ("then", "words"),
    [
        (SCORE, []),
        (BIASED, ["bias"]),
        (Apply("Add", Tensor(0), SCORE), ["bias"]),
        (Apply("Add", BIASED, Tensor(1)), ["bias", "residual"]),
        (gelu(BIASED), ["bias", "gelu"]),
        (gelu(BIASED, half_behind=True), ["bias", "gelu"]),
        (tanh_gelu(BIASED), ["bias", "gelu"]),
        (Apply("Mul", Apply("Mul", SCORE, Apply("Sigmoid", SCORE)), Tensor(1)), ["silu", "gate"]),
        (Apply("Mul", SCORE, Apply("Mul", Tensor(1), Apply("Sigmoid", Tensor(1)))), ["gate"]),
        (Apply("Max", BIASED, Float(0.0)), ["bias", "relu"]),
        (Apply("Min", Apply("Max", SCORE, Float(-1.0)), Float(1.0)), ["clip"]),
        (Apply("Mul", Float(30.0), Apply("Tanh", Apply("Div", SCORE, Float(30.0)))), ["softcap"]),
        (Apply("Mul", SCORE, Tensor(0)), ["scale of each column"]),
        (Apply("Add", SCORE, SCORE), ["function of add"]),
    ],
)
def test_follows(then: ScoreExpr, words: list[str]) -> None:
    assert follows(LinearSpec((4,), 16, 8, "f32", then=then, tensors=(COLUMNS, WHOLE))) == words


def test_several_results() -> None:
    spec = LinearSpec((4,), 8, 8, "f32", then=BIASED, tensors=(COLUMNS,), parts=(4, 2, 2))
    assert follows(spec) == ["bias", "split in 3"]
