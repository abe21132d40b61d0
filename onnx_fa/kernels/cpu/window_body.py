"""The dispatch of a convolution at the vector level: a register tile of some places by some vectors of columns is carried along
channels and taps, whose numbers are read where they lie in the image. Nobody writes out what the windows see.

Places lie along rows, as those of a linear site (linear_body.py); an element of x is loaded once for all columns of a tile.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onnx_fa.kernels.cpu.epilogues import EpilogueVectors, tensor_operands
from onnx_fa.kernels.cpu.homes import Homes
from onnx_fa.kernels.cpu.row_dispatch import Changed, index_of, load, make_executable, store
from onnx_fa.kernels.mlir.operand import ROWS, Operand
from onnx_fa.kernels.mlir.vectors import Lanes
from onnx_fa.spec.windows import WindowSpec

WRITTEN_OUT = 12
"""Steps of K at most that are written out one after the other."""


@dataclass(frozen=True)
class WindowTiles:
    """A register tile has `rows` places, and as many vectors of `lanes` columns as a panel has. A workgroup has `down` tiles of
    `across` panels, all of one image."""

    lanes: int
    rows: int
    down: int
    across: int


def operands_of(spec: WindowSpec) -> list[Operand]:
    """x, the weight, the bias, and the tensors of what becomes of the sums."""
    panels = (spec.groups * spec.panels, spec.K, spec.panel)
    found = [Operand("%x", (_parts(spec), spec.numbers), spec.x_dtype), Operand("%w", panels, spec.dtype)]
    found += [Operand("%b", (spec.groups, spec.N), spec.dtype)] * spec.bias
    return [*found, *tensor_operands(spec.tensors, (_parts(spec), *spec.y_shape))]


def y_of(spec: WindowSpec) -> Operand:
    return Operand("%y", (_parts(spec), *spec.y_shape), spec.dtype)


def _parts(spec: WindowSpec) -> int | str:
    return ROWS if spec.parts is None else spec.parts


@dataclass(frozen=True)
class _Walk:
    """The way along K: `loops` from the outermost on, as (turns, step in x, step in the weight), and the steps that are written out
    in each turn of the innermost, as (place in x, place in the weight)."""

    loops: tuple[tuple[int, int, int], ...]
    written: tuple[tuple[int, int], ...]


def walk_of(spec: WindowSpec) -> _Walk:
    """The innermost steps of K are written out as long as they are not too many; the others are loops."""
    axes = _axes_of(spec)
    loops: list[tuple[int, int, int]] = []
    inner: list[tuple[int, int, int]] = []
    left, k_step = WRITTEN_OUT, 1
    for count, step in reversed(axes):
        some = max(n for n in range(1, count + 1) if count % n == 0 and (n <= left or n == 1))
        inner.insert(0, (some, step, k_step))
        if some < count:
            loops.insert(0, (count // some, step * some, k_step * some))
            left = 1
        left, k_step = left // some, k_step * count
    written = [
        (
            sum(i * x for i, (_, x, _) in zip(at, inner, strict=True)),
            sum(i * k for i, (_, _, k) in zip(at, inner, strict=True)),
        )
        for at in itertools.product(*(range(count) for count, _, _ in inner))
    ]
    return _Walk(tuple(loops), tuple(written))


def _axes_of(spec: WindowSpec) -> list[tuple[int, int]]:
    """The axes of K as (length, step in x), from the outermost on. Those whose numbers follow each other are one, such as taps side
    by side and their channels."""
    channels = [(spec.channels // spec.blocks, spec.channel_step)]
    axes = [(k, step * d) for k, step, d in zip(spec.kernel, spec.steps, spec.dilations, strict=True)]
    if not spec.depthwise:
        axes = axes + channels if spec.x_last else channels + axes
    joined = axes[:1]
    for count, step in axes[1:]:
        before, outer = joined[-1]
        if outer == count * step:
            joined[-1] = (before * count, step)
        else:
            joined.append((count, step))
    return joined


class WindowBody:
    """Writes the dispatch of a convolution."""

    homes: Homes | None = None

    def __init__(self, spec: WindowSpec, tiles: WindowTiles, ranges: int = 0) -> None:
        """`ranges`: of the workgroups, one for each core, where that is known (homes.py)."""
        self.spec, self.tiles, self.t, self.ranges = spec, tiles, Lanes(tiles.lanes), ranges
        self.operands, self.y, self.walk = operands_of(spec), y_of(spec), walk_of(spec)
        self.vectors = spec.panel // tiles.lanes
        self.then = EpilogueVectors(self.t, spec.then, spec.tensors, spec.columns)
        self.units, self.unit = self._count_units()
        self.down = -(-self.units // (self.unit * tiles.down))
        self.across = -(-spec.panels // tiles.across)

    def _count_units(self) -> tuple[int, int]:
        """What the tiles of an image are counted in, places, and how many of these a tile has."""
        return self.spec.rows, self.tiles.rows

    def executable(self, symbol: str) -> list[str]:
        """The executable, a function of that name."""
        each = self.down * self.across * self._groups_together
        if self.spec.parts is not None:
            count = [f"%x = arith.constant {each * self.spec.parts} : index"]
        else:
            count = [f"%each = arith.constant {each} : index", "%x = arith.muli %rows, %each : index"]
        return self.write_executable(symbol, count)

    def write_executable(self, symbol: str, count: Sequence[str]) -> list[str]:
        """The same, with operations that make the number of workgroups."""
        self.homes = Homes(symbol, self.ranges) if self.ranges else None
        changed = [x.operand for x in self.changed]
        return make_executable(symbol, self.operands, [self.y], count, self._body(), helper=self.homes, changed=changed)

    @property
    def changed(self) -> Sequence[Changed]:
        """What the dispatch reads and writes besides."""
        return [self.homes] if self.homes else []

    @property
    def _groups_together(self) -> int:
        """Groups of an image whose channels come last lie side by side."""
        return self.spec.groups if self.spec.x_last else 1

    def _body(self) -> list[str]:
        t, spec, tiles = self.t, self.spec, self.tiles
        self.loaded = {x.name: load(t, x, "readonly", ["0"] * len(x.shape), x.shape) for x in self.operands}
        y, self.y_type = load(t, self.y, "writeonly", ["0", "0", "0"], self.y.shape)
        # Workgroups that follow each other share an image, and panels of the weight.
        down, units, each = self._counts()
        group = self._workgroup(each)
        image, place = (t.arith(op, group, each) for op in ("divui", "remui"))
        below, beside = (t.arith(op, place, down) for op in ("remui", "divui"))
        if self.homes and self._has_large_images:
            below, beside = (t.arith(op, place, t.index(self.across)) for op in ("divui", "remui"))
        first_row = t.arith("muli", below, t.index(self.unit * tiles.down))
        last_row = t.arith("minsi", t.shifted(first_row, self.unit * tiles.down), units)
        first_panel = t.arith("muli", beside, t.index(tiles.across))
        last_panel = t.arith("minsi", t.shifted(first_panel, tiles.across), t.index(spec.panels))
        group = t.arith("remui", image, t.index(spec.groups))
        if spec.x_last:
            image = t.arith("divui", image, t.index(spec.groups))
        own = t.arith("muli", group, t.index(spec.panels))

        def over_panels(panel: str, carried: list[str]) -> list[str]:
            column = t.arith("muli", panel, t.index(spec.panel))
            if spec.N % spec.panel:
                column = t.arith("minsi", column, t.index(spec.N - spec.panel))
            matrix = t.arith("addi", own, panel)

            def over_rows(row: str, inside: list[str]) -> list[str]:
                return [self._tile(image, (group, matrix), self._first_place(row), column, inside[0])]

            return t.loop((first_row, last_row, t.index(self.unit)), [(carried[0], self.y_type)], over_rows)

        (made,) = t.loop((first_panel, last_panel, t.index(1)), [(y, self.y_type)], over_panels)
        store(t, made, self.y_type, self.y, ["0", "0", "0"], self.y.shape)
        return t.render()

    def _workgroup(self, each: str) -> str:
        """The number of a workgroup, of which an image and a group have so many."""
        t = self.t
        if not self.homes:
            return t.let("flow.dispatch.workgroup.id[0] : index")
        images = index_of(t, self.operands[0].shape[0])
        return self.homes.workgroup(t, t.arith("muli", t.arith("muli", each, t.index(self._groups_together)), images))

    @property
    def _has_large_images(self) -> bool:
        """Whether what is read and written of an image is more than the weight: ranges of workgroups are then places of it, and
        else columns."""
        spec = self.spec
        return math.prod(spec.sizes) * spec.channels + spec.rows * spec.N > spec.K * spec.N

    def _counts(self) -> tuple[str, str, str]:
        """Of an image: how many workgroups lie behind each other, the units of its tiles, and all workgroups."""
        t = self.t
        return t.index(self.down), t.index(self.units), t.index(self.down * self.across)

    def _place(self, row: str, i: int) -> str:
        """Where row i of a tile that begins at this place is written."""
        return self.t.shifted(row, i)

    def _first_place(self, at: str) -> str:
        """Of a tile that would begin at this place; the last begins earlier."""
        left = self.spec.rows % self.tiles.rows
        return self.t.arith("minsi", at, self.t.index(self.spec.rows - self.tiles.rows)) if left else at

    def _tile(self, image: str, weight: tuple[str, str], row: str, column: str, y: str) -> str:
        """y with one register tile, by the panel of a group."""
        t, n, tall = self.t, self.vectors, self.tiles.rows
        group, matrix = weight
        columns = [t.shifted(column, t.width * j) for j in range(n)]
        channel = column if self.spec.depthwise else ""
        if self.spec.x_last and self.spec.groups > 1:
            channel = t.arith("muli", group, t.index(self.spec.channels))
        first = [t.splat(0.0)] * n
        if self.spec.bias:
            first = [self._read(*self.loaded["%b"], group, at) for at in columns]
        sums = self._products(image, matrix, row, channel, first * tall)
        if self.spec.x_last and self.spec.groups > 1:
            before = t.arith("muli", group, t.index(self.spec.N))
            columns = [t.arith("addi", before, at) for at in columns]
        for j, at in enumerate(columns):
            own = sums[j::n]
            if not self.spec.last:
                y = self._write_turned(own, image, at, row, y)
                continue
            for i, total in enumerate(own):
                place = [image, self._place(row, i), at]
                made = self._rounded(self.then.emit(total, place, self.loaded), t.width)
                y = t.write(made, y, self.y_type, *place, element=self.spec.dtype)
        return y

    def _products(self, image: str, matrix: str, row: str, channel: str, sums: list[str]) -> list[str]:
        """The sums of a tile from this place on with its products. `channel` is the first that it reads, "" for the very first."""
        t = self.t
        starts = [self._start(t.shifted(row, i)) for i in range(self.tiles.rows)]
        if channel:
            starts = [t.arith("addi", start, channel) for start in starts]
        return self._sums(image, matrix, starts, t.index(0), t.index(0), 0, [(v, t.vec) for v in sums])

    def _write_turned(self, sums: list[str], image: str, column: str, row: str, y: str) -> str:
        """y with vectors of columns, a column as a row: eight places at a time, or four."""
        t = self.t
        fours = [t.turn_four(sums[i : i + 4]) for i in range(0, len(sums), 4)]
        for i in range(0, len(fours), 2):
            both = fours[i : i + 2]
            at = t.shifted(row, 4 * i)
            places = f"vector<{4 * len(both)}x{self.spec.dtype}>"
            for c in range(4):
                for g in range(t.width // 4):
                    lanes = [offset + 4 * g + lane for offset in (0, t.width)[: len(both)] for lane in range(4)]
                    value = t.let(f"vector.shuffle {both[0][c]}, {both[-1][c]} {lanes} : {t.vec}, {t.vec}")
                    value = self._rounded(value, len(lanes))
                    where = f"{image}, {t.shifted(column, 4 * g + c)}, {at}"
                    y = t.let(
                        f"vector.transfer_write {value}, {y}[{where}] {{in_bounds = [true]}} : {places}, {self.y_type}"
                    )
        return y

    def _start(self, place: str) -> str:
        """Where the window of a place begins in its image."""
        t, spec = self.t, self.spec
        start, left = t.index(0), place
        for i in reversed(range(len(spec.sizes))):
            along = left
            if i:
                along = t.arith("remui", left, t.index(spec.places[i]))
                left = t.arith("divui", left, t.index(spec.places[i]))
            start = t.arith("addi", start, t.arith("muli", along, t.index(spec.strides[i] * spec.steps[i])))
        return start

    def _sums(
        self, image: str, matrix: str, starts: list[str], x_at: str, k_at: str, depth: int, sums: list[tuple[str, str]]
    ) -> list[str]:
        """The sums with what lies on the way from the loop of this depth on."""
        t = self.t
        if depth == len(self.walk.loops):
            return self._written(image, matrix, [t.arith("addi", s, x_at) for s in starts], k_at, [v for v, _ in sums])
        turns, x_step, k_step = self.walk.loops[depth]

        def turn(i: str, values: list[str]) -> list[str]:
            x_next = t.arith("addi", x_at, t.arith("muli", i, t.index(x_step)))
            k_next = t.arith("addi", k_at, t.arith("muli", i, t.index(k_step)))
            carried = [(v, t.vec) for v in values]
            return self._sums(image, matrix, starts, x_next, k_next, depth + 1, carried)

        return t.loop((t.index(0), t.index(turns), t.index(1)), sums, turn)

    def _written(self, image: str, matrix: str, starts: list[str], k_at: str, sums: list[str]) -> list[str]:
        return self._multiply(image, matrix, starts, k_at, self.walk.written, sums)

    def _multiply(
        self, image: str, matrix: str, starts: list[str], k_at: str, steps: Sequence[tuple[int, int]], sums: list[str]
    ) -> list[str]:
        """The sums, a row of vectors for each start, with the products of steps of K, as (place in x, place in the weight)."""
        t = self.t
        w, w_type = self.loaded["%w"]
        for x_off, k_off in steps:
            at = t.shifted(k_at, k_off)
            weights = [self._read(w, w_type, matrix, at, t.index(t.width * j)) for j in range(self.vectors)]
            for i, start in enumerate(starts):
                numbers = self._numbers(image, start, x_off)
                for j, (number, weight) in enumerate(zip(numbers, weights, strict=True)):
                    to = i * self.vectors + j
                    sums[to] = t.vop("vector.fma", number, weight, sums[to])
        return sums

    @property
    def _channels(self) -> int:
        """Steps of K of one tap."""
        return 1 if self.spec.depthwise else self.spec.channels // self.spec.blocks

    def _over_channels(self, image: str, matrix: str, starts: list[str], k_at: str, sums: list[str]) -> list[str]:
        """The sums, a row of vectors for each start, with the products of one tap by all channels."""
        t, count = self.t, self._channels
        some = max(n for n in range(1, min(count, WRITTEN_OUT) + 1) if count % n == 0)
        written = [(c * self.spec.channel_step, c) for c in range(some)]
        if some == count:
            return self._multiply(image, matrix, starts, k_at, written, sums)

        def channels(c: str, carried: list[str]) -> list[str]:
            at, k_next = [t.arith("addi", start, c) for start in starts], t.arith("addi", k_at, c)
            return self._multiply(image, matrix, at, k_next, written, carried)

        return t.loop((t.index(0), t.index(count), t.index(some)), [(v, t.vec) for v in sums], channels)

    def _either(self, condition: str, yes: Callable[[], list[str]], no: Callable[[], list[str]]) -> list[str]:
        """The sums of a tile, of the one or the other."""
        return self.t.either(condition, [self.t.vec] * (self.tiles.rows * self.vectors), yes, no)

    def _read(self, value: str, type_: str, *indices: str) -> str:
        """A vector of the weight or the bias, as f32."""
        t, dtype = self.t, self.spec.dtype
        read = t.read(value, type_, *indices, element=dtype)
        return read if dtype == "f32" else t.let(f"arith.extf {read} : {t.type(dtype)} to {t.vec}")

    def _rounded(self, value: str, lanes: int) -> str:
        """A vector of so many sums, as y has them."""
        dtype = self.spec.dtype
        if dtype == "f32":
            return value
        return self.t.let(f"arith.truncf {value} : vector<{lanes}xf32> to vector<{lanes}x{dtype}>")

    def _numbers(self, image: str, start: str, x_off: int) -> list[str]:
        """What the columns of each vector of a place read: one number for all, one for each block, or each its own."""
        t, spec = self.t, self.spec
        x, x_type = self.loaded["%x"]
        if spec.depthwise:
            places = [t.shifted(start, x_off + t.width * j) for j in range(self.vectors)]
            return [t.read(x, x_type, image, at, element="f32") for at in places]
        apart = spec.channels // spec.blocks * spec.channel_step
        made = ""
        for block in range(spec.blocks):
            at = t.shifted(start, x_off + block * apart)
            number = t.broadcast(t.let(f"tensor.extract {x}[{image}, {at}] : {x_type}"))
            first = block * (t.width // spec.blocks)
            lanes = ", ".join("true" if lane >= first else "false" for lane in range(t.width))
            made = t.select(t.dense(f"[{lanes}]", "i1"), number, made) if block else number
        return [made] * self.vectors
