"""Planes, such as the channels of images, made larger or smaller along both of their axes (Resize), in one dispatch. A row of the
result is made of one row of x or of two, and so is a column, by `taps`:

    1, nearest:    y[r, j] = x[row, at[0, j]]
    2, linear:     y[r, j] = down[r, 0] t[row, j] + down[r, 1] t[next, j]
                   t[i, j] = by[0, j] x[i, at[0, j]] + by[1, j] x[i, at[1, j]]

Rows of the result that follow each other and are made of the same rows of x are a run. A workgroup has as many rows of t (nearest:
of y), of which it makes all rows of a run. What the run before had of them too is not made again: when a plane becomes larger,
elements, which do not lie side by side, are picked once for each row of x and not for each of y. A workgroup makes a part of the
runs of a plane, or all of some small planes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from onnx_fa.kernels.cpu.picked import find_picks
from onnx_fa.kernels.cpu.row_dispatch import call_dispatch, joined, load, make_executable, store
from onnx_fa.kernels.mlir.called import function_text
from onnx_fa.kernels.mlir.operand import ROWS, Operand
from onnx_fa.kernels.mlir.text import INDEX, memref_type
from onnx_fa.kernels.mlir.vectors import Lanes
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import Dim

WIDEST = 2048
"""Columns of a result, at most: two rows lie on the stack, of which IREE gives a workgroup 32 KiB."""
ENOUGH = 1 << 14
"""Elements that a workgroup makes, about: the runtime takes about a microsecond to start one."""


@dataclass(frozen=True)
class ResampledPlanes:
    """`planes` (None: known at run time only) of (height, width) that become such of (to_height, to_width), by so many `runs`, of
    which each of `parts` workgroups makes some. `at` are (taps, to_width) columns."""

    planes: int | None
    height: int
    width: int
    to_height: int
    at: tuple[tuple[int, ...], ...]
    runs: int
    parts: int

    @property
    def taps(self) -> int:
        return len(self.at)

    @property
    def to_width(self) -> int:
        return len(self.at[0])

    @property
    def name(self) -> str:
        return f"{self.symbol}_of"

    @property
    def symbol(self) -> str:
        """Of the dispatch."""
        count = "n" if self.planes is None else self.planes
        sizes = f"{self.height}x{self.width}_to_{self.to_height}x{self.to_width}"
        columns = hashlib.sha256(repr(self.at).encode()).hexdigest()[:8]
        return f"resample_{count}x{sizes}_by_{self.taps}_{columns}_in_{self.runs}_{self.parts}_planes"

    @property
    def group(self) -> int:
        """Planes of a workgroup."""
        return 1 if self.parts > 1 else max(1, ENOUGH // (self.to_height * self.to_width))

    @property
    def lead(self) -> Dim:
        return ROWS if self.planes is None else self.planes

    @property
    def operands(self) -> tuple[Operand, ...]:
        """x; of each run its rows of x, whether columns are to be picked of each (1, or 0 of what is there), and where its rows of
        y begin and end; where the runs of each part begin, and end; the columns that a column is made of. And if these are two,
        what it weighs of them, and what a row of y weighs of its rows."""
        found = (
            Operand("%x", (self.lead, self.height, self.width), "f32"),
            Operand("%runs", (self.runs, 2 * self.taps + 2), "i32"),
            Operand("%parts", (self.parts + 1,), "i32"),
            Operand("%at", (self.taps, self.to_width), "i32"),
        )
        if self.taps == 1:
            return found
        return *found, Operand("%by", (2, self.to_width), "f32"), Operand("%down", (self.to_height, 2), "f32")

    @property
    def y(self) -> Operand:
        return Operand("%y", (self.lead, self.to_height, self.to_width), "f32")

    def texts(self, target: Target) -> dict[str, str]:
        """The executable and the function of the name, which takes the operands and returns y, by their symbols."""
        t = Lanes(1)
        made = call_dispatch(t, self.symbol, self.operands, [x.name for x in self.operands], [self.y])
        function = function_text(self.name, self.operands, [self.y], t, made)
        return {self.symbol: joined(_Body(self, target).executable()), self.name: joined(function)}


class _Body:
    """Of one workgroup."""

    def __init__(self, spec: ResampledPlanes, target: Target) -> None:
        self.spec = spec
        lanes = target.lanes
        while lanes > spec.to_width:
            lanes //= 2
        self.t = Lanes(lanes)
        self.taps = range(spec.taps)
        self.held = {x.name: load(self.t, x, "readonly", ["0"] * len(x.shape), x.shape) for x in spec.operands}
        self.rows_type = memref_type((spec.taps, spec.to_width), "f32")
        self.rows = self.t.empty(self.rows_type)
        self.last = self.t.index(spec.to_width - lanes)
        """Where the last vector of a row begins: it may make columns of the one before again."""
        self.picks = find_picks(spec.at, spec.width, lanes)

    def executable(self) -> list[str]:
        t, spec = self.t, self.spec
        workgroup, parts = t.let("flow.dispatch.workgroup.id[0] : index"), t.index(spec.parts)
        part = t.arith("remui", workgroup, parts)
        first = t.arith("muli", t.arith("divui", workgroup, parts), t.index(spec.group))
        count = "%rows" if spec.planes is None else t.index(spec.planes)
        end = t.arith("minui", t.shifted(first, spec.group), count)
        runs = [self.number("%parts", t.shifted(part, i)) for i in (0, 1)]
        plane, run = self.begin_loop(first, end), self.begin_loop(runs[0], runs[1])
        self.make_run(plane, run)
        self.end_loops(2)
        given = "arith.addi %rows, %none : index" if spec.planes is None else f"arith.constant {spec.planes} : index"
        groups = [
            "%none = arith.constant 0 : index",
            f"%planes = {given}",
            f"%group = arith.constant {spec.group} : index",
            "%groups = arith.ceildivui %planes, %group : index",
            f"%split = arith.constant {spec.parts} : index",
            "%x = arith.muli %groups, %split : index",
        ]
        return make_executable(spec.symbol, spec.operands, [spec.y], groups, t.render())

    def number(self, name: str, *indices: str) -> str:
        """An element of an operand of i32 as an index."""
        value, type_ = self.held[name]
        return self.t.let(f"arith.index_cast {self.t.extract(value, type_, *indices)} : i32 to {INDEX}")

    def begin_loop(self, low: str, high: str, step: int = 1) -> str:
        """The index of a loop that carries nothing, until `end_loops`."""
        at = self.t.fresh()
        self.t.do(f"scf.for {at} = {low} to {high} step {self.t.index(step)} {{")
        return at

    def end_loops(self, count: int = 1) -> None:
        for _ in range(count):
            self.t.do("}")

    def make_run(self, plane: str, run: str) -> None:
        t, taps = self.t, self.spec.taps
        numbers = [self.number("%runs", run, t.index(i)) for i in range(2 * taps + 2)]
        # Two neighbours lie in different places.
        slots = [t.arith("andi", row, t.index(1)) if taps > 1 else t.index(0) for row in numbers[:taps]]
        for row, slot, times in zip(numbers, slots, numbers[taps:], strict=False):
            self.begin_loop(t.index(0), times)
            self.pick([plane, row, t.index(0)], slot)
            self.end_loops()
        row = self.begin_loop(numbers[-2], numbers[-1])
        self.make_row(plane, row, slots)
        self.end_loops()

    def pick(self, row: list[str], slot: str) -> None:
        """The columns of a row of x."""
        t = self.t
        for picks in self.picks:
            i = self.begin_loop(t.index(0), t.index(picks.count))
            column, base = (
                t.arith("addi", t.index(first), t.arith("muli", i, t.index(step)))
                for first, step in ((picks.start, t.width), (picks.base, picks.step))
            )
            self.put([self.shuffle(row, base, picks.window, mask) for mask in picks.masks], slot, column)
            self.end_loops()
        if not self.picks:
            column = t.arith("minui", self.begin_loop(t.index(0), t.index(self.spec.to_width), t.width), self.last)
            self.put([self.gather(row, t.index(i), column) for i in self.taps], slot, column)
            self.end_loops()

    def put(self, parts: list[str], slot: str, column: str) -> None:
        """What columns are made of."""
        if self.spec.taps > 1:
            parts = [self.weighed(parts, [self.t.read(*self.held["%by"], self.t.index(i), column) for i in self.taps])]
        self.t.write(parts[0], self.rows, self.rows_type, slot, column)

    def shuffle(self, row: list[str], base: str, window: int, mask: tuple[int, ...]) -> str:
        """Elements of a row of x that lie near to each other."""
        t = self.t
        places = [t.shifted(base, i * t.width) for i in range(window)]
        first, second = ([t.read(*self.held["%x"], *row[:-1], place) for place in places] * 2)[:2]
        return t.let(f"vector.shuffle {first}, {second} {list(mask)} : {t.vec}, {t.vec}")

    def gather(self, row: list[str], tap: str, column: str) -> str:
        """Elements of a row of x from anywhere."""
        t, (x, x_type) = self.t, self.held["%x"]
        places = t.read(*self.held["%at"], tap, column, element="i32")
        true, none = t.dense("true", "i1"), t.splat(0.0)
        types = f"{x_type}, {t.ivec}, {t.bvec}, {t.vec} into {t.vec}"
        return t.let(f"vector.gather {x}[{', '.join(row)}] [{places}], {true}, {none} : {types}")

    def weighed(self, parts: list[str], weights: list[str]) -> str:
        """The sum of two vectors by their weights."""
        a, b = (self.t.vop("arith.mulf", part, weight) for part, weight in zip(parts, weights, strict=True))
        return self.t.vop("arith.addf", a, b)

    def make_row(self, plane: str, row: str, slots: list[str]) -> None:
        """A row of y."""
        t, spec, zero = self.t, self.spec, self.t.index(0)
        if spec.taps > 1:
            down, down_type = self.held["%down"]
            weights = [t.broadcast(t.extract(down, down_type, row, t.index(i))) for i in self.taps]
        offsets, sizes = [plane, row, "0"], (1, 1, spec.to_width)
        y, y_type = load(t, spec.y, "writeonly", offsets, sizes)

        def write(column: str, carried: list[str]) -> list[str]:
            parts = [t.read(self.rows, self.rows_type, slot, column) for slot in slots]
            made = parts[0] if spec.taps == 1 else self.weighed(parts, weights)
            return [t.write(made, carried[0], y_type, zero, zero, column)]

        whole = spec.to_width - spec.to_width % t.width
        (y,) = t.loop((zero, t.index(whole), t.index(t.width)), [(y, y_type)], write)
        if whole < spec.to_width:
            (y,) = write(self.last, [y])
        store(t, y, y_type, spec.y, offsets, sizes)
