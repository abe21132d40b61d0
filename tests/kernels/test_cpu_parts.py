"""The parts of a body for CPUs by themselves: what loops carry, and what a recurrence asks of a block's kernel."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from onnx_fa.derive.loop import loop_of
from onnx_fa.kernels.cpu.language import VectorLanguage
from onnx_fa.kernels.cpu.operands import Operands
from onnx_fa.kernels.cpu.query_rows import QueriesAlongLanes, QueryRows, VectorPerQuery
from onnx_fa.kernels.cpu.recurrence import visit_block, visit_in_turn
from onnx_fa.kernels.cpu.state import Block, SoftmaxState, StateTypes
from onnx_fa.kernels.cpu.sweep import Sweep
from onnx_fa.kernels.cpu.tiles import FewConfig, VectorConfig
from onnx_fa.kernels.mlir.vectors import Lanes
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.expr import SCORE, Apply
from onnx_fa.spec.terms import Rounding, Softcap, Weighting

STATE = SoftmaxState("acc", "scores", ("tile",), ("m0", "m1"), ("l0", "l1"))
TYPES = StateTypes("A", "S", ("T",), "V", 2, 2)


def _operands(config: VectorConfig | FewConfig, **changes: Any) -> Operands:
    return Operands(AttentionSpec("f32", 2, 2, 8, 16, 8, 8, (1,), **changes), config)


class RecordingKernel:
    """A BlockKernel that writes down what it is asked for. It visits both vectors of queries at once, or one after the other."""

    clear_apart = True
    types = TYPES

    def __init__(self, parts: Sequence[slice] = (slice(0, 2),)) -> None:
        self.t, self.parts = Lanes(4), parts
        self.asked: list[str] = []

    def load_queries(self) -> None:
        self.asked.append("queries")

    def prepare(self, state: SoftmaxState, block: Block) -> tuple[SoftmaxState, Block]:
        self.asked.append("prepare")
        return dataclasses.replace(state, scratch=("mask",)), block

    def needs(self, part: slice) -> str:
        return ""

    def visit_parts(self, sweep: Sweep, state: SoftmaxState, block: Block) -> SoftmaxState:
        return visit_in_turn(sweep, self, state, block)

    def scores(self, state: SoftmaxState, block: Block, part: slice) -> tuple[str, list[str]]:
        self.asked.append("scores")
        return "S", ["n0", "n1"][part]

    def probabilities(self, sweep: Sweep, state: SoftmaxState, block: Block, part: slice) -> tuple[str, list[str]]:
        self.asked.append(f"probabilities of {state.scores} below {' '.join(state.best)}")
        return "P", ["p0", "p1"][: len(state.total)][part]

    def add_values(self, state: SoftmaxState, decay: Sequence[str], block: Block, part: slice) -> SoftmaxState:
        assert len(decay) == len(range(*part.indices(2)))
        self.asked.append(f"values times {state.scores}")
        return dataclasses.replace(state, acc="O")

    def finish_output(self, state: SoftmaxState, inverse: Callable[[str], str]) -> str:
        return inverse(state.total[0])


def test_a_state_survives_a_loop() -> None:
    assert TYPES.unpack(TYPES.pack(STATE)) == STATE
    assert [t for _, t in TYPES.carried(STATE)] == ["A", "S", "T", "V", "V", "V", "V"]


def _sweeps(**changes: Any) -> list[Sweep]:
    operands = _operands(VectorConfig(4, 8, 8, 4, 4, 1), **changes)
    language = VectorLanguage(Lanes(4), operands.spec)
    return [Sweep(language, walk) for walk in loop_of(operands.spec).walks]


@pytest.mark.parametrize("multiplies", [True, False])
def test_a_block_of_online_softmax(multiplies: bool) -> None:
    """Maximum and sum grow; the output does in a sweep that multiplies values."""
    kernel = RecordingKernel()
    (sweep,) = _sweeps() if multiplies else _sweeps(rounding=Rounding(1 / 255))[:1]
    kernel.t = sweep.language.t
    after = visit_block(sweep, kernel, STATE, Block("k0", "rows", False))
    wanted = ["prepare", "scores", "probabilities of S below n0 n1", "values times P"]
    assert kernel.asked == wanted[: 4 if multiplies else 3]
    assert (after.scores, after.scratch, after.best) == ("P", ("mask",), ("n0", "n1"))
    assert after.acc == ("O" if multiplies else "acc")
    written = "\n".join(kernel.t.render())
    for total, part, new in zip(("l0", "l1"), ("p0", "p1"), after.total, strict=True):
        assert f"{new} = vector.fma {total}, " in written and f", {part} : vector<4xf32>" in written


def test_a_block_in_parts() -> None:
    """The block is prepared once; what one part of the queries leaves is what the next begins with, and only its own sums grow."""
    kernel = RecordingKernel([slice(0, 1), slice(1, 2)])
    (sweep,) = _sweeps()
    kernel.t = sweep.language.t
    after = visit_block(sweep, kernel, STATE, Block("k0", "rows", False))
    first, second = (["scores", f"probabilities of S below {m}", "values times P"] for m in ("n0 m1", "n0 n1"))
    assert kernel.asked == ["prepare", *first, *second]
    assert after.best == ("n0", "n1") and after.total[0] != after.total[1] and not {"l0", "l1"} & set(after.total)


def test_a_block_of_the_second_sweep() -> None:
    """It carries neither maximum nor sum, and what was added to the output stays as it is."""
    _, sweep = _sweeps(rounding=Rounding(1 / 255))
    assert not sweep.walk.has_maximum and sweep.walk.mass is None and sweep.decays((), ()) == []


def test_what_each_loop_carries() -> None:
    """A softmax has a maximum and a sum, one of bounded scores only the sum, a sigmoid neither."""

    def carried(**changes: Any) -> list[tuple[bool, bool, bool]]:
        return [(s.walk.has_maximum, s.walk.mass is not None, s.walk.weight is not None) for s in _sweeps(**changes)]

    assert carried() == [(True, True, True)]
    assert carried(mods=(Softcap(30.0),)) == [(False, True, True)]
    assert carried(mods=(Softcap(80.0),)) == [(True, True, True)]
    assert carried(weighting=Weighting(Apply("Sigmoid", SCORE))) == [(False, False, True)]
    assert carried(rounding=Rounding(1 / 255)) == [(True, True, False), (False, False, True)]


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
