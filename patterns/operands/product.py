"""What counts as a matmul: MatMul, Gemm without C, Einsum, onnxruntime's FusedMatMul and TransposeMatMul, and convolutions of one
tap."""

from __future__ import annotations

import string
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.dims import Shape
from onnx_fa.graph.ops import FUSED_MATMULS, attr_float, attr_int, op_of, typed_attr
from onnx_fa.graph.view import GraphView
from onnx_fa.match import Call, Const, Product
from onnx_fa.match.walk_up import is_weights
from onnx_fa.patterns.operands.einsum import einsum_letters


def read_product(view: GraphView, value: ir.Value) -> Product | None:
    """The contraction of two operands that makes `value`, None for anything else."""
    node = value.producer()
    if node is None or len(node.inputs) < 2 or node.inputs[0] is None or node.inputs[1] is None:
        return None
    left, right = node.inputs[0], node.inputs[1]
    a, b = view.shape(left), view.shape(right)
    if a is None or b is None:
        return None
    letters: tuple[str, str, str] | None = None
    factor = 1.0
    if op_of(node) == "MatMul":
        letters = matmul_letters(len(a), len(b), False, False)
    elif op_of(node) == "Gemm":
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        beta, array = attr_float(node, "beta", 1.0), view.const(bias)
        if bias is None or (array is not None and not array.any()) or beta == 0.0:
            letters = matmul_letters(2, 2, bool(attr_int(node, "transA", 0)), bool(attr_int(node, "transB", 0)))
            factor = attr_float(node, "alpha", 1.0)
    elif op_of(node) in FUSED_MATMULS:
        if not attr_int(node, "transBatchA", 0) and not attr_int(node, "transBatchB", 0):
            swaps = bool(attr_int(node, "transA", 0)), bool(attr_int(node, "transB", 0))
            letters = matmul_letters(len(a), len(b), *swaps)
            factor = attr_float(node, "alpha", 1.0)
    elif op_of(node) == "Einsum" and len(node.inputs) == 2:
        letters = einsum_letters(node.attributes["equation"].as_string(), len(a), len(b))
    elif op_of(node) == "Conv":
        return _read_pointwise(view, node, a, b)
    if letters is None or not _is_product(letters):
        return None
    if op_of(node) == "Einsum" and not (_sums_equal_dims(letters, a, b) and _first_is_widest(letters, a, b)):
        return None
    return Product(node, (left, right), (a, b), letters[:2], letters[2], node.outputs[0], factor)


def _read_pointwise(view: GraphView, node: ir.Node, image: Shape, weight: Shape) -> Product | None:
    """A convolution of one tap without bias: a product of its weight (out, in) and the channels of each place, as learned queries
    are multiplied by the pixels of a map (MGP-STR, TokenLearner)."""
    x, w = node.inputs[:2]
    given = [v for v in node.inputs[2:] if v is not None]
    if x is None or w is None or given or len(image) != len(weight) or image[1] != weight[1]:
        return None
    if is_weights(view, x):  # a sum over bins of a distance, as in detectors
        return None
    if any(d != 1 for d in weight[2:]) or not all(isinstance(d, int) for d in weight[:2]):
        return None
    moves = (("pads", 0), ("strides", 1))
    if attr_int(node, "group", 1) != 1 or any(n != kept for name, kept in moves for n in _ints_of(node, name)):
        return None
    places = string.ascii_uppercase[1 : len(image) - 1]
    rows = Call("Reshape", (w, Const(np.array(weight[:2], np.int64))), shape=tuple(weight[:2]))
    letters = "mk", "Ak" + places
    return Product(node, (rows, x), (weight[:2], image), letters, "Am" + places, node.outputs[0])


def _ints_of(node: ir.Node, name: str) -> Sequence[int]:
    attr = typed_attr(node, name, ir.AttributeType.INTS)
    return () if attr is None else attr.as_ints()


def _first_is_widest(letters: Sequence[str], a: Shape, b: Shape) -> bool:
    """Whether no dim of the second operand widens a unit dim of the first: ONNX's shape inference does not see that, and what it
    has recorded behind the node would be wrong."""
    sizes = dict(zip(letters[1], b, strict=True))
    return all(dim != 1 or sizes.get(x, 1) == 1 for x, dim in zip(letters[0], a, strict=True))


def matmul_letters(a: int, b: int, swap_a: bool, swap_b: bool) -> tuple[str, str, str] | None:
    """Letters of a numpy matmul of ranks `a` and `b`, whose last two axes may be swapped before it."""
    if a < 2 or b < 2:
        return None
    batch = string.ascii_uppercase[: max(a, b) - 2]
    left, right = batch[len(batch) - (a - 2) :], batch[len(batch) - (b - 2) :]
    return left + ("km" if swap_a else "mk"), right + ("nk" if swap_b else "kn"), batch + "mn"


def _is_product(letters: Sequence[str]) -> bool:
    """Whether every letter occurs once per term and in at least two terms: no diagonal, no sum over one operand."""
    return all(len(set(t)) == len(t) for t in letters) and all(
        sum(x in t for t in letters) > 1 for t in letters for x in t
    )


def _sums_equal_dims(letters: tuple[str, str, str], a: Shape, b: Shape) -> bool:
    """Whether the dims summed over are provably equal. Unlike a matmul, Einsum broadcasts a size of one there."""
    left, right, out = letters
    summed = [(a[left.index(x)], b[right.index(x)]) for x in left if x in right and x not in out]
    return all(i is not None and i == j for i, j in summed)
