"""The original as it would be if it made of numbers that are not finite what a rewritten model makes of them.

docs/developer/architecture.md says what they are. Every reading changes one op where its operands are NaN, infinite or lost, and
nowhere else: of ordinary numbers it makes what the original makes, so that the comparison loses nothing by it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import onnx
from onnx import TensorProto as T

from .changes import LARGEST, MOVES, PRODUCTS, ROUNDS, SOFTMAX, Change, Graph, asks_for_nan
from .inputs import Array, Engine, Inputs
from .overflow import doubled, finite, overflowed
from .sums import divides_anew

LEAST_FILL = -9983.0
"""What is added to a score that is masked is less: -1e4 in bf16 is -9984."""


def hides(g: Graph, node: onnx.NodeProto, own: str, kind: int) -> str | None:
    """A mask that is added to a score hides its NaN or infinity."""
    if node.op_type not in ("Add", "Sub"):
        return None
    a, b = node.input
    if node.op_type == "Sub":
        b = g.op("Neg", b)
    for score, mask in ((a, b), (b, a)):
        lost = g.op("Or", g.is_nan(score), g.op("Greater", g.f32(score), g.number(LARGEST)))
        low = g.op("Less", g.f32(mask), g.number(LEAST_FILL))
        own = g.op("Where", g.op("And", lost, low), mask, own)
    return own


def shows(g: Graph, node: onnx.NodeProto, own: str, kind: int) -> str | None:
    """The Attention op only knows added masks, which do not hide a NaN score as a Where does."""
    if node.op_type != "Where" or asks_for_nan(g, node.input[0]) or not _is_score(g, node.output[0]):
        return None
    lost = g.op("Or", *(g.is_nan(x) for x in node.input[1:]))
    return g.op("Where", lost, g.number(np.nan, kind), own)


def passes_nan(g: Graph, node: onnx.NodeProto, own: str, kind: int) -> str | None:
    """A mask behind the softmax that is a weight leaves the NaN of a row, where the original makes zeros of it."""
    if node.op_type != "Where":
        return None
    condition, yes, no = node.input
    for p, zero in ((yes, no), (no, yes)):
        fill = g.constants.get(zero)
        if fill is not None and not fill.any() and not asks_for_nan(g, condition) and _is_weight(g, p):
            return g.op("Where", g.is_nan(p), p, own)
    return None


def _is_weight(g: Graph, value: str) -> bool:
    """Whether the value is a softmax, in whatever spelling, or what is made of it by anything but products."""
    stack, seen = [value], set[str]()
    while stack:
        node = g.made.get(stack.pop())
        if node is None or node.op_type in PRODUCTS:
            continue
        if node.op_type in SOFTMAX:
            return True
        stack += [i for i in node.input if i not in seen]
        seen.update(node.input)
    return False


def hides_values(g: Graph, node: onnx.NodeProto, own: str, kind: int) -> str | None:
    """A probability of zero takes no value, where the original multiplies it by NaN or infinity."""
    if node.op_type not in ("MatMul", "Einsum", "Gemm") or len(node.input) < 2:
        return None
    for at in (0, 1):
        if _is_weight(g, node.input[at]):
            result, zeros, _ = _without_zeros(g, node, at, node.input[at])
            own = g.op("Where", zeros, g.op("Cast", result, to=kind), own)
    return own


def _without_zeros(g: Graph, node: onnx.NodeProto, at: int, weight: str) -> tuple[str, str, str]:
    """A product with `weight` for its operand `at` whose zeros take no value; where there are such that hide NaN or infinity, and
    where there is NaN or infinity at all."""
    p, v, sign = g.f32(weight), g.f32(node.input[1 - at]), 1.0

    def ordered(x: str, y: str) -> tuple[str, str]:
        return (x, y) if at == 0 else (y, x)

    def holds(x: str, y: str) -> str:
        made = g.again(node, *ordered(g.f32(x), g.f32(y)))
        alpha = next((a for a in g.nodes[-1].attribute if a.name == "alpha"), None)
        if alpha is not None:
            alpha.f = 1.0
        return g.op("Greater", made, g.number(0.5))

    if node.op_type == "Gemm":
        sign = next((a.f for a in node.attribute if a.name == "alpha"), sign)
    some = g.op("Not", g.op("Equal", p, g.number(0.0)))
    nan, infinite = g.op("IsNaN", v), g.is_infinite(v)
    bad = g.op("Or", nan, infinite)
    result = g.again(node, *ordered(p, g.op("Where", bad, g.number(0.0), v)), *(g.f32(x) for x in node.input[2:]))
    above, below = (g.op(kind, p, g.number(0.0)) for kind in ("Greater", "Less"))
    up, down = (g.op("And", infinite, g.op(kind, v, g.number(0.0))) for kind in ("Greater", "Less"))
    for cells, opposite, more in ((up, down, np.inf), (down, up, -np.inf), (nan, nan, np.nan)):
        found = g.op("Or", holds(above, cells), holds(below, opposite))
        result = g.op("Add", result, g.op("Where", found, g.number(more * sign), g.number(0.0)))
    none = g.op("Not", some)
    return result, holds(none, bad), holds(g.op("Or", some, none), bad)


def vanishes(g: Graph, node: onnx.NodeProto, own: str, kind: int) -> str | None:
    """A probability that is too small for f16, where it is computed or cast, and so zero, is more than that where a rewritten model
    keeps it in f32."""
    if node.op_type not in ("Softmax", "Cast") or kind != T.FLOAT16:
        return None
    if node.op_type == "Cast" and not _is_weight(g, node.input[0]):
        return None
    least = float(np.finfo(np.float16).smallest_subnormal)
    p = g.f32(node.input[0])
    p = p if node.op_type == "Cast" else g.again(node, p)
    gone = g.op("And", g.op("Greater", p, g.number(0.0)), g.op("Less", p, g.number(least)))
    return g.op("Where", gone, g.number(least, kind), own)


def splits_difference(g: Graph, node: onnx.NodeProto, own: str, kind: int, *, hides: bool = True) -> str | None:
    """Of a sum or difference of probabilities each has a product of its own, so that a value that is infinite, which the original
    multiplies by the difference, gives a difference of infinities."""
    if node.op_type not in ("MatMul", "Einsum", "Gemm") or len(node.input) != 2:
        return None
    for at in (0, 1):
        parts = _parts(g, node.input[at])
        if len(parts) < 2:
            continue
        products = []
        for _, x in parts:
            product, _, shows = _without_zeros(g, node, at, x)
            if not hides:
                product = g.f32(g.again(node, *((x, node.input[1]) if at == 0 else (node.input[0], x))))
            products.append(product)
        result = g.op("Neg", products[0]) if parts[0][0] else products[0]
        for (negative, _), product in zip(parts[1:], products[1:], strict=True):
            result = g.op("Sub" if negative else "Add", result, product)
        return g.op("Where", shows, g.op("Cast", result, to=kind), own)
    return None


def _parts(g: Graph, value: str) -> list[tuple[bool, str]]:
    """The weights whose sum a value is, each with whether it is subtracted, also behind ops that are linear in it; none where the
    value is no sum of weights."""
    node = g.producer(value, "Add", "Sub", "Mul", "Div", *MOVES, *ROUNDS)
    if node is None:
        return []
    if node.op_type in ("Add", "Sub"):
        terms = [_parts(g, x) or ([(False, x)] if _is_weight(g, x) else []) for x in node.input]
        if not all(terms):
            return []
        return terms[0] + [(negative != (node.op_type == "Sub"), x) for negative, x in terms[1]]
    for at in range(2 if node.op_type == "Mul" else 1):
        found = _parts(g, node.input[at])
        if found:
            others = list(node.input)
            return [(negative, g.again(node, *others[:at], x, *others[at + 1 :])) for negative, x in found]
    return []


def splits_and_shows(g: Graph, node: onnx.NodeProto, own: str, kind: int) -> str | None:
    """The same where a zero of one of the two, of which the difference is none, shows its value."""
    return splits_difference(g, node, own, kind, hides=False)


def other_zero(g: Graph, node: onnx.NodeProto, own: str, kind: int) -> str | None:
    """A zero has no sign, of which a division by it makes one of infinity."""
    if node.op_type not in ("Div", "Reciprocal"):
        return None
    is_zero = g.op("Equal", g.f32(node.input[-1]), g.number(0.0))
    return g.op("Where", is_zero, g.op("Neg", own), own)


def infinite_factor(g: Graph, node: onnx.NodeProto, own: str, kind: int) -> str | None:
    """An infinite factor times what may be zero is NaN."""
    if node.op_type != "Mul":
        return None
    infinite = g.op("Or", *(g.is_infinite(x) for x in node.input))
    return g.op("Where", infinite, g.number(np.nan, kind), own)


def moved_factor(g: Graph, node: onnx.NodeProto, own: str, kind: int) -> str | None:
    """An infinite factor of a row makes infinities behind the product with V, and in front of it differences of them."""
    scaled = g.producer(node.input[0], "Mul") if node.op_type == "MatMul" else None
    if scaled is None:
        return None
    for p, factor in (scaled.input, reversed(scaled.input)):
        if _is_weight(g, p) and _is_of_rows(g, factor):
            moved = g.op("Mul", g.again(node, p, node.input[1]), factor)
            return g.op("Where", g.op("And", g.is_nan(own), g.is_infinite(factor)), moved, own)
    return None


def _is_of_rows(g: Graph, value: str) -> bool:
    """Whether an input or a constant is the same for all keys."""
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in g.model.graph.input}
    shapes |= {name: list(x.shape) for name, x in g.constants.items()}
    return shapes.get(value, [0])[-1:] in ([], [1])


def quantises_nan(g: Graph, node: onnx.NodeProto, own: str, kind: int) -> str | None:
    """ONNX does not say which integer QuantizeLinear makes of NaN: in a score, which a rewritten model rounds by other ops, it
    stays NaN. What else is rounded keeps its QuantizeLinear."""
    made = g.producer(node.input[0], "QuantizeLinear") if node.op_type == "DequantizeLinear" else None
    if made is None or not _is_score(g, node.output[0]):
        return None
    return g.op("Where", g.is_nan(made.input[0]), g.number(np.nan, kind), own)


def _is_score(g: Graph, value: str) -> bool:
    """Whether a softmax, in whatever spelling, is taken of the value, or of what is made of it by anything but products."""
    found = {value}
    for node in g.model.graph.node:
        if found.intersection(node.input):
            if node.op_type in SOFTMAX:
                return True
            if node.op_type not in PRODUCTS:
                found.update(node.output)
    return False


def infinite_sum(g: Graph, node: onnx.NodeProto, own: str, kind: int) -> str | None:
    """A row with an infinite score is NaN, where x - log-sum-exp leaves -inf for its other keys, and so zeros."""
    less = g.producer(node.input[0], "Sub") if node.op_type == "Exp" else None
    if less is None:
        return None
    infinite = g.op("Greater", g.f32(less.input[1]), g.number(LARGEST))
    return g.op("Where", infinite, g.number(np.nan, kind), own)


def maximum_of_nan(g: Graph, node: onnx.NodeProto, own: str, kind: int) -> str | None:
    """onnxruntime's ReduceMax of NaN and -inf is either, depending on their order: here it is NaN."""
    if node.op_type != "ReduceMax":
        return None
    reduced = g.again(node, g.f32(g.is_nan(node.input[0])), *node.input[1:])
    some = g.op("Greater", reduced, g.number(0.5))
    return g.op("Where", some, g.number(np.nan, kind), own)


def computed_in_f32(g: Graph, node: onnx.NodeProto, own: str, kind: int) -> str | None:
    """From opset 18 on, onnxruntime has no kernel for f16 of these, and takes exponentials without the maximum, which overflow."""
    kinds = {"ReduceLogSumExp": (T.FLOAT16, T.BFLOAT16), "Softplus": (T.FLOAT16,)}.get(node.op_type, ())
    if kind not in kinds:
        return None
    wide = g.op("Cast", g.again(node, g.f32(node.input[0]), *node.input[1:]), to=kind)
    return wide if node.op_type == "ReduceLogSumExp" else g.op("Where", g.is_infinite(own), wide, own)


CHANGES: tuple[Change, ...] = (
    hides,
    passes_nan,
    hides_values,
    splits_difference,
    splits_and_shows,
    other_zero,
    infinite_factor,
    moved_factor,
    quantises_nan,
    infinite_sum,
    maximum_of_nan,
    divides_anew,
)


def _every(g: Graph, node: onnx.NodeProto, own: str, kind: int) -> str | None:
    """All changes at once, but those that only say what else there might be: a node is changed by one of them at most."""
    for change in (hides, splits_difference, hides_values, quantises_nan, infinite_sum, maximum_of_nan, divides_anew):
        at = len(g.nodes)
        result = change(g, node, own, kind)
        if result is not None:
            return result
        del g.nodes[at:]
    return None


def readings(model: onnx.ModelProto) -> Iterator[onnx.ModelProto]:
    """The model with each change that says something about it, and with all of them."""
    for change in (*CHANGES, _every):
        made = Graph(model).changed(change)
        if made is not None:
            yield made


def as_defined(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with what onnxruntime does not compute as ONNX defines it computed in f32."""
    return Graph(model).changed(computed_in_f32) or model


def results_of_readings(
    model: onnx.ModelProto, old: Engine, inputs: Inputs, index: int, more: tuple[Change, ...] = ()
) -> list[Array]:
    """Output `index` of each reading of the original, those by `more` changes too, in f64."""
    others, made = doubled(model, old, inputs, index), list(readings(model))
    if others:
        # In f16 onnxruntime rounds less where fewer nodes are between two ops, so that this one is no reading of ordinary numbers.
        more = (*more, overflowed)
    if not all(finite(x) for x in inputs.values()):
        more = (*more, vanishes)
    made += [m for m in (Graph(model).changed(change) for change in more) if m is not None]
    for changed in made:
        # A reading that no engine runs, for want of a kernel, excuses nothing.
        with contextlib.suppress(Exception):
            others.append(Engine(changed, by_definition=old.by_definition).run(inputs)[index])
    return [result.astype(np.float64) for result in others]


def nearest(others: Sequence[Array], want: Array, have: Array) -> Array:
    """The original's result `want` or one of `others`, whichever is the nearest to `have`, number for number."""
    for other in others:
        if other.shape != want.shape:
            continue
        with np.errstate(invalid="ignore"):
            same = (want == have) | (np.isnan(want) & np.isnan(have))
            right = (other == have) | (np.isnan(other) & np.isnan(have))
            nearer = right | (np.abs(other - have) < np.abs(want - have)) | (np.isnan(want) & ~np.isnan(other))
        want = np.where(~same & nearer, other, want)
    return want
