"""What a graph does to each number of a product, which a kernel can do before it writes it: biases, activations, residuals, gates.

From the product on, ops of single numbers are followed as long as what they read beside it is a constant or a tensor of as many
numbers. Of the values found so the last counts for which nothing else reads what lies in between."""

from __future__ import annotations

import math
from collections.abc import Callable, Set
from dataclasses import dataclass, field

import onnx

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of
from onnx_fa.spec.expr import SCORE, Apply, Float, ScoreExpr, Tensor, is_small
from onnx_fa.spec.terms import Dim, FloatType, TensorArg

_MOST_NODES = 32
"""Longer chains are not products' ends."""
_UNARY = (
    *(
        "Abs",
        "Ceil",
        "Cos",
        "Erf",
        "Exp",
        "Floor",
        "Log",
        "Neg",
        "Reciprocal",
        "Relu",
        "Round",
        "Sigmoid",
        "Sign",
        "Sin",
    ),
    *("Softplus", "Sqrt", "Tanh"),
)
_BINARY = ("Add", "Sub", "Mul", "Div", "Pow", "Min", "Max")


@dataclass(frozen=True)
class Epilogue:
    """`value` is what the site gives, `inputs` are its `tensors` in the graph. It stands for the nodes at `places`, of which the
    last makes its value."""

    value: str
    then: ScoreExpr
    tensors: tuple[TensorArg, ...]
    inputs: tuple[str, ...]
    places: tuple[int, ...]


def epilogue_of(
    g: GraphWriter, y: str, lead: tuple[Dim, ...], dtype: FloatType, taken: Set[int], *, numbers: bool = False
) -> Epilogue | None:
    """What follows the product y (*lead, N), by nodes at places that are not `taken`; `numbers`: single ones of the run may be its
    tensors, too. None where nothing does."""
    shape = g.shape(y)
    if shape is None or None in shape or not isinstance(shape[-1], int) or g.is_output(y):
        return None
    cone = _Cone(g, shape, g.kind(y), numbers)
    cone.follow(y, taken)
    for value in reversed(cone.order):
        inner = cone.inside(value)
        if inner is None:
            continue
        then, columns = _numbered(cone.exprs[value])
        inputs = tuple(cone.tensors[i] for i in columns)
        shapes = {**dict.fromkeys(cone.columns, (shape[-1],)), **dict.fromkeys(cone.single, ())}
        tensors = tuple(TensorArg(shapes.get(n, (*lead, shape[-1])), dtype) for n in inputs)
        return Epilogue(value, then, tensors, inputs, tuple(cone.places[v] for v in inner))
    return None


def _numbered(expr: ScoreExpr) -> tuple[ScoreExpr, list[int]]:
    """The expression with its tensors numbered from 0 in the order in which it reads them, and what they were."""
    found: list[int] = []

    def renumber(e: ScoreExpr) -> ScoreExpr:
        match e:
            case Apply(op, args):
                return Apply(op, *map(renumber, args))
            case Tensor(index):
                if index not in found:
                    found.append(index)
                return Tensor(found.index(index))
        return e

    return renumber(expr), found


@dataclass
class _Cone:
    """Values that are functions of the single numbers of a product, of this shape and ONNX type."""

    g: GraphWriter
    shape: list[int | str | None]
    kind: int
    numbers: bool
    exprs: dict[str, ScoreExpr] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    """Where the nodes stand that make the values."""
    order: list[str] = field(default_factory=list)
    tensors: list[str] = field(default_factory=list)
    columns: set[str] = field(default_factory=set)
    """Those of the tensors that have a number for each column."""
    single: set[str] = field(default_factory=set)
    """And those that have one for all."""

    def follow(self, y: str, taken: Set[int]) -> None:
        """Finds all values that come of y, in the graph's order."""
        self.exprs[y] = SCORE
        left, seen = set(self.g.readers(y)), set(taken)
        while (left := left - seen) and len(self.order) < _MOST_NODES:
            place = min(left)
            seen.add(place)
            node = self.g.graph.node[place]
            expr = self._expression(node)
            if expr is None or not is_small(expr):
                continue
            (value,) = node.output
            self.exprs[value], self.places[value] = expr, place
            self.order.append(value)
            left.update(self.g.readers(value))

    def inside(self, value: str) -> list[str] | None:
        """The values that lead from the product to this one, itself the last; None where something else reads one of them."""
        needed, left = set[str](), [value]
        while left:
            for name in self.g.graph.node[self.places[left.pop()]].input:
                if name in self.exprs and name not in needed:
                    needed.add(name)
                    left += [name] * (name in self.places)
        makers = {self.places[v] for v in (*needed, value) if v in self.places}
        for name in needed:
            if self.g.is_output(name) or not makers.issuperset(self.g.readers(name)):
                return None
        return [v for v in self.order if v in needed or v == value]

    def _expression(self, node: onnx.NodeProto) -> ScoreExpr | None:
        """What a node computes of a number of the product, if that is all it does."""
        op, make = op_of(node), _MADE.get(op_of(node))
        if len(node.output) != 1 or self.g.kind(node.output[0]) not in (0, self.kind):
            return None
        if op == "Clip":
            return self._clip(node)
        if op not in _BINARY and op not in _UNARY and make is None:
            return None
        if len(node.input) != (2 if op in _BINARY else 1):
            return None
        args = [self._operand(name) for name in node.input]
        if any(a is None for a in args):
            return None
        known = [a for a in args if a is not None]
        return make(node, known[0]) if make is not None else Apply(op, *known)

    def _operand(self, name: str) -> ScoreExpr | None:
        if name in self.exprs:
            return self.exprs[name]
        g, shape = self.g, self.g.shape(name)
        if shape is None or g.kind(name) != self.kind:
            return None
        if g.is_constant(name) and all(d == 1 for d in shape) and len(shape) <= len(self.shape):
            number = g.array(name)
            return None if number is None else Float(float(number.reshape(())))
        if self.numbers and g.is_one_number(name):
            self.single.add(name)
        elif g.is_row(name, self.shape):
            self.columns.add(name)
        elif shape != self.shape:
            return None
        if name not in self.tensors:
            self.tensors.append(name)
        return Tensor(self.tensors.index(name))

    def _clip(self, node: onnx.NodeProto) -> ScoreExpr | None:
        low, high = [*node.input[1:], "", ""][:2]
        expr = self.exprs.get(node.input[0])
        for op, name, default in (("Max", low, attr_of(node, "min", None)), ("Min", high, attr_of(node, "max", None))):
            bound = None if default is None else Float(float(default))
            if name:
                found = self._operand(name)
                if not isinstance(found, Float):
                    return None
                bound = found
            if expr is not None and bound is not None:
                expr = Apply(op, expr, bound)
        return expr


def _gelu(node: onnx.NodeProto, x: ScoreExpr) -> ScoreExpr:
    if attr_of(node, "approximate", b"none") == b"tanh":
        cube = Apply("Mul", Float(0.044715), Apply("Pow", x, Float(3.0)))
        inner = Apply("Tanh", Apply("Mul", Float(math.sqrt(2 / math.pi)), Apply("Add", x, cube)))
    else:
        inner = Apply("Erf", Apply("Mul", x, Float(math.sqrt(0.5))))
    return Apply("Mul", Apply("Mul", Float(0.5), x), Apply("Add", Float(1.0), inner))


def _hard_sigmoid(node: onnx.NodeProto, x: ScoreExpr) -> ScoreExpr:
    return _ramp(x, attr_of(node, "alpha", 0.2), attr_of(node, "beta", 0.5))


def _ramp(x: ScoreExpr, slope: float, shift: float) -> ScoreExpr:
    line = Apply("Add", Apply("Mul", Float(slope), x), Float(shift))
    return Apply("Max", Float(0.0), Apply("Min", Float(1.0), line))


def _elu(node: onnx.NodeProto, x: ScoreExpr) -> ScoreExpr:
    below = Apply("Mul", Float(attr_of(node, "alpha", 1.0)), Apply("Sub", Apply("Exp", x), Float(1.0)))
    return Apply("Where", Apply("Less", x, Float(0.0)), below, x)


_MADE: dict[str, Callable[[onnx.NodeProto, ScoreExpr], ScoreExpr]] = {
    "Elu": _elu,
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": lambda node, x: Apply("Mul", x, _ramp(x, 1 / 6, 0.5)),
    "Identity": lambda node, x: x,
    "LeakyRelu": lambda node, x: Apply(
        "Where", Apply("Less", x, Float(0.0)), Apply("Mul", Float(attr_of(node, "alpha", 0.01)), x), x
    ),
}
POINTWISE = (*_UNARY, *_BINARY, *_MADE, "Clip")
"""Operators that compute each number of their result from single numbers."""
