"""Reshapes whose target only a run knows, of which IREE takes free dims that are merged for 1, splits none into static ones, and
takes a -1 for a size of -1 (docs/developer/iree-bugs.md)."""

from __future__ import annotations

import math

import onnx

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of

Dims = list[int | str | None]


def computed_reshape(g: GraphWriter, node: onnx.NodeProto, shape: Dims) -> bool:
    """One free dim that stays where it is needs none of the target: the number of elements leaves it what it was, which the
    compiler does not see. To a shape of one free dim at most: flat in between. To more: the size that a -1 stands for is computed.
    What keeps its free dims stays as it is."""
    made = g.shape(node.output[0])
    if made is None:
        return False
    hint = node.name or "Reshape"
    free, left = ([i for i, d in enumerate(dims) if not isinstance(d, int)] for dims in (shape, made))
    if len(free) == 1 and free == left:
        have, want = ([d for d in dims if isinstance(d, int)] for dims in (shape, made))
        if math.prod(have) == math.prod(want) > 0:
            target = [d if isinstance(d, int) else 0 for d in made]
            g.reshape(node.input[0], target, hint, out=node.output[0])
            return True
    if len(left) > 1:
        return _without_minus_one(g, node, shape, made)
    if len(free) < 2:
        return False
    flat = g.reshape(node.input[0], [-1], hint)
    zeros = {"allowzero": 1} if attr_of(node, "allowzero", 0) else {}
    g.add("Reshape", [flat, node.input[1]], hint, out=node.output[0], **zeros)
    return True


def _without_minus_one(g: GraphWriter, node: onnx.NodeProto, shape: Dims, made: Dims) -> bool:
    """To a target that a Concat puts together, of which one number alone is a constant -1: the product of the input's sizes by that
    of the others in its place. Sizes of 0 make a 0 of it, as there are no elements then. A -1 that is not the first stays where no
    free dim is split into more (x.view(b, -1, width) of packed rows): the compiler takes that for what is left."""
    parts = _parts(g, node.input[1])
    if len(parts) != len(made):
        return False
    numbers = [part if isinstance(part, int) else None for part in parts]
    split = sum(isinstance(d, int) for d in shape) - len(shape) > sum(isinstance(d, int) for d in made) - len(made)
    if numbers.count(-1) != 1 or 0 in numbers or not (split or numbers[0] == -1):
        return False
    hint, place = node.name or "Reshape", numbers.index(-1)
    own = [g.add("Shape", [node.input[0]], hint, start=axis, end=axis + 1) for axis in range(len(shape))]
    sizes = [g.ints([part], hint) if isinstance(part, int) else part for part in parts if part != -1]
    divisor, one = _product(g, sizes, hint), g.ints([1], hint)
    # 1 / (n + 1) is 1 where n is 0, and else 0. A Max of n and 1 would be a dispatch, for which the run waits, and of a choice
    # between them the compiler makes a check that n is not 0.
    nothing = g.add("Div", [one, g.add("Add", [divisor, one], hint)], hint)
    left = g.add("Div", [_product(g, own, hint), g.add("Add", [divisor, nothing], hint)], hint)
    target = g.add("Concat", [*sizes[:place], left, *sizes[place:]], hint, axis=0)
    g.add("Reshape", [node.input[0], target], hint, out=node.output[0], allowzero=1)
    return True


def _parts(g: GraphWriter, target: str) -> list[str | int]:
    """The numbers that a Concat joins to a target: constants, and vectors of one number each; none where it is something else."""
    joins, parts = g.maker(target), list[str | int]()
    if joins is None or op_of(joins) != "Concat":
        return []
    for part in joins.input:
        array = g.array(part)
        if array is None and g.shape(part) != [1]:
            return []
        parts += [part] if array is None else [int(number) for number in array.reshape(-1)]
    return parts


def _product(g: GraphWriter, vectors: list[str], hint: str) -> str:
    first, *rest = vectors
    for each in rest:
        first = g.add("Mul", [first, each], hint)
    return first
