"""The steps of an LSTM or a GRU on CPUs: the product of the state with all gates' weights, and what becomes of its sums, which stay
in registers. Where the weights are small, all steps are one dispatch, whose workgroups have a row of the batch each and its state
in the first cache. Else every step is one, and workgroups share the columns of the state."""

from __future__ import annotations

from dataclasses import dataclass

from onnx_fa.kernels.cpu.row_dispatch import call_dispatch, index_of, joined, load, make_executable, size_of, store
from onnx_fa.kernels.mlir.expressions import ExprVectors, IntBounds, Vector
from onnx_fa.kernels.mlir.operand import ROWS, Operand
from onnx_fa.kernels.mlir.text import Text, memref_type
from onnx_fa.kernels.mlir.vectors import Lanes
from onnx_fa.spec.expr import SCORE, Apply, ScoreExpr
from onnx_fa.spec.recurrent import RecurrentSpec
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import Dim

_AT = "%at"
"""The step that a dispatch computes."""
_GROUPS = 16
"""Workgroups of a step at most: what they read together of the weight is in the caches after the first."""
_WHOLE_BYTES = 1 << 20
"""Weights up to this size are read by one thread in less time than it takes to hand a step to several."""
_CHAINS = 2
"""Sums of a gate that are carried side by side: fused multiply-adds take four cycles, and two begin in each."""


def panel_of(H: int, target: Target) -> int:
    """The columns of a panel; 0 where no kernel is to stand for states of so many numbers."""
    there = not target.is_gpu and target.kernels == "auto" and target.has_avx2
    return target.lanes if there and target.lanes <= H else 0


@dataclass(frozen=True)
class RecurrentSteps:
    """The kernel of a spec."""

    spec: RecurrentSpec

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def _lead(self) -> tuple[Dim, Dim]:
        spec = self.spec
        return "steps" if spec.steps is None else spec.steps, ROWS if spec.rows is None else spec.rows

    @property
    def weights(self) -> list[Operand]:
        """x and what does not change from step to step."""
        spec = self.spec
        found = [Operand("%x", (*self._lead, spec.gates * spec.H), "f32")]
        found.append(Operand("%w", (spec.panels, spec.H, spec.gates * spec.panel), "f32"))
        return [*found, *[Operand("%b", (spec.H,), "f32")] * (spec.cell == "GRU")]

    @property
    def states(self) -> list[Operand]:
        return [Operand(name, (self._lead[1], self.spec.H), "f32") for name in ("%h", "%c")[: self.spec.states]]

    @property
    def results(self) -> list[Operand]:
        """Of the function."""
        return [Operand("%all", (*self._lead, self.spec.H), "f32"), *self.states]

    def texts(self, target: Target) -> dict[str, str]:
        """The executable and the function of the name, which takes the operands, by their symbols."""
        symbol, operands = f"{self.name}_step", [*self.weights, *(self.states if self.spec.started else ())]
        arguments = ", ".join(f"{x.name}: {x.type}" for x in operands)
        types = ", ".join(x.type for x in self.results)
        t = Text()
        made = self._whole(t, symbol) if self._is_whole else self._loop(t, symbol)
        head = f"util.func private @{self.name}({arguments}) -> ({types}) {{"
        function = [head, *t.render(), f"util.return {', '.join(made)} : {types}", "}"]
        body = (_WholeBody if self._is_whole else _StepBody)(self, target)
        return {symbol: joined(body.executable(symbol)), self.name: joined(function)}

    @property
    def _is_whole(self) -> bool:
        return 4 * self.spec.gates * self.spec.H**2 <= _WHOLE_BYTES

    def _starts(self, t: Text) -> list[str]:
        """Measures what is free, and returns the first states."""
        x = self.weights[0]
        for axis, dim in enumerate(x.shape):
            if isinstance(dim, str):
                t.do(f"%{dim} = tensor.dim %x, {t.index(axis)} : {x.type}")
        if self.spec.started:
            return [y.name for y in self.states]
        zero = t.f32(0.0)
        return [
            t.let(f"linalg.fill ins({zero} : f32) outs({self._empty(t, y)} : {y.type}) -> {y.type}")
            for y in self.states
        ]

    @staticmethod
    def _empty(t: Text, y: Operand) -> str:
        return t.let(f"tensor.empty({', '.join(f'%{s}' for s in y.symbols)}) : {y.type}")

    def _whole(self, t: Text, symbol: str) -> list[str]:
        starts, operands = self._starts(t), [*self.weights, *self.states]
        return call_dispatch(t, symbol, operands, [*(v.name for v in self.weights), *starts], self.results)

    def _loop(self, t: Text, symbol: str) -> list[str]:
        every, states, steps = self.results[0], self.states, self._lead[0]
        starts = self._starts(t)

        def step(at: str, carried: list[str]) -> list[str]:
            written, *now = carried
            given = [v.name for v in self.weights] + now
            made = call_dispatch(t, symbol, [*self.weights, *states], given, states, numbers=[at])
            sizes = f"[1, {size_of(self._lead[1])}, {self.spec.H}]"
            into = f"{written}[{at}, 0, 0] {sizes} [1, 1, 1] : {states[0].type} into {every.type}"
            return [t.let(f"tensor.insert_slice {made[0]} into {into}"), *made]

        carried = [(self._empty(t, every), every.type), *((v, y.type) for v, y in zip(starts, states, strict=True))]
        return t.loop((t.index(0), index_of(t, steps), t.index(1)), carried, step)


class _StepBody:
    """Writes the dispatch of a step."""

    def __init__(self, kernel: RecurrentSteps, target: Target) -> None:
        self.kernel, self.spec, self.t = kernel, kernel.spec, Lanes(target.lanes)
        self.across = -(-self.spec.panels // _GROUPS)
        self.exprs = ExprVectors(self.t, IntBounds("rows", self.spec.H, ()), ())

    def executable(self, symbol: str) -> list[str]:
        groups = -(-self.spec.panels // self.across)
        outputs = [Operand(f"{y.name}_next", y.shape, y.element) for y in self.kernel.states]
        operands = [*self.kernel.weights, *self.kernel.states]
        count = [f"%x = arith.constant {groups} : index"]
        return make_executable(symbol, operands, outputs, count, self._body(operands, outputs), numbers=[_AT])

    def _body(self, operands: list[Operand], outputs: list[Operand]) -> list[str]:
        t, spec = self.t, self.spec
        self.loaded = {x.name: load(t, x, "readonly", ["0"] * len(x.shape), x.shape) for x in operands}
        made = [load(t, y, "writeonly", ["0", "0"], y.shape) for y in outputs]
        group = t.let("flow.dispatch.workgroup.id[0] : index")
        first = t.arith("muli", group, t.index(self.across))
        last = t.arith("minsi", t.shifted(first, self.across), t.index(spec.panels))
        rows = index_of(t, self.kernel.states[0].shape[0])

        def over_panels(panel: str, carried: list[str]) -> list[str]:
            column = self._column(panel)

            def over_rows(row: str, inside: list[str]) -> list[str]:
                states = self._next(panel, (_AT, row), row, column)
                types = [type_ for _, type_ in made]
                return [t.write(v, y, type_, row, column) for v, y, type_ in zip(states, inside, types, strict=True)]

            both = [(y, type_) for y, (_, type_) in zip(carried, made, strict=True)]
            return t.loop((t.index(0), rows, t.index(1)), both, over_rows)

        written = t.loop((first, last, t.index(1)), made, over_panels)
        for value, (_, type_), y in zip(written, made, outputs, strict=True):
            store(t, value, type_, y, ["0", "0"], y.shape)
        return t.render()

    def _column(self, panel: str) -> str:
        """The first of a panel's."""
        t, spec = self.t, self.spec
        column = t.arith("muli", panel, t.index(spec.panel))
        return t.arith("minsi", column, t.index(spec.H - spec.panel)) if spec.H % spec.panel else column

    def _next(self, panel: str, place: tuple[str, str], held: str, column: str) -> list[str]:
        """The states of a place of x, a step and a row, of the columns of a panel, by those that are held in this place."""
        t, spec = self.t, self.spec
        x, x_type = self.loaded["%x"]
        own = [t.read(x, x_type, *place, t.shifted(column, gate * spec.H)) for gate in range(spec.gates)]
        if spec.cell == "LSTM":
            i, o, f, g = self._products(panel, held, own)
            c = t.read(*self.loaded["%c"], held, column)
            kept, new = t.vop("arith.mulf", self._of("Sigmoid", f), c), self._of("Tanh", g)
            c = t.vop("vector.fma", self._of("Sigmoid", i), new, kept)
            return [t.vop("arith.mulf", self._of("Sigmoid", o), self._of("Tanh", c)), c]
        z, r, p = self._products(panel, held, [*own[:2], t.read(*self.loaded["%b"], column)])
        z = self._of("Sigmoid", z)
        hidden = self._of("Tanh", t.vop("vector.fma", self._of("Sigmoid", r), p, own[2]))
        rest = t.vop("arith.mulf", t.vop("arith.subf", t.splat(1.0), z), hidden)
        return [t.vop("vector.fma", z, t.read(*self.loaded["%h"], held, column), rest)]

    def _of(self, op: str, value: str) -> str:
        def known(e: ScoreExpr) -> Vector | None:
            return Vector(value, "f32") if e == SCORE else None

        return self.exprs.emit(Apply(op, SCORE), known, {}).value

    def _products(self, panel: str, held: str, starts: list[str]) -> list[str]:
        """Of every gate, what it starts with and the products of the state."""
        t, spec, gates = self.t, self.spec, self.spec.gates
        (h, h_type), (w, w_type) = self.loaded["%h"], self.loaded["%w"]
        unroll = next(n for n in (8, 4, 2, 1) if spec.H % n == 0)

        def step(k: str, carried: list[str]) -> list[str]:
            sums = list(carried)
            for u in range(unroll):
                at, chain = t.shifted(k, u), u % _CHAINS
                number = t.broadcast(t.extract(h, h_type, held, at))
                for gate in range(gates):
                    weight = t.read(w, w_type, panel, at, t.index(gate * spec.panel))
                    to = chain * gates + gate
                    sums[to] = t.vop("vector.fma", number, weight, sums[to])
            return sums

        carried = [(v, t.vec) for v in [*starts, *[t.splat(0.0)] * (gates * (_CHAINS - 1))]]
        sums = t.loop((t.index(0), t.index(spec.H), t.index(unroll)), carried, step)
        return [t.vop("arith.addf", sums[gate], sums[gates + gate]) for gate in range(gates)]


class _WholeBody(_StepBody):
    """Writes the dispatch of all steps. States lie on the stack twice: panels read those of the step before."""

    def executable(self, symbol: str) -> list[str]:
        operands, outputs = [*self.kernel.weights, *self.kernel.states], self.kernel.results
        outputs = [Operand(f"{y.name}_next", y.shape, y.element) for y in outputs]
        count = ["%none = arith.constant 0 : index"]
        rows = self.kernel.states[0].shape[0]
        if isinstance(rows, int):
            count = [f"%x = arith.constant {rows} : index"]
        else:
            count.append(f"%x = arith.addi %{rows}, %none : index")
        return make_executable(symbol, operands, outputs, count, self._body(operands, outputs))

    def _body(self, operands: list[Operand], outputs: list[Operand]) -> list[str]:
        t, spec = self.t, self.spec
        self.loaded = {x.name: load(t, x, "readonly", ["0"] * len(x.shape), x.shape) for x in operands}
        made = [load(t, y, "writeonly", ["0"] * len(y.shape), y.shape) for y in outputs]
        names, type_ = [y.name for y in self.kernel.states], memref_type((2, spec.H), "f32")
        first, row = [self.loaded[name] for name in names], t.let("flow.dispatch.workgroup.id[0] : index")
        for name in names:
            self.loaded[name] = t.empty(type_), type_

        def begin(panel: str) -> None:
            column = self._column(panel)
            for name, (value, have) in zip(names, first, strict=True):
                t.write(t.read(value, have, row, column), *self.loaded[name], t.index(0), column)

        t.each((t.index(0), t.index(spec.panels), t.index(1)), begin)
        steps = self.kernel.results[0].shape[0]

        def step(at: str, carried: list[str]) -> list[str]:
            held = t.arith("remui", at, t.index(2))
            then = t.arith("subi", t.index(1), held)

            def over_panels(panel: str, inside: list[str]) -> list[str]:
                column = self._column(panel)
                states = self._next(panel, (at, row), held, column)
                for name, state in zip(names, states, strict=True):
                    t.write(state, *self.loaded[name], then, column)
                return [t.write(states[0], inside[0], made[0][1], at, row, column)]

            bounds = t.index(0), t.index(spec.panels), t.index(1)
            return t.loop(bounds, [(carried[0], made[0][1])], over_panels)

        many = index_of(t, steps)
        (every,) = t.loop((t.index(0), many, t.index(1)), made[:1], step)
        last = t.arith("remui", many, t.index(2))

        def end(panel: str, carried: list[str]) -> list[str]:
            column, found = self._column(panel), list[str]()
            for name, y, (_, have) in zip(names, carried, made[1:], strict=True):
                found.append(t.write(t.read(*self.loaded[name], last, column), y, have, row, column))
            return found

        ends = t.loop((t.index(0), t.index(spec.panels), t.index(1)), made[1:], end)
        for value, (_, have), y in zip([every, *ends], made, outputs, strict=True):
            store(t, value, have, y, ["0"] * len(y.shape), y.shape)
        return t.render()
