"""Probabilities of which some heads multiply values of their own, and values that are made of what the probabilities made."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T

from onnx_fa.forms.replace import Form
from onnx_fa.forms.rewrite import explain, rewrite
from tests.support.ort_run import assert_same, run
from tests.support.spellings import Graph

B, H, S, L, D, E = 2, 4, 5, 7, 8, 6


class Zipped(Graph):
    """Heads before the batch, as in Zipformer: q (H, B, S, D), k (H, B, D, L), v (H, B, L, E), gate (1, B, L, E)."""

    def __init__(self, batch: int | str = B) -> None:
        super().__init__(18)
        self.q, self.k = self.input("q", [H, batch, S, D]), self.input("k", [H, batch, D, L])
        self.v, self.batch = self.input("v", [H, batch, L, E]), batch

    def score(self) -> str:
        places = self.op("MatMul", self.input("p", [H, self.batch, S, 2]), self.input("table", [H, 1, 2, L]))
        score = self.op("Add", self.op("MatMul", self.q, self.k), places)
        return self.op("Where", self.input("dropped", [self.batch, 1, L], T.BOOL), self.const(-1000.0), score)

    def heads(self, p: str, first: int, last: int, axis: int = 0, step: int = 1) -> str:
        return self.op("Slice", p, *(self.const([x], np.int64) for x in (first, last, axis, step)))

    def done(self, *outputs: str) -> onnx.ModelProto:
        shapes = {o: ([H, self.batch, S, E], T.FLOAT) for o in outputs[:1]}
        return self.model(shapes | {o: ([None, self.batch, S, E], T.FLOAT) for o in outputs[1:]})


def _some(first: int = 0, last: int = 1, batch: int | str = B) -> onnx.ModelProto:
    g = Zipped(batch)
    p = g.op("Softmax", g.score(), axis=-1)
    width = len(range(*slice(first, last).indices(H)))
    gated = g.op("MatMul", g.heads(p, first, last), g.input("gate", [width, batch, L, E]))
    return g.done(g.op("MatMul", p, g.v), gated)


def _in_turn() -> onnx.ModelProto:
    """The values of the second product are made of the first one's result, which the model reads besides."""
    g = Zipped()
    p = g.op("Softmax", g.score(), axis=-1)
    first = g.op("MatMul", p, g.v)
    mixed = g.op("MatMul", g.input("w", [L, S]), first)
    more = g.op("Add", mixed, g.v)
    return g.done(g.op("MatMul", p, more), g.op("Add", first, g.op("ReduceMean", more, g.const([2], np.int64))))


def _queries() -> onnx.ModelProto:
    """Some queries, no heads."""
    g = Zipped()
    p = g.op("Softmax", g.score(), axis=-1)
    return g.done(g.op("MatMul", p, g.v), g.op("MatMul", g.heads(p, 0, 2, axis=2), g.v))


def _each_second() -> onnx.ModelProto:
    g = Zipped()
    p = g.op("Softmax", g.score(), axis=-1)
    return g.done(g.op("MatMul", p, g.v), g.op("MatMul", g.heads(p, 0, 4, step=2), g.input("gate", [2, B, L, E])))


FOUND: dict[str, tuple[Callable[[], onnx.ModelProto], int]] = {
    "the first": (_some, 2),
    "the last two": (lambda: _some(-2, 1 << 40), 2),
    "those in the middle, of any batch": (lambda: _some(1, 3, "batch"), 2),
    "one after the other": (_in_turn, 2),
}


def _feeds(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    made = {}
    for i in model.graph.input:
        shape = [d.dim_value or B for d in i.type.tensor_type.shape.dim]
        if i.type.tensor_type.elem_type == T.BOOL:
            made[i.name] = rng.random(shape) < 0.4
            made[i.name][0] = True  # a row without keys is the mean of the values
        else:
            made[i.name] = np.asarray(rng.standard_normal(shape), np.float32)
    return made


@pytest.mark.parametrize("name", FOUND)
@pytest.mark.parametrize("form", ["decomposed", "blocked"])
def test_some_heads_have_a_site_of_their_own(name: str, form: Form) -> None:
    build, sites = FOUND[name]
    model = build()
    report = explain(model)
    assert len(report.sites) == sites and not report.misses
    new, _ = rewrite(model, form)
    onnx.checker.check_model(new, full_check=True)
    feeds = _feeds(model)
    want = run(model, feeds, optimise=False)
    for optimise in (False, True):
        assert_same(want, run(new, feeds, optimise=optimise), 4e-6)


@pytest.mark.parametrize(
    ("build", "reason"),
    [(_queries, "feeds Slice"), (_each_second, "feeds Slice")],
)
def test_what_is_no_part_of_the_heads_stays(build: Callable[[], onnx.ModelProto], reason: str) -> None:
    """The graph is left as it was, with the reason of before."""
    model = build()
    new, report = rewrite(model)
    assert not report.sites and len(report.misses) == 1
    assert reason in report.misses[0].reason, report.misses[0].reason
    assert [n.op_type for n in new.graph.node] == [n.op_type for n in model.graph.node]
