"""Partial results of ranges of keys, and their merge, in torch (the same as forms/split.py writes in ONNX):

m = max m_i;  w_i = exp(m_i - m) l_i;  out = sum w_i out_i / sum w_i
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_ROWS = 1 << 14
"""Queries that are merged at a time: what is in f32 between is no larger than that."""


@dataclass(frozen=True)
class Partial:
    """Of some keys: the output (B, Sq, Hq, Dv), and of each row the largest score and the sum of the exponentials of the scores
    less that, (B, Hq, Sq) in f32. A row without keys has 0, -inf and 0."""

    out: torch.Tensor
    top: torch.Tensor
    total: torch.Tensor


def weights(tops: torch.Tensor, totals: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What each of N parts counts in a row, of 1 in all, from their maxima and sums (N, B, Hq, Sq); and the maximum and the sum of
    all of them. Rows without keys have weights of 0. Few operations: of few queries each takes longer to start than to run."""
    numbers = torch.finfo(tops.dtype)
    top = tops.amax(0)
    counts = totals * torch.exp(tops - top.clamp(min=numbers.min))
    total = counts.sum(0)
    return counts / total.clamp(min=numbers.tiny), top, total


def add(a: Partial, b: Partial, rows: slice) -> None:
    """Merges `b`, which has these rows of `a` alone, into `a` itself."""
    first, last, _ = rows.indices(a.out.shape[1])
    for start in range(first, last, _ROWS):
        own = slice(start, min(start + _ROWS, last))
        of_b = slice(own.start - first, own.stop - first)
        tops, totals = ([x[..., own], y[..., of_b]] for x, y in ((a.top, b.top), (a.total, b.total)))
        (x, y), top, total = weights(torch.stack(tops), torch.stack(totals))
        x, y = (w.transpose(1, 2).unsqueeze(-1) for w in (x, y))
        a.out[:, own] = (a.out[:, own].float() * x).add_(b.out[:, of_b].float() * y)
        a.top[..., own], a.total[..., own] = top, total


def merge(outs: torch.Tensor, tops: torch.Tensor, totals: torch.Tensor) -> torch.Tensor:
    """The output (B, Sq, Hq, Dv) of N parts side by side: outputs (N, B, Sq, Hq, Dv), maxima and sums (N, B, Hq, Sq)."""
    counted, _, _ = weights(tops, totals)
    merged: torch.Tensor = (outs * counted.transpose(-1, -2).unsqueeze(-1)).sum(0)
    return merged.to(outs.dtype)
