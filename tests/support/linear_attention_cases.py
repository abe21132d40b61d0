"""Linear attentions: one table for the meaning, the kernels and the loop, and operands for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from onnx_fa.spec.linear_attention import LinearAttentionSpec as Spec

CASES: dict[str, Spec] = {
    "linear": Spec(2, 5, 4, 4, 4, 1, 16, 16, 0.25),
    "gated": Spec("B", "T", 2, 2, 2, 3, 16, 32, 0.25, "head"),
    "gated_keys": Spec(1, "T", 2, 2, 2, 1, 20, 16, 1.0, "key"),
    "delta": Spec("B", 3, 1, 1, 2, 1, 24, 16, 0.2, "", "head"),
    "delta_one_rate": Spec("B", "T", 2, 2, 2, 1, 8, 8, 0.3, "", "token"),
    "gated_delta": Spec("B", "T", 2, 2, 4, 1, 64, 64, 0.125, "head", "head"),
    "gated_delta_keys": Spec("B", "T", 4, 2, 4, 1, 17, 24, 0.25, "key", "head"),
    "one_token": Spec("B", 1, 2, 2, 2, 2, 32, 96, 0.25, "head", "head"),
    "odd": Spec(1, "T", 3, 3, 3, 2, 5, 7, 0.5, "head", "head"),
}
SIZES = ({"B": 1, "T": 1}, {"B": 3, "T": 37})
TOLERANCE = 5e-6
"""Relative norm error of 37 steps in f32, each of which may round what the last ones left."""
Array = npt.NDArray[Any]


def draw(spec: Spec, sizes: dict[str, int], seed: int = 0) -> list[Array]:
    """Operands of a recurrence that does not grow: keys of length one, decays and rates below one."""
    rng, found = np.random.default_rng(seed), []
    for name, shape in spec.operands:
        x = rng.standard_normal([d if isinstance(d, int) else sizes[d] for d in shape])
        if name == "k":
            x /= np.linalg.norm(x, axis=-1, keepdims=True)
        elif name in ("decay", "beta"):
            x = 1 / (1 + np.exp(-x))
        found.append(x.astype(np.float32))
    return found


def distance(want: Array, have: Array) -> float:
    """Relative norm error; 0 of two results without elements."""
    assert want.shape == have.shape
    return float(np.linalg.norm(want - have) / max(float(np.linalg.norm(want)), 1e-30)) if want.size else 0.0
