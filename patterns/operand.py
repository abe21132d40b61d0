"""What stands before Q, K^T and V: transposes, reshapes that only regroup, repeats of K/V heads, constant scales.

Every axis of a value is a row-major list of atoms, the named dims of the matmul operand (b0.., h, s, d). Walking from the matmul
towards the graph's inputs, each Transpose, Reshape, Squeeze, Unsqueeze and Expand only moves atoms, so a value further up can
take the operand's place wherever its axes are again exactly the canonical dims, in any order. Repeats of heads show as an
Expand of the inner part of a split head atom.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import onnx_ir as ir

from onnx_fa.graph_view import GraphView, axes_of
from onnx_fa.match import OperandChoice
from onnx_fa.spec import Dim


@dataclass(frozen=True)
class _Atom:
    """A named dim, or with `part` a factor of one ("h" split in groups: part 0 the K/V head, part 1 its repeats)."""

    name: str
    size: Dim
    part: int | None = None
    repeated: bool = False


_Axis = tuple[_Atom, ...]


@dataclass(frozen=True)
class _State:
    value: ir.Value
    axes: tuple[_Axis, ...]
    scale: float = 1.0


def read_operand(
    view: GraphView, value: ir.Value, names: tuple[str, ...], sizes: tuple[Dim, ...]
) -> list[OperandChoice]:
    """Readings of a matmul operand, the shallowest (the operand itself) first, the one furthest up the graph last.

    `names` are the operand's axes in order, `sizes` the dims in canonical order (b.., h, s, d).
    """
    canonical = (*(n for n in names if n.startswith("b")), "h", "s", "d")
    size_of = dict(zip(canonical, sizes, strict=True))
    state: _State | None = _State(value, tuple((_Atom(n, size_of[n]),) for n in names))
    found: list[OperandChoice] = []
    while state is not None:
        choice = _as_choice(state, canonical, size_of)
        # Rows of K, Q and V must lie contiguously; K as the matmul gets it (transposed) is always a last resort.
        if choice is not None and (not found or choice.layout[-1] == len(canonical) - 1):
            found.append(choice)
        state = _step(view, state)
    return found


def _as_choice(state: _State, canonical: tuple[str, ...], size_of: dict[str, Dim]) -> OperandChoice | None:
    axes = [tuple(a for a in axis if not a.repeated) for axis in state.axes]
    if len(axes) != len(canonical):
        return None
    heads: Dim = size_of["h"]
    names: list[str | None] = []
    for axis in axes:
        whole = [a for a in axis if a.size != 1] or list(axis[:1])
        if [(a.name, a.part) for a in whole] == [("h", 0), ("h", 1)]:
            whole = [_Atom("h", size_of["h"])]  # split and joined again
        if len(whole) > 1:
            return None
        atom = whole[0] if whole else None
        names.append(atom.name if atom else None)
        if atom is not None and atom.part is not None:
            if atom.name != "h" or atom.part != 0:
                return None
            heads = atom.size
    present = [n for n in names if n is not None]
    if len(set(present)) != len(present):
        return None
    missing = [n for n in canonical if n not in present]
    # A dim of size one may have been dropped and another unit axis stand in its place.
    if any(size_of[n] != 1 and not (n == "h" and _all_heads_repeated(state)) for n in missing):
        return None
    if "h" in missing and size_of["h"] != 1:
        heads = 1
    fill = iter(missing)
    layout = tuple(canonical.index(n if n is not None else next(fill)) for n in names)
    return OperandChoice(state.value, layout, state.scale, heads)


def _all_heads_repeated(state: _State) -> bool:
    return any(a.name == "h" and a.repeated and a.part is None for axis in state.axes for a in axis)


def _step(view: GraphView, state: _State) -> _State | None:
    """The state one node further up, or None where the walk ends."""
    node = view.producer(state.value)
    if node is None or not node.inputs or node.inputs[0] is None:
        return None
    source, axes = node.inputs[0], state.axes
    shape = view.shape(source)
    if node.op_type in ("Mul", "Div"):
        return _scaled(view, state, node)
    if shape is None:
        return None
    new: list[_Axis] | None = None
    if node.op_type == "Identity":
        new = list(axes)
    elif node.op_type == "Transpose":
        perm = list(node.attributes["perm"].as_ints()) if "perm" in node.attributes else list(range(len(axes)))[::-1]
        new = [axes[perm.index(i)] for i in range(len(perm))]
    elif node.op_type in ("Reshape", "Flatten"):
        new = _regroup([a for axis in axes for a in axis], shape)
    elif node.op_type in ("Squeeze", "Unsqueeze"):
        new = _units(view, node, axes, len(shape))
    elif node.op_type == "Expand":
        new = _unexpand(axes, shape)
    if new is None:
        return None
    return replace(state, value=source, axes=tuple(new))


def _scaled(view: GraphView, state: _State, node: ir.Node) -> _State | None:
    a, b = node.inputs
    if a is None or b is None:
        return None
    for value, factor in ((a, view.scalar(b)), (b, view.scalar(a) if node.op_type == "Mul" else None)):
        if factor and len(view.shape(value) or ()) == len(state.axes):
            scale = state.scale * (factor if node.op_type == "Mul" else 1.0 / factor)
            return replace(state, value=value, scale=scale)
    return None


def _units(view: GraphView, node: ir.Node, axes: tuple[_Axis, ...], rank: int) -> list[_Axis] | None:
    """Undoes Squeeze (puts unit axes back) or Unsqueeze (drops them)."""
    listed = axes_of(view, node)
    if listed is None:
        return None
    if node.op_type == "Unsqueeze":
        drop = {a % len(axes) for a in listed}
        kept = [axis for i, axis in enumerate(axes) if i not in drop]
        lost = [a for i in drop for a in axes[i] if a.size != 1 and not a.repeated]
        # Atoms that ride on a dropped axis are of size one, or repeats: the repeats are kept in view of `heads`.
        return None if lost else kept
    put = {a % rank for a in listed}
    rest = iter(axes)
    return [() if i in put else next(rest) for i in range(rank)]


def _unexpand(axes: tuple[_Axis, ...], shape: tuple[Dim | None, ...]) -> list[_Axis] | None:
    """Undoes an Expand: the atoms of an axis that was 1 before are repeats. Only repeats of heads are understood."""
    if len(shape) != len(axes):
        return None
    new: list[_Axis] = []
    for axis, before in zip(axes, shape, strict=True):
        size = _product(axis)
        if before == 1 and size != (1, Counter()):
            if any(a.name != "h" and a.size != 1 for a in axis) or any(a.part == 0 for a in axis):
                return None
            new.append(tuple(replace(a, repeated=True) for a in axis if a.size != 1))
        elif before is not None and _size(before) == size:
            new.append(axis)
        else:
            return None
    return new


def _size(dim: Dim) -> tuple[int, Counter[str]]:
    return (dim, Counter()) if isinstance(dim, int) else (1, Counter([dim]))


def _product(atoms: _Axis | list[_Atom]) -> tuple[int, Counter[str]]:
    number, symbols = 1, Counter[str]()
    for atom in atoms:
        n, s = _size(atom.size)
        number, symbols = number * n, symbols + s
    return number, symbols


def _regroup(atoms: list[_Atom], dims: tuple[Dim | None, ...]) -> list[_Axis] | None:
    """Deals the atoms, in row-major order, out to axes of the sizes `dims`; None when that is not provably what Reshape did.

    Matches from the right, then from the left; what is left goes to the one remaining dim, whatever its name.
    """
    if any(a.repeated for a in atoms):
        return None
    rest = list(atoms)
    right: list[_Axis] = []
    left: list[_Axis] = []
    todo = list(dims)
    while todo and (axis := _take(rest, todo[-1], from_right=True)) is not None:
        right.insert(0, axis)
        todo.pop()
    while len(todo) > 1 and (axis := _take(rest, todo[0], from_right=False)) is not None:
        left.append(axis)
        todo.pop(0)
    if len(todo) == 1:
        left.append(tuple(rest))
        rest, todo = [], []
    if todo or any(a.size != 1 for a in rest):
        return None
    axes = [*left, *right]
    if rest and axes:
        axes[0] = (*rest, *axes[0])
    return axes


def _take(rest: list[_Atom], dim: Dim | None, *, from_right: bool) -> _Axis | None:
    """Removes from one end of `rest` the atoms that make up `dim`, splitting an integer atom if need be."""
    if dim is None:
        return None
    want, taken, pool = _size(dim), list[_Atom](), list(rest)
    at = -1 if from_right else 0
    if dim == 1:
        if pool and pool[at].size == 1:
            taken.append(pool.pop(at))
        rest[:] = pool
        return tuple(taken)
    while _product(taken) != want:
        if not pool:
            return None
        atom = pool.pop(at)
        have, symbols = _product([*taken, atom])
        if have > want[0] and isinstance(atom.size, int) and symbols == want[1]:
            split = _split(atom, want[0] // _product(taken)[0], from_right)
            if split is None:
                return None
            atom, remainder = split
            pool.insert(len(pool) if from_right else 0, remainder)
        elif have > want[0] or symbols - want[1]:
            return None
        taken.insert(0 if from_right else len(taken), atom)
    rest[:] = pool
    return tuple(taken)


def _split(atom: _Atom, size: int, from_right: bool) -> tuple[_Atom, _Atom] | None:
    """(the part of `size` at that end, the remainder). Only a whole head atom may be split: into K/V heads and repeats."""
    if not isinstance(atom.size, int) or size < 1 or atom.size % size or atom.name != "h" or atom.part is not None:
        return None
    other = atom.size // size
    inner, outer = (size, other) if from_right else (other, size)
    first, second = replace(atom, size=outer, part=0), replace(atom, size=inner, part=1)
    return (second, first) if from_right else (first, second)
