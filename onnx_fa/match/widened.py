"""Masks whose dims have names of their own, of which nobody can tell whether they are 1, the score's, or more than the score's one.

A dim that meets one of the score that is a number above 1 is that number or 1: everything else fails. A dim m that meets a length s
of queries or of the batch is 1, or s, or any other number where s is 1: then the score is repeated m times, and so is the output.
Q with its rows repeated to what s and m broadcast to gives these scores too, whatever the two turn out to be, and then the mask has
one row for each query, so that nothing is left to prove. Where they are equal, which they are in all models that anybody meant,
that is a copy of Q.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.view import GraphView
from onnx_fa.match.exprs import Call, Const, Expr
from onnx_fa.match.misses import NoMatch
from onnx_fa.match.placed import Site, change_tensors, reads_position
from onnx_fa.match.types import AddTerm, Map, OperandChoice, Operands, Patterns, Select, Step
from onnx_fa.spec.terms import Dim


@dataclass(frozen=True)
class _Row:
    """A tensor of a step, and its dims as they meet those of the score: None in front where it has none."""

    value: Expr
    dims: tuple[Dim | None, ...]
    missing: int
    """How many dims of the score it does not have."""


def widen(
    view: GraphView, patterns: Patterns, site: Site, steps: Sequence[Step], dtype: str | None, name: str
) -> tuple[Operands, list[Step]]:
    """The operands and the steps, Q (and K and V, for the batch) repeated to the dims of masks that are not provably the score's,
    and these masks repeated to Q's. Both as they were where nothing is to be done, or where it cannot be done."""
    operands, unchanged = site.operands, list(steps)
    shape = (*operands.batch, operands.Hq, operands.Sq, operands.Skv)
    if dtype is None or not site.plain or operands.wrap or operands.rank2:
        return operands, unchanged
    odd = [i for i, step in enumerate(steps) if _is_odd(view, patterns, step, shape, dtype)]
    if not odd:
        return operands, unchanged
    wide = _find_wide_axes(view, [steps[i] for i in odd], shape)
    if wide is None or (wide and any(isinstance(s, Map) and reads_position(s.expr) for s in steps)):
        return operands, unchanged  # a row that is repeated keeps the position that it had
    if wide and any(x.integers is not None for x in (operands.q, operands.k, operands.v)):
        return operands, unchanged
    plan = _Plan(view, operands, shape, wide, name)
    changed = [change_tensors(s, plan.expand) if wide or i in odd else s for i, s in enumerate(steps)]
    return plan.operands(), changed


def _is_odd(view: GraphView, patterns: Patterns, step: Step, shape: tuple[Dim, ...], dtype: str) -> bool:
    """Whether a step has a tensor that does not provably broadcast to the score."""
    if not isinstance(step, AddTerm | Select | Map):
        return False
    rows = [_row(view, value, len(shape)) for value in _tensors(step)]
    if all(row is None or _fits(row, shape) for row in rows):
        return False
    try:
        patterns.mask(view, step, shape, dtype)
    except NoMatch:
        return True
    return False


def _tensors(step: Step) -> Sequence[Expr]:
    match step:
        case AddTerm(value):
            return (value,)
        case Select(keep):
            return (keep,)
        case Map(_, values):
            return values
    return ()


def _row(view: GraphView, value: Expr, rank: int) -> _Row | None:
    dims = view.shape(value) if isinstance(value, ir.Value) else value.shape if isinstance(value, Call) else None
    if dims is None or len(dims) > rank:
        return None
    return _Row(value, (*(1,) * (rank - len(dims)), *dims), rank - len(dims))


def _fits(row: _Row, shape: tuple[Dim, ...]) -> bool:
    return all(have in (1, want) for have, want in zip(row.dims, shape, strict=True))


def _find_wide_axes(view: GraphView, steps: Sequence[Step], shape: tuple[Dim, ...]) -> dict[int, _Row] | None:
    """For each axis of queries or batch the one mask that may repeat the score along it; None where a dim cannot be helped."""
    heads, keys = len(shape) - 3, len(shape) - 1
    found: dict[int, _Row] = {}
    for value in (v for step in steps for v in _tensors(step)):
        row = _row(view, value, len(shape))
        if row is None:
            return None
        for axis, (have, want) in enumerate(zip(row.dims, shape, strict=True)):
            if have in (1, want) or (not isinstance(have, int) and isinstance(want, int) and want > 1):
                continue
            if isinstance(have, int) or isinstance(want, int) or axis in (heads, keys):
                return None
            if axis in found and found[axis].value is not value:
                return None
            found[axis] = row
    return found


@dataclass(frozen=True)
class _Plan:
    """Which axes become wider, by which mask each, and what the wider ones are called."""

    view: GraphView
    given: Operands
    shape: tuple[Dim, ...]
    wide: Mapping[int, _Row]
    name: str

    def _dim(self, axis: int) -> Dim:
        """The dim of the wider score."""
        called = "sq" if axis == len(self.shape) - 2 else f"b{axis}"
        return f"{self.name}_{called}" if axis in self.wide else self.shape[axis]

    def expand(self, value: Expr) -> Expr:
        """A tensor of a step repeated to the wider score, but for the dims that it has not or that are one."""
        row = _row(self.view, value, len(self.shape))
        if row is None or not row.dims:
            return value
        parts: list[Expr] = []
        dims: list[Dim | None] = []
        for axis in range(row.missing, len(self.shape)):
            have, want = row.dims[axis], self.shape[axis]
            if have == 1 or (axis not in self.wide and have == want):
                parts.append(_numbers(1))
                dims.append(have)
            elif axis in self.wide:
                by = self.wide[axis]
                own = by.value is value
                parts.append(self._of_queries(axis) if own else _dim_of(by.value, axis - by.missing))
                dims.append(self._dim(axis))
            else:
                parts.append(_numbers(want) if isinstance(want, int) else _numbers(1))
                dims.append(want if isinstance(want, int) else have)
        if all(isinstance(p, Const) and p.array[0] == 1 for p in parts):
            return value
        return Call("Expand", (value, Call("Concat", tuple(parts), (("axis", 0),))), shape=tuple(dims))

    def _of_queries(self, axis: int) -> Expr:
        """The length of Q along an axis of the score."""
        q = self.given.q
        return _dim_of(q.value, q.layout.index(axis))

    def operands(self) -> Operands:
        """Q repeated along all axes that become wider, K and V along those of the batch."""
        if not self.wide:
            return self.given
        queries = len(self.shape) - 2
        batch = [axis for axis in self.wide if axis != queries]
        given = self.given
        return replace(
            given,
            q=self._repeat(given.q, list(self.wide)),
            k=self._repeat(given.k, batch),
            v=self._repeat(given.v, batch),
            batch=tuple(self._dim(axis) for axis in range(len(given.batch))),
            Sq=self._dim(queries),
        )

    def _repeat(self, choice: OperandChoice, axes: Sequence[int]) -> OperandChoice:
        if not axes:
            return choice
        parts: list[Expr] = [_numbers(1)] * len(choice.layout)
        for axis in axes:
            by = self.wide[axis]
            parts[choice.layout.index(axis)] = _dim_of(by.value, axis - by.missing)
        return replace(choice, value=Call("Expand", (choice.value, Call("Concat", tuple(parts), (("axis", 0),)))))


def _dim_of(value: Expr, axis: int) -> Expr:
    """A vector of one element: a dim of a value as it is at run time."""
    return Call("Slice", (Call("Shape", (value,)), _numbers(axis), _numbers(axis + 1)))


def _numbers(*numbers: int) -> Const:
    return Const(np.asarray(numbers, np.int64))
