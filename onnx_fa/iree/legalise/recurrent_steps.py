"""One direction of an LSTM or a GRU as a product of all its inputs and a node of our own for its steps, which becomes a call of a
kernel for CPUs (kernels/cpu/recurrent.py) or for CUDA (kernels/triton/recurrent.py). IREE multiplies each step's input and state
by the weights of each gate, all in dispatches of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from onnx import TensorProto, helper

from onnx_fa.graph.site_op import DOMAIN
from onnx_fa.iree.legalise.conv_shapes import SLICE_OPSET
from onnx_fa.iree.legalise.writer import GraphWriter
from onnx_fa.kernels.cpu.recurrent import RecurrentSteps
from onnx_fa.kernels.cpu.recurrent import panel_of as cpu_panel_of
from onnx_fa.kernels.triton.recurrent import panel_of as cuda_panel_of
from onnx_fa.spec.recurrent import GATES, Cell, RecurrentSpec, gate_panels
from onnx_fa.spec.terms import Dim

RECURRENT_STEPS = f"{DOMAIN}.RecurrentSteps"
"""Inputs and outputs as a RecurrentSpec has them; attributes `cell`, and `started`, whether there are first states."""
_ACTIVATIONS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh")}


@dataclass(frozen=True)
class Direction:
    """A direction of a node: the number of its weights among those of the node, and the values that it reads: x (steps, rows, I), W
    (1, gates * H, I), and first states (1, rows, H), "" where there is none."""

    way: int
    x: str
    w: str
    states: tuple[str, ...]


def recurrent_steps_of(operands: Sequence[tuple[Dim, ...]], attributes: Mapping[str, Any]) -> RecurrentSteps:
    """The kernel of a RecurrentSteps whose operands have these shapes."""
    (steps, rows, columns), (_, H, _), *_ = operands
    cell = cast(Cell, attributes["cell"].decode())
    assert isinstance(H, int) and columns == GATES[cell] * H
    panel = operands[1][2]
    assert isinstance(panel, int)
    known, batch = (d if isinstance(d, int) else None for d in (steps, rows))
    return RecurrentSteps(RecurrentSpec(cell, known, batch, H, panel // GATES[cell], bool(attributes["started"])))


def takes_steps(
    g: GraphWriter, op: str, weights: Sequence[str], states: Sequence[str], attributes: Mapping[str, Any]
) -> bool:
    """Whether a kernel is to stand for the steps of a node with these weights (W, R, B) and first states."""
    r = g.shape(weights[1])
    if g.opset < SLICE_OPSET or op not in GATES or r is None or not isinstance(r[-1], int):
        return False
    if g.kind(weights[1]) != TensorProto.FLOAT or not all(g.has_data(name) for name in weights if name):
        return False
    if any(states) and not all(states):
        return False
    plain = attributes.get("linear_before_reset", 0) if op == "GRU" else not attributes.get("input_forget", 0)
    return bool(plain) and _panel_of(g, r[-1]) > 0


def _panel_of(g: GraphWriter, H: int) -> int:
    """The columns of a panel; 0 where no kernel of the target takes states of so many numbers."""
    if g.cpu is not None:
        return cpu_panel_of(H, g.cpu)
    return cuda_panel_of(H) if g.cuda is not None else 0


def has_own_activations(op: str, chosen: Sequence[str]) -> bool:
    """Whether a direction's activations are those that the operator has by itself."""
    return not chosen or tuple(chosen) == _ACTIVATIONS.get(op, ())


def write_steps(g: GraphWriter, op: str, weights: Sequence[str], direction: Direction, hint: str) -> tuple[str, ...]:
    """Y (steps, 1, rows, H), Y_h and Y_c (1, rows, H) of a direction of a node that takes steps."""
    way, read, cell = direction.way, g.array, cast(Cell, op)
    _, r, b = weights
    H, (steps, rows, _) = int((g.shape(r) or [0])[-1] or 0), g.shape(direction.x) or [None] * 3
    spec = RecurrentSpec(cell, None, None, H, _panel_of(g, H))
    wide, sizes = spec.gates * H, [steps, rows]

    def bias() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """What is added to all gates at once, and to the last gate of a GRU before it is reset."""
        both = np.zeros(2 * wide, np.float32) if not b else np.asarray(read(b))[way]
        own, more = both[:wide].copy(), both[wide:].copy()
        if op == "GRU":
            last, more[-H:] = more[-H:].copy(), 0
            return own + more, last
        return own + more, more

    def panels() -> np.ndarray[Any, Any]:
        return gate_panels(spec, np.asarray(read(r))[way])

    product = g.add("MatMul", [direction.x, _columns(g, direction, wide, hint)], hint)
    if b:
        g.typed(product, TensorProto.FLOAT, [*sizes, wide])
        added = g.computed(lambda: bias()[0], TensorProto.FLOAT, [wide], hint)
        product = g.add("Add", [product, added], hint)
    inputs = [g.typed(product, TensorProto.FLOAT, [*sizes, wide])]
    inputs.append(g.computed(panels, TensorProto.FLOAT, [spec.panels, H, spec.gates * spec.panel], hint))
    if op == "GRU":
        inputs.append(g.computed(lambda: bias()[1], TensorProto.FLOAT, [H], hint))
    started = any(direction.states)
    zero = g.ints([0], hint)
    inputs += [
        g.typed(g.add("Squeeze", [s, zero], hint), TensorProto.FLOAT, [sizes[1], H]) for s in direction.states if s
    ]
    results = [g.fresh(hint) for _ in range(1 + spec.states)]
    made = helper.make_node(
        "RecurrentSteps",
        inputs,
        results,
        g.fresh(f"{hint}/RecurrentSteps"),
        domain=DOMAIN,
        cell=op,
        started=int(started),
    )
    g.nodes.append(made)
    for i, name in enumerate(results):
        g.typed(name, TensorProto.FLOAT, [*sizes[i > 0 :], H])
    axes = [g.ints([1], hint), *[zero] * spec.states]
    return tuple(g.add("Unsqueeze", [name, axis], hint) for name, axis in zip(results, axes, strict=True))


def _columns(g: GraphWriter, direction: Direction, wide: int, hint: str) -> str:
    """W of the direction as a product has it, (I, gates * H)."""
    w, way, read = direction.w, direction.way, g.array
    if not g.has_data(w):
        turned = g.add("Transpose", [g.add("Squeeze", [w, g.ints([0], hint)], hint)], hint, perm=[1, 0])
        return turned
    depth = (g.shape(w) or [0])[-1]
    assert isinstance(depth, int)
    return g.computed(lambda: np.ascontiguousarray(np.asarray(read(w))[way].T), TensorProto.FLOAT, [depth, wide], hint)
