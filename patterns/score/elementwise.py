"""Score layer of last resort: any elementwise function of the score, of constants and of tensors that broadcast to it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import onnx_ir as ir

from onnx_fa.graph.ops import attr_float, op_of, typed_attr
from onnx_fa.graph.view import FLOATS, GraphView
from onnx_fa.match import Map, NoMatch, Peel
from onnx_fa.patterns.quant.rounding import read_rounding, read_steps
from onnx_fa.spec.expr import OPS, SCORE, Apply, Bool, Float, Int, Kind, ScoreExpr, Tensor, is_small, kind_of
from onnx_fa.spec.terms import GRIDS

_UNARY = frozenset(
    "Exp Log Sqrt Reciprocal Tanh Sigmoid Erf Sin Cos Floor Ceil Round Softplus Neg Abs Sign Relu Not IsNaN".split()
)
_BINARY = frozenset("Add Sub Mul Div Pow Less LessOrEqual Greater GreaterOrEqual Equal And Or Xor".split())
_FOLDED = {"Min": "Min", "Max": "Max", "Sum": "Add"}
_WRAP = ("Add", "Sub", "Mul", "Div", "Neg", "Abs", "Sum")
_MAX_ROOTS = 16
"""At most this many values further up are tried as the score."""
_MAX_NODES = 64
"""A function of the score is read from at most this many nodes."""


def _f(x: float) -> ScoreExpr:
    return Float(float(x))


def _leaky(node: ir.Node, x: ScoreExpr) -> ScoreExpr:
    return Apply("Where", Apply("Less", x, _f(0)), Apply("Mul", x, _f(attr_float(node, "alpha", 0.01))), x)


def _elu(node: ir.Node, x: ScoreExpr) -> ScoreExpr:
    below = Apply("Mul", Apply("Sub", Apply("Exp", Apply("Min", x, _f(0))), _f(1)), _f(attr_float(node, "alpha", 1.0)))
    return Apply("Where", Apply("Less", x, _f(0)), below, x)


def _celu(node: ir.Node, x: ScoreExpr) -> ScoreExpr:
    alpha = attr_float(node, "alpha", 1.0)
    below = Apply("Mul", Apply("Sub", Apply("Exp", Apply("Div", Apply("Min", x, _f(0)), _f(alpha))), _f(1)), _f(alpha))
    return Apply("Where", Apply("Less", x, _f(0)), below, x)


def _hard_sigmoid(node: ir.Node, x: ScoreExpr) -> ScoreExpr:
    line = Apply("Add", Apply("Mul", x, _f(attr_float(node, "alpha", 0.2))), _f(attr_float(node, "beta", 0.5)))
    return Apply("Max", _f(0), Apply("Min", _f(1), line))


def _hard_swish(node: ir.Node, x: ScoreExpr) -> ScoreExpr:
    line = Apply("Add", Apply("Mul", x, _f(1 / 6)), _f(0.5))
    return Apply("Mul", x, Apply("Max", _f(0), Apply("Min", _f(1), line)))


def _shrink(node: ir.Node, x: ScoreExpr) -> ScoreExpr:
    threshold, bias = attr_float(node, "lambd", 0.5), attr_float(node, "bias", 0.0)
    above = Apply("Where", Apply("Greater", x, _f(threshold)), Apply("Sub", x, _f(bias)), _f(0))
    return Apply("Where", Apply("Less", x, _f(-threshold)), Apply("Add", x, _f(bias)), above)


def _softsign(node: ir.Node, x: ScoreExpr) -> ScoreExpr:
    return Apply("Div", x, Apply("Add", _f(1), Apply("Abs", x)))


def _mish(node: ir.Node, x: ScoreExpr) -> ScoreExpr:
    return Apply("Mul", x, Apply("Tanh", Apply("Softplus", x)))


def _gelu(node: ir.Node, x: ScoreExpr) -> ScoreExpr | None:
    approximate = typed_attr(node, "approximate", ir.AttributeType.STRING)
    kind = "none" if approximate is None else approximate.as_string()
    if kind == "tanh":
        cubed = Apply("Mul", _f(0.044715), Apply("Mul", x, Apply("Mul", x, x)))
        bent = Apply("Tanh", Apply("Mul", _f(math.sqrt(2 / math.pi)), Apply("Add", x, cubed)))
        return Apply("Mul", Apply("Mul", x, _f(0.5)), Apply("Add", _f(1), bent))
    if kind != "none":
        return None
    return Apply(
        "Mul", Apply("Mul", x, _f(0.5)), Apply("Add", _f(1), Apply("Erf", Apply("Mul", x, _f(math.sqrt(0.5)))))
    )


def _thresholded(node: ir.Node, x: ScoreExpr) -> ScoreExpr:
    return Apply("Where", Apply("Greater", x, _f(attr_float(node, "alpha", 1.0))), x, _f(0))


def _swish(node: ir.Node, x: ScoreExpr) -> ScoreExpr:
    return Apply("Mul", x, Apply("Sigmoid", Apply("Mul", x, _f(attr_float(node, "alpha", 1.0)))))


COMPOSED: dict[str, Callable[[ir.Node, ScoreExpr], ScoreExpr | None]] = {
    "LeakyRelu": _leaky,
    "Elu": _elu,
    "Celu": _celu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "Shrink": _shrink,
    "Softsign": _softsign,
    "Mish": _mish,
    "Gelu": _gelu,
    "ThresholdedRelu": _thresholded,
    "Swish": _swish,
}
_KNOWN = frozenset([*_UNARY, *_BINARY, *_FOLDED, *COMPOSED, "Where", "Clip", "Cast", "Identity", "IsInf"]) | {
    "DequantizeLinear",
    "QuantizeLinear",
}


def peel_elementwise(view: GraphView, value: ir.Value) -> Iterator[Peel]:
    """The function of each value further up that `value` can be read as, the nearest first."""
    if view.producer(value, *_KNOWN) is None:
        return
    for root in _roots(view, value):
        if not _fits(view, value, root):
            continue  # a factor of the score, of which nothing is asked
        reading = _Reading(view, root)
        expr = reading.read(value)
        if expr is None or expr == SCORE or not reading.used:
            continue
        kinds = [k for v in reading.tensors if (k := _kind(v)) is not None]
        try:
            if len(kinds) != len(reading.tensors) or kind_of(expr, kinds) != "float":
                continue
        except ValueError:
            continue
        yield Peel(Map(expr, tuple(reading.tensors), _label(value)), root)


def read_function(view: GraphView, value: ir.Value, root: ir.Value) -> ScoreExpr | None:
    """`value` as a function of `root` and constants alone; None where it is none."""
    if view.producer(value, *_KNOWN) is None or not _fits(view, value, root) or root.dtype not in FLOATS:
        return None
    reading = _Reading(view, root)
    expr = reading.read(value)
    if expr is None or not reading.used or reading.tensors or value.dtype not in FLOATS:
        return None
    try:
        return expr if kind_of(expr, []) == "float" else None
    except ValueError:
        return None


def _label(value: ir.Value) -> str:
    node = value.producer()
    return op_of(node).lower() if node is not None else "elementwise"


def _roots(view: GraphView, value: ir.Value) -> Iterator[ir.Value]:
    """Float values above `value` with nothing but elementwise ops between, breadth first."""
    queue, seen = [value], {value}
    found = 0
    while queue and found < _MAX_ROOTS:
        node = view.producer(queue.pop(0), *_KNOWN)
        for i in node.inputs if node is not None else ():
            if i is None or i in seen or view.const(i) is not None:
                continue
            seen.add(i)
            queue.append(i)
            if i.dtype in FLOATS:
                found += 1
                yield i


def _fits(view: GraphView, value: ir.Value, root: ir.Value) -> bool:
    """Whether nothing on the way broadcasts the score to another shape."""
    a, b = view.shape(value), view.shape(root)
    return a is not None and b is not None and len(a) == len(b)


def _kind(value: ir.Value) -> Kind | None:
    if value.dtype in FLOATS:
        return "float"
    if value.dtype == ir.DataType.BOOL:
        return "bool"
    return "int" if value.dtype in (ir.DataType.INT32, ir.DataType.INT64) else None


def _divided_by(node: ir.Node) -> ir.Value | None:
    """What makes an infinity of a zero, whose sign says which one."""
    if op_of(node) == "Div":
        return node.inputs[1]
    return node.inputs[0] if op_of(node) in ("Reciprocal", "Pow") else None


def _is_rounded(view: GraphView, value: ir.Value) -> bool:
    """Whether integers stand behind a value, with nothing but elementwise ops between."""
    queue, seen = [value], {value}
    while queue and len(seen) < _MAX_NODES:
        node = view.producer(queue.pop(), *_KNOWN)
        if node is not None and op_of(node) == "DequantizeLinear":
            return True
        new = {i for i in (node.inputs if node is not None else ()) if i is not None} - seen
        queue += new
        seen |= new
    return False


class _Reading:
    """One value as an expression of `root`; whatever does not come from there by elementwise ops is a tensor."""

    def __init__(self, view: GraphView, root: ir.Value) -> None:
        self.view, self.root = view, root
        self.tensors: list[ir.Value] = []
        self.used = False
        self._made: dict[ir.Value, ScoreExpr | None] = {}
        self._reaching: dict[ir.Value, bool] = {root: True}

    def read(self, value: ir.Value) -> ScoreExpr | None:
        if value not in self._made:
            made = self._read(value) if len(self._made) < _MAX_NODES else None
            # A part that is read twice stands there twice.
            self._made[value] = made if made is not None and is_small(made) else None
        return self._made[value]

    def _reaches(self, value: ir.Value) -> bool:
        """Whether elementwise ops lead from the root to `value`."""
        if value not in self._reaching:
            self._reaching[value] = False
            node = self.view.producer(value, *_KNOWN) if len(self._reaching) < _MAX_NODES else None
            if node is not None and self.view.const(value) is None:
                self._reaching[value] = any(self._reaches(i) for i in node.inputs if i is not None)
        return self._reaching[value]

    def _read(self, value: ir.Value) -> ScoreExpr | None:
        if value is self.root:
            self.used = True
            return SCORE
        constant = self._constant(value)
        if constant is not None:
            return constant
        if not self._reaches(value):
            self.tensors.append(value)
            return Tensor(len(self.tensors) - 1)
        node = self.view.producer(value)
        assert node is not None
        return self._op(node, value)

    def _constant(self, value: ir.Value) -> ScoreExpr | None:
        number = self.view.scalar(value)
        if number is None or len(self.view.shape(value) or ()) > len(self.view.shape(self.root) or ()):
            return None
        if value.dtype == ir.DataType.BOOL:
            return Bool(bool(number))
        array = self.view.const(value)
        if array is not None and array.dtype.kind in "iu":
            return Int(int(array.reshape(())[()]))
        return _f(number)

    def _op(self, node: ir.Node, value: ir.Value) -> ScoreExpr | None:
        kind = op_of(node)
        if kind == "DequantizeLinear":
            return self._rounded(node)
        if kind == "QuantizeLinear":
            return None
        if kind == "Clip":
            return self._clipped(node)
        by = _divided_by(node)
        if by is not None and self._reaches(by) and _is_rounded(self.view, by):
            raise NoMatch("numbers are divided by rounded scores, whose zeros all have the same sign", node)
        if kind in _WRAP and value.dtype not in (*FLOATS, ir.DataType.BOOL, ir.DataType.INT64):
            return None  # wraps where int64 does not
        args = [self.read(i) for i in node.inputs if i is not None]
        known = [a for a in args if a is not None]
        if len(known) != len(args) or not args:
            return None
        if kind in _UNARY or kind in _BINARY or kind == "Where":
            return Apply(kind, *known) if kind in OPS else None
        if kind in _FOLDED:
            expr = known[0]
            for x in known[1:]:
                expr = Apply(_FOLDED[kind], expr, x)
            return expr
        if kind == "Identity":
            return known[0]
        if kind == "Cast":
            return self._cast(node, value, known[0])
        if kind == "IsInf":
            return self._is_infinite(node, known[0])
        return COMPOSED[kind](node, known[0])

    def _cast(self, node: ir.Node, value: ir.Value, x: ScoreExpr) -> ScoreExpr | None:
        source = node.inputs[0]
        if source is None:
            return None
        if value.dtype in FLOATS and source.dtype in FLOATS:
            narrow = {ir.DataType.FLOAT16: 0, ir.DataType.BFLOAT16: 0, ir.DataType.FLOAT: 1, ir.DataType.DOUBLE: 2}
            assert value.dtype is not None and source.dtype is not None
            return x if narrow[value.dtype] > narrow[source.dtype] or value.dtype == source.dtype else None
        if value.dtype in FLOATS:
            return Apply("ToFloat", x)
        return Apply("ToBool", x) if value.dtype == ir.DataType.BOOL else None

    def _is_infinite(self, node: ir.Node, x: ScoreExpr) -> ScoreExpr:
        tests: list[ScoreExpr] = []
        for name, sign in (("detect_positive", 1.0), ("detect_negative", -1.0)):
            attr = node.attributes.get(name)
            if attr is None or attr.as_int():
                tests.append(Apply("Equal", x, _f(sign * math.inf)))
        if not tests:
            return Bool(False)
        return Apply("Or", *tests) if len(tests) == 2 else tests[0]

    def _clipped(self, node: ir.Node) -> ScoreExpr | None:
        x = self.read(node.inputs[0]) if node.inputs[0] is not None else None
        bounds: list[float | None] = [None, None]
        for i, name in enumerate(("min", "max")):
            given = node.inputs[i + 1] if len(node.inputs) > i + 1 else None
            if given is not None:
                bounds[i] = self.view.scalar(given)
                if bounds[i] is None:
                    return None
            elif name in node.attributes:
                bounds[i] = attr_float(node, name, 0.0)
        if x is None or node.inputs[0] is None or node.inputs[0].dtype not in FLOATS:
            return None
        low, high = bounds
        if any(bound is not None and math.isnan(bound) for bound in bounds):
            return None  # ONNX does not say whether such a bound is none, or makes all scores NaN
        if low is not None:
            x = Apply("Max", x, _f(low))
        return x if high is None else Apply("Min", x, _f(high))

    def _rounded(self, node: ir.Node) -> ScoreExpr | None:
        """DequantizeLinear(QuantizeLinear(x)): rounding to a grid of one step size, in float32."""
        found = read_rounding(self.view, node)
        x = self.read(found[0]) if found is not None else None
        if found is None or x is None:
            return self._from_steps(node)
        grid, (low, high) = found[1], GRIDS[found[1].dtype]
        steps = Apply("Max", Apply("Round", Apply("Div", x, _f(grid.scale))), _f(low - grid.zero_point))
        return Apply("Mul", Apply("Min", steps, _f(high - grid.zero_point)), _f(grid.scale))

    def _from_steps(self, node: ir.Node) -> ScoreExpr | None:
        """DequantizeLinear(Cast(x)), where x is a whole number that the bytes hold."""
        found = read_steps(self.view, node)
        x = self.read(found[0]) if found is not None else None
        if found is None or x is None:
            return None
        return Apply("Mul", Apply("Sub", x, _f(found[1].zero_point)), _f(found[1].scale))
