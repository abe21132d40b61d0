"""One graph while its nodes are replaced: what is known of its values, and how nodes and constants are added to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from onnx_fa.graph.ops import STANDARD, op_of
from onnx_fa.graph.site_op import DOMAIN
from onnx_fa.kernels import triton
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import Dim, FloatType


class GraphWriter:
    """Types, constants and fresh names of one graph while its nodes are rewritten."""

    def __init__(
        self,
        model: onnx.ModelProto,
        held: Mapping[str, ir.TensorProtocol] | None = None,
        *,
        target: Target | None = None,
    ) -> None:
        """`held` has the initializers whose data are not in the model. With a `target`, nodes of our own domain may stand for
        kernels of it."""
        self.target = target
        self.held = held or {}
        self.opset = next((o.version for o in model.opset_import if o.domain in STANDARD), 1)
        self.holder = model.graph
        """The graph that gets constants which are weights. Others stand where they are read: inference looks no further."""
        self.types: dict[str, tuple[int, list[int | str | None] | None]] = {}
        self.constants: dict[str, TensorProto] = {}
        self.names: set[str] = set()
        self.around: GraphWriter | None = None
        """The writer of the graph that has the node of which this one's is a body."""
        self._take(model.graph)

    def within(self, body: onnx.GraphProto) -> GraphWriter:
        """A writer of a graph that a node of this one has, which reads this one's values too. It has no target: kernels are called
        in the main graph alone."""
        inner = copy(self)
        inner.target, inner.around = None, self
        for cached in ("cuda", "_makers", "_outputs", "_readers"):
            inner.__dict__.pop(cached, None)
        inner.types, inner.constants = dict(self.types), dict(self.constants)
        inner._take(body)
        return inner

    def bodies(self) -> list[GraphWriter]:
        """Writers of the bodies of its nodes and of those within them, inner ones before those that hold them."""
        found = []
        for node in self.graph.node:
            for graph in bodies_of(node):
                body = self.within(graph)
                found += [*body.bodies(), body]
        return found

    def _take(self, graph: onnx.GraphProto) -> None:
        """Lets the writer be one of `graph`."""
        self.graph = graph
        for v in (*graph.input, *graph.value_info, *graph.output):
            t = v.type.tensor_type
            shape: list[int | str | None] | None = None
            if t.HasField("shape"):
                shape = [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in t.shape.dim]
            self.types[v.name] = (t.elem_type, shape)
        self.constants |= constants_of(graph)
        for t in graph.initializer:
            self.types[t.name] = (t.data_type, list(t.dims))
        self.names |= set(self.types) | {o for n in all_nodes(graph) for o in n.output}
        self.nodes: list[onnx.NodeProto] = []
        self.floats: dict[str, str] = {}
        """Integers that only a Cast to f32 reads and nobody made, and the floats that it would make of them."""

    @property
    def cpu(self) -> Target | None:
        """The target, if that is a CPU."""
        return None if self.target is None or self.target.is_gpu else self.target

    @cached_property
    def cuda(self) -> Target | None:
        """The target, if Triton makes code for it."""
        there = self.target is not None and self.target.kernels != "iree" and not triton.missing(self.target)
        return self.target if there else None

    @property
    def kernel_kinds(self) -> tuple[int, ...]:
        """Kinds of element that kernels of convolutions read: for a CPU halves are widened before."""
        return (TensorProto.FLOAT,) if self.cuda is None else tuple(FLOATS)

    def is_output(self, name: str) -> bool:
        """Whether the model gives a value out."""
        return name in self._outputs

    def readers(self, name: str) -> list[int]:
        """The places of the nodes that read a value, in the graph as it came."""
        return self._readers.get(name, [])

    def maker(self, name: str) -> onnx.NodeProto | None:
        """The node that makes a value, in the graph as it came."""
        made = self._makers.get(name)
        return None if made is None else made[1]

    def maker_anywhere(self, name: str) -> onnx.NodeProto | None:
        """The node that makes a value that the graph's nodes may read, here or in a graph around this one."""
        made = self.maker(name)
        return made if made is not None or self.around is None else self.around.maker_anywhere(name)

    def place(self, name: str) -> int:
        """The place of the node that makes a value, in the graph as it came. Raises KeyError for a value that none makes."""
        return self._makers[name][0]

    @cached_property
    def _makers(self) -> dict[str, tuple[int, onnx.NodeProto]]:
        return {name: (place, node) for place, node in enumerate(self.graph.node) for name in node.output}

    @cached_property
    def _outputs(self) -> set[str]:
        return {o.name for o in self.graph.output}

    @cached_property
    def _readers(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for place, node in enumerate(self.graph.node):
            for name in read_by(node):
                found.setdefault(name, []).append(place)
        return found

    def is_constant(self, name: str) -> bool:
        """Whether a value is a weight or another constant."""
        return name in self.held or name in self.constants

    def comes_of_constants(self, name: str) -> bool:
        """Whether a value is a constant, or all that it is computed of."""
        left, seen = [name], set[str]()
        while left:
            value = left.pop()
            if value in seen or self.is_constant(value):
                continue
            seen.add(value)
            node = self.maker(value)
            if node is None or not node.input or bodies_of(node):
                return False
            left += [v for v in node.input if v]
        return True

    def fresh(self, hint: str) -> str:
        name, n = hint, 1
        while name in self.names:
            n += 1
            name = f"{hint}_{n}"
        self.names.add(name)
        return name

    def add(self, op: str, inputs: Sequence[str], hint: str, *, out: str | None = None, **attrs: Any) -> str:
        name = out or self.fresh(hint)
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=self.fresh(f"{hint}/{op}"), **attrs))
        return name

    def typed(self, value: str, kind: int, shape: Sequence[Dim | None]) -> str:
        """The value, whose type the graph then says, as importers want of what is added behind shape inference."""
        self.graph.value_info.append(helper.make_tensor_value_info(value, kind, shape))
        self.types[value] = (kind, list(shape))
        return value

    def replace_nodes(self, nodes: Iterable[onnx.NodeProto]) -> None:
        """Makes these the graph's nodes; some may be nodes that it has, which are gone as soon as it lets go of them."""
        put_nodes(self.graph, nodes)

    def const(self, array: Any, hint: str) -> str:
        name = self.fresh(hint)
        tensor = numpy_helper.from_array(np.asarray(array), name)
        self.graph.initializer.append(tensor)
        self.constants[name] = tensor
        return name

    def has_data(self, name: str) -> bool:
        """Whether a value is a constant whose elements can be read."""
        tensor = self.constants.get(name)
        return name in self.held or (tensor is not None and tensor.data_location != TensorProto.EXTERNAL)

    def computed(self, make: Callable[[], np.ndarray[Any, Any]], kind: int, shape: Sequence[int], hint: str) -> str:
        """A constant whose elements are computed when they are written, where weights are held outside of the model; else now."""
        if not isinstance(self.held, dict) or not self.held:
            name = self.const(make(), hint)
        else:
            name = self.fresh(hint)
            self.held[name] = ir.LazyTensor(
                lambda: ir.tensor(make(), name=name), dtype=ir.DataType(kind), shape=ir.Shape(shape), name=name
            )
            stub = TensorProto(name=name, data_type=kind, dims=shape, data_location=TensorProto.EXTERNAL)
            self.holder.initializer.append(stub)
            self.constants[name] = self.holder.initializer[-1]
        self.types[name] = kind, list(shape)
        return name

    def ints(self, values: Sequence[int], hint: str) -> str:
        """A constant vector of int64, as shapes, axes and bounds are."""
        return self.const(np.array(values, np.int64), hint)

    def size(self, x: str, axis: int, hint: str) -> str:
        """How long an axis is in a run, a number of no dims. Axes are counted from the front."""
        return self.add(
            "Gather", [self.add("Shape", [x], hint), self.const(np.array(axis, np.int64), hint)], hint, axis=0
        )

    def sizes(self, x: str, dims: Sequence[int | str | None], hint: str, given: Mapping[int, str] | None = None) -> str:
        """A vector of dims as a run has them: along the axes in `given` those values, else the number that is known, or x's own."""
        parts = []
        for axis, dim in enumerate(dims):
            if given and axis in given:
                parts.append(given[axis])
            elif isinstance(dim, int):
                parts.append(self.ints([dim], hint))
            else:
                own = self.add("Shape", [x], hint, start=axis, end=axis + 1)
                parts.append(self.typed(own, TensorProto.INT64, [1]))
        return self.typed(self.add("Concat", parts, hint, axis=0), TensorProto.INT64, [len(parts)])

    def reshape(self, value: str, dims: Sequence[int], hint: str, *, out: str | None = None) -> str:
        return self.add("Reshape", [value, self.ints(dims, hint)], hint, out=out)

    def is_one_number(self, name: str) -> bool:
        """Whether a value is a single number, of no dims or of one."""
        return self.shape(name) in ([], [1])

    def is_row(self, name: str, of: Sequence[int | str | None]) -> bool:
        """Whether a value has a number for each of the last dim of a shape, and is added to it along the others."""
        shape = self.shape(name)
        return shape is not None and 0 < len(shape) <= len(of) and shape == [1] * (len(shape) - 1) + [of[-1]]

    def kind(self, name: str) -> int:
        """The element type as ONNX numbers them; 0 where it is unknown."""
        return self.types.get(name, (0, None))[0]

    def array(self, name: str) -> np.ndarray[Any, Any] | None:
        """The elements of a constant; None where that is none."""
        if name in self.held:
            return self.held[name].numpy()
        tensor = self.constants.get(name)
        if tensor is None or tensor.data_location == onnx.TensorProto.EXTERNAL:
            return None
        return numpy_helper.to_array(tensor)

    def scalar(self, number: float, kind: int, hint: str) -> str:
        """A constant of no dims."""
        return self.const(numpy_helper.to_array(helper.make_tensor("number", kind, [], [number])), hint)

    def mean(self, x: str, axes: Sequence[int], hint: str) -> str:
        """The mean over axes, which stay as dims of one."""
        return self.reduce("ReduceMean", x, axes, hint)

    def reduce(
        self, op: str, x: str, axes: Sequence[int], hint: str, *, keepdims: int = 1, out: str | None = None
    ) -> str:
        """A ReduceMax, ReduceMin or ReduceMean, whose axes are an input from opset 18 on."""
        if self.opset < 18:
            return self.add(op, [x], hint, out=out, axes=list(axes), keepdims=keepdims)
        return self.add(op, [x, self.ints(axes, hint)], hint, out=out, keepdims=keepdims)

    def cast(self, x: str, kind: int, to: int, hint: str, *, out: str | None = None) -> str:
        """x of type `kind` as type `to`; x itself if that is the same and no name for the result is given."""
        if kind == to and out is None:
            return x
        return self.add("Identity", [x], hint, out=out) if kind == to else self.add("Cast", [x], hint, out=out, to=to)

    def is_free(self, name: str) -> bool:
        """Whether a value's size may be one that only a run knows."""
        shape = self.shape(name)
        return shape is None or any(not isinstance(d, int) for d in shape)

    def shape(self, name: str) -> list[int | str | None] | None:
        return self.types.get(name, (0, None))[1]


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Those of a graph and of all within it."""
    for node in graph.node:
        yield node
        for body in bodies_of(node):
            yield from all_nodes(body)


def bodies_of(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The graphs among a node's attributes."""
    return [a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]


def put_nodes(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Makes these the graph's nodes; some may be nodes that it has, which are gone as soon as it lets go of them."""
    kept = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del graph.node[:]
    graph.node.extend(kept)


def constants_of(graph: onnx.GraphProto) -> dict[str, TensorProto]:
    """Its initializers and the tensors of its Constants, by the values' names."""
    found = {t.name: t for t in graph.initializer}
    for node in graph.node:
        if op_of(node) == "Constant" and node.attribute and node.attribute[0].name == "value":
            found[node.output[0]] = node.attribute[0].t
    return found


def values_of_constants(graph: onnx.GraphProto) -> frozenset[str]:
    """The constants of a graph and all that is computed of them alone."""
    found = set(constants_of(graph))
    for node in graph.node:
        if node.input and not bodies_of(node) and all(name in found for name in node.input if name):
            found.update(node.output)
    return frozenset(found)


def read_by(node: onnx.NodeProto) -> set[str]:
    """The values that a node reads, also in its graphs."""
    inner = bodies_of(node)
    return set(node.input).union(
        *(read_by(n) for graph in inner for n in graph.node), *({o.name for o in g.output} for g in inner)
    )


FLOATS: dict[int, FloatType] = {TensorProto.FLOAT: "f32", TensorProto.FLOAT16: "f16", TensorProto.BFLOAT16: "bf16"}
"""The floats of kernels."""

NARROW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
"""Floats whose sums and means are taken in f32."""

Handler = Callable[[GraphWriter, onnx.NodeProto], bool]
"""Writes smaller nodes for one, whose last makes its output; false where the node is to stay as it is."""


def attr_of(node: onnx.NodeProto, name: str, default: Any) -> Any:
    """An attribute's value, or the default."""
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


def declare_own_nodes(model: onnx.ModelProto) -> None:
    """Makes the model one that may have nodes of this project's domain."""
    if not any(i.domain == DOMAIN for i in model.opset_import):
        model.opset_import.append(helper.make_opsetid(DOMAIN, 1))


def is_layers_gemm(node: onnx.NodeProto) -> bool:
    """Whether a Gemm (or MatMul) is a product as layers have it, perhaps with a bias: alpha and beta are 1, rows not transposed."""
    bias = len(node.input) > 2 and bool(node.input[2])
    plain = not attr_of(node, "transA", 0) and attr_of(node, "alpha", 1.0) == 1.0
    return plain and (not bias or attr_of(node, "beta", 1.0) == 1.0)


def named_dims(shape: Sequence[int | str | None]) -> tuple[Dim, ...]:
    """Dims with a symbol for each that is not known, by its place."""
    return tuple(d if isinstance(d, int) else f"d{i}" for i, d in enumerate(shape))


def copy_without(node: onnx.NodeProto, *names: str) -> onnx.NodeProto:
    """The node without the attributes of these names."""
    made = onnx.NodeProto()
    made.CopyFrom(node)
    del made.attribute[:]
    made.attribute.extend(a for a in node.attribute if a.name not in names)
    return made


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """All attributes that a node has, by their names."""
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}
