"""A linear site for llvm-cpu, written out at the vector level: a register tile of some rows by two vectors of columns is carried
along K, and what becomes of the sums happens before they are stored.

The weight comes in panels as wide as a tile, so that a tile reads it in one stream; an element of x is loaded once for all
columns of the tile. Rows that the tiles do not divide are no loss of more than a part of one tile: the last begins earlier.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.cpu.row_dispatch import ROWS, Operand, joined, load, make_executable, store
from onnx_fa.kernels.mlir.entry import KernelEntry
from onnx_fa.kernels.mlir.expressions import ExprVectors, IntBounds, Vector
from onnx_fa.kernels.mlir.text import INDEX
from onnx_fa.kernels.mlir.vectors import Lanes
from onnx_fa.spec.expr import SCORE, ScoreExpr, Tensor
from onnx_fa.spec.linear import LinearSpec, linear_name
from onnx_fa.spec.target import Target

_VECTORS = 2
"""Of a register tile. With two of them each load of an element of x serves two multiplications, which two ports for loads keep
up with."""
_FEW = 4
"""So many rows are too few to keep the multipliers busy with one sum for each number."""


@dataclass(frozen=True)
class LinearTiles:
    """A register tile has `rows` rows of x and as many vectors of `lanes` columns as a panel has; `unroll` steps of K are written
    out. A workgroup has `down` tiles of `across` panels."""

    lanes: int
    rows: int
    unroll: int
    down: int
    across: int


def panel_of(target: Target) -> int:
    """The columns of a panel."""
    return _VECTORS * target.lanes


def is_faster(spec: LinearSpec, target: Target) -> bool:
    """Whether the kernel is faster than the compiler's packed product, or as fast, on a target's processor: with vectors of 16
    lanes, and more rows than a few, whose time is that of reading the weight (docs/developer/linear-sites.md)."""
    many = spec.rows is None or spec.rows > _FEW
    return target.kernels == "auto" and target.lanes == 16 and many and _is_plain(spec) and panel_of(target) <= spec.N


def _is_plain(spec: LinearSpec) -> bool:
    return spec.dtype == "f32" and spec.bits is None and all(t.dtype == "f32" for t in spec.tensors)


def tiles_for(spec: LinearSpec, target: Target) -> LinearTiles:
    """Tiles that leave few rows over."""
    # Twelve rows would need fewer loads, but as many rows of x as far apart as powers of two do not fit into eight ways of a cache.
    most = 8 if target.registers >= 32 else 5
    rows = spec.rows
    if rows is None:
        tall = most
    elif rows <= most:
        tall = rows
    else:  # of the heights that keep the multipliers busy the one that computes the fewest rows twice
        tall = min(range(most, most // 2, -1), key=lambda n: -(-rows // n) * n + (most - n) * rows / 100)
    unroll = 4 if tall > _FEW else 8
    return LinearTiles(target.lanes, tall, unroll, 4, 4)


def emit_linear(spec: LinearSpec, target: Target) -> dict[str, str]:
    """The executable and the function of the site's name, which takes its operands and returns y, by their symbols. Raises
    UnsupportedError for what no kernel takes."""
    if not _is_plain(spec) or spec.panel != panel_of(target):
        raise UnsupportedError(f"vector kernel, linear site: {spec.dtype}, panels of {spec.panel}")
    name = linear_name(spec)
    symbol, tiles = f"{name}_tiles", tiles_for(spec, target)
    body = LinearBody(spec, tiles)
    return {symbol: joined(body.executable(symbol)), name: joined(LinearEntry(spec, name, symbol).text_lines())}


class LinearEntry(KernelEntry):
    """The function of a site."""

    def __init__(self, spec: LinearSpec, name: str, symbol: str) -> None:
        super().__init__(spec, name)
        self.spec, self.symbol = spec, symbol

    def text_lines(self) -> list[str]:
        t, spec = self.t, self.spec
        free = spec.rows is None
        if free:
            for symbol in dict.fromkeys(d for d in spec.lead if isinstance(d, str)):
                self.measure(symbol)
            rows = t.index(1)
            for d in spec.lead:
                rows = t.arith("muli", rows, t.index(d) if isinstance(d, int) else self.dims[d])
            self.dims[ROWS] = rows
        flat = operands_of(spec)
        values = self.pass_operands(spec.operand_shapes, [x.shape for x in flat], [x.element for x in flat])
        types = [self.typed(x.shape, x.element) for x in flat]
        workload = f"[{self.dims[ROWS]}]" if free else ""
        given = ", ".join([*values, *([self.dims[ROWS]] if free else [])])
        y = y_of(spec)
        made = t.let(
            f"flow.dispatch @{self.symbol}::@{self.symbol}{workload}({given}) : "
            f"({', '.join([*types, *[INDEX] * free])}) -> {self.typed(y.shape, y.element)}"
        )
        return self.lines([self.reshape(made, y.shape, (*spec.lead, spec.N), y.element)])


def operands_of(spec: LinearSpec) -> list[Operand]:
    """The operands as the dispatch has them: rows flat."""
    rows = ROWS if spec.rows is None else spec.rows
    found = [Operand("%x", (rows, spec.K), "f32"), Operand("%w", spec.weight_shape, "f32")]
    for i, tensor in enumerate(spec.tensors):
        shape = (spec.N,) if len(tensor.shape) == 1 else (rows, spec.N)
        found.append(Operand(f"%t{i}", shape, "f32"))
    return found


def y_of(spec: LinearSpec) -> Operand:
    return Operand("%y", (ROWS if spec.rows is None else spec.rows, spec.N), "f32")


class LinearBody:
    """Writes the dispatch of a site."""

    def __init__(self, spec: LinearSpec, tiles: LinearTiles) -> None:
        self.spec, self.tiles, self.t = spec, tiles, Lanes(tiles.lanes)
        self.operands, self.y = operands_of(spec), y_of(spec)
        self.vectors = spec.panel // tiles.lanes
        self.exprs = ExprVectors(self.t, IntBounds("rows", spec.N, spec.tensors), spec.tensors)

    def executable(self, symbol: str) -> list[str]:
        spec, tiles = self.spec, self.tiles
        across = -(-spec.panels // tiles.across)
        if spec.rows is not None:
            count = [f"%x = arith.constant {-(-spec.rows // (tiles.rows * tiles.down)) * across} : index"]
        else:
            count = [
                f"%high = arith.constant {tiles.rows * tiles.down} : index",
                f"%across = arith.constant {across} : index",
                "%down = arith.ceildivui %rows, %high : index",
                "%x = arith.muli %down, %across : index",
            ]
        return make_executable(symbol, self.operands, [self.y], count, self._body(across))

    def _body(self, across: int) -> list[str]:
        t, spec, tiles = self.t, self.spec, self.tiles
        self.loaded = {x.name: load(t, x, "readonly", ["0"] * len(x.shape), x.shape) for x in self.operands}
        y, self.y_type = load(t, self.y, "writeonly", ["0", "0"], self.y.shape)
        self.rows = "%rows" if spec.rows is None else t.index(spec.rows)
        # Workgroups that follow each other share panels.
        group = t.let("flow.dispatch.workgroup.id[0] : index")
        downs = t.arith("ceildivui", self.rows, t.index(tiles.rows * tiles.down))
        first_row = t.arith("muli", t.arith("remui", group, downs), t.index(tiles.rows * tiles.down))
        last_row = t.arith("minsi", t.shifted(first_row, tiles.rows * tiles.down), self.rows)
        first_panel = t.arith("muli", t.arith("divui", group, downs), t.index(tiles.across))
        last_panel = t.arith("minsi", t.shifted(first_panel, tiles.across), t.index(spec.panels))

        def over_panels(panel: str, carried: list[str]) -> list[str]:
            column = t.arith("muli", panel, t.index(spec.panel))
            if spec.N % spec.panel:
                column = t.arith("minsi", column, t.index(spec.N - spec.panel))
            return [self._panel(panel, column, first_row, last_row, carried[0])]

        bounds = (first_panel, last_panel, t.index(1))
        (made,) = t.loop(bounds, [(y, self.y_type)], over_panels)
        store(t, made, self.y_type, self.y, ["0", "0"], self.y.shape)
        return t.render()

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
        t = self.t

        def tile(row: str, carried: list[str]) -> list[str]:
            if tall > 1 and (self.spec.rows is None or self.spec.rows % tall):
                row = t.arith("minsi", row, t.arith("subi", self.rows, t.index(tall)))
            return [self._tile(panel, column, row, tall, carried[0])]

        return t.loop((*rows, t.index(tall)), [(y, self.y_type)], tile)[0]

    def _tile(self, panel: str, column: str, row: str, tall: int, y: str) -> str:
        """y with one register tile."""
        t, n = self.t, self.vectors
        rows = [t.shifted(row, i) for i in range(tall)]
        columns = [t.shifted(column, t.width * j) for j in range(n)]
        for i, total in enumerate(self._sums(panel, rows)):
            at = rows[i // n], columns[i % n]
            y = t.write(self._then(total, *at), y, self.y_type, *at)
        return y

    def _sums(self, panel: str, rows: list[str]) -> list[str]:
        """The products of the rows with the columns of a panel, a row after the other. Where a tile is too small to keep the
        multipliers busy each step that is written out has sums of its own."""
        t, tiles, K = self.t, self.tiles, self.spec.K
        (x, x_type), (w, w_type) = self.loaded["%x"], self.loaded["%w"]
        unroll = next(u for u in (8, 4, 2, 1) if K % u == 0 and u <= (8 if len(rows) <= _FEW else tiles.unroll))
        own = unroll if len(rows) <= _FEW else 1
        width = len(rows) * self.vectors
        nothing = t.splat(0.0)

        def step(k: str, sums: list[str]) -> list[str]:
            sums = list(sums)
            for u in range(unroll):
                at = t.shifted(k, u)
                weights = [t.read(w, w_type, panel, at, t.index(t.width * j)) for j in range(self.vectors)]
                for i, row in enumerate(rows):
                    number = t.broadcast(t.let(f"tensor.extract {x}[{row}, {at}] : {x_type}"))
                    for j, weight in enumerate(weights):
                        to = u % own * width + i * self.vectors + j
                        sums[to] = t.vop("vector.fma", number, weight, sums[to])
            return sums

        bounds = (t.index(0), t.index(K), t.index(unroll))
        made = t.loop(bounds, [(nothing, t.vec)] * (width * own), step)
        while len(made) > width:
            half = len(made) // 2
            made = [t.vop("arith.addf", a, b) for a, b in zip(made[:half], made[half:], strict=True)]
        return made

    def _then(self, total: str, row: str, column: str) -> str:
        """What becomes of a vector of sums."""
        t = self.t

        def known(e: ScoreExpr) -> Vector | None:
            if e == SCORE:
                return Vector(total, "f32")
            if not isinstance(e, Tensor):
                return None
            value, type_ = self.loaded[f"%t{e.index}"]
            at = [column] if len(self.spec.tensors[e.index].shape) == 1 else [row, column]
            return Vector(t.read(value, type_, *at), "f32")

        return self.exprs.emit(self.spec.then, known, {}).value
