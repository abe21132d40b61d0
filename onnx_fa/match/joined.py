"""Dims of a site in which its operands and masks have lengths of their own, that broadcast to each other: a batch of one beside a
batch of many, where the model does not say which of them it is given.

The site then has the length that all of them broadcast to, and what may be shorter is expanded to it. That is what the model's own
ops do: MatMul, Add and Where repeat what has length 1 along an axis, element for element as Expand does, and fail where two
lengths differ and neither is 1, as Expand does too. (ONNX's operators, "Multidirectional Broadcasting", and Expand.) So the
site has the model's result in every run in which the model has one, in runs with an empty batch too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import onnx_ir as ir

from onnx_fa.graph.dims import broadcast_dims, broadcast_parts, known
from onnx_fa.graph.view import GraphView
from onnx_fa.match.axes import Atom, Axis, Group, Source, Sources, expand_axes, leaves
from onnx_fa.match.exprs import Call, Expr
from onnx_fa.match.misses import NoMatch
from onnx_fa.match.types import OperandChoice
from onnx_fa.spec.terms import Dim


def join_dims(a: Dim | None, b: Dim | None) -> Dim | None:
    """The length that two axes broadcast to; None where it has no name, or they never do."""
    never = isinstance(a, int) and isinstance(b, int) and 1 not in (a, b) and a != b
    return None if a is None or b is None or never else broadcast_dims((a, b))


def widen_to_probabilities(view: GraphView, axis: Axis, dim: Dim | None) -> None:
    """Takes in that the probabilities have another length than the scores' axis: a mask in between has widened it."""
    if len(axis) == 1 and len(broadcast_parts(dim)) > 1 and view.takes_in(dim, axis[0].size) and dim is not None:
        _widen(axis[0], dim)


def name_keys(view: GraphView, axis: Axis, of_probabilities: Dim | None, of_values: Dim | None) -> None:
    """Gives the keys the length of V's rows, where that says more: the product with V fails for any other number of them. Where a
    mask has widened the scores, K has that many keys or a single one, which the mask repeats: then K is expanded to V's length."""
    if len(axis) != 1 or of_values is None:
        return
    keys = axis[0]
    if of_probabilities != keys.size != of_values and view.takes_in(of_probabilities, keys.size):
        _widen(keys, of_values)
    elif isinstance(of_values, int) or (not known(keys.size) and known(of_values)):
        keys.size = of_values


def widen_by_operand(axis: Axis, dim: Dim | None) -> bool:
    """Takes in that an operand with `dim` broadcasts to the axis. False where what comes of it is not known."""
    joined = join_dims(axis[0].size, dim) if len(axis) == 1 else None
    return joined is not None and _widen(axis[0], joined)


def _widen(atom: Atom, size: Dim) -> bool:
    if atom.whole is None and (atom.size != size or not atom.apart):
        atom.size, atom.apart = size, True
    return atom.size == size


def find_size(view: GraphView, atom: Atom, values: Iterable[ir.Value]) -> Source | None:
    """Where the size of an atom can be read: off a value that has it, or off some that broadcast to it. None where a part is
    nowhere to be read."""
    parts = {*broadcast_parts(atom.size)}
    found: list[Source] = []
    for value in values:
        for axis, dim in enumerate(view.shape(value) or ()):
            if dim == atom.size:
                return Source(value, axis)
            if parts & {*broadcast_parts(dim)} and view.takes_in(atom.size, dim):
                found.append(Source(value, axis))
                parts -= {*broadcast_parts(dim)}
    return None if parts else Source(found[0].value, found[0].axis, tuple(found[1:]))


def widen_reading(
    choice: OperandChoice, axes: Sequence[Axis], own: Sequence[Dim | None], groups: Sequence[Group], sources: Sources
) -> OperandChoice:
    """A reading of the operand that has `axes` of the lengths `own`, expanded to the dims of the site. Raises NoMatch where that
    takes more than an Expand."""
    grown: list[Axis | None] = [None] * len(choice.layout)
    for axis, dim in zip(axes, own, strict=True):
        atoms = leaves(axis)
        apart = [a for a in atoms if a.apart and a.size != dim]
        if not apart:
            continue
        group = next((i for i, g in enumerate(groups) if list(g.atoms) == atoms), None)
        if group is None:
            raise NoMatch(f"an axis of {dim} may be broadcast to {apart[0].size} and is part of another one")
        grown[choice.layout.index(group)] = atoms
    return replace(choice, value=expand_axes(choice.value, grown, sources))


def widen_mask(
    view: GraphView,
    value: Expr,
    shape: Sequence[Dim | None],
    groups: Sequence[Group],
    sources: Sources,
    keys_sure: bool,
) -> Expr:
    """A tensor of a mask of this shape, whose last axes are the canonical dims `groups`, expanded along those in which it may be
    shorter than the site. Along the keys (the last one) it has their length or 1, whatever it is called, if `keys_sure`."""
    grown: list[Axis | None] = [None] * len(shape)
    dims = list(shape)
    for at, group in zip(range(len(shape) - len(groups), len(shape)), groups, strict=True):
        sure = keys_sure and at == len(shape) - 1 and isinstance(group.size, str)
        if dims[at] not in (1, group.size) and len(group.atoms) == 1 and (sure or view.takes_in(group.size, dims[at])):
            grown[at], dims[at] = list(group.atoms), group.size
    expanded = expand_axes(value, grown, sources) if any(grown) else value
    return replace(expanded, shape=tuple(dims)) if isinstance(expanded, Call) and any(grown) else value
