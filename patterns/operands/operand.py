"""What stands before Q, K^T and V: transposes, reshapes that only regroup, repeats of K/V heads, constant scales.

Every axis of a value is a row-major list of atoms, the dims of the site. Walking from the matmul towards the graph's inputs, each
Transpose, Reshape, Squeeze, Unsqueeze and Expand only moves atoms, so a value further up can take the operand's place wherever
its axes are again exactly the canonical dims, in any order. Repeats of heads show as an Expand, Tile, Concat or Gather of the
inner part of a split head atom.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.moves import EACH_ONCE
from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import GraphView
from onnx_fa.match import Call, Const, Expr, Integers, OperandChoice
from onnx_fa.match.axes import Atom, Axis, Group, Sources
from onnx_fa.patterns.operands.upwards import Piece, Standing, step_over_widening, step_up
from onnx_fa.patterns.operands.viewed import view_as_canonical
from onnx_fa.patterns.quant.dequantized import read_dequantized
from onnx_fa.spec.terms import Dim, Quantized


def read_operand(
    view: GraphView, value: ir.Value, names: tuple[str, ...], sizes: tuple[Dim, ...]
) -> list[OperandChoice]:
    """Readings of an operand whose axes are canonical dims, see `find_readings`.

    `names` are the operand's axes in order, `sizes` the dims in canonical order (b.., h, s, d).
    """
    canonical = (*(n for n in names if n.startswith("b")), "h", "s", "d")
    groups = {n: Group(n, (Atom(n, d),) if d != 1 else (), d) for n, d in zip(canonical, sizes, strict=True)}
    axes = [list(groups[n].atoms) or [groups[n].mark] for n in names]
    return find_readings(view, value, axes, list(groups.values()), {})


def find_readings(
    view: GraphView,
    value: Expr,
    axes: Sequence[Axis],
    groups: Sequence[Group],
    sources: Sources,
    narrow: str | None = None,
) -> list[OperandChoice]:
    """Readings of a matmul operand, the shallowest first, the one furthest up the graph last.

    `axes` are the operand's, `groups` the canonical dims (b.., h, s, d). Where the operand itself does not have the canonical
    rank, or lacks a batch dim that another operand has, the first reading is a view of it. An operand without a head dim has
    one head, and also a reading with the heads repeated. With `narrow` a Cast from that element type is walked through: readings in
    front of it are `widened`.
    """
    found: list[OperandChoice] = []
    head = next(g for g in groups if g.name == "h")
    present = {a for axis in axes for a in axis}
    if isinstance(value, ir.Value):
        shape = view.shape(value) or ()
        own = [tuple(Piece(a, _own_size(a, axis, shape, i)) for a in axis) for i, axis in enumerate(axes)]
        state: Standing | None = Standing(value, tuple(own), head.atoms[0] if len(head.atoms) == 1 else None)
        if state is not None and state.head is None:
            state = replace(state, head=Atom("none", 1))
        trail: list[ir.Node] = []
        while state is not None:
            here = _as_reading(state, groups, fewer=bool(found))
            choice = _with_integers(here, state, found)
            # Rows of K, Q and V must lie contiguously; K as the matmul gets it (transposed) is always a last resort.
            if choice is not None and (
                not found
                or choice.layout[-1] == len(groups) - 1
                or (choice.integers is not None and choice.layout == found[-1].layout)
                or (choice.widened and not found[-1].widened)
            ):
                found.append(choice)
                trail = []
            part = read_dequantized(view, state.value) if state.integers is None else None
            if part is not None and here is None and not part.shape and found:
                again = _replayed(part.source, trail)
                if again is not None:
                    plain = found[-1]
                    units = plain.value.args[1:] if isinstance(plain.value, Call) else ()
                    value_of = Call("Unsqueeze", (again, *units)) if units else again
                    quant = Quantized(part.dtype, (), part.zero is not None)
                    operands = (part.scale, *([part.zero] if part.zero is not None else []))
                    integers = Integers(quant, operands, plain, part.number)
                    found.append(replace(plain, value=value_of, integers=integers))
                break
            trail += [node] if (node := state.value.producer()) is not None else []
            if part is not None:
                state = replace(state, value=part.source, integers=(part, here))
            else:
                state = step_over_widening(view, state, narrow) or step_up(view, state)
    inside = bool(present & set(head.atoms))
    # A walk up the graph that begins at another rank may find a single head only, of which a Tile makes them all.
    if not found or (inside and all(c.heads != head.size for c in found)):
        found.insert(0, view_as_canonical(value, axes, groups, sources, repeat_heads=False))
    if head.atoms and not inside:
        found.insert(0, view_as_canonical(value, axes, groups, sources, repeat_heads=True))
    return found


def _with_integers(
    choice: OperandChoice | None, state: Standing, found: Sequence[OperandChoice]
) -> OperandChoice | None:
    """A reading of integers with its scale, whose axes stand as those of the integers. None where that cannot be said, or no
    reading without integers is known."""
    if choice is None or state.integers is None:
        return choice
    plain = next((c for c in reversed(found) if c.integers is None), None)
    part, at = state.integers
    if plain is None or plain.heads != choice.heads:
        return None
    operands = [part.scale, *([part.zero] if part.zero is not None else [])]
    shape: tuple[Dim, ...] = ()
    if part.shape:
        # A scale that varies is understood where the dequantisation has the dims of the site.
        if at is None or at.heads != choice.heads:
            return None
        rank, inserted = len(choice.layout), _inserted(at)
        own = [i for i in range(rank) if i not in inserted]
        if part.grouped is not None and at.layout[own[part.grouped]] != rank - 1:
            return None
        own = own[len(own) - len(part.shape) :]
        order = tuple(at.layout.index(axis) for axis in choice.layout)
        still = order == tuple(range(rank))
        first = own[0] if still else 0
        units = [i - first for i in range(first, rank) if i not in own]
        if units:
            operands = [Call("Unsqueeze", (x, Const(np.asarray(units, np.int64)))) for x in operands]
        wide = [1 if i not in own else part.shape[own.index(i)] for i in range(first, rank)]
        if not still:
            operands = [Call("Transpose", (x,), (("perm", order),)) for x in operands]
            wide = [wide[i] for i in order]
        shape = tuple(wide)
    quant = Quantized(part.dtype, shape, part.zero is not None)
    return replace(choice, integers=Integers(quant, tuple(operands), plain, part.number))


def _replayed(source: ir.Value, nodes: Sequence[ir.Node]) -> Expr | None:
    """What nodes that only regroup elements, the last one first, make of another value. None where one does more."""
    expr: Expr = source
    for node in reversed(nodes):
        if op_of(node) not in EACH_ONCE:
            return None
        attrs = tuple(
            (name, attr.as_int() if attr.type == ir.AttributeType.INT else tuple(attr.as_ints()))
            for name, attr in node.attributes.items()
        )
        expr = Call(op_of(node), (expr, *(x for x in node.inputs[1:] if x is not None)), attrs)
    return expr


def _inserted(choice: OperandChoice) -> list[int]:
    """The unit axes that a reading adds to its value."""
    if not isinstance(choice.value, Call):
        return []
    axes = choice.value.args[1]
    assert isinstance(axes, Const)
    return [int(a) for a in axes.array]


def _own_size(atom: Atom, axis: Axis, shape: tuple[Dim | None, ...], i: int) -> Dim:
    """The operand's own name for a size that the site may know by another."""
    own = shape[i] if len(axis) == 1 and i < len(shape) else None
    return own if own is not None and own != 1 else atom.size


def _as_reading(state: Standing, groups: Sequence[Group], fewer: bool = False) -> OperandChoice | None:
    """The state as a reading of the operand, if its axes are the canonical dims; `fewer`: unit dims may be missing."""
    axes = [[p for p in axis if not p.repeated and p.size != 1] for axis in state.axes]
    if len(axes) != len(groups) and not (fewer and len(axes) < len(groups)):
        return None
    by_atoms = {g.atoms: i for i, g in enumerate(groups)}
    h = next(i for i, g in enumerate(groups) if g.name == "h")
    heads: Dim = groups[h].size
    found: list[int | None] = []
    for axis in axes:
        if not axis:
            found.append(None)
            continue
        if [p.part for p in axis] == [0, 1] and axis[0].atom is axis[1].atom:
            axis = [Piece(axis[0].atom, heads)]  # split and joined again
        at = by_atoms.get(tuple(p.atom for p in axis))
        if at is None:
            return None
        if axis[0].part is not None:
            if axis[0].part != 0 or at != h:
                return None
            heads = axis[0].size
        found.append(at)
    present = [i for i in found if i is not None]
    missing = [i for i in range(len(groups)) if i not in present]
    # Heads vanish only where they are repeats of one; a dim of size one may stand for any unit axis.
    if len(set(present)) != len(present) or any(groups[i].size != 1 and i != h for i in missing):
        return None
    if h in missing:
        heads = 1
    marks = {groups[i].mark: i for i in missing}
    for n, pieces in enumerate(state.axes):
        mark = next((marks.pop(p.atom) for p in pieces if p.atom in marks), None)
        if found[n] is None and mark is not None:
            found[n] = mark
            missing.remove(mark)
    if found.count(None) > len(missing):
        return None
    stored = [i if i is not None else missing.pop(0) for i in found]
    for i in missing:  # a unit axis stands behind the dim that comes before it
        stored.insert(stored.index(i - 1) + 1 if i else 0, i)
    value: Expr = state.value
    if missing:
        value = Call("Unsqueeze", (value, Const(np.asarray(sorted(map(stored.index, missing)), np.int64))))
    return OperandChoice(value, tuple(stored), state.scale, heads, widened=state.widened)
