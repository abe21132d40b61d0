"""Grouped-query attention in standard ops: the group becomes the head dim and the K/V heads a batch dim, so that MatMul
broadcasts K and V over the group and nothing is repeated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.builder import OnnxBuilder
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.terms import Dim, with_shapes


def is_grouped(spec: AttentionSpec) -> bool:
    """Whether K and V have fewer heads than Q, but more than one (one head broadcasts as it is)."""
    return spec.group > 1 and spec.Hkv != 1


def split_spec(spec: AttentionSpec) -> AttentionSpec:
    """The same attention with batch (*B, Hkv) and G query heads on one K/V head, in canonical layouts."""
    assert isinstance(spec.Hkv, int)
    return replace(
        spec,
        batch=(*spec.batch, spec.Hkv),
        Hq=spec.group,
        Hkv=1,
        masks=tuple(with_shapes(m, lambda shape: _split_dims(spec, shape)) for m in spec.masks),
        sink=spec.sink and replace(spec.sink, shape=_split_dims(spec, spec.sink.shape)),
        weights=spec.weights and replace(spec.weights, shape=_split_dims(spec, spec.weights.shape)),
        q_layout=(),
        k_layout=(),
        v_layout=(),
        o_layout=(),
    )


def _split_dims(spec: AttentionSpec, shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """A mask's dims with its head dim, if it has one, as (Hkv, G) or (1, 1)."""
    if len(shape) < 3:
        return shape
    heads = (1, 1) if shape[-3] == 1 else (spec.Hkv, spec.group)
    return (*shape[:-3], *heads, *shape[-2:])


def split_tensor(b: OnnxBuilder, spec: AttentionSpec, x: ir.Value, shape: Sequence[Dim]) -> ir.Value:
    """A canonical tensor (..., Hq, m, n) as (..., Hkv, G, m, n); unit head dims as (1, 1). Lower ranks stay."""
    if len(shape) < 3:
        return x
    if shape[-3] == 1:
        return b.unsqueeze(x, len(shape) - 3)
    assert isinstance(spec.Hkv, int)
    return _reshape(b, x, len(shape) - 3, (spec.Hkv, spec.group), shape[-2:])


def join_heads(b: OnnxBuilder, spec: AttentionSpec, x: ir.Value, width: Dim | None = None) -> ir.Value:
    """(*B, Hkv, G, Sq, width) -> (*B, Hq, Sq, width); the width is Dv if not given."""
    assert isinstance(spec.Hq, int)
    return _reshape(b, x, len(spec.batch), (spec.Hq,), (spec.Sq, spec.Dv if width is None else width))


def _reshape(b: OnnxBuilder, x: ir.Value, lead: int, heads: tuple[int, ...], tail: Sequence[Dim]) -> ir.Value:
    head = [*[0] * lead, *heads]  # 0 copies the dim
    symbols = [d for d in tail if isinstance(d, str)]
    if len(symbols) < 2:
        return b.op("Reshape", x, b.ints(*head, *(d if isinstance(d, int) else -1 for d in tail)))
    ends = b.op("Slice", b.op("Shape", x), b.ints(-2), b.ints(np.iinfo(np.int64).max))
    return b.op("Reshape", x, b.op("Concat", b.ints(*head), ends, axis=0))
