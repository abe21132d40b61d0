"""Attention without a softmax around what `weights.py` puts in its place: masks on the weights, shared sums, other products; and
what looks like it and is none."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h

from tests.support import weights
from tests.support.spellings import Graph
from tests.support.spellings import feeds as feeds
from tests.support.spellings_score import SKV, SQ, B, Builder, D, H, Site, in_place_of_softmax

MATCH: dict[str, Builder] = {
    name: in_place_of_softmax(weigh) for name, weigh in (weights.WEIGHTS | weights.CLIPPED).items()
}
REFUSE: dict[str, Builder] = {}
REASONS: dict[str, str] = {}
"""A part of the reason that must be given; nothing where nothing is to be reported."""
TRIANGLE = np.tril(np.ones((SQ, SKV)))


def _keep(g: Site) -> str:
    return g.input("mask", [B, 1, SQ, SKV], T.BOOL)


def _divided(g: Site, p: str, least: float = 1e-6) -> str:
    return g.op("Div", p, g.op("Max", g.reduce("ReduceSum", p), g.const(least)))


def _as_number(g: Site, keep: str) -> str:
    return g.op("Cast", keep, to=T.FLOAT)


MATCH |= {
    "kept by where": in_place_of_softmax(lambda g, s: g.op("Where", _keep(g), g.op("Sigmoid", s), g.const(0.0))),
    "dropped by where": in_place_of_softmax(lambda g, s: g.op("Where", _keep(g), g.const(0.0), g.op("Relu", s))),
    "times a mask": in_place_of_softmax(lambda g, s: g.op("Mul", g.op("Relu", s), _as_number(g, _keep(g)))),
    "times a triangle": in_place_of_softmax(lambda g, s: g.op("Mul", g.const(TRIANGLE), g.op("Sigmoid", s))),
    "times a triangle, tanh": in_place_of_softmax(lambda g, s: g.op("Mul", g.const(TRIANGLE), g.op("Tanh", s))),
    "softplus kept by where": in_place_of_softmax(
        lambda g, s: g.op("Where", _keep(g), g.op("Softplus", s), g.const(0.0))
    ),
    "gelu kept by where": in_place_of_softmax(
        lambda g, s: g.op("Where", _keep(g), weights.WEIGHTS["gelu"](g, s), g.const(0.0))
    ),
    "leaky kept by where": in_place_of_softmax(
        lambda g, s: g.op("Where", _keep(g), g.op("LeakyRelu", s), g.const(0.0))
    ),
    "cosine kept by where": in_place_of_softmax(lambda g, s: g.op("Where", _keep(g), g.op("Cos", s), g.const(0.0))),
    "causal swish over keys": in_place_of_softmax(  # Zhai et al. 2024, "Actions Speak Louder than Words", section 3.2
        lambda g, s: g.op("Mul", g.op("Div", weights.WEIGHTS["swish"](g, s), g.const(float(SKV))), g.const(TRIANGLE))
    ),
    "times decay": in_place_of_softmax(lambda g, s: g.op("Mul", g.op("Relu", s), g.input("m", [SQ, SKV]))),
    "times keys": in_place_of_softmax(lambda g, s: g.op("Mul", g.op("Relu", s), g.input("m", [B, 1, 1, SKV]))),
    "over lengths": in_place_of_softmax(
        lambda g, s: g.op("Div", g.op("Relu", s), g.const(1.0 + np.arange(SQ)[:, None]))
    ),
    "dropout": in_place_of_softmax(lambda g, s: g.op("Dropout", g.op("Relu", s))),
    "masked and divided": in_place_of_softmax(
        lambda g, s: _divided(g, g.op("Mul", g.op("Sigmoid", s), _as_number(g, _keep(g))))
    ),
    "divided and masked": in_place_of_softmax(
        lambda g, s: g.op("Mul", _divided(g, g.op("Sigmoid", s)), _as_number(g, _keep(g)))
    ),
    "masked twice": in_place_of_softmax(
        lambda g, s: g.op("Mul", g.const(TRIANGLE), g.op("Where", _keep(g), g.op("Relu", s), g.const(0.0)))
    ),
    "scores masked, swish": in_place_of_softmax(
        lambda g, s: weights.WEIGHTS["swish"](g, g.op("Where", _keep(g), s, g.const(-1e9)))
    ),
    "scores masked by -inf, leaky": in_place_of_softmax(
        lambda g, s: g.op("Elu", g.op("Where", _keep(g), s, g.const(-np.inf)))
    ),
    "capped": in_place_of_softmax(
        lambda g, s: g.op("Sigmoid", g.op("Mul", g.op("Tanh", g.op("Div", s, g.const(5.0))), g.const(5.0)))
    ),
    "bias of heads": in_place_of_softmax(
        lambda g, s: g.op("Sigmoid", g.op("Add", s, g.const(np.linspace(-2, 0, H).reshape(1, H, 1, 1))))
    ),
    "gelu as an op": in_place_of_softmax(lambda g, s: g.op("Gelu", s, approximate="tanh"), opset=20),
    "bias of pairs": in_place_of_softmax(
        lambda g, s: weights.WEIGHTS["squared_relu"](g, g.op("Add", s, g.input("m", [H, SQ, SKV])))
    ),
}


def _other(build: str) -> Builder:
    def made() -> onnx.ModelProto:
        g = Site()
        s = g.score()
        if build == "V from the left":
            p = g.op("Sigmoid", s)
            swap = [0, 1, 3, 2]
            out = g.op("MatMul", g.op("Transpose", g.v, perm=swap), g.op("Transpose", p, perm=swap))
            return g.done(g.op("Transpose", out, perm=swap))
        if build == "keys first":
            s = g.op("MatMul", g.k, g.op("Transpose", g.q, perm=[0, 1, 3, 2]))
            out = g.op("MatMul", g.op("Transpose", g.v, perm=[0, 1, 3, 2]), g.op("Relu", s))
            return g.done(g.op("Transpose", out, perm=[0, 1, 3, 2]))
        if build == "einsum":
            return g.done(g.op("Einsum", g.op("Relu", s), g.v, equation="bhij,bhje->bhie"))
        if build == "folded heads":
            p = g.op("Reshape", g.op("Relu", s), g.const([-1, SQ, SKV], np.int64))
            v = g.op("Reshape", g.v, g.const([B * H, SKV, 6], np.int64))
            return g.done(g.op("Reshape", g.op("MatMul", p, v), g.const([B, H, SQ, 6], np.int64)))
        assert build == "weights are an output", build
        p = g.op("Sigmoid", s)
        g.nodes.append(h.make_node("Identity", [g.times_v(p)], ["o"]))
        return g.model({"o": ([B, H, SQ, 6], T.FLOAT), p: ([B, H, SQ, SKV], T.FLOAT)})

    return made


for _name in ("V from the left", "keys first", "einsum", "folded heads", "weights are an output"):
    MATCH[_name] = _other(_name)


def _refuse(name: str, reason: str, build: Builder) -> None:
    REFUSE[name], REASONS[name] = build, reason


_refuse(
    "divided by the sum over the queries",
    "feeds ReduceSum",
    in_place_of_softmax(lambda g, s: (lambda p: g.op("Div", p, g.reduce("ReduceSum", p, axis=-2)))(g.op("Sigmoid", s))),
)
_refuse(
    "divided by the norm",
    "feeds ReduceL2",
    in_place_of_softmax(lambda g, s: (lambda p: g.op("Div", p, g.reduce("ReduceL2", p)))(g.op("Relu", s))),
)
_refuse(
    "divided by the largest",
    "feeds ReduceMax",
    in_place_of_softmax(lambda g, s: (lambda p: g.op("Div", p, g.reduce("ReduceMax", p)))(g.op("Relu", s))),
)
_refuse(
    "gated by the scores of another head",
    "computed from the scores",
    in_place_of_softmax(lambda g, s: g.op("Mul", g.op("Relu", s), g.reduce("ReduceMean", s))),
)
_refuse(
    "guarded against NaN",
    "several nodes",
    in_place_of_softmax(lambda g, s: (lambda p: g.op("Where", g.op("IsNaN", p), g.const(0.0), p))(g.op("Sigmoid", s))),
)
_refuse(
    "times weights, divided by their sum",
    "something else than their sum",
    in_place_of_softmax(lambda g, s: _divided(g, g.op("Mul", g.op("Relu", s), g.input("m", [SQ, SKV])))),
)
_refuse(
    "chosen by the score",
    "no known function",
    in_place_of_softmax(lambda g, s: g.op("Where", g.op("Less", s, g.const(0.0)), g.const(0.0), s)),
)
_refuse(
    "a fill that weighs more than anything",
    "no small number",
    in_place_of_softmax(lambda g, s: g.op("LeakyRelu", g.op("Where", _keep(g), s, g.const(-3.4028235e38)))),
)
_refuse("linear", "linear attention", in_place_of_softmax(lambda g, s: s))
_refuse("linear, scaled", "linear attention", in_place_of_softmax(lambda g, s: g.op("Mul", s, g.const(0.5))))
_refuse(
    "rows that sum to one twice",
    "sum",
    in_place_of_softmax(lambda g, s: _divided(g, _divided(g, g.op("Sigmoid", s)))),
)


def _layers(kind: str) -> Builder:
    """What is no attention, and of which nothing is said."""

    def build() -> onnx.ModelProto:
        g = Graph(18)
        x = g.input("q", [B, SQ, D])
        wide, narrow = g.const(np.ones((D, 16))), g.const(np.ones((16, D)))
        match kind:
            case "mlp of batches of weights":
                hidden = g.op("Relu", g.op("MatMul", x, g.const(np.ones((B, D, 16)))))
                out = g.op("MatMul", hidden, g.const(np.ones((B, 16, D))))
            case "weights made of weights":
                made = g.op("Tanh", g.op("Mul", wide, g.const(0.1)))
                out = g.op("MatMul", g.op("Relu", g.op("MatMul", x, made)), narrow)
            case "squeeze and excite":
                hidden = g.op("Relu", g.op("MatMul", g.op("ReduceMean", x, g.const([1], np.int64)), wide))
                out = g.op("Mul", x, g.op("Sigmoid", g.op("MatMul", hidden, narrow)))
            case "gated product":
                y = g.input("k", [B, SQ, D])
                out = g.op("Mul", x, g.op("Sigmoid", g.op("MatMul", y, g.const(np.ones((D, D))))))
            case "scores of two inputs, then a layer":
                y = g.input("k", [B, 16, D])
                p = g.op("Sigmoid", g.op("MatMul", x, g.op("Transpose", y, perm=[0, 2, 1])))
                out = g.op("MatMul", p, narrow)
            case _:
                assert kind == "shared V", kind
                y = g.input("k", [B, 16, D])
                p = g.op("Sigmoid", g.op("MatMul", x, g.op("Transpose", y, perm=[0, 2, 1])))
                out = g.op("MatMul", p, g.input("v", [16, D]))
        g.nodes.append(h.make_node("Identity", [out], ["o"]))
        return g.model({"o": ([B, SQ, D], T.FLOAT)})

    return build


for _name in (
    *("mlp of batches of weights", "weights made of weights", "squeeze and excite", "gated product"),
    *("scores of two inputs, then a layer", "shared V"),
):
    _refuse(_name, "V has no batch rows" if _name == "shared V" else "", _layers(_name))
