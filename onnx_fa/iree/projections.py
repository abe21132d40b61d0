"""Queries, keys and values of one product as results of their own: the columns of a fused projection in another order.

    y = x W + b                     (.., N), N = H * (Dq + Dk + Dv), the columns of each head side by side
    q, k, v = Split(Transpose(Reshape(y, (.., H, Dq + Dk + Dv))))

GPT-NeoX, BLOOM, InternLM2 and timm's MaxViT store W so; timm's ViT has q, k and v outermost, (.., 3, H, D). A kernel writes each
tile of a product once, to one of several results, but only where those lie behind each other in W. So the columns of W and of b
are moved here, which costs nothing at run time: every column's sum is what it was. Attention then reads the results where they
lie, in place of copies of parts of y.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.axes import node_axis
from onnx_fa.graph.builder import OnnxBuilder, names_in
from onnx_fa.graph.dead_code import sweep
from onnx_fa.graph.normalise import infer_shapes
from onnx_fa.graph.ops import attr_float, attr_int, op_of
from onnx_fa.graph.view import FLOATS, GraphView, axes_of, default_opset
from onnx_fa.spec.terms import Dim

_OPSET = 13
"""From here on Split and Squeeze take their numbers as inputs."""
_TAKERS = ("Split", "Slice", "Gather")
_ONE = np.ones(1, np.int64)


@dataclass(frozen=True)
class _Taken:
    """What one node takes of an axis: for each of its outputs the places from one number to another. `single`: one place, without
    the axis."""

    node: ir.Node
    ranges: tuple[tuple[int, int], ...]
    single: bool = False


@dataclass(frozen=True)
class _Projection:
    """A product `node`, with the `bias` that an Add may bring, whose columns are read as dims of their own behind `lead` others, by
    parts of one of them."""

    node: ir.Node
    weight: ir.Value
    bias: ir.Value | None
    value: ir.Value
    reshape: ir.Node
    lead: int
    columns: tuple[int, ...]
    perm: tuple[int, ...]
    """In which order a Transpose puts all dims before parts are taken."""
    part: int
    """Which of the columns' dims is cut."""
    takers: tuple[_Taken, ...]

    @property
    def rows_first(self) -> bool:
        """Whether the weight is (K, N), not (N, K)."""
        return op_of(self.node) == "MatMul" or not attr_int(self.node, "transB", 0)

    def ranges(self) -> list[tuple[int, int]]:
        """The parts that are read, from the first on."""
        return sorted({r for taker in self.takers for r in taker.ranges})

    def width(self, part: tuple[int, int]) -> int:
        """How many columns of the product a part has."""
        return prod(self.columns) // self.columns[self.part] * (part[1] - part[0])


def part_projections(model: ir.Model) -> None:
    """Gives each part of a fused projection a result of its own, in the main graph, in place. The values that nodes read are the
    same, element by element."""
    if default_opset(model) < _OPSET or not any(True for _ in _products(model)):
        return
    infer_shapes(model)
    view = GraphView(model)
    found = [p for node in _products(model) if (p := _projection(view, node)) is not None]
    names = names_in(model)
    consts = dict[tuple[str, ...], ir.Value]()
    for projection in found:
        prefix = projection.node.name or "projection"
        _part(view, projection, OnnxBuilder(model.graph, view.opset, prefix, names, consts))


def _products(model: ir.Model) -> Iterator[ir.Node]:
    """Products by a weight whose result is cut into parts, as far as nodes tell."""
    for node in model.graph:
        if op_of(node) in ("MatMul", "Gemm") and _is_weight(node.inputs[1]):
            reshape = _reader(_added(node)[0], "Reshape")
            if reshape is not None and any(op_of(use.node) in _TAKERS for use in _moved(reshape)[0].uses()):
                yield node


def _moved(reshape: ir.Node) -> tuple[ir.Value, ir.Node | None]:
    """What parts may be taken of, and the Transpose that makes it, if there is one."""
    turn = _reader(reshape.outputs[0], "Transpose")
    return (reshape if turn is None else turn).outputs[0], turn


def _is_weight(value: ir.Value | None) -> bool:
    """Whether a value is an initializer, or a matrix that one is when it is turned."""
    while value is not None and (node := value.producer()) is not None and op_of(node) in ("Transpose", "Identity"):
        value = node.inputs[0]
    return value is not None and value.is_initializer() and not value.is_graph_input()


def _reader(value: ir.Value, op: str) -> ir.Node | None:
    """The one node that reads a value, if it is such a one in the same graph that reads it as its first operand, or adds to it."""
    uses, maker = list(value.uses()), value.producer()
    if value.is_graph_output() or len(uses) != 1 or maker is None or op_of(uses[0].node) != op:
        return None
    return uses[0].node if uses[0].node.graph is maker.graph and (uses[0].idx == 0 or op == "Add") else None


def _added(node: ir.Node) -> tuple[ir.Value, ir.Value | None]:
    """What a product and an Add of a row of the network behind it make, and that row."""
    value = node.outputs[0]
    add = _reader(value, "Add") if op_of(node) == "MatMul" else None
    if add is None:
        return value, None
    row = add.inputs[0] if add.inputs[1] is value else add.inputs[1]
    return (add.outputs[0], row) if _is_weight(row) else (value, None)


def _projection(view: GraphView, node: ir.Node) -> _Projection | None:
    """The product with all that is read of it; None where that is more than parts of one axis, apart from each other."""
    weight, (value, bias) = node.inputs[1], _added(node)
    if op_of(node) == "Gemm":
        if attr_int(node, "transA", 0) or attr_float(node, "alpha", 1.0) != 1.0 or attr_float(node, "beta", 1.0) != 1.0:
            return None
        bias = node.inputs[2] if len(node.inputs) > 2 else None
    reshape = _reader(value, "Reshape")
    made, matrix = view.shape(value), view.shape(weight)
    if reshape is None or attr_int(reshape, "allowzero", 0) or weight is None or weight.dtype not in FLOATS:
        return None
    columns, whole = made[-1] if made else None, view.shape(reshape.outputs[0])
    if matrix is None or [type(d) for d in matrix] != [int, int] or not isinstance(columns, int) or whole is None:
        return None
    if bias is not None and (view.shape(bias) != (columns,) or not _is_weight(bias)):
        return None
    lead, (moved, turn) = _rows_end(whole, columns), _moved(reshape)
    perm = tuple(range(len(whole)))
    if turn is not None:
        perm = tuple(turn.attributes["perm"].as_ints()) if "perm" in turn.attributes else perm[::-1]
    elif lead == len(whole) - 1:
        return None  # the rows' dims are what is written anew: a product has results in parts as it is
    takers = _takers(view, moved)
    if lead is None or takers is None or (part := perm[takers[0]] - lead) < 0:
        return None
    dims = tuple(d for d in whole[lead:] if isinstance(d, int))
    projection = _Projection(node, weight, bias, value, reshape, lead, dims, perm, part, takers[1])
    ends = projection.ranges()
    apart = all(first[1] <= second[0] for first, second in pairwise(ends))
    if not apart or len(ends) < 2 or (part == len(dims) - 1 and not _are_heads(ends)):
        return None
    return projection


def _are_heads(parts: Sequence[tuple[int, int]]) -> bool:
    """Whether parts of a last axis are q, k and v of a head. Two of them may be what a rotary embedding turns of a head, and what
    it leaves, and are found as such where they lie beside each other."""
    return len(parts) > 2 and len({end - start for start, end in parts}) == 1


def _rows_end(shape: Sequence[Dim | None], columns: int) -> int | None:
    """Behind how many dims the columns' own begin."""
    for start in range(len(shape) - 1, 0, -1):
        dims = shape[start:]
        if not all(isinstance(d, int) and d > 0 for d in dims):
            return None
        if prod(d for d in dims if isinstance(d, int)) == columns:
            return start
    return None


def _takers(view: GraphView, value: ir.Value) -> tuple[int, tuple[_Taken, ...]] | None:
    """The axis of which all readers of a value take parts, and what they take."""
    shape, axes, found = view.shape(value), set[int](), list[_Taken]()
    if shape is None or value.is_graph_output():
        return None
    for use in value.uses():
        if op_of(use.node) not in _TAKERS or use.idx != 0 or use.node.graph is not view.model.graph:
            return None
        if any(o.is_graph_output() for o in use.node.outputs):
            return None  # which keeps its name
        taken = _taken(view, use.node, shape)
        if taken is None:
            return None
        axes.add(taken[0])
        found.append(taken[1])
    return (axes.pop(), tuple(found)) if len(axes) == 1 else None


def _taken(view: GraphView, node: ir.Node, shape: Sequence[Dim | None]) -> tuple[int, _Taken] | None:
    if op_of(node) == "Slice":
        numbers = [view.const(i) for i in node.inputs[1:]]
        if len(numbers) < 3 or any(n is None or n.size != 1 for n in numbers):
            return None
        start, end, axis, step = (
            int(n.reshape(-1)[0]) for n in [*numbers, *[_ONE] * (4 - len(numbers))] if n is not None
        )
        axis %= len(shape)
        size = shape[axis]
        if not isinstance(size, int) or step != 1:
            return None
        first, last, _ = slice(start, end).indices(size)
        return (axis, _Taken(node, ((first, last),))) if first < last else None
    found = node_axis(node, len(shape))
    size = None if found is None else shape[found]
    if found is None or not isinstance(size, int):
        return None
    if op_of(node) == "Gather":
        index = view.const(node.inputs[1])
        if index is None or index.ndim != 0 or not -size <= int(index) < size:
            return None
        place = int(index) % size
        return found, _Taken(node, ((place, place + 1),), single=True)
    widths = [view.shape(o) for o in node.outputs]
    dims = [w[found] if w is not None else None for w in widths]
    if not all(isinstance(d, int) and d > 0 for d in dims):
        return None
    ends = [0, *accumulate(d for d in dims if isinstance(d, int))]
    return (found, _Taken(node, tuple(pairwise(ends)))) if ends[-1] == size else None


def _part(view: GraphView, p: _Projection, b: OnnxBuilder) -> None:
    """Writes the product with its columns in the order of the parts, and each part in the place of what took it."""
    ranges = p.ranges()
    x, value = p.node.inputs[0], p.value
    assert x is not None
    weight = _ordered(view, b, p.weight, p, ranges, rows_first=p.rows_first)
    bias = None if p.bias is None else _ordered(view, b, p.bias, p, ranges)
    if op_of(p.node) == "Gemm":
        made = b.op_of("", "Gemm", [x, weight, *[bias] * (bias is not None)], p.node.attributes)
    else:
        made = b.op("MatMul", x, weight)
        made = made if bias is None else b.op("Add", made, bias)
    widths = [p.width(r) for r in ranges]
    parts = b.ops_of("", "Split", [made, b.ints(*widths)], {"axis": -1}, len(ranges))
    for part in (made, *parts):
        part.type = value.type
    done = list[ir.Node | None]()
    for taker in p.takers:
        for (start, end), old in zip(taker.ranges, taker.node.outputs, strict=True):
            dims, perm, squeezed = [*p.columns], list(p.perm), _squeezed(view, old, p.perm.index(p.lead + p.part))
            dims[p.part], old = end - start, squeezed or old
            if taker.single or squeezed is not None:
                del dims[p.part]
                gone = p.lead + p.part
                perm = [axis - (axis > gone) for axis in perm if axis != gone]
            new = b.op("Reshape", parts[ranges.index((start, end))], _shape(view, p, b, dims))
            if perm != sorted(perm):
                new = b.op("Transpose", new, perm=perm)
            new.type, new.shape = old.type, old.shape
            old.replace_all_uses_with(new)
            done += [old.producer()]
    view.model.graph.insert_after(p.reshape, b.nodes)
    sweep([node for node in done if node is not None])


def _squeezed(view: GraphView, value: ir.Value, axis: int) -> ir.Value | None:
    """The value without an axis of one place, where that is what is read of it."""
    node = _reader(value, "Squeeze")
    if node is None or axes_of(view, node) not in ([axis], [axis - len(view.shape(value) or ())]):
        return None
    return None if node.outputs[0].is_graph_output() else node.outputs[0]


def _ordered(
    view: GraphView,
    b: OnnxBuilder,
    value: ir.Value,
    p: _Projection,
    ranges: Sequence[tuple[int, int]],
    *,
    rows_first: bool = False,
) -> ir.Value:
    """A weight or bias with the columns of each of the parts behind those of the one before."""
    axis, total = p.part + rows_first, p.columns[p.part]
    behind_each_other = prod(p.columns[: p.part]) == 1 and ranges[0][0] == 0 and ranges[-1][1] == total
    if behind_each_other and all(first[1] == second[0] for first, second in pairwise(ranges)):
        return value
    shape = [d for d in view.shape(value) or () if isinstance(d, int)]
    rows = [] if len(shape) == 1 else [shape[0 if rows_first else 1]]
    before, after = (rows, []) if rows_first else ([], rows)
    apart = b.op("Reshape", value, b.ints(*before, *p.columns, *after))
    made = []
    for start, end in ranges:
        cut = b.op("Slice", apart, *(b.ints(n) for n in (start, end, axis)))
        made.append(b.op("Reshape", cut, b.ints(*before, p.width((start, end)), *after)))
    return b.op_of("", "Concat", made, {"axis": len(before)})


def _shape(view: GraphView, p: _Projection, b: OnnxBuilder, columns: Sequence[int]) -> ir.Value:
    """The shape of a part with those dims in place of its columns."""
    asked, whole = p.reshape.inputs[1], view.shape(p.reshape.outputs[0])
    assert asked is not None and whole is not None
    rows = view.shape(p.value)
    if rows is not None and None not in rows and rows[:-1] == whole[: p.lead]:
        return b.ints(*[0] * p.lead, *columns)
    lead = b.op("Slice", asked, b.ints(0), b.ints(p.lead), b.ints(0))
    return b.op_of("", "Concat", [lead, b.ints(*columns)], {"axis": 0})
