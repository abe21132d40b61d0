"""Where an original has lost its numbers: exponentials without the row maximum that overflow or vanish, and probabilities that
vanish before they are masked and divided by their new sum (docs/developer/architecture.md).

What it makes of them is no result that a rewrite, which divides by the right sum, could be held to: NaN, or what a guard or a
QuantizeLinear makes of NaN."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

from .inputs import Array, Engine, Inputs
from .noise import element_types

_LEAST = {T.FLOAT: np.finfo(np.float32).tiny, T.DOUBLE: np.finfo(np.float64).tiny, T.FLOAT16: np.finfo(np.float16).tiny}
_LEAST |= {T.BFLOAT16: _LEAST[T.FLOAT]}
"""The least number with all its digits: a sum of exponentials below it has lost them."""
_ON_EXPONENTIALS = ("Cast", "Identity", "Dropout", "Mul", "Where", "Transpose", "Reshape", "Squeeze", "Unsqueeze")
MOVES = ("Identity", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Slice")


def without_maximum(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """The Exp nodes whose scores have no maximum or log-sum-exp taken out."""
    made = {o: n for n in model.graph.node for o in n.output}
    tops = {n.output[0] for n in model.graph.node if n.op_type == "ReduceMax"}

    def is_shifted(node: onnx.NodeProto | None) -> bool:
        return node is not None and (node.op_type == "LogSoftmax" or (node.op_type == "Sub" and node.input[1] in tops))

    return [n for n in model.graph.node if n.op_type == "Exp" and not is_shifted(made.get(n.input[0]))]


def renormalises(model: onnx.ModelProto) -> bool:
    """Whether masked probabilities may be divided by their new sum."""
    made = {o: n for n in model.graph.node for o in n.output}
    masked = (made.get(n.input[0]) for n in model.graph.node if n.op_type == "ReduceSum")
    return any(n is not None and n.op_type in ("Mul", "Where") for n in masked)


def lost(model: onnx.ModelProto, inputs: Inputs, index: int, *, by_definition: bool) -> Array | None:
    """Which elements of the model's output `index` come from exponentials that overflowed, or from a row of some keys
    whose sum has no digits left. None where that cannot be told."""
    try:
        kept = Engine(_keeping_nan(model), by_definition=by_definition).run(inputs)[index].astype(np.float64)
    except Exception:  # the engines' exceptions share no base class; without an answer nothing is excused
        return None
    return np.isnan(kept)


class _Keeper:
    def __init__(self, model: onnx.ModelProto) -> None:
        self.kinds, self.nodes, self.constants = element_types(model), list[onnx.NodeProto](), list[onnx.TensorProto]()
        self.kinds |= {i.name: i.type.tensor_type.elem_type for i in model.graph.input}
        self.made = {o: n for n in model.graph.node for o in n.output}
        self.count = 0

    def op(self, kind: str, *inputs: str, **attrs: int) -> str:
        self.count += 1
        out = f"kept_{self.count}"
        self.nodes.append(h.make_node(kind, inputs, [out], **attrs))
        return out

    def const(self, x: float, kind: int) -> str:
        self.count += 1
        array = np.asarray(x).astype(h.tensor_dtype_to_np_dtype(kind))
        self.constants.append(nh.from_array(array, f"kept_{self.count}"))
        return self.constants[-1].name

    def wide(self, x: str) -> str:
        return x if self.kinds.get(x) in (T.FLOAT, T.DOUBLE) else self.op("Cast", x, to=T.FLOAT)

    def where(self, test: str, number: float, x: str, out: str, kind: int) -> None:
        self.nodes.append(h.make_node("Where", [test, self.const(number, kind), x], [out]))

    def is_finite(self, score: str) -> str:
        return self.op("Not", self.op("IsInf", self.wide(score)))

    def replayed(self, node: onnx.NodeProto, inputs: list[str]) -> str:
        """The same node over other inputs."""
        self.count += 1
        again = onnx.NodeProto()
        again.CopyFrom(node)
        del again.input[:], again.output[:]
        again.input.extend(inputs)
        again.output.append(f"kept_{self.count}")
        again.name = ""
        self.nodes.append(again)
        return again.output[0]


def _keeping_nan(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with NaN for every exponential without the maximum that overflows and for every sum over some keys that has lost
    its digits, and for nothing else: rows without keys are zero. Quantisers and guards let NaN pass."""
    new = onnx.ModelProto()
    new.CopyFrom(model)
    keep = _Keeper(model)
    exponentials = {n.output[0] for n in without_maximum(model)}
    counted: dict[str, str] = {}  # what is made of exponentials, and the same of 1 for every key
    for old in model.graph.node:
        node = onnx.NodeProto()
        node.CopyFrom(old)
        keep.nodes.append(node)
        if not old.output:
            continue
        made = old.output[0]
        if old.op_type in _ON_EXPONENTIALS and any(i in counted for i in old.input):
            counted[made] = keep.replayed(old, [counted.get(i, i) for i in old.input])
        is_sum = old.op_type == "ReduceSum" and old.input[0] in counted
        rounded = _rounded_from(keep, old) if old.op_type == "DequantizeLinear" else None
        starts = old.op_type in ("Exp", "Softmax")
        if not (is_sum or rounded is not None or starts or old.op_type == "IsNaN"):
            continue
        kind = keep.kinds[made]
        node.output[0] = f"{made}_exact"
        keep.kinds[node.output[0]] = kind
        if old.op_type == "IsNaN":
            keep.nodes.append(h.make_node("Xor", [node.output[0], node.output[0]], [made]))
        elif rounded is not None:
            keep.where(keep.op("IsNaN", rounded), np.nan, node.output[0], made, kind)
        elif is_sum:
            count = keep.replayed(old, [counted[old.input[0]], *old.input[1:]])
            _sum(keep, node.output[0], made, kind, count)
        else:
            counted[made] = keep.op("Cast", keep.is_finite(old.input[0]), to=kind)
            value = keep.wide(node.output[0])
            if made in exponentials:
                test = keep.op("And", keep.op("IsInf", value), keep.is_finite(old.input[0]))
                keep.where(test, np.nan, node.output[0], made, kind)
            else:
                keep.where(keep.op("IsNaN", value), 0, node.output[0], made, kind)
    del new.graph.node[:]
    new.graph.node.extend(keep.nodes)
    new.graph.initializer.extend(keep.constants)
    return new


def _sum(keep: _Keeper, exact: str, out: str, kind: int, count: str) -> None:
    """A sum of so many keys: NaN without its digits, 1 without keys."""
    value = keep.wide(exact)
    least = keep.const(float(_LEAST[kind]), keep.kinds.get(value, T.FLOAT))
    bad = keep.op("Or", keep.op("Less", keep.op("Abs", value), least), keep.op("IsInf", value))
    some = f"{out}_of_some"
    keep.where(bad, np.nan, exact, some, kind)
    keep.where(keep.op("Not", keep.op("Cast", count, to=T.BOOL)), 1, some, out, kind)


def _rounded_from(keep: _Keeper, node: onnx.NodeProto) -> str | None:
    """What a DequantizeLinear's integers were rounded from, in the axes that they have by then."""
    moves: list[onnx.NodeProto] = []
    made = keep.made.get(node.input[0])
    while made is not None and made.op_type in MOVES:
        moves.append(made)
        made = keep.made.get(made.input[0])
    if made is None or made.op_type != "QuantizeLinear":
        return None
    value = made.input[0]
    for move in reversed(moves):
        value = keep.replayed(move, [value, *move.input[1:]])
    return value
