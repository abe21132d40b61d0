"""A value's axes one node further up the graph: each Transpose, Reshape, Squeeze, Unsqueeze and Expand only moves atoms.

Repeats of heads show as an Expand, Tile, Concat or Gather of the inner part of a split head atom.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.axes import node_axis, placed_axes
from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import DTYPES, GraphView, axes_of
from onnx_fa.match import OperandChoice
from onnx_fa.match.axes import Atom, multiply_sizes, regroup, size_of
from onnx_fa.patterns.quant.dequantized import Dequantized
from onnx_fa.spec.terms import Dim


@dataclass(frozen=True)
class Piece:
    """An atom, or with `part` a factor of the head atom (split in groups: part 0 the K/V head, part 1 its repeats)."""

    atom: Atom
    size: Dim
    part: int | None = None
    repeated: bool = False


Pieces = tuple[Piece, ...]


@dataclass(frozen=True)
class Standing:
    value: ir.Value
    axes: tuple[Pieces, ...]
    head: Atom | None
    """The atom whose repeats are understood; None: any atom may be repeated (a mask broadcasts)."""
    scale: float = 1.0
    integers: tuple[Dequantized, OperandChoice | None] | None = None
    """`value` holds integers: what they stand for, and the reading where they are dequantised, if that is one."""
    widened: bool = False
    """`value` has a narrower type than the operand, and is cast up below."""


def step_up(view: GraphView, state: Standing) -> Standing | None:
    """The state one node further up, or None where the walk ends."""
    node = view.producer(state.value)
    if node is None or not node.inputs or node.inputs[0] is None:
        return None
    source, axes = node.inputs[0], state.axes
    shape = view.shape(source)
    if op_of(node) in ("Mul", "Div"):
        # The model has rounded what a factor made in the narrower type.
        plain = state.head is not None and state.integers is None and not state.widened
        return _take_out_scale(view, state, node) if plain else None
    if shape is None:
        return None
    new: list[Pieces] | None = None
    if op_of(node) == "Identity":
        new = list(axes)
    elif op_of(node) == "Transpose":
        perm = list(node.attributes["perm"].as_ints()) if "perm" in node.attributes else list(range(len(axes)))[::-1]
        new = [axes[perm.index(i)] for i in range(len(perm))]
    elif op_of(node) in ("Reshape", "Flatten") or (op_of(node) == "Squeeze" and axes_of(view, node) is None):
        new = _undo_reshape([a for axis in axes for a in axis], shape, state.head)
    elif op_of(node) in ("Squeeze", "Unsqueeze"):
        new = _undo_units(view, node, axes, len(shape))
    elif op_of(node) in ("Expand", "Tile") or (op_of(node) == "Concat" and len(set(node.inputs)) == 1):
        new = _undo_expand(axes, shape, state.head)
    elif op_of(node) == "Gather":
        new = _undo_gather(view, node, axes, shape, state.head)
    if new is None:
        return None
    return replace(state, value=source, axes=tuple(new))


def step_over_widening(view: GraphView, state: Standing, narrow: str | None) -> Standing | None:
    """The state in front of a Cast from the element type `narrow`; None where there is no such Cast."""
    node = view.producer(state.value, "Cast")
    source = None if node is None else node.inputs[0]
    if narrow is None or source is None or state.integers is not None:
        return None
    if DTYPES.get(source.dtype or ir.DataType.UNDEFINED) != narrow:
        return None
    return replace(state, value=source, widened=True)


def _take_out_scale(view: GraphView, state: Standing, node: ir.Node) -> Standing | None:
    a, b = node.inputs
    if a is None or b is None:
        return None
    for value, factor in ((a, view.scalar(b)), (b, view.scalar(a) if op_of(node) == "Mul" else None)):
        if factor and len(view.shape(value) or ()) == len(state.axes):
            scale = state.scale * (factor if op_of(node) == "Mul" else 1.0 / factor)
            return replace(state, value=value, scale=scale)
    return None


def _undo_units(view: GraphView, node: ir.Node, axes: tuple[Pieces, ...], rank: int) -> list[Pieces] | None:
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


def _undo_expand(axes: tuple[Pieces, ...], shape: tuple[Dim | None, ...], head: Atom | None) -> list[Pieces] | None:
    """Undoes an Expand, Tile or Concat of copies: the atoms of an axis that was 1 before are repeats, of heads only if `head`."""
    if len(shape) > len(axes) or (len(shape) < len(axes) and head is not None):
        return None
    lead = axes[: len(axes) - len(shape)]  # axes that the Expand put in front
    new: list[Pieces] = []
    for axis, before in zip(axes[len(lead) :], shape, strict=True):
        size = multiply_sizes(axis)
        if before == 1 and any(p.size != 1 for p in axis):
            if head is not None and any((p.atom is not head and p.size != 1) or p.part == 0 for p in axis):
                return None
            new.append(tuple(replace(p, repeated=True) for p in axis if p.size != 1))
        elif before is not None and size_of(before) == size:
            new.append(axis)
        else:
            return None
    return new


def _undo_gather(
    view: GraphView, node: ir.Node, axes: tuple[Pieces, ...], shape: tuple[Dim | None, ...], head: Atom | None
) -> list[Pieces] | None:
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


def _undo_reshape(pieces: list[Piece], dims: tuple[Dim | None, ...], head: Atom | None) -> list[Pieces] | None:
    """Undoes a Reshape. Repeats are not in the value: its axes are of size one there."""
    pieces = [p for p in pieces if not p.repeated]

    def split(piece: Piece, size: int, from_right: bool) -> tuple[Piece, Piece] | None:
        # Only a whole head atom may be split: into K/V heads and repeats.
        if piece.atom is not head or piece.part is not None or not isinstance(piece.size, int):
            return None
        inner, outer = (size, piece.size // size) if from_right else (piece.size // size, size)
        first, second = replace(piece, size=outer, part=0), replace(piece, size=inner, part=1)
        return (second, first) if from_right else (first, second)

    axes = regroup(pieces, dims, split)
    return None if axes is None else [tuple(a) for a in axes]
