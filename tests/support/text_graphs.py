"""Graphs of a few nodes, written in ONNX's own text, for tests of one rule each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx.parser
import onnx.shape_inference
import onnx_ir as ir
from onnx import numpy_helper

from onnx_fa.graph.io import load
from onnx_fa.graph.normalise import infer_shapes
from onnx_fa.graph.view import GraphView
from onnx_fa.match.exprs import Call, Const, Expr
from onnx_fa.match.types import AddTerm, Cap, Factor, Map, Nothing, Regroup, Scale, Select, Step, Term
from onnx_fa.spec.expr import words
from onnx_fa.spec.terms import AddMask, BoolMask, Causal, Elementwise, SlidingWindow

Constant = float | int | bool | Sequence[object] | np.ndarray


class TextGraph:
    """The graph `(inputs) => (outputs) { body }`, with shapes inferred. Constants are initializers: floats are f32, whole numbers
    i64, arrays what they are. Without outputs, what the last node makes is the output."""

    def __init__(self, inputs: str, body: str, outputs: str = "", opset: int = 18, **constants: Constant) -> None:
        last = body.strip().rsplit("\n", 1)[-1].split("=")[0].split(",")[0].strip()
        head = f'<ir_version: 10, opset_import: ["": {opset}, "com.microsoft": 1, "ai.onnx.preview": 1, "my": 1]>'
        proto = onnx.parser.parse_model(f"{head} g ({inputs}) => ({outputs or last}) {{ {body} }}")
        for name, given in constants.items():
            array = np.asarray(given)
            if not isinstance(given, np.ndarray) and array.dtype == np.float64:
                array = array.astype(np.float32)
            proto.graph.initializer.append(numpy_helper.from_array(array, name))
        inferred = onnx.shape_inference.infer_shapes(proto).graph.output
        for out, found in zip(proto.graph.output, inferred, strict=True):
            out.type.CopyFrom(found.type)
        self.proto = proto
        self.model = load(proto)
        infer_shapes(self.model)
        self.view = GraphView(self.model)

    def value(self, name: str) -> ir.Value:
        graph = self.model.graph
        made = [*graph.inputs, *graph.initializers.values(), *(o for node in graph for o in node.outputs)]
        return next(v for v in made if v.name == name)

    def node(self, name: str) -> ir.Node:
        """The node that makes the value of that name."""
        node = self.value(name).producer()
        assert node is not None, f"{name} is an input"
        return node


def name_of(expr: Expr | None) -> str:
    """An operand in words: the name of a value, a constant's numbers, `Op(...)`."""
    if expr is None:
        return "none"
    if isinstance(expr, Const):
        return str(expr.array.tolist()).replace(" ", "")
    if isinstance(expr, Call):
        attrs = [f"{name}={str(value).replace(' ', '')}" for name, value in expr.attrs]
        return f"{expr.op}({', '.join([*map(name_of, expr.args), *attrs])})"
    return str(expr.name)


def describe_step(step: Step | None) -> str:
    """A step in words."""
    match step:
        case Scale(factor):
            return f"scale {factor:.6g}"
        case Cap(cap):
            return f"cap {cap:g}"
        case AddTerm(value, factor):
            return f"add {factor:g} * {name_of(value)}"
        case Select(keep, inverted, fill):
            return f"{'drop' if inverted else 'keep'} {name_of(keep)} else {fill:g}"
        case Map(expr, values, _):
            return words(expr) + "".join(f", {name_of(v)}" for v in values)
        case Factor(value, divide):
            return f"{'divide by' if divide else 'times'} {name_of(value)}"
        case Nothing():
            return "nothing"
        case Regroup(node):
            return f"moved by {node.op_type}"
    return "none"


def run_expr(expr: Expr, values: dict[str, np.ndarray]) -> np.ndarray:
    """What an operand expression of ops that move axes, cut, repeat or compute holds, where the values hold `values`."""
    if isinstance(expr, Const):
        return np.asarray(expr.array)
    if isinstance(expr, ir.Value):
        return values[str(expr.name)]
    args = [run_expr(a, values) for a in expr.args]
    attrs = dict(expr.attrs)
    first = args[0]
    match expr.op:
        case "Transpose":
            return first.transpose(attrs["perm"])
        case "Reshape":
            kept = [first.shape[i] if d == 0 else int(d) for i, d in enumerate(args[1])]
            return first.reshape(kept)
        case "Squeeze":
            assert all(first.shape[int(a)] == 1 for a in args[1])
            return np.squeeze(first, tuple(int(a) for a in args[1]))
        case "Unsqueeze":
            return np.expand_dims(first, tuple(int(a) for a in args[1]))
        case "Expand":
            return np.broadcast_to(first, np.broadcast_shapes(first.shape, tuple(int(d) for d in args[1])))
        case "Shape":
            return np.asarray(first.shape)
        case "Concat":
            return np.concatenate(args, int(attrs["axis"]))
        case "Slice":
            axes = args[3] if len(args) > 3 else np.arange(len(args[1]))
            for start, end, axis in zip(args[1], args[2], axes, strict=True):
                first = first[(slice(None),) * (int(axis) % first.ndim) + (slice(int(start), int(end)),)]
            return first
        case "Gather":
            return np.take(first, args[1].astype(np.int64), int(attrs.get("axis", 0)))
        case "Mul" | "Div" | "Add" | "Sub":
            run = {"Mul": np.multiply, "Div": np.divide, "Add": np.add, "Sub": np.subtract}[expr.op]
            return np.asarray(run(args[0], args[1]))
        case "Not":
            return np.logical_not(first)
        case "Where":
            return np.where(args[0], args[1], args[2])
    raise NotImplementedError(expr.op)


def describe_term(term: Term) -> str:
    """A mask term in words, with its operands."""
    operands = "".join(f", {name_of(x)}" for x in term.operands)
    match term.term:
        case Elementwise(expr, _, label):
            return f"{label}: {words(expr)}{operands}"
        case BoolMask(shape, fill):
            return f"keep{list(shape)} else {fill:g}{operands}"
        case AddMask(shape, dtype, factor):
            return f"add{list(shape)} {dtype} * {factor:g}{operands}"
        case Causal(offset, fill):
            return f"causal {offset} else {fill:g}"
        case SlidingWindow(left, right, offset, fill):
            return f"window {left} {right} from {offset} else {fill:g}"
