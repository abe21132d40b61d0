"""The steps of an LSTM or a GRU on CPUs: the product of the state with all gates' weights, and what becomes of its sums, which stay
in registers. All steps are one dispatch. Where the weights are small, its workgroups have a row of the batch each and its state in
the first cache. Else they share each step (shared_steps.py)."""

from __future__ import annotations

from dataclasses import dataclass

from onnx_fa.kernels.cpu.row_dispatch import call_dispatch, index_of, joined, load, make_executable, store
from onnx_fa.kernels.cpu.shared_steps import SharedBody, outputs_of, words_of
from onnx_fa.kernels.cpu.step_body import StepBody, StepOperands
from onnx_fa.kernels.mlir.called import plain_function_text
from onnx_fa.kernels.mlir.operand import Operand
from onnx_fa.kernels.mlir.text import Text, memref_type
from onnx_fa.spec.recurrent import RecurrentSpec
from onnx_fa.spec.target import Target

_WHOLE_BYTES = 1 << 16
"""Weights up to this size are read by one thread in less time than it takes several to wait for each other."""


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
    def results(self) -> list[Operand]:
        return StepOperands(self.spec).results

    def texts(self, target: Target) -> dict[str, str]:
        """The executable and the function of the name, which takes the operands, by their symbols."""
        of = StepOperands(self.spec)
        symbol = f"{self.name}_step"
        t = Text()
        made = _call_whole(t, symbol, of) if self._is_whole else _call_shared(t, symbol, of)
        function = plain_function_text(self.name, of.given, of.results, t.render(), made)
        body = (_WholeBody if self._is_whole else SharedBody)(of, target)
        return {symbol: joined(body.executable(symbol)), self.name: joined(function)}

    @property
    def _is_whole(self) -> bool:
        return 4 * self.spec.gates * self.spec.H**2 <= _WHOLE_BYTES


def _given(t: Text, of: StepOperands) -> list[str]:
    """Measures what is free, and returns the values of weights and first states."""
    x = of.weights[0]
    for axis, dim in enumerate(x.shape):
        if isinstance(dim, str):
            t.do(f"%{dim} = tensor.dim %x, {t.index(axis)} : {x.type}")
    starts = [y.name for y in of.states] if of.spec.started else [_zeros(t, y) for y in of.states]
    return [*(v.name for v in of.weights), *starts]


def _zeros(t: Text, y: Operand) -> str:
    empty = t.let(f"tensor.empty({', '.join(f'%{s}' for s in y.symbols)}) : {y.type}")
    zero = t.constant("0" if y.element == "i32" else "0.0", y.element)
    return t.let(f"linalg.fill ins({zero} : {y.element}) outs({empty} : {y.type}) -> {y.type}")


def _call_whole(t: Text, symbol: str, of: StepOperands) -> list[str]:
    return call_dispatch(t, symbol, [*of.weights, *of.states], _given(t, of), of.results)


def _call_shared(t: Text, symbol: str, of: StepOperands) -> list[str]:
    given, words = _given(t, of), words_of(of)
    operands = [*of.weights, *of.states, words]
    made = call_dispatch(t, symbol, operands, [*given, _zeros(t, words)], outputs_of(of), changed=1)
    return made[1 : 1 + len(of.results)]


class _WholeBody(StepBody):
    """Writes the dispatch of all steps. States lie on the stack twice: panels read those of the step before."""

    def executable(self, symbol: str) -> list[str]:
        operands, outputs = [*self.operands.weights, *self.operands.states], self.operands.results
        outputs = [Operand(f"{y.name}_next", y.shape, y.element) for y in outputs]
        count = ["%none = arith.constant 0 : index"]
        rows = self.operands.states[0].shape[0]
        if isinstance(rows, int):
            count = [f"%x = arith.constant {rows} : index"]
        else:
            count.append(f"%x = arith.addi %{rows}, %none : index")
        return make_executable(symbol, operands, outputs, count, self._body(operands, outputs))

    def _body(self, operands: list[Operand], outputs: list[Operand]) -> list[str]:
        t, spec = self.t, self.spec
        self.loaded = {x.name: load(t, x, "readonly", ["0"] * len(x.shape), x.shape) for x in operands}
        made = [load(t, y, "writeonly", ["0"] * len(y.shape), y.shape) for y in outputs]
        names, type_ = [y.name for y in self.operands.states], memref_type((2, spec.H), "f32")
        first, row = [self.loaded[name] for name in names], t.let("flow.dispatch.workgroup.id[0] : index")
        for name in names:
            self.loaded[name] = t.empty(type_), type_

        def begin(panel: str) -> None:
            column = self.column_of(panel)
            for name, (value, have) in zip(names, first, strict=True):
                t.write(t.read(value, have, row, column), *self.loaded[name], t.index(0), column)

        t.each((t.index(0), t.index(spec.panels), t.index(1)), begin)
        steps = self.operands.results[0].shape[0]

        def step(at: str, carried: list[str]) -> list[str]:
            held = t.arith("remui", at, t.index(2))
            then = t.arith("subi", t.index(1), held)

            def over_panels(panel: str, inside: list[str]) -> list[str]:
                column = self.column_of(panel)
                states = self.next_states(panel, [(at, row)], [held], column)[0]
                for name, state in zip(names, states, strict=True):
                    t.write(state, *self.loaded[name], then, column)
                return [t.write(states[0], inside[0], made[0][1], at, row, column)]

            bounds = t.index(0), t.index(spec.panels), t.index(1)
            return t.loop(bounds, [(carried[0], made[0][1])], over_panels)

        many = index_of(t, steps)
        (every,) = t.loop((t.index(0), many, t.index(1)), made[:1], step)
        last = t.arith("remui", many, t.index(2))

        def end(panel: str, carried: list[str]) -> list[str]:
            column, found = self.column_of(panel), list[str]()
            for name, y, (_, have) in zip(names, carried, made[1:], strict=True):
                found.append(t.write(t.read(*self.loaded[name], last, column), y, have, row, column))
            return found

        ends = t.loop((t.index(0), t.index(spec.panels), t.index(1)), made[1:], end)
        for value, (_, have), y in zip([every, *ends], made, outputs, strict=True):
            store(t, value, have, y, ["0"] * len(y.shape), y.shape)
        return t.render()
