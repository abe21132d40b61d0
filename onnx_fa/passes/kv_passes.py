"""How many passes over the keys a graph needs, counted on its ranks (FuseMax: Nayak et al., 2024, section 3).

The axes of a graph's tensors are unified into ranks (`axis_probe`); M is the rank of K and V. A pass is one walk over all positions
of M. An op whose iteration space holds all of M runs in the first pass in which all that it reads is there: an element that carries
M streams by in its own pass, but a reduction over all of M is complete only when that pass is over, so that what reads M again
beside it needs another pass. Ops on a share of M that a block's reduction left (block statistics) can be held and cost no pass, and
what runs on one block may use what is known up to that block. The number of passes is one more than the last pass's index.

Softmax attention needs 3, with the division after the product with V 2, with local maxima first 2, and online (by blocks, with
rescaling) 1. No op is known by name but Loop: composite ops are replaced by ONNX's own definition of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx
import onnx.inliner
from onnx import helper, numpy_helper

from onnx_fa.errors import UnsupportedError, one_line
from onnx_fa.graph.ops import STANDARD, op_of
from onnx_fa.passes.axis_probe import MAX_ELEMENTS, Operand, Part, ProbeError, probe, runner
from onnx_fa.passes.definitions import take_apart
from onnx_fa.passes.report import Keys, Pass, PassReport
from onnx_fa.passes.schedule import Array, Schedule, Tracked, place_op

_KNOWN = 4096
"""Integer tensors up to this size are carried with their content: they are shapes, bounds and axes."""


def count_passes(model: onnx.ModelProto, seeds: Mapping[str, Keys]) -> PassReport:
    """Counts the passes of a graph with static shapes. `seeds` names inputs (or values) that hold K and V, and
    their axis of rank M.

    Raises UnsupportedError where an op has no definition that could be run, or moves M in a way that has no words here.
    """
    try:
        model = take_apart(model, set(seeds))
    except UnsupportedError:
        raise
    except Exception as e:  # the inliner and shape inference raise classes of their own
        raise UnsupportedError(f"passes not counted: {one_line(e)}") from e
    opset = next(o.version for o in model.opset_import if o.domain in STANDARD)
    state = Schedule(0, opset)
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        state.values[tensor.name] = Tracked(array.shape, array.dtype, array)
    for info in model.graph.input:
        if info.name not in state.values:
            state.values[info.name] = _of_type(info.type, info.name)
    todo = dict(seeds)
    _seed(state, todo)
    outputs = [o.name for o in model.graph.output]
    try:
        for node in model.graph.node:
            _visit(state, node)
            _seed(state, todo)
    except ProbeError as e:
        raise UnsupportedError(f"passes not counted: {e}") from e
    if todo:
        raise UnsupportedError(f"passes not counted: no value {next(iter(todo))}")
    return _report(state, outputs)


def _seed(state: Schedule, todo: dict[str, Keys]) -> None:
    for name in [n for n in todo if n in state.values]:
        value, keys = state.values[name], todo.pop(name)
        axis = keys.axis % len(value.shape)
        size = value.shape[axis]
        M = keys.of or size
        if state.M not in (0, M):
            raise UnsupportedError(f"passes not counted: K and V have {state.M} and {M} positions")
        state.M = M
        part = Part(size, lo=keys.at, cut=size < M)
        value.parts = tuple(part if a == axis else None for a in range(len(value.shape)))
        value.depends, value.made = True, -1


def _of_type(proto: onnx.TypeProto, name: str) -> Tracked:
    dims = [d.dim_value if d.HasField("dim_value") else None for d in proto.tensor_type.shape.dim]
    if any(d is None for d in dims):
        raise UnsupportedError(f"passes not counted: {name} has no static shape")
    dtype = helper.tensor_dtype_to_np_dtype(proto.tensor_type.elem_type)
    return Tracked(tuple(d for d in dims if d is not None), np.dtype(dtype))


def _visit(state: Schedule, node: onnx.NodeProto) -> None:
    if op_of(node) == "Loop":
        _loop(state, node)
        return
    if any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for a in node.attribute):
        raise ProbeError(f"{node.op_type} holds a graph of its own")
    inputs = [state.values[i] if i else None for i in node.input]
    given = [v for v in inputs if v is not None]
    outs = _outputs(state, node, inputs)
    held = {p for v in given for p in v.parts if p is not None}
    depends = any(v.depends for v in given) and not all(o.const is not None for o in outs)
    moves = False
    if held and depends:
        operands = [Operand(v.shape, v.dtype, v.const, v.parts) if v is not None else None for v in inputs]
        probed = probe(node, operands, state.opset)
        # A maximum picks elements too, but does not keep all that its operand holds.
        kept = {p for parts in probed.parts for p in parts if p is not None}
        whole = math.prod(p.count for p in kept) >= math.prod(p.count for p in held)
        moves = probed.moves and (whole or any(p.cut for p in kept))
        # Where a slice lies is known only to the loop's counter.
        unknown = any(v.counter for v in given)
        for out, parts in zip(outs, probed.parts, strict=True):
            out.parts = tuple(_settled(p, state.M, unknown) for p in parts)
        held |= {p for o in outs for p in o.parts if p is not None}
        depends = probed.depends
    for name, out in zip(node.output, outs, strict=True):
        out.counter = any(v.counter for v in given) and not held
        out.depends = depends
        out.block = any(v.block for v in given) or any(p is not None and p.cut and p.lo is None for p in out.parts)
        state.values[name] = out
    if depends:
        place_op(state, node, inputs, outs, held, moves)


def _settled(part: Part | None, M: int, unknown: bool) -> Part | None:
    """The part, no block if it holds all positions; where the counter decides which it holds, one of unknown place."""
    if part is None or part.stride != 1 or part.inner != 1:
        return part
    if unknown:
        return replace(part, cut=True, lo=None)
    if part.cut and part.lo is not None and part.lo <= 0 and part.lo + part.count >= M:
        return replace(part, cut=False)  # all of them, and perhaps more (a sink's column)
    return part


def _content_or_fill(value: Tracked, fill: int) -> Array:
    """What a value holds, or, where that is not known, the same number everywhere."""
    return value.const if value.const is not None else np.full(value.shape, fill, value.dtype)


def _outputs(state: Schedule, node: onnx.NodeProto, inputs: Sequence[Tracked | None]) -> list[Tracked]:
    """Shapes and types of the outputs, and the content of small integers that the shapes decide."""
    data = {i: v.const for i, v in zip(node.input, inputs, strict=True) if v is not None and v.const is not None}
    types = {
        i: helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for i, v in zip(node.input, inputs, strict=True)
        if v is not None
    }
    small = {i: numpy_helper.from_array(a, i) for i, a in data.items() if a.size <= _KNOWN}
    opsets = [helper.make_opsetid("", state.opset)]
    try:
        schema = onnx.defs.get_schema(node.op_type, state.opset, node.domain)
        inferred = onnx.shape_inference.infer_node_outputs(schema, node, types, small, opset_imports=opsets)
        outs = [_of_type(inferred[name], name) for name in node.output]
    except (onnx.defs.SchemaError, onnx.shape_inference.InferenceError, KeyError, UnsupportedError):
        outs = []
    except onnx.checker.ValidationError:  # a type that ONNX does not give the op (Einsum of bf16), and runtimes do
        outs = []
    if not outs or all(o.dtype.kind in "iub" and math.prod(o.shape) <= _KNOWN for o in outs):
        outs = _content(state, node, inputs) or outs
    if not outs:
        raise ProbeError(f"{node.op_type}: the shape of its result is not known")
    return outs


def outcome(node: onnx.NodeProto, operands: Sequence[Operand], opset: int) -> Operand:
    """Shape and type of an op's one output, and its content if the operands' shapes and known contents decide it; floats become
    f32. Raises ProbeError where the shape is not known."""
    values = [Tracked(o.shape, o.dtype, o.const) for o in operands]
    (made,) = _outputs(Schedule(0, opset), node, values)
    return Operand(made.shape, np.dtype(np.float32) if made.dtype.kind == "f" else made.dtype, made.const)


def _content(state: Schedule, node: onnx.NodeProto, inputs: Sequence[Tracked | None]) -> list[Tracked] | None:
    """What the op yields whatever the unknown operands hold; None where that depends on them."""
    if any(v is not None and v.const is None and math.prod(v.shape) > MAX_ELEMENTS for v in inputs):
        return None
    operands = [Operand(v.shape, v.dtype, v.const) if v is not None else None for v in inputs]
    try:
        run = runner(node, operands, state.opset)
        tried = []
        for fill in (0, 1):
            arrays = [None if v is None else _content_or_fill(v, fill) for v in inputs]
            tried.append(run(arrays))
    except ProbeError:
        return None
    if any(a.shape != b.shape for a, b in zip(*tried, strict=True)):
        return None
    same = all(np.array_equal(a, b) for a, b in zip(*tried, strict=True))
    known = same and all(a.size <= _KNOWN and a.dtype.kind in "iub" for a in tried[0])
    return [Tracked(a.shape, a.dtype, a if known else None) for a in tried[0]]


def _loop(state: Schedule, node: onnx.NodeProto) -> None:
    """A loop's first iteration stands for all: its counter is 0 but nothing may rely on that. States are what earlier
    iterations left, known to every later one."""
    (body,) = [a.g for a in node.attribute if a.name == "body"]
    for tensor in body.initializer:
        array = numpy_helper.to_array(tensor)
        state.values[tensor.name] = Tracked(array.shape, array.dtype, array)
    counter, go, *states = [i.name for i in body.input]
    state.values[counter] = Tracked((), np.dtype(np.int64), np.asarray(0), counter=True)
    state.values[go] = Tracked((), np.dtype(np.bool_), np.asarray(True))
    before = [state.values[i] for i in node.input[2:]]
    outer, state.in_loop = state.in_loop, True
    for _ in range(2):  # what the first iteration leaves is known to the second
        for name, value in zip(states, before, strict=True):
            state.values[name] = replace(value, const=None, root="")
        for inner in body.node:
            _visit(state, inner)
        left = [state.values[o.name] for o in body.output[1 : 1 + len(states)]]
        before = [
            replace(b, depends=b.depends or v.depends, ready=max(b.ready, v.ready), block=b.block or v.block)
            for b, v in zip(before, left, strict=True)
        ]
    state.in_loop = outer
    if len(body.output) > 1 + len(states):
        raise ProbeError("Loop: outputs of every iteration are not followed")
    made = 2 * max((v.complete[0] for v in left), default=0)
    name = node.name or f"Loop:{node.output[0]}"
    if any(v.block for v in left):
        state.ops.setdefault(made // 2, {})[name] = True
    for key, value in zip(node.output, left, strict=True):
        done = (value.complete[0], state.M) if value.block else value.complete
        state.values[key] = replace(value, ready=done, complete=done, block=False, made=made, root="")
    for key in (*node.input, *(i for n in body.node for i in n.input)):
        if key:
            state.last_read[key] = max(state.last_read.get(key, -1), made)


def _report(state: Schedule, outputs: Sequence[str]) -> PassReport:
    count = max(state.ops, default=-1) + 1
    if count == 0:
        raise UnsupportedError("passes not counted: no op holds all of the rank")
    end = 2 * count
    for name in outputs:
        root = state.values[name].root or name
        state.last_read[root] = end
    inner = {n for n, v in state.values.items() if v.block and any(p is not None and p.cut for p in v.parts)}
    passes = []
    for n in range(count):
        ops = state.ops.get(n, {})
        live = [
            (name, v.bytes)
            for name, v in state.values.items()
            if v.depends and not v.root and 0 <= v.made <= 2 * n and state.last_read.get(name, -1) > 2 * n
            if name not in inner
        ]
        passes.append(Pass(tuple(ops), tuple(o for o, barrier in ops.items() if barrier), tuple(live)))
    last = 2 * count - 1
    between = tuple(n for n, (made, _) in state.others.items() if made < last)
    after = tuple(n for n, (made, _) in state.others.items() if made >= last)
    return PassReport(tuple(passes), between, after, state.block_bytes)
