"""A little language for what an attention does to one score: any elementwise function of the score, of its position, and of
small tensors. With it a mask or bias that the graph computes from indices needs no Sq x Skv tensor.

An expression is a tree of frozen nodes, which are equal where they are written alike:

    SCORE                           the score
    Q, K                            the query's and the key's position, counted from 0
    SQ, SKV                         the lengths
    Tensor(n)                       the term's n-th tensor, broadcast (right-aligned) to (*B, Hq, Sq, Skv)
    Float(1.5), Int(3), Bool(True)  constants
    Apply(op, argument, ...)        an op of OPS, with the meaning of the ONNX operator of that name

Kinds are "float" (the type attention is computed in), "int" (int64) and "bool"; nothing is converted except by ToFloat, ToInt
and ToBool. An expression prints itself as nested tuples, which have the heads and the order of its JSON (expr_json.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Kind = Literal["float", "int", "bool"]
Axis = Literal["q", "k"]
"""The queries or the keys."""
Array = npt.NDArray[Any]


class ScoreExpr:
    """A node of an expression."""

    __slots__ = ()

    @property
    def written(self) -> tuple[Any, ...]:
        """The head that names the node, and behind it its numbers or its arguments."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return repr(self.written)


@dataclass(frozen=True, slots=True, repr=False)
class Score(ScoreExpr):
    """The score."""

    @property
    def written(self) -> tuple[Any, ...]:
        return ("score",)


@dataclass(frozen=True, slots=True, repr=False)
class Position(ScoreExpr):
    """Where the query or the key stands, counted from 0."""

    axis: Axis

    @property
    def written(self) -> tuple[Any, ...]:
        return (self.axis,)


@dataclass(frozen=True, slots=True, repr=False)
class Length(ScoreExpr):
    """How many queries there are, or keys."""

    axis: Axis

    @property
    def written(self) -> tuple[Any, ...]:
        return ("Sq",) if self.axis == "q" else ("Skv",)


@dataclass(frozen=True, slots=True, repr=False)
class Tensor(ScoreExpr):
    """An element of the term's tensor of that number."""

    index: int

    @property
    def written(self) -> tuple[Any, ...]:
        return ("tensor", self.index)


@dataclass(frozen=True, slots=True, repr=False)
class Float(ScoreExpr):
    """A constant of the type that attention is computed in."""

    value: float

    @property
    def written(self) -> tuple[Any, ...]:
        return ("f", self.value)


@dataclass(frozen=True, slots=True, repr=False)
class Int(ScoreExpr):
    """A constant of int64."""

    value: int

    @property
    def written(self) -> tuple[Any, ...]:
        return ("i", self.value)


@dataclass(frozen=True, slots=True, repr=False)
class Bool(ScoreExpr):
    """A truth value."""

    value: bool

    @property
    def written(self) -> tuple[Any, ...]:
        return ("b", self.value)


@dataclass(frozen=True, slots=True, repr=False, init=False, eq=False)
class Apply(ScoreExpr):
    """An op and its arguments: `Apply("Add", x, y)`, matched by `Apply("Add", (x, y))`."""

    op: str
    args: tuple[ScoreExpr, ...]
    _hash: int = field(init=False)
    """Known from the start: expressions are looked up again and again, and each is a part of larger ones."""

    def __init__(self, op: str, *args: ScoreExpr) -> None:
        object.__setattr__(self, "op", op)
        object.__setattr__(self, "args", args)
        object.__setattr__(self, "_hash", hash((op, args)))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Apply):
            return NotImplemented
        return self._hash == other._hash and self.op == other.op and self.args == other.args

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[Apply], tuple[Any, ...]]:
        return Apply, (self.op, *self.args)  # another process hashes strings otherwise

    @property
    def written(self) -> tuple[Any, ...]:
        return (self.op, *self.args)


Constant = Float | Int | Bool
SCORE = Score()
Q, K = Position("q"), Position("k")
SQ, SKV = Length("q"), Length("k")


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
    match expr:
        case Score() | Float():
            return "float"
        case Position() | Length() | Int():
            return "int"
        case Bool():
            return "bool"
        case Tensor(index):
            if not 0 <= index < len(tensors):
                raise ValueError(f"an expression reads tensor {index} of {len(tensors)}")
            return tensors[index]
        case Apply(name, args):
            return _kind_of_op(name, [kind_of(a, tensors) for a in args])
    raise ValueError(f"{expr} has no kind")


def _kind_of_op(name: str, have: Sequence[Kind]) -> Kind:
    """The kind that an op makes of arguments of some kinds. Raises ValueError where it takes none such."""
    op = OPS.get(name)
    if op is None or len(have) != len(op.kinds):
        raise ValueError(f"{name!r} with {len(have)} arguments is not an op of score expressions")
    for want, kind in zip(op.kinds, have, strict=True):
        fits = want in ("any", "same", kind) or (want == "number" and kind != "bool")
        if not fits:
            raise ValueError(f"{name} of a {kind}, where it takes a {want}")
    alike = [k for want, k in zip(op.kinds, have, strict=True) if want in ("same", "number")]
    if len(set(alike)) > 1:
        raise ValueError(f"{name} of different kinds: {', '.join(alike)}")
    return op.result or have[-1]


def parts(expr: ScoreExpr) -> Iterator[ScoreExpr]:
    """The expression and everything in it, what stands in front first, with repeats."""
    stack = [expr]
    while stack:
        part = stack.pop()
        yield part
        if isinstance(part, Apply):
            stack += reversed(part.args)


def leaves(expr: ScoreExpr) -> Iterator[ScoreExpr]:
    """Every leaf of `expr`, left to right, with repeats."""
    return (part for part in parts(expr) if not isinstance(part, Apply))


def tensors_of(expr: ScoreExpr) -> set[int]:
    """The numbers of the tensors that `expr` reads."""
    return {leaf.index for leaf in leaves(expr) if isinstance(leaf, Tensor)}


MOST_NODES = 1000
"""Nodes that an expression may have, parts that occur twice counted twice: it is walked as a tree."""


def is_small(expr: ScoreExpr) -> bool:
    """Whether an expression has no more than MOST_NODES nodes."""
    return sum(1 for _ in islice(parts(expr), MOST_NODES + 1)) <= MOST_NODES


def substitute(expr: ScoreExpr, change: Callable[[ScoreExpr], ScoreExpr]) -> ScoreExpr:
    """`expr` with every leaf replaced by `change(leaf)`."""
    if isinstance(expr, Apply):
        return Apply(expr.op, *(substitute(a, change) for a in expr.args))
    return change(expr)


def compose(outer: ScoreExpr, inner: ScoreExpr) -> ScoreExpr:
    """`outer` of the score that `inner` gives. Tensors of both must already be numbered together."""
    return substitute(outer, lambda leaf: inner if leaf == SCORE else leaf)


def evaluate(expr: ScoreExpr, score: Array, tensors: Sequence[Array]) -> Array:
    """`expr` for scores (..., Sq, Skv), in float64 and int64."""
    sq, skv = score.shape[-2:]
    known: dict[ScoreExpr, Array] = {
        SCORE: score,
        Q: np.arange(sq, dtype=np.int64)[:, None],
        K: np.arange(skv, dtype=np.int64)[None, :],
        SQ: np.asarray(sq, np.int64),
        SKV: np.asarray(skv, np.int64),
    }

    def run(e: ScoreExpr) -> Array:
        match e:
            case Apply(op, args):
                return np.asarray(OPS[op].run(*(run(a) for a in args)))
            case Tensor(index):
                x = tensors[index]
                return x.astype(bool) if x.dtype == bool else x.astype(np.int64 if x.dtype.kind in "iu" else np.float64)
            case Float(value):
                return np.asarray(value, np.float64)
            case Int(value):
                return np.asarray(value, np.int64)
            case Bool(value):
                return np.asarray(value, bool)
        return known[e]

    with np.errstate(all="ignore"):
        return run(expr)


_INFIX = {
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


def words(expr: ScoreExpr) -> str:
    """The expression as it would be written by hand, for reports."""
    match expr:
        case Apply(op, (a, b)) if op in _INFIX:
            return f"({words(a)} {_INFIX[op]} {words(b)})"
        case Apply(op, args):
            return f"{op.lower()}({', '.join(map(words, args))})"
        case Tensor(index):
            return f"t{index}"
        case Float(value):
            return f"{value:g}"
        case Int(value) | Bool(value):
            return str(value)
    return str(expr.written[0])
