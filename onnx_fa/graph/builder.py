"""Adds standard ONNX ops to a graph, spelled as the model's opset wants them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from onnx_fa.errors import UnsupportedError
from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import Array

_SINCE = {"Equal": 11, "Less": 9, "Greater": 9, "Max": 8, "Min": 8, "Expand": 8}
"""The opsets from which these ops take the types that are used here, and broadcast."""
Attr = int | float | str | Sequence[int] | ir.Attr


class OnnxBuilder:
    """Collects nodes; the caller inserts `nodes` where they belong. `taken` holds every name in use in the model.

    Constants become initializers of `graph` (the graph the nodes go to), shared when equal.
    """

    def __init__(
        self, graph: ir.Graph, opset: int, prefix: str, taken: set[str], consts: dict[tuple[str, ...], ir.Value]
    ) -> None:
        self.graph, self.opset, self.prefix, self.taken, self.consts = graph, opset, prefix, taken, consts
        self.nodes: list[ir.Node] = []
        self.made: dict[int, tuple[object, ir.Value]] = {}
        """What was added for an object, by its id; the object is kept so that no other gets the same id."""
        self.for_onnxruntime = False
        """Whether moves of a DequantizeLinear's result are to be written out (forms/integers.py)."""
        self.written: list[tuple[ir.Value, ir.Value]] = []
        """Results of DequantizeLinear, and the same written out."""

    def name(self, hint: str) -> str:
        return unused_name(f"{self.prefix}/{hint}", self.taken)

    def op(self, op_type: str, *inputs: ir.Value | None, **attrs: Attr) -> ir.Value:
        """Adds a standard op with one output and returns it. Its type and shape are left to shape inference."""
        return self.op_of("", op_type, inputs, attrs)

    def op_of(
        self, domain: str, op_type: str, inputs: Sequence[ir.Value | None], attrs: Mapping[str, Attr]
    ) -> ir.Value:
        return self.ops_of(domain, op_type, inputs, attrs, 1)[0]

    def ops_of(
        self, domain: str, op_type: str, inputs: Sequence[ir.Value | None], attrs: Mapping[str, Attr], outputs: int
    ) -> list[ir.Value]:
        """Adds an op with that many outputs."""
        name = self.name(op_type)
        made = []
        for _ in range(outputs):
            made.append(
                ir.Value(name=f"{name}_out" if f"{name}_out" not in self.taken else self.name(f"{op_type}_out"))
            )
            self.taken.add(str(made[-1].name))
        attributes = [v if isinstance(v, ir.Attr) else _attr(k, v) for k, v in attrs.items()]
        self.nodes.append(ir.Node(domain, op_type, inputs, attributes, outputs=made, name=name))
        return made

    def const(self, array: Array, hint: str = "const") -> ir.Value:
        key = (str(array.dtype), str(array.shape), array.tobytes().hex() if array.nbytes <= 4096 else str(id(array)))
        if key not in self.consts:
            name = self.name(hint)
            value = ir.Value(
                name=name,
                const_value=ir.tensor(array, name=name),
                shape=ir.Shape(array.shape),
                type=ir.TensorType(ir.tensor(array).dtype),
            )
            self.graph.register_initializer(value)
            self.consts[key] = value
        return self.consts[key]

    def factor(self, number: float, kind: type, width: int) -> ir.Value:
        """A constant to multiply a tensor by whose last dim is `width`.

        A float64 stands there `width` times: onnxruntime's optimiser makes a float32 of one number next to a MatMul
        (`docs/developer/onnxruntime-bugs.md`).
        """
        return self.const(np.full((width,) if kind is np.float64 else (), number, kind))

    def ints(self, *values: int) -> ir.Value:
        return self.const(np.asarray(values, np.int64), "ints")

    def unsqueeze(self, x: ir.Value, *axes: int) -> ir.Value:
        return self.op("Unsqueeze", x, axes=axes) if self.opset < 13 else self.op("Unsqueeze", x, self.ints(*axes))

    def squeeze(self, x: ir.Value, *axes: int) -> ir.Value:
        return self.op("Squeeze", x, axes=axes) if self.opset < 13 else self.op("Squeeze", x, self.ints(*axes))

    def reduce_max(self, x: ir.Value) -> ir.Value:
        """Row maximum over the last axis, kept as a unit dim."""
        return self.reduce("ReduceMax", x)

    def reduce(self, op: str, x: ir.Value, *, keep: bool = True, axis: int = -1) -> ir.Value:
        """A reduction other than ReduceSum over one axis."""
        if self.opset < 18:
            return self.op(op, x, axes=(axis,), keepdims=int(keep))
        return self.op(op, x, self.ints(axis), keepdims=int(keep))

    def reduce_sum(self, x: ir.Value) -> ir.Value:
        if self.opset < 13:
            return self.op("ReduceSum", x, axes=(-1,), keepdims=1)
        return self.op("ReduceSum", x, self.ints(-1), keepdims=1)

    def less_equal(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.op("LessOrEqual", x, y) if self.opset >= 12 else self.op("Not", self.op("Greater", x, y))

    def nested(self) -> OnnxBuilder:
        """A builder for a subgraph: its own nodes, the same names and constants."""
        return OnnxBuilder(self.graph, self.opset, self.prefix, self.taken, self.consts)

    def check(self) -> None:
        """Raises UnsupportedError when the model's opset lacks a standard op that was added, or that op as it is used here."""
        nodes = list(self.nodes)
        while nodes:
            node = nodes.pop()
            nodes += [n for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH for n in a.as_graph()]
            if node.domain:
                continue
            try:
                schema = onnx.defs.get_schema(op_of(node), self.opset)
                known = schema.min_input <= len(node.inputs) <= schema.max_input
                known = known and node.attributes.keys() <= schema.attributes.keys()
            except onnx.defs.SchemaError:
                known = False
            if not known or self.opset < _SINCE.get(op_of(node), 1):
                raise UnsupportedError(f"a model of opset {self.opset} has no {node.op_type} as the form needs it")

    def dim(self, x: ir.Value, axis: int) -> ir.Value:
        """The size of a dim as a scalar int64."""
        return self.op("Gather", self.op("Shape", x), self.const(np.asarray(axis, np.int64)), axis=0)


def unused_name(hint: str, taken: set[str]) -> str:
    """The hint, or the first of hint_2, hint_3 and so on that is not taken; it is from then on."""
    name, n = hint, 1
    while name in taken:
        n += 1
        name = f"{hint}_{n}"
    taken.add(name)
    return name


def names_in(model: ir.Model) -> set[str]:
    """Every name of a value or node that is taken."""
    names: set[str] = set()
    for graph in model.graphs():
        names |= {str(v.name) for v in graph.inputs} | set(graph.initializers)
        for node in graph:
            names |= {str(o.name) for o in node.outputs} | {str(node.name)}
    return names


def _attr(name: str, value: int | float | str | Sequence[int]) -> ir.Attr:
    if isinstance(value, str):
        return ir.AttrString(name, value)
    if isinstance(value, float):
        return ir.AttrFloat32(name, value)
    if isinstance(value, int):
        return ir.AttrInt64(name, value)
    return ir.AttrInt64s(name, list(value))
