"""Random graphs around one softmax: scores from Q and K changed by a few ops, a softmax in any spelling over any axis, and what
may follow it. Whether it is an attention is for the matcher to say, but it must say something."""

from __future__ import annotations

import random

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h

from tests.support.spellings import Graph

B, H, S, L, D = 2, 3, 4, 5, 6


class _Drawn(Graph):
    def __init__(self, seed: int) -> None:
        super().__init__(18)
        self.rng = random.Random(seed)

    def axes(self, axis: int) -> str:
        return self.const([axis], np.int64)

    def number(self) -> str:
        return self.const(self.rng.choice([0.5, -1.0, 2.0, 1.0, 0.0, 1e-30]))

    def changed(self, x: str, most: int) -> str:
        for _ in range(self.rng.randint(0, most)):
            x = self.one_change(x)
        return x

    def one_change(self, x: str) -> str:
        kind = self.rng.choice(
            [
                "Mul",
                "Div",
                "Add",
                "Sub",
                "Neg",
                "Identity",
                "Tanh",
                "Cast",
                "Where",
                "Clip",
                "Abs",
                "Max",
                "Relu",
                "Dropout",
            ]
        )
        if kind in ("Mul", "Div", "Add", "Sub", "Max"):
            # Not by a small number: exponentials of larger scores overflow where the maximum is not taken out.
            return self.op(kind, x, self.const(0.5) if kind == "Div" else self.number())
        if kind == "Cast":
            return self.op("Cast", x, to=T.FLOAT)
        if kind == "Where":
            keep = self.const(np.random.default_rng(self.rng.randint(0, 9)).random((S, L)) < 0.7, bool)
            return self.op("Where", keep, x, self.const(self.rng.choice([-np.inf, -1e38, -1e4, 0.0])))
        if kind == "Clip":
            return self.op("Clip", x, self.const(-3.0), self.const(3.0))
        return self.op(kind, x)

    def reduced(self, kind: str, x: str, axis: int) -> str:
        way = self.rng.choice(["keep", "keep", "unsqueeze", "log"])
        if way == "unsqueeze":
            return self.op("Unsqueeze", self.op(kind, x, self.axes(axis), keepdims=0), self.axes(axis))
        return self.op(kind, x, self.axes(axis), keepdims=1)

    def softmax(self, x: str) -> str:
        """Probabilities, or exponentials whose division comes later, if it does."""
        axis = self.rng.choice([-1, -1, -1, -2, 1, 3])
        way = self.rng.choice(
            ["one", "log", "log changed", "lse", "lse spelled", "exp", "exp", "exp", "plain", "alone"]
        )
        self.normalised = way in ("one", "log", "log changed", "alone", "lse", "lse spelled")
        if way == "one":
            return self.op("Softmax", x, axis=axis)
        if way in ("log", "log changed"):
            y = self.op("LogSoftmax", x, axis=axis)
            return self.op("Exp", self.one_change(y) if way == "log changed" else y)
        if way == "alone":
            return self.op("LogSoftmax", x, axis=axis)
        if way == "lse":
            return self.op("Exp", self.op("Sub", x, self.reduced("ReduceLogSumExp", x, axis)))
        if way == "lse spelled":
            return self.op("Exp", self.op("Sub", x, self.op("Log", self.reduced("ReduceSum", self.op("Exp", x), axis))))
        y = x if way == "plain" else self.op("Sub", x, self.reduced("ReduceMax", x, self.rng.choice([axis, axis, -1])))
        e = self.op("Exp", self.changed(y, 1))
        top = self.changed(e, 1) if self.rng.random() < 0.3 else e
        total = self.reduced("ReduceSum", top, axis)
        for _ in range(self.rng.choice([0, 0, 1, 2])):
            total = self.op(self.rng.choice(["Add", "Max", "Mul"]), total, self.number())
        if self.rng.random() < 0.2:
            self.later = total
            return top
        return self.quotient(self.rng.choice([e, top, top]), total)

    later = ""
    normalised = False

    def quotient(self, x: str, total: str) -> str:
        self.normalised = True
        if self.rng.random() < 0.3:
            return self.op("Mul", x, self.op("Reciprocal", total))
        return self.op("Div", x, total)


def graph(seed: int) -> tuple[onnx.ModelProto, bool]:
    """A model, and whether it has a softmax: without one, exponentials are never divided by their sum. Now and then a softmax
    of the probabilities follows."""
    g = _Drawn(seed)
    q, k, v = (g.input(n, [B, H, (n == "q" and S) or L, D]) for n in "qkv")
    kt = g.op("Transpose", k, perm=[0, 1, 3, 2])
    score = g.changed(g.op("MatMul", q, kt), 3)
    p = g.changed(g.softmax(score), 2)
    if g.rng.random() < 0.1:
        p, g.normalised = g.op("Softmax", p, axis=-1), True
    out = g.op("MatMul", p, v) if g.rng.random() < 0.9 else p
    if g.later and g.rng.random() < 0.8:
        out = g.quotient(out, g.later)
    g.nodes.append(h.make_node("Identity", [out], ["o"], name="last"))
    return g.model({"o": ([None] * 4, T.FLOAT)}), g.normalised  # type: ignore[list-item]
