"""Matches become the chosen form; everything else in the model stays as it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal, overload

import numpy as np
import onnx
import onnx_ir as ir

from onnx_fa.errors import UnsupportedError
from onnx_fa.forms import attention as standard
from onnx_fa.forms import blocked, decomposed
from onnx_fa.forms import int8_qk as int8
from onnx_fa.forms.integers import dequantized, redirect_moves, written_out
from onnx_fa.forms.realise import realise, release_inputs
from onnx_fa.forms.report import RewriteReport, SiteReport
from onnx_fa.forms.site_passes import site_passes
from onnx_fa.forms.unchanged import is_same_value, nodes_between
from onnx_fa.graph.builder import OnnxBuilder, names_in
from onnx_fa.graph.dead_code import sweep
from onnx_fa.graph.io import ModelLike, check_valid, load, same_kind
from onnx_fa.graph.normalise import infer_shapes
from onnx_fa.graph.site_op import DOMAIN, OP_TYPE, SPEC_ATTRIBUTE
from onnx_fa.graph.view import GraphView
from onnx_fa.match import NUMPY, Expr, Match, find_sites
from onnx_fa.match.misses import Miss
from onnx_fa.match.prepare.distribute import distribute
from onnx_fa.match.prepare.functions import inline_attention
from onnx_fa.match.prepare.gathered import from_pools
from onnx_fa.patterns import PATTERNS
from onnx_fa.spec.attention import AttentionSpec

Form = Literal["decomposed", "attention", "blocked", "site"]
FORMS: tuple[Form, ...] = ("decomposed", "attention", "blocked")
_EMITTERS = {"decomposed": decomposed.emit, "attention": standard.emit, "blocked": blocked.emit}


@overload
def rewrite(
    model: onnx.ModelProto, form: Form = ..., *, int8_qk: bool = ...
) -> tuple[onnx.ModelProto, RewriteReport]: ...


@overload
def rewrite(
    model: ModelLike, form: Form = ..., *, int8_qk: bool = ...
) -> tuple[ir.Model | onnx.ModelProto, RewriteReport]: ...


def rewrite(
    model: ModelLike, form: Form = "decomposed", *, int8_qk: bool = False
) -> tuple[ir.Model | onnx.ModelProto, RewriteReport]:
    """Every recognised attention of `model` in `form`. The model passed is not changed. `int8_qk` rounds Q and K of every site to
    int8 per token (forms/int8_qk.py), which changes results; the report says so.

    Returns a model of the kind passed (onnx_ir.Model for a path) and the report of sites and misses. Raises ModelError for an
    unusable model. Sites that the form cannot express become misses with that reason.
    """
    work = model.clone() if isinstance(model, ir.Model) else load(model)
    report = rewrite_in_place(work, form, int8_qk=int8_qk)[0]
    return same_kind(model, work), report


def explain(model: ModelLike, *, passes: bool = False) -> RewriteReport:
    """What `rewrite` would find, without writing anything. `passes`: also count the passes over K and V of every site."""
    work = model.clone() if isinstance(model, ir.Model) else load(model)
    view, matches, misses = find(work)
    counted = [site_passes(view, m) if passes else None for m in matches]
    sites = [
        SiteReport(m.name, m.op, m.form, m.spec, passes=p, beside=shown_words(m))
        for m, p in zip(matches, counted, strict=True)
    ]
    return RewriteReport(tuple(sites), tuple(misses))


def find(model: ir.Model, form: Form | None = None) -> tuple[GraphView, list[Match], list[Miss]]:
    """Prepares the model (types, shapes, functions that hold attention) and finds its sites, to be written in `form`."""
    try:
        infer_shapes(model)
        inside = inline_attention(model, PATTERNS)
        view = GraphView(model)
        opset = view.opset
        if distribute(view, PATTERNS, lambda match: form is None or _refusal(match, form, opset) is None):
            view = GraphView(model)
        matches, misses = find_sites(view, PATTERNS)
    except (IndexError, KeyError, TypeError, ValueError):
        check_valid(model)  # nodes that break ONNX's rules end in one of these; else it is an error of this package
        raise
    return view, matches, misses + inside


def _refusal(match: Match, form: Form, opset: int) -> str | None:
    """Why the site cannot be written in the form, as far as can be told before it is."""
    if match.keep:
        return "already in the blocked form, whose operands are inside its Loop" if form == "site" else None
    if form == "attention" and match.form != "attention":
        try:
            standard.check(match.spec, opset)
        except UnsupportedError as e:
            return f"form {form}: {e}"
    return None


def shown_words(match: Match) -> str:
    """What it costs that probabilities of the site are an output of the model; "" where they are not."""
    if not match.probabilities:
        return ""
    dims = "x".join(map(str, match.spec.score_shape))
    return (
        f"the probabilities, {dims}, are an output too: they are written, and their scores are computed a second time"
    )


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


def rewrite_in_place(
    model: ir.Model, form: Form, *, int8_qk: bool = False, statistics: bool = False
) -> tuple[RewriteReport, list[Site]]:
    """As `rewrite`, on the model itself; also returns the rewritten sites with their nodes. `statistics`: a site may be given row
    statistics as further results, which not every target's kernels have."""
    view, matches, misses = find(model, form)
    plan: list[Match] = []
    reports: list[SiteReport] = []
    for match in matches:
        refusal = _refusal(match, form, view.opset)
        if refusal is not None:
            misses.append(Miss(match.name, match.op, refusal))
            continue
        if statistics and match.probabilities and decomposed.told_by_lse(match.spec) and "lse" not in match.spec.stats:
            match = replace(match, spec=replace(match.spec, stats=(*match.spec.stats, "lse")))
        plan.append(from_pools(view, match) if form == "site" else match)
    names = _unique_names([m.name for m in plan])
    taken = names_in(model)
    unused = {id(v) for g in model.graphs() for v in g.initializers.values() if _is_unused(v)}  # the user's own: kept
    consts: dict[ir.Graph, dict[tuple[str, ...], ir.Value]] = {}
    replaced: dict[ir.Value, ir.Value] = {}  # a site may read what another site made
    dead: list[ir.Node] = []  # swept last: another site may still read what lies inside this one
    sites: list[Site] = []
    written_outs: list[tuple[ir.Value, ir.Value]] = []
    for name, match in zip(names, plan, strict=True):
        written = match.anchor.metadata_props.get(decomposed.FORM_KEY)
        stays = match.keep or form == match.form == "attention" or form == written
        producer = match.output.producer()
        graph = producer.graph if producer is not None else None
        lossy = int8_qk and not match.keep and int8.fits(match.spec)
        if stays and not lossy:
            reports.append(SiteReport(name, match.op, written or match.form, match.spec))
            continue
        assert isinstance(graph, ir.Graph)
        builder = OnnxBuilder(graph, view.opset, name, taken, consts.setdefault(graph, {}))
        builder.for_onnxruntime = form != "site"
        try:
            if form == "site" and graph is not model.graph:
                _replace(builder, match, "decomposed", name, replaced, dead)
                why = "the site lies in a subgraph (If, Loop, Scan), where kernels cannot be called"
                misses.append(Miss(name, match.op, why))
                continue
            if lossy:
                spec, operands = int8.quantised(
                    builder, match.spec, [realise(builder, e, replaced) for e in match.operands]
                )
                match = replace(match, spec=spec, operands=operands)
            sites.append(_replace(builder, match, form, name, replaced, dead))
        except UnsupportedError as e:
            release_inputs(builder.nodes)
            misses.append(Miss(match.name, match.op, f"form {form}: {e}"))
            continue
        written_outs += builder.written
        report = SiteReport(
            name, match.op, form, match.spec, lossy="int8 QK" if lossy else "", beside=shown_words(match)
        )
        reports.append(report)
    sweep(dead)
    left = [p for source, _ in written_outs if (p := source.producer()) is not None]
    for graph in redirect_moves(written_outs, model.functions, taken):
        graph.sort()
    sweep(left)
    if form == "site" and sites:
        model.opset_imports[DOMAIN] = 1
        model.graph.opset_imports[DOMAIN] = 1
    if form == "blocked" and sites and (model.ir_version or 4) < 4:
        model.ir_version = 4  # before, onnxruntime knows no initializer that only a subgraph reads and that is no input
    if consts:
        for graph in consts:
            _drop_unused_initializers(graph, keep=unused)
        infer_shapes(model)  # types and shapes of the new nodes
    return RewriteReport(tuple(reports), tuple(misses)), sites


def _replace(
    b: OnnxBuilder, match: Match, form: Form, name: str, replaced: dict[ir.Value, ir.Value], dead: list[ir.Node]
) -> Site:
    """Puts the site's new nodes before the node that made its output, and redirects the readers.

    `replaced` says what became of values of the original graph, and learns what this site replaces; `dead` gets the node that
    nobody reads any more. Raises UnsupportedError when the form cannot hold the spec or the model's opset lacks an op of it: the
    graph is as it was, and the builder's nodes are to be let go.
    """
    operands = tuple(realise(b, e, replaced) for e in match.operands)
    if form != "site":
        operands = tuple(written_out(b, x) for x in operands)
    presents = [(old, realise(b, e, replaced)) for old, e in match.presents]
    before = behind = len(b.nodes)
    spec, numbers = match.spec, operands
    if form == "decomposed" and spec != spec.plain:
        spec, numbers = dequantized(b, spec, operands)
        behind = len(b.nodes)
    if form == "site":
        attrs = {SPEC_ATTRIBUTE: json.dumps(match.spec.to_dict())}
        outs = b.ops_of(DOMAIN, OP_TYPE, operands, attrs, len(match.spec.results))
        node = b.nodes[-1]
        node.name = name
        for x, (shape, dtype) in zip(outs, match.spec.results, strict=True):
            x.type, x.shape = ir.TensorType(ir.DataType.from_numpy(np.dtype(NUMPY[dtype]))), ir.Shape(shape)
        outs[0].type = match.output.type
    else:
        outs = _EMITTERS[form](b, spec, numbers)
    inner, core = tuple(b.nodes[before:]), tuple(b.nodes[behind:])

    def wrapped(source: int, wraps: Iterable[Callable[[Expr], Expr]]) -> ir.Value:
        value = outs[source]
        for wrap in wraps:
            value = realise(b, wrap(value), replaced)
        return value

    out = wrapped(0, match.wrap)
    presents += [(f.value, wrapped(f.source, f.wrap)) for f in match.further]
    old = match.output
    if match.scores is not None:
        presents.append((match.scores[0], decomposed.scores(b, spec, numbers, match.scores[1])))
    if match.probabilities:
        # A kernel's log-sum-exp, that is: onnxruntime's ReduceLogSumExp is -inf where a row begins with a masked key and the other
        # scores are below -104.
        told = form == "site" and "lse" in spec.stats and decomposed.told_by_lse(spec)
        lse = outs[1 + spec.stats.index("lse")] if told else None
        shown = decomposed.probabilities(b, spec, numbers, lse)
        for further in match.probabilities:
            value = shown
            for wrap in further.wrap:
                value = realise(b, wrap(value), replaced)
            presents.append((further.value, b.op("Identity", value) if value is shown and presents else value))
    same = not match.wrap and not presents and match.spec == match.spec.plain and is_same_value(out, old, set(operands))
    if form != "site" and same:
        release_inputs(b.nodes)
        return Site(name, match.spec, operands, old, nodes_between(old, set(operands)))
    b.check()
    producer = old.producer()
    assert producer is not None
    made = {o for n in b.nodes for o in n.outputs}
    # A result that is an existing value gets a node of its own, so that it can carry the old one's name.
    results = [(was, new if new in made else b.op("Identity", new)) for was, new in ((old, out), *presents)]
    # Further outputs may be read before whatever stands behind the replaced node.
    _insert(match.anchor if presents else producer, b.nodes)
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
    plain = Site(name, spec, numbers, results[0][1], core) if spec is not match.spec else None
    return Site(name, match.spec, operands, results[0][1], inner, plain)


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


def _is_unused(value: ir.Value) -> bool:
    return not value.uses() and not value.is_graph_output() and not value.is_graph_input()


def _drop_unused_initializers(graph: ir.Graph, keep: set[int]) -> None:
    for name, value in list(graph.initializers.items()):
        if _is_unused(value) and id(value) not in keep:
            del graph.initializers[name]


def _unique_names(names: list[str]) -> list[str]:
    seen: dict[str, int] = {}
    result = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        result.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return result
