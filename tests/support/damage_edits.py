"""What `damage.py` does to a parsed model: one function per kind of damage, `(rng, model, files beside it) -> what was done`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import onnx
from google.protobuf.message import Message
from onnx import TensorProto as T
from onnx import helper as h

Edit = Callable[[random.Random, onnx.ModelProto, dict[str, bytes]], str]
NAMES = (
    "",
    "q",
    "nowhere",
    "\x1b[31mred\x1b[0m",
    "two\nlines",
    "nul\0",
    "\u202eback",
    '"quoted" %s {0} </script>',
    "x" * 3000,
    "../../etc/passwd",
)
SIZES = (0, -1, 1, 3, 7, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63))
KINDS = (0, 2, 99, 7, 8, 1, 10, 11, 14, 16, 17, 22, 23, -1)
DOMAINS = ("", "ai.onnx", "my", "com.microsoft", "ai.onnx.ml", "ai.onnx.training", "onnx_fa", "\x1b[2J")
OPS = (
    *(
        "Softmax",
        "MatMul",
        "Identity",
        "Cast",
        "Reshape",
        "Transpose",
        "Where",
        "Attention",
        "Loop",
        "Scan",
        "If",
        "Einsum",
    ),
    *(
        "Slice",
        "Gather",
        "Concat",
        "Split",
        "Constant",
        "ConstantOfShape",
        "Range",
        "Expand",
        "Tile",
        "ReduceSum",
        "Trilu",
    ),
    *(
        "MultiHeadAttention",
        "GroupQueryAttention",
        "QuantizeLinear",
        "DequantizeLinear",
        "ScatterND",
        "Dropout",
        "Nothing",
    ),
    *(
        "SequenceConstruct",
        "SequenceAt",
        "Optional",
        "StringConcat",
        "RotaryEmbedding",
        "FusedMatMul",
        "LogSoftmax",
        "Pad",
    ),
)

PLACES = (
    "/etc/passwd",
    "../../etc/passwd",
    "m.onnx",
    ".",
    "",
    "w.bin/x",
    "a" * 5000,
    "nul\0",
    "\x1b[2J",
    "/dev/zero",
    "~/x",
)


def graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    todo = [model.graph]
    while todo:
        graph = todo.pop()
        yield graph
        todo += [a.g for n in graph.node for a in n.attribute if a.type == onnx.AttributeProto.GRAPH]


def _nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [n for g in graphs(model) for n in g.node] + [n for f in model.functions for n in f.node]


def _tensors(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    found = [t for g in graphs(model) for t in g.initializer]
    found += [t for g in graphs(model) for s in g.sparse_initializer for t in (s.values, s.indices)]
    for node in _nodes(model):
        for a in node.attribute:
            found += [a.t] if a.HasField("t") else []
            found += [a.sparse_tensor.values, a.sparse_tensor.indices] if a.HasField("sparse_tensor") else []
    return found


def _infos(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    return [i for g in graphs(model) for i in (*g.input, *g.output, *g.value_info)]


def _size(rng: random.Random) -> int:
    return rng.choice(SIZES)


def rename_end(rng: random.Random, model: onnx.ModelProto, _: dict[str, bytes]) -> str:
    """An input or output of a node becomes another name."""
    node = rng.choice(_nodes(model))
    side = rng.choice((node.input, node.output))
    at = rng.randrange(len(side))
    known = [o for n in _nodes(model) for o in n.output] + [i.name for i in model.graph.input]
    side[at] = rng.choice((rng.choice(NAMES), rng.choice(known)))
    return f"{node.name}[{at}]"


def rename_thing(rng: random.Random, model: onnx.ModelProto, _: dict[str, bytes]) -> str:
    things: list[Message] = [*_nodes(model), *_tensors(model), *_infos(model), *graphs(model), *model.functions]
    thing = rng.choice(things)
    thing.name = rng.choice(NAMES)  # type: ignore[attr-defined]
    return type(thing).__name__


def rename_everywhere(rng: random.Random, model: onnx.ModelProto, _: dict[str, bytes]) -> str:
    """The model stays valid, but for what a name may be."""
    old, new = rng.choice([o for n in _nodes(model) for o in n.output if o]), rng.choice(NAMES[2:])
    for node in _nodes(model):
        for side in (node.input, node.output):
            side[:] = [new if i == old else i for i in side]
        node.name = new if rng.random() < 0.2 else node.name
    for thing in (*_infos(model), *_tensors(model)):
        thing.name = new if thing.name == old else thing.name
    return old


def name_dim(rng: random.Random, model: onnx.ModelProto, _: dict[str, bytes]) -> str:
    info = rng.choice(_infos(model))
    rng.choice(info.type.tensor_type.shape.dim).dim_param = rng.choice(NAMES)
    return info.name


def size_dim(rng: random.Random, model: onnx.ModelProto, _: dict[str, bytes]) -> str:
    info = rng.choice(_infos(model))
    dim = rng.choice(info.type.tensor_type.shape.dim)
    old, new = dim.dim_value, _size(rng)
    everywhere = rng.random() < 0.5  # then the model may still fit together
    for other in _infos(model) if everywhere else [info]:
        for d in other.type.tensor_type.shape.dim:
            if d is dim or (everywhere and d.dim_value == old):
                d.dim_value = new
    dim.dim_value = new
    return f"{info.name} {new}"


def shape_info(rng: random.Random, model: onnx.ModelProto, _: dict[str, bytes]) -> str:
    """An input or output loses its shape or type, or gets more dims, or is no tensor at all."""
    info = rng.choice(_infos(model))
    shape = info.type.tensor_type.shape
    how = rng.choice(("no shape", "no type", "drop", "more", "sequence", "optional", "no dims"))
    if how == "no shape":
        info.type.tensor_type.ClearField("shape")
    elif how == "no type":
        info.ClearField("type")
    elif how == "drop":
        del shape.dim[rng.randrange(len(shape.dim))]
    elif how == "more":
        shape.dim.add().dim_value = _size(rng)
    elif how == "no dims":
        del shape.dim[:]
    else:
        getattr(info.type, f"{how}_type").elem_type.tensor_type.elem_type = rng.choice(KINDS)
    return f"{info.name} {how}"


def type_info(rng: random.Random, model: onnx.ModelProto, _: dict[str, bytes]) -> str:
    info, kind = rng.choice(_infos(model)), rng.choice(KINDS)
    info.type.tensor_type.elem_type = kind
    return f"{info.name} {kind}"


def size_tensor(rng: random.Random, model: onnx.ModelProto, _: dict[str, bytes]) -> str:
    tensor = rng.choice(_tensors(model))
    if tensor.dims and rng.random() < 0.7:
        tensor.dims[rng.randrange(len(tensor.dims))] = _size(rng)
    else:
        tensor.dims.extend([_size(rng)] * rng.choice((1, 1, 2, 70)))
    return tensor.name


def type_tensor(rng: random.Random, model: onnx.ModelProto, _: dict[str, bytes]) -> str:
    tensor, kind = rng.choice(_tensors(model)), rng.choice(KINDS)
    tensor.data_type = kind
    return f"{tensor.name} {kind}"


def fill_tensor(rng: random.Random, model: onnx.ModelProto, _: dict[str, bytes]) -> str:
    """Data of the wrong size or in the wrong field, or values that no one expects."""
    tensor = rng.choice(_tensors(model))
    how = rng.choice(("short", "long", "none", "floats", "strings", "segment", "values", "both"))
    if how == "short":
        tensor.raw_data = tensor.raw_data[:-1]
    elif how == "long":
        tensor.raw_data = tensor.raw_data + b"\x7f"
    elif how == "none":
        tensor.ClearField("raw_data")
    elif how == "floats":
        tensor.ClearField("raw_data")
        tensor.float_data.extend([float("nan")] * rng.choice((1, 4, 1000)))
    elif how == "strings":
        tensor.data_type = T.STRING
        tensor.string_data.extend([b"\xff\xfe"] * rng.choice((1, 4)))
    elif how == "segment":
        tensor.segment.begin, tensor.segment.end = 0, _size(rng)
    elif how == "values":
        tensor.raw_data = rng.randbytes(len(tensor.raw_data))
    else:
        tensor.int32_data.extend([1, 2])
    return f"{tensor.name} {how}"


def set_integers(rng: random.Random, model: onnx.ModelProto, _: dict[str, bytes]) -> str:
    """The content of an int64 tensor: axes, shapes, positions."""
    tensor = rng.choice([t for t in _tensors(model) if t.data_type == T.INT64 and t.raw_data])
    count = len(tensor.raw_data) // 8
    values = [int.from_bytes(tensor.raw_data[8 * i : 8 * i + 8], "little", signed=True) for i in range(count)]
    values[rng.randrange(count)] = _size(rng)
    tensor.raw_data = b"".join(v.to_bytes(8, "little", signed=True) for v in values)
    return f"{tensor.name} {values[:4]}"


def change_attribute(rng: random.Random, model: onnx.ModelProto, _: dict[str, bytes]) -> str:
    node = rng.choice([n for n in _nodes(model) if n.attribute])
    attr = rng.choice(node.attribute)
    how = rng.choice(
        ("type", "int", "ints", "string", "float", "drop", "name", "twice", "reference", "graph", "tensor")
    )
    if how == "type":
        attr.type = rng.choice(range(15))  # type: ignore[assignment]
    elif how == "drop":
        node.attribute.remove(attr)
    elif how == "name":
        attr.name = rng.choice((*NAMES, "axis", "perm", "to", "alpha", "equation"))
    elif how == "twice":
        node.attribute.append(attr)
    elif how == "reference":
        attr.ref_attr_name = "outer"
    elif how == "int" and attr.type == onnx.AttributeProto.INT:
        attr.i = _size(rng)
    elif how == "ints" and attr.ints:
        attr.ints[rng.randrange(len(attr.ints))] = _size(rng)
    elif how == "float" and attr.type == onnx.AttributeProto.FLOAT:
        attr.f = rng.choice((float("nan"), float("inf"), 0.0, -1e38))
    else:
        values = {"int": 1, "ints": [0, _size(rng)], "string": b"\xff", "float": 0.5}
        values["graph"], values["tensor"] = model.graph, h.make_tensor("t", T.FLOAT, [2], [1.0, 2.0])
        name = attr.name
        attr.CopyFrom(h.make_attribute(name, values[how]))
    return f"{node.name} {how}"


def add_attribute(rng: random.Random, model: onnx.ModelProto, _: dict[str, bytes]) -> str:
    node = rng.choice(_nodes(model))
    name = rng.choice(
        ("axis", "perm", "to", "alpha", "keepdims", "axes", "scale", "is_causal", "num_heads", "transA", "block_size")
    )
    node.attribute.append(h.make_attribute(name, rng.choice((_size(rng), [_size(rng)], 0.5, "text"))))
    return f"{node.name} {name}"


def change_op(rng: random.Random, model: onnx.ModelProto, _: dict[str, bytes]) -> str:
    node = rng.choice(_nodes(model))
    node.op_type = rng.choice((*OPS, *(n.op_type for n in _nodes(model)), rng.choice(NAMES)))
    return f"{node.name} {node.op_type[:20]}"


def change_domain(rng: random.Random, model: onnx.ModelProto, _: dict[str, bytes]) -> str:
    node = rng.choice(_nodes(model))
    node.domain = rng.choice(DOMAINS)
    if rng.random() < 0.5:
        model.opset_import.add(domain=node.domain, version=1)
    return f"{node.name} {node.domain!r}"


def change_opset(rng: random.Random, model: onnx.ModelProto, _: dict[str, bytes]) -> str:
    entry = rng.choice(model.opset_import)
    how = rng.choice(("version", "version", "domain", "twice", "none", "ir"))
    if how == "version":
        entry.version = rng.choice((*range(1, 27), 0, -1, 2**40))
    elif how == "domain":
        entry.domain = rng.choice(DOMAINS)
    elif how == "twice":
        model.opset_import.add(domain=entry.domain, version=rng.randrange(1, 25))
    elif how == "none":
        model.opset_import.remove(entry)
    else:
        model.ir_version = rng.choice((0, 1, 3, 4, 11, 12, 99, -1))
    return how


def drop(rng: random.Random, model: onnx.ModelProto, _: dict[str, bytes]) -> str:
    """Something is missing."""
    graph = rng.choice(list(graphs(model)))
    many = rng.choice((graph.node, graph.input, graph.output, graph.initializer, graph.value_info, model.functions))
    del many[rng.randrange(len(many))]
    return "an element"


def drop_end(rng: random.Random, model: onnx.ModelProto, _: dict[str, bytes]) -> str:
    node = rng.choice(_nodes(model))
    side = rng.choice((node.input, node.output))
    if rng.random() < 0.5:
        del side[rng.randrange(len(side))]
    else:
        side.append(rng.choice((*side, "", "q")))
    return node.name


def repeat(rng: random.Random, model: onnx.ModelProto, _: dict[str, bytes]) -> str:
    """Something is there twice."""
    graph = rng.choice(list(graphs(model)))
    many = rng.choice((graph.node, graph.input, graph.output, graph.initializer, graph.value_info, model.functions))
    many.append(rng.choice(many))
    return "an element"


def reorder(rng: random.Random, model: onnx.ModelProto, _: dict[str, bytes]) -> str:
    graph = rng.choice(list(graphs(model)))
    nodes = list(graph.node)
    rng.shuffle(nodes)
    del graph.node[:]
    graph.node.extend(nodes)
    return graph.name


def cycle(rng: random.Random, model: onnx.ModelProto, _: dict[str, bytes]) -> str:
    graph = rng.choice(list(graphs(model)))
    first, last = sorted(rng.sample(range(len(graph.node)), 2))
    graph.node[first].input[0] = graph.node[last].output[0]
    return f"{first} {last}"


def nest(rng: random.Random, model: onnx.ModelProto, _: dict[str, bytes]) -> str:
    """A graph inside itself, some levels deep, or a function that calls itself."""
    if model.functions and rng.random() < 0.7:
        function = rng.choice(model.functions)
        inputs, outputs = list(function.input), [f"{o}_again" for o in function.output]
        function.node.insert(0, h.make_node(function.name, inputs, outputs, domain=function.domain))
        return "a call of itself"
    for _level in range(rng.choice((1, 2, 4)) if model.ByteSize() < 1 << 15 else 0):  # each level doubles it
        copy = onnx.GraphProto()
        copy.CopyFrom(model.graph)
        del copy.input[:]
        node = h.make_node("If", [model.graph.input[0].name], ["deep"], name="deep", then_branch=copy, else_branch=copy)
        model.graph.node.append(node)
    return "graphs"


def external(rng: random.Random, model: onnx.ModelProto, beside: dict[str, bytes]) -> str:
    """The data of a tensor is elsewhere: somewhere that it must not be, or not where the model says."""
    tensor = rng.choice(_tensors(model))
    tensor.data_location = T.EXTERNAL
    info = {e.key: e.value for e in tensor.external_data}
    how = rng.choice(("location", "location", "offset", "length", "short", "none", "key", "keep raw"))
    if how != "keep raw":
        tensor.ClearField("raw_data")
    if how == "location":
        info["location"] = rng.choice(PLACES)
    elif how in ("offset", "length"):
        info[how] = rng.choice(
            ("-1", "1.5", "x", "", "99999999999999999999999", "0", "4", "\u0663", "1_0", " 8", "0x10")
        )
    elif how == "short" and beside:
        name = rng.choice(list(beside))
        beside[name] = beside[name][: rng.choice((0, 1, 10))]
        if rng.random() < 0.5:
            info.pop("length", None)
    elif how == "none":
        info = {}
    elif how == "key":
        info["\x1b"] = "x"
    del tensor.external_data[:]
    for key, value in info.items():
        tensor.external_data.add(key=key, value=value)
    return f"{tensor.name} {how}"


def sparse(rng: random.Random, model: onnx.ModelProto, _: dict[str, bytes]) -> str:
    found = [s for g in graphs(model) for s in g.sparse_initializer]
    found += [a.sparse_tensor for n in _nodes(model) for a in n.attribute if a.HasField("sparse_tensor")]
    one = rng.choice(found)
    one.dims[rng.randrange(len(one.dims))] = _size(rng)
    return one.values.name


EDITS: tuple[Edit, ...] = (
    *(rename_end, rename_thing, rename_everywhere, name_dim, size_dim, shape_info, type_info, size_tensor, type_tensor),
    *(
        fill_tensor,
        set_integers,
        change_attribute,
        change_attribute,
        add_attribute,
        change_op,
        change_op,
        change_domain,
    ),
    *(change_opset, drop, drop_end, repeat, reorder, cycle, nest, external, external, sparse),
)
