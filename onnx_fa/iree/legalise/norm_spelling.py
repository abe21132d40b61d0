"""How graphs spell a norm of rows in small operators, from the square root of its mean square outward:

    d = x, or Sub(x, ReduceMean(x))
    r = Sqrt(Add(ReduceMean(Pow(d, 2) or Mul(d, d)), epsilon))
    y = Div(d, r) or Mul(d, Reciprocal(r)), then a Mul and an Add by a number of each column, and a Cast somewhere behind

Statistics are of f32 alone: a graph that takes them in a narrower type rounds, and overflows, where a kernel would not."""

from __future__ import annotations

from dataclasses import dataclass

import onnx
from onnx import TensorProto

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.writer import FLOATS, GraphWriter, attr_of


@dataclass(frozen=True)
class Spelled:
    """A norm of the rows of x that makes y; `scale` and `bias` are "" where there is none. `places` are those of its nodes."""

    x: str
    y: str
    epsilon: float
    centred: bool
    scale: str
    bias: str
    places: tuple[int, ...]


def read_norm(g: GraphWriter, root: onnx.NodeProto) -> Spelled | None:
    """The norm whose mean square a Sqrt is the root of; None where it is no norm, or others read what lies within it."""
    square = _mean_square(g, root.input[0])
    if square is None or g.kind(root.output[0]) != TensorProto.FLOAT:
        return None
    d, epsilon, within = square
    y = _divided(g, d, root)
    if y is None:
        return None
    normal, more = y
    within += [root, *more]
    x, centred = d, False
    sub = g.maker(d)
    if sub is not None and op_of(sub) == "Sub" and (mean := _row_mean(g, sub.input[1])):
        if mean.input[0] != sub.input[0]:
            return None
        x, centred = sub.input[0], True
        within += [sub, mean]
    value, scale, bias, behind = _behind(g, normal)
    if not _is_whole(g, [*within, *behind], {value}):
        return None
    x, before = _before(g, x, within)
    places = _places(g, [*before, *within, *behind])
    return Spelled(x, value, epsilon, centred, scale, bias, places)


def _mean_square(g: GraphWriter, value: str) -> tuple[str, float, list[onnx.NodeProto]] | None:
    """d, epsilon and the nodes, where a value is the mean of d's squares over rows, plus epsilon."""
    add = g.maker(value)
    if add is None or op_of(add) != "Add":
        return None
    for mean_name, number in (tuple(add.input), tuple(add.input)[::-1]):
        epsilon, mean = _number(g, number), _row_mean(g, mean_name)
        if epsilon is None or mean is None or epsilon < 0:
            continue
        square = g.maker(mean.input[0])
        if square is None:
            return None
        op, (first, *rest) = op_of(square), square.input
        if (op == "Mul" and rest == [first]) or (op == "Pow" and _number(g, rest[0]) == 2):
            return first, epsilon, [add, mean, square]
    return None


def _row_mean(g: GraphWriter, value: str) -> onnx.NodeProto | None:
    """The ReduceMean over the last axis, which stays as one of 1, that makes a value."""
    node = g.maker(value)
    if node is None or op_of(node) != "ReduceMean" or attr_of(node, "keepdims", 1) != 1:
        return None
    shape, axes = g.shape(node.input[0]), attr_of(node, "axes", None)
    if len(node.input) > 1 and node.input[1]:
        array = g.array(node.input[1])
        axes = None if array is None else [int(a) for a in array.reshape(-1)]
    if shape is None or axes is None or len(axes) != 1:
        return None
    return node if axes[0] in (-1, len(shape) - 1) else None


def _number(g: GraphWriter, value: str) -> float | None:
    """The one number of a constant."""
    if not g.is_constant(value) or not g.is_one_number(value):
        return None
    array = g.array(value)
    return None if array is None else float(array.reshape(()))


def _divided(g: GraphWriter, d: str, root: onnx.NodeProto) -> tuple[str, list[onnx.NodeProto]] | None:
    """d by the root, and the nodes that compute it."""
    reader = _only_reader(g, root.output[0])
    if reader is None:
        return None
    if op_of(reader) == "Div" and list(reader.input) == [d, root.output[0]]:
        return reader.output[0], [reader]
    if op_of(reader) != "Reciprocal":
        return None
    product = _only_reader(g, reader.output[0])
    if product is None or op_of(product) != "Mul" or sorted(product.input) != sorted([d, reader.output[0]]):
        return None
    return product.output[0], [reader, product]


def _behind(g: GraphWriter, value: str) -> tuple[str, str, str, list[onnx.NodeProto]]:
    """What a scale, a bias and a Cast make of a value: the last of these, the scale, the bias, the nodes."""
    scale = bias = ""
    nodes: list[onnx.NodeProto] = []
    shape = g.shape(value)
    while (node := _only_reader(g, value)) is not None:
        op = op_of(node)
        others = [name for name in node.input if name != value]
        column = others[0] if len(others) == 1 and shape is not None and g.shape(others[0]) == shape[-1:] else ""
        if op == "Cast" and FLOATS.get(attr_of(node, "to", 0)) and not any(op_of(n) == "Cast" for n in nodes):
            pass
        elif op == "Mul" and column and not scale and not bias:
            scale = column
        elif op == "Add" and column and not bias:
            bias = column
        else:
            break
        nodes.append(node)
        value = node.output[0]
    return value, scale, bias, nodes


def _before(g: GraphWriter, x: str, within: list[onnx.NodeProto]) -> tuple[str, list[onnx.NodeProto]]:
    """x in front of a Cast to f32, and that Cast where the norm alone reads it."""
    node = g.maker(x)
    if node is None or op_of(node) != "Cast" or FLOATS.get(g.kind(node.input[0])) is None:
        return x, []
    alone = not g.is_output(x) and set(g.readers(x)) <= set(_places(g, within))
    return node.input[0], [node] * alone


def _only_reader(g: GraphWriter, value: str) -> onnx.NodeProto | None:
    readers = g.readers(value)
    return g.graph.node[readers[0]] if len(readers) == 1 and not g.is_output(value) else None


def _is_whole(g: GraphWriter, nodes: list[onnx.NodeProto], given: set[str]) -> bool:
    """Whether nothing else reads what these nodes make, but for the values that they give."""
    places = set(_places(g, nodes))
    inner = [name for node in nodes for name in node.output if name not in given]
    return all(not g.is_output(name) and places.issuperset(g.readers(name)) for name in inner)


def _places(g: GraphWriter, nodes: list[onnx.NodeProto]) -> tuple[int, ...]:
    """Where nodes stand in the graph, in order."""
    return tuple(sorted({g.place(node.output[0]) for node in nodes}))
