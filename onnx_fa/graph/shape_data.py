"""What small integer tensors hold that are computed from shapes: one rule for every operator that does so.

Elements are dims: ints, texts of lengths, or None where nothing is known; in tensors of floats also floats that are not whole. A
tensor is a NumPy array of them, so that what moves elements is NumPy's own function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnx_fa.graph.axes import OPEN_END, Const, node_axes, placed_axes
from onnx_fa.graph.dims import (
    Shape,
    add_dims,
    compare_dims,
    divide_dims,
    larger_dim,
    multiply_dims,
    product_of,
    raise_dim,
    remainder_dim,
    smaller_dim,
    subtract_dims,
)
from onnx_fa.graph.ops import attr_int, op_of
from onnx_fa.graph.shape_floats import Element, are_numbers, cast_number, compute, is_computed
from onnx_fa.spec.terms import Dim

Data = npt.NDArray[Any]
MOST_ELEMENTS = 64
"""Elements of a tensor that is followed; no shape is longer."""
_INTEGERS = frozenset((ir.DataType.INT64, ir.DataType.INT32))
_WHOLE = (*_INTEGERS, ir.DataType.FLOAT, ir.DataType.DOUBLE, None)
"""Types that hold every length."""


class Inputs:
    """The inputs of a node as far as they are known: `data` by position, and the `shape` of one. `is_length`: whether a
    symbol is known to be the length of something, and so not negative."""

    def __init__(
        self,
        node: ir.Node,
        data: Callable[[ir.Value | None], Data | None],
        shape: Callable[[ir.Value], Shape | None],
        const: Const,
        is_length: Callable[[str], bool],
    ) -> None:
        self.node, self._data, self._shape, self.const = node, data, shape, const
        self.is_length = is_length

    def data(self, position: int) -> Data | None:
        return self._data(self.node.inputs[position]) if position < len(self.node.inputs) else None

    def numbers(self, position: int) -> list[int] | None:
        """The elements of an input if all of them are ints."""
        data = self.data(position)
        if data is None or not all(isinstance(x, int) for x in data.flat):
            return None
        return [int(x) for x in data.flat]

    def shape(self, position: int = 0) -> Shape | None:
        value = self.node.inputs[position]
        return None if value is None else self._shape(value)


def data_of(inputs: Inputs) -> Data | None:
    """The elements of what a node makes; None for what is no shape computation, or not known."""
    kind = op_of(inputs.node)
    rule = _RULES.get(kind)
    if kind in _ELEMENTWISE:
        made = _elementwise(inputs)
    else:
        made = None if rule is None else rule(inputs)
    return made if made is not None and made.size <= MOST_ELEMENTS else None


def split_data(node: ir.Node, data: Data | None, shapes: Sequence[Shape | None]) -> dict[ir.Value, Data]:
    """The elements of what a Split of a vector makes, whose results have these shapes; {} where some length is not known."""
    lengths = [shape[0] for shape in shapes if shape is not None and len(shape) == 1]
    sizes = [size for size in lengths if isinstance(size, int) and size >= 0]
    if data is None or data.ndim != 1 or len(sizes) != len(node.outputs) or sum(sizes) != data.size:
        return {}
    return dict(zip(node.outputs, np.split(data, np.cumsum(sizes)[:-1]), strict=True))


def _objects(values: Any) -> Data:
    made: Data = np.empty(len(values), object)
    made[:] = values
    return made


def _shape(inputs: Inputs) -> Data | None:
    dims, node = inputs.shape(), inputs.node
    start, end = (node.attributes[n].as_int() if n in node.attributes else None for n in ("start", "end"))
    return None if dims is None else _objects(dims[slice(start, end)])


def _size(inputs: Inputs) -> Data | None:
    dims = inputs.shape()
    return None if dims is None else _objects([product_of(dims)]).reshape(())


def _concat(inputs: Inputs) -> Data | None:
    found = [inputs.data(i) for i in range(len(inputs.node.inputs))]
    axis = attr_int(inputs.node, "axis", 0)
    if all(p is None for p in found):
        return None
    parts = [_unknown(inputs, i) if p is None else p for i, p in enumerate(found)]
    known = [p for p in parts if p is not None]
    if len(known) != len(parts) or any(p.ndim != known[0].ndim or not -p.ndim <= axis < p.ndim for p in known):
        return None
    sizes = {(*p.shape[: axis % p.ndim], *p.shape[axis % p.ndim + 1 :]) for p in known}
    return np.concatenate(known, axis) if len(sizes) == 1 else None


def _unknown(inputs: Inputs, position: int) -> Data | None:
    """As many unknown elements as an input has, beside others that are known."""
    dims = inputs.shape(position)
    sizes = [d for d in dims or () if isinstance(d, int)]
    if dims is None or len(sizes) < len(dims) or np.prod(sizes) > MOST_ELEMENTS:
        return None
    return np.full(sizes, None, object)


def _cast(inputs: Inputs) -> Data | None:
    data, dtype = inputs.data(0), inputs.node.outputs[0].dtype
    if dtype == ir.DataType.BOOL and data is not None:
        nonzero = [1 if isinstance(x, float) else compare_dims(compare_dims(x, 0), 0) for x in data.flat]
        return _objects(nonzero).reshape(data.shape)
    if data is None or dtype not in _WHOLE:
        return None
    return _objects([cast_number(x, dtype) for x in data.flat]).reshape(data.shape)


def _same(inputs: Inputs) -> Data | None:
    return inputs.data(0)


def _units(inputs: Inputs) -> Data | None:
    """Unsqueeze and Squeeze."""
    data, axes = inputs.data(0), node_axes(inputs.node, inputs.const)
    if data is None:
        return None
    if op_of(inputs.node) == "Squeeze":
        if axes is None:
            given = len(inputs.node.inputs) > 1 and inputs.node.inputs[1] is not None
            return None if given else data.reshape([n for n in data.shape if n != 1])
        gone = placed_axes(axes, data.ndim)
        if gone is None or any(data.shape[a] != 1 for a in gone):
            return None
        return data.reshape([n for a, n in enumerate(data.shape) if a not in gone])
    put = None if axes is None else placed_axes(axes, data.ndim + len(axes))
    return None if put is None else np.expand_dims(data, tuple(put))


def _reshape(inputs: Inputs) -> Data | None:
    data, to = inputs.data(0), inputs.numbers(1)
    if data is None or to is None:
        return None
    if not attr_int(inputs.node, "allowzero", 0):
        to = [data.shape[i] if n == 0 and i < data.ndim else n for i, n in enumerate(to)]
    try:
        return data.reshape(to)
    except ValueError:
        return None  # the node fails too


def _transpose(inputs: Inputs) -> Data | None:
    data, node = inputs.data(0), inputs.node
    if data is None:
        return None
    perm = node.attributes["perm"].as_ints() if "perm" in node.attributes else range(data.ndim)[::-1]
    return data.transpose(perm) if sorted(perm) == list(range(data.ndim)) else None


def _gather(inputs: Inputs) -> Data | None:
    data, at = inputs.data(0), inputs.data(1)
    axis = attr_int(inputs.node, "axis", 0)
    if data is None or at is None or inputs.numbers(1) is None or not -data.ndim <= axis < data.ndim:
        return None
    size = data.shape[axis]
    if any(not -size <= i < size for i in at.flat):
        return None
    return np.asarray(np.take(data, at.astype(np.int64), axis), object)


def _slice(inputs: Inputs) -> Data | None:
    data, node = inputs.data(0), inputs.node
    if data is None:
        return None
    if len(node.inputs) < 3:  # before opset 10
        starts, ends = (
            list(node.attributes[n].as_ints()) if n in node.attributes else None for n in ("starts", "ends")
        )
        axes: list[int] | None = list(node.attributes["axes"].as_ints()) if "axes" in node.attributes else None
        given, steps = (True, True), None
    else:
        starts, ends, axes, steps = (inputs.numbers(i) for i in range(1, 5))
        given = (len(node.inputs) < 4 or node.inputs[3] is None, len(node.inputs) < 5 or node.inputs[4] is None)
    if starts is None or ends is None:
        return None
    axes = list(range(len(starts))) if given[0] and axes is None else axes
    steps = [1] * len(starts) if given[1] else steps
    if axes is None or steps is None or {len(ends), len(axes), len(steps)} != {len(starts)} or 0 in steps:
        return None
    cut = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if not -data.ndim <= axis < data.ndim:
            return None
        # Python takes -1 for the last element where ONNX means "before the first" only from here on.
        last = None if step < 0 and end <= -OPEN_END else end
        cut[axis] = slice(start, last, step)
    return data[tuple(cut)]


def _expand(inputs: Inputs) -> Data | None:
    data, to = inputs.data(0), inputs.numbers(1)
    if data is None or to is None or min(to, default=0) < 0 or np.prod(to) > MOST_ELEMENTS:
        return None
    try:
        return np.broadcast_to(data, np.broadcast_shapes(data.shape, tuple(to)))
    except ValueError:
        return None  # the node fails too


def _scatter(inputs: Inputs) -> Data | None:
    """ScatterND of single elements into a vector: how a dim of a shape is replaced."""
    data, at, put, node = inputs.data(0), inputs.numbers(1), inputs.data(2), inputs.node
    replaces = "reduction" not in node.attributes or node.attributes["reduction"].as_string() == "none"
    if data is None or at is None or put is None or not replaces or data.ndim != 1 or put.shape != (len(at),):
        return None
    if any(not -data.size <= i < data.size for i in at):
        return None
    if len({i % data.size for i in at}) < len(at):
        return None  # of two values for one place it is not said which one stays
    made = data.copy()
    made[at] = put
    return made


def _constant(inputs: Inputs) -> Data | None:
    dims, node = inputs.numbers(0), inputs.node
    fill = node.attributes["value"].as_tensor().numpy() if "value" in node.attributes else None
    if dims is None or fill is None or fill.dtype.kind not in "iu" or len(dims) > 2 or min(dims, default=0) < 0:
        return None
    return np.full(dims, int(fill.reshape(-1)[0]), object) if np.prod(dims) <= MOST_ELEMENTS else None


def _range(inputs: Inputs) -> Data | None:
    bounds = [inputs.numbers(i) for i in range(3)]
    (start, end, step) = (b[0] if b else None for b in bounds)
    if start is None or end is None or not step or abs(end - start) > MOST_ELEMENTS:
        return None
    return _objects(list(range(start, end, step)))


def _reducing(pick: Callable[[Dim | None, Dim | None], Dim | None]) -> Callable[[Inputs], Data | None]:
    def rule(inputs: Inputs) -> Data | None:
        data, node = inputs.data(0), inputs.node
        if data is None or not data.size or attr_int(node, "noop_with_empty_axes", 0) or _has_floats(data):
            return None
        axes = node_axes(node, inputs.const)
        if axes is None and len(node.inputs) > 1 and node.inputs[1] is not None:
            return None
        if data.ndim > 1 and axes is not None and len(axes) != data.ndim:
            return None
        whole: Data = _objects([reduce(pick, data.flat)])
        return whole.reshape([1] * data.ndim if attr_int(node, "keepdims", 1) == 1 else [])

    return rule


def _elementwise(inputs: Inputs) -> Data | None:
    node, kind = inputs.node, op_of(inputs.node)
    parts = [inputs.data(i) for i in range(len(node.inputs))]
    known = [p for p in parts if p is not None]
    if len(known) != len(parts) or (kind == "Mod" and attr_int(node, "fmod", 0)):
        return None
    whole = any(v is not None and v.dtype in _INTEGERS for v in (*node.outputs, *node.inputs))
    try:
        shape = np.broadcast_shapes(*(p.shape for p in known))
    except ValueError:
        return None  # the node fails too
    rows = zip(*(np.broadcast_to(p, shape).flat for p in known), strict=True)
    more = {"Div": partial(divide_dims, whole=whole, is_length=inputs.is_length), "Equal": partial(_equal, inputs)}
    rule = more.get(kind, _ELEMENTWISE[kind])
    return _objects([_apply(inputs, rule, row, whole) for row in rows]).reshape(shape)


def _apply(inputs: Inputs, rule: Callable[..., Dim | None], row: tuple[Element, ...], whole: bool) -> Element:
    """`rule` of dims, or what the operator computes of floats. `whole`: the node reads or makes integers."""
    kind, dtype = op_of(inputs.node), inputs.node.outputs[0].dtype
    if not whole and is_computed(kind, dtype) and are_numbers(row):
        return compute(kind, row, dtype)
    return None if any(isinstance(x, float) for x in row) else rule(*row)


def _has_floats(data: Data) -> bool:
    return any(isinstance(x, float) for x in data.flat)


def _clip(inputs: Inputs) -> Data | None:
    """Clip with bounds that are inputs, as from opset 11 on."""
    data, node = inputs.data(0), inputs.node
    if data is None or any(name in node.attributes for name in ("min", "max")):
        return None
    for position, pick, number in ((1, larger_dim, max), (2, smaller_dim, min)):
        if position >= len(node.inputs) or node.inputs[position] is None:
            continue
        bound = inputs.data(position)
        if bound is None or bound.size != 1:
            return None
        (end,) = bound.flat
        data = _objects([_bounded(pick, number, x, end) for x in data.flat]).reshape(data.shape)
    return data


def _bounded(
    pick: Callable[[Dim | None, Dim | None], Dim | None], number: Callable[..., Element], x: Element, end: Element
) -> Element:
    if are_numbers((x, end)):
        return number(x, end)
    return None if isinstance(x, float) or isinstance(end, float) else pick(x, end)


def _equal(inputs: Inputs, a: Dim | None, b: Dim | None) -> Dim | None:
    """As `compare_dims`; a length is no negative number, as those that stand for a dim that an Expand keeps."""
    for length, number in ((a, b), (b, a)):
        if isinstance(number, int) and number < 0 and isinstance(length, str) and inputs.is_length(length):
            return 0
    return compare_dims(a, b)


def _where(test: Dim | None, yes: Dim | None, no: Dim | None) -> Dim | None:
    if not isinstance(test, int):
        return yes if yes == no else None
    return yes if test else no


_ELEMENTWISE: dict[str, Callable[..., Dim | None]] = {
    "Equal": compare_dims,
    "Where": _where,
    "Add": add_dims,
    "Sub": subtract_dims,
    "Mul": multiply_dims,
    "Div": divide_dims,
    "Mod": remainder_dim,
    "Pow": raise_dim,
    "Neg": lambda x: subtract_dims(0, x),
    "Not": lambda x: subtract_dims(1, x),
    **dict.fromkeys(("Ceil", "Floor", "Round"), lambda x: x),  # of dims, which are whole
    "Min": lambda *dims: reduce(smaller_dim, dims),
    "Max": lambda *dims: reduce(larger_dim, dims),
}
_RULES: dict[str, Callable[[Inputs], Data | None]] = {
    "Shape": _shape,
    "Size": _size,
    "Concat": _concat,
    "Cast": _cast,
    "Identity": _same,
    "Unsqueeze": _units,
    "Squeeze": _units,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Clip": _clip,
    "Gather": _gather,
    "Slice": _slice,
    "Expand": _expand,
    "ScatterND": _scatter,
    "ConstantOfShape": _constant,
    "Range": _range,
    "ReduceProd": _reducing(multiply_dims),
    "ReduceMax": _reducing(larger_dim),
    "ReduceMin": _reducing(smaller_dim),
    "ReduceSum": _reducing(add_dims),
}
