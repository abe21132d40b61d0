"""A product of which a table names the columns that each row wants:

    y[b, m, j] = sum over k of a[b, m, k] w[b mod H, at[b, m, j], k]

Attention by relative positions is spelled so (He et al. 2021, "DeBERTa", arXiv:2006.03654, equation 4): queries (or keys) by the
keys (or queries) of all positions, of which a row takes those that lie at its distances.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def indexed_product(
    a: npt.NDArray[np.float64], w: npt.NDArray[np.float64], at: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """The meaning in float64: a (batch or 1, rows, K), w (H, N, K), `at` (batch, up to as many rows, J) from -N up to N - 1, of
    which negative ones count from the end, as GatherElements has them. y has the shape of `at`. Raises IndexError for places
    outside."""
    batch, rows, _ = at.shape
    y = np.empty(at.shape)
    for b in range(batch):
        whole = a[min(b, len(a) - 1)] @ w[b % len(w)].T
        for m in range(rows):
            y[b, m] = whole[m, at[b, m]]
    return y
