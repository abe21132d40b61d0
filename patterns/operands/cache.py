"""Keys and values in parts (a cache and what is new): scores concatenated along the keys, probabilities split again.

softmax(concat(q @ k1^T, q @ k2^T)) split at some keys, times v1, v2, ... and summed, is one attention over concat(k1, k2) and
concat(v1, v2, ...), wherever either is cut; the scores may as well be whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from onnx_fa.graph.axes import OPEN_END, node_axis, placed_axis
from onnx_fa.graph.dims import add_dims
from onnx_fa.graph.view import GraphView
from onnx_fa.match import Call, Cap, Expr, Nothing, Product, Scale, Step
from onnx_fa.patterns.operands.alike import align_products
from onnx_fa.patterns.score.passthrough import is_noop
from onnx_fa.spec.terms import Dim

Reading = tuple[tuple[Step, ...], Product]


def join_scores(view: GraphView, value: ir.Value, read: Callable[[ir.Value], Sequence[Reading]]) -> Reading | None:
    """The reading of scores concatenated along the keys, all of the same queries and scaled alike."""
    node, score = view.producer(value, "Concat"), view.shape(value)
    if node is None or len(node.inputs) < 2 or score is None:
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
    same = all(tuple(_known(s)) == tuple(_known(steps)) for s, _ in parts)
    if not same or len(score) != len(first.out):
        return None
    axis = node_axis(node, len(score))
    if axis is None:
        return None
    for q in (0, 1):
        k = 1 - q
        if not all(p.operands[q] is first.operands[q] for _, p in parts):
            continue
        products = align_products([p for _, p in parts], k)
        if products is None:
            continue
        letter, letters = products[0].out[axis], products[0].letters
        if letter in letters[k] and letter not in letters[q]:
            joined = _join_products(products, k, letter)
            return None if joined is None else (steps, joined)
    return None


def _known(steps: Sequence[Step]) -> list[Step]:
    return [s for s in steps if not isinstance(s, Nothing)]


def _join_products(parts: Sequence[Product], side: int, letter: str) -> Product | None:
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
        length = add_dims(length, s[axis])
    shape = (*shapes[0][:axis], length, *shapes[0][axis + 1 :])
    value = Call("Concat", tuple(p.operands[side] for p in parts), (("axis", axis),))
    pair: tuple[Expr, Expr] = (first.operands[1 - side], value)
    dims = (first.shapes[1 - side], shape)
    if side == 0:
        pair, dims = (pair[1], pair[0]), (dims[1], dims[0])
    return replace(first, operands=pair, shapes=dims)


def join_values(
    view: GraphView,
    prob: ir.Value,
    users: Sequence[ir.Node],
    product: Callable[[GraphView, ir.Value], Product | None],
) -> Product | None:
    """The product of the whole probabilities with V where they are cut into parts, each is multiplied and all are summed."""
    axis, pieces = _pieces(view, prob, users) or (0, [])
    products: list[Product] = []
    sides: set[int] = set()
    for piece in pieces:
        while (readers := view.users(piece)) and len(readers) == 1 and is_noop(view, readers[0]):
            if piece.is_graph_output():
                return None
            piece = readers[0].outputs[0]
        found = product(view, readers[0].outputs[0]) if len(readers) == 1 and not piece.is_graph_output() else None
        if found is None or (found.operands[0] is piece) == (found.operands[1] is piece):
            return None
        sides.add(0 if found.operands[0] is piece else 1)
        products.append(found)
    whole = view.shape(prob)
    if len(sides) != 1 or whole is None:
        return None
    side = sides.pop()
    alike = align_products(products, 1 - side)
    if alike is None or len(whole) != len(alike[0].letters[side]):
        return None
    first = alike[0]
    letter = first.letters[side][axis]
    joined = (
        _join_products(alike, 1 - side, letter)
        if letter in first.letters[1 - side] and letter not in first.out
        else None
    )
    total = _total(view, [p.output for p in products])
    if joined is None or total is None:
        return None
    output, perm = total
    values = list(joined.operands)
    shapes = list(joined.shapes)
    values[side], shapes[side] = prob, whole
    out = "".join(joined.out[i] for i in perm) if perm else joined.out
    return replace(joined, operands=(values[0], values[1]), shapes=(shapes[0], shapes[1]), output=output, out=out)


def _total(view: GraphView, terms: Sequence[ir.Value]) -> tuple[ir.Value, Sequence[int]] | None:
    """The sum of the terms, none of which is read by anything else, and how all of them were transposed before it."""
    perms: set[tuple[int, ...]] = set()
    left: list[ir.Value] = []
    for term in terms:
        turned = _only_reader(view, term, "Transpose")
        perms.add(
            tuple(turned.attributes["perm"].as_ints()) if turned is not None and "perm" in turned.attributes else ()
        )
        left.append(term if turned is None else turned.outputs[0])
    if len(perms) != 1 or (perms == {()} and left != list(terms)):
        return None
    while len(left) > 1:
        node = next(
            (n for t in left if (n := _only_reader(view, t, "Add", "Sum")) and set(n.inputs) <= set(left)), None
        )
        if node is None or len(set(node.inputs)) != len(node.inputs):
            return None
        if any(i is None or _only_reader(view, i, "Add", "Sum") is not node for i in node.inputs):
            return None
        left = [*(t for t in left if t not in node.inputs), node.outputs[0]]
    return left[0], perms.pop()


def _only_reader(view: GraphView, value: ir.Value, *ops: str) -> ir.Node | None:
    """The node that alone reads a value, if it is one of the standard ops named."""
    users = view.users(value)
    if len(users) != 1 or value.is_graph_output():
        return None
    return users[0] if view.producer(users[0].outputs[0], *ops) is users[0] else None


Bound = int | ir.Value
"""Where a part begins or ends: from 0 to the length where that is a number, else as the model says it."""


@dataclass(frozen=True)
class _Cut:
    value: ir.Value
    axis: int
    start: Bound
    end: Bound


def _pieces(view: GraphView, prob: ir.Value, users: Sequence[ir.Node]) -> tuple[int, list[ir.Value]] | None:
    """An axis, counted from the end, and the parts that all readers together cut it into, in order, without gaps or overlaps."""
    shape = view.shape(prob)
    if not users or shape is None or any(not u.outputs or u.inputs[0] is not prob for u in users):
        return None
    rank = len(shape)
    if len(users) == 1 and view.producer(users[0].outputs[0], "Split") is not None:
        split = node_axis(users[0], rank)
        return None if split is None else (split - rank, list(users[0].outputs))
    cuts = [_cut(view, u, shape) if view.producer(u.outputs[0], "Slice") is not None else None for u in users]
    left = [c for c in cuts if c is not None]
    if len(cuts) < 2 or len(left) != len(cuts) or len({c.axis for c in left}) != 1:
        return None
    axis, length = left[0].axis, shape[left[0].axis]
    parts: list[_Cut] = []
    end: Bound = 0
    while left:
        following = [c for c in left if _same(c.start, end)]
        if len(following) != 1:
            return None
        parts += following
        left.remove(following[0])
        end = following[0].end
    inner = [c.end for c in parts[:-1]]
    if not isinstance(end, int) or end < (length if isinstance(length, int) else OPEN_END):
        return None
    # A single cut parts an axis wherever it falls; of several it must be certain which comes first.
    if len(inner) > 1 and not _ascending(inner):
        return None
    return axis, [c.value for c in parts]


def _same(a: Bound, b: Bound) -> bool:
    return a == b if isinstance(a, int) and isinstance(b, int) else a is b


def _ascending(bounds: Sequence[Bound]) -> bool:
    numbers = [b for b in bounds if isinstance(b, int)]
    one_sign = all(n >= 0 for n in numbers) or all(n < 0 for n in numbers)
    return len(numbers) == len(bounds) and one_sign and numbers == sorted(numbers)


def _cut(view: GraphView, node: ir.Node, shape: Sequence[Dim | None]) -> _Cut | None:
    """What a Slice takes of one axis; None where it takes less than all of another one, or not every element."""
    if view.opset < 10 or len(node.inputs) < 4:
        return None
    starts, ends, axes = (_numbers(view, i) for i in node.inputs[1:4])
    steps = _numbers(view, node.inputs[4]) if len(node.inputs) > 4 and node.inputs[4] is not None else None
    if axes is None or (len(node.inputs) > 4 and node.inputs[4] is not None and set(steps or [0]) != {1}):
        return None
    if any(n is not None and len(n) != len(axes) for n in (starts, ends)):
        return None  # the model is not valid
    found: list[_Cut] = []
    for i, named in enumerate(axes):
        placed = placed_axis(named, len(shape))
        if placed is None:
            return None
        axis = placed - len(shape)
        bounds = [
            _bound(n[i], shape[axis]) if n is not None else v
            for n, v in ((starts, node.inputs[1]), (ends, node.inputs[2]))
        ]
        start, end = bounds
        if start is None or end is None or (len(axes) > 1 and not (isinstance(start, int) and isinstance(end, int))):
            return None
        length = shape[axis]
        if start != 0 or not isinstance(end, int) or end < (length if isinstance(length, int) else OPEN_END):
            found.append(_Cut(node.outputs[0], axis, start, end))
    return found[0] if len(found) == 1 else None


def _numbers(view: GraphView, value: ir.Value | None) -> list[int] | None:
    array = view.const(value)
    return None if array is None else [int(x) for x in array.reshape(-1)]


def _bound(number: int, length: Dim | None) -> int:
    """A bound of a Slice, from 0 to the length where that is known."""
    if not isinstance(length, int):
        return number
    return min(max(number + length if number < 0 else number, 0), length)
