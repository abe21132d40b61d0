"""A weight as panels of columns, the layout in which kernels for CPUs read it. The compiler computes what depends on constants
alone, so this is done once, when a model is compiled."""

from __future__ import annotations

import numpy as np
from onnx import helper

from onnx_fa.iree.legalise.writer import GraphWriter
from onnx_fa.spec.dtypes import ONNX
from onnx_fa.spec.linear import LinearSpec


def write_panels(g: GraphWriter, weight: str, spec: LinearSpec, panel: int, hint: str) -> str:
    """The weight (K, N), or (N, K) if `transposed`, as (panels, K, panel). The last panel has the last columns, some of which the
    one before has too where panels do not divide N."""
    whole = spec.N // panel
    made = [_panels(g, weight, spec, whole, panel, hint)] if whole * panel == spec.N else []
    if not made:
        if whole:
            made.append(_panels(g, _columns(g, weight, spec, 0, whole * panel, hint), spec, whole, panel, hint))
        made.append(_panels(g, _columns(g, weight, spec, spec.N - panel, spec.N, hint), spec, 1, panel, hint))
    if len(made) == 1:
        return made[0]
    return _typed(g, g.add("Concat", made, hint, axis=0), spec, (whole + 1, spec.K, panel))


def _columns(g: GraphWriter, weight: str, spec: LinearSpec, start: int, end: int, hint: str) -> str:
    bounds = [g.const(np.array([n], np.int64), hint) for n in (start, end, 0 if spec.transposed else 1)]
    shape = (end - start, spec.K) if spec.transposed else (spec.K, end - start)
    return _typed(g, g.add("Slice", [weight, *bounds], hint), spec, shape)


def _panels(g: GraphWriter, weight: str, spec: LinearSpec, panels: int, panel: int, hint: str) -> str:
    shape = (panels, panel, spec.K) if spec.transposed else (spec.K, panels, panel)
    split = g.add("Reshape", [weight, g.const(np.array(shape, np.int64), hint)], hint)
    order = [0, 2, 1] if spec.transposed else [1, 0, 2]
    moved = g.add("Transpose", [_typed(g, split, spec, shape)], hint, perm=order)
    return _typed(g, moved, spec, (panels, spec.K, panel))


def _typed(g: GraphWriter, value: str, spec: LinearSpec, shape: tuple[int, ...]) -> str:
    """The value, whose type the graph then knows."""
    g.graph.value_info.append(helper.make_tensor_value_info(value, ONNX[spec.dtype], shape))
    return value
