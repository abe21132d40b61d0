"""FlexAttention of domain ai.onnx.preview: scores pass through a subgraph, which is read as a score expression."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.ops import STANDARD, attr_float, attr_int, op_of
from onnx_fa.graph.view import DTYPES, Array, GraphView
from onnx_fa.match import (
    Cap,
    Const,
    Expr,
    Found,
    Map,
    Match,
    NoMatch,
    OperandChoice,
    Operands,
    Scale,
    Step,
    Term,
    build_match,
    choose_readings,
)
from onnx_fa.patterns.masks.algebra import Algebra
from onnx_fa.patterns.masks.layers import read_terms
from onnx_fa.patterns.operands.operand import read_operand
from onnx_fa.patterns.ops.exprs import NEG_INF, inverse_root, same
from onnx_fa.spec.expr import (
    OPS,
    SCORE,
    Apply,
    Bool,
    Float,
    Int,
    K,
    Kind,
    Q,
    Score,
    ScoreExpr,
    Tensor,
    is_small,
    kind_of,
)
from onnx_fa.spec.terms import Causal, Dim

_FLOAT_KINDS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)
_INTS = (ir.DataType.INT64, ir.DataType.INT32)
_INT32 = (-(1 << 31), (1 << 31) - 1)
_PRECISION = {1: "f32", 10: "f16", 11: "f64", 16: "bf16"}


def match_flex_attention(view: GraphView, node: ir.Node, label: str) -> Match | None:
    """The site of a FlexAttention node; None for other nodes. Raises NoMatch for what cannot be expressed."""
    if op_of(node) != "ai.onnx.preview.FlexAttention":
        return None
    q, k, v = node.inputs[:3]
    if q is None or k is None or v is None:
        raise NoMatch("FlexAttention without Q, K or V")
    shapes = [view.shape(x) for x in (q, k, v)]
    if any(s is None or len(s) != 4 for s in shapes):
        raise NoMatch("Q, K and V are not known to have four dims")
    q_shape, k_shape, v_shape = (s for s in shapes if s is not None)
    b = same("the batch dims", q_shape[0], k_shape[0], v_shape[0]) or f"{label}_b"
    Hq, Hkv = q_shape[1], same("the heads of K and V", k_shape[1], v_shape[1])
    Sq = q_shape[2] if q_shape[2] is not None else f"{label}_sq"
    Skv = same("the lengths of K and V", k_shape[2], v_shape[2]) or f"{label}_skv"
    d, Dv = same("the head dims of Q and K", q_shape[3], k_shape[3]), v_shape[3]
    if Hq is None or Hkv is None or not isinstance(d, int) or not isinstance(Dv, int):
        raise NoMatch("the heads or the head dims are not static")
    dtype = DTYPES.get(q.dtype or ir.DataType.UNDEFINED)
    asked = _PRECISION.get(attr_int(node, "softmax_precision", 0), "")
    if asked in ("f16", "bf16") or (dtype, asked) == ("f64", "f32"):
        raise NoMatch(f"softmax_precision {asked} rounds scores that are computed in more bits")
    names, sizes = ("b0", "h", "s", "d"), ((b, Hq, Sq, d), (b, Hkv, Skv, d), (b, Hkv, Skv, Dv))
    read = [read_operand(view, x, names, size) for x, size in zip((q, k, v), sizes, strict=True)]
    q_read, k_read, v_read = choose_readings(read[0], read[1], read[2], Hq, node)
    steps: list[Step] = [Scale(attr_float(node, "scale", inverse_root(d)))]
    extra: list[Term] = []
    if "score_mod" in node.attributes:
        expr, values = _Reader(view, (b, Hq, Sq, Skv)).read(node.attributes["score_mod"].as_graph())
        if _causal(expr):
            extra.append(Term(Causal(0)))
        else:
            steps += _steps(expr, values)
    if "prob_mod" in node.attributes:
        v_read = _scaled(view, node.attributes["prob_mod"].as_graph(), v_read)
    return build_match(
        view,
        read_terms,
        Found(
            name=label,
            op="FlexAttention",
            dtype=dtype,
            operands=Operands(q_read, k_read, v_read, (b,), Hq, k_read.heads, Sq, Skv, d, Dv),
            steps=steps,
            extra_terms=extra,
            guard="",
            output=node.outputs[0],
            anchor=node,
        ),
    )


def _steps(expr: ScoreExpr, values: tuple[Expr, ...]) -> list[Step]:
    """The steps that `expr` means: a scale, a softcap or a causal mask where it is just that, else the expression itself."""
    match expr:
        case Score():
            return []
        case Apply("Mul", (Score(), Float(factor))) | Apply("Mul", (Float(factor), Score())):
            return [Scale(factor)]
        case Apply("Div", (Score(), Float(divisor))) if divisor:
            return [Scale(1 / divisor)]
        case Apply("Mul", (Apply("Tanh", (Apply("Div", (Score(), Float(a))),)), Float(b))) if a == b > 0:
            return [Cap(a)]
        case Apply("Mul", (Float(b), Apply("Tanh", (Apply("Div", (Score(), Float(a))),)))) if a == b > 0:
            return [Cap(a)]
    return [Map(expr, values, "score_mod")]


def _causal(expr: ScoreExpr) -> bool:
    keep = (Apply("LessOrEqual", K, Q), Apply("GreaterOrEqual", Q, K))
    return expr in [Apply("Where", condition, SCORE, NEG_INF) for condition in keep]


def _scaled(view: GraphView, graph: ir.Graph, v: OperandChoice) -> OperandChoice:
    """V with what prob_mod multiplies the probabilities by. Raises NoMatch for any other prob_mod."""
    expr, values = _Reader(view, (None,) * 4).read(graph)
    if expr == SCORE:
        return v
    match expr:
        case Apply("Mul", (Score(), Float(factor))) | Apply("Mul", (Float(factor), Score())) if not values:
            return replace(v, scale=v.scale * factor)
        case Apply("Div", (Score(), Float(divisor))) if not values and divisor:
            return replace(v, scale=v.scale / divisor)
    raise NoMatch(
        "a prob_mod that does more than multiply by a number: probabilities do not exist as a whole in a fused kernel"
    )


@dataclass
class _Reader:
    """A subgraph of one rank-4 score, of dims `shape`, as an expression; tensors that it reads from outside become `values`."""

    view: GraphView
    shape: tuple[Dim | None, ...]
    values: list[Expr] = field(default_factory=list)
    kinds: list[Kind] = field(default_factory=list)
    known: dict[ir.Value, ScoreExpr] = field(default_factory=dict)
    inner: set[ir.Value] = field(default_factory=set)

    def read(self, graph: ir.Graph) -> tuple[ScoreExpr, tuple[Expr, ...]]:
        if len(graph.inputs) != 1 or len(graph.outputs) != 1:
            raise NoMatch("a modifier that does not have one input and one output")
        self.known[graph.inputs[0]] = SCORE
        self.inner = {o for node in graph for o in node.outputs} | set(graph.inputs)
        return self.expr(graph.outputs[0]), tuple(self.values)

    def expr(self, value: ir.Value) -> ScoreExpr:
        if value not in self.known:
            self.known[value] = self._make(value)
        return self.known[value]

    def _make(self, value: ir.Value) -> ScoreExpr:
        array, node = self.view.const(value), value.producer()
        if array is not None and (node is None or op_of(node) == "Constant" or array.size == 1):
            return self._constant(array)
        if array is not None:
            # As a function of positions it needs no tensor of the size of the scores.
            held = (len(self.values), dict(self.known))
            try:
                return self._computed(value)
            except NoMatch:
                del self.values[held[0] :], self.kinds[held[0] :]
                self.known = held[1]
                return self._constant(array)
        if value not in self.inner:
            return self._tensor(value, value.dtype)
        return self._computed(value)

    def _computed(self, value: ir.Value) -> ScoreExpr:
        node = value.producer()
        if node is None or value not in self.inner:
            raise NoMatch("a value from outside a modifier")
        if node.domain not in STANDARD:
            raise NoMatch(f"{op_of(node)} in a modifier", node)
        inputs = [i for i in node.inputs if i is not None]
        position = self._position(node)
        if position is not None:
            return position
        if op_of(node) in ("Identity",):
            return self.expr(inputs[0])
        if op_of(node) == "Cast":
            return self._cast(node, inputs[0])
        if op_of(node) == "CastLike":
            return self._converted(self.expr(inputs[0]), inputs[1].dtype, node)
        op = OPS.get(op_of(node))
        if op is None or len(inputs) != len(op.kinds) or len(node.attributes) > 0:
            raise NoMatch(f"{node.op_type} in a modifier is not an op of score expressions", node)
        made = Apply(op_of(node), *(self.expr(i) for i in inputs))
        if not is_small(made):
            raise NoMatch("a modifier is too large an expression", node)
        try:
            if kind_of(made, self.kinds) == "int" and node.outputs[0].dtype == ir.DataType.INT32:
                self._fits(made, node)
        except ValueError as e:
            raise NoMatch(f"in a modifier: {e}", node) from e
        return made

    def _fits(self, expr: ScoreExpr, node: ir.Node) -> None:
        """Raises NoMatch for a number that 32 bits might not hold: expressions are computed in 64."""
        axes: dict[ScoreExpr, Dim | None] = {Q: self.shape[2], K: self.shape[3]}
        algebra = Algebra({leaf: size for leaf, size in axes.items() if isinstance(size, int)})
        for i, value in enumerate(self.values):
            dtype = ir.DataType.from_numpy(value.array.dtype) if isinstance(value, Const) else None
            if (value.dtype if isinstance(value, ir.Value) else dtype) == ir.DataType.INT32:
                algebra.ranges[Tensor(i)] = _INT32
        low, high = algebra.bounds(expr)
        if low < _INT32[0] or high > _INT32[1]:
            raise NoMatch(f"{node.op_type} in a modifier might leave int32", node)

    def _constant(self, array: Array) -> ScoreExpr:
        if array.size == 1:
            number = array.reshape(())[()]
            if array.dtype == bool:
                return Bool(bool(number))
            return Int(int(number)) if array.dtype.kind in "iu" else Float(float(number))
        padded = (1,) * (4 - array.ndim) + array.shape
        counts = array.dtype.kind in "iu" and np.array_equal(array.reshape(-1), np.arange(array.size))
        for axis, leaf in ((2, Q), (3, K)):
            if counts and padded[axis] == array.size == self.shape[axis]:
                return leaf
        return self._tensor(Const(array), ir.DataType.from_numpy(array.dtype))

    def _tensor(self, value: Expr, dtype: ir.DataType | None) -> ScoreExpr:
        kind: Kind
        if dtype in _FLOAT_KINDS:
            kind = "float"
        elif dtype in _INTS:
            kind = "int"
        elif dtype == ir.DataType.BOOL:
            kind = "bool"
        else:
            raise NoMatch("a modifier reads a tensor that is neither float, int nor bool")
        self.values.append(value)
        self.kinds.append(kind)
        return Tensor(len(self.values) - 1)

    def _cast(self, node: ir.Node, source: ir.Value) -> ScoreExpr:
        return self._converted(self.expr(source), ir.DataType(attr_int(node, "to", 0)), node)

    def _converted(self, inner: ScoreExpr, to: ir.DataType | None, node: ir.Node) -> ScoreExpr:
        kind = kind_of(inner, self.kinds)
        if to == ir.DataType.INT32 and kind != "bool":
            self._fits(inner if kind == "int" else Apply("ToInt", inner), node)
        if to == ir.DataType.BOOL:
            return inner if kind == "bool" else Apply("ToBool", inner)
        if to in _INTS:
            return inner if kind == "int" else Apply("ToInt", inner)
        if to in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
            return inner if kind == "float" else Apply("ToFloat", inner)
        raise NoMatch("a cast in a modifier that rounds", node)

    def _position(self, node: ir.Node) -> ScoreExpr | None:
        """Reshape or Unsqueeze of Range(0, Sq or Skv, 1) so that it lies along the queries or the keys."""
        if op_of(node) not in ("Range", "Unsqueeze", "Reshape"):
            return None
        source: ir.Value | None = node.outputs[0]
        shape = self.view.shape(source)
        inner: ir.Node | None = node
        while inner is not None and op_of(inner) in ("Unsqueeze", "Reshape"):
            inner = self.view.producer(inner.inputs[0])
        if inner is None or op_of(inner) != "Range" or shape is None:
            raise NoMatch(f"{node.op_type} in a modifier, of something else than positions", node)
        if self.view.scalar(inner.inputs[0]) != 0 or self.view.scalar(inner.inputs[2]) != 1:
            raise NoMatch("positions that do not count 0, 1, 2, ...", node)
        padded = (1,) * (4 - len(shape)) + tuple(shape)
        axis = self._length_axis(inner.inputs[1])
        if axis == 2 and padded[:2] == (1, 1) and padded[3] == 1:
            return Q
        if axis == 3 and padded[:3] == (1, 1, 1):
            return K
        raise NoMatch("positions that lie neither along the queries nor along the keys", node)

    def _length_axis(self, end: ir.Value | None) -> int | None:
        """The axis of the score whose size `end` is: the element of Shape(score) that it gathers."""
        while end is not None:
            node = self.view.producer(end)
            if node is None:
                return None
            if op_of(node) == "Cast" and end.dtype not in _INTS:
                return None
            if op_of(node) in ("Squeeze", "Reshape", "Identity", "Cast"):
                end = node.inputs[0]
                continue
            if op_of(node) == "Shape" and self._is_score(node):
                start, stop = attr_int(node, "start", 0) % 4, attr_int(node, "end", 4)
                return start if (stop % 4 or 4) == start + 1 else None
            if op_of(node) in ("Gather", "Slice"):
                shape_of = self.view.producer(node.inputs[0], "Shape")
                index = self.view.scalar(node.inputs[1])
                if shape_of is None or index is None or shape_of.attributes or not self._is_score(shape_of):
                    return None
                if not -4 <= index < 4:
                    return None  # a Slice would clamp it
                if op_of(node) == "Slice":
                    stop_at = self.view.scalar(node.inputs[2])
                    if stop_at is None or stop_at % 4 != (index + 1) % 4:
                        return None
                return int(index) % 4
            return None
        return None

    def _is_score(self, node: ir.Node) -> bool:
        value = node.inputs[0]
        return value is not None and self.known.get(value) == SCORE
