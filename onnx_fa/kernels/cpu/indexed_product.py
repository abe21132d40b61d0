"""The elements that a table picks out of a product of each of many heads (onnx_fa/spec/indexed.py), in one dispatch.

The compiler writes the whole product, of which a row of attention by relative positions wants S of N columns, and picks from
memory. Here a workgroup takes some rows of a head, looks which columns their places span, multiplies by these alone, and picks out
of its stack. Neighbouring rows want neighbouring columns: 12 rows of 128 places span 139 columns, of 512 in DeBERTa.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from onnx_fa.kernels.cpu.row_dispatch import (
    call_dispatch,
    index_of,
    joined,
    load,
    make_executable,
    store,
)
from onnx_fa.kernels.mlir.called import function_text, own_dims, read_dims
from onnx_fa.kernels.mlir.operand import Operand
from onnx_fa.kernels.mlir.text import memref_type
from onnx_fa.kernels.mlir.vectors import Lanes
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import Dim

_STACK = 28 << 10
"""Bytes of sums that wait: IREE gives a workgroup 32 KiB, of which the compiler takes some itself."""
_LEAST_ROWS, _MOST_TILES = 4, 4
"""Of a register tile, and tiles of a workgroup."""
_VECTORS, _UNROLL = 2, 4
_RANK = 3


@dataclass(frozen=True)
class IndexedProduct:
    """All f32, `at` and `like` i32. a is (batch or 1, rows, K), or (images, rows, heads, K), of which heads of images are the
    batch. w has its columns in panels of `panel`, (heads, panels, K, panel), of which the last may have some that nobody wants.
    `at` are places from 0 on among these columns, of y's shape, or with dims of 1 in place of y's. `like` has y's shape, where `at`
    has not, and is not read."""

    a: tuple[Dim, ...]
    w: tuple[Dim, ...]
    at: tuple[Dim, ...]
    like: tuple[Dim, ...] | None = None

    @property
    def K(self) -> int:
        return _known(self.a[-1])

    @property
    def panel(self) -> int:
        return _known(self.w[3])

    @property
    def columns(self) -> int:
        """Those of all panels."""
        return _known(self.w[1]) * self.panel

    @property
    def name(self) -> str:
        """Of the function: equal for equal specs."""
        return f"indexed_{hashlib.sha256(repr(self).encode()).hexdigest()[:10]}"

    @property
    def operands(self) -> list[Operand]:
        shaped = [("a", self.a, "f32"), ("w", self.w, "f32"), ("at", self.at, "i32")]
        if self.like is not None:
            shaped.append(("like", self.like, "i32"))
        return [Operand(f"%{name}", own_dims(shape, name), element) for name, shape, element in shaped]

    @property
    def y(self) -> Operand:
        *_, last = self.operands
        return Operand("%y", last.shape, "f32")

    def texts(self, target: Target) -> dict[str, str]:
        """The executable and the function of the name, which takes the operands and returns y, by their symbols."""
        symbol = f"{self.name}_heads"
        body = _Body(self, target)
        return {symbol: joined(body.executable(symbol)), self.name: joined(body.function(symbol))}


def panel_of(columns: int, target: Target) -> int:
    """The columns of a panel; 0 where the compiler keeps a product of so many."""
    panel = _VECTORS * target.lanes
    if target.kernels != "auto" or not target.has_avx2:
        return 0
    return panel if _tallest(-(-columns // panel) * panel, target) >= _LEAST_ROWS else 0


def _tallest(columns: int, target: Target) -> int:
    """Rows of a register tile at most, whose sums fit on the stack."""
    return min(8 if target.has_many_registers else 6, _STACK // (4 * columns))


def _known(dim: Dim) -> int:
    assert isinstance(dim, int)
    return dim


class _Body:
    """Writes the dispatch and its call."""

    def __init__(self, spec: IndexedProduct, target: Target) -> None:
        self.spec, self.t, self.vectors = spec, Lanes(target.lanes), spec.panel // target.lanes
        self.tall = _tallest(spec.columns, target)
        self.down = max(1, min(_MOST_TILES, _STACK // (4 * spec.columns * self.tall)))
        self.rows = self.tall * self.down
        self.operands, self.y = spec.operands, spec.y
        self.read = [x for x in self.operands if x.name != "%like"]
        self.staged_type = memref_type((self.rows, spec.columns), "f32")

    def function(self, symbol: str) -> list[str]:
        t = Lanes(self.t.width)
        read_dims(t, self.operands)
        made = call_dispatch(t, symbol, self.read, [x.name for x in self.read], [self.y])
        return function_text(self.spec.name, self.operands, [self.y], t, made)

    def executable(self, symbol: str) -> list[str]:
        batch, rows, _ = self.y.shape
        count = Lanes(self.t.width)
        each = count.arith("ceildivui", index_of(count, rows), count.index(self.rows))
        count.do(f"%x = arith.muli {index_of(count, batch)}, {each} : index")
        return make_executable(symbol, self.read, [self.y], count.render(), self._body())

    def _body(self) -> list[str]:
        t = self.t
        self.a, self.w, self.at = (load(t, x, "readonly", ["0"] * len(x.shape), x.shape) for x in self.read)
        y = load(t, self.y, "writeonly", ["0"] * _RANK, self.y.shape)
        self.staged = t.empty(self.staged_type)
        rows_of, places_of = (index_of(t, d) for d in self.y.shape[1:])
        of_rows = t.arith("ceildivui", rows_of, t.index(self.rows))
        group = t.let("flow.dispatch.workgroup.id[0] : index")
        b = t.arith("divui", group, of_rows)
        self.first = t.arith("muli", t.arith("remui", group, of_rows), t.index(self.rows))
        self.count = t.arith("minsi", t.index(self.rows), t.arith("subi", rows_of, self.first))
        self.batch, self.places = b, places_of
        self.table = self._within(b, self.read[2].shape[0])
        low, high = self._span()
        head = t.arith("remui", b, index_of(t, self.read[1].shape[0]))
        self.of_rows = self._of_rows()
        tiles = t.arith("ceildivui", self.count, t.index(self.tall))

        def over_panels(panel: str) -> None:
            t.each((t.index(0), tiles, t.index(1)), lambda tile: self._tile(head, tile, panel))

        t.each((low, high, t.index(1)), over_panels)
        (made,) = t.loop((t.index(0), self.count, t.index(1)), [y], self._pick_row)
        store(t, made, self.y.type, self.y, ["0"] * _RANK, self.y.shape)
        return t.render()

    def _within(self, index: str, dim: Dim) -> str:
        """The index along a dim that may be 1 in place of a longer one's."""
        t = self.t
        return t.index(0) if dim == 1 else t.arith("minsi", index, t.arith("subi", index_of(t, dim), t.index(1)))

    def _row_of_table(self, row: str) -> str:
        return self._within(self.t.arith("addi", self.first, row), self.read[2].shape[1])

    def _span(self) -> tuple[str, str]:
        """The panels of the columns that the rows want, from the first up to behind the last."""
        t, spec = self.t, self.spec
        size = index_of(t, self.read[2].shape[2])
        whole = t.arith("subi", size, t.arith("remui", size, t.index(t.width)))
        starts = [(t.dense(str(n), "i32"), t.ivec) for n in (spec.columns - 1, 0)]

        def by_row(row: str, carried: list[str]) -> list[str]:
            own = self._row_of_table(row)

            def by_vector(j: str, inner: list[str]) -> list[str]:
                x = t.read(*self.at, self.table, own, j, element="i32")
                return [t.arith(op, x, n, t.ivec) for op, n in zip(("minsi", "maxsi"), inner, strict=True)]

            def by_one(j: str, inner: list[str]) -> list[str]:
                x = t.broadcast(t.extract(*self.at, self.table, own, j), "i32")
                return [t.arith(op, x, n, t.ivec) for op, n in zip(("minsi", "maxsi"), inner, strict=True)]

            typed = [(x, t.ivec) for x in carried]
            made = t.loop((t.index(0), whole, t.index(t.width)), typed, by_vector)
            return t.loop((whole, size, t.index(1)), [(x, t.ivec) for x in made], by_one)

        found = t.loop((t.index(0), self.count, t.index(1)), starts, by_row)
        ends = list[str]()
        for kind, x in zip(("minsi", "maxsi"), found, strict=True):
            end = t.let(f"vector.reduction <{kind}>, {x} : {t.ivec} into i32")
            ends.append(t.arith("divui", t.let(f"arith.index_cast {end} : i32 to index"), t.index(spec.panel)))
        return ends[0], t.shifted(ends[1], 1)

    def _of_rows(self) -> tuple[list[str], list[str]]:
        """Where the rows of a lie: the indices before and behind that of the row."""
        t, (lead, _, *heads, _) = self.t, self.read[0].shape
        if not heads:
            return [self._within(self.batch, lead)], []
        size = index_of(t, heads[0])
        return [self._within(t.arith("divui", self.batch, size), lead)], [t.arith("remui", self.batch, size)]

    def _tile(self, head: str, tile: str, panel: str) -> None:
        """Puts the sums of a register tile on the stack. Rows beyond the last are the last again."""
        t, n, spec = self.t, self.vectors, self.spec
        (a, a_type), (w, w_type) = self.a, self.w
        at = t.arith("muli", tile, t.index(self.tall))
        start = t.arith("addi", self.first, at)
        last = t.arith("subi", index_of(t, self.read[0].shape[1]), t.index(1))
        rows = [t.arith("minsi", t.shifted(start, i), last) for i in range(self.tall)]
        before, behind = self.of_rows

        def step(k: str, sums: list[str], count: int) -> list[str]:
            sums = list(sums)
            for u in range(count):
                here = t.shifted(k, u)
                weights = [t.read(w, w_type, head, panel, here, t.index(t.width * j)) for j in range(n)]
                for i, row in enumerate(rows):
                    number = t.broadcast(t.extract(a, a_type, *before, row, *behind, here))
                    for j, weight in enumerate(weights):
                        sums[i * n + j] = t.vop("vector.fma", number, weight, sums[i * n + j])
            return sums

        starts, rest = [(t.splat(0.0), t.vec)] * (self.tall * n), spec.K % _UNROLL
        end = t.index(spec.K - rest)
        sums = t.loop((t.index(0), end, t.index(_UNROLL)), starts, lambda k, c: step(k, c, _UNROLL))
        if rest:
            sums = step(end, sums, rest)
        column = t.arith("muli", panel, t.index(spec.panel))
        for i, total in enumerate(sums):
            place = t.shifted(at, i // n), t.shifted(column, t.width * (i % n))
            t.write(total, self.staged, self.staged_type, *place)

    def _pick_row(self, row: str, carried: list[str]) -> list[str]:
        """y with one row, picked out of the stack."""
        t, own, into = self.t, self._row_of_table(row), self.t.arith("addi", self.first, row)

        def pick(j: str, made: list[str]) -> list[str]:
            place = t.extract(*self.at, self.table, own, self._within(j, self.read[2].shape[2]))
            column = t.let(f"arith.index_cast {place} : i32 to index")
            number = t.extract(self.staged, self.staged_type, row, column)
            return [t.insert(number, made[0], self.y.type, self.batch, into, j)]

        return t.loop((t.index(0), self.places, t.index(1)), [(carried[0], self.y.type)], pick)
