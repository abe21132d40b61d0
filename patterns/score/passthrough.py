"""Score and after-softmax layers that leave values as they are: float casts, Identity, Dropout that drops nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import FLOATS, GraphView
from onnx_fa.match import After, Anchor, NoMatch, Nothing, Peel

_BITS: dict[ir.DataType | None, int] = {
    ir.DataType.FLOAT16: 16,
    ir.DataType.BFLOAT16: 16,
    ir.DataType.FLOAT: 32,
    ir.DataType.DOUBLE: 64,
}


def _bits(value: ir.Value) -> int:
    return _BITS.get(value.dtype, 0)


def is_noop(view: GraphView, node: ir.Node) -> bool:
    """Whether a node gives the values that it is given, up to the rounding of a float type."""
    if op_of(node) == "Cast":
        # Attention is computed with f32 accumulation whatever the operands' type, so a cast between float types adds nothing.
        source = node.inputs[0]
        return source is not None and source.dtype in FLOATS and node.outputs[0].dtype in FLOATS
    if op_of(node) == "Dropout":
        mask_unused = len(node.outputs) < 2 or not list(node.outputs[1].uses())
        _, ratio, training = (*node.inputs, None, None)[:3]
        # Libraries that call torch's functional dropout with a probability of 0 leave it in training.
        idle = training is None or 0.0 in (view.scalar(training), None if ratio is None else view.scalar(ratio))
        return mask_unused and idle
    return op_of(node) == "Identity"


def peel_noop(view: GraphView, value: ir.Value) -> Iterator[Peel]:
    """A node that gives the scores that it is given, unless it narrows the type that they were computed in."""
    node = value.producer()
    if node is None or node.inputs[:1] in ((), (None,)) or not is_noop(view, node):
        return
    inner = node.inputs[0]
    assert inner is not None
    narrow = value.dtype == ir.DataType.FLOAT16 and inner.dtype == ir.DataType.BFLOAT16
    if op_of(node) == "Cast" and (narrow or _bits(value) < _bits(inner)) and not _is_of_type(view, inner, value.dtype):
        return  # a large score would become infinite there
    yield Peel(Nothing(), inner)


def _is_of_type(view: GraphView, value: ir.Value, dtype: ir.DataType | None) -> bool:
    """Whether a value in f32 is that of one op on numbers of a narrower type, as converters to f16 write the ops that they leave in
    f32: cast down, it is what the op makes in that type."""
    node = view.producer(value, "Add", "Sub", "Mul", "Div")
    if node is None or value.dtype != ir.DataType.FLOAT:
        return False
    return all((cast := view.producer(x, "Cast")) is not None and _source_type(cast) == dtype for x in node.inputs)


def _source_type(cast: ir.Node) -> ir.DataType | None:
    return None if cast.inputs[0] is None else cast.inputs[0].dtype


def peel_added_zero(view: GraphView, value: ir.Value) -> Iterator[Peel]:
    """Zeros that are added to the scores, as torch.baddbmm with `beta=0` is exported."""
    node = view.producer(value, "Add")
    if node is None:
        return
    left, right = node.inputs
    for inner, other in ((left, right), (right, left)):
        if inner is not None and other is not None and _number_throughout(view, other) == 0.0:
            yield Peel(Nothing(), inner)


def _number_throughout(view: GraphView, value: ir.Value | None) -> float | None:
    """The one number that a value is filled with: a constant, an Expand of such, or a product of such. None where none is known."""
    if value is None:
        return None
    number = view.scalar(value)
    if number is not None:
        return number
    expand = view.producer(value, "Expand")
    if expand is not None:
        return _number_throughout(view, expand.inputs[0])
    product = view.producer(value, "Mul")
    if product is None:
        return None
    factors = [_number_throughout(view, x) for x in product.inputs]
    return None if None in factors else math.prod(x for x in factors if x is not None)


def skip_noop(view: GraphView, anchor: Anchor, value: ir.Value, users: Sequence[ir.Node]) -> After | None:
    """A node that gives the probabilities that it is given. Raises NoMatch where a narrower type in between has rounded them."""
    if len(users) != 1 or not is_noop(view, users[0]):
        return None
    out = users[0].outputs[0]
    if op_of(users[0]) == "Cast" and _bits(value) < min(_bits(out), _bits(anchor.prob)):
        # In a product of that narrow type this is the product's own rounding; in a wider one it would be lost.
        raise NoMatch(f"the probabilities are rounded to {value.dtype} and widened again", users[0])
    if op_of(users[0]) == "Cast" and (value.dtype, out.dtype) == (ir.DataType.BFLOAT16, ir.DataType.FLOAT16):
        # Three bits of every probability are lost that V's type has, whatever type the softmax was in.
        raise NoMatch("the probabilities are rounded to BFLOAT16 before they multiply V in FLOAT16", users[0])
    return After(out)


def skip_added_zero(view: GraphView, anchor: Anchor, value: ir.Value, users: Sequence[ir.Node]) -> After | None:
    """Zeros that are added to the probabilities: tf2onnx writes Where(m, p, 0) as p * m + 0 * !m. Raises NoMatch for
    zeros that may have more dims than the probabilities."""
    if len(users) != 1 or op_of(users[0]) != "Add":
        return None
    left, right = users[0].inputs
    other = right if left is value else left
    have, want = (None if x is None else view.shape(x) for x in (other, value))
    if other is None or have is None or want is None or not is_zero(view, other):
        return None
    pairs = zip(reversed(have), reversed(want), strict=False)
    fits = len(have) <= len(want) and all(h == 1 or view.takes_in(w, h) for h, w in pairs)
    if not fits:
        raise NoMatch(
            f"zeros of shape {list(have)} that are added to the probabilities may widen {list(want)}", users[0]
        )
    return After(users[0].outputs[0])


def is_filled_with_zero(view: GraphView, value: ir.Value) -> bool:
    """Whether a value is zero throughout, also one of a shape that only a run knows, as `zeros_like` is written; what it is put
    beside must be of that shape."""
    made = view.producer(value, "ConstantOfShape", "Expand", "Cast", "Identity")
    if made is None:
        return is_zero(view, value)
    if op_of(made) == "ConstantOfShape":
        filled = made.attributes.get("value")
        return filled is None or not filled.as_tensor().numpy().any()
    return made.inputs[0] is not None and is_filled_with_zero(view, made.inputs[0])


def is_zero(view: GraphView, value: ir.Value) -> bool:
    """Whether a value is zero throughout: a constant, or zero times a condition as a number, which is no infinity."""
    known = view.const(value)
    if known is not None:
        return not known.any()
    product = view.producer(value, "Mul")
    if product is None:
        return False
    for zero, factor in (product.inputs, product.inputs[::-1]):
        number = None if zero is None else view.const(zero)
        cast = None if factor is None else view.producer(factor, "Cast")
        condition = None if cast is None else cast.inputs[0]
        if number is not None and not number.any() and condition is not None and condition.dtype == ir.DataType.BOOL:
            return True
    return False
