"""A little language for what an attention does to one score: any elementwise function of the score, of its position, and of
small tensors. With it a mask or bias that the graph computes from indices needs no Sq x Skv tensor.

An expression is a nested tuple, ready for JSON:

    ("score",)  ("q",)  ("k",)          the score; the query's and the key's position, counted from 0
    ("Sq",)  ("Skv",)                   the lengths
    ("tensor", n)                       the term's n-th tensor, broadcast (right-aligned) to (*B, Hq, Sq, Skv)
    ("f", 1.5)  ("i", 3)  ("b", True)   constants
    (op, argument, ...)                 an op of OPS, with the meaning of the ONNX operator of that name

Kinds are "float" (the type attention is computed in), "int" (int64) and "bool"; nothing is converted except by ToFloat, ToInt
and ToBool.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

ScoreExpr = tuple[Any, ...]
Kind = Literal["float", "int", "bool"]
Array = npt.NDArray[Any]

SCORE: ScoreExpr = ("score",)
Q: ScoreExpr = ("q",)
K: ScoreExpr = ("k",)

LEAVES: Mapping[str, Kind | None] = {
    "score": "float",
    "q": "int",
    "k": "int",
    "Sq": "int",
    "Skv": "int",
    "tensor": None,
    "f": "float",
    "i": "int",
    "b": "bool",
}

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind == "i" and b.dtype.kind == "i":  # C's division, towards zero
        quotient: Array = np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))
        return quotient
    return np.asarray(a / b)


@dataclass(frozen=True)
class Op:
    """`kinds`: of the arguments, "number" for float or int alike, "same" for any kind as long as all agree;
    `result`: None for that of the last argument."""

    kinds: tuple[str, ...]
    result: Kind | None
    run: Callable[..., Any]


def _table() -> dict[str, Op]:
    table: dict[str, Op] = {}
    floats: dict[str, Callable[..., Any]] = {
        "Exp": np.exp,
        "Log": np.log,
        "Sqrt": np.sqrt,
        "Reciprocal": lambda x: 1 / x,
        "Tanh": np.tanh,
        "Sigmoid": lambda x: np.exp(-np.logaddexp(0, -x)),
        "Erf": _erf,
        "Sin": np.sin,
        "Cos": np.cos,
        "Floor": np.floor,
        "Ceil": np.ceil,
        "Round": np.rint,
        "Softplus": lambda x: np.logaddexp(0, x),
    }
    table |= {name: Op(("float",), "float", run) for name, run in floats.items()}
    table["Pow"] = Op(("float", "float"), "float", np.power)
    numbers: dict[str, Callable[..., Any]] = {
        "Neg": np.negative,
        "Abs": np.abs,
        "Sign": np.sign,
        "Relu": lambda x: np.maximum(x, 0),
    }
    table |= {name: Op(("number",), None, run) for name, run in numbers.items()}
    pairs: dict[str, Callable[..., Any]] = {
        "Add": np.add,
        "Sub": np.subtract,
        "Mul": np.multiply,
        "Div": _divide,
        "Min": np.minimum,
        "Max": np.maximum,
    }
    table |= {name: Op(("number", "number"), None, run) for name, run in pairs.items()}
    table["Mod"] = Op(("int", "int"), "int", np.mod)
    compares: dict[str, Callable[..., Any]] = {
        "Less": np.less,
        "LessOrEqual": np.less_equal,
        "Greater": np.greater,
        "GreaterOrEqual": np.greater_equal,
    }
    table |= {name: Op(("number", "number"), "bool", run) for name, run in compares.items()}
    table["Equal"] = Op(("same", "same"), "bool", np.equal)
    table |= {
        name: Op(("bool", "bool"), "bool", run)
        for name, run in {"And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor}.items()
    }
    table["Not"] = Op(("bool",), "bool", np.logical_not)
    table["IsNaN"] = Op(("float",), "bool", np.isnan)
    table["Where"] = Op(("bool", "same", "same"), None, np.where)
    table["ToFloat"] = Op(("any",), "float", lambda x: np.asarray(x).astype(np.float64))
    table["ToInt"] = Op(("any",), "int", lambda x: np.asarray(x).astype(np.int64))
    table["ToBool"] = Op(("any",), "bool", lambda x: np.asarray(x) != 0)
    return table


OPS: Mapping[str, Op] = _table()


def kind_of(expr: ScoreExpr, tensors: Sequence[Kind]) -> Kind:
    """The kind of `expr`, whose tensors have the kinds given. Raises ValueError, naming the op, where kinds do not fit."""
    head = expr[0]
    if head == "tensor":
        if not 0 <= expr[1] < len(tensors):
            raise ValueError(f"an expression reads tensor {expr[1]} of {len(tensors)}")
        return tensors[expr[1]]
    if head in LEAVES:
        kind = LEAVES[head]
        assert kind is not None
        return kind
    op = OPS.get(head)
    if op is None or len(expr) - 1 != len(op.kinds):
        raise ValueError(f"{head!r} with {len(expr) - 1} arguments is not an op of score expressions")
    have = [kind_of(a, tensors) for a in expr[1:]]
    for want, kind in zip(op.kinds, have, strict=True):
        fits = want in ("any", "same", kind) or (want == "number" and kind != "bool")
        if not fits:
            raise ValueError(f"{head} of a {kind}, where it takes a {want}")
    alike = [k for want, k in zip(op.kinds, have, strict=True) if want in ("same", "number")]
    if len(set(alike)) > 1:
        raise ValueError(f"{head} of different kinds: {', '.join(alike)}")
    return op.result or have[-1]


def leaves(expr: ScoreExpr) -> Iterator[ScoreExpr]:
    """Every leaf of `expr`, left to right, with repeats."""
    if expr[0] in LEAVES:
        yield expr
    else:
        for argument in expr[1:]:
            yield from leaves(argument)


MOST_NODES = 1000
"""Nodes that an expression may have, parts that occur twice counted twice: it is walked as a tree."""


def is_small(expr: ScoreExpr) -> bool:
    """Whether an expression has no more than MOST_NODES nodes."""
    stack, count = [expr], 0
    while stack and count <= MOST_NODES:
        x = stack.pop()
        count += 1
        if x[0] not in LEAVES:
            stack += (a for a in x[1:] if isinstance(a, tuple))
    return count <= MOST_NODES


def substitute(expr: ScoreExpr, change: Callable[[ScoreExpr], ScoreExpr]) -> ScoreExpr:
    """`expr` with every leaf replaced by `change(leaf)`."""
    if expr[0] in LEAVES:
        return change(expr)
    return (expr[0], *(substitute(a, change) for a in expr[1:]))


def compose(outer: ScoreExpr, inner: ScoreExpr) -> ScoreExpr:
    """`outer` of the score that `inner` gives. Tensors of both must already be numbered together."""
    return substitute(outer, lambda leaf: inner if leaf == SCORE else leaf)


def evaluate(expr: ScoreExpr, score: Array, tensors: Sequence[Array]) -> Array:
    """`expr` for scores (..., Sq, Skv), in float64 and int64."""
    sq, skv = score.shape[-2:]
    known: dict[str, Array] = {
        "score": score,
        "q": np.arange(sq, dtype=np.int64)[:, None],
        "k": np.arange(skv, dtype=np.int64)[None, :],
        "Sq": np.asarray(sq, np.int64),
        "Skv": np.asarray(skv, np.int64),
    }

    def run(e: ScoreExpr) -> Array:
        match e[0]:
            case "tensor":
                x = tensors[e[1]]
                return x.astype(bool) if x.dtype == bool else x.astype(np.int64 if x.dtype.kind in "iu" else np.float64)
            case "f":
                return np.asarray(e[1], np.float64)
            case "i":
                return np.asarray(e[1], np.int64)
            case "b":
                return np.asarray(e[1], bool)
            case name if name in known:
                return known[name]
        return np.asarray(OPS[e[0]].run(*(run(a) for a in e[1:])))

    with np.errstate(all="ignore"):
        return run(expr)


def words(expr: ScoreExpr) -> str:
    """The expression as it would be written by hand, for reports."""
    infix = {
        "Add": "+",
        "Sub": "-",
        "Mul": "*",
        "Div": "/",
        "Mod": "%",
        "Less": "<",
        "LessOrEqual": "<=",
        "Greater": ">",
        "GreaterOrEqual": ">=",
        "Equal": "==",
        "And": "and",
        "Or": "or",
        "Xor": "xor",
    }
    head = expr[0]
    if head == "tensor":
        return f"t{expr[1]}"
    if head in ("f", "i", "b"):
        return f"{expr[1]:g}" if head == "f" else str(expr[1])
    if head in LEAVES:
        return str(head)
    if head in infix:
        return f"({words(expr[1])} {infix[head]} {words(expr[2])})"
    return f"{head.lower()}({', '.join(map(words, expr[1:]))})"
