"""Keys and values in parts (a cache and what is new): scores concatenated along the keys, probabilities split again.

softmax(concat(q @ k1^T, q @ k2^T)) split at some key, times v1 and v2 and summed, is one attention over concat(k1, k2) and
concat(v1, v2), wherever either is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import onnx_ir as ir

from onnx_fa.graph_view import GraphView, attr_int
from onnx_fa.match import Call, Cap, Expr, Nothing, Product, Scale, Step
from onnx_fa.spec import Dim
from onnx_fa.symbolic import added

Reading = tuple[tuple[Step, ...], Product]


def joined_score(view: GraphView, value: ir.Value, read: Callable[[ir.Value], Sequence[Reading]]) -> Reading | None:
    """The reading of scores concatenated along their last axis, all of the same queries and scaled alike."""
    node = view.producer(value, "Concat")
    if node is None or len(node.inputs) < 2 or not view.last_axis(node, value, attr_int(node, "axis", 0)):
        return None
    parts: list[Reading] = []
    for i in node.inputs:
        found = read(i) if i is not None else ()
        if not found:
            return None
        parts.append(found[0])
    steps, first = parts[0]
    if any(not isinstance(s, (Scale, Cap, Nothing)) for s in steps):
        return None
    score = view.shape(value)
    same = all(tuple(_known(s)) == tuple(_known(steps)) for s, _ in parts)
    if not same or score is None or len(score) != len(first.out):
        return None
    letter = first.out[-1]
    for q in (0, 1):
        k = 1 - q
        alike = all(p.operands[q] is first.operands[q] for _, p in parts)
        if alike and letter in first.letters[k] and letter not in first.letters[q]:
            joined = _joined([p for _, p in parts], k, letter)
            return None if joined is None else (steps, joined)
    return None


def _known(steps: Sequence[Step]) -> list[Step]:
    return [s for s in steps if not isinstance(s, Nothing)]


def _joined(parts: Sequence[Product], side: int, letter: str) -> Product | None:
    """The product of the concatenated operands. None where they are not alike off the axis that is joined."""
    first = parts[0]
    if any((p.letters, p.out, p.factor) != (first.letters, first.out, first.factor) for p in parts):
        return None
    axis = first.letters[side].index(letter)
    shapes = [p.shapes[side] for p in parts]
    rests = [(*s[:axis], *s[axis + 1 :]) for s in shapes]
    if any(r != rests[0] or None in r for r in rests):
        return None
    length: Dim | None = 0
    for s in shapes:
        length = added(length, s[axis])
    shape = (*shapes[0][:axis], length, *shapes[0][axis + 1 :])
    value = Call("Concat", tuple(p.operands[side] for p in parts), (("axis", axis),))
    pair: tuple[Expr, Expr] = (first.operands[1 - side], value)
    dims = (first.shapes[1 - side], shape)
    if side == 0:
        pair, dims = (pair[1], pair[0]), (dims[1], dims[0])
    return replace(first, operands=pair, shapes=dims)


def joined_values(
    view: GraphView,
    prob: ir.Value,
    users: Sequence[ir.Node],
    product: Callable[[GraphView, ir.Value], Product | None],
) -> Product | None:
    """The product of the whole probabilities with V where they are split in two, multiplied and summed."""
    pieces = _pieces(view, prob, users)
    if pieces is None:
        return None
    products: list[Product] = []
    for piece in pieces:
        readers = view.users(piece)
        found = product(view, readers[0].outputs[0]) if len(readers) == 1 and not piece.is_graph_output() else None
        if found is None:
            return None
        products.append(found)
    sums = [view.users(p.output) for p in products]
    if any(len(s) != 1 or p.output.is_graph_output() for s, p in zip(sums, products, strict=True)):
        return None
    total = sums[0][0]
    if sums[1][0] is not total or view.producer(total.outputs[0], "Add") is None:
        return None
    sides = [[i for i in (0, 1) if p.operands[i] is piece] for p, piece in zip(products, pieces, strict=True)]
    if len(sides[0]) != 1 or sides[0] != sides[1]:
        return None
    side = sides[0][0]
    first = products[0]
    whole = view.shape(prob)
    letter = first.letters[side][-1]
    joined = _joined(products, 1 - side, letter) if letter in first.letters[1 - side] else None
    if joined is None or whole is None:
        return None
    values = list(joined.operands)
    shapes = list(joined.shapes)
    values[side], shapes[side] = prob, whole
    return replace(joined, operands=(values[0], values[1]), shapes=(shapes[0], shapes[1]), output=total.outputs[0])


def _pieces(view: GraphView, prob: ir.Value, users: Sequence[ir.Node]) -> list[ir.Value] | None:
    """The two halves of the last axis, by Split or by Slice."""
    rank = len(view.shape(prob) or ())
    if len(users) == 1 and view.producer(users[0].outputs[0], "Split") is not None and len(users[0].outputs) == 2:
        node = users[0]
        return list(node.outputs) if view.last_axis(node, prob, attr_int(node, "axis", 0)) else None
    if len(users) != 2 or any(view.producer(u.outputs[0], "Slice") is None for u in users):
        return None
    bounds = []
    for node in users:
        if node.inputs[0] is not prob or not 4 <= len(node.inputs) <= 5:
            return None
        start, end, axis = (view.scalar(i) for i in node.inputs[1:4])
        step = view.scalar(node.inputs[4]) if len(node.inputs) == 5 else 1.0
        if axis not in (-1.0, float(rank - 1)) or step != 1.0:
            return None
        bounds.append((node, start, end))
    for (low, start, cut), (high, again, end) in (bounds, bounds[::-1]):
        same = (cut is not None and cut == again and cut > 0) or low.inputs[2] is high.inputs[1]
        if start == 0.0 and same and end is not None and end >= float((1 << 31) - 1):
            return [low.outputs[0], high.outputs[0]]
    return None
