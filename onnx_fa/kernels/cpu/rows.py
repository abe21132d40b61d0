"""Attention of a few queries where K and V hold the heads of a key side by side (see rows_kernel.py): when, and its tiles."""

from __future__ import annotations

from dataclasses import replace

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.cpu.body import rows_body
from onnx_fa.kernels.cpu.combine import can_split, splits_of
from onnx_fa.kernels.cpu.few import (
    check_integers,
    check_rows_lie_whole,
    few_queries,
    few_stack_bytes,
    tuned_few,
    unmeasured,
)
from onnx_fa.kernels.cpu.rows_kernel import PAGE
from onnx_fa.kernels.cpu.tiles import FewConfig
from onnx_fa.kernels.cpu.vector import FLAGS, STACK_BYTES, check_vector, dispatch_text, shown
from onnx_fa.kernels.mlir.kernel import Kernel
from onnx_fa.kernels.plan.folding import fold_queries
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.switches import Switch
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import Dim, Quantized

_MOST_QUERIES = 16
"""Of all heads of a workgroup: their output is a tile in the first cache, and the text grows with them."""
_BLOCK = 64
"""Keys of a block."""


def heads_of_rows(spec: AttentionSpec) -> int:
    """How many key/value heads a workgroup takes: more than one where they lie side by side in K and in V. Raises UnsupportedError,
    with the reason, where it would take one, as it does of rows of a page of memory."""
    heads, length = spec.rank - 3, spec.rank - 2
    for name, layout in (("k", spec.k_layout), ("v", spec.v_layout)):
        if layout[-2:] != (heads, spec.rank - 1) or length not in layout[:-2]:
            raise UnsupportedError(f"rows kernel: {name} does not hold the heads of a key side by side")
    if spec.gathered is not None:
        raise UnsupportedError("rows kernel: K and V are rows of a pool")
    if not isinstance(spec.Hkv, int) or not can_split(spec):
        raise UnsupportedError("rows kernel: the keys cannot be split, or the heads are not known")
    assert isinstance(spec.Sq, int)
    each = spec.group * spec.Sq
    bits = (_bits(spec, quant) * width for quant, width in _integers(spec))
    row = max(bits) // 8
    fitting = [n for n in range(2, spec.Hkv + 1) if spec.Hkv % n == 0 and n * each <= _MOST_QUERIES]
    if not fitting or row >= PAGE:
        raise UnsupportedError(f"rows kernel: {each} queries of each of {spec.Hkv} heads, or rows of {row} bytes")
    return next((n for n in fitting if n * row >= PAGE), fitting[-1])


def _bits(spec: AttentionSpec, quant: Quantized | None) -> int:
    """Of a number of K or V."""
    if quant is not None:
        return int(quant.dtype[1:])
    return 32 if spec.dtype == "f32" else 16


def fold_heads(spec: AttentionSpec, heads: int) -> AttentionSpec:
    """The attention whose queries of so many key/value heads are those of one head, (*B, Hkv / heads, heads * group * Sq, D), and
    whose K and V stand for those of the first of these heads. Raises UnsupportedError where that moves elements."""
    assert isinstance(spec.Hkv, int)
    groups = spec.Hkv // heads
    k_quant, v_quant = (_beside(quant, heads, groups, width) for quant, width in _integers(spec))
    folded = fold_queries(replace(spec, Hkv=groups, k_quant=k_quant, v_quant=v_quant))
    if folded.Hq != groups:
        raise UnsupportedError("rows kernel: heads and queries of q, the output or a mask are not next to each other")
    check_rows_lie_whole(folded, "rows")
    return folded


def _integers(spec: AttentionSpec) -> tuple[tuple[Quantized | None, int], ...]:
    """What K and V are as integers, each with its head dims."""
    return (spec.k_quant, spec.D), (spec.v_quant, spec.Dv)


def _beside(quant: Quantized | None, heads: int, groups: int, width: int) -> Quantized | None:
    """Integers of `width` head dims, where the scales of so many heads are those of one row of that width. Raises UnsupportedError
    where the heads share scales that differ along the row, or where so many scales do not divide the width."""
    if quant is None:
        return None
    own, scales = (1, 1, *quant.shape)[-2:]
    if own == 1 and scales == 1:
        return quant
    if own == 1 or not isinstance(scales, int) or width % (heads * scales):
        raise UnsupportedError(f"rows kernel: {scales} scales for each of {heads} heads of {width} integers")
    return replace(quant, shape=(*quant.shape[:-2], groups, heads * scales))


def rows_config(spec: AttentionSpec, folded: AttentionSpec, target: Target) -> FewConfig:
    """Tiles for the folded spec, of vectors that were measured for the spec. Raises UnsupportedError where head dims are no whole
    vectors, or tiles do not fit."""
    tuned = tuned_few(spec, target)[0] if target.has(Switch.TILES) else unmeasured(spec, target, few_queries(spec))
    assert isinstance(folded.Sq, int)
    config = FewConfig(tuned.lanes, folded.Sq, max(_BLOCK, tuned.lanes), tuned.lanes, tuned.tile_dims, tuned.unroll)
    if spec.D % config.lanes or spec.Dv % config.lanes:
        raise UnsupportedError(f"rows kernel: {spec.D} and {spec.Dv} head dims in vectors of {config.lanes}")
    if (needed := rows_stack_bytes(folded, config)) > STACK_BYTES:
        raise UnsupportedError(f"rows kernel: tiles need {needed} of {STACK_BYTES} bytes of stack")
    return config


def rows_stack_bytes(folded: AttentionSpec, config: FewConfig) -> int:
    """Bytes of the tiles that one workgroup keeps on its stack."""
    return few_stack_bytes(folded, config) + 4 * config.BM * (config.lanes**2 + folded.Dv)


def emit_rows(spec: AttentionSpec, target: Target, name: str, splits: Dim | None = None) -> Kernel:
    """The kernel of one site with few queries of several heads; `splits` as in emit_vector. Raises UnsupportedError, with the
    reason, where that is no site whose memory it would read faster."""
    check_vector(spec, target)
    if not (target.has(Switch.FOLDING) and target.has(Switch.SPLITTING)):
        raise UnsupportedError("rows kernel: queries are not put together, or keys not split")
    few_queries(spec)
    heads = heads_of_rows(spec)
    folded = fold_heads(spec, heads)
    config = rows_config(spec, folded, target)
    if splits is None:
        splits = splits_of(folded, config.BM, target, heads)
    body = rows_body(folded, config, heads, splits, target.off)
    check_integers(body.operands, spec, "rows")
    tiles = {**shown(config, body.operands.splits), "heads": heads}
    return Kernel(name, dispatch_text(spec, body, name), "rows", spec, tiles, FLAGS)
