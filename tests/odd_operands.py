"""Operands that no model should see and some do: infinities and NaN in Q, K, V and masks, and masks of every extreme."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from onnx_fa.cases import FLOAT_MIN
from onnx_fa.reference import attention, logits, statistic
from onnx_fa.spec import AddMask, AttentionSpec, Elementwise, term_tensors
from tests.cases import draw_operands

Array = npt.NDArray[Any]
LOW = (-1e4, -1e30, -1e36, -1e38, FLOAT_MIN, -np.inf)
"""What exporters and people write for a masked score, and what lies between."""
INFINITE = (np.inf, -np.inf, np.nan)


def poked(spec: AttentionSpec, seed: int) -> list[Array] | None:
    """Ordinary operands with an infinity or NaN in one of Q, K, V, the added masks and the sink. None where all are integers, or
    empty."""
    r = Random(f"poked {seed}")
    operands = draw_operands(spec, seed)
    kinds = [*spec.operand_dtypes]
    places = [i for i, x in enumerate(operands[: spec.scales_at]) if kinds[i] in ("f32", "f16", "bf16") and x.size]
    places = [i for i in places if i not in _of_expressions(spec)]
    if not places:
        return None
    i = r.choice(places)
    x = operands[i].copy()
    for _ in range(r.choice((1, 1, 3))):
        x.reshape(-1)[r.randrange(x.size)] = r.choice(INFINITE)
    operands[i] = x
    return operands


def _of_expressions(spec: AttentionSpec) -> set[int]:
    """The operands that score expressions read: what these make of an infinity is theirs."""
    at, found = 3, set()
    for term in spec.masks:
        tensors = term_tensors(term)
        if isinstance(term, Elementwise):
            found |= set(range(at, at + len(tensors)))
        at += len(tensors)
    return found


def low(spec: AttentionSpec, seed: int) -> list[Array] | None:
    """Ordinary operands whose one added mask of f32 masks some keys, and in some rows all, by one of LOW for each row. None where
    the spec has other masks too: two low numbers on one score, or two of them in one row, are known as one."""
    alone = len(spec.masks) == 1 and isinstance(spec.masks[0], AddMask) and spec.masks[0].factor == 1.0
    if not alone or spec.tensors[0].dtype != "f32" or spec.mods:
        return None
    rng = np.random.default_rng(seed)
    operands = draw_operands(spec, seed)
    shape = operands[3].shape
    if not shape or not operands[3].size:
        return None
    rows = (*shape[:-1], 1)
    masked = (rng.random(shape) < 0.4) | (rng.random(rows) < 0.3)
    numbers = [x for x in LOW if spec.empty_row != "mean" or np.isfinite(x)]
    operands[3] = np.where(masked, rng.choice(numbers, rows), 0.0).astype(np.float32)
    return operands


def comparable(spec: AttentionSpec, operands: Sequence[Array], results: Sequence[Array]) -> list[Array]:
    """The results with NaN where the reference's NaN says less than it seems (docs/variants.md): of a masked key whose V is
    infinite or NaN, since zero times that is NaN, but a mask may as well never look at the key; of a row statistic of both +inf
    and NaN."""
    made = [np.asarray(x) for x in results]
    with np.errstate(all="ignore"):
        if spec.stats:
            infinite = np.isposinf(logits(spec, *operands)).any(axis=-1)
            for n, which in enumerate(spec.stats, start=1):
                both = np.isnan(statistic(spec, which, *operands)) & infinite
                made[n] = np.where(both & np.isposinf(made[n]), np.float32(np.nan), made[n])
        v = operands[2].astype(np.float64)
        if spec.v_quant is None and not np.isfinite(v).all():
            clean = [*operands[:2], np.where(np.isfinite(v), v, 0.0), *operands[3:]]
            free = np.isnan(attention(spec, *operands)) & np.isfinite(attention(spec, *clean))
            made[0] = np.where(free, np.nan, made[0].astype(np.float64))
    return made
