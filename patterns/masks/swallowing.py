"""Whether a score plus a fill is the fill itself: the score must be of ordinary size before."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.moves import MOVES
from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import FLOATS, GraphView
from onnx_fa.match import Call, Expr, Term, known_array
from onnx_fa.patterns.masks.expressions import reads
from onnx_fa.patterns.masks.reader import Reader
from onnx_fa.spec.expr import Float
from onnx_fa.spec.terms import AddMask, Elementwise

SWALLOWING_F32_FILL = -1e37
"""Adding this or less to a float32 score gives the fill itself: the score is below half an ulp of it."""
SWALLOWING_F16_FILL = -6e4
"""The same for a float16 score, as large as the type allows."""
MAX_ORDINARY_BIAS = 1e15
"""A bias below this leaves a score so small that a fill still swallows it."""


def swallows_scores(fill: float, dtype: str) -> bool:
    """Whether a fill is as low as a mask's: no score of that type counts beside it."""
    return fill <= (SWALLOWING_F16_FILL if dtype == "f16" else SWALLOWING_F32_FILL)


def may_swallow(reader: Reader, low: float, before: Sequence[Term]) -> bool:
    """Whether any score plus `low` is `low`. A finite one on a score that is already masked would sink to -inf instead."""
    if low == -math.inf:
        return True
    return low <= SWALLOWING_F32_FILL and reader.dtype != "f16" and all(_leaves_ordinary(reader, t) for t in before)


def _leaves_ordinary(reader: Reader, term: Term) -> bool:
    """Whether a term leaves scores at the size that products of Q and K have."""
    match term.term:
        case AddMask():
            return _is_ordinary(reader.view, term.operands[0])
        case Elementwise(expr, tensors):
            if any(isinstance(x, Float) and not abs(x.value) < MAX_ORDINARY_BIAS for x in reads(expr)):
                return False
            return all(
                t.kind != "float" or _is_ordinary(reader.view, o) for t, o in zip(tensors, term.operands, strict=True)
            )
    return False


_BOUNDED_BY_FIRST = MOVES | {"Cast", "GatherND", "GatherElements", "Neg", "Sigmoid", "Tanh"}
"""Where the first operand holds no fill, the result holds none."""
MAX_VALUES_ABOVE = 64
"""Nodes above a bias that are looked at."""


def _is_ordinary(view: GraphView, value: Expr) -> bool:
    """Whether a float operand cannot hold a fill: it comes from constants of ordinary size or from a matmul."""
    while isinstance(value, Call):
        if value.op not in MOVES:
            return False
        value = value.args[0]
    stack: list[Expr] = [value]
    seen: set[Expr] = {value}
    while stack:
        above = _ordinary_if(view, stack.pop())
        if above is None or len(seen) > MAX_VALUES_ABOVE:
            return False
        new = [x for x in dict.fromkeys(above) if x not in seen]
        seen.update(new)
        stack += new
    return True


def _ordinary_if(view: GraphView, value: Expr) -> list[ir.Value] | None:
    """The values that have to be bounded for this one to be; None where it may hold a fill whatever they are."""
    if isinstance(value, ir.Value) and value.dtype is not None and value.dtype not in FLOATS:
        return []
    array = known_array(view, value)
    if array is not None:
        return [] if bool((np.abs(array.astype(np.float64)) < MAX_ORDINARY_BIAS).all()) else None
    node = view.producer(value) if isinstance(value, ir.Value) else None
    if node is None or (op_of(node) == "Cast" and node.outputs[0].dtype == ir.DataType.FLOAT16):
        return None
    inputs = [i for i in node.inputs if i is not None]
    if op_of(node) in ("MatMul", "Gemm", "Einsum"):
        return []
    if op_of(node) in _BOUNDED_BY_FIRST:
        return inputs[:1]
    if op_of(node) in ("Add", "Sub", "Mul", "Concat"):
        return inputs
    if op_of(node) == "Where":
        return inputs[1:]
    if op_of(node) == "Div":
        divisor = view.const(node.inputs[1])
        least = float(np.abs(divisor.astype(np.float64)).min()) if divisor is not None and divisor.size else 0.0
        return inputs[:1] if least > 1 / MAX_ORDINARY_BIAS**0.5 else None
    return None
