"""Targets of Reshapes that a graph computes from sizes of its inputs, as constants: 0 for a free size that stays at its place, the
number for one that is known. Exporters that trace models compute `x.view(batch, length, heads, width)` by a Shape, some Gathers and
a Concat at each place. ONNX's shape inference makes up a new name for each of these sizes, so that equal ones no longer look equal,
and IREE checks in each call, at each place, that none is 0. A check cuts what is submitted to a device in two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import numpy_helper

from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import GraphView
from onnx_fa.spec.terms import Dim


def known_targets(view: GraphView) -> dict[str, list[int]]:
    """The targets of Reshapes of the main graph that are computed there, by the names of what the Reshapes make."""
    found = dict[str, list[int]]()
    for node in view.model.graph:
        if op_of(node) != "Reshape" or len(node.inputs) < 2 or (target := node.inputs[1]) is None:
            continue
        out = node.outputs[0]
        computed = target.producer() is not None and view.const(target) is None
        have, made, told = view.shape(node.inputs[0]), view.shape(out), view.dims(target)
        if computed and out.name and have is not None and made is not None and told is not None:
            numbers = _target(have, made, told)
            if numbers is not None:
                found[out.name] = numbers
    return found


def _target(have: Sequence[Dim | None], made: Sequence[Dim | None], told: Sequence[Dim | None]) -> list[int] | None:
    """Numbers that mean the same; None where a free size is put elsewhere, and for a -1 of unknown size beside a free one: the
    compiler would divide by that, which may be 0."""
    if len(made) != len(told):
        return None
    numbers = list[int]()
    for i, (dim, number) in enumerate(zip(made, told, strict=True)):
        if isinstance(dim, int) and dim > 0:
            numbers.append(dim)
        elif isinstance(dim, str) and i < len(have) and have[i] == dim:
            numbers.append(0)
        elif number == -1:
            numbers.append(-1)
        else:
            return None
    return None if {-1, 0} <= set(numbers) else numbers


def write_known_targets(model: onnx.ModelProto, targets: Mapping[str, Sequence[int]]) -> None:
    """Gives Reshapes of the main graph those targets, in place."""
    for node in model.graph.node:
        if op_of(node) != "Reshape" or node.output[0] not in targets:
            continue
        node.input[1] = f"{node.output[0]}/target"
        zeros = [a for a in node.attribute if a.name != "allowzero"]
        del node.attribute[:]
        node.attribute.extend(zeros)
        model.graph.initializer.append(
            numpy_helper.from_array(np.array(targets[node.output[0]], np.int64), node.input[1])
        )
