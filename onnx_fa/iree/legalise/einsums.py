"""Einsum of what a model computes and a weight, as JAX writes its layers: a MatMul, of which there are kernels.

IREE flattens what is free of an Einsum's operands, and takes one of two free lengths that it merges for 1. And an axis of the
result that one operand has once it takes to be one for all, silently: it is taken out.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import onnx

from onnx_fa.graph.repeated_letters import equation_of, with_own_letters
from onnx_fa.iree.legalise.writer import FLOATS, GraphWriter, attr_of


def einsum(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """The Einsum without axes that are repeated, and a product where it is one of rows and a weight."""
    equation = with_own_letters(equation_of(node), [g.shape(x) for x in node.input])
    if equation is None:
        return _product(g, node) or _sum_of_products(g, node)
    given, _, result = equation.partition("->")
    terms, inputs, hint = given.split(","), list(node.input), node.name or "Einsum"
    for i, term in enumerate(terms):
        others = {*result, *"".join(terms[:i] + terms[i + 1 :])}
        once = [at for at, c in enumerate(term) if c not in others and (g.shape(inputs[i]) or [0] * len(term))[at] == 1]
        if once:
            inputs[i] = g.add("Squeeze", [inputs[i], g.ints(once, f"{hint}/axes")], hint)
            terms[i] = "".join(c for at, c in enumerate(term) if at not in once)
    own = onnx.helper.make_node("Einsum", inputs, list(node.output), node.name, equation=f"{','.join(terms)}->{result}")
    g.nodes.append(own)
    return True


def _product(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """x (rows..., K...) by a weight (K..., N...) in any order of their axes, where no axis is in both and in the result."""
    if len(node.input) != 2 or g.kind(node.input[0]) not in FLOATS:
        return False
    weight = next((i for i in (1, 0) if g.has_data(node.input[i])), None)
    letters = _letters(attr_of(node, "equation", b"").decode())
    if weight is None or letters is None or g.has_data(node.input[1 - weight]):
        return False
    *operands, result = letters
    x, w = operands[1 - weight], operands[weight]
    rows, shape = g.shape(node.input[1 - weight]), g.shape(node.input[weight])
    if rows is None or shape is None or len(rows) != len(x) or len(shape) != len(w):
        return False
    summed, free, wide = [c for c in x if c in w], [c for c in x if c not in w], [c for c in w if c not in x]
    sizes = {c: d for c, d in zip(w, shape, strict=True) if isinstance(d, int) and d > 0}
    if len(sizes) != len(w) or not (summed and free and wide) or sorted(free + wide) != sorted(result):
        return False
    hint = node.name or "Einsum"
    depth, width = (math.prod(sizes[c] for c in part) for part in (summed, wide))
    known = dict(zip(x, rows, strict=True))
    value = _ordered(g, node.input[1 - weight], x, free + summed, hint)
    if sum(not isinstance(known[c], int) for c in free) <= 1 and len(free) > 1:  # one product of all rows
        lead, back = [-1], [d if isinstance(d := known[c], int) else -1 for c in free]
    else:
        lead = back = [0] * len(free)
    if lead == [-1] or len(summed) > 1:
        value = g.reshape(value, [*lead, depth], hint)
    product = g.add("MatMul", [value, _matrix(g, node.input[weight], w, summed + wide, depth, width, hint)], hint)
    last = free + wide == result
    if lead == [-1] or len(wide) > 1:
        product = g.reshape(product, [*back, *(sizes[c] for c in wide)], hint, out=node.output[0] if last else None)
    elif last:
        g.nodes[-1].output[0] = node.output[0]
    if not last:
        _ordered(g, product, free + wide, result, hint, out=node.output[0])
    return True


def _sum_of_products(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Numbers of two operands that have the same axes, multiplied one by one and added along some, as `bij,bij->bi`. As a product
    of matrices IREE stops a run where sizes along those axes are computed."""
    letters = _letters(attr_of(node, "equation", b"").decode())
    if letters is None or g.kind(node.input[0]) not in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE):
        return False
    left, right, result = letters
    summed = [c for c in left if c not in result]
    if sorted(left) != sorted(right) or not summed or not result or not set(result) <= set(left):
        return False
    hint, kept = node.name or "Einsum", [c for c in left if c in result]
    product = g.add("Mul", [node.input[0], _ordered(g, node.input[1], right, left, hint)], hint)
    axes = g.ints([left.index(c) for c in summed], hint)
    if kept == result:
        g.add("ReduceSum", [product, axes], hint, out=node.output[0], keepdims=0)
    else:
        _ordered(g, g.add("ReduceSum", [product, axes], hint, keepdims=0), kept, result, hint, out=node.output[0])
    return True


def _letters(equation: str) -> list[list[str]] | None:
    """The axes of both operands and of the result; None for an ellipsis, a diagonal, and what has an axis of its own twice."""
    text = "".join(equation.split())
    given, arrow, result = text.partition("->")
    operands = given.split(",")
    if "." in text or len(operands) != 2:
        return None
    if not arrow:
        counts = Counter(given.replace(",", ""))
        result = "".join(sorted(c for c, n in counts.items() if n == 1))
    parts = [list(part) for part in (*operands, result)]
    return parts if all(len(set(part)) == len(part) for part in parts) else None


def _ordered(g: GraphWriter, value: str, have: list[str], want: list[str], hint: str, *, out: str | None = None) -> str:
    if have == want and out is None:
        return value
    return g.add("Transpose", [value], hint, out=out, perm=[have.index(c) for c in want])


def _matrix(g: GraphWriter, weight: str, have: list[str], want: list[str], depth: int, width: int, hint: str) -> str:
    """The weight as (depth, width)."""
    if have == want and len(have) == 2:
        return weight
    perm = [have.index(c) for c in want]

    def make() -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
        array = g.array(weight)
        assert array is not None
        return np.ascontiguousarray(array.transpose(perm).reshape(depth, width))

    return g.computed(make, g.kind(weight), [depth, width], f"{weight}/matrix")
