"""Changes to a graph that keep what it means or change it: the rewritten graph must equal the changed one either way."""

from __future__ import annotations

import copy
from collections.abc import Callable
from random import Random

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

from onnx_fa.graph.ops import op_of
from tests.support.graph_changes import CHANGES, FLOATS
from tests.support.on_bytes import OPERATORS

from .inputs import Feeds

Mutation = Callable[[onnx.ModelProto, Random], bool]
INTEGERS = (T.INT32, T.INT64)
Known = dict[str, tuple[int, tuple[int, ...] | None]]


def _known(model: onnx.ModelProto) -> Known:
    """Type and shape of every value, the shape None where ONNX's inference does not know all of it."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    known: Known = {i.name: (i.data_type, tuple(i.dims)) for i in graph.initializer}
    for info in (*graph.input, *graph.value_info, *graph.output):
        tensor = info.type.tensor_type
        sized = tensor.HasField("shape") and all(d.HasField("dim_value") for d in tensor.shape.dim)
        known[info.name] = (tensor.elem_type, tuple(d.dim_value for d in tensor.shape.dim) if sized else None)
    return known


def _readers(model: onnx.ModelProto) -> list[tuple[NodeProto, int]]:
    return [(n, i) for n in model.graph.node for i, x in enumerate(n.input) if x]


def _fresh(model: onnx.ModelProto) -> str:
    return f"mutated{len(model.graph.node)}_{len(model.graph.initializer)}"


def _between(model: onnx.ModelProto, place: tuple[NodeProto, int], nodes: list[NodeProto], out: str) -> None:
    """Nodes in front of one reader, which then reads `out`."""
    node, i = place
    at = list(model.graph.node).index(node)
    node.input[i] = out
    for new in reversed(nodes):
        model.graph.node.insert(at, new)


def foreign(model: onnx.ModelProto, r: Random) -> bool:
    """A node of a domain of the model's own, with the name of ONNX's op, that means something else, or the same."""
    nodes = [
        n for n in model.graph.node if not n.domain and len(n.output) == 1 and n.output[0] and n.input and all(n.input)
    ]
    nodes = [n for n in nodes if all(a.type != AttributeProto.GRAPH for a in n.attribute)]
    if not nodes:
        return False
    telling = [n for n in nodes if n.op_type in ("Identity", "Where", "Greater", "Equal", "Reciprocal", "IsNaN")]
    node = r.choice(telling if telling and r.random() < 0.5 else nodes)
    name = node.op_type
    if any(f.name == name for f in model.functions):
        return False
    kind = _known(model).get(node.output[0], (T.FLOAT, None))[0]
    body = NodeProto()
    body.CopyFrom(node)
    names = [f"x{i}" for i in range(len(node.input))]
    del body.input[:]
    body.input.extend(names)
    body.output[0] = "made"
    if kind == T.BOOL:
        change = r.choice(([("Not", "made")], [("Or", "made", "made")]))
    elif kind in FLOATS or kind in INTEGERS:
        change = r.choice(
            ([("Mul", "made", "made")], [("Neg", "made")], [("Add", "made", "made")], [("Identity", "made")])
        )
    else:
        change = [("Identity", "made")]
    op, *inputs = change[0]
    last = h.make_node(op, inputs, ["y"], name="last")
    opsets = [o for o in model.opset_import if o.domain in ("", "com.microsoft")]
    model.functions.append(h.make_function("my", name, names, ["y"], [body, last], opsets))
    node.domain = "my"
    del node.attribute[:]
    if not any(o.domain == "my" for o in model.opset_import):
        model.opset_import.append(h.make_opsetid("my", 1))
    return True


def narrow(model: onnx.ModelProto, r: Random) -> bool:
    """An integer, or a float, is cast to a narrower type and back before one reader."""
    known = _known(model)
    places = [p for p in _readers(model) if known.get(p[0].input[p[1]], (0, None))[0] in (*INTEGERS, *FLOATS)]
    whole = [p for p in places if known[p[0].input[p[1]]][0] in INTEGERS]
    if not places:
        return False
    place = r.choice(whole if whole and r.random() < 0.7 else places)
    kind = known[place[0].input[place[1]]][0]
    other = r.choice(
        (T.UINT8, T.INT8, T.INT16, T.UINT16, T.INT32, T.UINT32) if kind in INTEGERS else (T.FLOAT16, T.INT32, T.FLOAT)
    )
    name = _fresh(model)
    nodes = [
        h.make_node("Cast", [place[0].input[place[1]]], [f"{name}_n"], name=f"{name}_n", to=other),
        h.make_node("Cast", [f"{name}_n"], [name], name=name, to=kind),
    ]
    _between(model, place, nodes, name)
    return True


def arithmetic(model: onnx.ModelProto, r: Random) -> bool:
    """One reader gets a value behind a scale, a sum, a Clip or a negation, float or integer; a boolean is negated."""
    known = _known(model)
    places = [p for p in _readers(model) if known.get(p[0].input[p[1]], (0, None))[0] in (*INTEGERS, *FLOATS, T.BOOL)]
    if not places:
        return False
    place = r.choice(places)
    value = place[0].input[place[1]]
    kind, name = known[value][0], _fresh(model)
    if kind == T.BOOL:
        _between(model, place, [h.make_node("Not", [value], [name], name=name)], name)
        return True
    dtype = h.tensor_dtype_to_np_dtype(kind)
    op = r.choice(("Mul", "Add", "Sub", "Div", "Max", "Min", "Neg", "Abs"))
    constant = r.choice((1, 2, 3, -1) if kind in INTEGERS else (0.5, 2.0, -1.0, 1e-3, 1.0))
    if kind == T.INT64 and op == "Mul" and r.random() < 0.3:
        constant = r.choice((2**62, 2**32, 2**31))
    inputs = [value]
    if op not in ("Neg", "Abs"):
        model.graph.initializer.append(
            nh.from_array(np.asarray(constant, np.float64 if kind in FLOATS else np.int64).astype(dtype), f"{name}_c")
        )
        inputs = [value, f"{name}_c"] if r.random() < 0.7 or op in ("Div",) else [f"{name}_c", value]
    _between(model, place, [h.make_node(op, inputs, [name], name=name)], name)
    return True


def reroute(model: onnx.ModelProto, r: Random) -> bool:
    """One reader gets another value of the same type, and of the same shape where that is known."""
    known = _known(model)
    places = [p for p in _readers(model) if known.get(p[0].input[p[1]], (0, None))[0] in (*FLOATS, *INTEGERS, T.BOOL)]
    r.shuffle(places)
    for node, i in places[:8]:
        at = list(model.graph.node).index(node)
        before = [x.name for x in (*model.graph.input, *model.graph.initializer)]
        before += [o for n in list(model.graph.node)[:at] for o in n.output if o]
        same = [
            x for x in before if x != node.input[i] and known.get(x) == known[node.input[i]] and known[x][1] is not None
        ]
        if same:
            node.input[i] = r.choice(same)
            return True
    return False


def bound(model: onnx.ModelProto, r: Random) -> bool:
    """An integer constant becomes another: a bound, an axis, an index or a shape."""
    tensors = [i for i in model.graph.initializer if i.data_type in INTEGERS and np.prod(i.dims) > 0]
    if not tensors:
        return False
    tensor = r.choice(tensors)
    array = nh.to_array(tensor).copy()
    at = r.randrange(array.size)
    old = int(array.reshape(-1)[at])
    new = r.choice((old + 1, old - 1, -old, -1, 1, 2, 10, -10, 2**31 - 1))
    if new == 0 or (old == 0 and r.random() < 0.3):
        return False  # an integer divided by zero ends the process
    if not np.iinfo(array.dtype).min <= new <= np.iinfo(array.dtype).max:
        return False  # the least number of its type, less one or negated
    array.reshape(-1)[at] = new
    tensor.CopyFrom(nh.from_array(array, tensor.name))
    return True


def attribute(model: onnx.ModelProto, r: Random) -> bool:
    """A number or a flag among the attributes becomes another."""
    places = [
        a
        for n in model.graph.node
        for a in n.attribute
        if a.type in (AttributeProto.INT, AttributeProto.FLOAT) and a.name != "to"
    ]
    if not places:
        return False
    found = r.choice(places)
    if found.type == AttributeProto.FLOAT:
        found.f = r.choice((0.5, -1.0, 2.0, 0.0, found.f * 0.4))
    else:
        found.i = r.choice((0, 1, -1, -2, 2, 1 - found.i))
    return True


def again(model: onnx.ModelProto, r: Random) -> bool:
    """A node is applied twice, or its result is taken by all its readers from a copy of it."""
    nodes = [n for n in model.graph.node if len(n.output) == 1 and n.input and n.input[0]]
    if not nodes:
        return False
    node = r.choice(nodes)
    name = _fresh(model)
    copied = NodeProto()
    copied.CopyFrom(node)
    copied.name, copied.output[0] = name, name
    copied.input[0] = node.output[0]
    at = list(model.graph.node).index(node)
    for other in list(model.graph.node)[at + 1 :]:
        renamed = [name if x == node.output[0] else x for x in other.input]
        del other.input[:]
        other.input.extend(renamed)
    model.graph.node.insert(at + 1, copied)
    return True


def requantise(model: onnx.ModelProto, r: Random) -> bool:
    """QuantizeLinear and DequantizeLinear before one reader of a float."""
    known = _known(model)
    places = [p for p in _readers(model) if known.get(p[0].input[p[1]], (0, None))[0] == T.FLOAT]
    if not places or next(o.version for o in model.opset_import if not o.domain) < 13:
        return False
    place = r.choice(places)
    name, dtype = _fresh(model), r.choice((np.uint8, np.int8))
    value = place[0].input[place[1]]
    model.graph.initializer.extend(
        [
            nh.from_array(np.float32(r.choice((0.05, 1 / 255, 0.02))), f"{name}_scale"),
            nh.from_array(dtype(r.choice((0, 0, 128 if dtype is np.uint8 else -128))), f"{name}_zero"),
        ]
    )
    pair = [f"{name}_scale", f"{name}_zero"]
    nodes = [
        h.make_node("QuantizeLinear", [value, *pair], [f"{name}_q"], name=f"{name}_q"),
        h.make_node("DequantizeLinear", [f"{name}_q", *pair], [name], name=name),
    ]
    _between(model, place, nodes, name)
    return True


def on_bytes(model: onnx.ModelProto, r: Random) -> bool:
    """One or two products, sums or softmaxes of floats by onnxruntime's operators on bytes."""
    known = _known(model)
    nodes = [n for n in model.graph.node if op_of(n) in OPERATORS and known.get(n.output[0], (0, None))[0] == T.FLOAT]
    if not nodes or next(o.version for o in model.opset_import if not o.domain) < 13:
        return False
    for node in r.sample(nodes, min(len(nodes), r.choice((1, 2)))):
        softmax = node.op_type == "Softmax"
        if softmax and next((a.i for a in node.attribute if a.name == "axis"), -1) != -1:
            continue
        name, (domain, op) = _fresh(model), OPERATORS[node.op_type]
        scale, zero = f"{name}_scale", f"{name}_zero"
        result = [f"{name}_result", f"{name}_low" if softmax else zero]
        numbers = {scale: np.float32(r.uniform(0.02, 0.06)), zero: np.uint8(r.choice((128, 127)))}
        # Of scales that are simple fractions of each other many results would lie halfway between two steps.
        numbers[result[0]] = np.float32(1 / 256 if softmax else r.uniform(0.02, 0.06))
        numbers |= {result[1]: np.uint8(0)} if softmax else {}
        model.graph.initializer.extend(nh.from_array(np.asarray(x), n) for n, x in numbers.items())
        at, operands, made = [*model.graph.node].index(node), list[str](), list[onnx.NodeProto]()
        for i, value in enumerate(node.input):
            made.append(h.make_node("QuantizeLinear", [value, scale, zero], [f"{name}_{i}"], name=f"{name}_{i}"))
            operands += [f"{name}_{i}", scale, zero]
        how = {"axis": -1, "opset": 13} if softmax else {}
        made.append(h.make_node(op, operands + result, [f"{name}_y"], name=f"{name}_y", domain=domain, **how))
        made.append(h.make_node("DequantizeLinear", [f"{name}_y", *result], [node.output[0]], name=name))
        model.graph.node.remove(node)
        for other in reversed(made):
            model.graph.node.insert(at, other)
    if all(o.domain != "com.microsoft" for o in model.opset_import):
        model.opset_import.append(h.make_opsetid("com.microsoft", 1))
    return True


def operator(model: onnx.ModelProto, r: Random) -> bool:
    """A node becomes any other op of as many operands, of the kind that its type allows."""
    unary = ("Neg", "Abs", "Relu", "Identity", "Sigmoid", "Exp", "Tanh", "Sqrt", "Softplus", "Floor", "Erf", "Sign")
    binary = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow")
    logic, compare = ("And", "Or", "Xor", "Equal"), ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")
    groups = (unary, binary, logic, compare)
    nodes = [n for n in model.graph.node if not n.domain and any(n.op_type in x for x in groups)]
    if not nodes:
        return False
    node = r.choice(nodes)
    group = r.choice([x for x in groups if node.op_type in x])
    node.op_type = r.choice([x for x in group if x != node.op_type])
    return True


def retype(model: onnx.ModelProto, r: Random) -> bool:
    """All of a f32 graph in another float type."""
    to = r.choice((T.FLOAT16, T.FLOAT16, T.DOUBLE, T.BFLOAT16))
    if any(
        n.op_type in ("QuantizeLinear", "DequantizeLinear", "If", "Loop", "Scan") or n.domain for n in model.graph.node
    ):
        return False
    dtype = h.tensor_dtype_to_np_dtype(to)
    for info in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        if info.type.tensor_type.elem_type == T.FLOAT:
            info.type.tensor_type.elem_type = to
    for tensor in model.graph.initializer:
        if tensor.data_type == T.FLOAT:
            with np.errstate(over="ignore"):
                tensor.CopyFrom(nh.from_array(nh.to_array(tensor).astype(dtype), tensor.name))
    for node in model.graph.node:
        for found in node.attribute:
            if found.name == "to" and found.i == T.FLOAT:
                found.i = to
    return True


def given_type(model: onnx.ModelProto, r: Random) -> bool:
    """One input of floats, such as K alone, is given in another float type and cast."""
    inputs = [i for i in model.graph.input if i.type.tensor_type.elem_type in FLOATS]
    if not inputs:
        return False
    given, name = r.choice(inputs), _fresh(model)
    kind = given.type.tensor_type.elem_type
    given.type.tensor_type.elem_type = r.choice([x for x in FLOATS if x != kind])
    for node, at in _readers(model):
        if node.input[at] == given.name:
            node.input[at] = name
    model.graph.node.insert(0, h.make_node("Cast", [given.name], [name], name=name, to=kind))
    return True


def moved_cast(model: onnx.ModelProto, r: Random) -> bool:
    """A Cast and the node of one operand in front of it, such as a softmax, change places: what was computed in the one type is
    computed in the other."""
    made = {o: n for n in model.graph.node for o in n.output}
    readers = [x for n in model.graph.node for x in n.input] + [o.name for o in model.graph.output]
    pairs = [
        (made[n.input[0]], n)
        for n in model.graph.node
        if n.op_type == "Cast" and n.input[0] in made and readers.count(n.input[0]) == 1
    ]
    pairs = [
        (first, cast) for first, cast in pairs if len(first.input) == len(first.output) == 1 and first.op_type != "Cast"
    ]
    if not pairs:
        return False
    first, cast = r.choice(pairs)
    for node, like in ((first, copy.deepcopy(cast)), (cast, copy.deepcopy(first))):
        node.op_type, node.domain = like.op_type, like.domain
        del node.attribute[:]
        node.attribute.extend(like.attribute)
    return True


def _as_mutation(name: str) -> Mutation:
    return lambda model, r: CHANGES[name](model, r.randrange(256))


OWN = (
    foreign,
    narrow,
    arithmetic,
    reroute,
    bound,
    attribute,
    again,
    requantise,
    on_bytes,
    operator,
    retype,
    given_type,
    moved_cast,
)
MUTATIONS: dict[str, Mutation] = {f.__name__: f for f in OWN} | {name: _as_mutation(name) for name in CHANGES}


def mutate(model: onnx.ModelProto, name: str, r: Random, feeds: Feeds) -> onnx.ModelProto | None:
    """The model changed somewhere, so that it still runs; None where three places were no good."""
    for _ in range(3):
        changed = copy.deepcopy(model)
        if MUTATIONS[name](changed, r) and feeds.runs(changed):
            return changed
    return None
