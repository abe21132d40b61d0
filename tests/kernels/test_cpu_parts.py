"""The parts of a body for CPUs by themselves: what loops carry, and what a recurrence asks of a block's kernel."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from onnx_fa.kernels.cpu.operands import Operands
from onnx_fa.kernels.cpu.query_rows import QueriesAlongLanes, QueryRows, VectorPerQuery
from onnx_fa.kernels.cpu.recurrence import OnlineSoftmax, OnlineSweep, Sweep, visit_block
from onnx_fa.kernels.cpu.state import Block, SoftmaxState, StateTypes
from onnx_fa.kernels.cpu.tiles import FewConfig, VectorConfig
from onnx_fa.kernels.cpu.two_sweeps import RoundedSoftmax, RoundedSweep
from onnx_fa.kernels.mlir.vectors import Lanes
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.terms import Rounding

STATE = SoftmaxState("acc", "scores", ("tile",), ("m0", "m1"), ("l0", "l1"))
TYPES = StateTypes("A", "S", ("T",), "V", 2)


def _operands(config: VectorConfig | FewConfig, **changes: Any) -> Operands:
    return Operands(AttentionSpec("f32", 2, 2, 8, 16, 8, 8, (1,), **changes), config)


class RecordingKernel:
    """A BlockKernel that writes down what it is asked for."""

    clear_apart = True
    types = TYPES

    def __init__(self) -> None:
        self.t = Lanes(4)
        self.asked: list[str] = []

    def load_queries(self) -> None:
        self.asked.append("queries")

    def prepare(self, state: SoftmaxState, block: Block) -> tuple[SoftmaxState, Block]:
        self.asked.append("prepare")
        return dataclasses.replace(state, scratch=("mask",)), block

    def scores(self, state: SoftmaxState, block: Block) -> tuple[str, list[str]]:
        self.asked.append("scores")
        return "S", ["n0", "n1"]

    def probabilities(
        self, weight: Callable[[str, str, str], str], state: SoftmaxState, block: Block
    ) -> tuple[str, list[str]]:
        self.asked.append(f"probabilities of {state.scores} below {' '.join(state.best)}")
        return "P", ["p0", "p1"]

    def add_values(self, state: SoftmaxState, decay: Sequence[str], block: Block) -> SoftmaxState:
        self.asked.append(f"values times {state.scores}")
        return dataclasses.replace(state, acc="O")

    def finish_output(self, state: SoftmaxState, inverse: Callable[[str], str]) -> str:
        return inverse(state.total[0])


def test_a_state_survives_a_loop() -> None:
    assert TYPES.unpack(TYPES.pack(STATE)) == STATE
    assert [t for _, t in TYPES.carried(STATE)] == ["A", "S", "T", "V", "V", "V", "V"]


@pytest.mark.parametrize("multiplies", [True, False])
def test_a_block_of_online_softmax(multiplies: bool) -> None:
    """Maximum and sum grow; the output does in a sweep that multiplies values."""
    kernel = RecordingKernel()
    after = visit_block(OnlineSweep(kernel.t, multiplies), kernel, STATE, Block("k0", "rows", False))
    wanted = ["prepare", "scores", "probabilities of S below n0 n1", "values times P"]
    assert kernel.asked == wanted[: 4 if multiplies else 3]
    assert (after.scores, after.scratch, after.best) == ("P", ("mask",), ("n0", "n1"))
    assert after.acc == ("O" if multiplies else "acc")
    written = "\n".join(kernel.t.render())
    for total, part, new in zip(("l0", "l1"), ("p0", "p1"), after.total, strict=True):
        assert f"{new} = vector.fma {total}, " in written and f", {part} : vector<4xf32>" in written


def test_a_block_of_the_second_sweep() -> None:
    """Its sums, which are 1 / l, stay; what was added to the output stays as it is."""
    kernel = RecordingKernel()
    sweep = RoundedSweep(kernel.t, Rounding(1 / 255))
    after = visit_block(sweep, kernel, STATE, Block("k0", "rows", False))
    assert after.total == STATE.total and after.acc == "O"
    assert sweep.decays(["a", "b"], ["c", "d"]) == [kernel.t.splat(1.0)] * 2


def test_sweeps_of_each_recurrence() -> None:
    """Online softmax walks the keys once; rounded probabilities need their sums first, which the results then have."""
    operands = _operands(VectorConfig(4, 8, 8, 4, 4, 1), rounding=Rounding(1 / 255))
    rows = QueriesAlongLanes(operands)

    def visits(recurrence: OnlineSoftmax | RoundedSoftmax) -> tuple[list[tuple[type, bool]], SoftmaxState]:
        seen: list[tuple[type, bool]] = []

        def visit(sweep: Sweep, state: SoftmaxState) -> SoftmaxState:
            seen.append((type(sweep), sweep.multiplies_values))
            return dataclasses.replace(state, acc=f"{state.acc}+", total=(f"sum{len(seen)}",) * 2)

        return seen, recurrence.attend(STATE, visit)

    once, state = visits(OnlineSoftmax(operands, rows))
    assert once == [(OnlineSweep, True)] and (state.acc, state.total) == ("acc+", ("sum1", "sum1"))
    twice, state = visits(RoundedSoftmax(operands, rows, Rounding(1 / 255)))
    assert twice == [(OnlineSweep, False), (RoundedSweep, True)]
    assert (state.acc, state.total) == ("acc++", ("sum1", "sum1"))


@pytest.mark.parametrize(
    ("rows", "config", "count", "reduced"),
    [
        (QueriesAlongLanes, VectorConfig(4, 8, 8, 4, 4, 1), 2, False),
        (VectorPerQuery, FewConfig(4, 3, 8, 4, 4, 1), 3, True),
    ],
)
def test_numbers_of_queries(
    rows: Callable[[Operands], QueryRows], config: VectorConfig | FewConfig, count: int, reduced: bool
) -> None:
    """Of a few queries each has a vector, whose lanes hold parts of a sum, and one lane what is added once."""
    operands = _operands(config)
    lying = rows(operands)
    assert lying.count == count == len(lying.positions())
    assert (lying.lane_of_sums() is not None) == reduced
    total = tuple(operands.t.splat(float(i)) for i in range(count))
    assert (lying.sums(total) != total) == reduced
    assert ("vector.reduction <add>" in "\n".join(operands.t.render())) == reduced
