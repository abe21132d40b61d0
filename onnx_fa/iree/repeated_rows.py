"""Rows that are repeated as often as numbers of the run say, without sequences, which IREE does not have.

TorchScript writes `torch.repeat_interleave(x, repeats, dim)` as a Loop over sequences (FastSpeech's length regulator):

    parts, counts = SplitToSequence(x, ones), SplitToSequence(repeats, ones)
    made = Loop(n, True, SequenceEmpty) { SequenceInsert(made, Reshape(Expand(Unsqueeze(parts[i]), (.., counts[i], ..)))) }
    y = ConcatFromSequence(made)

It becomes a Gather: row j is that of the first count up to which more than j rows have been made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.axes import node_axis
from onnx_fa.graph.builder import OnnxBuilder, names_in
from onnx_fa.graph.carried import graphs_of
from onnx_fa.graph.dead_code import sweep
from onnx_fa.graph.normalise import infer_shapes
from onnx_fa.graph.ops import attr_int, op_of
from onnx_fa.graph.view import Array, GraphView, axes_of, default_opset
from onnx_fa.spec.terms import Dim

_OPSET = 13
"""From here on TorchScript writes it so, and Unsqueeze and ReduceSum take their axes as inputs."""


@dataclass(frozen=True)
class _Repeats:
    """A ConcatFromSequence `node` of `rows` along `axis`, each as often as its number among the first `steps` of `counts`."""

    node: ir.Node
    rows: ir.Value
    axis: int
    counts: ir.Value
    steps: ir.Value


def write_repeats(model: ir.Model) -> None:
    """Puts Gathers in the place of such Loops of the main graph, in place."""
    if default_opset(model) < _OPSET or not any(op_of(node) == "ConcatFromSequence" for node in model.graph):
        return
    infer_shapes(model)
    view = GraphView(model)
    found = [
        r for node in model.graph if op_of(node) == "ConcatFromSequence" and (r := _repeats(view, node)) is not None
    ]
    names, consts = names_in(model), dict[tuple[str, ...], ir.Value]()
    for repeats in found:
        _write(model, repeats, OnnxBuilder(model.graph, view.opset, repeats.node.name or "repeats", names, consts))
    if found:
        infer_shapes(model)


def _write(model: ir.Model, repeats: _Repeats, b: OnnxBuilder) -> None:
    zero, one, first = np.array(0, np.int64), np.array(1, np.int64), np.zeros(1, np.int64)
    counts = b.op(
        "Slice", repeats.counts, b.const(first), b.op("Reshape", repeats.steps, b.const(np.ones(1, np.int64)))
    )
    # A count of -1 leaves the one row that there is, as Expand does where TorchScript asks for what -1 stands for.
    counts = b.op("Where", b.op("Equal", counts, b.const(-one)), b.const(one), counts)
    ends = b.op("CumSum", counts, b.const(zero))
    places = b.op("Range", b.const(zero), b.op("ReduceSum", counts, b.const(first), keepdims=0), b.const(one))
    behind = b.op("LessOrEqual", b.unsqueeze(ends, 0), b.unsqueeze(places, 1))
    row = b.op("ReduceSum", b.op("Cast", behind, to=int(ir.DataType.INT64)), b.const(np.ones(1, np.int64)), keepdims=0)
    made, old = b.op("Gather", repeats.rows, row, axis=repeats.axis), repeats.node.outputs[0]
    made.type = repeats.rows.type
    model.graph.insert_before(repeats.node, b.nodes)
    ir.convenience.replace_all_uses_with(old, made, replace_graph_outputs=True)
    old.name, made.name = made.name, old.name
    sweep([repeats.node])


def _repeats(view: GraphView, node: ir.Node) -> _Repeats | None:
    """What the node joins, where that is rows that a Loop has repeated."""
    loop = view.producer(node.inputs[0], "Loop")
    if loop is None or attr_int(node, "new_axis", 0) or len(loop.inputs) != 3 or len(loop.outputs) != 1:
        return None
    body, start = graphs_of(loop)[0], view.producer(loop.inputs[2], "SequenceEmpty")
    goes_on, made = body.outputs
    insert = view.producer(made, "SequenceInsert")
    if start is None or insert is None or insert.inputs[0] is not body.inputs[2] or len(insert.inputs) != 2:
        return None
    if loop.inputs[0] is None or not all(
        _is_true(view, value) for value in (loop.inputs[1], goes_on) if value is not None
    ):
        return None
    part = _repeated(view, insert.inputs[1], body.inputs[0])
    if part is None:
        return None
    rows, axis, counts = part
    shape, many, steps = view.shape(rows), view.shape(counts), view.dims(loop.inputs[0])
    if (
        shape is None
        or many is None
        or len(many) != 1
        or not steps
        or node_axis(node, len(shape)) != axis
        or counts.dtype != ir.DataType.INT64
    ):
        return None
    # As many parts as there are of the one or of the other: a Loop that asks for more fails.
    if steps[0] is None or steps[0] not in (shape[axis], many[0]):
        return None
    return _Repeats(node, rows, axis, counts, loop.inputs[0])


def _is_true(view: GraphView, value: ir.Value) -> bool:
    cast = view.producer(value, "Cast")
    array = view.const(value if cast is None else cast.inputs[0])
    return array is not None and bool(np.all(array))


def _repeated(view: GraphView, value: ir.Value | None, step: ir.Value) -> tuple[ir.Value, int, ir.Value] | None:
    """The rows, along which axis, and the counts of which `value` is those of one step."""
    reshape = view.producer(value, "Reshape")
    expand = None if reshape is None else view.producer(reshape.inputs[0], "Expand")
    unit = None if expand is None else view.producer(expand.inputs[0], "Unsqueeze")
    if reshape is None or expand is None or unit is None:
        return None
    rows, axes, target = _split(view, unit.inputs[0], step), axes_of(view, unit), view.const(reshape.inputs[1])
    shape = None if rows is None else view.shape(rows[0])
    if rows is None or shape is None or axes != [rows[1] + 1]:
        return None
    axis = rows[1]
    sizes = _expanded_to(view, expand.inputs[1])
    if sizes is None or target is None or len(sizes) != len(shape) + 1 or target.size != len(shape):
        return None
    count = sizes[axis + 1]
    counts = _split(view, count, step) if isinstance(count, ir.Value) else None
    others = [*sizes[: axis + 1], *sizes[axis + 2 :]]
    kept = [1 if i == axis else d for i, d in enumerate(shape)]
    if counts is None or counts[1] != 0 or not all(s in (1, -1) or s == d for s, d in zip(others, kept, strict=True)):
        return None
    return (rows[0], axis, counts[0]) if _leaves_rows(target, shape, axis) else None


def _leaves_rows(target: Array, shape: Sequence[Dim | None], axis: int) -> bool:
    """Whether a Reshape to `target` of (.., 1, count, ..) is that of (.., count, ..)."""
    asked = target.ravel().tolist()
    rest = [(i, s, d) for i, (s, d) in enumerate(zip(asked, shape, strict=True)) if i != axis]
    return asked[axis] == -1 and all((s == d and s > 0) or (s == 0 and i < axis and d != 0) for i, s, d in rest)


def _split(view: GraphView, part: ir.Value | None, step: ir.Value) -> tuple[ir.Value, int] | None:
    """What `part` is one place of, and along which axis: that of this step of the Loop."""
    at = view.producer(part, "SequenceAt")
    split = None if at is None or at.inputs[1] is not step else view.producer(at.inputs[0], "SplitToSequence")
    whole = None if split is None else split.inputs[0]
    shape = view.shape(whole)
    if split is None or whole is None or shape is None or not attr_int(split, "keepdims", 1):
        return None
    axis = node_axis(split, len(shape))
    ones = len(split.inputs) < 2 or split.inputs[1] is None or _fill(view, split.inputs[1]) == 1
    return (whole, axis) if axis is not None and ones else None


def _fill(view: GraphView, value: ir.Value | None) -> float | None:
    """The number that each element of a value is, of whatever size; None where they are several, or a run decides."""
    array, node = view.const(value), view.producer(value, "ConstantOfShape", "Mul")
    if node is not None and op_of(node) == "Mul":
        a, b = (_fill(view, factor) for factor in node.inputs)
        return None if a is None or b is None else a * b
    if array is None and node is not None:
        array = node.attributes["value"].as_tensor().numpy() if "value" in node.attributes else np.zeros(1)
    return float(array.flat[0]) if array is not None and array.size and np.all(array == array.flat[0]) else None


def _expanded_to(view: GraphView, shape: ir.Value | None) -> list[int | ir.Value] | None:
    """The numbers that an Expand asks for, -1 where 1 takes its place, and the values of one element among them."""
    choice = view.producer(shape, "Where")
    if choice is not None:
        test = view.producer(choice.inputs[0], "Equal")
        shape = choice.inputs[2]
        if test is None or shape not in test.inputs or _fill(view, choice.inputs[1]) != 1:
            return None
        if _fill(view, next(value for value in test.inputs if value is not shape)) != -1:
            return None
    joined = view.producer(shape, "Concat")
    found = list[int | ir.Value]()
    for value in () if joined is None else joined.inputs:
        array = view.const(value)
        if array is not None:
            found += array.ravel().tolist()
        elif value is not None:
            found.append(value)
    return found or None
