"""The `attention` form: the ONNX Attention op of opset 23 to 25, where it says exactly what the spec says."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnx_fa.errors import UnsupportedError
from onnx_fa.forms.decomposed import transpose
from onnx_fa.forms.integers import dequantized
from onnx_fa.graph.builder import Attr, OnnxBuilder
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.dtypes import NUMPY
from onnx_fa.spec.terms import AddMask, BoolMask, Causal, IndexMask, SlidingWindow, TensorMask, inverse, never_empty

_SWALLOWS = -1e37
"""A float32 or bfloat16 score plus this or less is this: it is below half an ulp of it."""
_FINITE = -1e38
"""Stands for every finite fill that swallows. onnxruntime takes the lowest float for -inf, so that one will not do."""


def check(spec: AttentionSpec, opset: int) -> None:
    """Raises UnsupportedError where the op cannot express the spec in this opset."""
    if spec.rounding is not None:
        raise UnsupportedError("the Attention op does not round its probabilities")
    if opset < 23:
        raise UnsupportedError(f"the Attention op needs opset 23, the model has {opset}")
    if len(spec.batch) != 1:
        raise UnsupportedError(f"the Attention op takes one batch dim, the site has {len(spec.batch)}")
    if not spec.scale > 0:
        raise UnsupportedError(f"a scale of {spec.scale:g}: onnxruntime's Attention op takes only scales above zero")
    if spec.empty_row == "guarded":
        raise UnsupportedError("the model turns NaN probabilities into zero, the Attention op does not")
    if spec.sink is not None:
        raise UnsupportedError("the Attention op has no sink")
    if spec.weighting is not None:
        raise UnsupportedError("the Attention op has a softmax, the site has none")
    if spec.weights is not None:
        raise UnsupportedError("the Attention op multiplies its probabilities by nothing")
    if spec.dtype == "f64" and spec.mods and not _is_float32(spec.mods[0].cap):
        raise UnsupportedError(f"a softcap of {spec.mods[0].cap!r}: the Attention op's is a float32")
    if spec.stats:
        raise UnsupportedError("the Attention op gives no row statistics")
    if any(not isinstance(m, (IndexMask, TensorMask)) for m in spec.masks):
        raise UnsupportedError(
            "the Attention op has no score function but softcap, and no mask from indices but is_causal"
        )
    if spec.empty_row == "nan" and not never_empty(spec.masks):
        raise UnsupportedError("the Attention op yields zero for a fully masked row, the model NaN")
    causal = [m for m in spec.masks if isinstance(m, Causal)]
    if len(causal) > 1 or any(m.offset != 0 or m.fill != -math.inf for m in causal):
        raise UnsupportedError("is_causal has offset 0 and masks with -inf")
    if any(isinstance(m, BoolMask) and m.fill > _SWALLOWS for m in spec.masks) or (
        spec.dtype == "f16" and any(isinstance(m, BoolMask) and math.isfinite(m.fill) for m in spec.masks)
    ):
        raise UnsupportedError("masked scores become a number that an additive mask cannot set, only add")
    finite = {i: m.fill for i, m in enumerate(spec.masks) if isinstance(m, BoolMask) and math.isfinite(m.fill)}
    if len({*finite.values()}) > 1:
        raise UnsupportedError("masks with different finite numbers: onnxruntime takes the lowest number for -inf")
    if finite and any(isinstance(m, Causal) for m in spec.masks[: max(finite)]):
        raise UnsupportedError("masked scores become a finite number after is_causal, which is the op's last mask")
    if any(isinstance(m, SlidingWindow) for m in spec.masks):
        raise UnsupportedError("a sliding window needs a mask tensor in the Attention op")


def emit(b: OnnxBuilder, spec: AttentionSpec, operands: Sequence[ir.Value]) -> list[ir.Value]:
    """One Attention node, with masks combined into its attn_mask. Raises UnsupportedError as `check` does."""
    check(spec, b.opset)
    spec, operands = dequantized(b, spec, operands)
    layouts = (spec.q_layout, spec.k_layout, spec.v_layout)
    q, k, v = (transpose(b, x, inverse(p)) for x, p in zip(operands, layouts, strict=False))
    attrs: dict[str, Attr] = {"scale": float(spec.scale)}
    if spec.dtype == "f64" and spec.scale != 1.0:  # the op takes the root of its scale in float32
        q, attrs["scale"] = b.op("Mul", q, b.factor(spec.scale, np.float64, spec.D)), 1.0
    if spec.mods:
        attrs["softcap"] = float(spec.mods[0].cap)
    tensors = iter(operands[3:])
    bias: ir.Value | None = None
    only_bool = [m for m in spec.masks if isinstance(m, (AddMask, BoolMask))]
    keep_bool = len(only_bool) == 1 and isinstance(only_bool[0], BoolMask) and only_bool[0].fill == -math.inf
    kind = NUMPY[spec.dtype]
    for mask in spec.masks:
        if isinstance(mask, Causal):
            attrs["is_causal"] = 1
        elif isinstance(mask, BoolMask):
            value = next(tensors)
            if not keep_bool:
                # In the order of the masks: a key that two of them mask has the fill of the later one, not the sum.
                fill = b.const(np.asarray(_FINITE if math.isfinite(mask.fill) else mask.fill, kind))
                value = b.op("Where", value, b.const(np.asarray(0, kind)) if bias is None else bias, fill)
            bias = value
        elif isinstance(mask, AddMask):
            value = next(tensors)
            if mask.dtype != spec.dtype:
                value = b.op("CastLike", value, q)
            if mask.factor != 1.0:
                value = b.op("Mul", value, b.const(np.asarray(mask.factor, kind)))
            bias = value if bias is None else b.op("Add", bias, value)
    if bias is not None and not _full(spec):
        # The op pads a short last dim instead of broadcasting it, and onnxruntime wants the query dim in full too.
        bias = b.op("Expand", bias, _lengths(b, spec, q, k))
    out = b.op("Attention", q, k, v, *([bias] if bias is not None else []), **attrs)
    return [transpose(b, out, spec.o_layout)]


def _is_float32(number: float) -> bool:
    return float(np.float32(number)) == number


def _full(spec: AttentionSpec) -> bool:
    """Whether some mask tensor already has the score's last two dims."""
    return any(m.shape[-2:] == (spec.Sq, spec.Skv) for m in spec.tensor_masks)


def _lengths(b: OnnxBuilder, spec: AttentionSpec, q: ir.Value, k: ir.Value) -> ir.Value:
    """The shape tensor [Sq, Skv]."""
    parts = [
        b.ints(d) if isinstance(d, int) else b.op("Shape", x, start=2, end=3) for d, x in ((spec.Sq, q), (spec.Skv, k))
    ]
    return b.op("Concat", *parts, axis=0)
