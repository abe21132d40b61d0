"""What tf2onnx writes: dims of inputs that it names as ONNX's inference names those it cannot follow, and Einsum spelled out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from tests.support import spellings_layout
from tests.support.spellings_layout import B, D, H, Layout, N, S, qkv

__all__ = ["MATCH", "REFUSE", "feeds"]


def feeds(model: onnx.ModelProto, seed: int = 0, **kind: Any) -> dict[str, Any]:
    """Inputs for batches of `B`."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    for value in fixed.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_value = B
    return spellings_layout.feeds(fixed, seed, **kind)


def packed() -> onnx.ModelProto:
    """Q, K and V of one product, reshaped to a batch that is left over."""
    g = Layout(18)
    x = g.input("x", ["unk__1173", S, 3 * H * D])
    parts = [g.op("Slice", x, *(g.const([n], np.int64) for n in (i * H * D, (i + 1) * H * D, 2))) for i in range(3)]
    q, k, v = (g.transpose(g.reshape(part, -1, S, H, D), 0, 2, 1, 3) for part in parts)
    p = g.softmax(g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2))))
    out = g.transpose(g.op("MatMul", p, v), 0, 2, 1, 3)
    return g.done(g.reshape(out, -1, S, H * D), "unk__1174", S, H * D)


def products(g: Layout, a: str, b: str) -> str:
    """The product of a and b (B, heads, rows, columns) as tf2onnx writes it for Einsum: of three axes, and reshaped."""
    sizes = []
    for x in (a, b):
        dims = g.op("Shape", x)
        lead = g.op("Gather", dims, g.const([0, 1], np.int64))
        last = g.op("Gather", dims, g.const([3], np.int64))
        sizes.append(
            (dims, lead, g.op("Concat", g.op("ReduceProd", lead, keepdims=1), g.const([-1], np.int64), last, axis=0))
        )
    made = g.op("MatMul", g.op("Reshape", a, sizes[0][2]), g.op("Reshape", b, sizes[1][2]))
    lead = g.op("Max", sizes[0][1], sizes[1][1])
    ends = [g.op("Gather", sizes[i][0], g.const([2 + i], np.int64)) for i in (0, 1)]
    return g.op("Reshape", made, g.op("Concat", lead, *ends, axis=0))


def einsum(heads: int) -> onnx.ModelProto:
    g = Layout(18)
    q, k, v = qkv(g, ("unk__7", heads, S, D), ("unk__8", heads, N, D), ("unk__9", heads, N, D))
    p = g.softmax(g.scaled(products(g, q, g.transpose(k, 0, 1, 3, 2))))
    return g.done(products(g, p, v), "unk__10", heads, S, D)


def apart() -> onnx.ModelProto:
    """A batch of one broadcasts."""
    g = Layout(18)
    q, k, v = qkv(g, ("unk__7", H, S, D), ("unk__8", H, N, D), ("unk__9", H, N, D))
    p = g.softmax(g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2))))
    return g.done(g.op("MatMul", p, v), "unk__10", H, S, D)


def padded(zero: float = 0.0) -> onnx.ModelProto:
    """A mask of keys with a batch and a length of its own, chosen by sums of products before the softmax and behind it."""
    g = Layout(18)
    q, k, v = qkv(g, ("unk__7", H, "unk__1", D), ("unk__7", H, "unk__2", D), ("unk__7", H, "unk__2", D))
    keep = g.input("keep", ["unk__8", 1, 1, "unk__3"], onnx.TensorProto.BOOL)
    kept, left = (g.op("Cast", x, to=onnx.TensorProto.FLOAT) for x in (keep, g.op("Not", keep)))
    score = g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2)))
    masked = g.op("Add", g.op("Mul", score, kept), g.op("Mul", g.const(-1e9), left))
    p = g.op("Add", g.op("Mul", g.softmax(masked), kept), g.op("Mul", g.const(zero), left))
    return g.done(g.op("MatMul", p, v), "unk__10", H, "unk__11", D)


def keys_of_each(cut: bool = False) -> onnx.ModelProto:
    """K, V and the mask have lengths of their own: a mask may repeat a single key, and V has as many rows as come of it. `cut`: V
    has as many as K, and so many of the probabilities multiply it."""
    g = Layout(18)
    q, k, v = qkv(g, ("unk__7", H, "unk__1", D), ("unk__8", H, "unk__2", D), ("unk__9", H, "unk__3", D))
    mask = g.op("Mul", g.input("mask", ["unk__10", 1, 1, "unk__4"]), g.const(-1e9))
    p = g.softmax(g.op("Add", g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2))), mask))
    if cut:
        p = g.op("Slice", p, g.const([0], np.int64), g.op("Shape", k, start=2, end=3), g.const([3], np.int64))
    return g.done(g.op("MatMul", p, v), "unk__11", H, "unk__12", D)


def where_as_sums(zero: float) -> onnx.ModelProto:
    """Where(mask, scores, -1e9) and Where(mask, p, zero) as sums of products: Keras's masked softmax."""
    g = Layout(18)
    q, k, v = qkv(g, (B, H, S, D), (B, H, N, D), (B, H, N, D))
    keep = g.input("keep", [B, 1, S, N], onnx.TensorProto.BOOL)
    kept, left = (g.op("Cast", x, to=onnx.TensorProto.FLOAT) for x in (keep, g.op("Not", keep)))
    score = g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2)))
    masked = g.op("Add", g.op("Mul", score, kept), g.op("Mul", g.const(-1e9), left))
    p = g.op("Add", g.op("Mul", g.softmax(masked), kept), g.op("Mul", g.const(zero), left))
    return g.done(g.op("MatMul", p, v), B, H, S, D)


MATCH: dict[str, Callable[[], onnx.ModelProto]] = {
    "packed": packed,
    "einsum_as_products_of_three_axes": lambda: einsum(H),
    "zero_that_a_condition_chooses": lambda: where_as_sums(0.0),
    "batches_that_may_broadcast": apart,
    "mask_of_another_batch_and_length": padded,
    "keys_of_each": keys_of_each,
}
REFUSE: dict[str, Callable[[], onnx.ModelProto]] = {
    "products_of_three_axes_of_one_head": lambda: einsum(1),
    "number_beside_a_mask_of_another_length": lambda: padded(1e-9),
    "probabilities_cut_to_the_keys_of_k": lambda: keys_of_each(cut=True),
    "number_that_a_condition_chooses": lambda: where_as_sums(1e-9),
}
