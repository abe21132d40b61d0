"""Q and K in int8 per token, for the product of the two (SageAttention, Zhang et al. 2024): lossy, and only where asked for.

K has its mean over the keys taken out first, which leaves smaller numbers to round. That adds the same number to all scores of a
query, which a softmax does not see, so it is done only where nothing but a softmax follows: see `sees_differences_only`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.builder import OnnxBuilder
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.dtypes import NUMPY
from onnx_fa.spec.expr import SCORE, Apply, Float, leaves
from onnx_fa.spec.terms import AddMask, Elementwise, MaskTerm, Quantized

_MOST = 127
_SWALLOWS = -1e30
"""A fill this low hides a key whatever its score was."""


def fits(spec: AttentionSpec) -> bool:
    """Whether K is there as numbers, one row per key."""
    return spec.k_quant is None and spec.gathered is None and spec.dtype != "f64"


def sees_differences_only(spec: AttentionSpec) -> bool:
    """Whether a number added to all scores of a query changes nothing: a softmax without softcap, sink or row statistic, and masks
    that only add, or choose between the score and a fill that no score comes near."""
    return (
        spec.weighting is None
        and not spec.mods
        and spec.sink is None
        and not spec.stats
        and all(map(_adds_or_chooses, spec.masks))
    )


def _adds_or_chooses(term: MaskTerm) -> bool:
    if isinstance(term, AddMask):
        return True
    if not isinstance(term, Elementwise):
        return term.fill <= _SWALLOWS
    match term.expr:
        case Apply("Add", (a, b)):
            return sum(leaf == SCORE for leaf in leaves(term.expr)) == 1 and SCORE in (a, b)
        case Apply("Where", (keep, a, b)) if SCORE in (a, b) and SCORE not in leaves(keep):
            other = b if a == SCORE else a
            return isinstance(other, Float) and other.value <= _SWALLOWS
    return False


def quantised(
    b: OnnxBuilder, spec: AttentionSpec, operands: Sequence[ir.Value]
) -> tuple[AttentionSpec, tuple[ir.Value, ...]]:
    """The spec with K as int8 and a scale per token, and its operands: Q rounded likewise, but as numbers again."""
    q, k, *rest = operands
    keys, width = spec.k_layout.index(spec.rank - 2), spec.k_layout.index(spec.rank - 1)
    if sees_differences_only(spec):
        k = b.op("Sub", k, b.reduce("ReduceMean", k, axis=keys))
    steps, scale = _per_token(b, spec, q, spec.q_layout.index(spec.rank - 1))
    numbers = b.op("Mul", steps, scale)
    steps, scale = _per_token(b, spec, k, width)
    integers = b.op("Cast", steps, to=int(ir.DataType.INT8))
    shape = tuple(1 if axis == width else d for axis, d in enumerate(spec.operand_shapes[1]))
    at = spec.scales_at - 2  # of the operands behind q and k; the scale of k comes before those of v
    new = replace(spec, k_quant=Quantized("i8", shape))
    return new, (numbers, integers, *rest[:at], scale, *rest[at:])


def _per_token(b: OnnxBuilder, spec: AttentionSpec, x: ir.Value, width: int) -> tuple[ir.Value, ir.Value]:
    """x as whole numbers from -127 to 127, and the scale of each token."""
    kind = NUMPY[spec.dtype]
    least = b.const(np.asarray(1e-4 if spec.dtype == "f16" else 1e-30, kind))
    scale = b.op("Div", b.reduce("ReduceMax", b.op("Abs", x), axis=width), b.const(np.asarray(_MOST, kind)))
    scale = b.op("Max", scale, least)  # a token of zeros
    return b.op("Round", b.op("Div", x, scale)), scale
