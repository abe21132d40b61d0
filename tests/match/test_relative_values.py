"""Values of distances between positions (VITS, Glow-TTS): probabilities that are skewed and multiplied a second time."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T

import onnx_fa
from onnx_fa.forms.replace import Form
from onnx_fa.forms.rewrite import explain, rewrite
from tests.support.ort_run import assert_same, run
from tests.support.spellings import Graph

B, H, D = 2, 3, 8


class Skewed(Graph):
    """softmax(q k^T / 3 + bias) v + skew(softmax) values, of q, k, v (B, H, size, D). Options change what is computed, or where."""

    def __init__(self, size: int | str, **options: Any) -> None:
        super().__init__(18)
        self.size, self.options = size, options
        self.q, self.k, self.v = (self.input(n, [B, H, size, D]) for n in "qkv")
        self.length = self.op("Gather", self.op("Shape", self.q), self.const([2], np.int64), axis=0)

    def option(self, name: str, usual: Any) -> Any:
        return self.options.get(name, usual)

    def number(self, times: int, plus: int) -> str:
        """times * size + plus, as a vector."""
        if isinstance(self.size, int):
            return self.const([times * self.size + plus], np.int64)
        return self.op("Add", self.op("Mul", self.length, self.const([times], np.int64)), self.const([plus], np.int64))

    def vector(self, *parts: int | str) -> str:
        """Numbers, and names of vectors of one."""
        return self.op("Concat", *(self.const([p], np.int64) if isinstance(p, int) else p for p in parts), axis=0)

    def score(self) -> str:
        size = self.size
        score = self.op("MatMul", self.q, self.op("Transpose", self.k, perm=[0, 1, 3, 2]))
        score = self.op("Div", score, self.const(3.0))
        if self.option("bias", True):
            score = self.op("Add", score, self.input("bias", [B, H, size, size]))
        fill = self.option("fill", None)
        if fill is not None:
            dropped = self.input("dropped", [B, 1, size if self.option("by_query", False) else 1, size], T.BOOL)
            score = self.op("Where", dropped, self.const(fill), score)
        return score

    def skew(self, p: str) -> str:
        o = self.option
        behind = self.vector(0, 0, 0, 0, 0, 0, 0, self.number(1, -1))
        value = [] if o("value", None) is None else [self.const(o("value", None))]
        wide = self.op("Pad", p, behind, *value, mode=o("mode", "constant"))
        row = self.op("Mul", self.number(1, 0), self.number(2, -1))
        flat = self.op("Reshape", wide, self.vector(B, H, row))
        front = [0, 0, self.number(1, 0), 0, 0, 0] if not o("ends", False) else [0, 0, 0, 0, 0, self.number(1, 0)]
        padded = self.op("Pad", flat, self.vector(*front))
        rows = self.op("Reshape", padded, self.vector(B, H, self.number(1, 0), self.number(2, 0)))
        first = o("first", 1)
        last = self.const([1 << 62], np.int64) if first == 1 else self.number(2, first - 1)
        return self.op("Slice", rows, self.const([first], np.int64), last, self.const([3], np.int64))

    def values(self) -> str:
        """(2 size - 1, D): zeros but for the middle."""
        reach = self.option("reach", 2)
        rng = np.random.default_rng(1)
        rows = rng.standard_normal((self.option("rows", 2 * reach + 1), D)).astype(np.float32)
        if isinstance(self.size, int):
            whole = np.zeros((2 * max(self.size, reach + 1) - 1, D), np.float32)
            middle = len(whole) // 2
            whole[middle - reach : middle + reach + 1] = rows
            cut = max(reach + 1 - self.size, 0)
            return self.const(whole[cut : len(whole) - cut])
        pad = self.number(1, -1 - reach + self.option("moved", 0))
        behind = self.number(1, -1 - reach - self.option("moved", 0))
        return self.op("Pad", self.const(rows), self.vector(pad, 0, behind, 0))

    def done(self) -> onnx.ModelProto:
        p = self.op("Softmax", self.score(), axis=-1)
        skewed, size = self.skew(p), self.size
        outputs = {self.op("Add", self.op("MatMul", p, self.v), self.op("MatMul", skewed, self.values())): D}
        if self.option("shown", False):
            outputs[p] = size
        if self.option("twice", False):
            outputs[self.op("MatMul", self.skew(p), self.values())] = D
        if self.option("skewed_too", False):
            outputs[self.op("ReduceSum", skewed, self.const([3], np.int64))] = 1
        if self.option("read_too", False):
            outputs[self.op("Relu", self.op("Sub", p, self.const(0.5)))] = size
        return self.model({name: ([B, H, size, width], T.FLOAT) for name, width in outputs.items()})


def feeds(model: onnx.ModelProto, size: int, scale: float = 1.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    made: dict[str, np.ndarray] = {}
    for value in model.graph.input:
        shape = [d.dim_value or size for d in value.type.tensor_type.shape.dim]
        if value.type.tensor_type.elem_type == T.BOOL:
            made[value.name] = rng.random(shape) < 0.4
            made[value.name][0, ..., : size // 2] = True  # whole windows are without keys, rows are not
            made[value.name][0, ..., -1] = False
            made[value.name][1, :, -1] = True  # by query: a row without keys
        else:
            made[value.name] = (scale * rng.standard_normal(shape)).astype(np.float32)
    return made


def check(model: onnx.ModelProto, sizes: tuple[int, ...], form: Form = "decomposed", scale: float = 1.0) -> None:
    report = explain(model)
    assert len(report.sites) == 2 and not report.misses
    # Of no more positions than the window reaches over to each side all are in it.
    assert sum("slidingwindow" in site.variant for site in report.sites) == (max(sizes) > 3)
    new, _ = rewrite(model, form)
    onnx.checker.check_model(new, full_check=True)
    assert not any(n.op_type == "Pad" for n in new.graph.node), "P of all keys is still there"
    for size in sizes:
        given = feeds(model, size, scale)
        want = run(model, given, optimise=False)
        for optimise in (False, True):
            assert_same(want, run(new, given, optimise=optimise), 5e-6)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 13])
def test_fixed_sizes(size: int) -> None:
    """Shorter than the window, as long, and longer."""
    check(Skewed(size).done(), (size,))


@pytest.mark.parametrize("form", ["decomposed", "blocked"])
def test_free_sizes(form: Form) -> None:
    check(Skewed("T").done(), (3, 4, 5, 11, 37), form)


@pytest.mark.parametrize("fill", [-1e4, float(np.finfo(np.float32).min), -np.inf])
@pytest.mark.parametrize("by_query", [False, True])
def test_masks(fill: float, by_query: bool) -> None:
    """Keys that a mask drops, among them all of a row's window, and all of a row."""
    check(Skewed("T", fill=fill, by_query=by_query).done(), (5, 19))


def test_large_scores() -> None:
    check(Skewed("T", bias=False).done(), (29,), scale=20)


def test_probabilities_that_are_an_output() -> None:
    check(Skewed("T", shown=True).done(), (17,))


def test_the_diagonal_alone() -> None:
    check(Skewed(9, reach=0).done(), (9,))


def test_compiled(tmp_path: Any) -> None:
    model = Skewed("T", fill=-np.inf).done()
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    for size in (4, 21):
        given = feeds(model, size)
        assert_same(run(model, given, optimise=False), onnx_fa.run(tmp_path / "m.vmfb", *given.values()), 5e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"first": 0},  # one place to the left
        {"ends": True},  # the zeros behind: nothing is skewed by them
        {"value": 1.0},
        {"mode": "edge"},
        {"skewed_too": True},
        {"read_too": True},
        {"twice": True},
    ],
)
@pytest.mark.parametrize("size", [9, "T"])
def test_look_alikes_stay(options: dict[str, Any], size: int | str) -> None:
    model = Skewed(size, **options).done()
    new, report = rewrite(model)
    assert not report.sites and len(report.misses) == 1
    assert [n.op_type for n in new.graph.node] == [n.op_type for n in model.graph.node]
    given = feeds(model, 9)
    assert_same(run(model, given, optimise=False), run(new, given, optimise=False), 0.0)


@pytest.mark.parametrize("options", [{"moved": 1}, {"rows": 4, "reach": 2}, {"reach": 65}])
def test_other_rows_stay(options: dict[str, Any]) -> None:
    """Rows that begin elsewhere, are an even number, or are too many."""
    assert not explain(Skewed("T", **options).done()).sites
