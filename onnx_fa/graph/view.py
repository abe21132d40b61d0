"""Read-only questions about a graph while matching: constants, shapes, producers, uses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import get_args

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from onnx_fa.graph.axes import LAST_AXIS, Axes, node_axes, placed_axes
from onnx_fa.graph.bounded import MAX_FOLDED_ELEMENTS, result_elements
from onnx_fa.graph.dims import recorded, takes_in
from onnx_fa.graph.ops import STANDARD, asks_only, attr_int, constant_tensor, op_of
from onnx_fa.graph.symbolic import SymbolicShapes
from onnx_fa.spec.dtypes import ONNX
from onnx_fa.spec.terms import Dim, DType

Array = npt.NDArray[np.generic]

DTYPES: dict[ir.DataType, DType] = {ir.DataType(ONNX[name]): name for name in get_args(DType)}
FLOATS = frozenset(DTYPES)

# Deterministic ops cheap enough to evaluate when all their inputs are constants.
_FOLDABLE = frozenset(
    [
        "Identity",
        "Cast",
        "CastLike",
        "Concat",
        "Gather",
        "Unsqueeze",
        "Squeeze",
        "Reshape",
        "Transpose",
        "Expand",
        "Slice",
        "Mul",
        "Div",
        "Add",
        "Sub",
        "Neg",
        "Pow",
        "Sqrt",
        "Ceil",
        "Floor",
        "Clip",
        "Reciprocal",
        "Range",
        "Trilu",
        "ConstantOfShape",
        "Where",
        "Equal",
        "Less",
        "LessOrEqual",
        "Greater",
        "GreaterOrEqual",
        "And",
        "Or",
        "Not",
        "Max",
        "Min",
        "ReduceProd",
        "Tile",
        "IsInf",
        "IsNaN",
        "Mod",
        "CumSum",
        "GatherND",
        "Flatten",
        "EyeLike",
        "ScatterElements",
        "ScatterND",
        "NonZero",
        "ReduceMax",
        "ReduceMin",
        "ReduceSum",
    ]
)
# Ops that the reference evaluator goes through one index at a time, of those that the second input holds: rows of it, or numbers.
_LOOPS = frozenset(["GatherND", "ScatterElements", "ScatterND"])
_MAX_LOOP_STEPS = 1 << 20


_LIGHT_ELEMENTS = 1 << 12


def _is_weight(value: ir.Value) -> bool:
    return value.const_value is not None and value.const_value.size > _LIGHT_ELEMENTS


class GraphView:
    """Memoised facts about one model's values. Not valid any more once the graph has been changed."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.opset = default_opset(model)
        self._consts: dict[ir.Value, Array | None] = {}
        self._symbolic: SymbolicShapes | None = None
        self._building = False
        self._order: dict[ir.Node, int] = {}
        self._depends: dict[ir.Node, dict[ir.Node, bool]] = {}

    def const(self, value: ir.Value | None) -> Array | None:
        """The value's content when it is known before run time (initializers, constants, and small arithmetic on them)."""
        if value is None:
            return None
        stack, opened = [value], set[ir.Value]()
        while stack:
            top = stack[-1]
            if top in self._consts:
                stack.pop()
                continue
            # What is open already lies on a cycle, or is asked for by the shapes that its own evaluation asked for.
            above = [] if top in opened else [i for i in self._folded_from(top) if i not in self._consts]
            opened.add(top)
            if above:
                stack += above
                continue
            self._consts[top] = None
            self._read_weights(top)
            self._consts[top] = self._evaluate(top)
        return self._consts[value]

    def _folded_from(self, value: ir.Value) -> list[ir.Value]:
        """The values that have to be known for this one to be, but for weights, which are read when all others are known."""
        node = self._folded(value)
        return [] if node is None else [i for i in node.inputs if i is not None and not _is_weight(i)]

    def _read_weights(self, value: ir.Value) -> None:
        """Reads what a folded node has of weights, unless another of its inputs is not known."""
        node = self._folded(value)
        inputs = [] if node is None else [i for i in node.inputs if i is not None]
        if all(self._consts.get(i) is not None for i in inputs if not _is_weight(i)):
            for weight in filter(_is_weight, inputs):
                if weight not in self._consts:
                    self._consts[weight] = self._evaluate(weight)

    def _folded(self, value: ir.Value) -> ir.Node | None:
        """The node that makes the value, if it is one that is evaluated."""
        node = self.producer(value)
        if node is None or op_of(node) not in _FOLDABLE or len(node.outputs) != 1:
            return None
        if value.is_graph_input() or value.const_value is not None:
            return None
        shape = self.shape(value)
        return (
            None
            if shape is not None and math.prod(d for d in shape if isinstance(d, int)) > MAX_FOLDED_ELEMENTS
            else node
        )

    def _evaluate(self, value: ir.Value) -> Array | None:
        if value.is_graph_input():
            return None  # an initialized input may be overridden by the caller
        if value.const_value is not None:
            if value.const_value.size > MAX_FOLDED_ELEMENTS:
                return None
            # A copy: a view would keep the file of external data mapped, and it could not be closed.
            array = value.const_value.numpy()
            return array.copy() if isinstance(value.const_value, ir.ExternalTensor) else array
        node = value.producer()
        if node is None or node.domain not in STANDARD:
            return None
        if op_of(node) == "Constant":
            tensor = constant_tensor(value)
            return None if tensor is None else tensor.numpy()
        if op_of(node) in ("Shape", "Size"):
            return self._shape_of(node)
        if op_of(node) == "CastLike" and node.inputs[0] is not None:
            source = self._consts.get(node.inputs[0])
            return None if source is None or value.dtype is None else source.astype(value.dtype.numpy())
        if self._folded(value) is None:
            return None
        inputs = [self._consts.get(i) if i is not None else None for i in node.inputs]
        shape = self._asked_shape(node) if op_of(node) in ("Gather", "Slice") and inputs[0] is None else None
        if shape is not None:
            inputs[0] = np.arange(len(shape))  # which of the dims the node picks
        if op_of(node) == "ConstantOfShape" and inputs[0] is None:
            inputs[0] = self._known_dims(value)
        if any(a is None for a, i in zip(inputs, node.inputs, strict=True) if i is not None):
            return None
        feeds = {str(i.name): a for i, a in zip(node.inputs, inputs, strict=True) if i is not None and a is not None}
        made = _run_node(node, feeds, self.opset)
        return made if shape is None or made is None else _static_dims(shape, made)

    def _shape_of(self, node: ir.Node) -> Array | None:
        shape = self.shape(node.inputs[0])
        if shape is None:
            return None
        if op_of(node) == "Shape":
            start, end = attr_int(node, "start", 0), attr_int(node, "end", len(shape))
            shape = shape[slice(start, end)]
        dims = [d for d in shape if isinstance(d, int)]
        if len(dims) != len(shape):
            return None
        return np.asarray(dims if op_of(node) == "Shape" else math.prod(dims), np.int64)

    def _known_dims(self, value: ir.Value) -> Array | None:
        """The shape of a value, where all of it is numbers."""
        shape = self.shape(value)
        return None if shape is None else _static_dims(shape, np.arange(len(shape)))

    def _asked_shape(self, node: ir.Node) -> tuple[Dim | None, ...] | None:
        """The dims that a node picks from, which may be symbols; None where it picks from something else."""
        shape_of = self.producer(node.inputs[0], "Shape")
        shape = None if shape_of is None else self.shape(shape_of.inputs[0])
        if shape_of is None or shape is None:
            return None
        return shape[slice(attr_int(shape_of, "start", 0), attr_int(shape_of, "end", len(shape)))]

    def scalar(self, value: ir.Value | None) -> float | None:
        """The one element of a constant, whatever its rank."""
        array = self.const(value)
        return float(array.reshape(()).astype(np.float64)) if array is not None and array.size == 1 else None

    def shape(self, value: ir.Value | None) -> tuple[Dim | None, ...] | None:
        """Dims as ints, symbol names, or None where nothing is known; None when not even the rank is known."""
        if value is None:
            return None
        shape = recorded(value)
        if shape is not None and all(isinstance(d, int) for d in shape):
            return shape  # other symbols than these may stand for the same lengths
        if self._symbolic is None and not self._building:
            self._building = True  # it asks for constants, which ask for shapes
            self._symbolic = SymbolicShapes(self.model, self.const)
            self._consts = {v: a for v, a in self._consts.items() if a is not None}  # some may be known now
        return shape if self._symbolic is None else self._symbolic.shape(value)

    def takes_in(self, whole: Dim | None, dim: Dim | None) -> bool:
        """Whether what has `dim` broadcasts beside what has `whole` to nothing but `whole`, in every run that does not fail."""
        return takes_in(whole, dim) or (self._symbolic is not None and self._symbolic.takes_in(whole, dim))

    def dims(self, value: ir.Value) -> tuple[Dim | None, ...] | None:
        """The elements of a small integer tensor that is computed from shapes, as dims; None when it is something else."""
        if self._symbolic is None and not self._building:
            self._building = True
            self._symbolic = SymbolicShapes(self.model, self.const)
            self._consts = {v: a for v, a in self._consts.items() if a is not None}
        return None if self._symbolic is None else self._symbolic.elements(value)

    def producer(self, value: ir.Value | None, *op_types: str) -> ir.Node | None:
        """The node that makes `value`, if it is one of the standard ops named (any standard op when none is)."""
        node = value.producer() if value is not None else None
        if node is None or node.domain not in STANDARD or (op_types and op_of(node) not in op_types):
            return None
        return node

    def users(self, value: ir.Value) -> list[ir.Node]:
        """The distinct nodes that read the elements of `value`, in the order they were added."""
        return list(dict.fromkeys(use.node for use in value.uses() if not asks_only(use.node, use.idx)))

    def asking(self, value: ir.Value) -> list[ir.Node]:
        """The distinct nodes that read `value` for its shape or its type, and for nothing else."""
        readers = self.users(value)
        return list(dict.fromkeys(use.node for use in value.uses() if use.node not in readers))

    def depends(self, value: ir.Value, on: ir.Node) -> bool:
        """Whether `value` is computed from what `on` makes, not only from its shape (captures of subgraphs are not followed)."""
        if not self._order:
            self._order = {n: i for i, n in enumerate(self.model.graph.all_nodes())}
        first = self._order.get(on, -1)
        known = self._depends.setdefault(on, {on: True})
        start = value.producer()
        stack = [start] if start is not None else []
        entered: set[ir.Node] = (
            set()
        )  # those of them that are not known yet lead to the node at hand: a way back is a cycle
        while stack:
            node = stack[-1]
            if node in known:
                stack.pop()
                continue
            entered.add(node)
            if self._order.get(node, -1) < first or self.producer(node.outputs[0], "Shape", "Size") is not None:
                known[node] = False  # nodes are in topological order
                continue
            sources = [p for i in node.inputs if i is not None and (p := i.producer()) is not None]
            todo = [p for p in sources if p not in known and p not in entered]
            if todo and not any(known.get(p) for p in sources):
                stack += todo
            else:
                known[node] = any(known.get(p) for p in sources)
        return start is not None and known[start]

    def are_axes(self, value: ir.Value, axes: Sequence[int] | None, want: Axes) -> bool:
        """Whether `axes` of `value`, in any order, are its axes `want`. False where they are not known, or the rank is not and they
        do not count from the end too."""
        shape = self.shape(value)
        if axes is None or shape is None:
            return axes is not None and sorted(axes) == sorted(want)
        return (placed := placed_axes(axes, len(shape))) is not None and placed == {len(shape) + a for a in want}

    def last_axis(self, node: ir.Node, value: ir.Value, axis: int) -> bool:
        """Whether `axis` of `value` is its last one; unknown ranks answer False unless it is -1."""
        return self.are_axes(value, [axis], LAST_AXIS)


def default_opset(model: ir.Model) -> int:
    imports = model.opset_imports
    return imports.get("", imports.get("ai.onnx", 1))


def axes_of(view: GraphView, node: ir.Node) -> list[int] | None:
    """`symbolic.node_axes` with the view's constants."""
    return node_axes(node, view.const)


def _static_dims(shape: Sequence[Dim | None], places: Array) -> Array | None:
    """The dims at these places, where all of them are numbers."""
    dims = [shape[int(place)] for place in places.reshape(-1)]
    sizes = [d for d in dims if isinstance(d, int)]
    return np.asarray(sizes, np.int64).reshape(places.shape) if len(sizes) == len(dims) else None


def _run_node(node: ir.Node, feeds: dict[str, Array], opset: int) -> Array | None:
    inputs = [ir.Value(name=i.name) if i is not None else None for i in node.inputs]
    out = ir.Value(name="out")
    clone = ir.Node("", op_of(node), inputs, list(node.attributes.values()), outputs=[out])
    graph_inputs = list({i.name: i for i in inputs if i is not None}.values())
    graph = ir.Graph(graph_inputs, [out], nodes=[clone], opset_imports={"": opset}, name="fold")
    arrays = [feeds[str(i.name)] if i is not None else None for i in inputs]
    model = ir.to_proto(ir.Model(graph, ir_version=10))
    if op_of(node) == "NonZero":  # as many as there are elements, at most
        size = None if arrays[0] is None else arrays[0].size * max(1, arrays[0].ndim)
    else:
        size = result_elements(model.graph.node[0], arrays, opset)
    steps = 1
    if op_of(node) in _LOOPS and arrays[1] is not None:
        steps = arrays[1].size if op_of(node) == "ScatterElements" else math.prod(arrays[1].shape[:-1])
    if size is None or size > MAX_FOLDED_ELEMENTS or steps > _MAX_LOOP_STEPS:
        return None
    try:
        (result,) = ReferenceEvaluator(model).run(None, feeds)
    except Exception:  # the evaluator raises anything on ill-typed constants: then it is not a constant we know
        return None
    return np.asarray(result)
