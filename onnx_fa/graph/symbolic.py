"""Symbolic shapes where ONNX's own inference gives up: dims computed by Shape, Gather and Concat keep their names.

ONNX invents a new symbol ("unk__7") for every dim that it cannot follow, so that equal lengths no longer look equal. This walks
the graph once, carrying dims (ints or symbols) and small integer tensors made of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from onnx_fa.graph.axes import Const, node_axes, node_axis, placed_axes, placed_axis
from onnx_fa.graph.carried import follow_graphs, graphs_of, sure_results
from onnx_fa.graph.contrib_shapes import contrib_shapes
from onnx_fa.graph.dead_code import nodes_that_run
from onnx_fa.graph.dims import (
    Shape,
    add_dims,
    broadcast,
    broadcast_dims,
    is_trusted,
    known,
    multiply_dims,
    product_of,
    range_dim,
    recorded,
    settled,
)
from onnx_fa.graph.limits import Limits
from onnx_fa.graph.named import Named
from onnx_fa.graph.op_kinds import BROADCASTS, CONVOLVES, MULTIPLIES, REDUCE, SAME
from onnx_fa.graph.ops import BLOCKED, CONTRIB, STANDARD, attr_int, op_of, typed_attr
from onnx_fa.graph.resized import resized_dims
from onnx_fa.graph.shape_data import MOST_ELEMENTS, Data, Inputs, data_of, split_data
from onnx_fa.graph.shape_floats import dim_or_none, numbers_in
from onnx_fa.graph.shape_rules import (
    Window,
    einsum_dims,
    gather_nd_dims,
    multiply_shapes,
    reshape_dims,
    spread_dims,
    window_dims,
)
from onnx_fa.graph.sliced import slice_cuts, sliced_dims, window_rows
from onnx_fa.spec.terms import Dim

_MAX_SHAPE = 4096
"""Elements of a constant that may be read as dims: sizes, ends, positions of dims."""


class SymbolicShapes:
    """Shapes of all values of a model, as far as they follow from its inputs' symbols. `const` gives constants' contents."""

    def __init__(self, model: ir.Model, const: Const) -> None:
        self._const = const
        self._running = nodes_that_run(model)
        self._limits = Limits()
        self._named = Named(model)
        self._shapes: dict[ir.Value, Shape | None] = {}
        self._data: dict[ir.Value, Data] = {}  # what small integer tensors hold
        self._opset = model.graph.opset_imports.get("", 1)
        self.depth = 0
        self.follow(model.graph)

    def follow(self, graph: ir.Graph) -> None:
        """Goes through the nodes of a graph, forgetting what an earlier walk through them found."""
        self.depth += 1
        for node in graph:
            for out in node.outputs:
                self._shapes.pop(out, None)
                self._data.pop(out, None)
            self._visit(node)
        self.depth -= 1

    def assume(self, value: ir.Value, shape: Shape | None) -> None:
        """Takes a body's input to have this shape; None for what is recorded of it."""
        if shape is None:
            self._shapes.pop(value, None)
        else:
            self._shapes[value] = shape

    def shape(self, value: ir.Value) -> Shape | None:
        """Dims as ints, symbol names, or None; None when not even the rank is known."""
        if value in self._shapes:
            return self._limits.settle(self._shapes[value])
        return self._limits.settle(recorded(value))

    def takes_in(self, whole: Dim | None, dim: Dim | None) -> bool:
        """Whether what has `dim` broadcasts beside what has `whole` to nothing but `whole`, or the model fails."""
        return (
            whole is not None and dim is not None and self._limits.settle((broadcast_dims((whole, dim)),)) == (whole,)
        )

    def _visit(self, node: ir.Node) -> None:
        runs = node in self._running
        if runs:
            self._learn_inputs(node)  # first: what one axis shows may tell the length of another one
        self._follow(node)
        if runs:
            self._learn_outputs(node)

    def _follow(self, node: ir.Node) -> None:
        condition = self.elements(node.inputs[0]) if op_of(node) == "If" else None
        inner = follow_graphs(node, self, self._opset, condition) if graphs_of(node) else None
        if node.domain not in (*STANDARD, CONTRIB, BLOCKED) or not node.outputs:
            return
        standard = node.domain in STANDARD
        data = (
            data_of(Inputs(node, self._elements, self.shape, self._const, self._limits.is_length)) if standard else None
        )
        if data is not None:
            self._data[node.outputs[0]] = data
        if op_of(node) == "Split":
            self._data.update(split_data(node, self._elements(node.inputs[0]), self._split(node)))
        for out, value in sure_results(node, condition):
            if (data := self._elements(value)) is not None:
                self._data[out] = data
        if all(settled(out, recorded(out)) for out in node.outputs):
            return
        shapes: Sequence[Shape | None]
        if inner is not None:
            shapes = inner
        elif op_of(node) == "Split":
            shapes = self._split(node)
        elif op_of(node) == "TopK":
            shapes = [self._infer(node)] * 2
        elif not standard:
            shapes = contrib_shapes(node, lambda i: self._in(node, i))
        else:
            shapes = [self._infer(node)]
        for out, found in zip(node.outputs, shapes, strict=False):
            have = recorded(out)
            if found is None or settled(out, have):
                continue
            if have is not None and len(have) == len(found):
                # Of two lengths that might differ it is not known which one a broadcast has, whatever somebody calls it.
                pairs, told = zip(have, found, strict=True), op_of(node) in BROADCASTS
                found = tuple(h if is_trusted(out, h) or not (told or self._says_more(f, h)) else f for h, f in pairs)
            self._shapes[out] = found

    def _says_more(self, found: Dim | None, have: Dim | None) -> bool:
        """Whether what the ops say of a dim is worth more than what is recorded. Of two symbols that nobody named, that of the ops
        stands elsewhere too."""
        return self._named.knows(found) or (found is not None and not known(have))

    def _learn_inputs(self, node: ir.Node) -> None:
        """Keeps what must hold for a node that is sure to run not to fail."""
        if op_of(node) in BROADCASTS or op_of(node) == "MatMul":
            shapes = [shape for i in range(len(node.inputs)) if (shape := self._in(node, i)) is not None]
            batch = op_of(node) == "MatMul"
            self._limits.learn_broadcast([shape[:-2] if batch else shape for shape in shapes])
            if batch and len(shapes) == 2 and min(map(len, shapes)) > 1:
                self._limits.learn_equal(shapes[0][-1], shapes[1][-2])

        elif op_of(node) == "Reshape" and len(node.inputs) > 1:
            self._learn_reshape(node)

    def _learn_reshape(self, node: ir.Node) -> None:
        """A Reshape to numbers alone fails for any other number of elements: a length that an exporter has fixed."""
        first, target = self._in(node, 0), self.elements(node.inputs[1])
        if first is None or target is None:
            return
        numbers = [d for d in target if isinstance(d, int) and d > 0]
        if len(numbers) == len(target):
            self._limits.learn_count(first, math.prod(numbers))
        if target.count(-1) == 1 and 0 not in target:
            self._limits.learn_parts(product_of(first), [d for d in target if d != -1])

    def _learn_outputs(self, node: ir.Node) -> None:
        """Keeps that what a node makes that is sure to run has lengths."""
        if op_of(node) == "Slice":
            self._learn_windows(node)
        for out in node.outputs:
            self._limits.learn_lengths(self.shape(out) or ())

    def _learn_windows(self, node: ir.Node) -> None:
        """Of how many rows of a table a window around its middle asks: positions of 2 * seq - 1 distances. A name that somebody
        gave them may be that of another length."""
        first, made = self._in(node, 0), self.shape(node.outputs[0])
        cuts = slice_cuts(node, self.elements)
        if first is None or made is None or cuts is None:
            return
        for axis, start, end, step in cuts:
            if isinstance(axis, int) and step == 1 and -len(first) <= axis < len(first) and not known(made[axis]):
                self._limits.learn_window(made[axis], window_rows(first[axis], start, end))

    def _in(self, node: ir.Node, i: int) -> Shape | None:
        value = node.inputs[i] if i < len(node.inputs) else None
        return None if value is None else self.shape(value)

    def _infer(self, node: ir.Node) -> Shape | None:
        first = self._in(node, 0)
        kind = op_of(node)
        if kind in BROADCASTS:
            shapes = [self._in(node, i) for i in range(len(node.inputs))]
            return None if any(s is None for s in shapes) else broadcast([s for s in shapes if s is not None])
        if kind == "Range":
            return (range_dim(*map(self._bound, node.inputs)),)
        if kind == "ConstantOfShape":
            return self.elements(node.inputs[0])
        if first is None:
            return None
        if kind == "Shape":
            return (len(range(len(first))[attr_int(node, "start", 0) : attr_int(node, "end", len(first))]),)
        if kind in SAME:
            return first
        if kind in MULTIPLIES:
            return multiply_shapes(first, self._in(node, MULTIPLIES[kind]))
        if kind == "Gemm":
            swaps = [bool(attr_int(node, name, 0)) for name in ("transA", "transB")]
            return multiply_shapes(first, self._in(node, 1), *swaps)
        if kind == "Einsum":
            return self._einsum(node)
        if kind in (*CONVOLVES, "MaxPool", "AveragePool"):
            return self._windows(node, first)
        if kind == "ConvTranspose":
            return spread_dims(first, self._in(node, 1), node)
        if kind == "Concat":
            return self._concat(node, first)
        if kind == "Slice":
            return sliced_dims(node, first, self.elements)
        if kind == "Pad":
            return self._padded(node, first)
        if kind in REDUCE:
            return self._reduced(node, first)
        moved = self._moved(node, first)
        folded = self._const(node.outputs[0]) if moved is None else None
        return moved if folded is None else tuple(folded.shape)

    def _moved(self, node: ir.Node, first: Shape) -> Shape | None:
        """What moves, repeats or picks the elements of its first input, which has this shape."""
        kind = op_of(node)
        if kind in ("Resize", "Upsample"):
            return resized_dims(node, first, self._const, self.elements)
        if kind == "Tile":
            times = self.elements(node.inputs[1])
            return None if times is None else tuple(multiply_dims(d, t) for d, t in zip(first, times, strict=True))
        if kind in ("GlobalAveragePool", "GlobalMaxPool"):
            return (*first[:2], *(1 for _ in first[2:]))
        if kind == "Flatten":
            axis = attr_int(node, "axis", 1)
            axis += len(first) if axis < 0 else 0
            return (product_of(first[:axis]), product_of(first[axis:]))
        if kind == "GatherElements":
            return self._in(node, 1)
        if kind == "GatherND":
            return gather_nd_dims(first, self._in(node, 1), attr_int(node, "batch_dims", 0))
        if kind == "TopK":
            count, sorted_axis = self.elements(node.inputs[1]), placed_axis(attr_int(node, "axis", -1), len(first))
            if count is None or len(count) != 1 or sorted_axis is None:
                return None
            return (*first[:sorted_axis], count[0], *first[sorted_axis + 1 :])
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
        if kind == "Gather":
            indices, at = self._in(node, 1), node_axis(node, len(first))
            return None if indices is None or at is None else (*first[:at], *indices, *first[at + 1 :])
        return None

    def _einsum(self, node: ir.Node) -> Shape | None:
        shapes = [self._in(node, i) for i in range(len(node.inputs))]
        given = [shape for shape in shapes if shape is not None]
        return einsum_dims(node.attributes["equation"].as_string(), given) if len(given) == len(shapes) else None

    def _windows(self, node: ir.Node, first: Shape) -> Shape | None:
        if len(first) < 3:
            return None
        if op_of(node) in CONVOLVES:
            weights = self._in(node, CONVOLVES[op_of(node)])
            if weights is None or len(weights) != len(first):
                return None
            channels, kernel = weights[0], weights[2:]
        else:
            sizes = typed_attr(node, "kernel_shape", ir.AttributeType.INTS)
            if sizes is None:
                return None
            channels, kernel = first[1], tuple(sizes.as_ints())
        dims = window_dims(first, kernel, Window.of(node, len(first) - 2))
        return None if dims is None else (first[0], channels, *dims)

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
        data = self._elements(node.inputs[0])
        first = self._in(node, 0) if data is None else data.shape
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
        """The elements of a tensor of integers or truth values, of rank 0 or 1, as dims."""
        if value is None:
            return None
        if value in self._data:
            data = self._data[value]
            return self._limits.settle(tuple(dim_or_none(x) for x in data.flat)) if data.ndim <= 1 else None
        array = self._const(value)
        if array is None or array.ndim > 1 or array.size > _MAX_SHAPE or array.dtype.kind not in "biu":
            return None
        return tuple(int(a) for a in array.reshape(-1))

    def _bound(self, value: ir.Value | None) -> Dim | None:
        """A bound of a Range, which may be a float: a whole number all the same, or unknown."""
        found = self.elements(value)
        if found is not None or value is None:
            return found[0] if found else None
        array = self._const(value)
        whole = (
            array is not None
            and array.size == 1
            and array.dtype.kind == "f"
            and float(array.reshape(-1)[0]).is_integer()
        )
        return int(array.reshape(-1)[0]) if whole and array is not None else None

    def _elements(self, value: ir.Value | None) -> Data | None:
        """As `elements`, of any rank."""
        if value is None or value in self._data:
            return None if value is None else self._data[value]
        weight = value.const_value is not None and value.const_value.size > MOST_ELEMENTS
        array = None if weight else self._const(value)
        return None if array is None or array.size > MOST_ELEMENTS else numbers_in(array)
