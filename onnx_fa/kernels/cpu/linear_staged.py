"""Linear sites whose numbers are kept in fewer bits than they are multiplied in: f16, or a weight of f16 or bf16 by an x of f32.

Every such number is exact in f32. A block of a panel along K becomes f32 in memory on the stack, where the first cache holds it,
and is multiplied by all rows of the workgroup before the next; the sums wait there meanwhile. A few rows are multiplied by what is
widened in registers, since reading the weight is what takes the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onnx_fa.kernels.cpu.linear_body import FEW, LinearBody, LinearTiles, steps_of
from onnx_fa.kernels.mlir.text import memref_type
from onnx_fa.spec.linear import LinearSpec

DEEP = 128
"""Steps along K of a block: 16 KiB of a panel of 32 columns."""


MOST_STACK = 30 << 10
"""Bytes of stack for these: the compiler allows 32 KiB by default, of which it takes some more itself."""


def staged_bytes(tiles: LinearTiles, *, stages_x: bool) -> int:
    """What waits on the stack: a block of a panel, the sums of a workgroup's rows, and the same steps of a tile's rows of x."""
    panel = tiles.vectors * tiles.lanes
    return 4 * (DEEP * panel + tiles.rows * tiles.down * panel + tiles.rows * DEEP * stages_x)


class StagedBody(LinearBody):
    """Products of f32 whose factors are widened first."""

    widens_in_registers = True
    """Whether `_weights` can read the weight itself, for a few rows."""

    def __init__(self, spec: LinearSpec, tiles: LinearTiles, workers: Sequence[int]) -> None:
        super().__init__(spec, tiles, workers)
        self.stages_x = self.operands[0].element != "f32"
        self.staged = False
        self.steps = spec.K
        """Along K, of which a block has DEEP."""

    def _begin(self) -> None:
        # Memory is taken once: what a loop takes it keeps until the dispatch ends.
        t, tiles, spec = self.t, self.tiles, self.spec
        high = tiles.rows * tiles.down
        self.w_type, self.sums_type = (
            memref_type((DEEP, spec.panel), "f32"),
            memref_type((high, spec.panel), self.sum_element),
        )
        self.x_type = memref_type((tiles.rows, DEEP), "f32")
        if tiles.rows > FEW or not self.widens_in_registers:
            self.w_block, self.sums = t.empty(self.w_type), t.empty(self.sums_type)
        if self.stages_x:
            self.x_block = t.empty(self.x_type)

    def _rows(self, panel: str, column: str, rows: tuple[str, str], tall: int, y: str) -> str:
        if tall <= FEW and self.widens_in_registers:
            return super()._rows(panel, column, rows, tall, y)
        t, (first, last) = self.t, rows
        whole = self.spec.rows is not None and self.spec.rows % tall == 0

        def over_tiles(y: str, body: Callable[[list[str], list[str], str], str]) -> str:
            """y after something is done to each tile, of these rows and with its sums at these places."""

            def tile(row: str, carried: list[str]) -> list[str]:
                place = t.arith("subi", row, first)
                if tall > 1 and not whole:
                    row = t.arith("minsi", row, t.arith("subi", self.rows, t.index(tall)))
                own, places = ([t.shifted(start, i) for i in range(tall)] for start in (row, place))
                return [body(own, places, carried[0])]

            return t.loop((first, last, t.index(tall)), [(y, self.y_type)], tile)[0]

        def clear(_: list[str], places: list[str], y: str) -> str:
            self._keep([self._nothing()] * (tall * self.vectors), places)
            return y

        def add(own: list[str], places: list[str], y: str) -> str:
            self._add_block(panel, own, places)
            return y

        def block(k: str, carried: list[str]) -> list[str]:
            self._stand_at(k)
            self._stage_weight(panel, column)
            return [over_tiles(carried[0], add)]

        (y,) = t.loop((t.index(0), t.index(self.steps), t.index(DEEP)), [(over_tiles(y, clear), self.y_type)], block)
        return over_tiles(y, lambda own, places, y: self._finish(column, own, places, y))

    def _stand_at(self, k: str) -> None:
        """Makes the block from step k on the one that is staged."""
        t = self.t
        self.start, self.size = k, t.index(DEEP)
        if self.steps % DEEP:
            self.size = t.arith("minsi", self.size, t.arith("subi", t.index(self.steps), k))

    def _keep(self, sums: list[str], places: list[str]) -> None:
        """Writes the sums of a tile to where they wait."""
        t, n = self.t, self.vectors
        for i, total in enumerate(sums):
            at = places[i // n], t.index(t.width * (i % n))
            t.write(total, self.sums, self.sums_type, *at, element=self.sum_element)

    def _kept(self, places: list[str]) -> list[str]:
        t = self.t
        return [
            t.read(self.sums, self.sums_type, place, t.index(t.width * j), element=self.sum_element)
            for place in places
            for j in range(self.vectors)
        ]

    def _add_block(self, panel: str, rows: list[str], places: list[str]) -> None:
        """Adds the products of a tile with the block of the weight that is staged."""
        t, tall = self.t, len(rows)
        kept = self._kept(places)
        starts = kept + self._starts(tall, DEEP)[len(kept) :]
        if self.stages_x:
            self._stage_x(rows)
        self.staged = True
        made = self._walk(panel, rows, (t.index(0), self.size), starts)
        self.staged = False
        self._keep(self._folded(made, tall), places)

    def _finish(self, column: str, rows: list[str], places: list[str], y: str) -> str:
        """y with what becomes of the sums of a tile."""
        t, n = self.t, self.vectors
        for i, total in enumerate(self._kept(places)):
            y = self._write(total, y, rows[i // n], t.shifted(column, t.width * (i % n)))
        return y

    def _sums(self, panel: str, rows: list[str]) -> list[str]:
        """Of a few rows."""
        t, steps = self.t, steps_of(self.spec)
        if not self.stages_x:
            return super()._sums(panel, rows)

        def block(k: str, sums: list[str]) -> list[str]:
            self._stand_at(k)
            self._stage_x(rows)
            return self._walk(panel, rows, (t.index(0), self.size), sums)

        starts = [(x, t.vec) for x in self._starts(len(rows), steps)]
        return self._folded(t.loop((t.index(0), t.index(steps), t.index(DEEP)), starts, block), len(rows))

    def _stage_weight(self, panel: str, column: str) -> None:
        """Widens the block of the panel that begins at `start` and has `size` steps."""
        t = self.t

        def row(k: str) -> None:
            for j, vector in enumerate(self._read_weights(panel, t.arith("addi", self.start, k))):
                t.write(vector, self.w_block, self.w_type, k, t.index(t.width * j))

        self._each(self.size, 1, row)

    def _stage_x(self, rows: list[str]) -> None:
        """Widens the same steps of some rows of x."""
        t, K, element = self.t, self.spec.K, self.operands[0].element
        x, x_type = self.loaded["%x"]
        rest = t.arith("remui", self.size, t.index(t.width)) if K % t.width else ""
        whole = t.arith("subi", self.size, rest) if rest else self.size

        def vector(k: str) -> None:
            for i, row in enumerate(rows):
                read = t.read(x, x_type, row, t.arith("addi", self.start, k), element=element)
                wide = t.let(f"arith.extf {read} : {t.type(element)} to {t.vec}")
                t.write(wide, self.x_block, self.x_type, t.index(i), k)

        def number(k: str) -> None:
            at = t.arith("addi", whole, k)
            for i, row in enumerate(rows):
                read = t.extract(x, x_type, row, t.arith("addi", self.start, at))
                wide = t.let(f"arith.extf {read} : {element} to f32")
                t.insert(wide, self.x_block, self.x_type, t.index(i), at)

        self._each(whole, t.width, vector)
        if rest:
            self._each(rest, 1, number)

    def _each(self, count: str, step: int, body: Callable[[str], None]) -> None:
        """A loop over indices below `count` that only writes to memory."""
        t = self.t
        k = t.fresh()
        t.do(f"scf.for {k} = {t.index(0)} to {count} step {t.index(step)} {{")
        body(k)
        t.do("}")

    def _read_weights(self, panel: str, at: str) -> list[str]:
        """A row of a panel of the weight as it is stored, widened."""
        t, element, (w, w_type) = self.t, self.operands[1].element, self.loaded["%w"]
        read = [t.read(w, w_type, panel, at, t.index(t.width * j), element=element) for j in range(self.vectors)]
        return [t.let(f"arith.extf {x} : {t.type(element)} to {t.vec}") for x in read]

    def _weights(self, panel: str, at: str) -> list[str]:
        t = self.t
        if self.staged:
            return [t.read(self.w_block, self.w_type, at, t.index(t.width * j)) for j in range(self.vectors)]
        return self._read_weights(panel, t.arith("addi", self.start, at) if self.stages_x else at)

    def _element(self, index: int, row: str, k: str, after: int) -> str:
        t = self.t
        if self.stages_x:
            return t.broadcast(t.extract(self.x_block, self.x_type, t.index(index), t.shifted(k, after)))
        return super()._element(index, row, t.arith("addi", self.start, k) if self.staged else k, after)
