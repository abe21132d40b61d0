"""Probabilities that masks set to zero behind the softmax: what of that the masks on the scores already say."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.axes import LAST_AXIS
from onnx_fa.graph.dims import Shape
from onnx_fa.graph.ops import op_of
from onnx_fa.graph.twins import is_twin
from onnx_fa.graph.view import GraphView
from onnx_fa.match.added_numbers import are_numbers
from onnx_fa.match.exprs import Call, Const, Expr
from onnx_fa.match.misses import NoMatch
from onnx_fa.match.types import AddTerm, Anchor, Behind, Guard, Map, Nothing, Patterns, Scale, Select, Step
from onnx_fa.match.walk_down import keeps_rows
from onnx_fa.match.walk_up import Reading
from onnx_fa.spec.dtypes import F16_MAX, F32_MAX
from onnx_fa.spec.terms import Dim


def apply_drops(
    view: GraphView, patterns: Patterns, read: Reading, steps: Sequence[Step], behind: Behind, anchor: Anchor
) -> tuple[list[Step], Guard]:
    """The steps and the guard once probabilities of masked keys are also set to zero behind the softmax. `read` are the score's
    steps and its product before others that are added to it were taken into that.

    Behind the same masks on the score that is exact: a masked key's probability is zero already, unless its whole row is
    masked, and then every probability of the row becomes zero. Numbers that are added to the scores in front of the masks, as
    relative positions are, mask no row. Raises NoMatch where the score has another mask.
    """
    if not behind.drops:
        return list(steps), behind.guard
    node = behind.weighting.product.node
    masks = [i for i, s in enumerate(steps) if isinstance(s, Select)]
    if not masks or not mask_no_row(view, patterns, read):
        raise NoMatch("probabilities are set to zero by a mask that the score does not have as its only mask", node)
    # Behind a softcap, a bias or the like the fill would not reach the softmax as it is.
    between = [s for s in steps[masks[0] + 1 :] if not isinstance(s, Select)]
    if any(isinstance(s, (AddTerm, Map)) for s in between):
        raise NoMatch("probabilities are set to zero by a mask that the score does not have as its only mask", node)
    own = [s for s in steps if isinstance(s, Select)]
    if not (_is_among(view, own, behind.drops) and _is_among(view, behind.drops, own)):
        raise NoMatch("probabilities are set to zero by a mask that the score does not have as its only mask", node)
    if any(not isinstance(s, (Scale, Nothing)) for s in between):
        raise NoMatch("a score function stands between the mask and the softmax", node)
    new = list(steps)
    for i in masks:
        new[i] = _sunk(new[i], steps[i + 1 :], anchor, node)
    return new, behind.guard or "zero"


def _is_among(view: GraphView, some: Sequence[Select], others: Sequence[Select]) -> bool:
    """Whether each of the masks is one of the others."""
    return all(any(_is_same(view, a, b) for b in others) for a in some)


def _is_same(view: GraphView, a: Select, b: Select) -> bool:
    (x, inverted), (y, other) = _condition(view, a), _condition(view, b)
    if not isinstance(x, ir.Value) or not isinstance(y, ir.Value):
        return x == y and inverted == other
    return inverted == other and is_twin(view, x, y)


def _condition(view: GraphView, mask: Select) -> tuple[Expr, bool]:
    """What a mask asks, without the negations in front of it, and whether it keeps where that is false."""
    keep, inverted = mask.keep, mask.inverted
    while isinstance(keep, ir.Value):
        node = view.producer(keep, "Not", "Cast", "Identity")
        inner = None if node is None else node.inputs[0]
        if node is None or inner is None or inner.dtype != ir.DataType.BOOL or keep.dtype != ir.DataType.BOOL:
            break
        inverted ^= op_of(node) == "Not"
        keep = inner
    return keep, inverted


def mask_no_row(view: GraphView, patterns: Patterns, read: Reading) -> bool:
    """Whether what is done to a product in front of the first mask leaves every row a score that is not -inf, but for overflows and
    infinite operands."""
    steps, product = read
    before = next((i for i, s in enumerate(steps) if isinstance(s, Select)), len(steps))
    if not any(isinstance(s, (AddTerm, Map)) for s in steps[:before]):
        return True
    # Of two products that are added, either may be read as that of Q and K.
    whole = are_numbers(view, patterns.product, product.output)
    return whole and all(_adds_numbers(view, patterns, s) for s in steps[:before])


def _adds_numbers(view: GraphView, patterns: Patterns, step: Step) -> bool:
    if isinstance(step, AddTerm):
        return math.isfinite(step.factor) and are_numbers(view, patterns.product, step.value)
    return not isinstance(step, Map)


def _sunk(mask: Step, after: Sequence[Step], anchor: Anchor, node: ir.Node) -> Select:
    """The mask with the fill -inf. Raises NoMatch where its own, behind the steps `after` it, may leave masked keys something."""
    assert isinstance(mask, Select)
    factor = math.prod(s.factor for s in after if isinstance(s, Scale))
    fill = mask.fill * factor if factor else 0.0
    half = anchor.score.dtype == ir.DataType.FLOAT16
    if not fill <= (-6e4 if half else -1e37):
        raise NoMatch(f"masked scores become {fill:g}, so a masked key may have a probability", node)
    if anchor.row_sum is not None and not anchor.floored and fill < (-F16_MAX if half else -F32_MAX):
        raise NoMatch(
            "a row without keys is zero before the matmul with V, and its sum, which divides the product, is NaN", node
        )
    return replace(mask, fill=math.copysign(math.inf, mask.fill))  # -inf once the factors have been applied


def drop_rows(
    view: GraphView, steps: Sequence[Step], behind: Behind, anchor: Anchor
) -> tuple[Callable[[Expr], Expr], ...] | None:
    """What zeros of masked probabilities do to the output, behind masks on the score that are no others' equal: None where they do
    more, or it is not known.

    Where -inf masks a key its probability is zero, or the row is NaN. Setting the key's to zero then leaves the NaN of all keys
    that the mask keeps. It so makes a difference to rows alone of which the mask keeps no key, whatever else masks the scores:
    these become zero. Of masks with one value per key, for all queries, these rows are told from the mask itself.
    """
    if anchor.row_sum is not None or anchor.unscaled or anchor.weight is not None or anchor.axes != LAST_AXIS:
        return None
    if behind.wrap or behind.shown or behind.keys or behind.weights or behind.rounding or view.opset < 13:
        return None
    if not keeps_rows(behind.weighting):
        return None
    for drop in behind.drops:
        at = next((i for i, s in enumerate(steps) if isinstance(s, Select) and _is_same(view, s, drop)), None)
        shape = _dims(view, drop.keep)
        if at is None or not shape or (len(shape) > 1 and shape[-2] != 1) or not _stays_lost(steps[at:]):
            return None
    return tuple(_where_any(view, drop) for drop in behind.drops)


def _stays_lost(steps: Sequence[Step]) -> bool:
    """Whether a score that the first of these masks stays -inf, or becomes NaN, behind all of them."""
    for step in steps:
        if isinstance(step, Select):
            if step.fill != -math.inf:
                return False
        elif not isinstance(step, (Nothing, AddTerm)) and not (
            isinstance(step, Scale) and 0.0 < step.factor < math.inf
        ):
            return False
    return True


def _where_any(view: GraphView, drop: Select) -> Callable[[Expr], Expr]:
    """A row where the mask keeps one of its keys, else zero."""
    number = Call("Cast", (_kept(view, drop),), (("to", int(ir.DataType.FLOAT)),))
    kept = Call("ReduceSum", (number, Const(np.asarray([-1], np.int64))), (("keepdims", 1),))
    some = Call("Greater", (kept, Const(np.asarray(0.0, np.float32))))
    return lambda row: Call("Where", (some, row, Const(np.asarray(0.0, np.float32))))


def masks_by_numbers(view: GraphView, patterns: Patterns, read: Reading) -> bool:
    """Whether no row of scores is masked by -inf: every mask fills with a finite number, and what is added is numbers."""
    steps, _ = read
    fills = all(math.isfinite(s.fill) for s in steps if isinstance(s, Select))
    added = all(_adds_numbers(view, patterns, s) for s in steps if not isinstance(s, Select))
    return fills and added and mask_no_row(view, patterns, read)


def kept_by(view: GraphView, drops: Sequence[Select]) -> Expr:
    """The condition on which probabilities stay, behind masks that set some to zero. Raises NoMatch where these may not be put
    together."""
    whole, *others = dict.fromkeys(drops)
    kept, dims = _kept(view, whole), _dims(view, whole.keep)
    for other in others:
        dims = _broadcast(dims, _dims(view, other.keep))
        kept = Call("And", (kept, _kept(view, other)), shape=dims)
    return kept


def _kept(view: GraphView, drop: Select) -> Expr:
    return Call("Not", (drop.keep,), shape=_dims(view, drop.keep)) if drop.inverted else drop.keep


def _dims(view: GraphView, value: Expr) -> Shape | None:
    return view.shape(value) if isinstance(value, ir.Value) else None


def _broadcast(a: Shape | None, b: Shape | None) -> Shape:
    if a is None or b is None:
        raise NoMatch("probabilities are set to zero by masks of unknown shapes")
    rank = max(len(a), len(b))
    dims: list[Dim | None] = []
    for x, y in zip((*(1,) * (rank - len(a)), *a), (*(1,) * (rank - len(b)), *b), strict=True):
        if x != y and 1 not in (x, y):
            raise NoMatch("probabilities are set to zero by masks of which it is not known how they broadcast")
        dims.append(y if x == 1 else x)
    return tuple(dims)
