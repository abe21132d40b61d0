"""The kernels of a model: the one road from a model and a target to them, whoever asks.

A model is loaded and matched once. From then on an attention is one object, `PlannedSite`, which import, inspection and report are
handed with what it computes, the node that stands for it, its kernel and its line of the report.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onnx_fa.errors import UnsupportedError
from onnx_fa.forms import blocked, decomposed
from onnx_fa.forms.integers import dequantized
from onnx_fa.forms.parts import Along
from onnx_fa.forms.report import RewriteReport, SiteReport
from onnx_fa.forms.rewrite import Split, rewrite_in_place
from onnx_fa.forms.score import narrowest
from onnx_fa.graph.builder import OnnxBuilder, names_in
from onnx_fa.graph.dims import known, recorded
from onnx_fa.graph.io import ModelLike, load
from onnx_fa.graph.ops import op_of
from onnx_fa.graph.site_op import DOMAIN, SITE, SPEC_ATTRIBUTE
from onnx_fa.iree.legalise.expand import mark_expands
from onnx_fa.iree.legalise.known_shapes import settle_shapes
from onnx_fa.iree.projections import part_projections
from onnx_fa.iree.repeated_rows import write_repeats
from onnx_fa.kernels.choose import emit_kernel
from onnx_fa.kernels.mlir.kernel import Kernel
from onnx_fa.match.misses import Miss
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.target import Target


@dataclass(frozen=True)
class PlannedSite:
    """One attention of a model that is compiled."""

    report: SiteReport
    """Its line of the report, with the spec of what is computed in its place."""
    node: ir.Node
    """The AttentionSite node that stands for it. It is in no graph once the site is written in standard ops."""
    kernel: Kernel | None = None
    """What the node becomes a call of. None where the site is written in standard ops, and where nobody reads its result."""
    reason: str = ""
    """Why the site is written in standard ops, and in which; "" where it is not."""
    device: int | None = None
    """The number of the device that it is placed on; None in a program of one device."""

    @property
    def name(self) -> str:
        """The name of the site, of its line of the report and of its node."""
        return self.report.name

    @property
    def spec(self) -> AttentionSpec:
        return self.report.spec


@dataclass(frozen=True)
class Planned:
    """A model on its way to the compiler, with an AttentionSite node wherever a kernel takes the place of an attention."""

    model: ir.Model
    target: Target
    """What the kernels are for."""
    sites: tuple[PlannedSite, ...]
    """Every attention that has a spec, with a kernel or without."""
    unmatched: tuple[Miss, ...]
    """Softmaxes and attention ops that have none."""

    @property
    def report(self) -> RewriteReport:
        """The sites; those that are written in standard ops are among the misses, with the reason."""
        lost = tuple(Miss(s.name, s.report.op, s.reason) for s in self.sites if s.reason)
        return RewriteReport(tuple(s.report for s in self.sites if not s.reason), self.unmatched + lost)

    @property
    def kernels(self) -> dict[str, Kernel]:
        """By the names of the sites; sites with equal specs share one."""
        return {s.name: s.kernel for s in self.sites if s.kernel is not None}


def plan_kernels(model: ModelLike, target: Target, along: Along = "keys") -> Planned:
    """Matches `model` and chooses the kernels that it calls when it is compiled. The model passed is not changed. `along`: what
    sites are cut along, where the target has several devices.

    A site without a kernel is written in standard ops and reported as a miss with the reason. Raises ModelError.
    """
    work = model.clone() if isinstance(model, ir.Model) else load(model)
    write_repeats(work)
    if not target.is_gpu:
        part_projections(work)
    split = Split(target.devices, along=along)
    report, written = rewrite_in_place(work, "site", statistics=not target.is_gpu, split=split)
    for line, site in zip(report.sites, written, strict=True):
        _declare_result(site.nodes[0].outputs[0], line.spec)
    settle_shapes(work)
    sites = [
        PlannedSite(line, site.nodes[0], device=site.device if target.devices > 1 else None)
        for line, site in zip(report.sites, written, strict=True)
    ]
    by_node = {site.node: site for site in sites}
    chooser = _Chooser(work, target, {}, {})
    # In the order of the graph, which is how constants that sites share get the same names every time.
    chosen = {node: chooser.choose(by_node[node]) for node in list(work.graph) if node in by_node}
    mark_expands(work)
    return Planned(work, target, tuple(chosen.get(site.node, site) for site in sites), report.misses)


def _declare_result(out: ir.Value, spec: AttentionSpec) -> None:
    """Says of a site's result the sizes and names of lengths that its spec knows and onnx did not infer. What reads it may have
    sizes of them, such as a Reshape to (B, Sq, -1)."""
    told, sizes = recorded(out), spec.out_shape
    if told is None or len(told) == len(sizes):
        both = zip(told or [None] * len(sizes), sizes, strict=True)
        out.shape = ir.Shape([old if known(old) and not isinstance(dim, int) else dim for old, dim in both])


def replace_refused(planned: Planned, refused: Mapping[str, str]) -> Planned:
    """The plan without the kernels that the compiler does not take: `refused` has their names, and why.

    Only their sites are written anew, in `planned.model` itself; the others keep node and kernel.
    """
    made = {site.spec: site.kernel for site in planned.sites if site.kernel is not None}
    chooser = _Chooser(planned.model, planned.target, made, refused)
    sites = tuple(chooser.choose(s) if s.kernel is not None and s.kernel.name in refused else s for s in planned.sites)
    mark_expands(planned.model)
    return replace(planned, sites=sites)


class _Chooser:
    """Gives sites of `model` their kernels. `made` are kernels that exist already; `refused` has names of those that the compiler
    does not take, and why."""

    def __init__(
        self, model: ir.Model, target: Target, made: dict[AttentionSpec, Kernel], refused: Mapping[str, str]
    ) -> None:
        self._model, self._target, self._made, self._refused = model, target, made, refused
        self._taken = names_in(model)
        self._consts: dict[tuple[str, ...], ir.Value] = {}

    def choose(self, site: PlannedSite) -> PlannedSite:
        """The site with its kernel.

        K and V kept as integers or gathered, where no kernel reads them so, become plain in front of the node. Where no kernel can
        express the site even then, standard ops take the place of the node.
        """
        try:
            try:
                kernel = self._emit(site.spec)
            except UnsupportedError:
                if site.spec == site.spec.plain:
                    raise
                kernel = self._emit(site.spec.plain)
                site = self._read_plain(site)
        except UnsupportedError as e:
            return self._write_out(site, str(e))
        return replace(site, kernel=kernel, report=replace(site.report, lossy=kernel.lossy))

    def _emit(self, spec: AttentionSpec) -> Kernel:
        """The kernel of a spec, made once. Raises UnsupportedError where there is none."""
        if spec not in self._made:
            self._made[spec] = emit_kernel(spec, self._target)
        if reason := self._refused.get(self._made[spec].name):
            raise UnsupportedError(f"the compiler refuses the kernel: {reason}")
        return self._made[spec]

    def _read_plain(self, site: PlannedSite) -> PlannedSite:
        """The site with K and V as numbers, one row for every key, which ops in front of its node make."""
        node, builder = site.node, self._builder(f"{site.name}/plain")
        spec, operands = dequantized(builder, site.spec, _operands(node), by_op=True)
        self._model.graph.insert_before(node, builder.nodes)
        node.resize_inputs(len(operands))
        for i, x in enumerate(operands):
            node.replace_input_with(i, x)
        return replace(site, report=replace(site.report, spec=spec))

    def _write_out(self, site: PlannedSite, why: str) -> PlannedSite:
        """The site with standard ops in the place of its node, and the reason."""
        node, builder = site.node, self._builder(f"{site.name}/unfused")
        made, how = _unfused(builder, site.spec, _operands(node), self._target)
        self._model.graph.insert_before(node, builder.nodes)
        names = [old.name for old in node.outputs]
        _put_in_place(self._model, node, made)
        for new, name in zip(made, names, strict=True):
            new.name = name
        return replace(site, kernel=None, reason=f"{why}; {how}")

    def _builder(self, prefix: str) -> OnnxBuilder:
        return OnnxBuilder(self._model.graph, self._model.opset_imports[""], prefix, self._taken, self._consts)


def _operands(node: ir.Node) -> list[ir.Value]:
    return [v for v in node.inputs if v is not None]


def _unfused(
    b: OnnxBuilder, spec: AttentionSpec, operands: list[ir.Value], target: Target
) -> tuple[list[ir.Value], str]:
    """A site in standard ops, and which: on GPUs, whose memory is short, by blocks of keys where that can be written."""
    if target.is_gpu and spec == spec.plain:
        try:
            made = blocked.emit_unrolled(b, spec, operands)
        except UnsupportedError:
            pass  # the reason that counts is the kernels'
        else:
            return made, f"it is left in blocks of {blocked.block_size(spec)} keys, which are not fused"
    kind = narrowest(spec) if target.is_gpu else np.int64
    return decomposed.emit(b, spec, operands, kind=kind), "it is left in the decomposed form, with a buffer of Sq x Skv"


def model_for_file(planned: Planned) -> ir.Model:
    """The planned model as it is written to a file: every AttentionSite node carries its spec as JSON."""
    model, specs = planned.model.clone(), {site.name: site.spec for site in planned.sites}
    for node in model.graph:
        if op_of(node) == SITE and node.name in specs:
            text = json.dumps(specs[node.name].to_dict())
            node.attributes[SPEC_ATTRIBUTE] = ir.AttrString(SPEC_ATTRIBUTE, text)
    return model


def _put_in_place(model: ir.Model, node: ir.Node, made: Sequence[ir.Value]) -> None:
    """Readers of the node's outputs read what was made of them, and the node goes."""
    for old, new in zip(node.outputs, made, strict=True):
        new.type, new.shape = old.type, old.shape
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    model.graph.remove(node, safe=True)


def operands_of(planned: Planned) -> tuple[ir.Model, dict[str, tuple[ir.Value, ...]]]:
    """A model whose outputs are what the kernels are called with, and those values by site. All in standard ops, so any runtime
    takes it; `planned` is not changed. Raises UnsupportedError for a site that standard ops cannot say."""
    model, specs = planned.model.clone(), {site.name: site.spec for site in planned.sites}
    taken, consts = names_in(model), dict[tuple[str, ...], ir.Value]()
    found: dict[str, tuple[ir.Value, ...]] = {}
    for node in [n for n in model.graph if op_of(n) == SITE]:
        name = str(node.name)
        found[name] = operands = tuple(_operands(node))
        builder = OnnxBuilder(model.graph, model.opset_imports[""], f"{name}/written", taken, consts)
        made = decomposed.emit(builder, specs[name], operands)
        model.graph.insert_before(node, builder.nodes)
        _put_in_place(model, node, made)
    model.opset_imports.pop(DOMAIN, None)
    model.graph.opset_imports.pop(DOMAIN, None)
    known = {v.name for v in (*model.graph.inputs, *model.graph.initializers.values())}
    wanted = {v.name: v for values in found.values() for v in values if v.name not in known}
    del model.graph.outputs[:]
    model.graph.outputs.extend(wanted.values())
    return model, found
