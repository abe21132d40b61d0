"""The product of rows that lie in several parts side by side, of which something becomes before they are multiplied, in one
dispatch:

    y = then(before([x0, x1, ...]) W)

DenseNet's layers read all that came before them, each through a norm of its own: put side by side and changed by dispatches of
their own, such rows are copied twice for each product. Here a workgroup has some rows in its first cache, as they are multiplied,
and makes all of their columns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from onnx_fa.kernels.cpu.epilogues import EpilogueVectors, tensor_operands
from onnx_fa.kernels.cpu.row_dispatch import call_dispatch, joined, load, make_executable, store, tile_height
from onnx_fa.kernels.mlir.called import function_text
from onnx_fa.kernels.mlir.operand import ROWS, Operand
from onnx_fa.kernels.mlir.text import memref_type
from onnx_fa.kernels.mlir.vectors import Lanes
from onnx_fa.spec.expr import SCORE, ScoreExpr
from onnx_fa.spec.linear import LinearSpec, check_epilogue, followed
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import Dim, TensorArg

_STACK = 28 << 10
"""Bytes of rows that wait: IREE gives a workgroup 32 KiB, of which the compiler takes some itself."""
_LEAST_ROWS, _MOST_TILES, _ENOUGH = 4, 4, 8
"""Of a register tile, tiles of a workgroup, and workgroups."""
_VECTORS, _UNROLL = 2, 4


@dataclass(frozen=True)
class JoinedProduct:
    """Of `images` (None: known at run time only) of `rows` rows, whose numbers lie in parts of so many `columns`, all f32. The
    weight has N columns in panels of `panel`, (panels, K, panel), of which the last has the last columns. `before` is what becomes
    of a number of x, the score of the expression, with `rows_of` tensors of a number for each of K columns, and `then` what becomes
    of a sum, with `tensors` (N,) or of y's shape. Raises ValueError for other expressions."""

    images: int | None
    rows: int
    columns: tuple[int, ...]
    N: int
    panel: int
    before: ScoreExpr = SCORE
    rows_of: int = 0
    then: ScoreExpr = SCORE
    tensors: tuple[TensorArg, ...] = ()

    def __post_init__(self) -> None:
        check_epilogue(self.before, self.before_tensors, [(self.K,)])
        check_epilogue(self.then, self.tensors, [(self.N,), self.whole])

    @property
    def K(self) -> int:
        return sum(self.columns)

    @property
    def panels(self) -> int:
        return -(-self.N // self.panel)

    @property
    def lead(self) -> Dim:
        return ROWS if self.images is None else self.images

    @property
    def whole(self) -> tuple[Dim, ...]:
        """The shape of y."""
        return (self.lead, self.rows, self.N)

    @property
    def before_tensors(self) -> tuple[TensorArg, ...]:
        return (TensorArg((self.K,), "f32"),) * self.rows_of

    @property
    def product(self) -> LinearSpec:
        """As a linear site, of rows that lie side by side already."""
        lead: tuple[Dim, ...] = ("images" if self.images is None else self.images, self.rows)
        tensors = tuple(TensorArg((*lead, self.N), "f32") if len(t.shape) > 1 else t for t in self.tensors)
        return followed(LinearSpec(lead, self.K, self.N, "f32"), self.then, tensors)

    @property
    def name(self) -> str:
        """Of the function: equal for equal specs."""
        return f"linear_{hashlib.sha256(repr(self).encode()).hexdigest()[:10]}"

    @property
    def operands(self) -> list[Operand]:
        """The parts, the weight, and the tensors of what happens before and behind."""
        found = [Operand(f"%p{i}", (self.lead, self.rows, n), "f32") for i, n in enumerate(self.columns)]
        found.append(Operand("%w", (self.panels, self.K, self.panel), "f32"))
        found += [Operand(f"%b{i}", (self.K,), "f32") for i in range(self.rows_of)]
        return [*found, *tensor_operands(self.tensors, self.whole)]

    @property
    def y(self) -> Operand:
        return Operand("%y", self.whole, "f32")

    def texts(self, target: Target) -> dict[str, str]:
        """The executable and the function of the name, which takes the operands and returns y, by their symbols."""
        t, symbol = Lanes(target.lanes), f"{self.name}_tiles"
        made = call_dispatch(t, symbol, self.operands, [x.name for x in self.operands], [self.y])
        function = function_text(self.name, self.operands, [self.y], t, made)
        return {symbol: joined(_JoinedBody(self, target).executable(symbol)), self.name: joined(function)}


def panel_of(N: int, target: Target) -> int:
    """The columns of a panel; 0 where these are too few for one."""
    panel = _VECTORS * target.lanes
    return panel if target.kernels == "auto" and target.has_avx2 and panel <= N else 0


def takes(rows: int, columns: Sequence[int], target: Target) -> bool:
    """Whether the kernel is to stand for a product of so many rows of each image, of which a tile has to fit on the stack."""
    return (
        rows >= _LEAST_ROWS
        and not any(n % target.lanes for n in columns)
        and _tallest(sum(columns), target) >= _LEAST_ROWS
    )


def _tallest(K: int, target: Target) -> int:
    """Rows of a register tile at most."""
    return min(8 if target.has_many_registers else 6, _STACK // (4 * K))


class _JoinedBody:
    """Writes the dispatch."""

    def __init__(self, spec: JoinedProduct, target: Target) -> None:
        self.spec, self.t, self.vectors = spec, Lanes(target.lanes), spec.panel // target.lanes
        most = min(_tallest(spec.K, target), spec.rows)
        self.tall = tile_height(spec.rows, range(most, _LEAST_ROWS - 1, -1), most)
        tiles = -(-spec.rows // self.tall)
        self.down = max(1, min(_MOST_TILES, _STACK // (4 * spec.K * self.tall), tiles // _ENOUGH))
        self.groups, self.tiles = -(-tiles // self.down), tiles
        self.staged_type = memref_type((self.tall * self.down, spec.K), "f32")
        self.before = EpilogueVectors(self.t, spec.before, spec.before_tensors, spec.K)
        self.then = EpilogueVectors(self.t, spec.then, spec.tensors, spec.N)

    def executable(self, symbol: str) -> list[str]:
        spec = self.spec
        count = [f"%x = arith.constant {self.groups * (spec.images or 0)} : index"]
        if spec.images is None:
            count = [f"%each = arith.constant {self.groups} : index", "%x = arith.muli %rows, %each : index"]
        return make_executable(symbol, spec.operands, [spec.y], count, self._body())

    def _body(self) -> list[str]:
        t, spec = self.t, self.spec
        self.loaded = {x.name: load(t, x, "readonly", ["0"] * len(x.shape), x.shape) for x in spec.operands}
        y, self.y_type = load(t, spec.y, "writeonly", ["0"] * 3, spec.y.shape)
        self.staged = t.empty(self.staged_type)
        group = t.let("flow.dispatch.workgroup.id[0] : index")
        image, place = (t.arith(op, group, t.index(self.groups)) for op in ("divui", "remui"))
        first = t.arith("muli", place, t.index(self.down))
        count = t.arith("minsi", t.index(self.down), t.arith("subi", t.index(self.tiles), first))

        def row_of(tile: str) -> str:
            """The first row of a tile; the last begins earlier."""
            row = t.arith("muli", t.arith("addi", first, tile), t.index(self.tall))
            return t.arith("minsi", row, t.index(spec.rows - self.tall)) if spec.rows % self.tall else row

        def stage_tile(tile: str) -> None:
            row, at = row_of(tile), t.arith("muli", tile, t.index(self.tall))
            t.each(
                (t.index(0), t.index(self.tall), t.index(1)),
                lambda i: self._stage(image, t.arith("addi", row, i), t.arith("addi", at, i)),
            )

        t.each((t.index(0), count, t.index(1)), stage_tile)

        def over_panels(panel: str, carried: list[str]) -> list[str]:
            column = t.arith("muli", panel, t.index(spec.panel))
            if spec.N % spec.panel:
                column = t.arith("minsi", column, t.index(spec.N - spec.panel))

            def over_tiles(tile: str, inside: list[str]) -> list[str]:
                return [self._tile((image, row_of(tile)), tile, (panel, column), inside[0])]

            return t.loop((t.index(0), count, t.index(1)), [(carried[0], self.y_type)], over_tiles)

        (made,) = t.loop((t.index(0), t.index(spec.panels), t.index(1)), [(y, self.y_type)], over_panels)
        store(t, made, self.y_type, spec.y, ["0"] * 3, spec.y.shape)
        return t.render()

    def _stage(self, image: str, row: str, at: str) -> None:
        """Puts what becomes of a row on the stack, at this place."""
        t, first = self.t, 0
        before = {f"%t{i}": self.loaded[f"%b{i}"] for i in range(self.spec.rows_of)}
        for part, columns in enumerate(self.spec.columns):
            x, x_type = self.loaded[f"%p{part}"]

            def vector(c: str, x: str = x, x_type: str = x_type, first: int = first) -> None:
                column = t.shifted(c, first)
                made = self.before.emit(t.read(x, x_type, image, row, c), [column], before)
                t.write(made, self.staged, self.staged_type, at, column)

            t.each((t.index(0), t.index(columns), t.index(t.width)), vector)
            first += columns

    def _tile(self, rows: tuple[str, str], tile: str, columns: tuple[str, str], y: str) -> str:
        """y with one register tile, of an image's rows from one on and the columns of a panel."""
        t, n, tall = self.t, self.vectors, self.tall
        (image, row), (panel, column) = rows, columns
        w, w_type = self.loaded["%w"]
        at = t.arith("muli", tile, t.index(tall))
        staged = [t.shifted(at, i) for i in range(tall)]

        def step(k: str, carried: list[str]) -> list[str]:
            sums = list(carried)
            for u in range(_UNROLL):
                here = t.shifted(k, u)
                weights = [t.read(w, w_type, panel, here, t.index(t.width * j)) for j in range(n)]
                for i, own in enumerate(staged):
                    number = t.broadcast(t.extract(self.staged, self.staged_type, own, here))
                    for j, weight in enumerate(weights):
                        sums[i * n + j] = t.vop("vector.fma", number, weight, sums[i * n + j])
            return sums

        starts = [(t.splat(0.0), t.vec)] * (tall * n)
        sums = t.loop((t.index(0), t.index(self.spec.K), t.index(_UNROLL)), starts, step)
        for i, total in enumerate(sums):
            place = [image, t.shifted(row, i // n), t.shifted(column, t.width * (i % n))]
            y = t.write(self.then.emit(total, place, self.loaded), y, self.y_type, *place)
        return y
