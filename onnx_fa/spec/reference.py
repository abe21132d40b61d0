"""The meaning of an AttentionSpec, in float64 NumPy. This is the definition of correct."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import numpy as np
import numpy.typing as npt

from onnx_fa.spec.attention import LOWEST_STAT, AttentionSpec, Stat
from onnx_fa.spec.expr import evaluate
from onnx_fa.spec.terms import (
    AddMask,
    BoolMask,
    Causal,
    Elementwise,
    Offset,
    Rounding,
    SlidingWindow,
    Weighting,
    inverse,
)

Array = npt.NDArray[np.generic]
F64 = npt.NDArray[np.float64]


def canonical(spec: AttentionSpec, i: int, x: Array) -> F64:
    """q, k or v (`i` is 0, 1 or 2), numbers as stored, as (*B, Hq, Sq or Skv, head dim): heads of k and v are repeated."""
    layout = (spec.q_layout, spec.k_layout, spec.v_layout)[i]
    numbers = np.transpose(x, inverse(layout)).astype(np.float64)
    return np.repeat(numbers, spec.group, axis=-3) if i and spec.group > 1 else numbers


def _offset(offset: Offset, sq: int, skv: int) -> int:
    return skv - sq if offset == "end" else offset


def dequantized(spec: AttentionSpec, operands: Sequence[Array]) -> list[Array]:
    """The operands with k and v as numbers, one for every key, and without their scales, zero points and index."""
    result, rest = list(operands[: spec.scales_at]), iter(operands[spec.scales_at :])
    if spec.gathered is not None:
        index = next(rest)
        for i, layout in ((1, spec.k_layout), (2, spec.v_layout)):
            pool = np.transpose(operands[i], inverse(layout))[(0,) * len(spec.batch)]
            if step := spec.gathered.head_rows:
                first = step * np.arange(spec.Hkv)[:, None]
                numbers = pool[0][index[..., None, :] + first]
            else:
                numbers = np.moveaxis(pool[:, index], 0, -3)
            result[i] = np.transpose(numbers, layout)
    for i, quant, layout in ((1, spec.k_quant, spec.k_layout), (2, spec.v_quant, spec.v_layout)):
        if quant is None:
            continue
        scale = next(rest)
        zero = next(rest) if quant.zero_point else np.zeros((), np.int32)
        axis = layout.index(spec.rank - 1) - spec.rank
        width = operands[i].shape[axis]
        scale, zero = (np.repeat(x, width // x.shape[axis], axis) if x.ndim >= -axis else x for x in (scale, zero))
        integers = operands[i].astype(np.int32) - zero.astype(np.int32)
        result[i] = (integers.astype(np.float32) * scale.astype(np.float32)).astype(scale.dtype)
    return result


def products(spec: AttentionSpec, *operands: Array) -> F64:
    """The scores (*B, Hq, Sq, Skv) before any mask term."""
    operands = tuple(dequantized(spec, operands))
    q, k = canonical(spec, 0, operands[0]), canonical(spec, 1, operands[1])
    s: F64 = spec.scale * (q @ np.swapaxes(k, -1, -2))
    for mod in spec.mods:
        s = mod.cap * np.tanh(s / mod.cap)
    return s


def scores(spec: AttentionSpec, *operands: Array) -> F64:
    """The masked scores (*B, Hq, Sq, Skv) that the softmax sees."""
    return masked(spec, products(spec, *operands), *operands[3:])


def masked(spec: AttentionSpec, s: F64, *operands: Array) -> F64:
    """Scores (..., Sq, Skv) after the mask terms, whose tensors are the first of `operands`."""
    sq, skv = s.shape[-2:]
    i, j = np.arange(sq)[:, None], np.arange(skv)[None, :]
    tensors = iter(operands)
    for mask in spec.masks:
        match mask:
            case AddMask():
                s = s + mask.factor * next(tensors).astype(np.float64)
            case BoolMask():
                s = np.where(next(tensors).astype(bool), s, mask.fill)
            case Causal():
                s = np.where(j <= i + _offset(mask.offset, sq, skv), s, mask.fill)
            case SlidingWindow():
                rel = j - i - _offset(mask.offset, sq, skv)
                keep = np.ones_like(rel, bool)
                if mask.left is not None:
                    keep &= rel >= -mask.left
                if mask.right is not None:
                    keep &= rel <= mask.right
                s = np.where(keep, s, mask.fill)
            case Elementwise():
                read = [next(tensors) for _ in mask.tensors]
                s = np.broadcast_to(evaluate(mask.expr, s, read), s.shape)
            case _:
                assert_never(mask)
    return s


def logits(spec: AttentionSpec, *operands: Array) -> F64:
    """What a row's softmax is over, (*B, Hq, Sq, Skv): the masked scores, and behind them the sink, if there is one."""
    s = scores(spec, *operands)
    if spec.sink is None:
        return s
    sink = np.broadcast_to(dequantized(spec, operands)[-1].astype(np.float64), (*s.shape[:-1], 1))
    return np.concatenate([s, sink], axis=-1)


def statistic(spec: AttentionSpec, which: Stat, *operands: Array) -> F64:
    """A row statistic (*B, Hq, Sq) of the spec's operands, as `AttentionSpec.stats` says."""
    s = logits(spec, *operands)
    top = s.max(axis=-1, initial=-np.inf)
    result = top
    if which == "sum":
        with np.errstate(invalid="ignore"):
            return np.asarray(np.exp(s - np.where(top == -np.inf, 0.0, top)[..., None]).sum(axis=-1))
    if which == "lse":
        finite = np.where(np.isinf(top), 0.0, top)
        with np.errstate(divide="ignore", over="ignore"):
            result = finite + np.log(np.exp(s - finite[..., None]).sum(axis=-1))
    low = np.isfinite(result) & (result < LOWEST_STAT)
    return np.where(low, np.float64(np.finfo(np.float32).min), result)


def rounded(rounding: Rounding, p: F64) -> F64:
    """Probabilities as they multiply V."""
    return np.asarray(rounding.scale * _whole_steps(rounding, p))


def _whole_steps(rounding: Rounding, p: F64) -> F64:
    """Saturation bounds them from above alone: none is negative. What an earlier rounding makes is f32, and so is its division by
    the step: both are a graph's own numbers, which decide ties."""
    if rounding.before is None:
        steps = np.where(np.isnan(p), 0.0, p) / rounding.scale
    else:
        number = _whole_steps(rounding.before, p).astype(np.float32) * np.float32(rounding.before.scale)
        steps = (number / np.float32(rounding.scale)).astype(np.float64)
    return np.asarray(np.minimum(np.rint(steps), rounding.most))


def probabilities(spec: AttentionSpec, *operands: Array) -> F64:
    """What multiplies V, (*B, Hq, Sq, Skv)."""
    if spec.weighting is not None:
        return weighed(spec, spec.weighting, *operands)
    s = logits(spec, *operands)
    with np.errstate(invalid="ignore"):
        p: F64 = np.exp(s - s.max(axis=-1, keepdims=True, initial=-np.inf))
        p = p / p.sum(axis=-1, keepdims=True)
    if spec.empty_row == "guarded":
        p = np.where(np.isnan(p), 0.0, p)
    elif spec.empty_row == "zero":
        p = np.where(np.isneginf(s).all(axis=-1, keepdims=True), 0.0, p)
    if spec.rounding is not None:
        p = rounded(spec.rounding, p)
    p = p[..., : s.shape[-1] - (spec.sink is not None)]
    if spec.weights is not None:
        with np.errstate(invalid="ignore"):
            p = p * operands[2 + len(spec.tensors)].astype(np.float64)
            if spec.renormalised:
                p = p / p.sum(axis=-1, keepdims=True)
                p = np.where(np.isnan(p), 0.0, p)
    return p


def weighed(spec: AttentionSpec, weighting: Weighting, *operands: Array) -> F64:
    """What multiplies V without a softmax, (*B, Hq, Sq, Skv)."""
    s = scores(spec, *operands)
    p = np.broadcast_to(evaluate(weighting.weight, s, []), s.shape).astype(np.float64)
    if weighting.total is not None:
        each = np.broadcast_to(evaluate(weighting.total, s, []), s.shape)
        with np.errstate(invalid="ignore", divide="ignore"):
            p = p / np.maximum(each.sum(axis=-1, keepdims=True) + weighting.plus, weighting.least)
        if spec.empty_row == "guarded":
            p = np.where(np.isnan(p), 0.0, p)
        elif spec.empty_row == "zero":
            p = np.where(np.isneginf(s).all(axis=-1, keepdims=True), 0.0, p)
    return p * operands[2 + len(spec.tensors)].astype(np.float64) if spec.weights is not None else p


def attention(spec: AttentionSpec, *operands: Array) -> F64:
    """Output of the attention, in the spec's output layout, float64.

    `operands` are in the order and layouts that the spec names.
    A row with no key left yields NaN, or zero where `spec.empty_row` is "zero"; with "guarded", every NaN probability is zero.
    Without any keys at all (Skv = 0) every row is a sum of nothing: zero.
    """
    v = canonical(spec, 2, dequantized(spec, operands)[2])
    return np.transpose(probabilities(spec, *operands) @ v, spec.o_layout)
