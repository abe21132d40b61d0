"""The passes over K and V of a recognised site: as the model spells it, and as onnx_fa runs it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from onnx_fa.errors import UnsupportedError, one_line
from onnx_fa.forms import blocked
from onnx_fa.forms.plain import OPSET, finished, input_names, operand_values, opset_of
from onnx_fa.graph.builder import OnnxBuilder
from onnx_fa.graph.ops import outer_reads
from onnx_fa.graph.view import GraphView
from onnx_fa.match import Const, Expr, Match, values_of
from onnx_fa.passes.axis_probe import Operand, Part, ProbeError, probe
from onnx_fa.passes.kv_passes import count_passes, outcome
from onnx_fa.passes.report import Keys, PassReport
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.terms import Dim

_SIZES = (37, 41, 43, 47, 53, 59, 61, 67, 71, 73)
"""Stand for dims known only at run time."""
_CONSTANT = 4096


@dataclass(frozen=True)
class SitePasses:
    """Of one site: the passes of the model's own graph, and those of the form with blocks, which is the order in which a kernel
    works. `reason` says why either could not be counted."""

    before: PassReport | None
    after: PassReport | None
    reason: str = ""

    @property
    def words(self) -> str:
        return " -> ".join(str(r.count) if r else "?" for r in (self.before, self.after))

    def to_dict(self) -> dict[str, Any]:
        before, after = (r and r.to_dict() for r in (self.before, self.after))
        return {"before": before, "after": after, "reason": self.reason}


class _Sizes:
    """One size for every symbol."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}
        self._free = itertools.chain(_SIZES, itertools.count(79, 2))

    def __call__(self, dim: Dim | None) -> int:
        if dim is None:
            raise UnsupportedError("passes not counted: a dim has no name")
        if isinstance(dim, int):
            return dim
        if dim not in self._sizes:
            self._sizes[dim] = next(self._free)
        return self._sizes[dim]

    def bind(self, spec: AttentionSpec) -> AttentionSpec:
        return spec.bind({s: self(s) for s in spec.symbols})


def site_passes(view: GraphView, match: Match) -> SitePasses:
    """Counts the site's passes before and after. What cannot be counted is said in `reason`."""
    sizes = _Sizes()
    reasons: list[str] = []

    def counted(count: Callable[[], PassReport]) -> PassReport | None:
        try:
            return count()
        except UnsupportedError as e:
            reasons.append(str(e))
        except (
            Exception
        ) as e:  # ONNX's checker, evaluator and inliner raise what they like, and a count is for information
            reasons.append(f"passes not counted: {type(e).__name__} of {type(e).__module__}: {one_line(e)}")
        return None

    before = counted(lambda: count_passes(*_region(view, match, sizes)))
    after = counted(lambda: passes_after(sizes.bind(match.spec)))
    return SitePasses(before, after, "; ".join(reasons))


@lru_cache(maxsize=256)
def passes_after(spec: AttentionSpec) -> PassReport:
    """The passes of a site with static dims in the `blocked` form."""
    spec = spec.plain  # dequantising or gathering K and V is no pass of its own
    inputs = operand_values(spec)
    opset = opset_of(spec)
    graph = ir.Graph(inputs, [], nodes=[], opset_imports={"": opset}, name="site")
    builder = OnnxBuilder(graph, opset, "site", set(input_names(spec)), {})
    model = finished(builder, spec, *blocked.emit(builder, spec, inputs))
    at = spec.rank - 2
    return count_passes(ir.to_proto(model), {"k": Keys(spec.k_layout.index(at)), "v": Keys(spec.v_layout.index(at))})


def _region(view: GraphView, match: Match, sizes: _Sizes) -> tuple[onnx.ModelProto, dict[str, Keys]]:
    """The nodes from K and V to the site's output as a model of their own with static shapes, and where K and V hold their keys."""
    if match.keep:
        raise UnsupportedError("passes not counted: already in the blocked form, whose operands are inside its Loop")
    at = match.spec.rank - 2
    seeds: dict[ir.Value, Keys] = {}
    for expr, layout in ((match.operands[1], match.spec.k_layout), (match.operands[2], match.spec.v_layout)):
        for value, keys in _keys(view, expr, layout.index(at), sizes):
            if seeds.setdefault(value, keys) != keys:
                raise UnsupportedError("passes not counted: K and V are the same tensor, read in two ways")
    nodes = _between(match, set(seeds))
    made = {o for n in nodes for o in n.outputs}
    inputs: dict[str, onnx.ValueInfoProto] = {}
    constants: dict[str, onnx.TensorProto] = {}
    for node in nodes:
        for value in filter(None, (*node.inputs, *outer_reads(node))):
            if value in made or value.name in inputs or value.name in constants:
                continue
            name = str(value.name)
            array = None if value in seeds else _content(view, value, sizes)
            if array is not None:
                constants[name] = numpy_helper.from_array(array, name)
                continue
            shape, dtype = view.shape(value), value.dtype
            if shape is None or dtype is None:
                raise UnsupportedError(f"passes not counted: the shape of {name} is not known")
            inputs[name] = helper.make_tensor_value_info(name, dtype.value, [sizes(d) for d in shape])
    opsets = [helper.make_opsetid(d, v) for d, v in view.model.opset_imports.items()]
    protos = [_plain(node) for node in nodes]
    outputs = [onnx.ValueInfoProto(name=match.output.name)]
    graph = helper.make_graph(protos, "site", list(inputs.values()), outputs, list(constants.values()))
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return model, {str(v.name): keys for v, keys in seeds.items()}


def _plain(node: ir.Node) -> onnx.NodeProto:
    proto = ir.to_proto(node)
    del proto.metadata_props[:]
    return proto


def _between(match: Match, sources: set[ir.Value]) -> list[ir.Node]:
    """The nodes that depend on `sources` and that the site's output depends on, in graph order."""
    last = match.output.producer()
    if last is None or not isinstance(last.graph, ir.Graph):
        raise UnsupportedError("passes not counted: the site is not in a graph")
    reached: dict[ir.Value, bool] = {s: True for s in sources}
    order = {node: i for i, node in enumerate(last.graph)}
    first = min((order.get(p, -1) if (p := s.producer()) is not None else -1) for s in sources)
    found: set[ir.Node] = set()
    stack = [last]
    while stack:
        node = stack[-1]
        reads = [v for v in (*node.inputs, *outer_reads(node)) if v is not None]
        todo = [
            p
            for v in reads
            if v not in reached and (p := v.producer()) is not None and order.get(p, -1) > first and p is not node
        ]
        if todo:
            stack += todo
            continue
        stack.pop()
        hit = any(reached.get(v, False) for v in reads)
        for out in node.outputs:
            reached.setdefault(out, hit)
        if hit:
            found.add(node)
    return sorted(found, key=order.__getitem__)


def site_nodes(match: Match) -> list[ir.Node]:
    """The nodes from the site's operands to its output, in graph order."""
    last = match.output.producer()
    if last is None or not isinstance(last.graph, ir.Graph):
        return []
    stop = set(values_of(*match.operands))
    found: set[ir.Node] = set()
    todo = [match.output]
    while todo:
        value = todo.pop()
        node = value.producer()
        if value in stop or node is None or node in found or node.graph is not last.graph:
            continue
        found.add(node)
        todo += [v for v in node.inputs if v is not None]
    order = {node: i for i, node in enumerate(last.graph)}
    return sorted(found, key=order.__getitem__)


def _content(view: GraphView, value: ir.Value, sizes: _Sizes) -> np.ndarray[Any, Any] | None:
    """What is in a small tensor, if the graph says so or its shapes do."""
    shape = view.shape(value)
    if shape is None or any(not isinstance(d, int) for d in shape):
        return None
    if math.prod(d for d in shape if isinstance(d, int)) > _CONSTANT:
        return None
    array = view.const(value)
    if array is not None:
        return np.asarray(array)
    dims = view.dims(value) if value.dtype == ir.DataType.INT64 and len(shape) < 2 else None
    if dims is None or any(d is None for d in dims):
        return None
    return np.asarray([sizes(d) for d in dims], np.int64).reshape([d for d in shape if isinstance(d, int)])


def _keys(view: GraphView, expr: Expr, axis: int, sizes: _Sizes) -> list[tuple[ir.Value, Keys]]:
    """The values that K or V is made of, and where they hold what becomes `axis` of `expr`: one that holds all keys, or several,
    one after the other, that a Concat joins."""
    found: list[tuple[ir.Value, Keys]] = []
    for leaf in _leaves(expr):
        shape = view.shape(leaf)
        if shape is None:
            raise UnsupportedError("passes not counted: the shape of K or V is not known")
        for candidate, size in enumerate(map(sizes, shape)):
            parts = tuple(Part(size) if a == candidate else None for a in range(len(shape)))
            made = _made(view, expr, leaf, parts, sizes)
            part, total = made.parts[axis], made.shape[axis]
            if part == Part(size) and size == total:
                return [(leaf, Keys(candidate))]
            if part is not None and part.cut and part.lo is not None and part.lo <= 0:
                found.append((leaf, Keys(candidate, -part.lo, total)))
                break
    found.sort(key=lambda x: x[1].at)
    ends = [keys.at + sizes((view.shape(leaf) or ())[keys.axis]) for leaf, keys in found]
    if not found or [keys.at for _, keys in found] != [0, *ends[:-1]] or ends[-1] != found[0][1].of:
        raise UnsupportedError("passes not counted: the keys are no single axis of the tensors that hold K or V")
    return found


def _leaves(expr: Expr) -> list[ir.Value]:
    """The values whose elements an expression moves or works on: what an op reads first, and all that a Concat joins."""
    if isinstance(expr, Const):
        raise UnsupportedError("passes not counted: K or V is a constant")
    if isinstance(expr, ir.Value):
        return [expr]
    joined = expr.args if expr.op == "Concat" else expr.args[:1]
    return list(dict.fromkeys(leaf for argument in joined for leaf in _leaves(argument)))


def _made(view: GraphView, expr: Expr, leaf: ir.Value, parts: tuple[Part | None, ...], sizes: _Sizes) -> Operand:
    """An expression, and how its axes hold the keys if those of `leaf` hold them as `parts` say. All floats are f32 here."""
    if isinstance(expr, Const):
        return Operand(expr.array.shape, expr.array.dtype, expr.array)
    if isinstance(expr, ir.Value):
        shape = view.shape(expr)
        if shape is None or expr.dtype is None:
            raise UnsupportedError(
                f"passes not counted: shape or type of {expr.name}, which K or V reads, is not known"
            )
        dtype = np.dtype(np.float32) if expr.dtype.is_floating_point() else expr.dtype.numpy()
        held = parts if expr is leaf else ()
        return Operand(tuple(map(sizes, shape)), dtype, None if held else _content(view, expr, sizes), held)
    operands = [_made(view, argument, leaf, parts, sizes) for argument in expr.args]
    attributes: dict[str, Any] = dict(expr.attrs)
    node = helper.make_node(expr.op, [f"x{i}" for i in range(len(operands))], ["y"], **attributes)
    try:
        made = outcome(node, operands, OPSET)
        held = probe(node, operands, OPSET).parts[0] if any(o.held for o in operands) else ()
    except ProbeError as e:
        raise UnsupportedError(f"passes not counted: {e}") from e
    return replace(made, parts=held)
