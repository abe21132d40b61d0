"""Axes as row-major lists of atoms: what Transpose, Reshape, Squeeze, Unsqueeze and Expand do to named dims.

An atom is a dim of a site, or a factor of one. Dims of size one are no atoms: a unit axis is an empty list.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np

from onnx_fa.graph.dims import factors_of, product_of
from onnx_fa.match.exprs import Call, Const, Expr
from onnx_fa.match.misses import NoMatch
from onnx_fa.spec.terms import Dim


class Sized(Protocol):
    @property
    def size(self) -> Dim: ...


A = TypeVar("A", bound=Sized)
Size = tuple[int, Counter[str]]


def size_of(dim: Dim) -> Size:
    """A number and the symbols that multiply it: of 2*s the number is 2."""
    if isinstance(dim, int):
        return dim, Counter()
    if "*" not in dim:
        return 1, Counter([dim])
    factors = factors_of(dim)
    return math.prod(f for f in factors if isinstance(f, int)), Counter(f for f in factors if isinstance(f, str))


def multiply_sizes(atoms: Sequence[Sized]) -> Size:
    """The size of an axis: a number and the symbols that multiply it."""
    number, symbols = 1, Counter[str]()
    for atom in atoms:
        n, s = size_of(atom.size)
        number, symbols = number * n, symbols + s
    return number, symbols


def regroup(
    atoms: Sequence[A],
    dims: Sequence[Dim | None],
    split: Callable[[A, int, bool], tuple[A, A] | None],
    spread: Callable[[A, Sequence[Dim | None]], list[A]] | None = None,
) -> list[list[A]] | None:
    """Deals atoms, in row-major order, out to axes of the sizes `dims`; None when that is not provably what Reshape did.

    Matches from the right, then from the left; what is left goes to the one remaining dim, whatever its name, since a Reshape
    keeps the number of elements. `split(atom, size, from_right)` gives (the part of `size` at that end, the remainder) or None.
    `spread(atom, dims)` cuts the one remaining atom into the remaining dims.
    """
    rest = [a for a in atoms if a.size != 1]
    right: list[list[A]] = []
    left: list[list[A]] = []
    todo = list(dims)
    while todo:
        axis = _take(rest, todo[-1], True, split)
        if axis is not None:
            right.insert(0, axis)
            todo.pop()
            continue
        cut = _cut_last(rest, todo, spread) if spread is not None else None
        if cut is None:
            break
        right = [*cut, *right]
    while len(todo) > 1 and (axis := _take(rest, todo[0], False, split)) is not None:
        left.append(axis)
        todo.pop(0)
    if len(todo) == 1:
        left.append(rest)
        rest, todo = [], []
    elif len(rest) == 1 and todo and spread is not None:
        parts = iter(spread(rest[0], [d for d in todo if d != 1]))
        left += [[next(parts)] if d != 1 else [] for d in todo]
        rest, todo = [], []
    return None if todo or rest else [*left, *right]


def _cut_last(
    rest: list[A], todo: list[Dim | None], spread: Callable[[A, Sequence[Dim | None]], list[A]]
) -> list[list[A]] | None:
    """Removes the last atom of `rest` and those last dims of `todo` whose product its size is, as in 2*s for (2, s)."""
    if not rest or isinstance(rest[-1].size, int):
        return None
    for count in range(2, len(todo) + 1):
        dims = todo[-count:]
        if product_of(dims) == rest[-1].size:
            parts = iter(spread(rest.pop(), [d for d in dims if d != 1]))
            del todo[-count:]
            return [[next(parts)] if d != 1 else [] for d in dims]
    return None


def _take(
    rest: list[A], dim: Dim | None, from_right: bool, split: Callable[[A, int, bool], tuple[A, A] | None]
) -> list[A] | None:
    """Removes from one end of `rest` the atoms that make up `dim`, splitting an integer atom if need be."""
    if dim is None:
        return None
    want, taken, pool = size_of(dim), list[A](), list(rest)
    at = -1 if from_right else 0
    while (have := multiply_sizes(taken)) != want:
        if not pool:
            return None
        atom = pool.pop(at)
        number, symbols = multiply_sizes([*taken, atom])
        if number > want[0] and isinstance(atom.size, int) and symbols == want[1]:
            size, odd = divmod(want[0], have[0])
            parts = split(atom, size, from_right) if size > 1 and not odd and atom.size % size == 0 else None
            if parts is None:
                return None
            atom, remainder = parts
            pool.insert(len(pool) if from_right else 0, remainder)
        elif number > want[0] or symbols - want[1]:
            return None
        taken.insert(0 if from_right else len(taken), atom)
    rest[:] = pool
    return taken


@dataclass(eq=False)
class Atom:
    """A dim of the site. Once split, its parts stand wherever it stood."""

    name: str
    size: Dim
    parts: list[Atom] = field(default_factory=list)
    whole: Atom | None = None
    """What it is a part of."""
    apart: bool = False
    """Operands, or a mask, have lengths of their own there, of which `size` is the one that they broadcast to."""

    def leaves(self) -> list[Atom]:
        return [leaf for p in self.parts for leaf in p.leaves()] if self.parts else [self]


Axis = list[Atom]


@dataclass(frozen=True, eq=False)
class Group:
    """A canonical dim of the site ("b0", ..., "h", "s", "d") and the atoms it is made of."""

    name: str
    atoms: tuple[Atom, ...]
    size: Dim
    mark: Atom = field(default_factory=lambda: Atom("unit", 1))
    """Stands on an operand's axis of size one to say that it is this dim."""


def leaves(axis: Sequence[Atom]) -> Axis:
    return [leaf for a in axis for leaf in a.leaves()]


def split_atom(atom: Atom, size: int, from_right: bool) -> tuple[Atom, Atom]:
    """Splits an integer atom in two, `size` at the end asked for."""
    assert isinstance(atom.size, int)
    piece, remainder = (
        Atom(f"{atom.name}.{'lo' if from_right else 'hi'}", size),
        Atom(f"{atom.name}.r", atom.size // size),
    )
    piece.whole = remainder.whole = atom
    atom.parts = [remainder, piece] if from_right else [piece, remainder]
    return piece, remainder


def spread_atom(atom: Atom, dims: Sequence[Dim | None]) -> list[Atom]:
    """Splits an atom whose size is not known in numbers."""
    atom.parts = [
        Atom(f"{atom.name}.{i}", d if d is not None else f"{atom.size}.{i}", whole=atom) for i, d in enumerate(dims)
    ]
    return atom.parts


def has_size(axis: Sequence[Atom], dim: Dim) -> bool:
    """Whether an axis of these atoms provably has this size."""
    axis = leaves(axis)
    whole = axis[0] if axis else None
    while whole is not None:
        if whole.size == dim and whole.leaves() == axis:
            return True
        whole = whole.whole
    return multiply_sizes(axis) == size_of(dim)


# Operand expressions that move atoms.


@dataclass(frozen=True)
class Source:
    """An existing value that has an atom as a whole axis: its size at run time."""

    value: Expr
    axis: int
    others: tuple[Source, ...] = ()
    """The size is the one that these and the value's axis broadcast to."""


Sources = dict[Atom, Source]


def move_axes(expr: Expr, have: Sequence[Axis], want: Sequence[Axis], sources: Sources) -> Expr:
    """`expr` with axes `have` brought into the axes `want`, which hold the same atoms in any order.

    Raises NoMatch where a size is not known at rewriting time and cannot be read off an operand.
    """
    have, want = [leaves(a) for a in have], [leaves(a) for a in want]
    order = [a for axis in have for a in axis]
    wanted = [a for axis in want for a in axis]
    if sorted(map(id, order)) != sorted(map(id, wanted)):
        raise NoMatch("an operand has axes that are none of the attention's")
    if order != wanted:
        # Whole axes move if they can; otherwise every atom gets an axis of its own first.
        if len(have) == len(want):
            perm = _permutation(have, want)
            if perm is not None:
                return Call("Transpose", (expr,), (("perm", perm),))
        blocks = have if all(_contiguous(axis, wanted) for axis in have) else [[a] for a in order]
        blocks = [b for b in blocks if b]
        expr = regroup_axes(expr, have, blocks, sources)
        moved_blocks = sorted(blocks, key=lambda b: wanted.index(b[0]))
        expr = Call("Transpose", (expr,), (("perm", tuple(blocks.index(b) for b in moved_blocks)),))
        have = moved_blocks
    return regroup_axes(expr, have, want, sources)


def _contiguous(axis: Axis, wanted: Axis) -> bool:
    at = [wanted.index(a) for a in axis]
    return at == list(range(at[0], at[0] + len(at))) if at else True


def _permutation(have: Sequence[Axis], want: Sequence[Axis]) -> tuple[int, ...] | None:
    free = list(range(len(have)))
    perm = []
    for axis in want:
        at = next((i for i in free if have[i] == axis), None)
        if at is None:
            return None
        free.remove(at)
        perm.append(at)
    return tuple(perm)


def regroup_axes(expr: Expr, have: Sequence[Axis], want: Sequence[Axis], sources: Sources) -> Expr:
    """The same atoms in the same order, dealt out to other axes: Squeeze and Unsqueeze where only unit axes differ."""
    have, want = list(have), list(want)
    if have == want:
        return expr
    if [a for a in have if a] == [a for a in want if a]:
        drop, put = _unit_changes(have, want)
        if drop:
            expr = Call("Squeeze", (expr, Const(np.asarray(drop, np.int64))))
        return Call("Unsqueeze", (expr, Const(np.asarray(put, np.int64)))) if put else expr
    pieces: list[int | Expr] = []
    rest = False
    for i, axis in enumerate(want):
        number, symbols = multiply_sizes(axis)
        if not symbols:
            pieces.append(number)
        elif i < len(have) and have[i] == axis:
            pieces.append(0)
        elif not rest:
            pieces.append(-1)
            rest = True
        else:
            pieces.append(run_time_size(axis, sources, Source(expr, have.index(axis)) if axis in have else None))
    if not all(isinstance(p, int) for p in pieces):
        # IREE divides by a 0 in a shape that is known at run time, in place of the size that it stands for.
        pieces = [_read_size(Source(expr, i)) if p == 0 else p for i, p in enumerate(pieces)]
    return Call("Reshape", (expr, _vector(pieces)))


def _unit_changes(have: list[Axis], want: list[Axis]) -> tuple[list[int], list[int]]:
    """Unit axes of `have` to drop, then unit axes of `want` to put: between two whole axes only the difference."""
    drop: list[int] = []
    put: list[int] = []
    i = j = 0
    while i < len(have) or j < len(want):
        units_have, units_want = [], []
        while i < len(have) and not have[i]:
            units_have.append(i)
            i += 1
        while j < len(want) and not want[j]:
            units_want.append(j)
            j += 1
        more = len(units_have) - len(units_want)
        drop += units_have[:more] if more > 0 else []
        put += units_want[:-more] if more < 0 else []
        i, j = i + 1, j + 1
    return drop, put


def run_time_size(axis: Axis, sources: Sources, own: Source | None = None) -> Expr:
    """A one-element int64 tensor: the size of an axis of one atom. Raises NoMatch where no operand has it."""
    source = own or (sources.get(axis[0]) if len(axis) == 1 else None)
    if source is None:
        sizes = "*".join(str(a.size) for a in axis)
        raise NoMatch(
            f"a reshape of Q, K, V or a mask needs the size {sizes}, which is that of no axis of theirs at run time"
        )
    return broadcast_sizes([_read_size(s) for s in (source, *source.others)])


def broadcast_sizes(sizes: Sequence[Expr]) -> Expr:
    """The size that all of them broadcast to where they do, as a one-element int64 tensor: the first one that is not 1, or 1."""
    total, *rest = sizes
    one = Const(np.asarray([1], np.int64))
    for size in rest:
        total = Call("Where", (Call("Equal", (total, one)), size, total))
    return total


def _read_size(source: Source) -> Expr:
    at = Const(np.asarray([source.axis], np.int64)), Const(np.asarray([source.axis + 1], np.int64))
    return Call("Slice", (Call("Shape", (source.value,)), *at))


def _vector(pieces: Sequence[int | Expr]) -> Expr:
    if all(isinstance(p, int) for p in pieces):
        return Const(np.asarray(pieces, np.int64))
    parts = tuple(Const(np.asarray([p], np.int64)) if isinstance(p, int) else p for p in pieces)
    return Call("Concat", parts, (("axis", 0),))


def expand_axes(expr: Expr, shape: Sequence[Axis | None], sources: Sources) -> Expr:
    """`expr` expanded along the unit axes for which `shape` names atoms (None: the axis stays)."""
    pieces: list[int | Expr] = []
    for axis in shape:
        number, symbols = multiply_sizes(axis or [])
        pieces.append(run_time_size(axis or [], sources) if symbols else number)
    if all(p == 1 for p in pieces if isinstance(p, int)) and all(isinstance(p, int) for p in pieces):
        return expr
    return Call("Expand", (expr, _vector(pieces)))
