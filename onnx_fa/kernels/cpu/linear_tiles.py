"""Linear sites of bf16 or bytes by AMX's tiles.

The dispatch sees words of 32 bits, pairs or fours along K. The panels of the weight are AMX's right factor as they lie there, and
rows of x its left one, so that tiles are loaded from where the operands are.
"""

from __future__ import annotations

from onnx_fa.kernels.cpu.addresses import Addresses
from onnx_fa.kernels.cpu.amx import PAIRS, ROWS, Product, Tile, TileUnit
from onnx_fa.kernels.cpu.linear_body import LinearBody, steps_of
from onnx_fa.kernels.cpu.linear_pairs import ByteBody, PairBody
from onnx_fa.kernels.cpu.pointers import moved
from onnx_fa.kernels.mlir.text import memref_type

_DOWN = 2
"""Tiles of rows that are multiplied at once, as many as of columns in a panel."""
_UNROLL = 4
"""Steps along K that are written out, where so many divide them."""


class TileBody(LinearBody):
    """Products by tiles where the processor grants them, of K that whole tiles divide. The next class says what multiplies where it
    does not."""

    addresses: Addresses
    tile_product: Product

    def executable(self, symbol: str) -> list[str]:
        self.addresses = Addresses(symbol)
        return super().executable(symbol)

    def _begin(self) -> None:
        t, rows = self.t, self.spec.rows
        # Fewer rows than a tile's are a lower tile, so that nothing is read past the last.
        self.height = t.arith("minsi", self.rows, t.index(ROWS)) if rows is None or rows < ROWS else t.index(ROWS)
        self.unit = TileUnit(t, self.height if rows is None or rows < ROWS else None, self.tile_product)
        self.sums_type = memref_type((_DOWN * ROWS, self.spec.panel), self.sum_element)
        self.sums = t.empty(self.sums_type)
        self.sums_at = self.unit.pointer(self.sums, self.sums_type)
        self.x_at, self.w_at = (self.addresses.of(t, *self.loaded[name]) for name in ("%x", "%w"))

    def _end(self) -> None:
        self.unit.release()

    def _panel(self, panel: str, column: str, first: str, last: str, y: str) -> str:
        t = self.t
        made = t.let(f"scf.if {self.unit.granted} -> ({self.y_type}) {{")
        t.do(f"scf.yield {self._by_tiles(panel, column, first, last, y)} : {self.y_type}")
        t.do("} else {")
        t.do(f"scf.yield {super()._panel(panel, column, first, last, y)} : {self.y_type}")
        t.do("}")
        return made

    def _by_tiles(self, panel: str, column: str, first: str, last: str, y: str) -> str:
        """y with the columns of a panel, two tiles of rows at a time, and one at the end where one is left."""
        t, rows, step = self.t, self.spec.rows, _DOWN * ROWS
        weight = moved(t, self.w_at, panel, 4 * steps_of(self.spec) * self.spec.panel)

        def block(row: str, carried: list[str]) -> list[str]:
            y = carried[0]
            if rows is not None and (rows <= ROWS or rows % step == 0 or rows % step > ROWS):
                return [self._block(weight, column, row, 1 if rows <= ROWS else _DOWN, y)]
            several = t.test("slt", t.shifted(row, ROWS), last)
            made = t.let(f"scf.if {several} -> ({self.y_type}) {{")
            for down, end in ((_DOWN, "} else {"), (1, "}")):
                t.do(f"scf.yield {self._block(weight, column, row, down, y)} : {self.y_type}")
                t.do(end)
            return [made]

        return t.loop((first, last, t.index(step)), [(y, self.y_type)], block)[0]

    def _block(self, weight: str, column: str, row: str, down: int, y: str) -> str:
        """y with so many tiles of rows from `row` on; those that would pass the last begin earlier."""
        t, unit, steps, w = self.t, self.unit, steps_of(self.spec), self.t.width
        last = t.arith("subi", self.rows, self.height)
        rows = [t.arith("minsi", t.shifted(row, ROWS * i), last) for i in range(down)]
        lefts = [moved(t, self.x_at, r, 4 * steps) for r in rows]
        unroll = next(u for u in (_UNROLL, 2, 1) if steps // PAIRS % u == 0)
        unit.clear(down, self.vectors)
        k = t.fresh()
        t.do(f"scf.for {k} = {t.index(0)} to {t.index(steps)} step {t.index(unroll * PAIRS)} {{")
        x = [moved(t, left, k, 4) for left in lefts]
        panel = moved(t, weight, k, 4 * self.spec.panel)
        for u in range(unroll):
            right = Tile(panel, 4 * self.spec.panel, 4 * self.spec.panel * PAIRS * u)
            unit.add_product([Tile(at, 4 * steps, 4 * PAIRS * u) for at in x], right, self.vectors)
        t.do("}")
        unit.store(Tile(self.sums_at, 4 * self.spec.panel), down, self.vectors)
        for i, start in enumerate(rows):

            def finish(r: str, carried: list[str], i: int = i, start: str = start) -> list[str]:
                y, at = carried[0], t.arith("addi", start, r)
                for j in range(self.vectors):
                    place = t.shifted(r, ROWS * i), t.index(w * j)
                    total = t.read(self.sums, self.sums_type, *place, element=self.sum_element)
                    y = self._write(total, y, at, t.shifted(column, w * j))
                return [y]

            (y,) = t.loop((t.index(0), self.height, t.index(1)), [(y, self.y_type)], finish)
        return y


class PairTiles(TileBody, PairBody):
    """Of bf16."""


class ByteTiles(TileBody, ByteBody):
    """Of bytes."""
