"""Limits of lengths that hold in every run of a model which does not fail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

import sympy

from onnx_fa.graph.dims import Shape, is_cut_to, pad_shapes, product_of
from onnx_fa.graph.lengths import Tail, Widest, dim_of, expression, is_never_negative
from onnx_fa.spec.terms import Dim

_MaybeShape = TypeVar("_MaybeShape", Shape, Shape | None)
_MOST = 64
"""Limits that are kept of either kind."""


class Limits:
    """A table of 512 positions that is cut to the length of the input has min(512, seq) rows. Where it is added to what has seq
    rows, seq is no more than 512: the model fails otherwise. From then on min(512, seq) is seq. In the same way a tensor with
    seq - 1 rows shows that min(1, seq) is 1."""

    def __init__(self) -> None:
        self._most: dict[sympy.Expr, sympy.Expr] = {}
        """Numbers that expressions never exceed."""
        self._least: set[sympy.Expr] = set()
        """Expressions that are the length of something, and so never negative."""
        self._same: dict[sympy.Expr, sympy.Expr] = {}
        """Symbols, and lengths that others broadcast to, which equal another one or a number; none of them stands in these."""
        self._windows: dict[sympy.Expr, sympy.Expr] = {}
        """Symbols of lengths that are at least 1, and what they do not exceed."""

    def learn_broadcast(self, shapes: Sequence[Shape]) -> None:
        """Takes in what must hold for shapes to broadcast to each other."""
        for dims in pad_shapes(shapes):
            wide = {d for d in dims if d is not None and d != 1}
            self._learn_equal(sorted(d for d in wide if isinstance(d, str)))
            for cut in wide:
                for whole in wide - {cut}:
                    expr = expression(cut)
                    numbers = [a for a in expr.args if a.is_Integer] if isinstance(expr, sympy.Min | Tail) else []
                    if numbers and is_cut_to(cut, whole) and len(self._most) < _MOST:
                        number = min(numbers)
                        self._most[expression(whole)] = min(number, self._most.get(expression(whole), number))

    def _learn_equal(self, dims: Sequence[str]) -> None:
        """Takes in that 4 * b and 4 * c broadcast to each other: neither is 1, so that b is c."""
        for first, second in pairwise(dims):
            (times, symbol), (also, other) = (self._resolve(expression(d)).as_coeff_Mul() for d in (first, second))
            multiples = times == also and times > 1 and symbol.is_Symbol and other.is_Symbol
            if multiples and symbol != other and len(self._same) < _MOST:
                self._set_same(other, symbol)
            elif times == also and times > 1:
                self._learn_widest(symbol, other)

    def learn_equal(self, a: Dim | None, b: Dim | None) -> None:
        """Takes in that two dims are equal, as those that a MatMul sums over: where one is the length that the other broadcasts to
        beside a third, that third one is absorbed; the symbol of 4*b beside a number is known from then on. A symbol alone keeps
        its name, which tells what the model asks of a caller."""
        if isinstance(a, str) and isinstance(b, str) and a != b:
            self._learn_widest(*(self._resolve(expression(d)) for d in (a, b)))
        for length, number in ((a, b), (b, a)):
            if isinstance(number, int) and isinstance(length, str) and not expression(length).is_Symbol:
                self.learn_count((length,), number)

    def learn_count(self, shape: Shape, count: int) -> None:
        """Takes in that a tensor has so many elements, which may say what one symbol of its shape is."""
        total = product_of(shape)
        if not isinstance(total, str) or len(self._same) >= _MOST:
            return
        times, symbol = self._resolve(expression(total)).as_coeff_Mul()
        if symbol.is_Symbol and times > 0 and count % int(times) == 0:
            self._set_same(symbol, sympy.Integer(count // int(times)))

    def learn_window(self, rows: Dim | None, most: Dim | None) -> None:
        """Takes in that of `most` rows that a Slice asks for it gives at least one, if it asks for one at all."""
        if isinstance(rows, str) and most is not None and expression(rows).is_Symbol and len(self._windows) < _MOST:
            self._windows[expression(rows)] = expression(most)

    def learn_parts(self, count: Dim | None, target: Sequence[Dim | None]) -> None:
        """Takes in that so many elements are made one or more parts of these dims. Rows of a window whose full number is one of the
        dims are then a full window: they are at least one, and no more than a part has."""
        part = product_of(target)
        if count is None or part is None:
            return
        whole, one = (self._resolve(expression(d)) for d in (count, part))
        for rows, most in self._windows.items():
            full = self._resolve(most)
            times, symbol = whole.as_coeff_Mul()
            if symbol == rows and sympy.expand(times * full - one) == 0 and dim_of(full) in target:
                self._set_same(rows, full)
                return

    def _learn_widest(self, a: sympy.Expr, b: sympy.Expr) -> None:
        """Takes in that two lengths are equal, of which one is what the other and more lengths broadcast to."""
        wide, other = (a, b) if isinstance(a, Widest) else (b, a)
        parts = set(other.args) if isinstance(other, Widest) else {other}
        if isinstance(wide, Widest) and parts < set(wide.args) and len(self._same) < _MOST:
            self._set_same(wide, other)

    def _set_same(self, expr: sympy.Expr, kept: sympy.Expr) -> None:
        self._same = {name: old.xreplace({expr: kept}) for name, old in self._same.items()}
        self._same[expr] = kept

    def _resolve(self, expr: sympy.Expr) -> sympy.Expr:
        """The expression with one symbol for those that are equal."""
        return expr.xreplace(self._same) if self._same else expr

    def learn_lengths(self, shape: Shape) -> None:
        """Takes in that there is a tensor of this shape."""
        for dim in shape:
            if (
                isinstance(dim, str)
                and " - " in dim
                and len(self._least) < _MOST
                and not is_never_negative(expression(dim))
            ):
                self._least.add(expression(dim))

    def is_length(self, dim: str) -> bool:
        """Whether the dim is never negative: by what it says, or as the length of something."""
        expr = expression(dim)
        return is_never_negative(expr) or any(is_never_negative(expr - length) for length in self._least)

    def settle(self, shape: _MaybeShape) -> _MaybeShape:
        """The dims, with those minima resolved of which it is known by now which argument they are."""
        if shape is None or not (self._most or self._least or self._same):
            return shape
        if not self._same and not any(isinstance(d, str) and "min(" in d for d in shape):
            return shape
        return tuple(self._settle(d) if isinstance(d, str) else d for d in shape)

    def _settle(self, dim: str) -> Dim | None:
        expr = self._resolve(expression(dim))
        if expr != expression(dim):
            expr = sympy.expand(expr)
        elif "min(" not in dim:
            return dim
        for _ in range(2):  # a minimum may stand in another
            resolved = {cut: told for cut in expr.atoms(sympy.Min) if (told := self._told(cut)) is not None}
            expr = sympy.expand(expr.xreplace(resolved))
        return dim_of(expr)

    def _told(self, cut: sympy.Min) -> sympy.Expr | None:
        """The argument that a minimum of a number and something else is known to be."""
        numbers = [a for a in cut.args if a.is_Integer]
        others = [a for a in cut.args if not a.is_Integer]
        if len(numbers) != 1 or len(others) != 1:
            return None
        number, other = numbers[0], others[0]
        enough = (other - number, *_over(other, number))
        if any(is_never_negative(more - length) for more in enough for length in self._least):
            return number
        for limited, most in self._most.items():
            if most <= number and is_never_negative(limited - other):
                return other
        return None


def _over(expr: sympy.Expr, number: sympy.Integer) -> Iterator[sympy.Expr]:
    """What is never negative where `expr`, a quotient, is never less than the number: p//q is no less where p is no less than q
    times it."""
    added, rest = expr.as_coeff_Add()
    if isinstance(rest, sympy.floor):
        over, under = sympy.fraction(sympy.together(rest.args[0]))
        if under.is_Integer:
            yield sympy.expand(over - (number - added) * under)
