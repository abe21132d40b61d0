"""Products of rows that are flattened around them, by sizes that the run computes: they are those of whole rows, with what follows
behind the view, and mean the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import onnx_fa
from onnx_fa.iree.compile import import_model
from onnx_fa.iree.run import load_module
from tests.support.joined_models import join_models
from tests.support.ort_run import assert_same, run
from tests.support.spellings import Graph
from tests.support.triton_sources import triton_sources

K, N = 64, 96


class Layers(Graph):
    """x of free sizes, and products by weights of some sizes."""

    def __init__(self) -> None:
        super().__init__(17)
        self.rng = np.random.default_rng(0)
        self.x = self.input("x", ["B", "S", K])
        self.shape = self.op("Shape", self.x)

    def weight(self, *shape: int) -> str:
        return self.const(self.rng.standard_normal(shape) / 8, np.float32)

    def ints(self, *numbers: int) -> str:
        return self.const(list(numbers), np.int64)

    def lead(self) -> list[str]:
        return [self.op("Gather", self.shape, self.ints(i)) for i in (0, 1)]

    def flat(self, x: str, columns: int) -> str:
        return self.op("Reshape", x, self.ints(-1, columns))

    def layer(self, x: str, columns: int, to: int, *, op: str = "Gemm", **attributes: Any) -> str:
        """Between two views."""
        weight = self.weight(*((to, columns) if attributes.get("transB") else (columns, to)))
        made = self.op(op, self.flat(x, columns), weight, *[self.weight(to)] * (op == "Gemm"), **attributes)
        return self.view(made, to)

    def view(self, made: str, to: int) -> str:
        return self.op("Reshape", made, self.op("Concat", *self.lead(), self.ints(to), axis=0))

    def done(self, *outs: str, columns: int = N) -> onnx.ModelProto:
        """What is made, behind an operator: results of a graph have sizes by names of their own."""
        return self.model({self.op("Neg", out): (["b", "s", columns], TensorProto.FLOAT) for out in outs})


def gpt2() -> onnx.ModelProto:
    """A layer with an activation, one with a residual, and one whose columns are parts."""
    g = Layers()
    y = g.op("Tanh", g.layer(g.x, K, N))
    y = g.op("Add", g.layer(y, N, K), g.x)
    y = g.op("Split", g.layer(y, K, 3 * N), g.ints(N, N, N), outs=3, axis=2)
    return g.done(y, *(f"{y}_{i}" for i in (1, 2)))


def _one(**options: Any) -> onnx.ModelProto:
    g = Layers()
    return g.done(g.layer(g.x, K, N, **options))


def _view(how: str) -> onnx.ModelProto:
    g = Layers()
    made = g.op("Gemm", g.flat(g.x, K), g.weight(K, N), g.weight(N))
    if how == "turned":
        sizes = [*g.lead()[::-1], g.ints(N)]
        return g.done(g.op("Reshape", made, g.op("Concat", *sizes, axis=0)))
    if how == "read twice":
        return g.model(
            {
                g.view(made, N): (["b", "s", N], TensorProto.FLOAT),
                g.op("Relu", made): (["r", N], TensorProto.FLOAT),
            }
        )
    if how == "halved":
        view = g.op("Reshape", made, g.op("Concat", *g.lead(), g.ints(2, N // 2), axis=0))
        return g.model({g.op("Neg", view): (["b", "s", 2, N // 2], TensorProto.FLOAT)})
    return g.done(g.view(made, N))


MODELS = {
    "layers": gpt2(),
    "transposed weight": _one(transB=1),
    "MatMul": _one(op="MatMul"),
    "alpha": _one(alpha=0.5),
    "turned": _view("turned"),
    "read twice": _view("read twice"),
    "halved": _view("halved"),
}


@pytest.mark.parametrize("target", ["cpu-avx2", "cuda"])
def test_what_follows_is_the_products_own(target: str) -> None:
    with triton_sources():
        text = import_model(MODELS["layers"], target).text
    assert text.count("util.call @linear_") == 3
    assert not [op for op in ("Tanh", "Add", "Split", "Slice") if f'"onnx.{op}"' in text]


@pytest.mark.parametrize("name", ["turned", "read twice"])
def test_what_follows_another_view_is_not(name: str) -> None:
    with triton_sources():
        text = import_model(MODELS[name], "cuda").text
    assert re.search(r"util\.call @linear_\w+\(.*\) : \(tensor<\?x64xf32>", text)


def test_compiled(tmp_path: Path) -> None:
    """Side by side, as a compilation of each would take as long as all."""
    joined = join_models(list(MODELS.values()))
    onnx_fa.compile(joined, tmp_path / "m.vmfb")
    call = load_module(tmp_path / "m.vmfb")
    for lead in ((1, 1), (3, 17), (2, 4)):
        x = np.random.default_rng(2).standard_normal((*lead, K)).astype(np.float32)
        feeds = {value.name: x for value in joined.graph.input}
        assert_same(run(joined, feeds), call(*feeds.values()), 1e-5)
