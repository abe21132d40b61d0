"""What the dispatches of an LSTM's or a GRU's steps have in common: operands, and the states of a panel of columns by those of the
step before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onnx_fa.kernels.cpu.row_dispatch import index_of
from onnx_fa.kernels.mlir.expressions import ExprVectors, IntBounds, Vector
from onnx_fa.kernels.mlir.operand import ROWS, Operand
from onnx_fa.kernels.mlir.vectors import Lanes
from onnx_fa.spec.expr import SCORE, Apply, ScoreExpr
from onnx_fa.spec.recurrent import RecurrentSpec
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import Dim

_CHAINS = 2
"""Sums of a gate of a single row that are carried side by side: fused multiply-adds take four cycles, and two begin in each."""
_SUMS = {8: 12, 16: 28}
"""How many vectors of sums fit the registers, by their lanes, beside a weight and what it is multiplied by."""


@dataclass(frozen=True)
class StepOperands:
    """What the steps of a spec read and make."""

    spec: RecurrentSpec

    @property
    def lead(self) -> tuple[Dim, Dim]:
        spec = self.spec
        return "steps" if spec.steps is None else spec.steps, ROWS if spec.rows is None else spec.rows

    @property
    def weights(self) -> list[Operand]:
        """x and what does not change from step to step."""
        spec = self.spec
        found = [Operand("%x", (*self.lead, spec.gates * spec.H), "f32")]
        found.append(Operand("%w", (spec.panels, spec.H, spec.gates * spec.panel), "f32"))
        return [*found, *[Operand("%b", (spec.H,), "f32")] * (spec.cell == "GRU")]

    @property
    def states(self) -> list[Operand]:
        return [Operand(name, (self.lead[1], self.spec.H), "f32") for name in ("%h", "%c")[: self.spec.states]]

    @property
    def given(self) -> list[Operand]:
        """What the function takes."""
        return [*self.weights, *(self.states if self.spec.started else ())]

    @property
    def results(self) -> list[Operand]:
        """Of the function."""
        return [Operand("%all", (*self.lead, self.spec.H), "f32"), *self.states]


class StepBody:
    """Writes the states of a panel. `loaded` are the operands that it reads, and their types, by their names."""

    def __init__(self, operands: StepOperands, target: Target) -> None:
        self.operands, self.spec, self.t = operands, operands.spec, Lanes(target.lanes)
        self.loaded: dict[str, tuple[str, str]] = {}
        self.together = next(n for n in (4, 2) if n * self.spec.gates <= _SUMS[target.lanes])
        self.exprs = ExprVectors(self.t, IntBounds("rows", self.spec.H, ()), ())

    def column_of(self, panel: str) -> str:
        """The first of a panel's."""
        t, spec = self.t, self.spec
        column = t.arith("muli", panel, t.index(spec.panel))
        return t.arith("minsi", column, t.index(spec.H - spec.panel)) if spec.H % spec.panel else column

    def each_rows(self, rows: Dim, body: Callable[[list[str]], None]) -> None:
        """Rows of the batch as many at a time as sums fit the registers, and then those that are left."""
        t, end = self.t, index_of(self.t, rows)
        together, done = self.together, t.index(0)
        if not isinstance(rows, int) or rows >= together:
            done = t.arith("subi", end, t.arith("remui", end, t.index(together)))
            t.each(
                (t.index(0), done, t.index(together)), lambda row: body([t.shifted(row, i) for i in range(together)])
            )
        if not isinstance(rows, int) or rows % together:
            t.each((done, end, t.index(1)), lambda row: body([row]))

    def next_states(
        self, panel: str, places: Sequence[tuple[str, str]], held: Sequence[str], column: str
    ) -> list[list[str]]:
        """Of each of some places of x, a step and a row, the states of the columns of a panel, by those that are held in a place of
        theirs."""
        t, spec = self.t, self.spec
        x, x_type = self.loaded["%x"]
        own = [[t.read(x, x_type, *p, t.shifted(column, gate * spec.H)) for gate in range(spec.gates)] for p in places]
        if spec.cell == "LSTM":
            return [
                self._lstm(sums, row, column) for sums, row in zip(self._products(panel, held, own), held, strict=True)
            ]
        bias = t.read(*self.loaded["%b"], column)
        products = self._products(panel, held, [[*gates[:2], bias] for gates in own])
        return [self._gru(sums, gates[2], row, column) for sums, gates, row in zip(products, own, held, strict=True)]

    def _lstm(self, sums: Sequence[str], held: str, column: str) -> list[str]:
        t, (i, o, f, g) = self.t, sums
        c = t.read(*self.loaded["%c"], held, column)
        kept, new = t.vop("arith.mulf", self._of("Sigmoid", f), c), self._of("Tanh", g)
        c = t.vop("vector.fma", self._of("Sigmoid", i), new, kept)
        return [t.vop("arith.mulf", self._of("Sigmoid", o), self._of("Tanh", c)), c]

    def _gru(self, sums: Sequence[str], own: str, held: str, column: str) -> list[str]:
        t, (z, r, p) = self.t, sums
        z = self._of("Sigmoid", z)
        hidden = self._of("Tanh", t.vop("vector.fma", self._of("Sigmoid", r), p, own))
        rest = t.vop("arith.mulf", t.vop("arith.subf", t.splat(1.0), z), hidden)
        return [t.vop("vector.fma", z, t.read(*self.loaded["%h"], held, column), rest)]

    def _of(self, op: str, value: str) -> str:
        def known(e: ScoreExpr) -> Vector | None:
            return Vector(value, "f32") if e == SCORE else None

        return self.exprs.emit(Apply(op, SCORE), known, {}).value

    def _products(self, panel: str, held: Sequence[str], starts: Sequence[Sequence[str]]) -> list[list[str]]:
        """Of every row and gate, what it starts with and the products of the state that is held in the row's place."""
        t, spec, gates = self.t, self.spec, self.spec.gates
        (h, h_type), (w, w_type) = self.loaded["%h"], self.loaded["%w"]
        unroll = next(n for n in (8, 4, 2, 1) if spec.H % n == 0)
        each = gates * len(held)
        chains = _CHAINS if len(held) == 1 else 1

        def step(k: str, carried: list[str]) -> list[str]:
            sums = list(carried)
            for u in range(unroll):
                at, chain = t.shifted(k, u), u % chains
                numbers = [t.broadcast(t.extract(h, h_type, row, at)) for row in held]
                for gate in range(gates):
                    weight = t.read(w, w_type, panel, at, t.index(gate * spec.panel))
                    for row, number in enumerate(numbers):
                        to = chain * each + row * gates + gate
                        sums[to] = t.vop("vector.fma", number, weight, sums[to])
            return sums

        zeros = [t.splat(0.0)] * (each * (chains - 1))
        carried = [(v, t.vec) for v in [*(v for row in starts for v in row), *zeros]]
        sums = t.loop((t.index(0), t.index(spec.H), t.index(unroll)), carried, step)
        if chains > 1:
            sums = [t.vop("arith.addf", sums[i], sums[each + i]) for i in range(each)]
        return [sums[row * gates : (row + 1) * gates] for row in range(len(held))]
