"""Score layers for masks: Add and Sub of a tensor, Where with a fill; and what such a tensor means.

A mask that the graph computes from indices becomes a Causal or SlidingWindow term, a constant one is examined by value, a
conjunction is split into its parts, so that as little of it as possible has to exist as a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnx_fa.graph_view import DTYPES, GraphView
from onnx_fa.match import AddTerm, Call, Const, Expr, Map, NoMatch, Peel, Select, Term
from onnx_fa.patterns.index_mask import index_terms, merge_bounds
from onnx_fa.spec import AddMask, BoolMask, Causal, Dim, DType, ElementType, Elementwise, SlidingWindow, TensorArg

# Adding this or less to a float32 score gives the fill itself: the score is below half an ulp of it.
_SWALLOWS = -1e37
Bool = npt.NDArray[np.bool_]


def add(view: GraphView, value: ir.Value) -> Iterator[Peel]:
    """score + m, m + score, score - m."""
    node = view.producer(value, "Add", "Sub")
    if node is None:
        return
    a, b = node.inputs
    if a is None or b is None:
        return
    sign = 1.0 if node.op_type == "Add" else -1.0
    if view.const(a) is None:
        yield Peel(AddTerm(b, sign), a)
    if node.op_type == "Add" and view.const(b) is None:
        yield Peel(AddTerm(a), b)


def where(view: GraphView, value: ir.Value) -> Iterator[Peel]:
    """Where(keep, score, fill) and Where(drop, fill, score)."""
    node = view.producer(value, "Where")
    if node is None:
        return
    cond, yes, no = node.inputs
    if cond is None or yes is None or no is None:
        return
    for score, fill, inverted in ((yes, no, False), (no, yes, True)):
        number = _uniform(view, fill)
        if number is not None and number < 0 and view.const(score) is None:
            yield Peel(Select(cond, inverted, number), score)


def _uniform(view: GraphView, value: ir.Value) -> float | None:
    """The one number that a constant holds everywhere."""
    array = view.const(value)
    if array is None or array.size == 0:
        return None
    first = array.reshape(-1)[0]
    return float(first) if bool((array == first).all()) else None


def terms(view: GraphView, step: AddTerm | Select | Map, shape: tuple[Dim, ...], dtype: str) -> list[Term]:
    """The mask terms that a step on a score of `shape` means. Raises NoMatch when it does not broadcast to the score."""
    if isinstance(step, Map):
        return [_mapped(view, step, shape)]
    if isinstance(step, Select):
        return _bool_terms(view, step.keep, step.inverted, step.fill, shape, dtype)
    found = _as_select(view, step, dtype)
    if found is not None:
        return _bool_terms(view, found.keep, found.inverted, found.fill, shape, dtype)
    value = step.value
    array = view.const(value) if isinstance(value, ir.Value) else None
    if array is not None and not array.any():
        return []  # adds zero
    if array is not None:
        by_value = _constant_float(array.astype(np.float64) * step.factor, shape, dtype)
        if by_value is not None:
            return by_value
    element = _element_type(value)
    if element not in ("f32", "f16", "bf16"):
        raise NoMatch("an additive mask whose element type is not f32, f16 or bf16", _node(value))
    operand, dims = _fit(view, value, shape)
    return [Term(AddMask(dims, element, step.factor), (operand,))]


def _mapped(view: GraphView, step: Map, shape: tuple[Dim, ...]) -> Term:
    """A score function with its tensors fitted to the score. Raises NoMatch where one does not broadcast."""
    args, operands = [], []
    for value in step.values:
        element = _any_element_type(value)
        if element is None:
            raise NoMatch("a score function reads a tensor that is neither float, int nor bool", _node(value))
        operand, dims = _fit(view, value, shape)
        args.append(TensorArg(dims, element))
        operands.append(operand)
    try:
        return Term(Elementwise(step.expr, tuple(args), step.label), tuple(operands))
    except ValueError as e:
        raise NoMatch(str(e)) from e


def _as_select(view: GraphView, step: AddTerm, dtype: str) -> Select | None:
    """score + Where(keep, 0, fill) is Where(keep, score, fill) when the fill swallows any score."""
    node = view.producer(step.value, "Where") if isinstance(step.value, ir.Value) else None
    if node is None or node.inputs[0] is None:
        return None
    for zero, fill, inverted in ((node.inputs[1], node.inputs[2], False), (node.inputs[2], node.inputs[1], True)):
        z = _uniform(view, zero) if zero is not None else None
        f = _uniform(view, fill) if fill is not None else None
        if z == 0.0 and f is not None and step.factor > 0 and _swallows(f * step.factor, dtype):
            return Select(node.inputs[0], inverted, f * step.factor)
    return None


def _swallows(fill: float, dtype: str) -> bool:
    return fill == -math.inf or (fill <= _SWALLOWS and dtype != "f16")


def _constant_float(array: npt.NDArray[np.float64], shape: tuple[Dim, ...], dtype: str) -> list[Term] | None:
    """A constant of zeros and one fill is a boolean mask; None when it is anything else or no index term describes it."""
    low = float(array.min())
    if not _swallows(low, dtype) or not bool(((array == 0) | (array == low)).all()):
        return None
    return _constant_bool(array == 0, low, shape)


def _constant_bool(keep: Bool, fill: float, shape: tuple[Dim, ...]) -> list[Term] | None:
    """Index terms of a constant mask, [] when it keeps everything, None when it has no such form."""
    if keep.all():
        return []
    sq, skv = shape[-2:]
    if not isinstance(sq, int) or not isinstance(skv, int) or keep.shape[-2:] != (sq, skv):
        return None
    flat = keep.reshape(-1, sq, skv)
    if not (flat == flat[:1]).all():
        return None
    rel = np.arange(skv)[None, :] - np.arange(sq)[:, None]
    kept = rel[flat[0]]
    if kept.size == 0:
        return None
    lo, hi = int(kept.min()), int(kept.max())
    if not bool((flat[0] == ((rel >= lo) & (rel <= hi))).all()):
        return None
    if lo <= -(sq - 1):
        return [Term(Causal(hi, fill))]
    return [Term(SlidingWindow(left=-lo, right=None if hi >= skv - 1 else hi, fill=fill))]


def _bool_terms(
    view: GraphView, keep: Expr, inverted: bool, fill: float, shape: tuple[Dim, ...], dtype: str
) -> list[Term]:
    if math.isfinite(fill) and fill > -1e4:
        raise NoMatch(f"masked scores become {fill:g}, which is not low enough to be a mask", _node(keep))
    huge = _swallows(fill, dtype) or dtype == "f16"
    if isinstance(keep, ir.Value):
        if not inverted:
            both = view.producer(keep, "And")
            if both is not None and all(i is not None for i in both.inputs):
                a, b = both.inputs
                assert a is not None and b is not None
                return merge_bounds([t for x in (a, b) for t in _bool_terms(view, x, False, fill, shape, dtype)])
        negated = view.producer(keep, "Not")
        if negated is not None and negated.inputs[0] is not None:
            inner = _bool_terms(view, negated.inputs[0], not inverted, fill, shape, dtype)
            if not inverted and any(isinstance(x, Call) for t in inner for x in t.operands):
                operand, dims = _fit(view, keep, shape)  # nothing gained: the negated tensor is there already
                return [Term(BoolMask(dims, fill), (operand,))]
            return inner
        if inverted:
            either = view.producer(keep, "Or")
            if either is not None and all(i is not None for i in either.inputs):
                a, b = either.inputs
                assert a is not None and b is not None
                return merge_bounds([t for x in (a, b) for t in _bool_terms(view, x, True, fill, shape, dtype)])
        array = view.const(keep)
        if array is not None and (array.astype(bool) ^ inverted).all():
            return []  # keeps everything
        if array is not None:
            found = _constant_bool(array.astype(bool) ^ inverted, fill, shape)
            if found is not None and huge:
                return found
        spread = view.producer(keep, "Expand")
        if spread is not None and spread.inputs[0] is not None and _expand_is_free(view, spread, shape):
            return _bool_terms(view, spread.inputs[0], inverted, fill, shape, dtype)
        index = index_terms(view, keep, inverted, fill, shape)
        if index is not None and huge:
            return index
    operand, dims = _fit(view, Call("Not", (keep,)) if inverted else keep, shape)
    return [Term(BoolMask(dims, fill), (operand,))]


def _expand_is_free(view: GraphView, node: ir.Node, shape: tuple[Dim, ...]) -> bool:
    """Whether the score's own broadcast does what this Expand does."""
    dims = view.shape(node.outputs[0])
    return (
        dims is not None
        and len(dims) <= len(shape)
        and all(have in (1, want) for have, want in zip(reversed(dims), reversed(shape), strict=False))
    )


def _fit(view: GraphView, value: Expr, shape: tuple[Dim, ...]) -> tuple[Expr, tuple[Dim, ...]]:
    """The mask as an operand whose dims are 1 or provably those of the score, expanded where that is not known."""
    source = value.args[0] if isinstance(value, Call) and value.shape is None else value
    dims = (
        source.shape
        if isinstance(source, Call)
        else view.shape(source)
        if isinstance(source, ir.Value)
        else np.shape(source.array)
        if isinstance(source, Const)
        else None
    )
    if dims is None:
        raise NoMatch("the rank of a mask is unknown", _node(value))
    if len(dims) > len(shape):
        extra = dims[: len(dims) - len(shape)]
        if any(d != 1 for d in extra):
            raise NoMatch("a mask has more dims than the score", _node(value))
        value = Call("Squeeze", (value, Const(np.arange(len(extra), dtype=np.int64))))
        dims = dims[len(extra) :]
    fitted: list[Dim] = []
    for have, want in zip(dims, shape[len(shape) - len(dims) :], strict=True):
        if have is None or have not in (1, want):
            raise NoMatch(
                f"a mask of shape {list(dims)} does not provably broadcast to the score's {list(shape)}", _node(value)
            )
        fitted.append(have)
    return value, tuple(fitted)


_TYPES: dict[ir.DataType, ElementType] = {
    **DTYPES,
    ir.DataType.BOOL: "bool",
    ir.DataType.INT32: "i32",
    ir.DataType.INT64: "i64",
}


def _any_element_type(value: Expr) -> ElementType | None:
    """The element type of an operand: that of the value itself, of a constant, or of what shape ops were applied to."""
    while isinstance(value, Call) and value.op in _SHAPE_OPS:
        value = value.args[0]
    if isinstance(value, Call):
        return None
    dtype = ir.DataType.from_numpy(value.array.dtype) if isinstance(value, Const) else value.dtype
    return _TYPES.get(dtype) if dtype is not None else None


_SHAPE_OPS = ("Unsqueeze", "Squeeze", "Reshape", "Transpose", "Expand", "Slice", "Identity")


def _element_type(value: Expr) -> DType | None:
    while isinstance(value, Call) and value.op in _SHAPE_OPS:
        value = value.args[0]
    if isinstance(value, ir.Value) and value.dtype is not None:
        return DTYPES.get(value.dtype)
    return None


def _node(value: Expr) -> ir.Node | None:
    return value.producer() if isinstance(value, ir.Value) else None
