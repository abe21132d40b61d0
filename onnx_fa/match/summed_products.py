"""A score that is the sum of several products, such as MLA's part with rotary positions: one product of longer rows.

q1 @ k1^T + q2 @ k2^T is concat(q1, q2) @ concat(k1, k2)^T, which copies queries and keys, once each, where the sum would be a
bias of Sq x Skv.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.view import DTYPES, Array, GraphView
from onnx_fa.match.exprs import Call, Const, Expr
from onnx_fa.match.types import AddTerm, Nothing, Patterns, Product, Scale, Step
from onnx_fa.match.walk_up import is_weights
from onnx_fa.spec.dtypes import NUMPY
from onnx_fa.spec.terms import Dim

MAX_HEAD_DIM = 768
"""Products are joined up to this head dim."""

Dims = tuple[Dim | None, ...]


def join_summed_products(
    view: GraphView, patterns: Patterns, steps: Sequence[Step], qk: Product
) -> tuple[list[Step], Product]:
    """The steps and the product, with every product that is added before anything but scales taken into it. A bias that is no
    product of that kind ends it. With a single query the sum is a row, and stays one."""
    rest = list(steps)
    factor = 1.0
    i = 0
    while i < len(rest):
        step = rest[i]
        if isinstance(step, Scale):
            factor *= step.factor
        elif isinstance(step, AddTerm):
            joined = _join_product(view, patterns, qk, step, factor)
            if joined is None:
                break
            qk = joined
            del rest[i]
            continue
        elif not isinstance(step, Nothing):
            break
        i += 1
    return rest, qk


def _join_product(view: GraphView, patterns: Patterns, qk: Product, step: AddTerm, factor: float) -> Product | None:
    """One product for `qk`, scaled by `factor`, and the product that `step` adds to it. None where they cannot be joined."""
    value = step.value
    if not isinstance(value, ir.Value) or len(view.users(value)) != 1 or value.is_graph_output() or not factor:
        return None
    other = patterns.product(view, value)
    if other is None or len(other.out) != len(qk.out) or any(is_weights(view, x) for x in other.operands):
        return None
    factors = [x.dtype for x in (*qk.operands, *other.operands) if isinstance(x, ir.Value) and x.dtype is not None]
    if len(set(factors)) > 1:
        return None  # no Concat takes them, and of a single product's the match is refused
    sides = _sides(qk), _sides(other)
    if None in sides:
        return None
    (q, k, inner), (q2, k2, inner2) = sides[0] or (0, 0, ""), sides[1] or (0, 0, "")
    place = {x: qk.out[i] for i, x in enumerate(other.out)} | {inner2: inner}
    rows = qk.shapes[q][qk.letters[q].index(qk.out[-2])]
    operands, shapes = list(qk.operands), list(qk.shapes)
    for mine, its, times in ((q, q2, other.factor * step.factor / factor), (k, k2, 1.0)):
        added = _laid_out(other.operands[its], other.shapes[its], [place[x] for x in other.letters[its]], qk, mine)
        at = qk.letters[mine].index(inner)
        first, second = qk.shapes[mine][at], other.shapes[its][other.letters[its].index(inner2)]
        if added is None or rows == 1 or not isinstance(first, int) or not isinstance(second, int):
            return None
        if first + second > MAX_HEAD_DIM:
            return None
        if times != 1.0:
            dtype = DTYPES.get(value.dtype or ir.DataType.UNDEFINED)
            if dtype is None:
                return None
            number: Array = np.asarray(times, NUMPY[dtype])
            if not np.isfinite(number) or (times and not number):
                return None
            added = Call("Mul", (added, Const(number)))
        operands[mine] = Call("Concat", (operands[mine], added), (("axis", at),))
        shapes[mine] = (*qk.shapes[mine][:at], first + second, *qk.shapes[mine][at + 1 :])
    return replace(qk, operands=(operands[0], operands[1]), shapes=(shapes[0], shapes[1]))


def _sides(p: Product) -> tuple[int, int, str] | None:
    """(the operand with the rows, the one with the keys, the letter that is summed over)."""
    if len(p.out) < 2 or len(set(p.out)) != len(p.out):
        return None
    summed_over = (set(p.letters[0]) | set(p.letters[1])) - set(p.out)
    for q in (0, 1):
        own, other = p.letters[q], p.letters[1 - q]
        right = p.out[-2] in own and p.out[-1] in other and p.out[-1] not in own and p.out[-2] not in other
        if right and len(summed_over) == 1 and summed_over <= set(own) & set(other):
            return q, 1 - q, summed_over.pop()
    return None


def _laid_out(value: Expr, dims: Dims, letters: list[str], qk: Product, side: int) -> Expr | None:
    """An operand in the axes of that side of `qk`, repeated along those that it lacks. None where it has more than those, or where
    they might differ."""
    want, sizes = qk.letters[side], qk.shapes[side]
    have = dict(zip(letters, dims, strict=True))
    inner = next(x for x in want if x not in qk.out)
    if any(x not in want and n != 1 for x, n in have.items()):
        return None
    repeats: list[int] = []
    for letter, size in zip(want, sizes, strict=True):
        own = have.get(letter, 1)
        if letter == inner or (own is not None and own == size):
            repeats.append(1)
        elif own == 1 and isinstance(size, int):
            repeats.append(size)
        else:
            return None
    drop = tuple(i for i, x in enumerate(letters) if x not in want)
    if drop:
        value = Call("Squeeze", (value, Const(np.asarray(drop, np.int64))))
    kept = [x for x in letters if x in want]
    order = tuple(kept.index(x) for x in want if x in kept)
    if order != tuple(range(len(order))):
        value = Call("Transpose", (value,), (("perm", order),))
    missing = tuple(i for i, x in enumerate(want) if x not in kept)
    if missing:
        value = Call("Unsqueeze", (value, Const(np.asarray(missing, np.int64))))
    if any(n != 1 for n in repeats):
        value = Call("Expand", (value, Const(np.asarray(repeats, np.int64))))
    return value
