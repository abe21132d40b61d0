"""One site of a graph replaced by its form: new nodes before the old ones, and readers redirected."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import onnx_ir as ir

from onnx_fa.errors import UnsupportedError
from onnx_fa.forms import attention as standard
from onnx_fa.forms import blocked, decomposed, split
from onnx_fa.forms.integers import dequantized, written_out
from onnx_fa.forms.parts import Along
from onnx_fa.forms.realise import realise
from onnx_fa.forms.unchanged import is_same_value, nodes_between
from onnx_fa.graph.builder import OnnxBuilder
from onnx_fa.graph.dead_code import release_inputs
from onnx_fa.graph.site_op import DOMAIN, OP_TYPE
from onnx_fa.match import Expr, Match
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.dtypes import NUMPY

Form = Literal["decomposed", "attention", "blocked", "site"]
_EMITTERS = {"decomposed": decomposed.emit, "attention": standard.emit, "blocked": blocked.emit}


@dataclass(frozen=True)
class Site:
    """One rewritten site inside the model: what the stock road's pattern is made from.

    `operands` are the values that the new nodes read, in the spec's order; `nodes` the new nodes of the site itself. `plain` is
    what lies behind the dequantisation of K and V, where the form begins with one.
    """

    name: str
    spec: AttentionSpec
    operands: tuple[ir.Value, ...]
    output: ir.Value
    nodes: tuple[ir.Node, ...]
    plain: Site | None = None
    parts: tuple[Site, ...] = ()
    """Where the site is cut for several devices, its parts, each of which is a node."""
    device: int = 0
    """Of a part: the number of the device that it is placed on."""

    def with_replaced(self, replaced: Mapping[ir.Value, ir.Value]) -> Site:
        """The same site, reading what stands in the place of values that were `replaced` after it was written: the softmax of a
        site may stand in front of that of another whose result it multiplies."""
        plain = self.plain.with_replaced(replaced) if self.plain is not None else None
        operands = tuple(replaced.get(value, value) for value in self.operands)
        return replace(self, operands=operands, plain=plain, parts=tuple(p.with_replaced(replaced) for p in self.parts))


@dataclass(frozen=True)
class Cut:
    """Into how many parts a site is cut, and along what."""

    count: int = 1
    along: Along = "keys"


@dataclass(frozen=True)
class _Written:
    """What a form has written of a site."""

    outs: Sequence[ir.Value]
    """The output and, where the form has them, row statistics."""
    spec: AttentionSpec
    """What the form was written of: without integers, where the form begins with their dequantisation."""
    operands: tuple[ir.Value, ...]
    """Those of `spec`."""
    nodes: tuple[ir.Node, ...]
    core: tuple[ir.Node, ...]
    """The nodes behind the dequantisation."""
    parts: tuple[Site, ...] = ()


def replace_site(
    b: OnnxBuilder,
    match: Match,
    form: Form,
    name: str,
    replaced: dict[ir.Value, ir.Value],
    dead: list[ir.Node],
    cut: Cut | None = None,
) -> Site:
    """Puts the site's new nodes before the node that made its output, and redirects the readers.

    `replaced` says what became of values of the original graph, and learns what this site replaces; `dead` gets the node that
    nobody reads any more. `cut`: into parts, in the decomposed form of its keys alone, as nodes for kernels along any axis.
    Raises UnsupportedError when the form cannot hold the spec or the model's opset lacks an op of it: the graph is as it was,
    and the builder's nodes are to be let go.
    """
    operands = tuple(realise(b, e, replaced) for e in match.operands)
    if form != "site":
        operands = tuple(written_out(b, x) for x in operands)
    presents = [(old, realise(b, e, replaced)) for old, e in match.presents]
    written = _write_form(b, match, form, name, operands, cut or Cut())
    out = _wrap(b, written.outs[0], match.wrap, replaced)
    presents += [(f.value, _wrap(b, written.outs[f.source], f.wrap, replaced)) for f in match.further]
    _write_scores(b, match, form, written, presents, replaced)
    old, spec = match.output, match.spec
    same = not match.wrap and not presents and spec == spec.plain and is_same_value(out, old, set(operands))
    if form != "site" and same:
        release_inputs(b.nodes)
        return Site(name, spec, operands, old, nodes_between(old, set(operands)))
    b.check()
    made = {o for n in b.nodes for o in n.outputs}
    # A result that is an existing value gets a node of its own, so that it can carry the old one's name.
    results = [(was, new if new in made else b.op("Identity", new)) for was, new in ((old, out), *presents)]
    _answer_askers(b, match, replaced, dead)
    _redirect_readers(b, match, results, replaced, dead)
    result = results[0][1]
    plain = Site(name, written.spec, written.operands, result, written.core) if written.spec is not spec else None
    return Site(name, spec, operands, result, written.nodes, plain, written.parts)


def _write_form(
    b: OnnxBuilder, match: Match, form: Form, name: str, operands: tuple[ir.Value, ...], cut: Cut
) -> _Written:
    before = behind = len(b.nodes)
    spec, numbers = match.spec, operands
    if form == "attention" and match.exact_scores and spec.dtype != "f32":
        raise UnsupportedError(f"the model has scores in f32, the Attention op of {spec.dtype} may round them to that")
    if cut.count > 1:
        nodes: list[Site] = []
        if form == "site":
            merged, nodes = _write_parts(b, match, name, operands, cut)
        else:
            merged = split.emit(b, spec, operands, cut.count)
        made = tuple(b.nodes[before:])
        return _Written(merged, spec, operands, made, made, tuple(nodes))
    if form == "decomposed" and spec != spec.plain:
        spec, numbers = dequantized(b, spec, operands)
        behind = len(b.nodes)
    outs = _write_node(b, match, name, spec, operands) if form == "site" else _EMITTERS[form](b, spec, numbers)
    return _Written(outs, spec, numbers, tuple(b.nodes[before:]), tuple(b.nodes[behind:]))


def _write_parts(
    b: OnnxBuilder, match: Match, name: str, operands: tuple[ir.Value, ...], cut: Cut
) -> tuple[list[ir.Value], list[Site]]:
    """The site as several nodes, each for a kernel on a device of its own; what puts their results together, and the nodes."""
    parts, results, sites = split.parts_of(b, match.spec, operands, cut.along, cut.count), [], []
    for i, part in enumerate(parts):
        made = list(_write_node(b, match, f"{name}/part{i}", part.spec, part.operands))
        sites.append(Site(f"{name}/part{i}", part.spec, part.operands, made[0], (b.nodes[-1],), device=i))
        results.append([made[0], *(b.unsqueeze(x, -1) for x in made[1:])] if cut.along == "keys" else made)
    return split.joined(b, match.spec, operands, cut.along, parts, results), sites


def _write_node(
    b: OnnxBuilder, match: Match, name: str, spec: AttentionSpec, operands: tuple[ir.Value, ...]
) -> Sequence[ir.Value]:
    """The site, or a part of it, as one node, for the kernel that will stand there."""
    outs = b.ops_of(DOMAIN, OP_TYPE, operands, {}, len(spec.results))
    node = b.nodes[-1]
    node.name = name
    for x, (shape, dtype) in zip(outs, spec.results, strict=True):
        x.type, x.shape = ir.TensorType(ir.DataType.from_numpy(np.dtype(NUMPY[dtype]))), ir.Shape(shape)
    return outs


def _wrap(
    b: OnnxBuilder, value: ir.Value, wraps: Iterable[Callable[[Expr], Expr]], replaced: dict[ir.Value, ir.Value]
) -> ir.Value:
    for wrap in wraps:
        value = realise(b, wrap(value), replaced)
    return value


def _write_scores(
    b: OnnxBuilder,
    match: Match,
    form: Form,
    written: _Written,
    presents: list[tuple[ir.Value, ir.Value]],
    replaced: dict[ir.Value, ir.Value],
) -> None:
    """Adds to `presents` the scores and the probabilities that are outputs too: they are computed a second time."""
    spec = written.spec
    if match.scores is not None:
        presents.append((match.scores[0], decomposed.scores(b, spec, written.operands, match.scores[1])))
    if not match.probabilities:
        return
    # A kernel's log-sum-exp, that is: onnxruntime's ReduceLogSumExp is -inf where a row begins with a masked key and the other
    # scores are below -104.
    told = form == "site" and "lse" in spec.stats and decomposed.told_by_lse(spec)
    lse = written.outs[1 + spec.stats.index("lse")] if told else None
    shown = decomposed.probabilities(b, spec, written.operands, lse)
    for further in match.probabilities:
        value = _wrap(b, shown, further.wrap, replaced)
        presents.append((further.value, b.op("Identity", value) if value is shown and presents else value))


def _answer_askers(b: OnnxBuilder, match: Match, replaced: dict[ir.Value, ir.Value], dead: list[ir.Node]) -> None:
    """Gives those that ask what vanishes for its shape or type the answer from elsewhere. It stands where they stood: a mask of the
    site may be made of it."""
    for node, expr in match.asked:
        start = len(b.nodes)
        answer = realise(b, expr, replaced)
        if answer.producer() not in b.nodes[start:]:
            answer = b.op("Identity", answer)  # which can carry the name
        made = b.nodes[start:]
        del b.nodes[start:]
        _insert(node, made)
        _take_over(b, node.outputs[0], answer)
        replaced[node.outputs[0]] = answer
        dead.append(node)


def _redirect_readers(
    b: OnnxBuilder,
    match: Match,
    results: Sequence[tuple[ir.Value, ir.Value]],
    replaced: dict[ir.Value, ir.Value],
    dead: list[ir.Node],
) -> None:
    """Inserts the new nodes; whoever read the first of a pair of `results` reads the second."""
    producer = match.output.producer()
    assert producer is not None
    # Further outputs may be read before whatever stands behind the replaced node.
    _insert(match.anchor if len(results) > 1 else producer, b.nodes)
    for was, new in results:
        _take_over(b, was, new)
        replaced[was] = new
    shared = (*match.further, *match.probabilities)
    if shared:  # what they are made from may stand behind the first of their readers
        assert isinstance(b.graph, ir.Graph)
        b.graph.sort()
        dead += [p for f in shared if (p := f.value.producer()) is not None]
    # What `written_out` has replaced has no readers, and onnxruntime's optimiser would move a DequantizeLinear through it still.
    dead += [producer, *b.nodes]


def _insert(before: ir.Node, nodes: list[ir.Node]) -> None:
    assert before.graph is not None
    before.graph.insert_before(before, nodes)


def _take_over(b: OnnxBuilder, old: ir.Value, new: ir.Value) -> None:
    """`new` stands where `old` stood, with its name, type and shape, also as a graph output."""
    name = old.name
    new.type, new.shape = old.type or new.type, old.shape or new.shape
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    old.name = b.name("replaced")
    new.name = name
