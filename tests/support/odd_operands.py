"""Operands that no model should see and some do: infinities and NaN in Q, K, V and masks, and masks of every extreme."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from onnx_fa.kernels.plan.skipping import never_empty
from onnx_fa.spec.accuracy import TOLERANCE, expect
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.cases import FLOAT_MIN
from onnx_fa.spec.reference import (
    attention,
    canonical,
    dequantized,
    logits,
    masked,
    probabilities,
    products,
    rounded,
    scores,
    statistic,
)
from onnx_fa.spec.terms import AddMask, BoolMask, Elementwise, IndexMask, inverse, term_tensors
from tests.support.cases import draw_operands

Array = npt.NDArray[Any]
LOW = (-1e4, -1e30, -1e36, -1e38, FLOAT_MIN, -np.inf)
"""What exporters and people write for a masked score, and what lies between."""
INFINITE = (np.inf, -np.inf, np.nan)
HIDDEN = -1e30
"""Scores up to this are masked, and their blocks may be left out."""
FURTHER = 4
"""So many times as far as the reference with rounded numbers may a kernel be, which rounds at more places."""
LEAST = 2.0**-125
"""Kernels take an exponential below the least normal f32, 2^-126, for zero; the rounding of its score may be a factor of 2."""


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


def comparable(
    spec: AttentionSpec, operands: Sequence[Array], results: Sequence[Array], lossy: str = ""
) -> tuple[AttentionSpec, list[Array], list[Array]]:
    """What a kernel's results are compared as: a spec, its operands and the results, changed where infinities and NaN of the
    reference say less than they seem (docs/reference/variants.md). Results that are as the reference says stay so. `lossy` as in
    Kernel."""
    made = [np.asarray(x) for x in results]
    with np.errstate(all="ignore"):
        spec, given = _as_read(spec, list(operands), made)
        if any(np.isposinf(x).any() for x in made[1:]):
            infinite = np.isposinf(logits(spec, *given)).any(axis=-1)
            for n, which in enumerate(spec.stats, start=1):
                both = np.isnan(statistic(spec, which, *given)) & infinite  # a maximum of both is either
                made[n] = np.where(both & np.isposinf(made[n]), np.float32(np.nan), made[n])
        made[0] = _as_multiplied(spec, given, made[0], lossy)
        made[0] = _as_left_out(spec, given, made[0])
    return spec, given, made


def rounded_away(spec: AttentionSpec, operands: Sequence[Array], results: Sequence[Array], lossy: str = "") -> bool:
    """Whether results that are too far away are so by no more than what rounding does to the reference itself, where that is more
    than the comparison counts: terms that cancel have larger scores between them than behind them, and where a sink takes nearly
    all, numbers lie below the least normal ones. `lossy` as in Kernel."""
    with np.errstate(all="ignore"):
        wanted = [attention(spec, *operands), *(statistic(spec, which, *operands) for which in spec.stats)]
        compared = dataclasses.replace(expect(spec, operands), lossy=lossy).compare_all(results)
        for x, want, near, found in zip(results, wanted, _rounded(spec, operands), compared, strict=True):
            got, known = np.asarray(x).astype(np.float64), np.isfinite(want)
            if not np.array_equal(got[~known], want[~known], equal_nan=True):
                return False
            off, most = (np.linalg.norm((y - want)[known]) for y in (got, near))
            if found.problem and not off <= FURTHER * most:
                return False
    return True


def _rounded(spec: AttentionSpec, operands: Sequence[Array]) -> list[Array]:
    """The reference's results with scores that are rounded to f32 behind every term, no probabilities that kernels take for zero,
    and numbers of f16 that are rounded to it."""
    s = products(spec, *operands).astype(np.float32)
    at = 3
    for term in spec.masks:
        behind = at + len(term_tensors(term))
        one = dataclasses.replace(spec, masks=(term,))
        s, at = masked(one, s.astype(np.float64), *operands[at:behind]).astype(np.float32), behind
    off = s - scores(spec, *operands)
    moved = [*operands[:at], np.where(np.isfinite(off), off, 0.0), *operands[at:]]
    spec = dataclasses.replace(spec, masks=(*spec.masks, AddMask(s.shape)))
    p, v = probabilities(spec, *moved), canonical(spec, 2, dequantized(spec, moved)[2])
    out = np.transpose(np.where(p < LEAST, 0.0, p) @ v, spec.o_layout)
    if spec.dtype == "f16":
        out = out.astype(np.float16).astype(np.float64)
    return [out, *(statistic(spec, which, *moved) for which in spec.stats)]


def _as_read(spec: AttentionSpec, operands: list[Array], results: Sequence[Array]) -> tuple[AttentionSpec, list[Array]]:
    """The attention without the NaN and +inf that are added to scores which a term before has masked: a kernel that leaves the
    block out does not read them. Only in rows whose results show none, which must then be those of the other keys."""
    tensors = operands[3 : 3 + sum(len(term_tensors(term)) for term in spec.masks)]
    if all(np.isfinite(x.astype(np.float64)).all() for x in tensors):
        return spec, operands
    s = products(spec, *operands)
    low, lifted = np.zeros(s.shape, bool), np.zeros(s.shape, bool)
    terms, unread = list(spec.masks), dict[int, tuple[int, npt.NDArray[np.bool_]]]()
    at = 3
    for i, term in enumerate(spec.masks):
        read = operands[at : at + len(term_tensors(term))]
        if isinstance(term, AddMask):
            added = np.broadcast_to(term.factor * read[0].astype(np.float64), s.shape)
            unread[i] = at, low & ~(added < np.inf)
            s = s + np.where(unread[i][1], 0.0, added)
        else:
            s = masked(dataclasses.replace(spec, masks=(term,)), s, *read)
            low = s <= HIDDEN
        at += len(read)
    for _, where in unread.values():
        lifted |= where & ~(s <= HIDDEN)
    rows = np.any([where.any(axis=-1) for _, where in unread.values()] or [False], axis=0)
    rows = rows & ~lifted.any(axis=-1) & ~_poisoned(spec, results)
    for i, (at, where) in unread.items():
        lost = where & rows[..., None]
        if lost.any():
            terms[i] = dataclasses.replace(spec.masks[i], shape=s.shape)
            operands[at] = np.broadcast_to(operands[at], s.shape).copy()
            operands[at][lost] = 0
    return dataclasses.replace(spec, masks=tuple(terms)), operands


def _poisoned(spec: AttentionSpec, results: Sequence[Array]) -> npt.NDArray[np.bool_]:
    """The rows (*B, Hq, Sq) all of whose results are what a NaN or an infinite score makes of them."""
    out = np.transpose(results[0], inverse(spec.o_layout)).astype(np.float64)
    found = np.isnan(out).all(axis=-1)
    # A guard and a rounding make zero of a NaN probability; that times infinity is NaN.
    if spec.empty_row == "guarded" or spec.rounding is not None:
        found |= ((out == 0) | np.isnan(out)).all(axis=-1)
    for x in results[1:]:
        found &= np.isnan(x) | np.isposinf(x)
    return np.asarray(found)


def _as_multiplied(spec: AttentionSpec, operands: list[Array], result: Array, lossy: str) -> Array:
    """The output with the reference's NaN or infinity where a V that is not finite is multiplied by a probability which is zero
    in f32 (times zero it is NaN), and nothing else is there; where all such keys are masked, the other keys' number will do."""
    v = canonical(spec, 2, dequantized(spec, operands)[2])
    odd = ~np.isfinite(v)
    if spec.v_quant is not None or not odd.any():
        return result

    def meet(a: Array, b: Array) -> npt.NDArray[np.bool_]:
        return np.asarray(a.astype(np.float32) @ b.astype(np.float32) > 0)

    p, s = probabilities(spec, *operands), scores(spec, *operands)
    # Without a softmax what a mask puts in a score's place may be any number that weighs nothing.
    put = [m.fill for m in spec.masks if spec.weighting is not None and isinstance(m, BoolMask | IndexMask)]
    faint, read = meet(np.abs(p) < LEAST, odd), (s > HIDDEN) & ~np.isin(s, put)
    number = p @ np.where(odd, 0.0, v)
    up, down, neither = (meet(read, x) for x in (np.isposinf(v), np.isneginf(v), np.isnan(v)))
    unmasked = np.select([neither | (up & down), up, down], [np.nan, np.inf, -np.inf], number)
    got = np.transpose(result, inverse(spec.o_layout)).astype(np.float64)
    numbers = faint & np.isfinite(got) & np.isfinite(unmasked)
    finite = np.where(np.isfinite(operands[2].astype(np.float64)), operands[2], 0).astype(operands[2].dtype)
    if not _agree(spec, [*operands[:2], finite, *operands[3:]], result, np.transpose(numbers, spec.o_layout), lossy):
        numbers[...] = False
    free = numbers | (faint & (np.isnan(got) | (got == unmasked)))
    return np.transpose(np.where(free, p @ v, got), spec.o_layout)


def _agree(
    spec: AttentionSpec, operands: Sequence[Array], result: Array, where: npt.NDArray[np.bool_], lossy: str
) -> bool:
    """Whether the output's numbers of those places alone are the reference's, by all that the comparison allows any numbers, or as
    near as `rounded_away` asks."""
    axis = spec.o_layout.index(spec.rank - 2)
    expected = dataclasses.replace(expect(spec, operands), lossy=lossy)
    chosen = [where.take(range(start, start + want.shape[axis]), axis) for start, want in expected.blocks]
    blocks = [(start, np.where(of, want, np.nan)) for of, (start, want) in zip(chosen, expected.blocks, strict=True)]
    alone = np.where(where, result.astype(np.float64), np.nan)
    if not dataclasses.replace(expected, blocks=tuple(blocks)).compare(alone).problem:
        return True
    off, most = (np.linalg.norm((x - attention(spec, *operands))[where]) for x in (alone, _rounded(spec, operands)[0]))
    return bool(off <= FURTHER * most)


def _as_left_out(spec: AttentionSpec, operands: list[Array], result: Array) -> Array:
    """The output with the reference's rows where every key that the masks leave a row has the score -inf, so that it is the mean
    over the masked keys, and the kernel's is that over some of these: over those next to the others on either side, whose blocks
    it reads. Only where positions alone say that every row keeps a key: such a kernel does not go back for the rest."""
    if not never_empty(spec) or not spec.masks or spec.sink is not None or spec.weights is not None:
        return result
    s, v = scores(spec, *operands), canonical(spec, 2, dequantized(spec, operands)[2])
    hidden = s == s.max(axis=-1, keepdims=True, initial=-np.inf)
    alike = (hidden | np.isneginf(s)).all(axis=-1) & (s.max(axis=-1, initial=-np.inf) <= HIDDEN)
    alike &= np.isneginf(s).any(axis=-1) & np.isfinite(s).any(axis=-1)
    got = np.transpose(result, inverse(spec.o_layout)).astype(np.float64)
    want = probabilities(spec, *operands) @ v
    for row in map(tuple, np.argwhere(alike)):
        seen = np.flatnonzero(~hidden[row])
        if (np.diff(seen) == 1).all() and _is_mean(spec, v[row[:-1]], int(seen[0]), int(seen[-1]) + 1, got[row]):
            got[row] = want[row]
    return np.transpose(got, spec.o_layout)


def _is_mean(
    spec: AttentionSpec, v: npt.NDArray[np.float64], first: int, end: int, got: npt.NDArray[np.float64]
) -> bool:
    """Whether `got` is the mean of V (Skv, Dv) over one or more of the keys right before `first` and from `end` on, as the spec
    rounds it."""
    zero = np.zeros((1, v.shape[-1]))
    after = np.concatenate([zero, np.cumsum(v[end:], axis=0)])
    for count, before in enumerate(np.concatenate([zero, np.cumsum(v[:first][::-1], axis=0)])):
        share = 1 / np.maximum(count + np.arange(len(after)), 1)[:, None]
        share = share if spec.rounding is None else rounded(spec.rounding, share)
        means = (share * (before + after))[0 if count else 1 :]
        off = np.linalg.norm(means - got, axis=-1)
        if (off <= TOLERANCE[spec.dtype] * np.linalg.norm(means, axis=-1)).any():
            return True
    return False
