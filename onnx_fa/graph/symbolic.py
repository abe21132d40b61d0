"""Symbolic shapes where ONNX's own inference gives up: dims computed by Shape, Gather and Concat keep their names.

ONNX invents a new symbol ("unk__7") for every dim that it cannot follow, so that equal lengths no longer look equal. This walks
the graph once, carrying dims (ints or symbols) and small integer tensors made of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from onnx_fa.graph.axes import Const, node_axes, node_axis, placed_axes
from onnx_fa.graph.dims import (
    Shape,
    add_dims,
    broadcast,
    compare_dims,
    divide_dims,
    is_trusted,
    known,
    multiply_dims,
    product_of,
    recorded,
    settled,
    subtract_dims,
)
from onnx_fa.graph.ops import CONTRIB, FUSED_MATMULS, STANDARD, attr_int, op_of
from onnx_fa.graph.shape_rules import multiply_shapes, reshape_dims, slice_dim
from onnx_fa.spec.terms import Dim

_SAME = frozenset(
    "Identity Cast Softmax LogSoftmax LayerNormalization RMSNormalization SimplifiedLayerNormalization Neg Abs Sqrt Reciprocal Exp "
    "ScatterND ScatterElements TensorScatter Sign Round BatchNormalization InstanceNormalization GroupNormalization Elu Swish "
    "Log Erf Tanh Sigmoid Relu Gelu LeakyRelu Dropout IsNaN Not Clip Softplus HardSwish Floor Ceil Cos Sin CumSum Trilu "
    "QuantizeLinear DequantizeLinear".split()
)
_BROADCAST = frozenset(
    "Add Sub Mul Div Pow Where And Or Xor Equal Less LessOrEqual Greater GreaterOrEqual Max Min Mod PRelu".split()
)
_REDUCE = frozenset(
    "ReduceMax ReduceSum ReduceMin ReduceMean ReduceProd ReduceLogSumExp ReduceSumSquare ReduceL2".split()
)
_CONTRIB_SAME = frozenset(
    f"{CONTRIB}.{name}"
    for name in "Gelu FastGelu BiasGelu QuickGelu LayerNormalization SkipLayerNormalization SimplifiedLayerNormalization "
    "SkipSimplifiedLayerNormalization RotaryEmbedding".split()
)
_INTEGERS = frozenset((ir.DataType.INT64, ir.DataType.INT32))
_WHOLE = (*_INTEGERS, ir.DataType.FLOAT, ir.DataType.DOUBLE, None)
"""Types that hold every length."""
_MAX_VECTOR = 64
_MAX_SHAPE = 4096
"""Elements of a constant that may be read as dims: sizes, ends, positions of dims."""


class SymbolicShapes:
    """Shapes of all values of a model, as far as they follow from its inputs' symbols. `const` gives constants' contents."""

    def __init__(self, model: ir.Model, const: Const) -> None:
        self._const = const
        self._shapes: dict[ir.Value, Shape | None] = {}
        self._vectors: dict[ir.Value, tuple[Dim | None, ...]] = {}  # small integer tensors of rank 0 and 1
        for node in model.graph.all_nodes():
            self._visit(node)

    def shape(self, value: ir.Value) -> Shape | None:
        """Dims as ints, symbol names, or None; None when not even the rank is known."""
        if value in self._shapes:
            return self._shapes[value]
        return recorded(value)

    def _visit(self, node: ir.Node) -> None:
        if node.domain not in (*STANDARD, CONTRIB) or not node.outputs:
            return
        vector = self._vector_of(node) if node.domain != CONTRIB else None
        if vector is not None:
            self._vectors[node.outputs[0]] = vector
        if all(settled(out, recorded(out)) for out in node.outputs):
            return
        if op_of(node) == "Split":
            shapes = self._split(node)
        else:
            shapes = [self._infer_contrib(node) if node.domain == CONTRIB else self._infer(node)]
        for out, found in zip(node.outputs, shapes, strict=False):
            have = recorded(out)
            if found is None or settled(out, have):
                continue
            if have is not None and len(have) == len(found):
                # Of two lengths that might differ it is not known which one a broadcast has, whatever somebody calls it.
                pairs, told = zip(have, found, strict=True), op_of(node) in _BROADCAST
                found = tuple(h if is_trusted(out, h) or not (told or known(f)) else f for h, f in pairs)
            self._shapes[out] = found

    def _in(self, node: ir.Node, i: int) -> Shape | None:
        value = node.inputs[i] if i < len(node.inputs) else None
        return None if value is None else self.shape(value)

    def _infer(self, node: ir.Node) -> Shape | None:
        first = self._in(node, 0)
        kind = op_of(node)
        if kind in _BROADCAST:
            shapes = [self._in(node, i) for i in range(len(node.inputs))]
            return None if any(s is None for s in shapes) else broadcast([s for s in shapes if s is not None])
        if kind == "Range":
            start, step = self.elements(node.inputs[0]), self.elements(node.inputs[2])
            size = self.elements(node.inputs[1])
            return size if start == (0,) and step == (1,) and size is not None else None
        if kind == "ConstantOfShape":
            return self.elements(node.inputs[0])
        if first is None:
            return None
        if kind in _SAME:
            return first
        if kind == "MatMul":
            return multiply_shapes(first, self._in(node, 1))
        if kind == "Gemm":
            swaps = [bool(attr_int(node, name, 0)) for name in ("transA", "transB")]
            return multiply_shapes(first, self._in(node, 1), *swaps)
        if kind == "Einsum":
            return self._einsum(node)
        if kind == "Concat":
            return self._concat(node, first)
        if kind == "Slice":
            return self._slice(node, first)
        if kind == "Pad":
            return self._padded(node, first)
        if kind == "Tile":
            times = self.elements(node.inputs[1])
            return None if times is None else tuple(multiply_dims(d, t) for d, t in zip(first, times, strict=True))
        if kind == "Flatten":
            axis = attr_int(node, "axis", 1)
            axis += len(first) if axis < 0 else 0
            return (product_of(first[:axis]), product_of(first[axis:]))
        if kind == "GatherElements":
            return self._in(node, 1)
        if kind == "Transpose":
            perm = node.attributes["perm"].as_ints() if "perm" in node.attributes else range(len(first))[::-1]
            return tuple(first[p] for p in perm)
        if kind in ("Reshape", "Expand"):
            to = self.elements(node.inputs[1])
            if to is None:
                return None
            allow_zero = kind == "Reshape" and attr_int(node, "allowzero", 0)
            return broadcast([first, to]) if kind == "Expand" else reshape_dims(first, to, bool(allow_zero))
        if kind in ("Unsqueeze", "Squeeze"):
            return self._units(node, first)
        if kind in _REDUCE:
            return self._reduced(node, first)
        if kind == "Gather":
            indices, at = self._in(node, 1), node_axis(node, len(first))
            return None if indices is None or at is None else (*first[:at], *indices, *first[at + 1 :])
        return None

    def _infer_contrib(self, node: ir.Node) -> Shape | None:
        first = self._in(node, 0)
        if first is None:
            return None
        if op_of(node) in FUSED_MATMULS:
            if attr_int(node, "transBatchA", 0) or attr_int(node, "transBatchB", 0):
                return None
            return multiply_shapes(
                first, self._in(node, 1), bool(attr_int(node, "transA", 0)), bool(attr_int(node, "transB", 0))
            )
        return first if op_of(node) in _CONTRIB_SAME else None

    def _einsum(self, node: ir.Node) -> Shape | None:
        shapes = [self._in(node, i) for i in range(len(node.inputs))]
        terms, arrow, out = node.attributes["equation"].as_string().replace(" ", "").partition("->")
        if not arrow or "." in terms or any(s is None for s in shapes):
            return None
        dims: dict[str, list[Shape]] = {}
        for term, shape in zip(terms.split(","), shapes, strict=True):
            for letter, dim in zip(term, shape or (), strict=False):
                dims.setdefault(letter, []).append((dim,))
        return tuple(broadcast(dims[x])[0] for x in out) if all(x in dims for x in out) else None

    def _concat(self, node: ir.Node, first: Shape) -> Shape | None:
        shapes = [self._in(node, i) for i in range(len(node.inputs))]
        axis = node_axis(node, len(first))
        if axis is None or any(s is None or len(s) != len(first) for s in shapes):
            return None
        result: list[Dim | None] = []
        for i in range(len(first)):
            dims = [s[i] for s in shapes if s is not None]
            total: Dim | None = 0
            for d in dims:
                total = add_dims(total, d)
            named = [d for d in dims if known(d)]  # all compare_dims, or the model is not valid
            result.append(total if i == axis else next((d for d in named if isinstance(d, int)), (named or dims)[0]))
        return tuple(result)

    def _slice(self, node: ir.Node, first: Shape) -> Shape | None:
        parts = [self.elements(node.inputs[i]) if i < len(node.inputs) else None for i in range(1, 5)]
        starts, ends, axes, steps = parts
        if len(node.inputs) < 3:  # before opset 10
            if "starts" not in node.attributes:
                return None
            starts, ends = (tuple(node.attributes[n].as_ints()) for n in ("starts", "ends"))
            axes = tuple(node.attributes["axes"].as_ints()) if "axes" in node.attributes else None
        if starts is None and ends is None and axes is None:
            return (None,) * len(first)
        count = len(starts or ends or axes or ())
        if axes is None and len(node.inputs) > 3 and node.inputs[3] is not None:
            return (None,) * len(first)
        dims = list(first)
        if any(x is not None and len(x) != count for x in (starts, ends, axes, steps)):
            return None
        default_step = 1 if len(node.inputs) < 5 or node.inputs[4] is None else None
        for i in range(count):
            axis = axes[i] if axes is not None else i
            if not isinstance(axis, int):
                return (None,) * len(first)
            if not -len(first) <= axis < len(first):
                return None
            start, end = (x[i] if x is not None else None for x in (starts, ends))
            step = steps[i] if steps is not None else default_step
            dims[axis] = slice_dim(dims[axis], start, end, step)
        return tuple(dims)

    def _padded(self, node: ir.Node, first: Shape) -> Shape | None:
        pads: tuple[Dim | None, ...] | None
        if "pads" in node.attributes:  # before opset 11
            pads = tuple(node.attributes["pads"].as_ints())
        else:
            pads = self.elements(node.inputs[1]) if len(node.inputs) > 1 else None
        axes: Sequence[Dim | None] | None = range(len(first))
        if len(node.inputs) > 3 and node.inputs[3] is not None:
            axes = self.elements(node.inputs[3])
        if pads is None or axes is None or len(pads) != 2 * len(axes):
            return None
        dims = list(first)
        for i, axis in enumerate(axes):
            if not isinstance(axis, int):
                return None
            dims[axis] = add_dims(dims[axis], add_dims(pads[i], pads[i + len(axes)]))
        return tuple(dims)

    def _split(self, node: ir.Node) -> list[Shape | None]:
        first = self._in(node, 0)
        axis = None if first is None else node_axis(node, len(first))
        if first is None or axis is None:
            return [None] * len(node.outputs)
        sizes: Sequence[Dim | None] | None
        if "split" in node.attributes:
            sizes = list(node.attributes["split"].as_ints())
        elif len(node.inputs) > 1 and node.inputs[1] is not None:
            sizes = self.elements(node.inputs[1])
        else:
            whole, n = first[axis], len(node.outputs)
            even = -(-whole // n) if isinstance(whole, int) else None
            sizes = [even] * (n - 1) + [whole - even * (n - 1)] if isinstance(whole, int) and even is not None else None
        if sizes is None or len(sizes) != len(node.outputs):
            sizes = [None] * len(node.outputs)
        return [(*first[:axis], d, *first[axis + 1 :]) for d in sizes]

    def _reduced(self, node: ir.Node, shape: Shape) -> Shape | None:
        gone = placed_axes(node_axes(node, self._const), len(shape))
        if not gone:
            return None
        # Of another number than 0 and 1 onnx's shape inference and onnxruntime say the same: not kept.
        if attr_int(node, "keepdims", 1) != 1:
            return tuple(d for i, d in enumerate(shape) if i not in gone)
        return tuple(1 if i in gone else d for i, d in enumerate(shape))

    def _units(self, node: ir.Node, shape: Shape) -> Shape | None:
        axes = node_axes(node, self._const)
        if axes is None:
            return None
        if op_of(node) == "Squeeze":
            drop = placed_axes(axes, len(shape))
            return None if drop is None else tuple(d for i, d in enumerate(shape) if i not in drop)
        rank = len(shape) + len(axes)
        put, rest = placed_axes(axes, rank), iter(shape)
        if put is None:
            return None
        return tuple(1 if i in put else next(rest) for i in range(rank))

    def elements(self, value: ir.Value | None) -> tuple[Dim | None, ...] | None:
        """The elements of an integer tensor of rank 0 or 1, as dims."""
        if value is None:
            return None
        if value in self._vectors:
            return self._vectors[value]
        array = self._const(value)
        if array is None or array.ndim > 1 or array.size > _MAX_SHAPE or array.dtype.kind not in "iu":
            return None
        return tuple(int(a) for a in array.reshape(-1))

    def _vector_of(self, node: ir.Node) -> tuple[Dim | None, ...] | None:
        """The elements of what a shape computation makes."""
        kind = op_of(node)
        if kind == "Shape":
            shape = self._in(node, 0)
            start, end = (node.attributes[n].as_int() if n in node.attributes else None for n in ("start", "end"))
            return None if shape is None else shape[slice(start, end)]
        if kind == "Concat":
            parts = [self.elements(i) for i in node.inputs]
            return None if any(p is None for p in parts) else tuple(d for p in parts for d in p or ())
        if kind == "Cast" and node.outputs[0].dtype not in _WHOLE:
            return None
        if kind in ("Unsqueeze", "Squeeze", "Cast", "Identity"):
            return self._vectors.get(node.inputs[0]) if node.inputs[0] is not None else None
        if kind == "Reshape":
            to = self.elements(node.inputs[1])
            flat = to is not None and len(to) <= 1  # of rank 0 or 1 again
            return self._vectors.get(node.inputs[0]) if flat and node.inputs[0] is not None else None
        if kind == "Gather":
            source, index = node.inputs
            vector = self._vectors.get(source) if source is not None else None
            at = self.elements(index)
            if (
                vector is None
                or at is None
                or not all(isinstance(i, int) and -len(vector) <= i < len(vector) for i in at)
            ):
                return None
            return tuple(vector[i] for i in at if isinstance(i, int))
        if kind in _ELEMENTWISE:
            parts = [self.elements(i) for i in node.inputs]
            size = max((len(p) for p in parts if p is not None), default=0)
            if any(p is None or len(p) not in (1, size) for p in parts):
                return None
            whole = any(v is not None and v.dtype in _INTEGERS for v in (*node.outputs, *node.inputs))
            rows = zip(*((p or ()) * (size if len(p or ()) == 1 else 1) for p in parts), strict=True)
            return tuple(divide_dims(d[0], d[1], whole) if kind == "Div" else _ELEMENTWISE[kind](*d) for d in rows)
        if kind == "ConstantOfShape":
            length = self.elements(node.inputs[0])
            fill = node.attributes["value"].as_tensor().numpy() if "value" in node.attributes else None
            if length is None or len(length) != 1 or not isinstance(length[0], int) or length[0] > _MAX_VECTOR:
                return None
            return None if fill is None or fill.dtype.kind not in "iu" else (int(fill.reshape(-1)[0]),) * length[0]
        if kind == "ReduceProd":
            factors = self._vectors.get(node.inputs[0]) if node.inputs[0] is not None else None
            return None if factors is None else (product_of(factors),)
        if kind == "Slice" and node.inputs[0] in self._vectors:
            bounds: list[tuple[Dim | None, ...] | None]
            if len(node.inputs) < 3:  # before opset 10
                bounds = [tuple(node.attributes[n].as_ints()) for n in ("starts", "ends") if n in node.attributes]
            else:
                bounds = [self.elements(i) for i in node.inputs[1:3]]
            step = self.elements(node.inputs[4]) if len(node.inputs) > 4 and node.inputs[4] is not None else (1,)
            if len(bounds) != 2:
                return None
            (a,), (b,) = (x if x is not None and len(x) == 1 else (None,) for x in bounds)
            if isinstance(a, int) and isinstance(b, int) and step == (1,):
                return self._vectors[node.inputs[0]][a:b]
        return None


def _both(
    pick: Callable[[int, int], int],
) -> Callable[[Dim | None, Dim | None], Dim | None]:
    def of_dims(a: Dim | None, b: Dim | None) -> Dim | None:
        if isinstance(a, int) and isinstance(b, int):
            return pick(a, b)
        return a if a == b else None

    return of_dims


def _where(test: Dim | None, yes: Dim | None, no: Dim | None) -> Dim | None:
    if not isinstance(test, int):
        return None
    return yes if test else no


_ELEMENTWISE: dict[str, Callable[..., Dim | None]] = {
    "Equal": compare_dims,
    "Where": _where,
    "Add": add_dims,
    "Sub": subtract_dims,
    "Mul": multiply_dims,
    "Div": divide_dims,
    "Min": _both(min),
    "Max": _both(max),
}
