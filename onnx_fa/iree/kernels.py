"""The kernels of a model: the one road from a model and a target to them, whoever asks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from onnx_fa.forms import decomposed
from onnx_fa.forms.report import SiteReport
from onnx_fa.forms.rewrite import rewrite_in_place
from onnx_fa.graph.builder import OnnxBuilder, names_in
from onnx_fa.graph.io import ModelLike, load
from onnx_fa.graph.ops import op_of
from onnx_fa.graph.site_op import DOMAIN, OP_TYPE, SPEC_ATTRIBUTE
from onnx_fa.iree.legalise.known_shapes import settle_shapes
from onnx_fa.kernels.mlir.kernel import Kernel
from onnx_fa.match.misses import Miss
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.target import Target


@dataclass(frozen=True)
class Planned:
    """`model` with an AttentionSite node wherever a kernel takes the place of an attention; `kernels` by the nodes' names."""

    model: ir.Model
    kernels: dict[str, Kernel]
    sites: tuple[SiteReport, ...]
    misses: tuple[Miss, ...]


def plan_kernels(model: ModelLike, target: Target, refused: Mapping[str, str] | None = None) -> Planned:
    """The kernels that a compiled `model` calls. `refused` has those that the compiler did not take, by name, and why.

    A site without a kernel is written in standard ops and reported as a miss with the reason. The model passed is not changed.
    Raises ModelError, and MissingDependencyError without iree.compiler.
    """
    from onnx_fa.iree.importer import settle_kernels  # it needs the compiler, which timing does not

    work = model.clone() if isinstance(model, ir.Model) else load(model)
    report, _ = rewrite_in_place(work, "site", statistics=not target.is_gpu)
    settle_shapes(work)
    kernels, sites, misses = settle_kernels(work, report, target, refused)
    return Planned(work, kernels, sites, misses)


def operands_of(planned: Planned) -> tuple[ir.Model, dict[str, tuple[ir.Value, ...]]]:
    """A model whose outputs are what the kernels are called with, and those values by site. All in standard ops, so any runtime
    takes it; `planned` is not changed. Raises UnsupportedError for a site that standard ops cannot say."""
    model = planned.model.clone()
    taken, consts = names_in(model), dict[tuple[str, ...], ir.Value]()
    found: dict[str, tuple[ir.Value, ...]] = {}
    for node in [n for n in model.graph if op_of(n) == f"{DOMAIN}.{OP_TYPE}"]:
        spec = AttentionSpec.from_dict(json.loads(node.attributes[SPEC_ATTRIBUTE].as_string()))
        operands = tuple(v for v in node.inputs if v is not None)
        found[str(node.name)] = operands
        builder = OnnxBuilder(model.graph, model.opset_imports[""], f"{node.name}/written", taken, consts)
        made = decomposed.emit(builder, spec, operands)
        model.graph.insert_before(node, builder.nodes)
        for old, new in zip(node.outputs, made, strict=True):
            new.type, new.shape = old.type, old.shape
            ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        model.graph.remove(node, safe=True)
    model.opset_imports.pop(DOMAIN, None)
    model.graph.opset_imports.pop(DOMAIN, None)
    known = {v.name for v in (*model.graph.inputs, *model.graph.initializers.values())}
    wanted = {v.name: v for values in found.values() for v in values if v.name not in known}
    del model.graph.outputs[:]
    model.graph.outputs.extend(wanted.values())
    return model, found
