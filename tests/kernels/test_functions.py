"""Functions of vectors in an epilogue on CPUs, from the smallest numbers to infinities and NaN: their numbers, and their code."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from onnx_fa.iree.run import load_module
from onnx_fa.kernels.cpu.linear import emit_linear, panel_of
from onnx_fa.kernels.mlir.expressions import ExprVectors, IntBounds, Vector
from onnx_fa.kernels.mlir.functions import sigmoid_factor
from onnx_fa.kernels.mlir.vectors import Lanes
from onnx_fa.spec.expr import SCORE, Apply, Float, ScoreExpr, Tensor
from onnx_fa.spec.linear import LinearSpec
from onnx_fa.spec.linear_cases import in_panels
from onnx_fa.spec.target import parse_target
from tests.support.linear_modules import compile_sites

HOST = parse_target("cpu-host")
SIGMOID = Apply("Sigmoid", SCORE)
THEN = {
    "erf": Apply("Erf", SCORE),
    "sigmoid": SIGMOID,
    "silu": Apply("Mul", SCORE, SIGMOID),
    "quick_gelu": Apply("Mul", Apply("Sigmoid", Apply("Mul", Float(1.702), SCORE)), SCORE),
    "relu": Apply("Relu", SCORE),
    "clip": Apply("Min", Apply("Max", SCORE, Float(-2.0)), Float(3.0)),
    "hard_sigmoid": Apply("Max", Float(0.0), Apply("Min", Float(1.0), SCORE)),
}


def spec_of(then: ScoreExpr) -> LinearSpec:
    spec = LinearSpec(("rows",), 1, 32, "f32", then=then)
    return replace(spec, panel=panel_of(spec, HOST))


def numbers() -> npt.NDArray[np.float32]:
    """Of both signs, with NaN of several bit patterns."""
    some = [np.logspace(-37, 0, 300), np.linspace(0, 20, 4001), np.linspace(20, 90, 2001), [1e5, 3e38, np.inf]]
    positive = np.concatenate(some).astype(np.float32)
    nan = np.array([0x7FC00000, 0x7FC00001, 0x7FC001FF, 0x7FFFFFFF, 0xFFC00001], np.uint32).view(np.float32)
    return np.concatenate([positive, -positive, nan])


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, npt.NDArray[np.float64]]:
    """What becomes of the numbers, by the function's name."""
    module = tmp_path_factory.mktemp("functions") / "m.vmfb"
    compile_sites({name: (spec_of(then), None) for name, then in THEN.items()}, module, HOST)
    x, found = numbers()[:, None], {}
    for name, then in THEN.items():
        (y,) = load_module(module, function=name)(x, in_panels(np.ones((1, 32), np.float32), spec_of(then).panel))
        assert np.array_equal(y, np.broadcast_to(y[:, :1], y.shape), equal_nan=True)
        found[name] = y[:, 0].astype(np.float64)
    return found


def close(got: npt.NDArray[np.float64], want: npt.NDArray[np.float64], relative: float) -> bool:
    """As near as that, but for what comes of a sigmoid too small for f32 to hold with all its bits, which counts as 0; NaN and
    infinities in the same places."""
    finite = np.isfinite(want)
    near = np.abs(got[finite] - want[finite]) <= relative * np.abs(want[finite]) + 1.2e-36
    return bool(near.all()) and np.array_equal(got[~finite], want[~finite], equal_nan=True)


def test_sigmoid(results: dict[str, npt.NDArray[np.float64]]) -> None:
    """Relative to its own size, however small; 0 and 1 at the infinities."""
    x = numbers().astype(np.float64)
    with np.errstate(over="ignore"):
        assert close(results["sigmoid"], 1 / (1 + np.exp(-x)), 2e-7)
    assert list(results["sigmoid"][np.isinf(x)]) == [1, 0]


def test_times_sigmoid(results: dict[str, npt.NDArray[np.float64]]) -> None:
    """Of -infinity NaN, as the product of infinity and 0 is."""
    x = numbers().astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        assert close(results["silu"], x / (1 + np.exp(-x)), 2e-7)
        # The product with 1.702 is rounded, and e to the power of that.
        wide = np.float32(1.702) * numbers()
        assert close(results["quick_gelu"], x / (1 + np.exp(-wide.astype(np.float64))), 2e-7)
    assert np.isnan(results["silu"][x == -np.inf]).all() and (results["silu"][x == np.inf] == np.inf).all()


def test_bounds(results: dict[str, npt.NDArray[np.float64]]) -> None:
    x = numbers().astype(np.float64)
    for name, low, high in (("relu", 0, np.inf), ("clip", -2, 3), ("hard_sigmoid", 0, 1)):
        np.testing.assert_array_equal(results[name], np.clip(x, low, high), err_msg=name)


def test_product_with_a_sigmoid_is_a_quotient() -> None:
    """Whichever factor it is; nothing is multiplied by it, and no exponential is the compiler's."""
    for name in ("silu", "quick_gelu"):
        spec = spec_of(THEN[name])
        text = "\n".join(emit_linear(spec, HOST).values())
        products = text.count("arith.mulf")
        assert "math.exp" not in text and text.count("arith.divf") > 0, name
        assert products == (0 if name == "silu" else text.count("arith.divf")), name
    assert sigmoid_factor(Apply("Add", SCORE, SIGMOID)) is None


def test_a_sigmoid_that_is_there_is_multiplied_by() -> None:
    """A loop has it from outside, where what it is made of is not known."""
    t, x, made = Lanes(8), Tensor(0), Apply("Sigmoid", Tensor(0))
    there = {SCORE: Vector("%score", "f32"), made: Vector("%made", "f32")}
    emitter = ExprVectors(t, IntBounds(1, 1, ()), [])
    for known, memo in ((there.get, dict[ScoreExpr, Vector]()), ({SCORE: there[SCORE]}.get, {made: there[made]})):
        emitter.emit(Apply("Mul", SCORE, Apply("Sigmoid", x)), known, memo)
        assert "arith.mulf %score, %made" in t.render()[-1]


def test_bounds_are_single_instructions() -> None:
    """arith.maximumf asks for NaN in three."""
    for name in ("relu", "clip", "hard_sigmoid"):
        text = "\n".join(emit_linear(spec_of(THEN[name]), HOST).values())
        assert "arith.maximumf" not in text and "arith.minimumf" not in text, name
