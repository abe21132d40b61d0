"""Matches become the chosen form; everything else in the model stays as it is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import get_args, overload

import onnx
import onnx_ir as ir

from onnx_fa.errors import UnsupportedError
from onnx_fa.forms import attention as standard
from onnx_fa.forms import decomposed
from onnx_fa.forms import int8_qk as int8
from onnx_fa.forms.integers import redirect_moves
from onnx_fa.forms.parts import Along
from onnx_fa.forms.realise import realise
from onnx_fa.forms.replace import Cut, Form, Site, replace_site
from onnx_fa.forms.report import RewriteReport, SiteReport
from onnx_fa.forms.site_passes import site_passes
from onnx_fa.graph.builder import OnnxBuilder, names_in
from onnx_fa.graph.contradiction import find_contradiction
from onnx_fa.graph.dead_code import release_inputs, sweep
from onnx_fa.graph.io import ModelLike, check_valid, load, same_kind
from onnx_fa.graph.normalise import forget_made_up_names, infer_shapes, values_with_shapes
from onnx_fa.graph.ops import LINEAR_ATTENTIONS, op_of
from onnx_fa.graph.site_op import DOMAIN
from onnx_fa.graph.view import GraphView, default_opset
from onnx_fa.match import Match, find_sites
from onnx_fa.match.misses import Miss
from onnx_fa.match.prepare.branches import take_branches
from onnx_fa.match.prepare.distribute import distribute
from onnx_fa.match.prepare.functions import inline_attention
from onnx_fa.match.prepare.gathered import read_from_pools
from onnx_fa.match.prepare.integer_ops import write_in_floats
from onnx_fa.match.prepare.relative_values import part_distances
from onnx_fa.match.prepare.some_heads import part_heads
from onnx_fa.patterns import PATTERNS

FORMS: tuple[Form, ...] = ("decomposed", "attention", "blocked")


@overload
def rewrite(
    model: onnx.ModelProto,
    form: Form = ...,
    *,
    int8_qk: bool = ...,
    split_keys: int = ...,
    sites: Sequence[str] | None = ...,
) -> tuple[onnx.ModelProto, RewriteReport]: ...


@overload
def rewrite(
    model: ir.Model | str | os.PathLike[str],
    form: Form = ...,
    *,
    int8_qk: bool = ...,
    split_keys: int = ...,
    sites: Sequence[str] | None = ...,
) -> tuple[ir.Model, RewriteReport]: ...


def rewrite(
    model: ModelLike,
    form: Form = "decomposed",
    *,
    int8_qk: bool = False,
    split_keys: int = 1,
    sites: Sequence[str] | None = None,
) -> tuple[ir.Model | onnx.ModelProto, RewriteReport]:
    """Every recognised attention of `model` in `form`. The model passed is not changed. `int8_qk` rounds Q and K of every site to
    int8 per token (forms/int8_qk.py), which changes results; the report says so. `split_keys`: how many partial sites a site's keys
    are split into (forms/split.py), of the sites that `sites` names, or of all.

    Returns a model of the kind passed (onnx_ir.Model for a path; `onnx_fa.save` writes both kinds) and the report of sites and
    misses. Raises ModelError for an unusable model, and ValueError for a form that is none, for parts in another form than the
    decomposed one, and for a name that no site has. Sites that the form cannot express become misses with that reason.

        model, report = onnx_fa.rewrite("model.onnx", "attention")
        onnx_fa.save(model, "model.fa.onnx")
    """
    check_form(form)
    work = model.clone() if isinstance(model, ir.Model) else load(model)
    report = rewrite_in_place(work, form, int8_qk=int8_qk, split=Split(split_keys, sites))[0]
    return same_kind(model, work), report


def check_form(form: str) -> None:
    """Raises ValueError, naming the forms, for a form that is none."""
    if form not in get_args(Form):
        raise ValueError(f"unknown form {form!r}: use one of {', '.join(FORMS)}")


def explain(model: ModelLike, *, passes: bool = False) -> RewriteReport:
    """What `rewrite` would find, without writing anything. `passes`: also count the passes over K and V of every site."""
    work = model.clone() if isinstance(model, ir.Model) else load(model)
    view, matches, misses = find(work)
    counted = [site_passes(view, m) if passes else None for m in matches]
    sites = [
        SiteReport(m.name, m.op, m.form, m.spec, passes=p, beside=shown_words(m))
        for m, p in zip(matches, counted, strict=True)
    ]
    linear = [n.name or n.outputs[0].name or "" for n in view.model.graph if op_of(n) in LINEAR_ATTENTIONS]
    return RewriteReport(tuple(sites), tuple(misses), tuple(linear))


def find(model: ir.Model, form: Form | None = None) -> tuple[GraphView, list[Match], list[Miss]]:
    """Prepares the model (types, shapes, functions that hold attention) and finds its sites, to be written in `form`."""
    try:
        infer_shapes(model)
        inside = inline_attention(model, PATTERNS)
        opset = default_opset(model)
        refused: dict[str, str] = {}

        def is_accepted(match: Match) -> bool:
            why = None if form is None else _refusal(match, form, opset)
            if why is not None:
                refused[match.name] = why
            return why is None

        take_branches(model, PATTERNS, is_accepted)
        in_bytes = write_in_floats(model, PATTERNS, is_accepted)
        # Of what was refused so far the form is what stands in the way, not the Ifs or the ops on bytes that stay.
        prepared = {**in_bytes, **refused}
        view = GraphView(model)
        if distribute(view, PATTERNS, is_accepted):
            view = GraphView(model)
        if part_heads(view, PATTERNS, is_accepted):
            view = GraphView(model)
        if part_distances(view, PATTERNS, is_accepted):
            view = GraphView(model)
        matches, misses = find_sites(view, PATTERNS)
        why = find_contradiction(view) if misses else None
    except (IndexError, KeyError, TypeError, ValueError):
        check_valid(model)  # nodes that break ONNX's rules end in one of these; else it is an error of this package
        raise
    misses = [replace(miss, reason=prepared.get(miss.node, miss.reason)) for miss in misses] + inside
    return view, matches, misses if why is None else [replace(miss, reason=why) for miss in misses]


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
    """What it costs that probabilities or scores of the site are an output of the model; "" where they are not."""
    dims = "x".join(map(str, match.spec.score_shape))
    words: list[str] = []
    if match.probabilities:
        words.append(
            f"the probabilities, {dims}, are an output too: they are written, and their scores are computed a second time"
        )
    if match.shown:
        words.append(f"the scores, {dims}, are an output too: the model's own nodes go on to compute them")
    return "; ".join(words)


@dataclass(frozen=True)
class Split:
    """Into how many parts a site is cut, of the sites of these names (None: of all), and along what."""

    count: int = 1
    sites: Sequence[str] | None = None
    along: Along = "keys"

    def parts_of(self, name: str) -> int:
        """Of one site."""
        return self.count if self.sites is None or name in self.sites else 1

    def check(self, form: Form, names: Sequence[str]) -> None:
        """Raises ValueError where the form has no parts, or no site a name that was asked for."""
        if self.count < 1:
            raise ValueError(f"split_keys={self.count}: keys are split into 1 part or more")
        if self.count > 1 and form not in ("decomposed", "site"):
            raise ValueError(f"keys are split in the decomposed form alone, not in form {form}")
        for name in self.sites or ():
            if name not in names:
                raise ValueError(f"no site is called {name!r}, only {', '.join(map(repr, names)) or 'none'}")


WHOLE = Split()
"""No site is split."""


@dataclass
class _Rewriting:
    """A model while its sites are written, one after the other."""

    model: ir.Model
    opset: int
    form: Form
    int8_qk: bool
    split: Split
    misses: list[Miss]
    taken: set[str]
    """Names of values and nodes."""
    reports: list[SiteReport] = field(default_factory=list)
    sites: list[Site] = field(default_factory=list)
    whole: dict[str, str] = field(default_factory=dict)
    """Why sites were not cut, by their names."""
    consts: dict[ir.Graph, dict[tuple[str, ...], ir.Value]] = field(default_factory=dict)
    """Constants that sites of a graph share."""
    replaced: dict[ir.Value, ir.Value] = field(default_factory=dict)
    """What became of values: a site may read what another site made."""
    dead: list[ir.Node] = field(default_factory=list)
    """Swept last: another site may still read what lies inside this one."""
    written_outs: list[tuple[ir.Value, ir.Value]] = field(default_factory=list)

    def write_site(self, name: str, match: Match) -> None:
        """Replaces one site, or says why it stays."""
        form = self.form
        mark = match.anchor.metadata_props.get(decomposed.FORM_KEY)
        # A part of a site is in the decomposed form, and is not split again.
        written = "decomposed" if mark == decomposed.PART else mark
        parts = 1 if mark == decomposed.PART else self.split.parts_of(name)
        stays = match.keep or form == match.form == "attention" or (form == written and parts == 1)
        lossy = self.int8_qk and not match.keep and int8.fits(match.spec)
        if stays and not lossy:
            self.reports.append(SiteReport(name, match.op, written or match.form, match.spec))
            return
        producer = match.output.producer()
        graph = producer.graph if producer is not None else None
        assert isinstance(graph, ir.Graph)
        builder = OnnxBuilder(graph, self.opset, name, self.taken, self.consts.setdefault(graph, {}))
        builder.for_onnxruntime = form != "site"
        try:
            if form == "site" and graph is not self.model.graph:
                replace_site(builder, match, "decomposed", name, self.replaced, self.dead)
                self.misses.append(Miss(name, match.op, _inside(self.model, graph)))
                return
            if lossy:
                operands = [realise(builder, e, self.replaced) for e in match.operands]
                spec, rounded = int8.quantised(builder, match.spec, operands)
                match = replace(match, spec=spec, operands=rounded)
            site = self._replace(builder, match, name, parts)
        except UnsupportedError as e:
            release_inputs(builder.nodes)
            self.misses.append(Miss(match.name, match.op, f"form {form}: {e}"))
            return
        self.written_outs += builder.written
        loss = "int8 QK" if lossy else ""
        report = SiteReport(name, match.op, form, match.spec, lossy=loss, beside=shown_words(match), parts=parts)
        if site.parts:
            self.sites += site.parts
            self.reports += [replace(report, name=part.name, spec=part.spec) for part in site.parts]
            return
        if self.split.count > 1 and form == "site":
            report = replace(report, parts=1, beside="; ".join(filter(None, (report.beside, self.whole.get(name)))))
        self.sites.append(site)
        self.reports.append(report)

    def _replace(self, builder: OnnxBuilder, match: Match, name: str, parts: int) -> Site:
        """The site, replaced by its form. A site that cannot be cut for several devices is one on the first of them."""
        try:
            return replace_site(builder, match, self.form, name, self.replaced, self.dead, Cut(parts, self.split.along))
        except UnsupportedError as e:
            if self.form != "site" or parts == 1:
                raise
            self.whole[name] = f"not cut along its {self.split.along}, on the first device alone: {e}"
        release_inputs(builder.nodes)
        builder.nodes.clear()
        return replace_site(builder, match, self.form, name, self.replaced, self.dead)

    def sweep(self) -> None:
        """Removes what nobody reads any more."""
        sweep(self.dead)
        left = [p for source, _ in self.written_outs if (p := source.producer()) is not None]
        for graph in redirect_moves(self.written_outs, self.model.functions, self.taken):
            graph.sort()
        sweep(left)


def _inside(model: ir.Model, graph: ir.Graph) -> str:
    """Why a site inside a graph of a node has no kernel, and which input decides whether the graph is run, if one does."""
    why = "the site lies in a subgraph (If, Loop, Scan), where kernels cannot be called"
    for node in model.graph:
        branches = [a.as_graph() for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH]
        condition = node.inputs[0] if op_of(node) == "If" and graph in branches else None
        if condition is not None and condition.is_graph_input():
            return f"{why}; --set {condition.name}=1 (or 0) compiles one branch alone, where they can"
    return why


def rewrite_in_place(
    model: ir.Model, form: Form, *, int8_qk: bool = False, statistics: bool = False, split: Split = WHOLE
) -> tuple[RewriteReport, list[Site]]:
    """As `rewrite`, on the model itself; also returns the rewritten sites with their nodes. `statistics`: a site may be given row
    statistics as further results, which not every target's kernels have."""
    declared = values_with_shapes(model)
    view, matches, misses = find(model, form)
    plan: list[Match] = []
    for match in matches:
        refusal = _refusal(match, form, view.opset)
        if refusal is not None:
            misses.append(Miss(match.name, match.op, refusal))
            continue
        if statistics and match.probabilities and decomposed.told_by_lse(match.spec) and "lse" not in match.spec.stats:
            match = replace(match, spec=replace(match.spec, stats=(*match.spec.stats, "lse")))
        plan.append(read_from_pools(view, match) if form == "site" else match)
    names = _unique_names([m.name for m in plan])
    split.check(form, names)
    rewriting = _Rewriting(model, view.opset, form, int8_qk, split, misses, names_in(model))
    unused = {id(v) for g in model.graphs() for v in g.initializers.values() if _is_unused(v)}  # the user's own: kept
    for name, match in zip(names, plan, strict=True):
        rewriting.write_site(name, match)
    rewriting.sweep()
    if form == "site" and rewriting.sites:
        model.opset_imports[DOMAIN] = 1
        model.graph.opset_imports[DOMAIN] = 1
    if form == "blocked" and rewriting.sites and (model.ir_version or 4) < 4:
        model.ir_version = 4  # before, onnxruntime knows no initializer that only a subgraph reads and that is no input
    if rewriting.consts:
        for graph in rewriting.consts:
            _drop_unused_initializers(graph, keep=unused)
        infer_shapes(model)  # types and shapes of the new nodes
    if form != "site":  # of a model that leaves this project
        forget_made_up_names(model, declared)
    sites = [site.with_replaced(rewriting.replaced) for site in rewriting.sites]
    return RewriteReport(tuple(rewriting.reports), tuple(misses)), sites


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
