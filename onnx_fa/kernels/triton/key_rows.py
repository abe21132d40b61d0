"""The rows of K or V that a block of keys reads, as tiles of numbers: where they stand, in the order of the keys or by an index
into a pool, and how integers are widened, in registers: (integer - zero point) * scale, rounded once to the spec's type.

Of a few queries the products read V from registers, in the order of keys: four integers of a row are loaded there as one word, as
a load of each would take four times as long, and as many loads again would meet in the same bank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnx_fa.kernels.mlir.stored import is_packed, stored_shape
from onnx_fa.kernels.triton import widening
from onnx_fa.kernels.triton.columns import Columns, Part, parts_of
from onnx_fa.kernels.triton.config import FEW
from onnx_fa.kernels.triton.places import Operand, Places, is_narrow
from onnx_fa.kernels.triton.program import product, times
from onnx_fa.spec.terms import Dim, Quantized

_LEAST_OF_WORDS = 64
"""Columns of a head whose words make a whole tile for each place in them."""


@dataclass(frozen=True)
class KeyBlock:
    """The keys of a block, of which the first is `k0`. `inside`: which of them there are, "" for all; `rows`: where they stand in
    the pools that they are gathered from, "" where they stand in their order."""

    k0: str
    inside: str
    rows: str
    following: str = ""
    """The first key of the next block, where that is the one behind it and `begin` was called."""


@dataclass(frozen=True)
class _Scales:
    """Scales or zero points of a head: where they begin, how far apart those of two keys are ("" where all keys have the same), and
    those of two groups of `shared` columns (0: all columns have the same)."""

    base: str
    row: str
    shared: int
    column: str
    narrow: bool
    """Whether 32 bits address them."""


class KeyRows:
    """K or V (`letter`) of a head as source. `lead`: the indices of its batch dims and its head."""

    def __init__(self, places: Places, letter: str, lead: Sequence[str]) -> None:
        spec = places.spec
        self.places, self.t, self.letter = places, places.t, letter
        is_k = letter == "k"
        self.quant = spec.k_quant if is_k else spec.v_quant
        self.layout = spec.k_layout if is_k else spec.v_layout
        self.width = spec.D if is_k else spec.Dv
        shape = spec.canonical_shapes[1 if is_k else 2]
        self.length = shape[-2]
        self.operand = places.operand(letter, stored_shape(shape, self.dtype), self.layout, list(lead))
        self.together = self._numbers_together()
        name, single = "od" if is_k else "ov", spec.dtype == "f32"
        self.parts = parts_of(name, self.width, together=self.together, single=single)
        self.scale = self._scales(f"{letter}_scale", self.quant, lead) if self.quant else None
        self.zero = self._scales(f"{letter}_zero", self.quant, lead) if self.quant and self.quant.zero_point else None
        self.carried: dict[str, str] = {}
        """Scales and zero points of a block, of which each key has one, that were loaded with the block before, by base."""
        self.kept: dict[tuple[str, str], str] = {}
        """Scales and zero points that all keys share, by base and columns."""

    @property
    def columns(self) -> list[Columns]:
        """All columns of the head, tile by tile."""
        return [columns for part in self.parts for columns in part.columns]

    @property
    def dtype(self) -> str:
        return self.quant.dtype if self.quant else self.places.spec.dtype

    def _numbers_together(self) -> int:
        """Neighbours of a row that are loaded as one number."""
        if self._has_words():
            return widening.TOGETHER
        return 2 if is_packed(self.dtype) else 1

    def _has_words(self) -> bool:
        """Whether several integers of a row are loaded as one word: of V for a few queries, in rows that consist of words."""
        if self.quant is None or self.letter == "k" or self.places.config.BM > FEW:
            return False
        row, size = self.operand.row, widening.TOGETHER // (2 if is_packed(self.dtype) else 1)
        rows = self.layout[-1] == self.places.spec.rank - 1 and row.isdigit() and int(row) % size == 0
        return rows and self.width % widening.TOGETHER == 0 and self.width >= _LEAST_OF_WORDS

    def _scales(self, name: str, quant: Quantized, lead: Sequence[str]) -> _Scales:
        rank = self.places.spec.rank
        shape: tuple[Dim, ...] = (1,) * (rank - len(quant.shape)) + quant.shape
        small = is_narrow(shape)

        def step(axis: int, wide: bool) -> str:
            """How far apart two neighbours along a canonical axis are; "" where there is one number for all."""
            place = self.layout.index(axis)
            return "" if shape[place] == 1 else product(shape[place + 1 :], self.places.names, wide)

        terms = [name]
        for axis, x in enumerate(lead):
            if stride := step(axis, not small):
                terms.append(f"({times(x if small else f'{x}.to(tl.int64)', stride)})")
        groups = shape[self.layout.index(rank - 1)]
        assert isinstance(groups, int)
        base = self.t.let(" + ".join(terms))
        shared = 0 if groups == 1 else self.width // groups
        return _Scales(base, step(rank - 2, not small), shared, step(rank - 1, False), small)

    def prepare(self) -> None:
        """What all blocks share: indices of columns, scales and zero points that do not vary along the keys."""
        for part in self.parts:
            for columns in dict.fromkeys((part.stored, *part.columns)):
                self.t.do(f"{columns.name} = {columns.indices}")
        for scales in (self.scale, self.zero):
            if scales is None or scales.row:
                continue
            for columns in self.columns:
                found = self._loaded(scales, columns, None)
                self.kept[scales.base, columns.name] = self.t.let(self._typed(scales, found))

    def begin(self, k0: str) -> None:
        """Loads the first block's scales and zero points, of which each key has one, before a loop that takes the blocks in order.
        They are too narrow for copies that do not wait, so that each block loads those of the next."""
        for scales in self._ahead():
            self.t.do(f"{self._ahead_name(scales)} = {self._loaded_ahead(scales, k0)}")

    def advance(self, block: KeyBlock) -> None:
        """Takes what was loaded for this block, and loads it for the next; nothing where the blocks are not in order."""
        self.carried = {}
        for scales in self._ahead() if block.following else ():
            name = self._ahead_name(scales)
            self.carried[scales.base] = self.t.let(f"{self._typed(scales, name)}")
            self.t.do(f"{name} = {self._loaded_ahead(scales, block.following)}")

    def _ahead(self) -> list[_Scales]:
        return [s for s in (self.scale, self.zero) if s is not None and s.row and not s.shared]

    def _ahead_name(self, scales: _Scales) -> str:
        return f"next_{self.letter}_{'scale' if scales is self.scale else 'zero'}"

    def _loaded_ahead(self, scales: _Scales, k0: str) -> str:
        row = f"({k0} + on)" if scales.narrow else f"({k0} + on).to(tl.int64)"
        return f"tl.load({scales.base} + {times(row, scales.row)}, mask={k0} + on < {self.places.skv}, other=0.0)"

    def tiles(self, part: Part, block: KeyBlock) -> list[str]:
        """The numbers of a part's columns, keys x columns, one tile for each of `part.columns`; 0 past the last key."""
        places = self.places
        if block.rows:
            start, rows = self.operand.base, block.rows
        else:
            start, rows = self.t.let(places.moved(self.operand, block.k0, self.length)), "on"
        operand = self.operand
        if self.together == widening.TOGETHER:
            start = f"({start}).to(tl.pointer_type({widening.word_type(self.dtype)}))"
            size = widening.TOGETHER // (2 if is_packed(self.dtype) else 1)
            operand = Operand(start, str(int(operand.row) // size), "1")
        inside = f"{block.inside}[:, None]" if block.inside else ""
        x = places.load(places.tile(start, operand, rows, part.stored.name), inside, part.stored.mask)
        if self.quant is None:
            return [x]
        numbers = widening.widened(self.t.let, x, self.dtype, places.spec.dtype, self.together)
        return [self._widened(n, c, block, inside) for n, c in zip(numbers, part.columns, strict=True)]

    def _widened(self, x: str, columns: Columns, block: KeyBlock, inside: str) -> str:
        """Integers as numbers."""
        assert self.scale is not None
        if self.zero is not None:
            x = f"({x} - {self._parameter(self.zero, columns, block)})"
        x = self.t.let(f"{x} * {self._parameter(self.scale, columns, block)}")
        # A number that is not there multiplies nothing, not even with a scale that is infinite.
        return self.t.let(f"tl.where({inside}, {x}, 0.0)") if inside and self.letter == "v" else x

    def _parameter(self, scales: _Scales, columns: Columns, block: KeyBlock) -> str:
        if scales.base in self.carried:
            return f"{self.carried[scales.base]}[:, None]"
        kept = self.kept.get((scales.base, columns.name))
        return kept or self.t.let(self._typed(scales, self._loaded(scales, columns, block)))

    def _loaded(self, scales: _Scales, columns: Columns, block: KeyBlock | None) -> str:
        """The scales or zero points of a tile's columns, for the keys of a block or for all of them."""
        at, masks = scales.base, []
        if block is not None:
            row = f"({block.k0} + on)" if scales.narrow else f"({block.k0} + on).to(tl.int64)"
            at += f" + {times(f'{row}[:, None]' if scales.shared else row, scales.row)}"
            masks = [f"{block.inside}[:, None]" if scales.shared else block.inside] if block.inside else []
        if scales.shared:
            group = f"({columns.name} // {scales.shared})" if scales.shared > 1 else columns.name
            at += f" + {times(f'{group}[None, :]', scales.column)}"
            masks += [columns.mask] if columns.mask else []
        found = self.places.load(at, *masks)
        return f"{found}[:, None]" if block is not None and not scales.shared else found

    def _typed(self, scales: _Scales, x: str) -> str:
        """A scale in the spec's type, or a zero point as a whole number of it."""
        if scales is self.scale:
            return x
        return widening.whole_number(x, self.dtype, self.places.spec.dtype)
