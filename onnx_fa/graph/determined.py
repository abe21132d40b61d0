"""Free dims of a model's inputs that the graph leaves no choice: any other size, but for 1 in a broadcast, ends the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

import onnx_ir as ir

from onnx_fa.graph.caches import GROUPED, TAKING_A_PAST
from onnx_fa.graph.dims import Shape
from onnx_fa.graph.free_dims import symbols
from onnx_fa.graph.op_kinds import BROADCASTS
from onnx_fa.graph.ops import attr_int, op_of
from onnx_fa.graph.view import GraphView
from onnx_fa.spec.terms import Dim


def determined_sizes(model: ir.Model) -> dict[str, int]:
    """The sizes that products, convolutions, broadcasts and Concats (of a cache with new rows) ask of free dims, by their names.
    A dim of which they ask two sizes has none here."""
    free, view = frozenset(symbols(model)), GraphView(model)
    found: dict[str, set[int]] = {}
    for node in model.graph:
        for first, second in _equal_dims(view, node):
            for name, size in ((first, second), (second, first)):
                if isinstance(name, str) and name in free and isinstance(size, int):
                    found.setdefault(name, set()).add(size)
    return {name: next(iter(sizes)) for name, sizes in found.items() if len(sizes) == 1}


def _equal_dims(view: GraphView, node: ir.Node) -> Iterator[tuple[Dim | None, Dim | None]]:
    """Pairs of dims of a node's inputs that have to be equal."""
    shapes: list[Shape | None] = [None if value is None else view.shape(value) for value in node.inputs]
    kind = op_of(node)
    if kind == "Concat":
        yield from _beside_axis([s for s in shapes if s is not None], attr_int(node, "axis", 0))
        return
    if kind in BROADCASTS:
        yield from _broadcast_beside([s for s in shapes if s is not None])
        return
    if kind in TAKING_A_PAST:
        yield from _cache_dims(node, shapes)
        return
    if len(shapes) < 2 or shapes[0] is None or shapes[1] is None:
        return
    left, right = shapes[0], shapes[1]
    if kind == "MatMul" and min(len(left), len(right)) > 1:
        yield left[-1], right[-2]
    elif kind == "Gemm" and len(left) == len(right) == 2:
        yield left[0 if attr_int(node, "transA", 0) else 1], right[1 if attr_int(node, "transB", 0) else 0]
    elif kind == "Conv" and len(left) > 2 and isinstance(right[1], int):
        yield left[1], right[1] * attr_int(node, "group", 1)


def _cache_dims(node: ir.Node, shapes: Sequence[Shape | None]) -> Iterator[tuple[Dim | None, Dim | None]]:
    """Heads and head dims of the caches (B, H, P, D) that an attention takes, as its queries, keys and values have them."""
    kind = op_of(node)
    q, k, v = (shapes[i] if i < len(shapes) else None for i in range(3))
    pasts = [shapes[i] if i < len(shapes) else None for i in TAKING_A_PAST[kind]]
    for past, new, what in zip(pasts, (k, v), "kv", strict=True):
        if past is None or len(past) != 4:
            continue
        heads = attr_int(node, "kv_num_heads", 0) or attr_int(node, "num_heads", 0)
        if kind == GROUPED and new is None and q is not None and len(q) == 3 and isinstance(q[2], int):
            width = q[2] // (attr_int(node, "num_heads", 1) + 2 * heads) * heads  # Q, K and V lie side by side
        elif new is not None and len(new) == 4:
            yield from ((past[1], new[1]), (past[3], new[3]))
            continue
        elif new is not None and len(new) == 3 and isinstance(new[2], int):
            width = new[2]
        else:
            continue
        if heads < 1 or width % heads:
            continue
        packed = kind == GROUPED and node.attributes.get(f"{what}_quant_type") is not None
        in_pairs = packed and attr_int(node, "kv_cache_bit_width", 8) == 4
        yield from ((past[1], heads), (past[3], width // heads // 2 if in_pairs else width // heads))


def _broadcast_beside(shapes: list[Shape]) -> Iterator[tuple[Dim | None, Dim | None]]:
    """The dims that meet each other, of which a number is above 1."""
    for first, second in combinations(shapes, 2):
        for pair in zip(reversed(first), reversed(second), strict=False):
            if any(isinstance(d, int) and d > 1 for d in pair):
                yield pair


def _beside_axis(shapes: list[Shape], axis: int) -> Iterator[tuple[Dim | None, Dim | None]]:
    """The dims of tensors that are joined, but for those along which they are."""
    for first, second in pairwise(shapes):
        if len(first) == len(second):
            at = axis % len(first)
            yield from (pair for i, pair in enumerate(zip(first, second, strict=True)) if i != at)
