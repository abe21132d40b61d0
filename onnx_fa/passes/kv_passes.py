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
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.inliner
from onnx import helper, numpy_helper

from onnx_fa.errors import UnsupportedError, one_line
from onnx_fa.graph.bounded import infer_followed
from onnx_fa.graph.ops import FUSED_MATMULS, STANDARD, op_of
from onnx_fa.passes.axis_probe import MAX_ELEMENTS, Operand, Part, ProbeError, probe, runner

Array = npt.NDArray[np.generic]
Time = tuple[int, int]
"""(pass, positions of M that are over in it): when something is known."""
_KNOWN = 4096
"""Integer tensors up to this size are carried with their content: they are shapes, bounds and axes."""

_INTEGERS = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)


@dataclass(frozen=True)
class Keys:
    """Where K or V, or a tensor that is a part of it, holds keys: along `axis`, from the key `at`, where there are `of` in all; 0
    if these are all."""

    axis: int
    at: int = 0
    of: int = 0


@dataclass(frozen=True)
class Pass:
    """One pass. `barriers`: the ops among `ops` whose reduction over M is complete only when it ends. `live`: what is held from
    this pass to a later one (values by name, bytes)."""

    ops: tuple[str, ...]
    barriers: tuple[str, ...]
    live: tuple[tuple[str, int], ...] = ()

    @property
    def live_bytes(self) -> int:
        return sum(size for _, size in self.live)


@dataclass(frozen=True)
class PassReport:
    """The passes over M in order. `between`: ops on block statistics or without M whose result a later pass reads; `after`: those
    that can wait until all passes are over. `block_bytes`: the largest tensor of one block, 0 where nothing runs by blocks."""

    passes: tuple[Pass, ...]
    between: tuple[str, ...]
    after: tuple[str, ...]
    block_bytes: int = 0

    @property
    def count(self) -> int:
        return len(self.passes)

    @property
    def live_bytes(self) -> int:
        """The most bytes that are held from one pass to the next; results, and one block's tensors, are not counted."""
        return max((p.live_bytes for p in self.passes[:-1]), default=0)

    def to_dict(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "live_bytes": self.live_bytes,
            "block_bytes": self.block_bytes,
            "passes": [
                {"ops": list(p.ops), "barriers": list(p.barriers), "live_bytes": p.live_bytes} for p in self.passes
            ],
            "between": list(self.between),
            "after": list(self.after),
        }


@dataclass
class _Value:
    """`ready`: when an element can be read by what streams along; `complete`: when all of it is known. `made`: half passes until it
    is there (2p in pass p, 2p+1 after it). `root`: the value whose elements it shows, if an op only moved them."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    const: Array | None = None
    parts: tuple[Part | None, ...] = ()
    ready: Time = (0, 0)
    complete: Time = (0, 0)
    depends: bool = False
    counter: bool = False
    block: bool = False
    """Inside a loop over blocks of M: one block's share."""
    made: int = -1
    root: str = ""

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass
class _State:
    M: int
    opset: int
    values: dict[str, _Value] = field(default_factory=dict)
    ops: dict[int, dict[str, bool]] = field(default_factory=dict)
    """By pass: the ops and whether each is a barrier."""
    others: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Ops that hold no M, or a share of it: when (made), and their output."""
    last_read: dict[str, int] = field(default_factory=dict)
    block_bytes: int = 0
    in_loop: bool = False


def count_passes(model: onnx.ModelProto, seeds: Mapping[str, Keys]) -> PassReport:
    """Counts the passes of a graph with static shapes. `seeds` names inputs (or values) that hold K and V, and
    their axis of rank M.

    Raises UnsupportedError where an op has no definition that could be run, or moves M in a way that has no words here.
    """
    try:
        model = _taken_apart(model, set(seeds))
    except UnsupportedError:
        raise
    except Exception as e:  # the inliner and shape inference raise classes of their own
        raise UnsupportedError(f"passes not counted: {one_line(e)}") from e
    opset = next(o.version for o in model.opset_import if o.domain in STANDARD)
    state = _State(0, opset)
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        state.values[tensor.name] = _Value(array.shape, array.dtype, array)
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


def _seed(state: _State, todo: dict[str, Keys]) -> None:
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


def _taken_apart(model: onnx.ModelProto, seeds: set[str]) -> onnx.ModelProto:
    """The model with every op behind `seeds` that ONNX defines by others replaced by them, until none is left."""
    for _ in range(8):
        model = infer_followed(model)
        opset = next(o.version for o in model.opset_import if o.domain in STANDARD)
        values = (*model.graph.input, *model.graph.output, *model.graph.value_info)
        types = {v.name: v.type for v in values}
        types |= {t.name: helper.make_tensor_type_proto(t.data_type, t.dims) for t in model.graph.initializer}
        found, newer, reached = False, False, set(seeds)
        for i, node in enumerate(model.graph.node):
            if reached.isdisjoint(node.input):
                continue
            reached |= set(node.output)
            if any(types[o].tensor_type.elem_type in _INTEGERS for o in node.output if o in types):
                continue  # sizes and positions
            body = _definition(node, types, opset)
            if body is None:
                continue
            found = True
            newer |= any(o.version > opset for o in body.opset_import)
            body.domain = node.domain = "taken.apart"
            body.name = node.op_type = f"{node.op_type}_{i}"
            model.functions.append(body)
        if not found:
            return model
        if not any(o.domain == "taken.apart" for o in model.opset_import):
            model.opset_import.append(helper.make_opsetid("taken.apart", 1))
        model = onnx.inliner.inline_local_functions(model, convert_version=newer)
    return model


def _definition(node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto], opset: int) -> onnx.FunctionProto | None:
    """What ONNX defines the op by, None for an op that stands for itself."""
    if op_of(node) in FUSED_MATMULS:
        return _fused_matmul(node, types, opset)
    if node.domain not in STANDARD:
        return None
    try:
        schema: Any = onnx.defs.get_schema(op_of(node), opset)  # its stubs lack these methods
        newest: Any = onnx.defs.get_schema(op_of(node))
    except onnx.defs.SchemaError:
        return None
    body: onnx.FunctionProto | None = None
    axis = next((a.i for a in node.attribute if a.name == "axis"), None)
    given = [types.get(name, onnx.TypeProto()).SerializeToString() for name in node.input]
    for s in (schema, newest):  # an op may have been given its definition later
        versions = [v for v in s.context_dependent_function_opset_versions if v <= opset]
        if versions:
            data = s.get_context_dependent_function_with_opset_version(max(versions), node.SerializeToString(), given)
            body = onnx.FunctionProto.FromString(data) if data else None
        elif any(v <= opset for v in s.function_opset_versions):
            version = max(v for v in s.function_opset_versions if v <= opset)
            body = onnx.FunctionProto.FromString(s.get_function_with_opset_version(version))
        elif s.has_function:
            body = s.function_body
        if body is not None and body.node:
            break
    if body is None or not body.node or any(op_of(n) == op_of(node) for n in body.node):
        return None
    _say_defaults(node, schema)
    made = onnx.FunctionProto()
    made.CopyFrom(body)
    if all(o.version <= opset for o in made.opset_import):
        del made.opset_import[:]  # one of several definitions, good from its version to the next one's
        made.opset_import.append(helper.make_opsetid("", opset))
    else:
        # Defined only since its meaning changed: the two agree along the last axis.
        rank = len(types[node.input[0]].tensor_type.shape.dim) if node.input[0] in types else 0
        if axis not in (-1, rank - 1):
            raise UnsupportedError(f"passes not counted: {node.op_type} has no definition at opset {opset}")
    return made


def _say_defaults(node: onnx.NodeProto, schema: Any) -> None:
    """The inliner leaves what a body asks of an attribute that is not there."""
    there = {a.name for a in node.attribute}
    defaults = (a.default_value for name, a in schema.attributes.items() if name not in there)
    node.attribute.extend(a for a in defaults if a.type != onnx.AttributeProto.UNDEFINED)


def _fused_matmul(node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto], opset: int) -> onnx.FunctionProto | None:
    """onnxruntime's product with transposed operands and a factor, as ops of ONNX (which has no definition of it)."""
    said = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if said.get("transBatchA") or said.get("transBatchB") or any(name not in types for name in node.input):
        return None
    nodes, read = [], []
    for name, value in zip("AB", node.input, strict=True):
        rank = len(types[value].tensor_type.shape.dim)
        turned = bool(said.get(f"trans{name}")) and rank > 1
        if turned:
            perm = [*range(rank - 2), rank - 1, rank - 2]
            nodes.append(helper.make_node("Transpose", [name], [f"{name}t"], perm=perm))
        read.append(f"{name}t" if turned else name)
    nodes.append(helper.make_node("MatMul", read, ["product"]))
    nodes.append(helper.make_node("Constant", [], ["alpha"], value_float=float(said.get("alpha", 1.0))))
    nodes.append(helper.make_node("Mul", ["product", "alpha"], ["Y"]))
    return helper.make_function(node.domain, node.op_type, ["A", "B"], ["Y"], nodes, [helper.make_opsetid("", opset)])


def _of_type(proto: onnx.TypeProto, name: str) -> _Value:
    dims = [d.dim_value if d.HasField("dim_value") else None for d in proto.tensor_type.shape.dim]
    if any(d is None for d in dims):
        raise UnsupportedError(f"passes not counted: {name} has no static shape")
    dtype = helper.tensor_dtype_to_np_dtype(proto.tensor_type.elem_type)
    return _Value(tuple(d for d in dims if d is not None), np.dtype(dtype))


def _visit(state: _State, node: onnx.NodeProto) -> None:
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
        _place(state, node, inputs, outs, held, moves)


def _settled(part: Part | None, M: int, unknown: bool) -> Part | None:
    """The part, no block if it holds all positions; where the counter decides which it holds, one of unknown place."""
    if part is None or part.stride != 1 or part.inner != 1:
        return part
    if unknown:
        return replace(part, cut=True, lo=None)
    if part.cut and part.lo is not None and part.lo <= 0 and part.lo + part.count >= M:
        return replace(part, cut=False)  # all of them, and perhaps more (a sink's column)
    return part


def _place(
    state: _State,
    node: onnx.NodeProto,
    inputs: Sequence[_Value | None],
    outs: Sequence[_Value],
    held: set[Part],
    moves: bool,
) -> None:
    """Says in which pass the op runs, or after which, and when its results are known."""
    name = node.name or f"{node.op_type}:{node.output[0]}"
    given = [v for v in inputs if v is not None]
    ready = max((v.ready for v in given), default=(0, 0))
    complete = max((v.complete for v in given), default=(0, 0))
    blocks = [p for p in held if p.cut]
    joined = any(p is not None and not p.cut and p.count == state.M for o in outs for p in o.parts)
    whole = math.prod(p.count for p in {replace(p, inner=1) for p in held}) >= state.M
    if blocks and joined and not state.in_loop:
        # What joins blocks (Concat) has an element of each as soon as that block has it.
        n = max(v.ready[0] + (v.ready[1] > _end(v)) for v in given)
        state.ops.setdefault(n, {})[name] = False
        made, ready, complete = 2 * n, (n, 0), (n, state.M)
    elif blocks or (whole and held):
        # One block is held while it is worked on, so what is known at its end is known to it; a whole rank streams by.
        at = max((1 if p.lo is None else p.lo + p.count for p in blocks), default=0)
        cuts = [_end(o) for o in outs if _end(o)] if len(outs) > 1 else []
        n = ready[0] if ready[1] <= min(cuts, default=at) else ready[0] + 1
        end = state.M if not blocks or any(p.lo is None for p in blocks) else at
        left = any(p is not None for o in outs for p in o.parts)
        state.ops.setdefault(n, {})[name] = not left and not blocks
        made, ready, complete = 2 * n, (n, at) if left or blocks else (n, end), (n, end)
        if blocks:
            state.block_bytes = max([state.block_bytes, *(o.bytes for o in outs if any(o.parts))])
    else:
        statistic = any(p is not None for o in outs for p in o.parts)
        if held and not statistic:
            ready = complete  # a reduction over blocks
            state.ops.setdefault(complete[0], {})[name] = True
        elif not held and not state.in_loop:
            ready = complete
        made = 2 * complete[0] + 1 if complete[1] else 2 * complete[0]
        running = not held and not statistic and 0 < complete[1] < state.M
        if running or (state.in_loop and any(v.block for v in given)):
            # What is known of the blocks so far is brought up to date within the pass.
            made = 2 * ready[0]
            state.ops.setdefault(ready[0], {})[name] = False
        elif name not in state.ops.get(complete[0], {}):
            state.others[name] = (made, node.output[0])
    for value, key in zip(inputs, node.input, strict=True):
        if value is not None:
            root = value.root or key
            state.last_read[root] = max(state.last_read.get(root, -1), made)
    for out in outs:
        # Of several blocks that one op cuts, each is known where it ends.
        out.ready = (ready[0], _end(out)) if len(outs) > 1 and _end(out) else ready
        out.complete, out.made = complete, made
        source = inputs[0]
        if moves and source is not None:
            out.root, out.made = source.root or node.input[0], source.made


def _end(value: _Value) -> int:
    """Up to which position a value's block reaches; 0 where it is none."""
    return max((p.lo + p.count for p in value.parts if p is not None and p.cut and p.lo is not None), default=0)


def _outputs(state: _State, node: onnx.NodeProto, inputs: Sequence[_Value | None]) -> list[_Value]:
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
    values = [_Value(o.shape, o.dtype, o.const) for o in operands]
    (made,) = _outputs(_State(0, opset), node, values)
    return Operand(made.shape, np.dtype(np.float32) if made.dtype.kind == "f" else made.dtype, made.const)


def _content(state: _State, node: onnx.NodeProto, inputs: Sequence[_Value | None]) -> list[_Value] | None:
    """What the op yields whatever the unknown operands hold; None where that depends on them."""
    if any(v is not None and v.const is None and math.prod(v.shape) > MAX_ELEMENTS for v in inputs):
        return None
    operands = [Operand(v.shape, v.dtype, v.const) if v is not None else None for v in inputs]
    try:
        run = runner(node, operands, state.opset)
        tried = []
        for fill in (0, 1):
            arrays = [
                None if v is None else v.const if v.const is not None else np.full(v.shape, fill, v.dtype)
                for v in inputs
            ]
            tried.append(run(arrays))
    except ProbeError:
        return None
    if any(a.shape != b.shape for a, b in zip(*tried, strict=True)):
        return None
    same = all(np.array_equal(a, b) for a, b in zip(*tried, strict=True))
    known = same and all(a.size <= _KNOWN and a.dtype.kind in "iub" for a in tried[0])
    return [_Value(a.shape, a.dtype, a if known else None) for a in tried[0]]


def _loop(state: _State, node: onnx.NodeProto) -> None:
    """A loop's first iteration stands for all: its counter is 0 but nothing may rely on that. States are what earlier
    iterations left, known to every later one."""
    (body,) = [a.g for a in node.attribute if a.name == "body"]
    for tensor in body.initializer:
        array = numpy_helper.to_array(tensor)
        state.values[tensor.name] = _Value(array.shape, array.dtype, array)
    counter, go, *states = [i.name for i in body.input]
    state.values[counter] = _Value((), np.dtype(np.int64), np.asarray(0), counter=True)
    state.values[go] = _Value((), np.dtype(np.bool_), np.asarray(True))
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


def _report(state: _State, outputs: Sequence[str]) -> PassReport:
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
