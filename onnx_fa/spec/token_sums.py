"""Attention without a function of the score, divided by its sum: keys and values meet first, over all tokens.

    y[s] = (f(q[s]) S) / (f(q[s]) z + epsilon),   S = sum over t of f(k[t]) v[t]^T,   z = sum over t of f(k[t])

with f the identity or ReLU (Katharopoulos et al. 2020, "Transformers are RNNs", arXiv:2006.16236, equation 5, of all tokens; Cai et
al. 2023, "EfficientViT", arXiv:2205.14756, with ReLU). No token's row of scores is made: S is D by Dv.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


def token_sums(q: F64, k: F64, v: F64, *, relu: tuple[bool, bool], epsilon: float) -> F64:
    """The meaning in float64: q (B, H, Sq, D), k (B, H, Skv, D), v (B, H, Skv, Dv) -> (B, H, Sq, Dv). `relu`: of q, of k."""
    q, k = (np.maximum(x, 0) if positive else x for x, positive in zip((q, k), relu, strict=True))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray((q @ (k.swapaxes(2, 3) @ v)) / (q @ k.sum(axis=2)[..., None] + epsilon))
