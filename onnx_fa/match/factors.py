"""A factor with one number per query moves to Q, a factor with one number per key to V, where every kernel can take it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.view import Array, GraphView
from onnx_fa.match.exprs import Call, Const, Expr, known_array
from onnx_fa.match.misses import NoMatch
from onnx_fa.match.types import Factor, Map, MaskRule, Nothing, OperandChoice, Operands, Scale, Step
from onnx_fa.spec.expr import Tensor
from onnx_fa.spec.terms import Dim, term_tensors


def multiply_q(
    view: GraphView, mask: MaskRule, steps: Sequence[Step], q: OperandChoice, shape: tuple[Dim, ...], dtype: str
) -> tuple[list[Step], OperandChoice]:
    """Moves the factors with one number per query to Q, as long as only other factors come before them. Returns the steps that are
    left, and Q."""
    rest: list[Step] = []
    for i, step in enumerate(steps):
        if not isinstance(step, (Scale, Factor, Nothing)):
            return [*rest, *steps[i:]], q
        if not isinstance(step, Factor):
            rest.append(step)
            continue
        try:
            (term,) = mask(view, Map(Tensor(0), (step.value,)), (*shape[:-1], 1), dtype)
        except NoMatch:  # one number per key, of a score whose keys are not its last axis
            return [*rest, *steps[i:]], q
        (arg,), (operand,) = term_tensors(term.term), term.operands
        if arg.dtype != dtype or dtype == "f16" or _is_huge(view, step.value, step.divide):
            # The score was widened before, or Q might overflow where the score does not.
            rest.append(step)
            continue
        if not _finite_where_known(view, step.value, step.divide):
            raise NoMatch("a scale is not finite")
        value = Call("Div" if step.divide else "Mul", (q.value, _lay_out_as(operand, arg.shape, q.layout)))
        q = replace(q, value=value)
    return rest, q


_MAX_FACTOR_ON_Q = 1e18
"""A constant factor beyond this stays with the score: the squares of such numbers overflow in f32."""


def _known_numbers(view: GraphView, factor: Expr) -> Array | None:
    """The numbers of a factor that is a constant, perhaps with its axes moved."""
    while isinstance(factor, Call):
        factor = factor.args[0]
    return known_array(view, factor)


def _is_huge(view: GraphView, factor: Expr, divide: bool) -> bool:
    """Whether Q times the factor (or divided by it) might overflow where the score does not."""
    array = _known_numbers(view, factor)
    if array is None:
        return False
    sizes = np.abs(array.astype(np.float64))
    sizes = sizes[np.isfinite(sizes)]
    return bool((sizes < 1 / _MAX_FACTOR_ON_Q).any() if divide else (sizes > _MAX_FACTOR_ON_Q).any())


def _finite_where_known(view: GraphView, factor: Expr, divide: bool) -> bool:
    """Whether a constant factor (or divisor) is finite: infinity times Q is not infinity times the score. True for all others."""
    array = _known_numbers(view, factor)
    return array is None or bool(np.isfinite(array).all() and not (divide and (array == 0).any()))


def multiply_v(
    view: GraphView, mask: MaskRule, factors: Sequence[Expr], o: Operands, dtype: str, at: ir.Node
) -> OperandChoice:
    """V times factors of its rows, one per key."""
    v = o.v.integers.plain if factors and o.v.integers is not None else o.v
    for factor in factors:
        (term,) = mask(view, Map(Tensor(0), (factor,)), (*o.batch, o.Hq, 1, o.Skv), dtype)
        (arg,), (operand,) = term_tensors(term.term), term.operands
        if len(arg.shape) > 2 and arg.shape[-3] != 1 and o.Hq != o.Hkv:
            raise NoMatch("a factor on the probabilities differs between heads that share V", at)
        if arg.dtype != dtype:
            raise NoMatch("a factor on the probabilities and V have different element types", at)
        if dtype == "f16":
            raise NoMatch("V times a factor on the probabilities might overflow in f16", at)
        rank = len(arg.shape)
        if rank == 1:
            operand, dims = Call("Unsqueeze", (operand, Const(np.asarray([1], np.int64)))), (arg.shape[0], 1)
        else:
            swap = (*range(rank - 2), rank - 1, rank - 2)
            operand, dims = Call("Transpose", (operand,), (("perm", swap),)), tuple(arg.shape[a] for a in swap)
        v = replace(v, value=Call("Mul", (v.value, _lay_out_as(operand, dims, v.layout))))
    return v


def _lay_out_as(operand: Expr, dims: tuple[Dim, ...], layout: tuple[int, ...]) -> Expr:
    """Takes an operand that broadcasts to the canonical tensor, and makes it broadcast to the tensor as it is stored."""
    rank = len(layout)
    if layout == tuple(range(rank)) or all(d == 1 for d in dims):
        return operand
    if len(dims) < rank:
        operand = Call("Unsqueeze", (operand, Const(np.arange(rank - len(dims), dtype=np.int64))))
    return Call("Transpose", (operand,), (("perm", layout),))
