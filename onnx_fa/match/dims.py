"""Tells which dims of the two products are keys, queries, heads and head dims, and gives equal dims one name."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnx_fa.graph.dims import known
from onnx_fa.graph.view import GraphView
from onnx_fa.match.axes import Atom, Axis, Group, has_size, leaves, multiply_sizes
from onnx_fa.match.frames import Frames
from onnx_fa.match.hints import say_sizes
from onnx_fa.match.joined import join_dims, name_keys, widen_by_operand, widen_to_probabilities
from onnx_fa.match.misses import NoMatch
from onnx_fa.match.types import Product, Weighting
from onnx_fa.spec.terms import Dim


def is_unit(p: Product, side: int, letter: str) -> bool:
    return p.shapes[side][p.letters[side].index(letter)] == 1


def name_atoms(view: GraphView, p: Product, at: ir.Node) -> dict[str, Atom]:
    """An atom for every letter that is not of size one. Batch dims that are not provably equal broadcast. Raises NoMatch where it
    is not known what to."""
    atoms: dict[str, Atom] = {}
    for letter in dict.fromkeys("".join(p.letters)):
        apart = False
        dims = [p.shapes[i][p.letters[i].index(letter)] for i in (0, 1) if letter in p.letters[i]]
        if letter in p.out and len(dims) == 2:
            wide = [d for d in dims if d != 1]
            apart = len(wide) == 2 and (wide[0] is None or wide[0] != wide[1])
            joined = join_dims(*wide) if apart else None
            if apart and joined is None:
                batch = _list_batch_dims(p)
                raise _refuse_batch(view, f"Q {batch[0]} and K {batch[1]}", wide, at)
            dims = [joined] if apart else wide
        size = best_name(dims, f"{at.name}_{letter}")
        if size != 1:
            atoms[letter] = Atom(letter, size, apart=apart)
    return atoms


def _refuse_batch(view: GraphView, what: str, dims: Sequence[Dim | None], at: ir.Node) -> NoMatch:
    """The reason for batch dims of which these two are not known to be equal."""
    if all(isinstance(d, int) for d in dims):
        return NoMatch(f"the batch dims of {what} are not equal: their product fails in every run", at)
    return NoMatch(f"the batch dims of {what} are not provably equal{say_sizes(view, dims)}", at)


def _list_batch_dims(p: Product) -> list[list[Dim | None]]:
    """The batch dims of either operand, for messages."""
    pairs = zip(p.shapes, p.letters, strict=True)
    return [[dim for dim, letter in zip(dims, letters, strict=True) if letter in p.out[:-2]] for dims, letters in pairs]


def best_name(dims: Sequence[Dim | None], other: str) -> Dim:
    """One name for sizes that are equal: a number if there is one, else the first name that somebody gave; 1 for no sizes."""
    if not dims:
        return 1
    some = [d for d in dims if d is not None]
    numbers = [d for d in some if isinstance(d, int)]
    named = [d for d in some if known(d)]
    return (numbers or named or some or [other])[0]


def find_side_of_keys(qk: Product, atoms: dict[str, Atom], keys: Sequence[Atom], at: ir.Node) -> int:
    """Which operand of the product is K: the one that alone has the axis of the softmax."""
    free = []
    for side in (0, 1):
        mine, other = (set(qk.letters[i]) for i in (side, 1 - side))
        free.append(
            {a for x in mine if x in atoms and (x not in other or is_unit(qk, 1 - side, x)) for a in atoms[x].leaves()}
        )
    if not keys:  # a single key: the operand that has nothing else of its own
        return 1 if not free[1] or free[0] else 0
    for side in (1, 0):
        if set(keys) <= free[side]:
            return side
    if any(set(keys) & own for own in free):
        why = "the softmax is over keys and over another axis too, so that the weights of a query do not add up to one"
        raise NoMatch(why, at)
    raise NoMatch("the softmax is over another axis than the keys", at)


def find_queries(frames: Frames, free: set[Atom], letters: Sequence[Atom], count: int) -> list[Atom]:
    """The queries: of Q's own dims the one next to the keys, else the last. Where the keys are `count` dims of K, as the rows and
    columns of an image are, the queries are as many dims of Q, if it has them."""
    own = [x for x in letters if x.leaves() and set(x.leaves()) <= free]
    if count > 1:
        order = [a for axis in frames.softmax for a in leaves(axis)]
        best = sorted(own, key=lambda x: order.index(x.leaves()[0]))[-count:]
        return [a for x in best for a in x.leaves()]
    second = set(leaves(frames.softmax[-2])) if len(frames.softmax) > 1 else set()
    if not second:
        return []  # a single query
    near = [x for x in own if second & set(x.leaves())]
    best = (near or own)[-1:]
    return [a for x in best for a in x.leaves()]


def name_value_axes(
    view: GraphView, weighting: Weighting, frames: Frames, keys: list[Atom]
) -> tuple[list[Axis], list[Axis], list[Atom]]:
    """The axes of V, of the product with V, and V's own atoms."""
    pv, side = weighting.product, weighting.side
    p_letters, v_letters = pv.letters[side], pv.letters[1 - side]
    v_shape = pv.shapes[1 - side]
    if len(frames.prob) != len(p_letters):
        raise NoMatch("the rank of the probabilities is not that of the score", pv.node)
    axis_of: dict[str, Axis] = {x: leaves(a) for x, a in zip(p_letters, frames.prob, strict=True)}
    contracted = [x for x in p_letters if x not in pv.out]
    for letter, p_dim in zip(p_letters, pv.shapes[side], strict=True):
        if letter not in contracted:
            widen_to_probabilities(view, axis_of[letter], p_dim)
    summed = [a for x in contracted for a in axis_of[x]]
    if set(summed) < set(keys):
        why = "the softmax is over more axes than the product with V sums over, which is no weighted mean of its rows"
        raise NoMatch(why, pv.node)
    if not contracted or set(summed) != set(keys):
        raise NoMatch(
            "the probabilities are not the left operand of the matmul with V, or it sums over another axis than the keys",
            pv.node,
        )
    axes: list[Axis] = []
    own: list[Atom] = []
    for letter, dim in zip(v_letters, v_shape, strict=True):
        if letter not in p_letters:
            atom = Atom(letter, best_name([dim], f"{pv.node.name}_{letter}"))
            own += [atom] if dim != 1 else []
            axis_of[letter] = [atom] if dim != 1 else []
            axes.append(axis_of[letter])
        elif letter in contracted:
            have = axis_of[letter]
            name_keys(view, have, pv.shapes[side][p_letters.index(letter)], dim)
            axes.append(have)
        elif dim == 1:
            axes.append([])
        elif not axis_of[letter]:  # the probabilities broadcast: one more dim of V's own
            own.append(Atom(letter, best_name([dim], f"{pv.node.name}_{letter}")))
            axis_of[letter] = own[-1:]
            axes.append(axis_of[letter])
        else:
            have = axis_of[letter]
            p_dim = pv.shapes[side][p_letters.index(letter)]
            provable = dim is not None and (has_size(have, dim) or dim == p_dim)
            if not provable and not widen_by_operand(have, dim):
                batch = _list_batch_dims(pv)
                what = f"the probabilities {batch[side]} and V {batch[1 - side]}"
                raise _refuse_batch(view, what, (p_dim, dim), pv.node)
            axes.append(have)
    return axes, [axis_of[x] for x in pv.out], own


def merge_sizes(at: ir.Node, name: str, atoms: Sequence[Atom]) -> Dim:
    if len(atoms) == 1:
        return atoms[0].size
    number, symbols = multiply_sizes(atoms)
    if not symbols:
        return number
    return next(iter(symbols)) if number == 1 and symbols.total() == 1 else f"{at.name}_{name}"


def add_unit_groups(
    groups: tuple[Group, ...], frames: Frames, grouped: bool, *operands: Sequence[Axis]
) -> tuple[Group, ...]:
    """The leading groups with unit dims among them, where the score has them and Q and K too."""
    lead = [leaves(a) for a in frames.softmax[:-2]]
    rank = len(frames.softmax)
    if rank < 3 or any(len(o) != rank for o in operands) or len(lead) < len(groups):
        return groups
    real = [g for g in groups if g.atoms]
    if [a for a in lead if a] != [list(g.atoms) for g in real]:
        return groups
    rest = iter(real)
    spread = [next(rest) if axis else Group("", (), 1) for axis in lead]
    if grouped and spread[-1] is not groups[-1]:
        return groups  # K has no such dim: it must stay the head
    sizes = [(g.atoms, g.size) for g in spread]
    return (*(Group(f"b{i}", a, n) for i, (a, n) in enumerate(sizes[:-1])), Group("h", *sizes[-1]))
