"""Products of rows that are flattened around them: which are those of whole rows, and that they mean the same."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto

import onnx_fa
from onnx_fa.graph.normalise import infer_shapes
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.compile import import_model
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.known_shapes import settle_shapes
from onnx_fa.iree.legalise.whole_rows import write_whole_rows
from onnx_fa.iree.run import load_module
from onnx_fa.spec.target import parse_target
from tests.support.ort_run import assert_same, run
from tests.support.spellings import Graph
from tests.support.triton_sources import triton_sources

CPU = parse_target("cpu-avx2")
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
        return g.done(g.op("Reshape", made, g.op("Concat", *g.lead(), g.ints(2, N // 2), axis=0)))
    return g.done(g.view(made, N))


MATCH = {"Gemm": _one(), "transposed weight": _one(transB=1), "MatMul": _one(op="MatMul"), "plain": _view("")}
STAYS = {
    "alpha": _one(alpha=0.5),
    "another order": _view("turned"),
    "read twice": _view("read twice"),
}


def written(model: onnx.ModelProto, target: Any = CPU) -> onnx.ModelProto:
    """As the importer calls it, with free sizes that have names."""
    named = ir.from_proto(model)
    infer_shapes(named)
    settle_shapes(named)
    made = ir.to_proto(named)
    infer_types(made, {})
    write_whole_rows(made, target=target)
    return made


def counted(model: onnx.ModelProto) -> Counter[str]:
    return Counter(op_of(node) for node in model.graph.node)


@pytest.mark.parametrize("name", MATCH)
def test_one_product_of_whole_rows(name: str) -> None:
    made = written(MATCH[name])
    ops = counted(made)
    assert ops["MatMul"] == 1 and not ops["Gemm"] and ops["Reshape"] == 1  # the flat rows, which nothing reads
    onnx.checker.check_model(made)
    x = {"x": np.random.default_rng(1).standard_normal((2, 5, K)).astype(np.float32)}
    assert_same(run(MATCH[name], x), run(made, x), 1e-5)


@pytest.mark.parametrize("name", STAYS)
def test_stays(name: str) -> None:
    assert counted(written(STAYS[name])) == counted(STAYS[name])


def test_without_kernels() -> None:
    assert counted(written(MATCH["Gemm"], parse_target("vulkan"))) == counted(MATCH["Gemm"])


@pytest.mark.parametrize("target", ["cpu-avx2", "cuda"])
def test_what_follows_is_the_products_own(target: str) -> None:
    with triton_sources():
        text = import_model(gpt2(), target).text
    assert text.count("util.call @linear_") == 3
    assert not [op for op in ("onnx.Tanh", "onnx.Add", "onnx.Split", "onnx.Slice") if f'"{op}"' in text]


def test_compiled(tmp_path: Path) -> None:
    model = gpt2()
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    call = load_module(tmp_path / "m.vmfb")
    for lead in ((1, 1), (3, 17), (0, 4)):
        x = np.random.default_rng(2).standard_normal((*lead, K)).astype(np.float32)
        assert_same(run(model, {"x": x}), call(x), 1e-5)
