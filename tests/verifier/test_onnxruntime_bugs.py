"""Every onnxruntime bug that has a reproducer is still there. A test that fails here is good news:
docs/developer/onnxruntime-bugs.md names the guard that can go."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from tests.support.ort_run import Array, session
from tests.support.ort_run import run as run_ort

FOLDER = Path(__file__).parents[1] / "onnxruntime_bugs"
PAGE = FOLDER.parents[1] / "docs" / "developer" / "onnxruntime-bugs.md"
run = partial(run_ort, exact=False)
"""As its users run it."""
REPAIRED = "this onnxruntime no longer has the bug: its guard (docs/developer/onnxruntime-bugs.md) can go"
X = np.array([[-3, 2, -1], [4, -5, 6]])


def _model(name: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model((FOLDER / f"{name}.onnxtxt").read_text())
    onnx.checker.check_model(model, full_check=True)
    return model


def test_moved_without_zero_point() -> None:
    model, feeds = _model("moved_without_zero_point"), {"x": X.astype(np.int8)}
    want = -0.5 * X.T
    np.testing.assert_array_equal(run(model, feeds, optimise=False)[0], want)
    np.testing.assert_array_equal(run(model, feeds)[0], np.minimum(want, 0), REPAIRED)


def test_moved_in_opset_21() -> None:
    model, feeds = _model("moved_in_opset_21"), {"x": X.astype(np.float32)}
    np.testing.assert_array_equal(run(model, feeds, optimise=False)[0], -X.T)
    with pytest.raises(Exception, match="output_dtype INT8 does not match"):
        run(model, feeds)
        pytest.fail(REPAIRED)


def test_moved_into_a_loop() -> None:
    model = _model("moved_into_a_loop")
    feeds: dict[str, Array] = {"x": np.abs(X).astype(np.uint8), "start": np.zeros((3, 2), np.float32)}
    np.testing.assert_array_equal(run(model, feeds, optimise=False)[0], 1.5 * np.abs(X.T))
    load = "import sys, onnxruntime; onnxruntime.InferenceSession(sys.stdin.buffer.read())"
    done = subprocess.run(
        [sys.executable, "-c", load], input=model.SerializeToString(), capture_output=True, timeout=60
    )
    assert done.returncode < 0, REPAIRED


def test_norm_of_two_axes() -> None:
    model, draw = _model("norm_of_two_axes"), np.random.default_rng(0).standard_normal
    feeds = {name: draw((2, 3, 8)).astype(np.float32) for name in ("x", "skip")} | {"scale": np.ones(8, np.float32)}
    total = feeds["x"] + feeds["skip"]

    def norm(axes: tuple[int, ...]) -> Array:
        centred = total - total.mean(axes, keepdims=True)
        return np.asarray(centred / np.sqrt((centred**2).mean(axes, keepdims=True) + 1e-5))

    np.testing.assert_allclose(run(model, feeds, optimise=False)[0], norm((-2, -1)), rtol=0, atol=1e-5)
    np.testing.assert_allclose(run(model, feeds)[0], norm((-1,)), rtol=0, atol=1e-5, err_msg=REPAIRED)


def test_output_rounded_behind_a_move() -> None:
    model, feeds = _model("output_rounded_behind_a_move"), {"x": X.astype(np.float32) / 8}
    np.testing.assert_array_equal(run(model, feeds, optimise=False)[0], -X / 8)
    have = run(model, feeds)[0]
    assert (have == np.round(have * 2) / 2).all() and (have != -X / 8).any(), REPAIRED


def test_product_by_channel() -> None:
    model = _model("product_by_channel")
    feeds = {i: np.ones(s, np.uint8) for i, s in (("x", (2, 4, 3)), ("w", (2, 3, 2)))}
    np.testing.assert_array_equal(run(model, feeds, optimise=False)[0], np.ones((2, 4, 2)))  # of 0.75, a tie
    with pytest.raises(Exception, match="while running QLinearMatMul"):
        run(model, feeds)
        pytest.fail(REPAIRED)


def test_integer_softmax() -> None:
    model = _model("integer_softmax")
    feeds = {"x": np.random.default_rng(0).integers(100, 156, (64, 10)).astype(np.uint8)}
    have, want = (run(model, feeds, optimise=o)[0] for o in (True, False))
    steps = np.round((have - want) * 255)
    assert set(np.unique(steps)) == {-1, 0} and 0.05 < np.mean(steps == -1) < 0.15, REPAIRED


def test_log_sum_exp() -> None:
    feeds: dict[str, Array] = {"x": np.array([[-1000, -np.inf], [-np.inf, -1000]], np.float32)}
    for optimise in (True, False):
        (have,) = run(_model("log_sum_exp"), feeds, optimise=optimise)
        assert have[0] == -1000 and have[1] == -np.inf, REPAIRED


def test_integer_max() -> None:
    feeds: dict[str, Array] = {"x": np.arange(8)}
    for optimise in (True, False):
        (have,) = run(_model("integer_max"), feeds, optimise=optimise)
        assert have[0] == 0, REPAIRED


def test_scale_as_float32() -> None:
    feeds: dict[str, Array] = {"x": X.astype(np.float64), "w": X.T.astype(np.float64)}
    have, want = (run(_model("scale_as_float32"), feeds, optimise=o)[0] for o in (True, False))
    np.testing.assert_allclose(want, 0.1 * X @ X.T, rtol=1e-15)
    np.testing.assert_allclose(have, np.float64(np.float32(0.1)) * X @ X.T, rtol=1e-15, err_msg=REPAIRED)


def test_scale_of_two_products() -> None:
    model, feeds = _model("scale_of_two_products"), {"x": X.astype(np.float32), "w": X.T.astype(np.float32)}
    want = 0.5 * X @ X.T
    for have, factor in zip(run(model, feeds, optimise=False), (1, 3), strict=True):
        np.testing.assert_array_equal(have, factor * want)
    with pytest.raises(Exception, match="Node input 's' is not a graph input"):
        run(model, feeds)
        pytest.fail(REPAIRED)


def test_sum_of_nothing() -> None:
    model, feeds = _model("sum_of_nothing"), {"x": np.zeros((3, 0), np.float32), "v": np.zeros((0, 1), np.float32)}
    np.testing.assert_array_equal(session(model, reuse=False).run(None, feeds)[0], np.zeros((3, 1)))
    for optimise in (True, False):
        with pytest.raises(Exception, match="attempting to re-use buffer"):
            run(model, feeds, optimise=optimise)
            pytest.fail(REPAIRED)


def test_keepdims_of_two() -> None:
    model, feeds = _model("keepdims_of_two"), {"x": X.astype(np.float32)}
    np.testing.assert_array_equal(run(model, feeds, optimise=False)[0], X.sum(0))
    with pytest.raises(Exception, match="Permutation length 2 does not match rank"):
        run(model, feeds)
        pytest.fail(REPAIRED)


def test_reshape_of_no_rows() -> None:
    model, feeds = _model("reshape_of_no_rows"), {"boxes": np.ones((0, 4), np.float32)}
    assert run(model, feeds, optimise=False)[0].shape == (0, 4)
    with pytest.raises(Exception, match="The input tensor cannot be reshaped to the requested shape"):
        run(model, feeds)
        pytest.fail(REPAIRED)


def test_every_reproducer_is_run_and_on_the_page() -> None:
    text = Path(__file__).read_text()
    for path in FOLDER.iterdir():
        assert f'"{path.stem}"' in text, path
        assert f"`{path.name}`" in PAGE.read_text()
