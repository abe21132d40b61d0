"""The walk over the rows of a weight of a few bits."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

from onnx_fa.kernels.cpu.bits_spec import BitsProduct
from onnx_fa.kernels.cpu.row_dispatch import load, make_executable, store
from onnx_fa.kernels.mlir.operand import Operand
from onnx_fa.kernels.mlir.text import Text

_FEW, _ROWS_BY_FEW, _ROWS_BY_MANY = 4, 16, 64
"""Rows of the weight that a workgroup takes by so few rows of x or by more. A worker of the runtime reserves eight workgroups at a
time where there are eight for each: of 24, one of two workers would take 16."""
MANY_REGISTERS = 32


def add_lanes(t: Text, total: str, lanes: int) -> str:
    """The f32 that the lanes of a vector add up to, half to half: one after the other each would wait for the one before, in a
    short row for longer than its products take."""
    while lanes > 1:
        whole, lanes = f"vector<{lanes}xf32>", lanes // 2
        low, high = (
            t.let(f"vector.shuffle {total}, {total} {list(range(at, at + lanes))} : {whole}, {whole}")
            for at in (0, lanes)
        )
        total = t.arith("addf", low, high, f"vector<{lanes}xf32>")
    return t.let(f"vector.extract {total}[0] : f32 from vector<1xf32>")


class RowsOfWeight(ABC):
    """The body of one workgroup: a group of the weight's rows by all rows of x, `own` of the first and `shared` of the second at a
    time, of the second no more than `most`. `from_x` are the operands that have x's rows, `registers` those of the processor,
    `group` the rows of the weight that a workgroup takes, if not as many as are fast."""

    by_few_registers = 2, 2
    """Rows of x and of the weight at a time, at most, where the processor has half of the registers."""

    def __init__(
        self, product: BitsProduct, from_x: Sequence[Operand], registers: int, most: int = 4, group: int = 0
    ) -> None:
        self.p, self.t, self.from_x = product, Text(), list(from_x)
        by_few = product.rows is not None and product.rows <= _FEW
        self.group = min(group or (_ROWS_BY_FEW if by_few else _ROWS_BY_MANY), product.N)
        wide = registers >= MANY_REGISTERS
        shared, own = (most, 4) if wide else self.by_few_registers
        self.shared = min(shared, product.rows or 4)
        # By a single row of x the weight's bytes are used once, and what counts is that they come in a row from memory: processors
        # fetch ahead along one stream in a page, and rows of a weight are shorter than one. Two at a time take 1.6 times as long.
        own = 1 if self.shared == 1 else own
        self.own = next(n for n in (4, 2, 1) if n <= own and self.group % n == 0)
        self.loaded: dict[str, tuple[str, str]] = {}

    def text(self, symbol: str) -> list[str]:
        """The executable."""
        groups = f"%x = arith.constant {math.ceil(self.p.N / self.group)} : index"
        return make_executable(symbol, [*self.from_x, *self.p.weight], [self.p.y], [groups], self._body())

    def _body(self) -> list[str]:
        t, p = self.t, self.p
        first = t.arith("muli", t.let("flow.dispatch.workgroup.id[0] : index"), t.index(self.group))
        if p.N % self.group:  # the last workgroup takes some rows that the one before takes too
            first = t.arith("minsi", first, t.index(p.N - self.group))
        for x in self.from_x:
            self.loaded[x.name] = load(t, x, "readonly", ["0"] * len(x.shape), x.shape)
        for x in p.weight:
            self.loaded[x.name] = load(t, x, "readonly", [first, "0"], (self.group, *x.shape[1:]))
        y, y_type = load(t, p.y, "writeonly", ["0", first], (p.lead, self.group))
        self.rows, zero = "%rows" if p.rows is None else t.index(p.rows), t.index(0)
        own = (zero, t.index(self.group), t.index(self.own))

        def over_x(m: str, carried: list[str]) -> list[str]:
            ms = self._clamped(m)
            return t.loop(own, [(carried[0], y_type)], lambda n, inner: [self._tile(ms, n, inner[0], y_type)])

        (made,) = t.loop((zero, self.rows, t.index(self.shared)), [(y, y_type)], over_x)
        store(t, made, y_type, p.y, ["0", first], (p.lead, self.group))
        return t.render()

    def _clamped(self, m: str) -> list[str]:
        """The rows of x of a tile: where there are fewer left, the last one is computed again."""
        if self.shared == 1:
            return [m]
        last = self.t.arith("subi", self.rows, self.t.index(1))
        return [self.t.arith("minsi", self.t.shifted(m, i), last) if i else m for i in range(self.shared)]

    def _tile(self, ms: list[str], n: str, y: str, y_type: str) -> str:
        """y with the products of some rows of the weight by some of x."""
        ns = [self.t.shifted(n, i) for i in range(self.own)]
        for at, value in self.sums(ms, ns).items():
            y = self.t.let(f"tensor.insert {value} into {y}[{at[0]}, {at[1]}] : {y_type}")
        return y

    @abstractmethod
    def sums(self, ms: list[str], ns: list[str]) -> dict[tuple[str, str], str]:
        """The f32 for every pair of a row of x and one of the weight."""

    def element(self, name: str, n: str, b: str) -> str:
        """An element of an operand."""
        value, type_ = self.loaded[name]
        return self.t.let(f"tensor.extract {value}[{n}, {b}] : {type_}")

    def widened(self, value: str, element: str) -> str:
        """A number as f32."""
        return value if element == "f32" else self.t.let(f"arith.extf {value} : {element} to f32")

    def zero_point(self, n: str, b: str) -> str:
        """The zero point of a block, as f32."""
        t, p = self.t, self.p
        if p.zeros != "packed":
            return self.widened(self.element("%zero", n, b), p.zeros)
        byte = self.element("%zero", n, t.arith("divui", b, t.index(p.places)))
        whole = t.let(f"arith.extui {byte} : i8 to i32")
        if p.places > 1:
            place = t.arith("muli", t.arith("remui", b, t.index(p.places)), t.index(p.bits))
            shift = t.let(f"arith.index_cast {place} : index to i32")
            whole = t.arith("shrui", whole, shift, "i32")
            whole = t.arith("andi", whole, t.constant(str((1 << p.bits) - 1), "i32"), "i32")
        return t.let(f"arith.uitofp {whole} : i32 to f32")
