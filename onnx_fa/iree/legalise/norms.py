"""Normalisations of onnxruntime's own domain, and of new opsets, in smaller operators.

ContribOperators.md of onnxruntime and ONNX's Operators.md say what they compute. Means of narrower types are taken in f32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto

from onnx_fa.errors import ModelError
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.writer import FLOATS, NARROW, GraphWriter, attr_of

_SKIP_EPSILON = 1e-12
"""The default of SkipLayerNormalization and EmbedLayerNormalization."""


def rms_norm(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """RMSNormalization, or SimplifiedLayerNormalization under whichever domain: x / sqrt(mean(x^2) + eps) * scale. IREE refuses the
    function body of the former, which computes its axes at run time."""
    x, scale = node.input[:2]
    kind, shape = g.types.get(x, (0, None))
    kind = kind or g.kind(scale)
    axis = attr_of(node, "axis", -1)
    if not kind or (axis >= 0 and shape is None):
        return False
    _refuse_statistics(node, 1)
    axes = list(range(axis, 0)) if axis < 0 else list(range(axis, len(shape or [])))
    hint = node.name or node.op_type
    stash = attr_of(node, "stash_type", TensorProto.FLOAT)
    if op_of(node) != "RMSNormalization" and kind not in NARROW:  # onnxruntime takes means of f64 in f64
        stash = kind
    normal = normal_of(g, g.cast(x, kind, stash, hint), stash, axes, attr_of(node, "epsilon", 1e-5), hint)
    g.add("Mul", [g.cast(normal, stash, kind, hint), scale], hint, out=node.output[0])
    return True


def skip_norm(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """SkipLayerNormalization and SkipSimplifiedLayerNormalization: the norm of input + skip + bias, and that sum, output 3."""
    simplified = op_of(node).endswith("SkipSimplifiedLayerNormalization")
    x, skip, gamma, *rest = node.input
    beta, bias = ("", *rest, "")[:2] if simplified else (*rest, "", "")[:2]
    kind = g.kind(x) or g.kind(gamma)
    if not kind:
        return False
    _refuse_statistics(node, 3)
    hint = node.name or node.op_type
    shown = node.output[3] if len(node.output) > 3 and node.output[3] else None
    total = g.add("Add", [x, skip], hint, out=None if bias else shown)
    if bias:
        total = g.add("Add", [total, bias], hint, out=shown)
    _write_norm(
        g, total, kind, (gamma, beta), simplified, attr_of(node, "epsilon", _SKIP_EPSILON), hint, node.output[0]
    )
    return True


def embed_norm(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """EmbedLayerNormalization: the norm of the sum of a word's, a position's and a segment's row. Output 1 counts the mask's ones
    in each batch row, output 2 is the sum."""
    ids, segments, words, positions, segment_rows, gamma, beta, mask, places = (*node.input, *[""] * 9)[:9]
    kind = g.kind(words)
    hint = node.name or node.op_type
    if not kind:
        return False
    if len(node.output) > 1 and node.output[1] and mask and attr_of(node, "mask_index_type", 1) != 0:
        total = g.add("ReduceSum", [mask, g.const(np.array([1], np.int64), hint)], hint, keepdims=0)
        g.cast(total, TensorProto.INT32, TensorProto.INT32, hint, out=node.output[1])
    elif len(node.output) > 1 and node.output[1]:
        first = g.add("Gather", [g.add("Shape", [ids], hint), g.const(np.array([0], np.int64), hint)], hint, axis=0)
        zero = onnx.helper.make_tensor("zero", TensorProto.INT32, [1], [0])
        g.add("ConstantOfShape", [first], hint, out=node.output[1], value=zero)
    if not places:
        length = g.add("Gather", [g.add("Shape", [ids], hint), g.const(np.array(1, np.int64), hint)], hint, axis=0)
        places = g.add(
            "Range", [g.const(np.array(0, np.int64), hint), length, g.const(np.array(1, np.int64), hint)], hint
        )
    shown = node.output[2] if len(node.output) > 2 and node.output[2] else None
    word = g.add("Gather", [words, ids], hint, axis=0)
    place = g.add("Gather", [positions, places], hint, axis=0)
    total = g.add("Add", [word, place], hint, out=None if segments else shown)
    if segments:
        total = g.add("Add", [total, g.add("Gather", [segment_rows, segments], hint, axis=0)], hint, out=shown)
    _write_norm(g, total, kind, (gamma, beta), False, attr_of(node, "epsilon", _SKIP_EPSILON), hint, node.output[0])
    return True


def instance_norm(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """InstanceNormalization of (N, C, D1 ... Dn): a norm of rows where the target has kernels of such. With sizes that only a run
    knows IREE takes wrong means (docs/developer/iree-bugs.md), NaN for most inputs."""
    x, scale, bias = node.input
    kind, shape = g.types.get(x, (0, None))
    if not kind or shape is None:
        return False
    numbers = _numbers_of(shape[2:])
    groups = shape[1]
    epsilon = attr_of(node, "epsilon", 1e-5)
    if numbers and isinstance(groups, int) and 0 not in shape[:2] and _reads_norms(g, kind):
        _norm_of_groups(g, node, groups, numbers, (scale, bias))
        return True
    if numbers is not None:
        return False
    hint = node.name or "InstanceNormalization"
    stash = TensorProto.FLOAT if kind in NARROW else kind
    axes = list(range(2, len(shape)))
    centred = centred_of(g, g.cast(x, kind, stash, hint), axes, hint)
    normal = normal_of(g, centred, stash, axes, epsilon, hint)
    rows = g.const(np.array([-1, *[1] * len(axes)], np.int64), hint)
    factor, summand = (g.cast(g.add("Reshape", [v, rows], hint), kind, stash, hint) for v in (scale, bias))
    scaled = g.add("Add", [g.add("Mul", [normal, factor], hint), summand], hint)
    g.cast(scaled, stash, kind, hint, out=node.output[0])
    return True


def layer_norm(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """LayerNormalization over several axes of known sizes: a norm of rows."""
    x, *weights = node.input
    kind, shape = g.types.get(x, (0, None))
    if shape is None or not _reads_norms(g, kind) or 0 in shape or any(node.output[1:]):
        return False
    axis = attr_of(node, "axis", -1) % len(shape)
    numbers = _numbers_of(shape[axis:])
    lead = [d if isinstance(d, int) else -1 for d in shape[:axis]]
    if axis == len(shape) - 1 or numbers is None or lead.count(-1) > 1:
        return False
    if any(g.shape(name) != shape[axis:] for name in weights if name):
        return False
    hint = node.name or "LayerNormalization"
    flat = [g.reshape(x, [-1, numbers], hint), *(g.reshape(w, [-1], hint) if w else "" for w in weights)]
    more = {name: attr_of(node, name, of) for name, of in (("epsilon", 1e-5), ("stash_type", TensorProto.FLOAT))}
    made = g.add("LayerNormalization", flat, hint, axis=-1, **more)
    g.reshape(made, [*lead, *(int(d or 0) for d in shape[axis:])], hint, out=node.output[0])
    return True


def group_norm(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """GroupNormalization of (N, C, D1 ... Dn) as a norm of rows, one of each group; IREE knows none. Before opset 21 a scale and
    a bias are of a group, since then of a channel. onnxruntime takes statistics in f32, or in a narrower `stash_type`, whose
    rounding it would share with nobody."""
    x, scale, bias = node.input
    kind, shape = g.types.get(x, (0, None))
    groups = attr_of(node, "num_groups", 0)
    if not kind or shape is None or groups < 1:
        return False
    numbers = _numbers_of(shape[1:])
    _norm_of_groups(g, node, groups, None if numbers is None else numbers // groups, (scale, bias))
    return True


def _numbers_of(sizes: Sequence[int | str | None]) -> int | None:
    """The product of sizes; None where only a run knows one."""
    known = [d for d in sizes if isinstance(d, int)]
    return math.prod(known) if len(known) == len(sizes) else None


def _reads_norms(g: GraphWriter, kind: int) -> bool:
    """Whether norms of rows of this type become kernels of the target or, of other sizes, get an exact mean (exact_means.py)."""
    there = g.target is not None and (
        g.target.backend == "cuda" or (g.target.backend == "llvm-cpu" and g.target.has_avx2)
    )
    return there and kind in FLOATS


def _norm_of_groups(
    g: GraphWriter, node: onnx.NodeProto, groups: int, numbers: int | None, weights: tuple[str, str]
) -> None:
    """x (N, ...) as rows (N, groups, numbers), their norm, and in x's shape again what a factor and a summand of each channel, or
    of each group, make of it. Those that are all 1, and 0, are left out: PyTorch's exports have the real ones behind the norm."""
    x = node.input[0]
    kind, shape = g.types[x]
    assert shape is not None
    hint = node.name or "Norm"
    stash = TensorProto.FLOAT if kind in NARROW else kind
    if numbers is not None:
        as_rows, whole = g.ints([0, groups, numbers], hint), g.ints([0, *(int(d or 0) for d in shape[1:])], hint)
    else:
        whole = g.add("Shape", [x], hint)
        each = g.add(
            "Div",
            [g.reduce("ReduceProd", _cut(g, whole, 1, len(shape), hint), [0], hint), g.ints([groups], hint)],
            hint,
        )
        as_rows = g.add("Concat", [_cut(g, whole, 0, 1, hint), g.ints([groups], hint), each], hint, axis=0)
    rows = g.add("Reshape", [x, as_rows], hint)
    wide = g.cast(rows, kind, stash, hint)
    centred = g.add("Sub", [wide, g.mean(wide, [-1], hint)], hint)
    value = normal_of(g, centred, stash, [-1], attr_of(node, "epsilon", 1e-5), hint)
    of_groups = g.shape(weights[0]) == [groups]
    if not of_groups:
        value = g.add("Reshape", [value, whole], hint)
    column = g.ints([-1, *[1] * (1 if of_groups else len(shape) - 2)], hint)
    for op, tensor, none in zip(("Mul", "Add"), weights, (1, 0), strict=True):
        known = g.array(tensor)
        if known is None or not (known == none).all():
            numbers_of = g.cast(g.add("Reshape", [tensor, column], hint), kind, stash, hint)
            value = g.add(op, [value, numbers_of], hint)
    if of_groups:
        value = g.add("Reshape", [value, whole], hint)
    g.cast(value, stash, kind, hint, out=node.output[0])
    g.types.setdefault(node.output[0], (kind, list(shape)))  # onnx infers none of a GroupNormalization


def _cut(g: GraphWriter, sizes: str, low: int, high: int, hint: str) -> str:
    """Some of the sizes of a shape."""
    return g.add("Slice", [sizes, g.ints([low], hint), g.ints([high], hint)], hint)


def lp_norm(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """LpNormalization, which is 0 of nothing but zeros. IREE divides them by 0, as torch would by a small number."""
    x, p = node.input[0], attr_of(node, "p", 2)
    kind = g.kind(x)
    if not kind or p not in (1, 2):
        return False
    hint = node.name or "LpNormalization"
    stash = TensorProto.FLOAT if kind in NARROW else kind
    axis, wide = attr_of(node, "axis", -1), g.cast(x, kind, stash, hint)
    if g.opset < 18:
        size = g.add(f"ReduceL{p}", [wide], hint, keepdims=1, axes=[axis])
    else:
        size = g.add(f"ReduceL{p}", [wide, g.ints([axis], hint)], hint, keepdims=1)
    zero = g.scalar(0.0, stash, hint)
    made = g.add("Where", [g.add("Equal", [size, zero], hint), zero, g.add("Div", [wide, size], hint)], hint)
    g.cast(made, stash, kind, hint, out=node.output[0])
    return True


def _write_norm(
    g: GraphWriter, x: str, kind: int, scale: tuple[str, str], simplified: bool, epsilon: float, hint: str, out: str
) -> None:
    """The norm of x over its last axis times gamma, plus beta where there is one."""
    gamma, beta = scale
    stash = TensorProto.FLOAT if kind in NARROW else kind
    wide = g.cast(x, kind, stash, hint)
    if not simplified:
        wide = g.add("Sub", [wide, g.mean(wide, [-1], hint)], hint)
    normal = normal_of(g, wide, stash, [-1], epsilon, hint)
    scaled = g.add("Mul", [normal, g.cast(gamma, kind, stash, hint)], hint)
    if beta:
        scaled = g.add("Add", [scaled, g.cast(beta, kind, stash, hint)], hint)
    g.cast(scaled, stash, kind, hint, out=out)


def centred_of(g: GraphWriter, x: str, axes: list[int], hint: str) -> str:
    """x without its mean, to which what a rounded one leaves is added (exact_means.py)."""
    mean = g.mean(x, axes, hint)
    left = g.mean(g.add("Sub", [x, mean], hint), axes, hint)
    return g.add("Sub", [x, g.add("Add", [mean, left], hint)], hint)


def normal_of(g: GraphWriter, x: str, kind: int, axes: list[int], epsilon: float, hint: str) -> str:
    """x / sqrt(mean(x^2) + epsilon)"""
    mean = g.mean(g.add("Mul", [x, x], hint), axes, hint)
    root = g.add("Sqrt", [g.add("Add", [mean, g.scalar(epsilon, kind, hint)], hint)], hint)
    return g.add("Div", [x, root], hint)


def _refuse_statistics(node: onnx.NodeProto, end: int) -> None:
    """Raises ModelError where means or inverse deviations, outputs 1 to `end`, are asked for: they are for training."""
    if any(node.output[1 : max(end, 2)]):
        raise ModelError(
            f"node {node.name!r}: the statistics of {node.op_type}, which are for training, are not supported"
        )
