"""A weight as panels of columns, the layout in which kernels for CPUs read it. The compiler computes what depends on constants
alone, so this is done once, when a model is compiled."""

from __future__ import annotations

from dataclasses import replace

from onnx_fa.iree.legalise.writer import GraphWriter
from onnx_fa.spec.dtypes import ONNX
from onnx_fa.spec.linear import LinearSpec, in_a_word


def write_panels(g: GraphWriter, weight: str, spec: LinearSpec, panel: int, hint: str) -> str:
    """The weight (K, N), or (N, K) if `transposed`, as (panels, K, panel), or in pairs or fours, as a LinearSpec of this panel has
    it. The last panel of a result has its last columns, some of which the one before has too where panels do not divide their
    number."""
    if all(n % panel == 0 for n in spec.widths):
        return _panels(g, weight, spec, spec.N // panel, panel, hint)
    made, start = [], 0
    for n in spec.widths:
        whole, end = n // panel, start + n
        columns = _columns(g, weight, spec, start, start + whole * panel, hint)
        made.append(_panels(g, columns, spec, whole, panel, hint))
        if n % panel:
            made.append(_panels(g, _columns(g, weight, spec, end - panel, end, hint), spec, 1, panel, hint))
        start = end
    paired = replace(spec, transposed=False, panel=panel)
    return _typed(g, g.add("Concat", made, hint, axis=0), spec, paired.weight_shape)


def _columns(g: GraphWriter, weight: str, spec: LinearSpec, start: int, end: int, hint: str) -> str:
    bounds = [g.ints([n], hint) for n in (start, end, 0 if spec.transposed else 1)]
    shape = (end - start, spec.K) if spec.transposed else (spec.K, end - start)
    return _typed(g, g.add("Slice", [weight, *bounds], hint), spec, shape)


def _panels(g: GraphWriter, weight: str, spec: LinearSpec, panels: int, panel: int, hint: str) -> str:
    words = in_a_word(spec.dtype)
    rows = (spec.K // words, words) if words > 1 else (spec.K,)
    columns = (panels, panel)
    shape = (*columns, *rows) if spec.transposed else (*rows, *columns)
    split = g.reshape(weight, shape, hint)
    # Panels first, then rows, then columns, and last the rows of a word.
    first, column = (0, 1) if spec.transposed else (len(rows), len(rows) + 1)
    row, *second = range(2, 2 + len(rows)) if spec.transposed else range(len(rows))
    order = [first, row, column, *second]
    moved = g.add("Transpose", [_typed(g, split, spec, shape)], hint, perm=order)
    wanted = (panels, rows[0], panel * (spec.K // rows[0]))
    made = _typed(g, moved, spec, tuple(shape[i] for i in order))
    if not second:
        return made
    return _typed(g, g.reshape(made, wanted, hint), spec, wanted)


def _typed(g: GraphWriter, value: str, spec: LinearSpec, shape: tuple[int, ...]) -> str:
    """The value, whose type the graph then knows."""
    return g.typed(value, ONNX[spec.weight_dtype], shape)
