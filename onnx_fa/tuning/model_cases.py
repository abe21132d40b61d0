"""The sites of a model as cases for the tuner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from onnx_fa.errors import OnnxFaError
from onnx_fa.graph.io import ModelLike
from onnx_fa.iree.compile import import_planned
from onnx_fa.iree.kernels import Planned, plan_kernels
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.cases import Case
from onnx_fa.spec.linear import LinearSpec
from onnx_fa.spec.linear_cases import LinearCase
from onnx_fa.spec.site_case import SiteCase
from onnx_fa.spec.target import Target

Sizes = tuple[tuple[str, int], ...]


def cases_of_model(model: ModelLike, dims: Mapping[str, int], target: Target) -> list[SiteCase]:
    """One case per distinct site of a model; `dims` are the sizes of symbolic lengths. Raises OnnxFaError without sites, or for a
    symbol that has no size."""
    planned = plan_kernels(model, target)
    found: dict[str, SiteCase] = {}
    cases: list[SiteCase] = [*_attentions(planned, dims), *_products(planned, dims)]
    for case in cases:
        found.setdefault(repr((case.spec, case.bound())), case)
    if not found:
        raise OnnxFaError("the model has no attention and no product with a weight to tune for")
    return list(found.values())


def _attentions(planned: Planned, dims: Mapping[str, int]) -> Iterator[Case]:
    for site in planned.report.sites:
        yield Case(site.name, site.spec, frozenset(), (_sizes(site.name, site.spec, dims),), site.spec.variant)


def _products(planned: Planned, dims: Mapping[str, int]) -> Iterator[LinearCase]:
    for site in import_planned(planned).linear:
        spec = replace(site.spec, panel=0)
        rows = "x".join(map(str, (*spec.lead, spec.K, spec.N)))
        yield LinearCase(site.name, spec, frozenset(), (_sizes(site.name, spec, dims),), f"{rows} {spec.dtype}")


def _sizes(name: str, spec: AttentionSpec | LinearSpec, dims: Mapping[str, int]) -> Sizes:
    missing = [s for s in spec.symbols if s not in dims]
    if missing:
        raise OnnxFaError(f"{name}: {', '.join(missing)} has no size: give --dim {missing[0]}=SIZE")
    return tuple((s, dims[s]) for s in spec.symbols)
