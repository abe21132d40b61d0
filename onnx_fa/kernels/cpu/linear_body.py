"""The dispatch of a linear site at the vector level: a register tile of some rows by two vectors of columns is carried along K,
and what becomes of the sums happens before they are stored.

The weight comes in panels as wide as a tile, so that a tile reads it in one stream; an element of x is loaded once for all
columns of the tile. Rows that the tiles do not divide are no loss of more than a part of one tile: the last begins earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass

from onnx_fa.kernels.cpu.addresses import Helper
from onnx_fa.kernels.cpu.epilogues import EpilogueVectors, tensor_operands
from onnx_fa.kernels.cpu.row_dispatch import load, make_executable, store
from onnx_fa.kernels.cpu.worker_memory import WorkerMemory
from onnx_fa.kernels.cpu.workgroups import Product, panels_by_blocks, panels_together
from onnx_fa.kernels.mlir.operand import ROWS, Operand
from onnx_fa.kernels.mlir.vectors import Lanes
from onnx_fa.spec.linear import LinearSpec

FEW = 4
"""So many rows are too few to keep the multipliers busy with one sum for each number."""

_AVX2 = 8
"""Lanes of a vector."""
NARROW = ("f16", "bf16")
"""Numbers that a dispatch sees as they are, where they are no words of 32 bits."""

_SUMS = {16: 24, 8: 12, 4: 24}
"""Of a small tile, by the lanes of a vector: they leave registers for its factors (AVX2 has 16, the others 32)."""


@dataclass(frozen=True)
class LinearTiles:
    """A register tile has `rows` rows of x and `vectors` vectors of `lanes` columns, as many as a panel has; `unroll` steps of K
    are written out. A workgroup has `down` tiles of some `across` panels (workgroups.py says of how many). Raises ValueError for
    what is not positive."""

    lanes: int
    rows: int
    unroll: int
    down: int
    across: int
    vectors: int = 2

    def __post_init__(self) -> None:
        if min(astuple(self)) < 1:
            raise ValueError(f"tiles must be positive: {self}")


def operands_of(spec: LinearSpec) -> list[Operand]:
    """The operands as the dispatch has them: rows flat, and pairs of bf16 and four bytes as numbers of 32 bits."""
    rows, steps = ROWS if spec.rows is None else spec.rows, steps_of(spec)
    x, w = (dtype if dtype in NARROW and spec.packed == 1 else "f32" for dtype in (spec.dtype, spec.weight_dtype))
    found = [Operand("%x", (rows, steps), x), Operand("%w", (spec.panels, steps, spec.panel), w)]
    if spec.zero:
        found += [Operand("%zero", (), "i32"), Operand("%sums", (spec.N,), "i32")]
    return [*found, *tensor_operands(spec.tensors, (rows, spec.N))]


def steps_of(spec: LinearSpec) -> int:
    """The steps along K: one for each number, or as many as lie in 32 bits."""
    return spec.K // spec.packed


def outputs_of(spec: LinearSpec) -> list[Operand]:
    """The results as the dispatch has them."""
    rows = ROWS if spec.rows is None else spec.rows
    names = [f"%y{i}" for i in range(len(spec.parts))] or ["%y"]
    return [Operand(name, (rows, n), spec.result_dtype) for name, n in zip(names, spec.widths, strict=True)]


class LinearBody:
    """Writes the dispatch of a site."""

    addresses: Helper | None = None
    memory: WorkerMemory | None = None
    """In which it works, where a worker's stack is too small."""
    sum_element = "f32"

    def __init__(self, spec: LinearSpec, tiles: LinearTiles, workers: Sequence[int]) -> None:
        """`workers`: the numbers of them that share the workgroups."""
        self.spec, self.tiles, self.t = spec, tiles, Lanes(tiles.lanes)
        self.operands, self.outputs = operands_of(spec), outputs_of(spec)
        self.y_type, self.first_column = "", 0  # of the result whose columns are being computed
        self.vectors = spec.panel // tiles.lanes
        self.shared = Product(spec.panels, tiles.across, steps_of(spec), tuple(workers))
        self.then = EpilogueVectors(self.t, spec.then, spec.tensors, spec.N)

    def executable(self, symbol: str) -> list[str]:
        """The executable, a function of the name of the dispatch."""
        return self.write_executable(symbol)

    def write_executable(self, symbol: str) -> list[str]:
        """The same, with what `addresses` and `memory` are."""
        spec, tiles = self.spec, self.tiles
        rows = "%rows" if spec.rows is None else "%known"
        lines, together = self._panels_together("%down")
        count = [
            f"%known = arith.constant {spec.rows or 0} : index",
            f"%high = arith.constant {tiles.rows * tiles.down} : index",
            f"%down = arith.ceildivui {rows}, %high : index",
            *lines,
            f"%panels = arith.constant {spec.panels} : index",
            f"%across = arith.ceildivui %panels, {together} : index",
            "%x = arith.muli %down, %across : index",
        ]
        changed = [x.operand for x in self.memory.all] if self.memory else []
        body = self._body()
        return make_executable(symbol, self.operands, self.outputs, count, body, helper=self.addresses, changed=changed)

    def _panels_together(self, blocks: str) -> tuple[list[str], str]:
        """Lines that make the number of panels of a workgroup, which depends on how many blocks of rows there are, and its name."""
        spec, tiles, name = self.spec, self.tiles, "%together"
        if spec.rows is not None:
            known = -(-spec.rows // (tiles.rows * tiles.down))
            together = panels_together(known, self.shared)
            return [f"{name} = arith.constant {together} : index"], name
        *some, (_, last) = self._by_blocks()
        lines = [f"{name} = arith.constant {last} : index"]
        for i, (most, together) in enumerate(reversed(some)):
            lines += [
                f"%most{i} = arith.constant {most} : index",
                f"%some{i} = arith.constant {together} : index",
                f"%few{i} = arith.cmpi ule, {blocks}, %most{i} : index",
                f"%together{i} = arith.select %few{i}, %some{i}, {name} : index",
            ]
            name = f"%together{i}"
        return lines, name

    def _by_blocks(self) -> list[tuple[int, int]]:
        """The panels of a workgroup up to so many blocks of rows, where only the run knows these."""
        return panels_by_blocks(self.shared)

    def _body(self) -> list[str]:
        t, spec, tiles = self.t, self.spec, self.tiles
        self.loaded = {x.name: load(t, x, "readonly", ["0"] * len(x.shape), x.shape) for x in self.operands}
        results = [load(t, y, "writeonly", ["0", "0"], y.shape) for y in self.outputs]
        self.rows = "%rows" if spec.rows is None else t.index(spec.rows)
        self._begin()
        # Workgroups that follow each other share panels.
        group = t.let("flow.dispatch.workgroup.id[0] : index")
        downs = t.arith("ceildivui", self.rows, t.index(tiles.rows * tiles.down))
        first_row = t.arith("muli", t.arith("remui", group, downs), t.index(tiles.rows * tiles.down))
        last_row = t.arith("minsi", t.shifted(first_row, tiles.rows * tiles.down), self.rows)
        lines, together = self._panels_together(downs)
        for line in lines:
            t.do(line)
        first_panel = t.arith("muli", t.arith("divui", group, downs), together)
        last_panel = t.arith("minsi", t.arith("addi", first_panel, together), t.index(spec.panels))
        made = self._results(
            [y for y, _ in results], [type_ for _, type_ in results], (first_row, last_row), (first_panel, last_panel)
        )
        for value, (_, type_), output in zip(made, results, self.outputs, strict=True):
            store(t, value, type_, output, ["0", "0"], output.shape)
        self._end()
        return t.render()

    def _results(
        self, results: Sequence[str], types: Sequence[str], rows: tuple[str, str], panels: tuple[str, str]
    ) -> list[str]:
        """The results with what a workgroup computes of them: these rows of the columns of these panels."""
        return self._over_panels(results, types, panels, lambda panel, column, y: self._panel(panel, column, *rows, y))

    def _over_panels(
        self,
        results: Sequence[str],
        types: Sequence[str],
        panels: tuple[str, str],
        body: Callable[[str, str, str], str],
    ) -> list[str]:
        """The results after `body`, which takes a panel, its first column and the result that has it, and gives the result back.
        Each result has a loop of its own over those of the panels that are its, most often of no panels at all."""
        t, width = self.t, self.spec.panel
        made, first, self.first_column = [], 0, 0
        for y, type_, n in zip(results, types, self.spec.widths, strict=True):
            self.y_type, count = type_, -(-n // width)

            def over_panels(panel: str, carried: list[str], first: int = first, n: int = n) -> list[str]:
                own = t.arith("subi", panel, t.index(first)) if first else panel
                column = t.arith("muli", own, t.index(width))
                if n % width:
                    column = t.arith("minsi", column, t.index(n - width))
                return [body(panel, t.shifted(column, self.first_column), carried[0])]

            bounds = panels
            if self.spec.parts:
                bounds = (
                    t.arith("maxsi", panels[0], t.index(first)),
                    t.arith("minsi", panels[1], t.index(first + count)),
                )
            made += t.loop((*bounds, t.index(1)), [(y, self.y_type)], over_panels)
            first, self.first_column = first + count, self.first_column + n
        return made

    def _begin(self) -> None:
        """What a workgroup does before its first product."""

    def _end(self) -> None:
        """What it does after the last."""

    def _panel(self, panel: str, column: str, first: str, last: str, y: str) -> str:
        """y with the columns of a panel, of the rows from `first` to `last`."""
        t, spec, tall = self.t, self.spec, self.tiles.rows
        if spec.rows is not None:
            return self._rows(panel, column, (first, last), tall, y)
        few = t.test("slt", self.rows, t.index(tall))
        made = t.let(f"scf.if {few} -> ({self.y_type}) {{")
        for height, end in ((1, "} else {"), (tall, "}")):
            t.do(f"scf.yield {self._rows(panel, column, (first, last), height, y)} : {self.y_type}")
            t.do(end)
        return made

    def _rows(self, panel: str, column: str, rows: tuple[str, str], tall: int, y: str) -> str:
        """y with tiles of so many rows, of which there are no fewer."""
        t, low = self.t, self._rows_left(tall)

        def whole(row: str, y: str) -> str:
            if tall > 1 and (self.spec.rows is None or self.spec.rows % tall):
                row = t.arith("minsi", row, t.arith("subi", self.rows, t.index(tall)))
            return self._tile(panel, column, row, tall, y)

        def tile(row: str, carried: list[str]) -> list[str]:
            if not low:
                return [whole(row, carried[0])]
            few = t.test("sle", t.arith("subi", self.rows, row), t.index(low))
            made = t.let(f"scf.if {few} -> ({self.y_type}) {{")
            last = t.arith("subi", self.rows, t.index(low))
            t.do(f"scf.yield {self._tile(panel, column, last, low, carried[0])} : {self.y_type}")
            t.do("} else {")
            t.do(f"scf.yield {whole(row, carried[0])} : {self.y_type}")
            t.do("}")
            return [made]

        return t.loop((*rows, t.index(tall)), [(y, self.y_type)], tile)[0]

    def _rows_left(self, tall: int) -> int:
        """The rows of a low tile for what is left of one image's rows, of a batch that only a run knows, most often one; 0 where
        it would save little. With AVX2 alone: with more registers tiles take another height (`linear.py`)."""
        spec = self.spec
        left = spec.rows_of_one % tall if spec.rows is None and self.t.width == _AVX2 and spec.dtype == "f32" else 0
        return left if spec.rows_of_one > tall and left <= tall // 3 else 0

    def _tile(self, panel: str, column: str, row: str, tall: int, y: str) -> str:
        """y with one register tile."""
        t, n = self.t, self.vectors
        rows = [t.shifted(row, i) for i in range(tall)]
        columns = [t.shifted(column, t.width * j) for j in range(n)]
        for i, total in enumerate(self._sums(panel, rows)):
            at = rows[i // n], columns[i % n]
            y = self._write(self._unbiased(total, at[1]), y, *at)
        return y

    def _sums(self, panel: str, rows: list[str]) -> list[str]:
        """The products of the rows with the columns of a panel, a row after the other."""
        steps = steps_of(self.spec)
        starts = self._starts(len(rows), steps)
        made = self._walk(panel, rows, (self.t.index(0), self.t.index(steps)), starts)
        return self._folded(made, len(rows))

    def _unroll(self, tall: int) -> int:
        """The steps along K that are written out for so many rows."""
        most = 8 if tall < min(FEW + 1, self.tiles.rows) else self.tiles.unroll
        return next(u for u in (8, 4, 2, 1) if steps_of(self.spec) % u == 0 and u <= most)

    def _starts(self, tall: int, steps: int) -> list[str]:
        """What the sums of a tile begin with. Where a tile is too small to keep the multipliers busy each step that is written out
        has sums of its own."""
        t, width, unroll = self.t, tall * self.vectors, self._unroll(tall)
        own = next(n for n in (8, 4, 2, 1) if n == 1 or (n <= unroll and tall <= FEW and n * width <= _SUMS[t.width]))
        return [self._nothing()] * (width * own)

    def _nothing(self) -> str:
        """A vector of sums of no products."""
        return self.t.dense("0", "i32") if self.sum_element == "i32" else self.t.splat(0.0)

    def _walk(self, panel: str, rows: list[str], bounds: tuple[str, str], sums: list[str]) -> list[str]:
        """The sums with the products of the steps of K from the first bound up to the second."""
        t, unroll, width = self.t, self._unroll(len(rows)), len(rows) * self.vectors
        own = len(sums) // width

        def step(k: str, carried: list[str]) -> list[str]:
            carried = list(carried)
            for u in range(unroll):
                at = t.shifted(k, u)
                weights = self._weights(panel, at)
                for i, row in enumerate(rows):
                    number = self._element(i, row, k, u)
                    for j, weight in enumerate(weights):
                        to = u % own * width + i * self.vectors + j
                        carried[to] = self._multiply(number, weight, carried[to])
            return carried

        return t.loop((*bounds, t.index(unroll)), [(x, t.type(self.sum_element)) for x in sums], step)

    def _folded(self, sums: list[str], tall: int) -> list[str]:
        """One vector of sums for each of a tile."""
        while len(sums) > tall * self.vectors:
            half = len(sums) // 2
            sums = [self._add(a, b) for a, b in zip(sums[:half], sums[half:], strict=True)]
        return sums

    def _weights(self, panel: str, at: str) -> list[str]:
        """A row of a panel of the weight."""
        t, (w, w_type) = self.t, self.loaded["%w"]
        return [t.read(w, w_type, panel, at, t.index(t.width * j)) for j in range(self.vectors)]

    def _element(self, index: int, row: str, k: str, after: int) -> str:
        """The element of x so many steps after k, in every lane; `index` is that of its row in the tile."""
        x, x_type = self.loaded["%x"]
        return self.t.broadcast(self.t.let(f"tensor.extract {x}[{row}, {self.t.shifted(k, after)}] : {x_type}"))

    def _multiply(self, number: str, weight: str, total: str) -> str:
        """The sums with the products of an element of x with a vector of the weight."""
        return self.t.vop("vector.fma", number, weight, total)

    def _add(self, a: str, b: str) -> str:
        """Two vectors of sums as one."""
        return self.t.vop("arith.addf", a, b)

    def _unbiased(self, total: str, column: str) -> str:
        """Sums without what `_multiply` added to them."""
        return total

    def _number(self, total: str, column: str) -> str:
        """A vector of sums as f32."""
        return total

    def _write(self, total: str, y: str, row: str, column: str) -> str:
        """y with what becomes of a vector of sums."""
        t, dtype = self.t, self.spec.result_dtype
        made = self.then.emit(self._number(total, column), [row, column], self.loaded)
        if dtype != "f32":
            made = t.let(f"arith.truncf {made} : {t.vec} to {t.type(dtype)}")
        if self.first_column:
            column = t.arith("subi", column, t.index(self.first_column))
        return t.write(made, y, self.y_type, row, column, element=dtype)
