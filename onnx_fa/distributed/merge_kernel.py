"""The merge of parts as one Triton kernel: operations of torch are a dozen, each of which takes longer to start than to run."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def _merge(  # type: ignore[no-untyped-def]
    outs, tops, totals, merged, of_outs, of_stats, Sq, Hq, Dv: tl.constexpr, PARTS: tl.constexpr, BD: tl.constexpr
):
    """A workgroup has a row of the output, of one query and head. A part's outputs begin `of_outs` elements behind the last one's,
    its maxima and sums `of_stats`."""
    row, d = tl.program_id(0), tl.arange(0, BD)
    h, query = row % Hq, row // Hq
    stat = (query // Sq * Hq + h) * Sq + query % Sq
    top = tl.load(tops + stat)
    for part in tl.static_range(1, PARTS):
        top = tl.maximum(top, tl.load(tops + part * of_stats + stat))
    top = tl.maximum(top, -3.4028234663852886e38)  # of a row without keys -inf
    total = 0.0
    out = tl.zeros((BD,), tl.float32)
    for part in tl.static_range(PARTS):
        counted = tl.load(totals + part * of_stats + stat) * tl.exp(tl.load(tops + part * of_stats + stat) - top)
        total += counted
        out += counted * tl.load(outs + part * of_outs + row * Dv + d, mask=d < Dv, other=0.0).to(tl.float32)
    out /= tl.maximum(total, 1.1754943508222875e-38)
    tl.store(merged + row * Dv + d, out.to(merged.dtype.element_ty), mask=d < Dv)


def merge_at_once(outs: torch.Tensor, tops: torch.Tensor, totals: torch.Tensor) -> torch.Tensor:
    """As `merge`, of outputs (N, B, Sq, Hq, Dv), maxima and sums (N, B, Hq, Sq), where each part's own numbers lie side by side."""
    N, B, Sq, Hq, Dv = outs.shape
    merged = torch.empty_like(outs[0])
    block = triton.next_power_of_2(Dv)
    _merge[(B * Sq * Hq,)](outs, tops, totals, merged, outs.stride(0), tops.stride(0), Sq, Hq, Dv, N, block)
    return merged
