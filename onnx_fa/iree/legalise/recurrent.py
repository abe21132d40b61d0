"""LSTM, GRU and RNN by what IREE has of them: few directions, and no lengths, peepholes, clips of an RNN or activations but three,
all of which it leaves out silently (docs/developer/iree-bugs.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from onnx_fa.errors import ModelError
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.recurrent_steps import Direction, has_own_activations, takes_steps, write_steps
from onnx_fa.iree.legalise.writer import GraphWriter, attributes_of

_END = 2**62
_SHUT = 1e4
"""What is added to a gate to shut or open it: the sigmoid of it is 1, and of -_SHUT 0, in every float type."""
_NAMES = {name.lower(): name for name in ("Relu", "Sigmoid", "Tanh")}
"""The activations that IREE computes as they are; of others it makes other numbers."""


@dataclass(frozen=True)
class _Node:
    """A recurrent node: its operands by ONNX's names, "" for those that are not there."""

    op: str
    hint: str
    direction: str
    activations: tuple[str, ...]
    x: str
    weights: tuple[str, str, str]
    lengths: str
    states: tuple[str, ...]

    @property
    def ways(self) -> tuple[str, ...]:
        return ("forward", "reverse") if self.direction == "bidirectional" else (self.direction,)

    def chosen(self, way: int) -> tuple[str, ...]:
        """The activations of a direction; none where they are the operator's own."""
        count = len(self.activations) // len(self.ways)
        return self.activations[way * count : (way + 1) * count]


def recurrent(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """One node for each direction, from front to back, of a sequence that is turned around where it is read backwards. Where
    sequences of a batch have lengths, results behind them are 0, and the last state is that of the last element. Without elements
    that is 0, as in onnxruntime, whatever the first state is.

    Raises ModelError for peepholes, clips and activations that IREE would leave out, and for free sizes that it mixes up.
    """
    attributes = attributes_of(node)
    inputs = list(node.input)
    x, w, r, b, lengths, *states = inputs + [""] * (8 - len(inputs))
    if attributes.get("layout", 0) or not node.output:
        return False
    named = [a.decode() for a in attributes.get("activations", ())]
    given = tuple(_NAMES.get(a.lower(), "") for a in named)
    if why := _refusal(named, given, peepholes=bool(states[2]), clip=bool(attributes.get("clip"))):
        raise ModelError(f"node {node.name!r}: {node.op_type} with {why} is not supported; export it without")
    direction = attributes.get("direction", b"forward").decode().lower()
    op, hint = op_of(node), node.name or node.op_type
    wanted = [name if name and (g.readers(name) or g.is_output(name)) else "" for name in node.output]
    made = _Node(
        op, hint, direction, given, x, (w, r, b), lengths, tuple(s for s in states[: 2 if op == "LSTM" else 1])
    )
    if 0 in (g.shape(x) or [])[:2]:
        _write_zeros(g, made, wanted)
        return True
    alike = _has_steps(g, made) and (direction == "forward" or (direction == "bidirectional" and op == "LSTM"))
    steps = takes_steps(g, op, made.weights, made.states, attributes)
    own = [steps and has_own_activations(op, made.chosen(way)) for way in range(len(made.ways))]
    if not all(own):
        _refuse_free_sizes(g, made)
    if not lengths and alike and list(given) == named and not any(own):
        return False
    kept = {k: v for k, v in attributes.items() if k not in ("activations", "direction")}
    parts = [_one_way(g, made, i, wanted, kept) for i in range(len(made.ways))]
    for n, name in enumerate(wanted):
        if name:
            g.add("Concat", [p[n] for p in parts], hint, out=name, axis=1 if n == 0 else 0)
    return True


def _refuse_free_sizes(g: GraphWriter, node: _Node) -> None:
    """Raises ModelError where steps and batch of an LSTM are free, as such layers get into each other's memory, silently;
    and where either is of a GRU or an RNN, which IREE refuses."""
    free = [
        name
        for name, size in zip(("length", "batch"), g.shape(node.x) or [], strict=False)
        if not isinstance(size, int)
    ]
    if len(free) > (node.op == "LSTM"):
        raise ModelError(
            f"node {node.hint!r}: {node.op} of a free {' and a free '.join(free)}, of which IREE computes something else; "
            f"give {'one' if node.op == 'LSTM' else 'them'} (--dim)"
        )


def _refusal(named: Sequence[str], known: Sequence[str], *, peepholes: bool, clip: bool) -> str:
    """What of a node nothing here can stand for; "" where there is nothing."""
    if peepholes:
        return "peepholes (its last input)"
    if clip:
        return "a clip of what goes into its activations"
    return next((f"{name} as an activation" for name, mine in zip(named, known, strict=True) if not mine), "")


def _one_way(
    g: GraphWriter, node: _Node, way: int, wanted: Sequence[str], attributes: dict[str, Any]
) -> tuple[str, ...]:
    """Y (Sq, 1, B, H), Y_h and Y_c (1, B, H) of one direction."""
    hint, backwards = node.hint, node.ways[way] == "reverse"

    def part(value: str) -> str:
        """That of this direction, of what has both on axis 0."""
        if not value or len(node.ways) == 1:
            return value
        return g.add("Slice", [value, *(g.ints([n], hint) for n in (way, way + 1, 0))], hint)

    x = _turned(g, node, node.x) if backwards else node.x
    w = node.weights[0]
    cells = len(wanted) > 2 and bool(wanted[2]) and bool(node.lengths)
    if cells:
        x, w = _frozen(g, node, x, part(w))
    chosen = node.chosen(way)
    if has_own_activations(node.op, chosen) and takes_steps(g, node.op, node.weights, node.states, attributes):
        direction = Direction(way, x, w, tuple(map(part, node.states)))
        y, last, *cell = write_steps(g, node.op, node.weights, direction, hint)
    else:
        if chosen:
            attributes = {**attributes, "activations": list(chosen)}
        outputs = [g.fresh(hint) for _ in range(3 if node.op == "LSTM" else 2)]
        inputs = [x, w if cells else part(w), part(node.weights[1]), part(node.weights[2]), "", *map(part, node.states)]
        while not inputs[-1]:
            inputs.pop()
        g.nodes.append(onnx.helper.make_node(node.op, inputs, outputs, g.fresh(f"{hint}/{node.op}"), **attributes))
        y, last, *cell = outputs
    if node.lengths:
        y, last = _cut(g, node, y)
        cell = [_or_zero(g, node, _is_any(g, node), c) for c in cell if cells]
    elif not _has_steps(g, node):
        last, *cell = (_or_zero(g, node, _is_long(g, node), value) for value in (last, *cell))
    if backwards and wanted[0]:
        y = _turned(g, node, y)
    return (y, last, *cell)


def _turned(g: GraphWriter, node: _Node, value: str) -> str:
    """Each sequence from its end, along axis 0. Y has a dim of one for the direction in front of the batch."""
    hint = node.hint
    if not node.lengths and _has_steps(g, node):
        return g.add("Slice", [value, *(g.ints([n], hint) for n in (-1, -_END, 0, -1))], hint)
    if not node.lengths:  # IREE takes one step of none backwards
        zero, one = (g.const(np.array(n, np.int64), hint) for n in (0, 1))
        size = g.size(node.x, 0, hint)
        last, steps = g.add("Sub", [size, one], hint), g.add("Range", [zero, size, one], hint)
        return g.add("Gather", [value, g.add("Sub", [last, steps], hint)], hint, axis=0)
    one = g.ints([1], hint)
    flat = value == node.x
    rows = value if flat else g.add("Squeeze", [value, one], hint)
    lengths = g.add("Cast", [node.lengths], hint, to=onnx.TensorProto.INT64)
    turned = g.add("ReverseSequence", [rows, lengths], hint, time_axis=0, batch_axis=1)
    return turned if flat else g.add("Unsqueeze", [turned, one], hint)


def _steps(g: GraphWriter, node: _Node) -> tuple[str, str]:
    """The number of each step, (Sq, 1, 1, 1), and the lengths, (1, 1, B, 1), int64."""
    hint = node.hint
    zero, one = (g.const(np.array(n, np.int64), hint) for n in (0, 1))
    size = g.size(node.x, 0, hint)
    steps = g.add("Unsqueeze", [g.add("Range", [zero, size, one], hint), g.ints([1, 2, 3], hint)], hint)
    lengths = g.add("Cast", [node.lengths], hint, to=onnx.TensorProto.INT64)
    return steps, g.add("Unsqueeze", [lengths, g.ints([0, 1, 3], hint)], hint)


def _cut(g: GraphWriter, node: _Node, y: str) -> tuple[str, str]:
    """Y with 0 behind each length, and its row at the end of each; of a sequence of no elements that is 0, as in onnxruntime."""
    hint = node.hint
    steps, lengths = _steps(g, node)
    zero = g.scalar(0, g.kind(node.x), hint)
    inside = g.add("Where", [g.add("Less", [steps, lengths], hint), y, zero], hint)
    ends = g.add("Sub", [lengths, g.const(np.array(1, np.int64), hint)], hint)
    at_end = g.add("Where", [g.add("Equal", [steps, ends], hint), y, zero], hint)
    return inside, g.add("ReduceSum", [at_end, g.ints([0], hint)], hint, keepdims=0)


def _is_any(g: GraphWriter, node: _Node) -> str:
    """Whether each sequence of the batch has elements: (1, B, 1)."""
    lengths = g.add("Unsqueeze", [node.lengths, g.ints([0, 2], node.hint)], node.hint)
    return g.add("Cast", [lengths], node.hint, to=onnx.TensorProto.BOOL)


def _is_long(g: GraphWriter, node: _Node) -> str:
    """Whether there are steps, where only a run knows how many: a number of no dims."""
    return g.add("Cast", [g.size(node.x, 0, node.hint)], node.hint, to=onnx.TensorProto.BOOL)


def _or_zero(g: GraphWriter, node: _Node, condition: str, value: str) -> str:
    """A state where there is one; what stands there without elements may be anything."""
    return g.add("Where", [condition, value, g.scalar(0, g.kind(node.x), node.hint)], node.hint)


def _has_steps(g: GraphWriter, node: _Node) -> bool:
    """Whether every run has one at least."""
    steps, *_ = g.shape(node.x) or [None]
    return isinstance(steps, int) and steps > 0


def _write_zeros(g: GraphWriter, node: _Node, wanted: Sequence[str]) -> None:
    """Results of no steps or no sequences, which are without elements or 0."""
    hint = node.hint
    sizes, ways = g.add("Shape", [node.x], hint), g.ints([len(node.ways)], hint)
    steps, batch = (g.add("Slice", [sizes, g.ints([n], hint), g.ints([n + 1], hint)], hint) for n in (0, 1))
    width = g.add("Slice", [g.add("Shape", [node.weights[1]], hint), g.ints([2], hint), g.ints([3], hint)], hint)
    zero = onnx.helper.make_tensor("value", g.kind(node.x), [1], [0])
    for n, name in enumerate(wanted):
        dims = [steps, ways, batch, width][n > 0 :]
        if name:
            g.add("ConstantOfShape", [g.add("Concat", dims, hint, axis=0)], hint, out=name, value=zero)


def _frozen(g: GraphWriter, node: _Node, x: str, w: str) -> tuple[str, str]:
    """x with one more feature, which is 1 behind each length, and W with its weights: there the input gate is shut and the forget
    gate open, so that the cell stays what it was. Raises ModelError where another activation than Sigmoid makes the gates."""
    hint, kind = node.hint, g.kind(node.x)
    if node.activations and {*node.activations[::3]} != {"Sigmoid"}:
        raise ModelError(
            f"node {node.hint!r}: the last cell of an LSTM with lengths, whose gates are not Sigmoid's, is not known"
        )
    shape = g.shape(node.weights[1])  # (directions, 4 H, H)
    if shape is None or not isinstance(shape[-1], int):
        raise ModelError(f"node {node.hint!r}: the shape of its weights is unknown")
    steps, lengths = _steps(g, node)
    beyond = g.add("Cast", [g.add("GreaterOrEqual", [steps, lengths], hint)], hint, to=kind)
    more = g.add("Concat", [x, g.add("Squeeze", [beyond, g.ints([1], hint)], hint)], hint, axis=2)
    gates = np.repeat([-_SHUT, 0, _SHUT, 0], shape[-1])  # input, output, forget, cell
    column = g.cast(g.const(gates.reshape(1, -1, 1).astype(np.float32), hint), onnx.TensorProto.FLOAT, kind, hint)
    return more, g.add("Concat", [w, column], hint, axis=2)
