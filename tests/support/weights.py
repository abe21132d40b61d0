"""Spellings of weights that stand in place of a softmax: an axis of `spellings.py`, as values of `softmax`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Weigh = Callable[[Any, str], str]
"""(a graph under construction, scores) -> weights of the same shape"""


def _squared(g: Any, s: str) -> str:
    r = g.op("Relu", s)
    return str(g.op("Mul", r, r))


def _gelu(g: Any, s: str) -> str:
    bent = g.op("Add", g.op("Erf", g.op("Div", s, g.const(2**0.5))), g.const(1.0))
    return str(g.op("Mul", g.op("Mul", s, bent), g.const(0.5)))


def _gelu_by_tanh(g: Any, s: str) -> str:
    cubed = g.op("Mul", g.op("Pow", s, g.const(3.0)), g.const(0.044715))
    bent = g.op("Tanh", g.op("Mul", g.op("Add", s, cubed), g.const(0.79788456)))
    return str(g.op("Mul", g.op("Mul", s, g.const(0.5)), g.op("Add", bent, g.const(1.0))))


def _summed(g: Any, kind: str, x: str) -> str:
    by_input = g.opset >= 18 or kind == "ReduceSum"
    last = [g.const([-1], np.int64)] if by_input else []
    return str(g.op(kind, x, *last, keepdims=1, **({} if by_input else {"axes": [-1]})))


def _by_sum(g: Any, s: str) -> str:
    p = g.op("Sigmoid", s)
    return str(g.op("Div", p, g.op("Add", _summed(g, "ReduceSum", p), g.const(1e-6))))


def _by_size(g: Any, s: str) -> str:
    p = g.op("Tanh", s)
    total = g.op("Max", g.const(1e-3), _summed(g, "ReduceSum", g.op("Abs", p)))
    return str(g.op("Mul", g.op("Reciprocal", total), p))


def _normalised(g: Any, s: str) -> str:
    """As torch.nn.functional.normalize(p=1) is exported."""
    p = g.op("Pow", g.op("Relu", s), g.const(2.0))
    total = g.op("Clip", _summed(g, "ReduceL1", p), g.const(1e-12))
    return str(g.op("Div", p, g.op("Expand", total, g.op("Shape", p))))


def _over_keys(g: Any, s: str) -> str:
    keys = g.op("Cast", g.op("Gather", g.op("Shape", s), g.const(-1, np.int64)), to=1)
    return str(g.op("Div", g.op("Relu", s), keys))


WEIGHTS: dict[str, Weigh] = {
    "sigmoid": lambda g, s: g.op("Sigmoid", s),
    "sigmoid_less": lambda g, s: g.op("Sigmoid", g.op("Sub", s, g.const(np.log(9.0)))),
    "relu": lambda g, s: g.op("Relu", s),
    "relu_by_max": lambda g, s: g.op("Max", s, g.const(0.0)),
    "relu_over_length": lambda g, s: g.op("Mul", g.op("Relu", s), g.const(1 / 9)),
    "relu_over_keys": _over_keys,
    "squared_relu": _squared,
    "relu_to_2": lambda g, s: g.op("Pow", g.op("Relu", s), g.const(2.0)),
    "swish": lambda g, s: g.op("Mul", s, g.op("Sigmoid", s)),
    "quick_gelu": lambda g, s: g.op("Mul", g.op("Sigmoid", g.op("Mul", s, g.const(1.702))), s),
    "gelu": _gelu,
    "gelu_by_tanh": _gelu_by_tanh,
    "tanh": lambda g, s: g.op("Tanh", s),
    "softplus": lambda g, s: g.op("Softplus", s),
    "elu_and_one": lambda g, s: g.op("Add", g.op("Elu", s), g.const(1.0)),
    "leaky_relu": lambda g, s: g.op("LeakyRelu", s, alpha=0.1),
    "hard_sigmoid": lambda g, s: g.op("HardSigmoid", s),
    "square": lambda g, s: g.op("Mul", s, s),
    "score_by_size": lambda g, s: g.op("Div", s, g.op("Add", _summed(g, "ReduceL1", s), g.const(1e-6))),
    "sigmoid_by_sum": _by_sum,
    "tanh_by_size": _by_size,
}
"""Functions of one score, and what is divided by its own sum."""
CLIPPED: dict[str, Weigh] = {
    "relu_by_clip": lambda g, s: g.op("Clip", s, g.const(0.0)),
    "squared_relu_normalised": _normalised,
}
"""onnxruntime's Clip makes the largest number of infinity, also where it has no upper bound: not held to that."""
