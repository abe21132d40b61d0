"""What stands before Q, K^T and V: transposes, reshapes that only regroup, repeats of K/V heads, constant scales.

Every axis of a value is a row-major list of atoms, the dims of the site. Walking from the matmul towards the graph's inputs, each
Transpose, Reshape, Squeeze, Unsqueeze and Expand only moves atoms, so a value further up can take the operand's place wherever
its axes are again exactly the canonical dims, in any order. Repeats of heads show as an Expand, Tile, Concat or Gather of the
inner part of a split head atom.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.ops import op_of
from onnx_fa.graph.symbolic import node_axis, placed_axes
from onnx_fa.graph.view import GraphView, axes_of
from onnx_fa.match import Call, Const, Expr, Integers, NoMatch, OperandChoice
from onnx_fa.match.axes import (
    Atom,
    Axis,
    Group,
    Sources,
    expanded,
    has_size,
    leaves,
    moved,
    product,
    regroup,
    regrouped,
    size_of,
)
from onnx_fa.patterns.quant.dequantized import Dequantized, dequantized
from onnx_fa.spec.attention import Dim, Quantized


@dataclass(frozen=True)
class _Piece:
    """An atom, or with `part` a factor of the head atom (split in groups: part 0 the K/V head, part 1 its repeats)."""

    atom: Atom
    size: Dim
    part: int | None = None
    repeated: bool = False


_Pieces = tuple[_Piece, ...]


@dataclass(frozen=True)
class _State:
    value: ir.Value
    axes: tuple[_Pieces, ...]
    head: Atom | None
    """The atom whose repeats are understood; None: any atom may be repeated (a mask broadcasts)."""
    scale: float = 1.0
    integers: tuple[Dequantized, OperandChoice | None] | None = None
    """`value` holds integers: what they stand for, and the reading where they are dequantised, if that is one."""


def read_operand(
    view: GraphView, value: ir.Value, names: tuple[str, ...], sizes: tuple[Dim, ...]
) -> list[OperandChoice]:
    """Readings of an operand whose axes are canonical dims, see `readings`.

    `names` are the operand's axes in order, `sizes` the dims in canonical order (b.., h, s, d).
    """
    canonical = (*(n for n in names if n.startswith("b")), "h", "s", "d")
    groups = {n: Group(n, (Atom(n, d),) if d != 1 else (), d) for n, d in zip(canonical, sizes, strict=True)}
    axes = [list(groups[n].atoms) or [groups[n].mark] for n in names]
    return readings(view, value, axes, list(groups.values()), {})


def readings(
    view: GraphView, value: Expr, axes: Sequence[Axis], groups: Sequence[Group], sources: Sources
) -> list[OperandChoice]:
    """Readings of a matmul operand, the shallowest first, the one furthest up the graph last.

    `axes` are the operand's, `groups` the canonical dims (b.., h, s, d). Where the operand itself does not have the canonical
    rank, or lacks a batch dim that another operand has, the first reading is a view of it. An operand without a head dim has
    one head, and also a reading with the heads repeated.
    """
    found: list[OperandChoice] = []
    head = next(g for g in groups if g.name == "h")
    present = {a for axis in axes for a in axis}
    if isinstance(value, ir.Value):
        shape = view.shape(value) or ()
        own = [tuple(_Piece(a, _own_size(a, axis, shape, i)) for a in axis) for i, axis in enumerate(axes)]
        state: _State | None = _State(value, tuple(own), head.atoms[0] if len(head.atoms) == 1 else None)
        if state is not None and state.head is None:
            state = replace(state, head=Atom("none", 1))
        trail: list[ir.Node] = []
        while state is not None:
            here = _as_choice(state, groups, fewer=bool(found))
            choice = _with_integers(here, state, found)
            # Rows of K, Q and V must lie contiguously; K as the matmul gets it (transposed) is always a last resort.
            if choice is not None and (
                not found
                or choice.layout[-1] == len(groups) - 1
                or (choice.integers is not None and choice.layout == found[-1].layout)
            ):
                found.append(choice)
                trail = []
            part = dequantized(view, state.value) if state.integers is None else None
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
                state = _step(view, state)
    inside = bool(present & set(head.atoms))
    # A walk up the graph that begins at another rank may find a single head only, of which a Tile makes them all.
    if not found or (inside and all(c.heads != head.size for c in found)):
        found.insert(0, _viewed(value, axes, groups, sources, repeat_heads=False))
    if head.atoms and not inside:
        found.insert(0, _viewed(value, axes, groups, sources, repeat_heads=True))
    return found


def _with_integers(choice: OperandChoice | None, state: _State, found: Sequence[OperandChoice]) -> OperandChoice | None:
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
    """What nodes that only move axes, the last one first, make of another value. None where one does more."""
    expr: Expr = source
    for node in reversed(nodes):
        if op_of(node) not in ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity"):
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


def _viewed(
    value: Expr, axes: Sequence[Axis], groups: Sequence[Group], sources: Sources, repeat_heads: bool
) -> OperandChoice:
    """The operand reshaped, and if need be expanded, to the canonical dims. Raises NoMatch where a size cannot be told."""
    axes = [[a for a in leaves(axis) if a.size != 1] for axis in axes]
    present = [a for axis in axes for a in axis]
    parts = {g.name: [a for a in g.atoms if a in present] for g in groups}
    whole = [parts[g.name] for g in groups if parts[g.name]]
    stored = sorted(whole, key=lambda axis: present.index(axis[0]))
    if [a for axis in stored for a in axis] != present:
        stored = whole  # a group's atoms are not adjacent: a transpose is needed
    # Unit axes stand where they would in canonical order.
    order = sorted(range(len(groups)), key=lambda i: _rank(i, groups, parts, stored))
    want = [parts[groups[i].name] for i in order]
    expr = moved(value, axes, want, sources)
    missing = [[a for a in groups[i].atoms if a not in present] for i in order]
    missing = [m if groups[i].name != "h" or repeat_heads else [] for m, i in zip(missing, order, strict=True)]
    if any(missing):
        expr = _spread(expr, want, [list(groups[i].atoms) for i in order], missing, sources)
    heads: Dim = 1 if not parts["h"] and not repeat_heads else next(g.size for g in groups if g.name == "h")
    return OperandChoice(expr, tuple(order), 1.0, heads)


def _rank(i: int, groups: Sequence[Group], parts: dict[str, Axis], stored: Sequence[Axis]) -> tuple[float, int]:
    """Where a canonical dim stands among the stored axes; a unit dim right behind the last one before it."""
    for j in range(i, -1, -1):
        axis = parts[groups[j].name]
        if axis:
            at = next(n for n, s in enumerate(stored) if s == axis)
            return at + (0.5 if j != i else 0.0), i
    return -1.0, i


def _spread(expr: Expr, have: Sequence[Axis], want: Sequence[Axis], missing: Sequence[Axis], sources: Sources) -> Expr:
    """Expands `have` to `want`, axis by axis; an axis may have only some of its atoms."""
    single_have: list[Axis] = []
    single_want: list[Axis] = []
    for h, w, m in zip(have, want, missing, strict=True):
        if not m:
            single_have.append(h)
            single_want.append(h)
        elif not h:
            single_have.append([])
            single_want.append(w)
        else:
            single_have += [[a] if a in h else [] for a in w]
            single_want += [[a] for a in w]
    expr = regrouped(expr, have, single_have, sources)
    grown = [w if h != w else None for h, w in zip(single_have, single_want, strict=True)]
    expr = expanded(expr, grown, sources)
    final = [w if m else h for h, w, m in zip(have, want, missing, strict=True)]
    return regrouped(expr, single_want, final, sources)


def _as_choice(state: _State, groups: Sequence[Group], fewer: bool = False) -> OperandChoice | None:
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
            axis = [_Piece(axis[0].atom, heads)]  # split and joined again
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
    return OperandChoice(value, tuple(stored), state.scale, heads)


def place(view: GraphView, value: Expr, axes: Sequence[Axis], groups: Sequence[Group], sources: Sources) -> Expr:
    """A tensor that broadcasts (right-aligned) to a score with `axes`, as one that broadcasts to the canonical dims (b.., h, s, t).

    A value further up the graph is taken where that is such a tensor. Raises NoMatch where the tensor does not provably
    broadcast.
    """
    dims = _dims(view, value)
    extra = len(dims) - len(axes)
    if extra > 0 and all(d == 1 for d in dims[:extra]):
        value = Call("Squeeze", (value, Const(np.arange(extra, dtype=np.int64))))
        dims = dims[extra:]
    elif extra > 0:
        raise _no(value, "a mask has more dims than the score")
    axes = [leaves(a) for a in axes][len(axes) - len(dims) :]
    pieces: list[_Pieces] = []
    for dim, axis in zip(dims, axes, strict=True):
        if dim == 1 or not axis:
            if dim != 1:
                raise _no(value, f"a mask of shape {list(dims)} does not provably broadcast to the score")
            pieces.append(())
        elif dim is not None and has_size(axis, dim):
            pieces.append(tuple(_Piece(a, a.size) for a in axis))
        else:
            raise _no(value, f"a mask of shape {list(dims)} does not provably broadcast to the score")
    if isinstance(value, ir.Value):
        best: ir.Value | None = None
        state: _State | None = _State(value, tuple(pieces), None)
        while state is not None:
            if _broadcasts(state, groups):
                best = state.value
                break
            state = _step(view, state)
        if best is not None:
            return best
    have = [[p.atom for p in axis] for axis in pieces]
    present = [a for axis in have for a in axis]
    want = [[a for a in g.atoms if a in present] for g in groups]
    expr = moved(value, have, want, sources)
    missing = [[a for a in g.atoms if w and a not in w] for g, w in zip(groups, want, strict=True)]
    if any(missing):
        expr = _spread(expr, want, [list(g.atoms) for g in groups], missing, sources)
    if not isinstance(expr, Call):
        return expr
    return replace(expr, shape=tuple(g.size if w else 1 for g, w in zip(groups, want, strict=True)))


def _broadcasts(state: _State, groups: Sequence[Group]) -> bool:
    """Whether the value broadcasts to the canonical dims as it is."""
    axes = [[p for p in axis if not p.repeated and p.size != 1] for axis in state.axes]
    while axes and not axes[0]:
        axes = axes[1:]
    if len(axes) > len(groups):
        return False
    return all(not a or tuple(p.atom for p in a) == g.atoms for a, g in zip(axes[::-1], groups[::-1], strict=False))


def _dims(view: GraphView, value: Expr) -> tuple[Dim | None, ...]:
    if isinstance(value, Const):
        return value.array.shape
    if isinstance(value, Call) and value.op in ("Not", "Cast", "Identity", "Neg"):
        return _dims(view, value.args[0])
    dims = view.shape(value) if isinstance(value, ir.Value) else None
    if dims is None:
        raise _no(value, "the rank of a mask is unknown")
    return dims


def _no(value: Expr, reason: str) -> NoMatch:
    return NoMatch(reason, value.producer() if isinstance(value, ir.Value) else None)


def _step(view: GraphView, state: _State) -> _State | None:
    """The state one node further up, or None where the walk ends."""
    node = view.producer(state.value)
    if node is None or not node.inputs or node.inputs[0] is None:
        return None
    source, axes = node.inputs[0], state.axes
    shape = view.shape(source)
    if op_of(node) in ("Mul", "Div"):
        return _scaled(view, state, node) if state.head is not None and state.integers is None else None
    if shape is None:
        return None
    new: list[_Pieces] | None = None
    if op_of(node) == "Identity":
        new = list(axes)
    elif op_of(node) == "Transpose":
        perm = list(node.attributes["perm"].as_ints()) if "perm" in node.attributes else list(range(len(axes)))[::-1]
        new = [axes[perm.index(i)] for i in range(len(perm))]
    elif op_of(node) in ("Reshape", "Flatten") or (op_of(node) == "Squeeze" and axes_of(view, node) is None):
        new = _regroup([a for axis in axes for a in axis], shape, state.head)
    elif op_of(node) in ("Squeeze", "Unsqueeze"):
        new = _units(view, node, axes, len(shape))
    elif op_of(node) in ("Expand", "Tile") or (op_of(node) == "Concat" and len(set(node.inputs)) == 1):
        new = _unexpand(axes, shape, state.head)
    elif op_of(node) == "Gather":
        new = _ungather(view, node, axes, shape, state.head)
    if new is None:
        return None
    return replace(state, value=source, axes=tuple(new))


def _scaled(view: GraphView, state: _State, node: ir.Node) -> _State | None:
    a, b = node.inputs
    if a is None or b is None:
        return None
    for value, factor in ((a, view.scalar(b)), (b, view.scalar(a) if op_of(node) == "Mul" else None)):
        if factor and len(view.shape(value) or ()) == len(state.axes):
            scale = state.scale * (factor if op_of(node) == "Mul" else 1.0 / factor)
            return replace(state, value=value, scale=scale)
    return None


def _units(view: GraphView, node: ir.Node, axes: tuple[_Pieces, ...], rank: int) -> list[_Pieces] | None:
    """Undoes Squeeze (puts unit axes back) or Unsqueeze (drops them)."""
    listed = axes_of(view, node)
    unsqueeze = op_of(node) == "Unsqueeze"
    placed = placed_axes(listed, len(axes) if unsqueeze else rank)
    if placed is None:
        return None
    if unsqueeze:
        lost = [a for i in placed for a in axes[i] if a.size != 1 and not a.repeated]
        return None if lost else [axis for i, axis in enumerate(axes) if i not in placed]
    rest = iter(axes)
    return [() if i in placed else next(rest) for i in range(rank)]


def _unexpand(axes: tuple[_Pieces, ...], shape: tuple[Dim | None, ...], head: Atom | None) -> list[_Pieces] | None:
    """Undoes an Expand, Tile or Concat of copies: the atoms of an axis that was 1 before are repeats, of heads only if `head`."""
    if len(shape) > len(axes) or (len(shape) < len(axes) and head is not None):
        return None
    lead = axes[: len(axes) - len(shape)]  # axes that the Expand put in front
    new: list[_Pieces] = []
    for axis, before in zip(axes[len(lead) :], shape, strict=True):
        size = product(axis)
        if before == 1 and any(p.size != 1 for p in axis):
            if head is not None and any((p.atom is not head and p.size != 1) or p.part == 0 for p in axis):
                return None
            new.append(tuple(replace(p, repeated=True) for p in axis if p.size != 1))
        elif before is not None and size_of(before) == size:
            new.append(axis)
        else:
            return None
    return new


def _ungather(
    view: GraphView, node: ir.Node, axes: tuple[_Pieces, ...], shape: tuple[Dim | None, ...], head: Atom | None
) -> list[_Pieces] | None:
    """Undoes a Gather that repeats every head: indices 0, 0, 1, 1, ... along a whole head axis."""
    indices, axis = view.const(node.inputs[1]), node_axis(node, len(shape))
    if axis is None:
        return None
    before = shape[axis]
    if (
        head is None
        or indices is None
        or indices.ndim != 1
        or indices.dtype.kind != "i"
        or not isinstance(before, int)
        or before < 1
    ):
        return None
    pieces = [p for p in axes[axis] if p.size != 1]
    if len(pieces) != 1 or pieces[0].atom is not head or pieces[0].part is not None:
        return None
    group, odd = divmod(len(indices), before)
    if odd or not np.array_equal(indices.astype(np.int64) % before, np.repeat(np.arange(before), group)):
        return None
    kept = replace(pieces[0], size=before, part=0) if group > 1 else pieces[0]
    gathered = (kept,) if before > 1 else (replace(pieces[0], repeated=True),)
    return [gathered if i == axis else a for i, a in enumerate(axes)]


def _regroup(pieces: list[_Piece], dims: tuple[Dim | None, ...], head: Atom | None) -> list[_Pieces] | None:
    """Undoes a Reshape. Repeats are not in the value: its axes are of size one there."""
    pieces = [p for p in pieces if not p.repeated]

    def split(piece: _Piece, size: int, from_right: bool) -> tuple[_Piece, _Piece] | None:
        # Only a whole head atom may be split: into K/V heads and repeats.
        if piece.atom is not head or piece.part is not None or not isinstance(piece.size, int):
            return None
        inner, outer = (size, piece.size // size) if from_right else (piece.size // size, size)
        first, second = replace(piece, size=outer, part=0), replace(piece, size=inner, part=1)
        return (second, first) if from_right else (first, second)

    axes = regroup(pieces, dims, split)
    return None if axes is None else [tuple(a) for a in axes]
