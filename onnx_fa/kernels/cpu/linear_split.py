"""Linear sites of f32 by AMX's tiles, of numbers that are split into three of bf16 each (split_products.py).

A workgroup has some rows and some panels. Both are split in a block of K at a time, in memory that a worker has in its caches
(slots.py): the rows once for all panels, a panel once for all rows. The sums of a block that is not the last wait there.

Where a sum is not finite, or small, or one of its numbers is large, its row and panel are computed once more in f32: infinities,
what is too large for bf16 and what AMX takes for zeros are so what they would be without tiles. Where Linux gives no tiles
everything is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.cpu.addresses import Addresses, Helpers
from onnx_fa.kernels.cpu.amx import ROWS, Tile, TileUnit
from onnx_fa.kernels.cpu.linear_ahead import AheadBody, fetch_line
from onnx_fa.kernels.cpu.linear_body import LinearTiles
from onnx_fa.kernels.cpu.linear_share import PAIR, PANEL, Share, least_rows, panels_by_blocks
from onnx_fa.kernels.cpu.pointers import LINE, behind, load_vector, moved, pointer_at, store_vector
from onnx_fa.kernels.cpu.slots import Slots, take_slot
from onnx_fa.kernels.cpu.split_products import (
    LARGEST,
    PARTS,
    STEP,
    TILE_BYTES,
    add_split_product,
    bits_of,
    magnitude_of,
    split_pair,
)
from onnx_fa.kernels.cpu.worker_memory import SLOT_BYTES, SLOTS_OF_A_WORKER, WorkerMemory
from onnx_fa.spec.linear import LinearSpec

_DEEP, _PARTS_OF_ROWS = 24, 3 << 18
"""Steps of a block along K at most, and bytes of what a workgroup's rows become in a block: more than three eighths of the second
cache are read again for each panel, and beside them it has x and the weight to hold."""
_LEAST = 2.0**-64
"""The least sum of numbers up to 2^24 of which what AMX takes for zeros is no part that counts (split_products.py)."""
_LINES = STEP * 4 * PANEL // LINE
"""Lines of memory that a step of a panel takes."""
_SECOND_CACHE = 2
_DOWN, _ACROSS = PAIR // ROWS, 2
"""Tiles that are multiplied at once."""


class SplitBody(AheadBody):
    """Products by tiles where the processor grants them, of as many rows as make it worth while."""

    def __init__(self, spec: LinearSpec, tiles: LinearTiles, workers: Sequence[int]) -> None:
        super().__init__(spec, tiles, workers)
        self.high = tiles.rows * tiles.down
        steps = -(-spec.K // STEP)
        self.blocks = -(-steps // min(_DEEP, _PARTS_OF_ROWS // (self.high // ROWS * PARTS * TILE_BYTES)))
        self.deep = -(-steps // self.blocks)
        self.steps = steps
        together = min(tiles.across if spec.rows else 2 * tiles.across, spec.panels)
        waiting = together if self.blocks > 1 else 1
        self.row_bytes = self.deep * PARTS * TILE_BYTES
        """Of the parts of 16 rows."""
        self.parts_of_rows = self.high // ROWS * self.row_bytes
        self.parts_of_panel = _ACROSS * self.row_bytes
        self.sum_bytes = 4 * PANEL * self.high
        self.bytes_of_sums = waiting * self.sum_bytes
        largest = LINE * (self.high // ROWS + waiting)
        needed = self.parts_of_rows + self.parts_of_panel + self.bytes_of_sums + largest
        if needed > SLOT_BYTES:
            raise UnsupportedError(f"AMX, linear site: {needed} of {SLOT_BYTES} bytes of a slot")

    def executable(self, symbol: str) -> list[str]:
        self.memory = WorkerMemory(SLOTS_OF_A_WORKER * max(self.shared.workers))
        self.slots = Slots(symbol, self.memory.count)
        self.places = Addresses(symbol)
        self.addresses = Helpers((self.places, self.slots))
        return self.write_executable(symbol)

    def _panels_together(self, blocks: str) -> tuple[list[str], str]:
        if self.spec.rows is None:
            return super()._panels_together(blocks)
        return [f"%together = arith.constant {min(self.tiles.across, self.spec.panels)} : index"], "%together"

    def _by_blocks(self) -> list[tuple[int, int]]:
        return panels_by_blocks(self.spec, Share(self.high, self.tiles.across), self.shared.workers)

    def _begin(self) -> None:
        assert self.memory
        t = self.t
        self.slot = take_slot(t, self.slots, self.memory.memory.operand)
        self.x_at, self.w_at = (self.places.of(t, *self.loaded[name]) for name in ("%x", "%w"))
        self.seen_at = self.places.of(t, self.slot.value, self.slot.type)
        self.panel_parts_at = self._behind(self.seen_at, self.parts_of_rows)
        self.sums_at = self._behind(self.panel_parts_at, self.parts_of_panel)
        self.largest_at = self._behind(self.sums_at, self.bytes_of_sums)
        self.unit = TileUnit(t)

    def _end(self) -> None:
        self.unit.release()
        self.slot.leave(self.t, self.last, self.y_type)

    def _results(
        self, results: Sequence[str], types: Sequence[str], rows: tuple[str, str], panels: tuple[str, str]
    ) -> list[str]:
        t, use = self.t, self.unit.granted
        if self.spec.rows is None:
            least = least_rows(self.spec, self.shared.workers) or 0
            many = t.test("sge", self.rows, t.index(least))
            use = t.arith("andi", use, many, "i1")
        in_f32 = super()._results
        made = t.either(
            use,
            types,
            lambda: self._by_tiles(results, types, rows, panels),
            lambda: in_f32(results, types, rows, panels),
        )
        self.last = made[-1]
        return made

    def _by_tiles(
        self, results: Sequence[str], types: Sequence[str], rows: tuple[str, str], panels: tuple[str, str]
    ) -> list[str]:
        t = self.t
        self.own_rows, self.first_panel = rows, panels[0]
        self.count = t.arith("subi", rows[1], rows[0])

        def block(k: str, carried: list[str]) -> list[str]:
            self.start = t.arith("muli", k, t.index(self.deep))
            self.size = t.arith("minsi", t.index(self.deep), t.arith("subi", t.index(self.steps), self.start))
            self.is_first, self.is_last = t.test("eq", k, t.index(0)), t.test("eq", k, t.index(self.blocks - 1))
            self._split_rows()
            return self._over_panels(carried, types, panels, self._panel_block)

        return t.loop((t.index(0), t.index(self.blocks), t.index(1)), list(zip(results, types, strict=True)), block)

    def _in_block(self, condition: str, body: Callable[[], None], otherwise: Callable[[], None] | None = None) -> None:
        """Operations for a block of which this holds, the first or the last, and others for the rest; of one block both hold."""
        if self.blocks == 1:
            body()
            return
        self.t.do(f"scf.if {condition} {{")
        body()
        if otherwise is not None:
            self.t.do("} else {")
            otherwise()
        self.t.do("}")

    def _over_steps(self, body: Callable[[str, int], None]) -> None:
        """body(step, n) for each step of the block, which has n numbers of K."""
        t, rest = self.t, self.spec.K % STEP
        if not rest:
            t.each((t.index(0), self.size, t.index(1)), lambda s: body(s, STEP))
            return
        whole = t.let(f"arith.extui {self.is_last} : i1 to i32")
        whole = t.arith("subi", self.size, t.let(f"arith.index_cast {whole} : i32 to index"))
        t.each((t.index(0), whole, t.index(1)), lambda s: body(s, STEP))
        t.do(f"scf.if {self.is_last} {{")
        body(whole, rest)
        t.do("}")

    def _split_rows(self) -> None:
        """Splits the block of the workgroup's rows, in whole tiles; the last row fills them up. A step of a tile's rows is written
        before the next: what they become lies side by side, and their own lines are asked for two steps ahead."""
        t, K = self.t, self.spec.K
        first = self._moved(self.x_at, self.start, 4 * STEP)
        last = t.shifted(self.rows, -1)

        def tile(m: str) -> None:
            top = t.arith("addi", self.own_rows[0], m)
            number = t.arith("divui", m, t.index(ROWS))
            to, largest = self._moved(self.seen_at, number, self.row_bytes), self._moved(self.largest_at, number, LINE)
            self._begin_largest(largest)

            def step(s: str, n: int) -> None:
                source, target = self._moved(first, s, 4 * STEP), self._moved(to, s, PARTS * TILE_BYTES)

                def row(r: str) -> None:
                    at = self._moved(source, t.arith("minsi", t.arith("addi", top, r), last), 4 * K)
                    for line in range(2):
                        fetch_line(t, self._at(at, 8 * STEP + line * LINE), hint=_SECOND_CACHE)
                    low, high = (self._load(at, 4 * t.width * i, n - t.width * i) for i in range(2))
                    self._note_largest(largest, low, high)
                    for part, words in enumerate(split_pair(t, low, high)):
                        self._store(words, t.ivec, self._moved(target, r, 4 * t.width), part * TILE_BYTES)

                t.each((t.index(0), t.index(ROWS), t.index(1)), row)

            self._over_steps(step)

        t.each((t.index(0), self.count, t.index(ROWS)), tile)

    def _split_panel(self, panel: str) -> None:
        """Splits the block of a panel of the weight. Rows of it past the last, which zeros of x meet, are the last once more."""
        t, K, row = self.t, self.spec.K, 4 * PANEL
        first = self._moved(self._moved(self.w_at, panel, row * K), self.start, row * STEP)
        self.next_panel = self._behind(first, row * K)
        self.largest_of_panel = self._behind(self.largest_at, LINE * (self.high // ROWS))
        if self.blocks > 1:
            own = t.arith("subi", panel, self.first_panel)
            self.largest_of_panel = self._moved(self.largest_of_panel, own, LINE)
        self._begin_largest(self.largest_of_panel)

        def step(s: str, n: int) -> None:
            source = self._moved(first, s, row * STEP)
            target = self._moved(self.panel_parts_at, s, PARTS * _ACROSS * TILE_BYTES)

            def pair(i: str) -> None:
                self._split_weights(self._moved(source, i, row), (0, ROWS), self._moved(target, i, 4 * t.width))

            both = max(0, n - ROWS)
            if both:
                t.each((t.index(0), t.index(both), t.index(1)), pair)
            for i in range(both, ROWS):
                self._split_weights(source, (min(i, n - 1), n - 1), self._behind(target, 4 * t.width * i))

        self._over_steps(step)

    def _split_weights(self, source: str, rows: tuple[int, int], target: str) -> None:
        """Splits a pair of rows of a panel, counted from `source` on."""
        t = self.t
        for j in range(_ACROSS):
            low, high = (self._load(source, 4 * (PANEL * row + t.width * j)) for row in rows)
            self._note_largest(self.largest_of_panel, low, high)
            for part, words in enumerate(split_pair(t, low, high)):
                self._store(words, t.ivec, target, (part * _ACROSS + j) * TILE_BYTES)

    def _begin_largest(self, at: str) -> None:
        """Makes the magnitudes that are noted here zeros, before the first block."""
        t, zeros = self.t, self.t.dense("0", "i32")
        self._in_block(self.is_first, lambda: self._store(zeros, t.ivec, at, 0))

    def _note_largest(self, at: str, *numbers: str) -> None:
        """Keeps the larger magnitudes of these and those that are noted, whose order is that of their bits."""
        t, largest = self.t, self._load_bits(at)
        for x in numbers:
            largest = t.arith("maxsi", largest, magnitude_of(t, x), t.ivec)
        self._store(largest, t.ivec, at, 0)

    def _load_bits(self, at: str) -> str:
        return bits_of(self.t, self._load(at, 0, aligned=LINE))

    def _panel_block(self, panel: str, column: str, y: str) -> str:
        """y with a block of a panel's products, where it is the last; others leave their sums."""
        t = self.t
        self._split_panel(panel)
        sums = self.sums_at
        if self.blocks > 1:
            sums = self._moved(sums, t.arith("subi", panel, self.first_panel), self.sum_bytes)

        def pair(m: str, carried: list[str]) -> list[str]:
            at = self._moved(sums, m, 4 * PANEL)
            several = t.test("slt", t.shifted(m, ROWS), self.count)
            t.do(f"scf.if {several} {{")
            self._multiply_tiles(m, at, _DOWN)
            t.do("} else {")
            self._multiply_tiles(m, at, 1)
            t.do("}")
            if self.blocks == 1:
                return [self._finish(panel, column, m, at, carried[0])]
            finish = [self.y_type], lambda: [self._finish(panel, column, m, at, carried[0])], lambda: carried
            return t.either(self.is_last, *finish)

        return t.loop((t.index(0), self.count, t.index(PAIR)), [(y, self.y_type)], pair)[0]

    def _multiply_tiles(self, m: str, sums: str, down: int) -> None:
        """The sums of so many tiles of rows, from row m of the workgroup on, with the block's products. One tile alone has two
        sums for each, which are added up behind the last block."""
        t, unit = self.t, self.unit
        to = Tile(sums, 4 * PANEL)
        self._in_block(self.is_first, lambda: unit.clear(_DOWN, _ACROSS), lambda: unit.load(to, _DOWN, _ACROSS))
        tile = t.arith("divui", m, t.index(ROWS))
        first = self._moved(self.seen_at, tile, self.row_bytes)
        rows = [self._behind(first, i * self.row_bytes) for i in range(down)]
        fetched = -(-_LINES * PAIR // self.high)
        ahead = self._moved(self.next_panel, tile, fetched * LINE // _DOWN)

        def step(s: str) -> None:
            at = self._moved(ahead, s, _LINES * LINE)
            for i in range(fetched):
                fetch_line(t, self._at(at, i * LINE), hint=_SECOND_CACHE)
            lefts = [self._moved(at, s, PARTS * TILE_BYTES) for at in rows]
            add_split_product(t, lefts, self._moved(self.panel_parts_at, s, PARTS * _ACROSS * TILE_BYTES), _ACROSS)

        t.each((t.index(0), self.size, t.index(1)), step)
        unit.store(to, _DOWN, _ACROSS)
        if down == 1:
            self._add_up(sums)

    def _add_up(self, sums: str) -> None:
        """Adds the second sums of a tile of rows to its first, if no block follows."""
        t = self.t

        def row(r: str) -> None:
            at = self._moved(sums, r, 4 * PANEL)
            for j in range(_ACROSS):
                one, two = (self._load(at, 4 * (PANEL * i + t.width * j), aligned=64) for i in (0, ROWS))
                self._store(t.vop("arith.addf", one, two), t.vec, at, 4 * t.width * j)

        self._in_block(self.is_last, lambda: t.each((t.index(0), t.index(ROWS), t.index(1)), row))

    def _finish(self, panel: str, column: str, m: str, sums: str, y: str) -> str:
        """y with what becomes of the sums of a pair of tiles of rows."""
        t = self.t
        count = t.arith("minsi", t.index(PAIR), t.arith("subi", self.count, m))
        first = t.arith("addi", self.own_rows[0], m)
        bounds = t.index(0), count, t.index(1)

        def totals(r: str) -> list[str]:
            at = self._moved(sums, r, 4 * PANEL)
            return [self._load(at, 4 * t.width * j, aligned=64) for j in range(_ACROSS)]

        def look(r: str, carried: list[str]) -> list[str]:
            seen = []
            for x, c in zip(totals(r), carried, strict=True):
                small = t.compare("olt", t.vop("math.absf", x), t.splat(_LEAST))
                lost = t.arith("andi", small, t.compare("one", x, t.splat(0.0)), t.bvec)
                # 0 times what is not finite is NaN.
                seen.append(t.select(lost, t.splat(math.inf), t.vop("vector.fma", x, t.splat(0.0), c)))
            return seen

        seen = t.loop(bounds, [(t.splat(0.0), t.vec)] * _ACROSS, look)
        holds = t.compare("oeq", t.vop("arith.addf", *seen), t.splat(0.0))
        holds = t.arith("andi", holds, self._are_ordinary(m), t.bvec)
        all_hold = t.let(f"vector.reduction <and>, {holds} : {t.bvec} into i1")

        def write(r: str, carried: list[str]) -> list[str]:
            made = carried[0]
            for j, total in enumerate(totals(r)):
                made = self._write(total, made, t.arith("addi", first, r), t.shifted(column, t.width * j))
            return [made]

        def again(r: str, carried: list[str]) -> list[str]:
            return [self._tile(panel, column, t.arith("addi", first, r), 1, carried[0])]

        return t.either(
            all_hold,
            [self.y_type],
            lambda: t.loop(bounds, [(y, self.y_type)], write),
            lambda: t.loop(bounds, [(y, self.y_type)], again),
        )[0]

    def _are_ordinary(self, m: str) -> str:
        """Whether no number of a pair of tiles of rows and of the panel is too large, lane by lane."""
        t = self.t
        first = t.arith("divui", m, t.index(ROWS))
        last = t.shifted(t.arith("ceildivui", self.count, t.index(ROWS)), -1)
        second = t.arith("minsi", t.shifted(first, 1), last)
        largest = self._load_bits(self.largest_of_panel)
        for tile in (first, second):
            largest = t.arith("maxsi", largest, self._load_bits(self._moved(self.largest_at, tile, LINE)), t.ivec)
        return t.let(f"arith.cmpi sle, {largest}, {t.dense(str(LARGEST), 'i32')} : {t.ivec}")

    def _moved(self, pointer: str, index: str, by: int) -> str:
        return moved(self.t, pointer, index, by)

    def _behind(self, pointer: str, byte: int) -> str:
        return behind(self.t, pointer, byte)

    def _at(self, pointer: str, byte: int) -> str:
        return pointer_at(self.t, pointer, byte)

    def _load(self, pointer: str, byte: int, lanes: int | None = None, *, aligned: int = 4) -> str:
        return load_vector(self.t, pointer, byte, lanes, aligned=aligned)

    def _store(self, value: str, type_: str, pointer: str, byte: int) -> None:
        store_vector(self.t, value, type_, pointer, byte)
