"""Small changes to a model, each of which may or may not leave an attention in it: what a random test composes.

Every change is `(model, pick) -> bool`: it edits the model at the `pick`-th place where it applies, counted round, and says
whether there was one. A changed model need not be valid; whoever uses these asks onnxruntime.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

FLOATS = (T.FLOAT, T.FLOAT16, T.DOUBLE, T.BFLOAT16)
Change = Callable[[onnx.ModelProto, int], bool]
X = TypeVar("X")

_LIKE = {
    "Add": ("Sub", "Mul", "Max"),
    "Sub": ("Add", "Div"),
    "Mul": ("Div", "Add"),
    "Div": ("Mul", "Sub"),
    "Softmax": ("LogSoftmax", "Hardmax"),
    "ReduceMax": ("ReduceMin", "ReduceSum"),
    "ReduceSum": ("ReduceMax", "ReduceMean"),
    "Exp": ("Abs", "Softplus"),
    "Tanh": ("Sin", "Abs", "Sigmoid"),
    "And": ("Or", "Xor"),
    "Or": ("And",),
    "Greater": ("Less", "GreaterOrEqual"),
    "GreaterOrEqual": ("Greater", "LessOrEqual"),
    "Less": ("Greater", "LessOrEqual"),
    "LessOrEqual": ("GreaterOrEqual", "Less"),
    "Equal": ("Greater", "Less"),
    "IsNaN": ("IsInf",),
    "Identity": ("Neg", "Abs"),
    "Not": ("Identity",),
    "Max": ("Min",),
    "Min": ("Max",),
    "Sqrt": ("Abs",),
    "Neg": ("Abs",),
}
"""Ops that take the same operands and mean something else."""


def _pick(items: Sequence[X], pick: int) -> X | None:
    return items[pick % len(items)] if items else None


def _types(model: onnx.ModelProto) -> dict[str, int]:
    """Element types of what the nodes make, as far as ONNX's inference knows them."""
    inferred = onnx.shape_inference.infer_shapes(model).graph
    infos = (*inferred.value_info, *inferred.output)
    return {i.name: i.type.tensor_type.elem_type for i in infos}


def _floats(model: onnx.ModelProto) -> list[str]:
    """Float values that nodes make and nobody outside sees yet."""
    types, taken = _types(model), {o.name for o in model.graph.output}
    made = [o for n in model.graph.node for o in n.output]
    return [o for o in made if types.get(o) in FLOATS and o not in taken]


def _fresh(model: onnx.ModelProto, stem: str) -> str:
    return f"{stem}{len(model.graph.node)}"


def _output(model: onnx.ModelProto, name: str, kind: int) -> None:
    model.graph.output.append(h.make_tensor_value_info(name, kind, None))


def show(model: onnx.ModelProto, pick: int) -> bool:
    """An inner value becomes an output of the graph."""
    value = _pick(_floats(model), pick)
    if value is not None:
        _output(model, value, _types(model)[value])
    return value is not None


def read(model: onnx.ModelProto, pick: int) -> bool:
    """Another node reads an inner value."""
    value = _pick(_floats(model), pick)
    if value is not None:
        name = _fresh(model, "read")
        op = ("Abs", "Neg", "Identity", "IsNaN")[pick // 7 % 4]
        model.graph.node.append(h.make_node(op, [value], [name], name=name))
        _output(model, name, T.BOOL if op == "IsNaN" else _types(model)[value])
    return value is not None


def read_in_branch(model: onnx.ModelProto, pick: int) -> bool:
    """A branch of an If reads an inner value that is not among the If's inputs."""
    value = _pick(_floats(model), pick)
    if value is not None:
        name, kind = _fresh(model, "branch"), _types(model)[value]
        branches = {
            f"{which}_branch": h.make_graph(
                [h.make_node(op, [value], [f"{name}_{which}"], name=f"{name}_{which}_node")],
                f"{name}_{which}_graph",
                [],
                [h.make_tensor_value_info(f"{name}_{which}", kind, None)],
            )
            for which, op in (("then", "Neg"), ("else", "Abs"))
        }
        model.graph.initializer.append(nh.from_array(np.asarray(bool(pick % 2)), f"{name}_test"))
        model.graph.node.append(h.make_node("If", [f"{name}_test"], [name], name=name, **branches))
        _output(model, name, kind)
    return value is not None


def feed_back(model: onnx.ModelProto, pick: int) -> bool:
    """The sum of an inner value is added to the result."""
    value = _pick(_floats(model), pick)
    if value is not None:
        name, last = _fresh(model, "back"), model.graph.output[0]
        model.graph.node.append(h.make_node("ReduceSum", [value], [f"{name}_sum"], name=f"{name}_sum", keepdims=0))
        model.graph.node.append(h.make_node("Add", [last.name, f"{name}_sum"], [name], name=name))
        _output(model, name, last.type.tensor_type.elem_type)
    return value is not None


def twin(model: onnx.ModelProto, pick: int) -> bool:
    """All nodes from the `pick`-th on are there twice; the copies share what lies before, and the graph's inputs."""
    graph = model.graph
    start = pick % len(graph.node)
    names = {o: f"{o}_twin" for n in graph.node[start:] for o in n.output if o}
    kinds = {o.name: o.type.tensor_type.elem_type for o in graph.output}
    for node in list(graph.node[start:]):
        copy = NodeProto()
        copy.CopyFrom(node)
        copy.name = f"{node.name}_twin"
        for field in (copy.input, copy.output):
            renamed = [names.get(i, i) for i in field]
            del field[:]
            field.extend(renamed)
        graph.node.append(copy)
    for name, kind in kinds.items():
        if name in names:
            _output(model, names[name], kind)
    return True


def twin_of_inputs(model: onnx.ModelProto, pick: int) -> bool:
    """All nodes are there twice, and the copies read inputs of their own where a bit of `pick` says so: shared K and V, say."""
    graph = model.graph
    before = list(graph.input)
    twin(model, 0)
    own = {i.name: f"{i.name}_twin" for bit, i in enumerate(before) if pick >> bit & 1}
    for info in before:
        if info.name in own:
            copy = onnx.ValueInfoProto()
            copy.CopyFrom(info)
            copy.name = own[info.name]
            graph.input.append(copy)
    for node in graph.node[len(graph.node) // 2 :]:
        renamed = [own.get(i, i) for i in node.input]
        del node.input[:]
        node.input.extend(renamed)
    return True


def chain(model: onnx.ModelProto, pick: int) -> bool:
    """The twin's first input is the first one's result."""
    graph = model.graph
    first, source = graph.input[pick % len(graph.input)].name, graph.output[0].name
    twin(model, 0)
    for node in graph.node[len(graph.node) // 2 :]:
        renamed = [source if i == first else i for i in node.input]
        del node.input[:]
        node.input.extend(renamed)
    return True


def turn(model: onnx.ModelProto, pick: int) -> bool:
    """Another axis, or another permutation."""
    places = [(n, a) for n in model.graph.node for a in n.attribute if a.name in ("axis", "axes", "perm")]
    place = _pick(places, pick)
    if place is None:
        return False
    attr, step = place[1], 1 + pick // 5 % 2
    if attr.type == AttributeProto.INT:
        if attr.i:
            attr.i -= step
    else:
        ints = list(attr.ints)
        del attr.ints[:]
        attr.ints.extend(ints[step % len(ints) :] + ints[: step % len(ints)])
    return True


def swap(model: onnx.ModelProto, pick: int) -> bool:
    """Two operands of a node change places."""
    node = _pick([n for n in model.graph.node if len(n.input) > 1], pick)
    if node is None:
        return False
    i = pick // 11 % (len(node.input) - 1)
    a, b = node.input[i], node.input[i + 1]
    node.input[i], node.input[i + 1] = b, a
    return True


def replace_op(model: onnx.ModelProto, pick: int) -> bool:
    """A node becomes another op of the same operands."""
    node = _pick([n for n in model.graph.node if n.op_type in _LIKE], pick)
    if node is None:
        return False
    others = _LIKE[node.op_type]
    node.op_type = others[pick // 13 % len(others)]
    return True


def edit_constant(model: onnx.ModelProto, pick: int) -> bool:
    """One element of a constant changes, or all of a float one."""
    tensor = _pick([i for i in model.graph.initializer if np.prod(i.dims) > 0], pick)
    if tensor is None:
        return False
    array = nh.to_array(tensor).copy()
    flat = array.reshape(-1)
    at = pick // 3 % flat.size
    if array.dtype == np.bool_:
        flat[at] = not flat[at]
    elif array.dtype.kind == "f":
        new = (0.0, -1.0, 0.5, -5.0, -1e4, -np.inf, np.inf, np.nan, 7.0)[pick // 17 % 9]
        flat[at if pick % 2 else slice(None)] = new
    else:
        flat[at : at + 1] += np.asarray((1, -1)[pick % 2]).astype(array.dtype)  # unsigned ones wrap around
    tensor.CopyFrom(nh.from_array(array, tensor.name))
    return True


def shrink_input(model: onnx.ModelProto, pick: int) -> bool:
    """One dim of an input becomes 1, so that something else must broadcast."""
    places = [d for i in model.graph.input for d in i.type.tensor_type.shape.dim if d.dim_value > 1]
    dim = _pick(places, pick)
    if dim is not None:
        dim.dim_value = 1
    return dim is not None


def drop_dim(model: onnx.ModelProto, pick: int) -> bool:
    """An input loses its first dim."""
    places = [i for i in model.graph.input if len(i.type.tensor_type.shape.dim) > 1]
    info = _pick(places, pick)
    if info is not None:
        del info.type.tensor_type.shape.dim[0]
    return info is not None


def share_input(model: onnx.ModelProto, pick: int) -> bool:
    """Two inputs become one (K is V, or Q is K)."""
    inputs = list(model.graph.input)
    kinds = {i.name: i.type.tensor_type.elem_type for i in inputs}
    pairs = [(a, b) for a in inputs for b in inputs if a is not b and kinds[a.name] == kinds[b.name]]
    pair = _pick(pairs, pick)
    if pair is None:
        return False
    keep, drop = pair
    for node in model.graph.node:
        renamed = [keep.name if i == drop.name else i for i in node.input]
        del node.input[:]
        node.input.extend(renamed)
    model.graph.input.remove(drop)
    return True


def skip_node(model: onnx.ModelProto, pick: int) -> bool:
    """A node with a single output is left out: its readers read its first operand."""
    outputs = {o.name for o in model.graph.output}
    node = _pick([n for n in model.graph.node if len(n.output) == 1 and n.input and n.output[0] not in outputs], pick)
    if node is None:
        return False
    gone, instead = node.output[0], node.input[0]
    model.graph.node.remove(node)
    for other in model.graph.node:
        renamed = [instead if i == gone else i for i in other.input]
        del other.input[:]
        other.input.extend(renamed)
    return True


def insert_node(model: onnx.ModelProto, pick: int) -> bool:
    """An elementwise op, or one that moves axes, between a float value and all its readers."""
    value = _pick(_floats(model), pick)
    if value is None:
        return False
    op = ("Neg", "Abs", "Relu", "Identity", "Sigmoid", "Exp", "Transpose", "Softmax", "Dropout")[pick // 7 % 9]
    name = _fresh(model, "put")
    at = next(i for i, n in enumerate(model.graph.node) if value in n.output)
    for node in model.graph.node[at + 1 :]:
        renamed = [name if i == value else i for i in node.input]
        del node.input[:]
        node.input.extend(renamed)
    model.graph.node.insert(at + 1, h.make_node(op, [value], [name], name=name))
    return True


def mask_more(model: onnx.ModelProto, pick: int) -> bool:
    """One more constant mask right before a softmax: added or selected, with any of the usual fills."""
    places = [n for n in model.graph.node if n.op_type in ("Softmax", "ReduceMax")]
    found = _pick(places, pick)
    if found is None:
        return False
    value, name = found.input[0], _fresh(model, "masked")
    made = next((i for i, n in enumerate(model.graph.node) if value in n.output), -1)
    shapes = {i.name: i.type.tensor_type.shape for i in onnx.shape_inference.infer_shapes(model).graph.value_info}
    if made < 0 or value not in shapes or not shapes[value].dim or not shapes[value].dim[-1].dim_value:
        return False
    length = shapes[value].dim[-1].dim_value
    keep = np.arange(length) % (2 + pick // 5 % 3) != pick // 5 % 2
    fill = np.float32((-np.inf, np.finfo(np.float32).min, -1e9, -1e4)[pick // 3 % 4])
    way = pick % 3
    mask = nh.from_array(np.where(keep, np.float32(0), fill) if way == 0 else keep, f"{name}_mask")
    model.graph.initializer.extend(
        [mask, nh.from_array(fill, f"{name}_fill"), nh.from_array(np.float32(0), f"{name}_0")]
    )
    if way == 0:
        nodes = [h.make_node("Add", [value, mask.name], [name], name=name)]
    elif way == 1:
        nodes = [h.make_node("Where", [mask.name, value, f"{name}_fill"], [name], name=name)]
    else:
        nodes = [
            h.make_node("Where", [mask.name, f"{name}_0", f"{name}_fill"], [f"{name}_bias"], name=f"{name}_where"),
            h.make_node("Add", [f"{name}_bias", value], [name], name=name),
        ]
    for other in model.graph.node[made + 1 :]:
        renamed = [name if i == value else i for i in other.input]
        del other.input[:]
        other.input.extend(renamed)
    for node in reversed(nodes):
        model.graph.node.insert(made + 1, node)
    return True


CHANGES: dict[str, Change] = {
    c.__name__: c
    for c in (
        mask_more,
        read,
        show,
        twin,
        twin_of_inputs,
        share_input,
        shrink_input,
        chain,
        read_in_branch,
        feed_back,
        drop_dim,
        edit_constant,
        turn,
        swap,
        replace_op,
        skip_node,
        insert_node,
    )
}
"""By name; those that leave the attention itself as it was come first."""


def symbolise(model: onnx.ModelProto, pick: int) -> None:
    """Some dims of the inputs become symbols. The lowest bit of `pick` says whether every dim gets a symbol of its own, even a dim
    of 1, or all dims of one size (above 1) share one; the other bits say which."""
    own = pick & 1
    for i, info in enumerate(model.graph.input):
        for j, dim in enumerate(info.type.tensor_type.shape.dim):
            size = dim.dim_value
            bit = (i * 5 + j) % 12 if own else size % 12
            if dim.HasField("dim_value") and (own or size > 1) and pick >> (1 + bit) & 1:
                dim.dim_param = f"s{i}_{j}" if own else f"n{size}"
